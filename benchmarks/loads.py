"""The loads of a table, timed from the outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import ebla
from benchmarks.figures import Samples, Stopwatch, Watching, median, until
from ebla.actors import messages as m
from ebla.actors.ray_shell import Pong
from ebla.actors.ray_world import RayNetwork
from ebla.chaos.faults import RealFaults
from ebla.deployment import make_client, namespace_of
from ebla.local_scan import scan as scan_here

KEY_BYTES, VALUE_BYTES = 16, 100
# A restarted replica withholds its vote for an election timeout, which is not visible from outside. Wait, so that the next
# failure is measured and not that one.
WITHHELD_S = 2.0
SCHEMA = pa.schema([pa.field("k", pa.binary(), False), pa.field("v", pa.binary(), False)])


def rows_of(count: int, seed: int = 1) -> pa.Table:
    keys = np.random.default_rng(seed).bytes(KEY_BYTES * count)
    values = np.random.default_rng(seed + 1).bytes(VALUE_BYTES * count)

    def column(data: bytes, width: int) -> pa.Array:
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)])
        return fixed.cast(pa.binary())

    return pa.table({"k": column(keys, KEY_BYTES), "v": column(values, VALUE_BYTES)}, schema=SCHEMA)


def bulk_upsert(table: Any, rows: pa.Table) -> float:
    with Stopwatch() as watch:
        table.upsert(rows)
    return rows.num_rows / watch.seconds


def upsert_one(table: Any, number: int) -> None:
    table.upsert({"k": b"%016d" % number, "v": b"y" * VALUE_BYTES})


def get_one(table: Any, number: int) -> None:
    assert table.get({"k": b"%016d" % (number % 100)}) is not None


def paired(
    count: int, ours: Callable[[int], None], floor: Callable[[], None], turn: int = 20
) -> tuple[Samples, Samples]:
    """Time both in turns of `turn` calls each, so that disturbances of the machine affect both alike."""
    mine, bare = Samples(), Samples()
    for start in range(0, count, turn):
        for number in range(start, start + turn):
            with mine.timed():
                ours(number)
        for _ in range(turn):
            with bare.timed():
                floor()
    return mine, bare


async def concurrent(name: str, operation: str, count: int, width: int) -> float:
    """Single-row operations per second of `width` tasks in one process."""
    async with ebla.aio.Database(make_client("ebla")) as db:
        table = await db.table(name)

        async def worker(number: int) -> None:
            for turn in range(count // width):
                key = b"%016d" % (number * 1000 + turn % 50)
                if operation == "upsert":
                    await table.upsert({"k": key, "v": b"z" * VALUE_BYTES})
                else:
                    await table.get({"k": key})

        await asyncio.gather(*[worker(number) for number in range(width)])  # fills connections and caches
        with Stopwatch() as watch:
            await asyncio.gather(*[worker(number) for number in range(width)])
        return count / watch.seconds


def scan(table: Any) -> float:
    """Rows per second through the leaders, the median of five."""
    return _scanned(lambda: table.scan().batches())


def local_scan(table: Any) -> float:
    """Rows per second from a replica's disk on this machine, decoded and verified, the median of five."""
    table.flush()
    return _scanned(lambda: scan_here(table))


def _scanned(scan: Callable[[], Iterator[pa.RecordBatch]]) -> float:
    rates = []
    for _ in range(5):
        with Stopwatch() as watch:
            rows = sum(batch.num_rows for batch in scan())
        rates.append(rows / watch.seconds)
    return median(rates)


class Memory(Watching):
    """The greatest resident size of any tablet server during the block."""

    def __init__(self) -> None:
        self.pids = tablet_server_pids()
        self.bytes_max = 0

    def look(self) -> None:
        for pid in self.pids:
            with suppress(psutil.NoSuchProcess):
                self.bytes_max = max(self.bytes_max, psutil.Process(pid).memory_info().rss)


def feed_flights(db: Any) -> tuple[list[float], float]:
    """Rows per second of two feeds in one Spark application, and the seconds until Spark was up."""
    from ebla.pipelines import datasets
    from ebla.pipelines.feed import feed, table_for
    from ebla.pipelines.session import spark

    flights = datasets.DATASETS["flights"]
    rates = []
    with ExitStack() as ending:
        with Stopwatch() as starting:
            session = ending.enter_context(spark("bench"))
        for turn in ("cold", "warm"):
            partition = ebla.hash("carrier", "flight", buckets=8)
            key = flights.primary_key
            table = table_for(db, f"flights-{turn}", flights.schema, primary_key=key, partition_by=partition)
            rates.append(feed(session, "flights", table).rows_per_s)
    return rates, starting.seconds


def tablet_server_pids() -> list[int]:
    return [pong.pid for pong in asyncio.run(_pongs())]


async def _pongs() -> list[Pong]:
    async with ebla.aio.Database(make_client("ebla")) as db:
        servers = await db.servers()
    network = RayNetwork(namespace_of("ebla"))
    return [await network.call(s.address, "ping", m.Empty(), Pong, 5.0) for s in servers if s.alive]


def unavailability(db: Any, kills: int) -> tuple[float, list[float]]:
    """Seconds between the last write before and the first write after the SIGKILL of a leader's actor: the median, and all."""
    table = db.create_table("failover", schema=SCHEMA, primary_key=["k"], replicas=3)
    gaps: list[float] = []
    faults = RealFaults()
    for kill in range(kills):
        table.upsert({"k": b"before", "v": b"%d" % kill})
        leader = next(t.leader for t in table.info().tablets)
        assert leader is not None
        last = time.perf_counter()
        faults.kill_actor(leader)
        table.upsert({"k": b"after", "v": b"%d" % kill})
        gaps.append(time.perf_counter() - last)
        until(lambda: _is_whole(table), 60.0, "the killed server did not come back")
        time.sleep(WITHHELD_S)
    db.drop_table("failover")
    return median(gaps), gaps


def _is_whole(table: Any) -> bool:
    tablets = table.info().tablets
    return all(tablet.leader and all(replica.alive for replica in tablet.replicas) for tablet in tablets)
