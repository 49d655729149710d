"""What every workload is made of: a client that asks, notes what it was told, and stops when the stage says so.

A workload is a class with four verbs, the same in simulation and on Ray:

    prepare    make its table, before anything goes wrong
    run        one client's loop, until `client.stopping`
    conclude   the last reads, when everything is whole again
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
from ebla.actors.world import Clock, Network
from ebla.chaos.checkers.refusals import EXPLAINED, NOTHING, Explained, check_refusals
from ebla.chaos.checkers.verdict import Verdict, together
from ebla.chaos.history import BESIDE, FAIL, INFO, INVOKE, OK, ORDER, History
from ebla.storage.errors import DiskFull, EblaError

T = TypeVar("T")

# All rows of a table, of these columns, as they lie on a host that the chance picks; within so many seconds.
LocalScan = Callable[[aio.Table, Sequence[str], Random, float], Awaitable[pa.Table]]

PREPARE_S = 60.0
DEADLINES_S: tuple[float, ...] = (1.0, 5.0, 20.0)  # one is picked for each operation: users differ
PAUSE_S = 0.06


class NoAnswer(Exception):
    """The operation ended without an answer; the history says how."""


def is_open(error: EblaError) -> bool:
    """Whether the write may be carried out, now or later. A message that the network repeats after its answer may meet a disk that
    has space again, so `DiskFull` is certain on Ray, whose calls are not repeated, and open here."""
    return error.possibly_applied or isinstance(error, DiskFull)


@dataclass
class Client:
    """One client's loop in one workload. `process` is its present number in the history."""

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
        """One on the same connection, who may ask while this one waits: a process of its own in the history."""
        return replace(self)

    async def ask(
        self,
        operation: str,
        key: Any,
        value: Any,
        call: Awaitable[T],
        answer: Callable[[T], Any] = lambda told: None,
        *,
        reads: bool = False,
    ) -> T:
        """Note, wait for `call`, note what came: `answer` turns it into the history's value. Raises NoAnswer."""
        process = self.process
        self.note(process, INVOKE, operation, key, value)
        try:
            told = await call
        except EblaError as error:
            unknown = is_open(error) and not reads
            kind = INFO if unknown else FAIL
            self.note(process, kind, operation, key, value, f"{type(error).__name__}: {error}")
            if unknown:
                self.process = self.history.new_process()
            raise NoAnswer from error
        self.note(process, OK, operation, key, answer(told))
        return told

    async def ask_many(
        self,
        operation: str,
        keys: Sequence[Any],
        call: Awaitable[T],
        answers: Callable[[T], Sequence[Any]],
        *,
        reads: bool = False,
    ) -> T:
        """One call that is many operations, one for each key; each by a process of its own. Raises NoAnswer."""
        marks = [(self.history.new_process(), key) for key in keys]
        for process, key in marks:
            self.note(process, INVOKE, operation, key)
        try:
            told = await call
        except EblaError as error:
            kind = INFO if is_open(error) and not reads else FAIL
            for process, key in marks:
                self.note(process, kind, operation, key, None, f"{type(error).__name__}: {error}")
            raise NoAnswer from error
        for (process, key), answer in zip(marks, answers(told), strict=True):
            self.note(process, OK, operation, key, answer)
        return told

    async def order(self, verb: str, key: Any, call: Awaitable[T]) -> T:
        """What an operator asks of a role. Raises NoAnswer."""
        return await self._ask_apart(f"{ORDER}{verb}", key, call)

    async def beside(self, what: str, key: Any, call: Awaitable[T]) -> T:
        """What is asked on the way to what is judged. Its errors are judged, too. Raises NoAnswer."""
        return await self._ask_apart(f"{BESIDE}{what}", key, call)

    async def _ask_apart(self, operation: str, key: Any, call: Awaitable[T]) -> T:
        """Noted by a process of its own: others may ask meanwhile."""
        process = self.history.new_process()
        self.note(process, INVOKE, operation, key)
        try:
            told = await call
        except EblaError as error:
            kind = INFO if error.possibly_applied else FAIL
            self.note(process, kind, operation, key, None, f"{type(error).__name__}: {error}")
            raise NoAnswer from error
        self.note(process, OK, operation, key)
        return told

    def note(
        self, process: int, kind: str, operation: str, key: Any, value: Any = None, error: str | None = None
    ) -> None:
        self.history.note(self.now_s(), process, kind, operation, key, value, error)

    def deadline_s(self) -> float:
        return self.random.choice(self.stage.deadlines_s)

    async def pause(self) -> None:
        await self.clock.sleep(self.random.uniform(0.0, self.stage.pause_s))


@dataclass
class Stage:
    """What the clients of a run share: whether it is time to stop, how many replicas tables have, how long a client pauses
    between two operations, at most, from which deadlines it picks one for each, and how a process beside a tablet server reads
    its rows, where there are such. `is_down`: what
    an operator sees who stands before the machine with this address; `gone`: those that are lost for good;
    `read_file`: what lies in a file on the host of a server, if there is one. `servers` and `journals`: addresses of tablet
    servers and journal nodes, as Ray knows them."""

    stopping: bool = False
    replicas: int = 3
    pause_s: float = PAUSE_S
    deadlines_s: Sequence[float] = DEADLINES_S
    local_scan: LocalScan | None = None
    is_down: Callable[[str], bool] = lambda address: False
    gone: Collection[str] = ()
    read_file: Callable[[str, str], bytes | None] = lambda address, path: None
    servers: Sequence[str] = ()
    journals: Sequence[str] = ()


class Workload(Protocol):
    """`explained`: errors that the workload itself brings about, by operation, besides those that faults explain. One that
    `disturbs` is to all of them what a fault is."""

    name: str
    explained: Explained = NOTHING
    disturbs: bool = False

    async def prepare(self, client: Client) -> None: ...
    async def run(self, client: Client) -> None: ...
    async def conclude(self, client: Client) -> None: ...
    def judge(self, history: History) -> Verdict: ...


def judged(
    workload: Workload, history: History, *known: Any, excused: Collection[str] = EXPLAINED
) -> Verdict:
    """What the workload says of its history, and whether an operation ended in an error that nothing explains. `known`: what
    else its `judge` takes. `excused`: errors that faults explain, none where there was no fault."""
    refusals = check_refusals(history, workload.explained, excused)
    return together([workload.judge(history, *known), refusals])


async def make_table(
    client: Client, name: str, schema: pa.Schema, key: str, *, tablets: int = 1, replicas: int | None = None
) -> aio.Table:
    """To begin with; by default with as many replicas as the scenario says."""
    return await client.db.create_table(
        name,
        schema=schema,
        primary_key=[key],
        partition_by=ebla.hash(key, buckets=tablets) if tablets > 1 else None,
        replicas=replicas or client.stage.replicas,
        wait_s=PREPARE_S,
    )


async def until_stopped(client: Client, step: Callable[[], Awaitable[None]]) -> None:
    """Steps with pauses between them. One that went without an answer is noted by then; the next one follows."""
    while not client.stopping:
        try:
            await step()
        except NoAnswer:
            await client.pause()
        await client.pause()


async def crowd(client: Client, calls: int, loop: Callable[[Client], Awaitable[None]]) -> None:
    """As many loops side by side on the client's one connection: up to `calls` of its calls are under way."""
    if calls == 1:
        await loop(client)
    else:
        await asyncio.gather(*(loop(client.another()) for _ in range(calls)))


async def at_once(client: Client, calls: int, ask: Callable[[Client], Awaitable[None]]) -> None:
    """So many calls of one connection, begun at one moment; returns when all have ended. Raises NoAnswer if one had none."""
    asked = [ask(client.another()) for _ in range(calls)]
    for told in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(told, BaseException):
            raise told


@asynccontextmanager
async def meanwhile(call: Awaitable[T]) -> AsyncIterator[asyncio.Future[T]]:
    """`call` is under way while the block lasts. If the block fails, it is not waited for any more."""
    under_way = asyncio.ensure_future(call)
    try:
        yield under_way
    finally:
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)


def by_key(keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    """What a scan told, by key. A key that came again stands as another one, which nobody wrote."""
    found: dict[Any, Any] = {}
    for key, value in zip(keys, values, strict=True):
        found[key if key not in found else f"{key}, once more"] = value
    return found


async def persist(client: Client, attempt: Callable[[], Awaitable[T]], tries_max: int = 20) -> T:
    """In act two everything must be answered sooner or later."""
    for _ in range(tries_max - 1):
        try:
            return await attempt()
        except NoAnswer:
            await client.clock.sleep(1.0)
    return await attempt()
