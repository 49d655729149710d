"""Times logs from the outside, each figure beside bare actors that do the same shape of work in the same run.

The floor of an append is a call to three actors of which two must answer. Each keeps what it gets in a synced LMDB commit, or
answers at once. Floor and figure take turns, so that disturbances of the machine affect both alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pyarrow as pa
import ray

from benchmarks.figures import Figure, Samples, Stopwatch, median
from ebla import aio
from ebla.actors import messages as m
from ebla.actors.ray_shell import Pong
from ebla.actors.ray_world import ACTOR, RayNetwork
from ebla.deployment import make_client, namespace_of
from ebla.placement.deploy.slots import SLOT_LABEL

NAME = "ebla"
HOSTS = ("host-1", "host-2", "host-3")
RECORD = b"x" * 100
TURNS, TURN = 20, 20  # of single appends
ROUNDS = 5  # of rates
CHUNK_BYTES = 1 << 20
ENTRY_BYTES = 256 << 10  # of a batch that the floor sends
UNDER_WAY = 8
LEDGERS, EACH = 100, 20


@ray.remote(num_cpus=0, max_concurrency=1000, runtime_env=ACTOR["runtime_env"])
class Bare:
    """Answers at once (`echo`), after a synced commit (`sync`), when something was synced (`wait`), or with a chunk (`chunk`)."""

    def __init__(self, directory: str) -> None:
        self.environment = lmdb.open(directory, map_size=1 << 32)
        self.next = 0
        self.synced = asyncio.Event()

    async def echo(self, data: bytes) -> bytes:
        return b""

    async def sync(self, data: bytes) -> bytes:
        self.next += 1
        with self.environment.begin(write=True) as transaction:
            transaction.put(b"%016d" % self.next, data)
        self.synced.set()
        return b""

    async def wait(self) -> bytes:
        self.synced.clear()
        await self.synced.wait()
        return b""

    async def chunk(self, size: int) -> bytes:
        return bytes(size)


class Three:
    """Bare actors on three hosts."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ebla-floor-"))
        self.actors = []
        for host in HOSTS:
            (self.directory / host).mkdir()
            options = Bare.options(label_selector={SLOT_LABEL: host})
            self.actors.append(options.remote(str(self.directory / host)))
        ray.get([actor.echo.remote(b"") for actor in self.actors])

    async def two(self, method: str, data: bytes) -> None:
        """Call all three, and wait for two."""
        waiting = {
            asyncio.ensure_future(_answer(getattr(actor, method).remote(data))) for actor in self.actors
        }
        done: set[asyncio.Future[bytes]] = set()
        while len(done) < 2:
            finished, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            done |= finished

    async def many(self, method: str, data: bytes, count: int, width: int) -> None:
        left = iter(range(count))

        async def work() -> None:
            for _ in left:
                await self.two(method, data)

        await asyncio.gather(*[work() for _ in range(width)])

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        shutil.rmtree(self.directory, ignore_errors=True)


async def _answer(reference: Any) -> bytes:
    return await reference  # type: ignore[no-any-return]


class Rate(msgspec.Struct, frozen=True):
    """Per second: ours and the floor's."""

    ours: float
    floor: float


class Logs(msgspec.Struct, frozen=True):
    """`one`, `bare`, `synced`: one append, the bare call to three actors, the same with a sync. `tail`, `woken`: from an append until a
    reader in the same process has the record, and its floor. `disk_bytes`: written by a store for each entry of 100 bytes."""

    one: Samples
    bare: Samples
    synced: Samples
    small: Rate
    large: Rate
    tables: Rate
    appenders: Rate
    tail: Samples
    woken: Samples
    read: Rate
    disk_bytes: float


def figures(db: Any) -> Iterator[Figure]:
    found = measure(db)
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        one = found.one.quantile_ms(q)
        for samples, floor, target in (
            (found.bare, "2 of 3 bare calls", 1.3 if q == 0.5 else None),
            (found.synced, "2 of 3 bare calls with a sync", None),
        ):
            of_floor, floor_ms = target is not None, samples.quantile_ms(q)
            yield Figure(
                f"one append to a log, {name}", one, "ms", target, "lower", of_floor, floor_ms, floor
            )
    for what, rate, unit, target, floor in (
        ("appended with `append_many`, 100 bytes each", found.small, "records/s", 100_000, "2 of 3 sinks"),
        ("appended with `append_many`, 1 KiB each", found.large, "records/s", None, "2 of 3 sinks"),
        ("appended with `append_table`, 100 bytes each", found.tables, "rows/s", None, "2 of 3 sinks"),
        (
            "from 256 concurrent appenders, one process",
            found.appenders,
            "records/s",
            12_000,
            "2 of 3 bare calls with a sync",
        ),
        ("read by one reader, 100 bytes each", found.read, "records/s", 200_000, "bare carry"),
    ):
        yield Figure(f"log: {what}", rate.ours, unit, target, floor=rate.floor, floor_name=floor)
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        floor_ms = found.woken.quantile_ms(q)
        title = f"from an append to a reader that follows, {name}"
        yield Figure(
            title,
            found.tail.quantile_ms(q),
            "ms",
            floor=floor_ms,
            floor_name="a bare call that wakes another",
        )
    title = f"written to a disk for a record of {len(RECORD)} bytes, {LEDGERS} logs at once"
    yield Figure(
        title, found.disk_bytes, "bytes", better="lower", floor=float(len(RECORD)), floor_name="its bytes"
    )


def measure(db: Any) -> Logs:
    for name in ("bench-one", "bench-many", *(f"bench-{number}" for number in range(LEDGERS))):
        db.create_log(name)
    three = Three()
    try:
        return asyncio.run(_measure(three))
    finally:
        three.close()


async def _measure(three: Three) -> Logs:
    async with aio.Database(make_client(NAME)) as db:
        log = await db.log("bench-one")
        async with log.writer() as writer:
            one, bare, synced = await _single(writer, three)
            appenders = await _appenders(writer, three)
            tail, woken = await _tail(log, writer, three)
        log = await db.log("bench-many")
        async with log.writer() as writer:
            large = await _batches(writer, three, 1024)
            tables = await _tables(writer, three)
            start = await writer.append(b"")
            small = await _batches(writer, three, len(RECORD))
        read = await _read(log, start, three)
        return Logs(
            one, bare, synced, small, large, tables, appenders, tail, woken, read, await _disk_bytes(db)
        )


async def in_turns(*acts: Callable[[], Awaitable[Any]]) -> list[Samples]:
    """Times of each, in turns; without the first turn, which warms up."""
    found = [Samples() for _ in acts]
    for turn in range(TURNS + 1):
        for act, samples in zip(acts, found, strict=True):
            for _ in range(TURN):
                with Stopwatch() as watch:
                    await act()
                if turn:
                    samples.seconds.append(watch.seconds)
    return found


async def _single(writer: aio.LogWriter, three: Three) -> list[Samples]:
    return await in_turns(
        lambda: writer.append(RECORD), lambda: three.two("echo", RECORD), lambda: three.two("sync", RECORD)
    )


async def rates(
    count: int, ours: Callable[[], Awaitable[Any]], floor_count: int, floor: Callable[[], Awaitable[Any]]
) -> Rate:
    """The medians of some rounds, in turns; each round of `ours` does `count`."""
    found: tuple[list[float], list[float]] = [], []
    for number in range(ROUNDS + 1):
        for rate, act, each in zip(found, (ours, floor), (count, floor_count), strict=True):
            with Stopwatch() as watch:
                await act()
            if number:
                rate.append(each / watch.seconds)
    return Rate(*map(median, found))


async def _batches(writer: aio.LogWriter, three: Three, size: int) -> Rate:
    """Calls of `append_many` with an entry's bytes each."""
    per = ENTRY_BYTES // size
    batch, chunk = [os.urandom(size) for _ in range(per)], os.urandom(per * size)

    async def ours() -> None:
        await asyncio.gather(*[writer.append_many(batch) for _ in range(2 * UNDER_WAY)])

    count = 2 * UNDER_WAY * per
    return await rates(count, ours, count, lambda: three.many("sync", chunk, 2 * UNDER_WAY, UNDER_WAY))


async def _tables(writer: aio.LogWriter, three: Three) -> Rate:
    """Rows of 100 bytes, in Arrow tables of an entry's bytes each."""
    per = ENTRY_BYTES // len(RECORD)
    table, chunk = pa.table({"value": [os.urandom(100) for _ in range(per)]}), os.urandom(ENTRY_BYTES)

    async def ours() -> None:
        await asyncio.gather(*[writer.append_table(table) for _ in range(2 * UNDER_WAY)])

    count = 2 * UNDER_WAY * per
    return await rates(count, ours, count, lambda: three.many("sync", chunk, 2 * UNDER_WAY, UNDER_WAY))


async def _appenders(writer: aio.LogWriter, three: Three, width: int = 256, each: int = 20) -> Rate:
    async def one() -> None:
        for _ in range(each):
            await writer.append(RECORD)

    async def ours() -> None:
        await asyncio.gather(*[one() for _ in range(width)])

    return await rates(width * each, ours, 2 * width, lambda: three.many("sync", RECORD, 2 * width, width))


async def _tail(log: aio.Log, writer: aio.LogWriter, three: Three) -> list[Samples]:
    """The floor: a bare caller waits at one of the three actors, and is woken by the sync there."""
    reader = log.read(await writer.append(RECORD), follow=True)
    await anext(reader)

    async def ours() -> None:
        following = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        await writer.append(RECORD)
        await following

    async def floor() -> None:
        waiting = asyncio.ensure_future(_answer(three.actors[0].wait.remote()))
        await _answer(three.actors[0].echo.remote(b""))
        await three.two("sync", RECORD)
        await waiting

    try:
        return await in_turns(ours, floor)
    finally:
        await reader.aclose()


async def _read(log: aio.Log, start: int, three: Three) -> Rate:
    """The floor: chunks of a megabyte from a bare actor, one after the other."""
    count = (await log.info()).end - start

    async def ours() -> None:
        read = 0
        async for _ in log.read(start):
            read += 1
        assert read == count, (read, count)

    async def floor() -> None:
        for _ in range(count * len(RECORD) // CHUNK_BYTES):
            await _answer(three.actors[0].chunk.remote(CHUNK_BYTES))

    return await rates(count, ours, count, floor)


async def _disk_bytes(db: aio.Database) -> float:
    """Bytes that one store writes for an entry of 100 bytes, with 100 ledgers that are written at once. Every store has every entry
    only with three stores, so the stores' sum is divided by the copies."""
    async with contextlib.AsyncExitStack() as stack:
        writers = [
            await stack.enter_async_context((await db.log(f"bench-{number}")).writer())
            for number in range(LEDGERS)
        ]
        before = await _settled(db)

        async def append(writer: aio.LogWriter) -> None:
            for _ in range(EACH):
                await writer.append(RECORD)

        await asyncio.gather(*map(append, writers))
        copies = 3 * LEDGERS * EACH
        return (await _settled(db) - before) / copies


async def _settled(db: aio.Database) -> int:
    """What the stores have written, as soon as they move no more entries to their long-term place."""
    last = -1
    for _ in range(30):
        now = await _written(db)
        if now == last:
            break
        last = now
        await asyncio.sleep(3.0)
    return last


async def _written(db: aio.Database) -> int:
    network, total = RayNetwork(namespace_of(NAME)), 0
    for store in await db._logs.registry.stores():
        pong = await network.call(store.address, "ping", m.Empty(), Pong, 5.0)
        lines = Path(f"/proc/{pong.pid}/io").read_text().splitlines()
        total += int(next(line.split()[1] for line in lines if line.startswith("write_bytes")))
    return total
