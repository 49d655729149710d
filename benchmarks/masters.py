"""Times masters and their journal from the outside. The floor of a journal: a bare call to three actors of which two must answer,
and one synced commit."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import lmdb
import msgspec

import ebla
from benchmarks.figures import Samples, Stopwatch, until
from ebla.actors import messages as m
from ebla.actors.journal.messages import JournalId, JournalNodeStatus
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.ray_world import RayNetwork
from ebla.actors.world import World
from ebla.chaos.faults import RealFaults
from ebla.deployment import make_client, masters_of, namespace_of
from ebla.health.survey import ask
from ebla.health.verdicts import Unanswered
from ebla.storage.environment import Disk

T = TypeVar("T")

NODES = ("journal/0", "journal/1", "journal/2")
EDIT = b"e" * 200
WRITERS = 64
KEYS = {"primary_key": ["k"]}


# -- the journal ---------------------------------------------------------------------------------------------


class Journal(msgspec.Struct, frozen=True):
    """Times of one edit at a time and of the floor, and rates of many writers at once."""

    one: Samples
    floor: Samples
    edits_per_s: float
    batches_per_s: float


def journal(echoes: list[Any], directory: str, samples: int = 400, edits: int = 20_000) -> Journal:
    """Times of a new journal on the deployment's journal nodes, written by this process."""
    return asyncio.run(_in_world(lambda world: _journal(world, echoes, directory, samples, edits)))


async def _journal(world: World, echoes: list[Any], directory: str, samples: int, edits: int) -> Journal:
    options = JournalOptions(journal=JournalId("bench", f"{time.time_ns():x}"), nodes=NODES)
    await format_journal(world, options, force=True)
    writer = JournalWriter(world, options)
    await writer.open()
    await writer.begin()
    one, floor = Samples(), Samples()
    environment = lmdb.open(directory, map_size=1 << 28)
    turn = 20
    for start in range(-turn, samples, turn):
        if start == 0:
            one, floor = Samples(), Samples()  # without the first turn, which warms up
        for _ in range(turn):
            with one.timed():
                await writer.append(EDIT)
        for number in range(turn):
            with floor.timed():
                await _two_of(echoes)
                with environment.begin(write=True) as transaction:
                    transaction.put(b"%08d" % (start + number), EDIT)
    environment.close()
    before = await _batches(world)

    async def write() -> None:
        for _ in range(edits // WRITERS):
            await writer.append(EDIT)

    with Stopwatch() as watch:
        await asyncio.gather(*[write() for _ in range(WRITERS)])
    batches = (await _batches(world)) - before
    writer.close()
    return Journal(one, floor, edits / watch.seconds, batches / watch.seconds)


async def _two_of(echoes: list[Any]) -> None:
    waiting = {asyncio.ensure_future(_echo(echo)) for echo in echoes}
    done: set[asyncio.Future[None]] = set()
    while len(done) < 2:
        finished, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        done |= finished


async def _echo(echo: Any) -> None:
    await echo.echo.remote(EDIT)


async def _batches(world: World) -> int:
    said = await world.network.call(NODES[0], "journal_status", m.Empty(), JournalNodeStatus, 10.0)
    return next(status.batches for status in said.journals if status.journal.name == "bench")


async def _in_world(work: Callable[[World], Coroutine[Any, Any, T]]) -> T:
    failed: list[BaseException] = []
    tasks = Tasks(lambda name, error: failed.append(error))
    network, disk = RayNetwork(namespace_of("ebla")), cast(Disk, None)  # a writer needs none
    world = World(
        address="bench",
        clock=MachineClock(),
        network=network,
        disk=disk,
        random=random.Random(os.urandom(32)),
        spawn=tasks.spawn,
        fail=failed.append,
    )
    try:
        return await work(world)
    finally:
        tasks.cancel()
        assert not failed, failed


# -- the catalog ---------------------------------------------------------------------------------------------


def creations(schema: Any, clients: int = 64, each: int = 2) -> tuple[float, float]:
    """Tables that `clients` create per second, and edits of the catalog per second meanwhile."""
    return asyncio.run(_creations(schema, clients, each))


async def _creations(schema: Any, clients: int, each: int) -> tuple[float, float]:
    async with ebla.aio.Database(make_client("ebla")) as db:
        await db.tables()  # finds the active master
        before = (await db.status()).edits

        async def client(number: int) -> None:
            for turn in range(each):
                await db.create_table(f"c-{number}-{turn}", schema=schema, primary_key=["k"], wait_s=0)

        with Stopwatch() as watch:
            await asyncio.gather(*[client(number) for number in range(clients)])
        created = clients * each / watch.seconds
        edits = ((await db.status()).edits - before) / watch.seconds
        await asyncio.gather(
            *[db.drop_table(f"c-{number}-{turn}") for number in range(clients) for turn in range(each)]
        )
    return created, edits


def wide_table(db: Any, schema: Any, tablets: int = 64) -> float:
    """Seconds until every tablet of a new table accepts writes."""
    with Stopwatch() as watch:
        db.create_table("wide", schema=schema, partition_by=ebla.hash("k", buckets=tablets), **KEYS)
    db.drop_table("wide")
    return watch.seconds


# -- failover ------------------------------------------------------------------------------------------------


class Steady:
    """Reads and writes one table all the time, and measures the longest pause between two answers."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.longest_s = 0.0
        self.errors: list[BaseException] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Steady:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()
        assert not self.errors, self.errors

    def _run(self) -> None:
        last = time.perf_counter()
        try:
            while not self._end.is_set():
                self.table.upsert({"k": b"steady", "v": b"v"})
                assert self.table.get({"k": b"steady"}) is not None
                now = time.perf_counter()
                self.longest_s, last = max(self.longest_s, now - last), now
        except BaseException as error:
            self.errors.append(error)


def failovers(db: Any, schema: Any, kills: int = 7) -> tuple[list[float], float]:
    """Seconds from each SIGKILL of the active master to the next created table, and the longest pause of reads and writes
    meanwhile."""
    table = db.create_table("steady", schema=schema, **KEYS)
    gaps: list[float] = []
    faults = RealFaults()
    with Steady(table) as steady:
        for kill in range(kills):
            what = "no master became active with the same edits on the others"
            active = until(lambda: _active(len(masters_of("ebla"))), 60.0, what)
            assert active is not None
            db.create_table(f"before-{kill}", schema=schema, wait_s=0, **KEYS)
            began = time.perf_counter()
            faults.kill_actor(active)
            db.create_table(f"after-{kill}", schema=schema, wait_s=0, **KEYS)
            gaps.append(time.perf_counter() - began)
    for kill in range(kills):
        db.drop_table(f"before-{kill}")
        db.drop_table(f"after-{kill}")
    db.drop_table("steady")
    return gaps, steady.longest_s


def _active(masters: int) -> str | None:
    """The active master, if all others have its edits."""
    network = RayNetwork(namespace_of("ebla"))
    found = [
        asyncio.run(ask(network, f"master/{number}", "status", m.Empty(), m.MasterStatus, 2.0))
        for number in range(masters)
    ]
    statuses = [status for status in found if not isinstance(status, Unanswered)]
    active = [status for status in statuses if status.role == "active"]
    alike = len({status.edits for status in statuses}) == 1 and len(statuses) == masters
    return active[0].address if active and alike else None
