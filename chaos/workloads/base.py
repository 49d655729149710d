"""The base of all workloads: a client that makes requests, notes requests and answers, and stops when the stage says so.

A workload is a class with four verbs, the same in simulation and on Ray:

    prepare    make its table, before the first fault
    run        one client's loop, until `client.stopping`
    conclude   the last reads, after all faults
    judge      a verdict over its history
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol, TypeVar

import pyarrow as pa

import ebla
from ebla import aio
from ebla.actors.errors import TimedOut
from ebla.actors.world import Clock, Network
from ebla.chaos.checkers.refusals import EXPLAINED, NOTHING, Explained, check_refusals
from ebla.chaos.checkers.verdict import Verdict, together
from ebla.chaos.history import BESIDE, FAIL, INFO, INVOKE, OK, ORDER, History
from ebla.storage.errors import DiskFull, EblaError
from ebla.storage.schema import ROWS

T = TypeVar("T")

# Reads these columns of all rows of a table on a random host, within a deadline in seconds.
LocalScan = Callable[[aio.Table, Sequence[str], Random, float], Awaitable[pa.Table]]

PREPARE_S = 60.0
DEADLINES_S: tuple[float, ...] = (1.0, 5.0, 20.0)  # each operation gets one of them
PAUSE_S = 0.06
ATTEMPTS_MAX = 200  # of one write with a fixed id


class NoAnswer(Exception):
    """The operation ended without an answer; the history has the reason."""


def is_open(error: EblaError) -> bool:
    """Whether the write may still take place. `DiskFull` is open here, because the network may repeat a request after its answer,
    when the disk has space again. On Ray calls are not repeated, and `DiskFull` is certain."""
    return error.possibly_applied or isinstance(error, DiskFull)


@dataclass
class Client:
    """One client of one workload. `process`: its present number in the history."""

    db: aio.Database
    clock: Clock
    network: Network
    random: Random
    history: History
    now_s: Callable[[], float]  # the stage's time, for the history
    stage: Stage
    process: int = field(init=False)

    def __post_init__(self) -> None:
        self.process = self.history.new_process()

    @property
    def stopping(self) -> bool:
        return self.stage.stopping

    def another(self) -> Client:
        """A client on the same connection, with a process of its own, which may make requests while this one waits."""
        return replace(self)

    async def ask(
        self,
        operation: str,
        key: Any,
        value: Any,
        call: Awaitable[T],
        answer: Callable[[T], Any] = lambda result: None,
        *,
        reads: bool = False,
    ) -> T:
        """Note an operation and its end; `answer` turns the result of `call` into the history's value. Raises NoAnswer."""
        process = self.process
        self.note(process, INVOKE, operation, key, value)
        try:
            result = await call
        except EblaError as error:
            unknown = is_open(error) and not reads
            kind = INFO if unknown else FAIL
            self.note(process, kind, operation, key, value, f"{type(error).__name__}: {error}")
            if unknown:
                self.process = self.history.new_process()
            raise NoAnswer from error
        self.note(process, OK, operation, key, answer(result))
        return result

    async def ask_many(
        self,
        operation: str,
        keys: Sequence[Any],
        call: Awaitable[T],
        answers: Callable[[T], Sequence[Any]],
        *,
        values: Sequence[Any] = (),
        reads: bool = False,
    ) -> T:
        """One call that is many operations: one per key, each by a process of its own. Raises NoAnswer."""
        return await self._ask_apart(
            operation, keys, call, answers, lambda error: is_open(error) and not reads, values
        )

    async def order(self, verb: str, key: Any, call: Awaitable[T]) -> T:
        """An operator's request to a role. Raises NoAnswer."""
        return await self._ask_apart(f"{ORDER}{verb}", (key,), call)

    async def beside(self, what: str, key: Any, call: Awaitable[T]) -> T:
        """An auxiliary request; its errors are judged, too. Raises NoAnswer."""
        return await self._ask_apart(f"{BESIDE}{what}", (key,), call)

    async def _ask_apart(
        self,
        operation: str,
        keys: Sequence[Any],
        call: Awaitable[T],
        answers: Callable[[T], Sequence[Any]] = lambda result: (None,),
        unknown: Callable[[EblaError], bool] = lambda error: error.possibly_applied,
        values: Sequence[Any] = (),
    ) -> T:
        """Note an operation for each key by a process of its own, so that this client may make other requests meanwhile."""
        marks = [(self.history.new_process(), key) for key in keys]
        for (process, key), value in zip(marks, values or [None] * len(keys), strict=True):
            self.note(process, INVOKE, operation, key, value)
        try:
            result = await call
        except EblaError as error:
            kind = INFO if unknown(error) else FAIL
            for process, key in marks:
                self.note(process, kind, operation, key, None, f"{type(error).__name__}: {error}")
            raise NoAnswer from error
        for (process, key), answer in zip(marks, answers(result), strict=True):
            self.note(process, OK, operation, key, answer)
        return result

    def note(
        self, process: int, kind: str, operation: str, key: Any, value: Any = None, error: str | None = None
    ) -> None:
        self.history.note(self.now_s(), process, kind, operation, key, value, error)

    def deadline_s(self) -> float:
        return self.random.choice(self.stage.deadlines_s)

    async def pause(self) -> None:
        await self.clock.sleep(self.random.uniform(0.0, self.stage.pause_s))


async def _at_once() -> None:
    return None


@dataclass
class Stage:
    """Settings that the clients of a run share. `pause_s`: the longest pause between two operations. `local_scan`: how a process
    beside a tablet server reads its rows, if there are such. `is_down`: what an operator sees at the machine with this address.
    `gone`: machines that are lost for good. `read_file`: the content of a file on a server's host, if it exists. `servers` and
    `journals`: addresses of tablet servers and journal nodes, as Ray knows them. `repaired`: waits until all ledgers are whole, in a
    deployment with replication workers."""

    stopping: bool = False
    replicas: int = 3
    replication: str = "raft"
    storage: str = ROWS
    pause_s: float = PAUSE_S
    deadlines_s: Sequence[float] = DEADLINES_S
    local_scan: LocalScan | None = None
    is_down: Callable[[str], bool] = lambda address: False
    gone: Collection[str] = ()
    read_file: Callable[[str, str], bytes | None] = lambda address, path: None
    servers: Sequence[str] = ()
    journals: Sequence[str] = ()
    repaired: Callable[[], Awaitable[None]] = _at_once


class Workload(Protocol):
    """`explained`: errors that the workload itself causes, by operation, besides those that faults explain. `disturbs`: whether
    it acts on all workloads as a fault does. `problems`: broken promises that the workload itself noticed."""

    name: str
    explained: Explained = NOTHING
    disturbs: bool = False
    problems: Sequence[str] = ()

    async def prepare(self, client: Client) -> None:
        return None

    async def run(self, client: Client) -> None: ...

    async def conclude(self, client: Client) -> None:
        return None

    def judge(self, history: History) -> Verdict: ...


def judged(
    workload: Workload, history: History, *known: Any, excused: Collection[str] = EXPLAINED
) -> Verdict:
    """The workload's verdict on its history, together with that on errors that nothing explains. `known`: further arguments of
    `judge`. `excused`: errors that faults explain; none if there was no fault."""
    refusals, problems = check_refusals(history, workload.explained, excused), workload.problems
    if problems:
        verdict = Verdict(False, "; ".join(problems[:3]), (), len(problems))
    else:
        verdict = workload.judge(history, *known)
    return together([verdict, refusals])


def create(
    client: Client, name: str, schema: pa.Schema, key: str = "k", **options: Any
) -> Awaitable[aio.Table]:
    """Create a table, by default with the scenario's number of replicas, its replication and its storage."""
    stage = client.stage
    options = {
        "replicas": stage.replicas,
        "replication": stage.replication,
        "storage": stage.storage,
        **options,
    }
    return client.db.create_table(name, schema=schema, primary_key=[key], **options)


async def make_table(
    client: Client, name: str, schema: pa.Schema, key: str, *, tablets: int = 1, **options: Any
) -> aio.Table:
    """Create a table before the faults."""
    parts = ebla.hash(key, buckets=tablets) if tablets > 1 else None
    return await create(client, name, schema, key, partition_by=parts, wait_s=PREPARE_S, **options)


async def until_stopped(client: Client, step: Callable[[], Awaitable[None]]) -> None:
    """Repeat steps, with pauses between them. After a step without an answer the next one follows."""
    while not client.stopping:
        try:
            await step()
        except NoAnswer:
            await client.pause()
        await client.pause()


async def side_by_side(client: Client, calls: int, loop: Callable[[Client], Awaitable[None]]) -> None:
    """Run `calls` loops side by side on the client's connection, so that as many calls are under way."""
    if calls == 1:
        await loop(client)
    else:
        await asyncio.gather(*(loop(client.another()) for _ in range(calls)))


async def at_once(client: Client, calls: int, ask: Callable[[Client], Awaitable[None]]) -> None:
    """Begin `calls` calls of one connection at one moment, and wait until all have ended. Raises NoAnswer if one had none."""
    asked = [ask(client.another()) for _ in range(calls)]
    for result in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


@asynccontextmanager
async def meanwhile(call: Awaitable[T]) -> AsyncIterator[asyncio.Future[T]]:
    """Keep `call` under way while the block lasts. It is cancelled when the block ends."""
    under_way = asyncio.ensure_future(call)
    try:
        yield under_way
    finally:
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)


def by_key(keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    """The result of a scan, by key. A repeated key appears as another one, which was never written."""
    found: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        found[key if key not in found else f"{key}, once more"] = value
    return found


async def until_known(client: Client, attempt: Callable[[], Awaitable[object]], what: str) -> None:
    """Repeat a write under its fixed id until its outcome is known."""
    for _ in range(ATTEMPTS_MAX):
        try:
            await attempt()
        except EblaError as error:
            if not (error.retriable or error.possibly_applied):
                raise
            await client.pause()
        else:
            return
    raise TimedOut(f"no answer to {what} in {ATTEMPTS_MAX} attempts")


async def make_own_table(client: Client, name: str, schema: pa.Schema, **options: Any) -> aio.Table | None:
    """Create a table of this client, under another name if the name is taken; None if the run stops before."""
    while not client.stopping:
        try:
            return await client.beside("create", name, create(client, name, schema, **options))
        except NoAnswer:
            name += "'"
            await client.pause()
    return None


async def persist(client: Client, attempt: Callable[[], Awaitable[T]], tries_max: int = 20) -> T:
    """Repeat the attempt until it is answered, as every request in act two must be."""
    for _ in range(tries_max - 1):
        try:
            return await attempt()
        except NoAnswer:
            await client.clock.sleep(1.0)
    return await attempt()
