"""What many tablets cost: idle ones, one wide table beside a narrow one with the same rows, and 100,000 of them at the master."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil

import ebla
from benchmarks import loads, tablets
from benchmarks.figures import Figure, Samples, median

HOSTS = 3
IDLE = (0, 200, 1_000)  # replicas of each server
AT_ONCE = 200  # tablets of one table
SETTLE_S, WATCH_S = 6.0, 20.0  # until new groups are quiescent; then CPU is measured for so long
ROWS = 400_000
NARROW, WIDE = 8, 200
WARM, SAMPLES = 50, 300


def figures() -> Iterator[Figure]:
    with ebla.local(hosts=HOSTS) as db:
        narrow = _table(db, "narrow", NARROW)
        yield from _wide(db, narrow)
        alone = _upserts(narrow)
        made, before = 0, _cost()
        for wanted in IDLE:
            while made < wanted:
                _table(db, f"idle{made}", min(AT_ONCE, wanted - made))
                made += min(AT_ONCE, wanted - made)
            cpu, memory = before if not wanted else _cost()
            name = f"idle tablet server with {wanted:,} replicas beside those of one table"
            yield Figure(f"{name}, CPU", cpu, "% of a core", better="lower")
            grown = "" if not wanted else f"{(memory - before[1]) / wanted * 1024:.0f} kB for each replica"
            yield Figure(f"{name}, RSS", memory, "MB", better="lower", note=grown)
        beside = _upserts(narrow)
        yield Figure(
            f"single-row upsert beside {IDLE[-1]:,} idle tablets, p50",
            beside.quantile_ms(0.5),
            "ms",
            floor=alone.quantile_ms(0.5),
            floor_name="beside none",
            target=1.1,
            better="lower",
            of_floor=True,
        )
    yield from tablets.figures()


def _wide(db: Any, narrow: Any) -> Iterator[Figure]:
    """The same rows in few and in many tablets, in turn."""
    rows = loads.rows_of(ROWS)
    rates: dict[int, list[float]] = {NARROW: [], WIDE: []}
    wide = _table(db, "wide", WIDE)
    for _ in range(3):
        for width, table in ((NARROW, narrow), (WIDE, wide)):
            rates[width].append(loads.bulk_upsert(table, rows))
    floor_name = f"{NARROW} tablets"
    yield Figure(
        f"bulk upsert of {ROWS:,} rows into {WIDE} tablets, median of 3",
        median(rates[WIDE]),
        "rows/s",
        floor=median(rates[NARROW]),
        floor_name=floor_name,
        target=0.8,
        of_floor=True,
    )
    yield Figure(
        f"scan of {WIDE} tablets through the servers",
        loads.scan(wide),
        "rows/s",
        floor=loads.scan(narrow),
        floor_name=floor_name,
        target=0.7,
        of_floor=True,
    )
    db.drop_table("wide")


def _table(db: Any, name: str, buckets: int) -> Any:
    partition = ebla.hash("k", buckets=buckets)
    return db.create_table(name, schema=loads.SCHEMA, primary_key=["k"], partition_by=partition, replicas=3)


def _upserts(table: Any) -> Samples:
    samples = Samples()
    for number in range(WARM):
        loads.upsert_one(table, number)
    for number in range(SAMPLES):
        with samples.timed():
            loads.upsert_one(table, number)
    return samples


def _cost() -> tuple[float, float]:
    """CPU in percent of a core, and resident MB, of the tablet server in the middle."""
    time.sleep(SETTLE_S)
    servers = [psutil.Process(pid) for pid in loads.tablet_server_pids()]
    began, before = time.perf_counter(), [_cpu_s(each) for each in servers]
    time.sleep(WATCH_S)
    seconds = time.perf_counter() - began
    used = [(_cpu_s(each) - at) / seconds * 100 for each, at in zip(servers, before, strict=True)]
    return median(used), median([each.memory_info().rss / 2**20 for each in servers])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
