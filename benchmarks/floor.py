"""The floor: bare Ray actors that do the same shape of work, and the bare disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import crc32c
import lmdb
import ray

from benchmarks.figures import Samples, Stopwatch
from ebla.actors.ray_world import ACTOR
from ebla.actors.tablet.copy.sources import CHUNK_BYTES, WINDOW
from ebla.placement.deploy.slots import SLOT_LABEL

PAYLOAD = b"x" * 200


@ray.remote(num_cpus=0, max_concurrency=1000)
class Echo:
    """An async actor that answers, or asks two others first."""

    def __init__(self, others: list[Any]) -> None:
        self.others = others

    async def echo(self, data: bytes) -> bytes:
        return data

    async def pid(self) -> int:
        return os.getpid()

    async def chain(self, data: bytes) -> bytes:
        await asyncio.gather(*[other.echo.remote(data) for other in self.others])
        return data


@ray.remote(num_cpus=0, max_concurrency=1000)
class Sink:
    """Takes a chunk, stores it in one synced LMDB commit, and passes it on to two others at the same time."""

    def __init__(self, directory: str, others: list[Any]) -> None:
        self.environment = lmdb.open(directory, map_size=1 << 32)
        self.others = others
        self.next = 0

    async def put(self, data: bytes) -> int:
        key = b"%016d" % self.next
        self.next += 1
        passed = [other.put.remote(data) for other in self.others]
        await asyncio.to_thread(self._commit, key, data)
        await asyncio.gather(*passed)
        return len(data)

    def _commit(self, key: bytes, data: bytes) -> None:
        with self.environment.begin(write=True) as transaction:
            transaction.put(key, data)


@ray.remote(num_cpus=0, max_concurrency=1000, runtime_env=ACTOR["runtime_env"])
class Carrier:
    """Sends random chunks, and fetches them from another actor, `WINDOW` at a time, as a tablet copy does."""

    def __init__(self, chunk_bytes: int) -> None:
        self.chunk_bytes = chunk_bytes
        self.chunk = os.urandom(chunk_bytes)

    async def send(self) -> bytes:
        return self.chunk

    async def fetch(self, source: Any, count: int) -> float:
        """Bytes per second."""
        left = iter(range(count))

        async def ask() -> None:
            for _ in left:
                assert len(await source.send.remote()) == self.chunk_bytes

        with Stopwatch() as watch:
            await asyncio.gather(*[ask() for _ in range(WINDOW)])
        return count * self.chunk_bytes / watch.seconds


def carry(total_bytes: int, source: str, target: str) -> float:
    """Bytes per second of actor calls from one host to another that read, check and write nothing: with chunks of the same size
    and number as a tablet copy."""
    ends = [
        Carrier.options(label_selector={SLOT_LABEL: slot}).remote(CHUNK_BYTES) for slot in (source, target)
    ]
    try:
        ray.get(ends[1].fetch.remote(ends[0], 2 * WINDOW))
        return float(ray.get(ends[1].fetch.remote(ends[0], total_bytes // CHUNK_BYTES)))
    finally:
        for end in ends:
            ray.kill(end)


@ray.remote(num_cpus=0, max_concurrency=1000, runtime_env=ACTOR["runtime_env"])
class Copier:
    """Reads and checks chunks for others, and checks and keeps theirs: each chunk in one synced LMDB commit. In memory are as few of
    them as are under way."""

    def __init__(self, directory: str, count: int) -> None:
        self.environment = lmdb.open(directory, map_size=1 << 34, max_dbs=2)
        self.own, self.copies = (self.environment.open_db(name) for name in (b"own", b"copies"))
        for number in range(count):
            self._keep(self.own, number, os.urandom(CHUNK_BYTES))

    def _keep(self, database: Any, number: int, chunk: bytes) -> None:
        with self.environment.begin(write=True, db=database) as transaction:
            transaction.put(b"%08d" % number, chunk)

    async def read(self, number: int) -> tuple[bytes, int]:
        with self.environment.begin(db=self.own) as transaction:
            chunk = transaction.get(b"%08d" % number)
        return chunk, crc32c.crc32c(chunk)

    async def copy(self, source: Any, count: int) -> None:
        left = iter(range(count))

        async def ask() -> None:
            for number in left:
                chunk, checksum = await source.read.remote(number)
                assert crc32c.crc32c(chunk) == checksum
                await asyncio.to_thread(self._keep, self.copies, number, chunk)

        await asyncio.gather(*[ask() for _ in range(WINDOW)])


def copies(total_bytes: int, hosts: Sequence[str]) -> float:
    """Bytes per second of bare actors that copy chunks at the same time, each from the next host."""
    count = total_bytes // CHUNK_BYTES // len(hosts)
    with tempfile.TemporaryDirectory(prefix="ebla-floor-") as directory:
        ends = []
        for slot in hosts:
            (Path(directory) / slot).mkdir()
            ends.append(
                Copier.options(label_selector={SLOT_LABEL: slot}).remote(f"{directory}/{slot}", count)
            )
        try:
            pairs = list(zip(ends, [*ends[1:], ends[0]], strict=True))
            ray.get([end.copy.remote(other, 1) for end, other in pairs])
            with Stopwatch() as watch:
                ray.get([end.copy.remote(other, count) for end, other in pairs])
        finally:
            for end in ends:
                ray.kill(end)
    return len(hosts) * count * CHUNK_BYTES / watch.seconds


class Floor:
    """Three echo actors and three sinks on the running cluster."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ebla-floor-"))
        followers = [Echo.remote([]), Echo.remote([])]
        self.leader = Echo.remote(followers)
        for number in range(3):
            (self.directory / str(number)).mkdir()
        sinks = [Sink.remote(str(self.directory / str(number)), []) for number in (1, 2)]
        self.sink = Sink.remote(str(self.directory / "0"), sinks)
        self.actors = [*followers, self.leader, *sinks, self.sink]
        ray.get(self.leader.chain.remote(PAYLOAD))
        ray.get(self.sink.put.remote(PAYLOAD))

    def call(self) -> None:
        ray.get(self.leader.echo.remote(PAYLOAD))

    def chain(self) -> None:
        ray.get(self.leader.chain.remote(PAYLOAD))

    async def concurrent(self, method: str, count: int, width: int) -> float:
        """Calls per second, `width` of them under way."""
        call = getattr(self.leader, method)

        async def worker() -> None:
            for _ in range(count // width):
                await call.remote(PAYLOAD)

        with Stopwatch() as watch:
            await asyncio.gather(*[worker() for _ in range(width)])
        return count / watch.seconds

    async def bulk(self, rows: int, row_bytes: int, chunk_bytes: int, in_flight: int = 8) -> float:
        """Rows per second through one sink and its two followers, synced on all three, without a protocol."""
        chunk = os.urandom(chunk_bytes)
        left = rows * row_bytes // chunk_bytes
        gate = asyncio.Semaphore(in_flight)

        async def send() -> None:
            async with gate:
                await self.sink.put.remote(chunk)

        with Stopwatch() as watch:
            await asyncio.gather(*[send() for _ in range(left)])
        return left * chunk_bytes / row_bytes / watch.seconds

    def disk(self, count: int = 300) -> tuple[float, float]:
        """p50 in ms of: append 4 KiB and fdatasync; one LMDB commit of a small value."""
        appends, commits = Samples(), Samples()
        descriptor = os.open(self.directory / "file", os.O_CREAT | os.O_WRONLY)
        for _ in range(count):
            with appends.timed():
                os.write(descriptor, b"x" * 4096)
                os.fdatasync(descriptor)
        os.close(descriptor)
        environment = lmdb.open(str(self.directory / "lmdb"), map_size=1 << 28)
        for number in range(count):
            with commits.timed(), environment.begin(write=True) as transaction:
                transaction.put(b"%08d" % number, PAYLOAD)
        environment.close()
        return appends.quantile_ms(0.5), commits.quantile_ms(0.5)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        shutil.rmtree(self.directory, ignore_errors=True)
