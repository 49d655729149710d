"""What many tablets cost: idle ones, one wide table beside a narrow one with the same rows, and 100,000 of them at the master."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import ray

import ebla
from benchmarks import commands, loads, tablets
from benchmarks.figures import Figure, median
from benchmarks.floor import Echo
from ebla.actors import errors
from ebla.actors.figures import Figures, FiguresRequest
from ebla.actors.ray_world import RayNetwork
from ebla.actors.tablet.engine.core import CANDIDATE, FOLLOWER, LEADER
from ebla.chaos.faults import RealFaults
from ebla.deployment import make_client, namespace_of
from ebla.health.digests import digests
from ebla.placement import launch
from ebla.placement.local.cluster import LocalCluster

HOSTS = 3
AT_ONCE = 200  # tablets of one table
SETTLE_S = 25.0  # until new groups are quiescent and their files unmapped
WATCH_S = 20.0  # then CPU is measured for so long
ROWS, TURNS = 400_000, 3
NARROW, WIDE = 8, 200
CPU_MAX = 3.0  # percent of a core, with the most replicas
KB_MAX = 25.0  # of an idle replica
MANY, COMMANDS = 10_000, ("status", "nodes", "check", "table list", "tablet list")
LIMIT = 4_000  # `replicas_of_server_max`
IDLE = (0, 200, 1_000, LIMIT - NARROW)  # replicas of each server beside those of the narrow table
WARM, SAMPLES = 40, 300  # of upserts
OTHER = "beside"  # the second deployment
ELECTABLE = (LEADER, FOLLOWER, CANDIDATE)
BY_KEY = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.binary())])  # tablet k has the row k
WRITERS, CALM_S, DEAD_S, POLL_S = 8, 3.0, 300.0, 0.5
LOST_OF, PATIENCE_S = 5_320, 5.0  # tablets of four hosts, one of which is lost; `follower_failed_s`
LOST_S, LOOK_S = 1_500.0, 5.0  # a look reads the places of all tablets


def figures() -> Iterator[Figure]:
    with ebla.local(hosts=HOSTS) as db:
        narrow = _table(db, "narrow", NARROW)
        yield from _idle(db, narrow)
        yield from _death(db)
    yield from _loss()
    with ebla.local(hosts=HOSTS) as db:
        yield from _wide(db)
    with ebla.local(hosts=HOSTS) as db:
        yield from _commands(db)
    yield from tablets.figures()


def _idle(db: Any, narrow: Any) -> Iterator[Figure]:
    alone = _upserts(narrow)
    bare = Echo.remote([])
    made, before = 0, _cost(bare)
    for wanted in IDLE:
        _create(db, range(made, wanted), replicas=3)
        made = wanted
        cost = before if not wanted else _cost(bare)
        name = f"idle tablet server with {wanted:,} replicas beside those of one table"
        target = CPU_MAX if wanted == IDLE[-1] else None
        floor_name = "an actor that does nothing"
        yield Figure(
            f"{name}, CPU",
            cost.cpu,
            "% of a core",
            target,
            "lower",
            floor=cost.bare_cpu,
            floor_name=floor_name,
        )
        yield Figure(f"{name}, RSS", cost.memory_mb, "MB", better="lower")
    ray.kill(bare)
    each_kb = (cost.memory_mb - before.memory_mb) / wanted * 1024
    yield Figure(f"memory of each of {wanted:,} idle replicas", each_kb, "kB", KB_MAX, better="lower")
    yield from _beside(alone, _upserts(narrow))


def _beside(alone: Upserts, beside: Upserts) -> Iterator[Figure]:
    """With minutes in between, in which the speed of the machine may change; and without that change. What idle replicas cost the
    second deployment is in their CPU."""
    name = f"single-row upsert beside {IDLE[-1]:,} idle tablets, p50"
    note = f"the second deployment has no other tablets; it took {alone.other_ms:.2f} ms minutes before, and {beside.other_ms:.2f} ms now"
    for floor, floor_name, target, said in (
        (alone.ms, "beside none, minutes before", None, ""),
        (
            alone.ms * beside.other_ms / alone.other_ms,
            "beside none, at the speed of a second deployment on the same hosts",
            1.1,
            note,
        ),
    ):
        yield Figure(
            name,
            beside.ms,
            "ms",
            floor=floor,
            floor_name=floor_name,
            note=said,
            target=target,
            better="lower",
            of_floor=True,
        )


def _death(db: Any) -> Iterator[Figure]:
    """SIGKILL of one tablet server, which Ray starts again."""
    victim = next(each.address for each in db.servers() if each.alive)
    led, elsewhere, running = asyncio.run(_struck(victim))
    name = f"SIGKILL of one of {HOSTS} servers with {IDLE[-1]:,} replicas"
    note = f"half of them after {median(led):.1f} s; one row for each, sent at once"
    yield Figure(
        f"{name}: the {len(led)} tablets that it led take writes", max(led), "s", better="lower", note=note
    )
    name = f"{name}: longest pause of {len(elsewhere)} writers of other tablets"
    yield Figure(name, max(elsewhere), "s", better="lower")
    name = f"a killed server with {IDLE[-1]:,} replicas"
    for what, taken_s, target_s in zip(
        ("its first replica runs", "all run"), running, (5.0, 30.0), strict=True
    ):
        yield Figure(f"{name}, until {what}", taken_s, "s", target=target_s, better="lower")


def _loss() -> Iterator[Figure]:
    """SIGKILL of a host that does not return: new replicas are made on the three others."""
    settings = {"tablet_server": {"follower_failed_s": PATIENCE_S}}
    with (
        tempfile.TemporaryDirectory(prefix="ebla-bench-") as directory,
        ebla.local(hosts=HOSTS + 1, data_dir=directory, masters=1, journals=1, settings=settings) as db,
    ):
        _create(db, range(LOST_OF), replicas=3)
        time.sleep(SETTLE_S)
        lost = f"tablet-server/host-{HOSTS + 1}"
        held = sum(lost in addresses for addresses in _places(db))
        RealFaults(cluster=LocalCluster.attach(Path(directory) / "cluster")).kill_node(HOSTS + 1)
        began, half_s = time.perf_counter(), 0.0
        while left := sum(lost in found or len(found) < 3 for found in _places(db)):
            taken_s = time.perf_counter() - began
            half_s = half_s or (taken_s if left <= held / 2 else 0.0)
            if taken_s > LOST_S:
                raise RuntimeError(f"{left} of {held} tablets lack a replica after {LOST_S:.0f} s")
            time.sleep(LOOK_S)
        taken_s = time.perf_counter() - began
    name = f"one of {HOSTS + 1} hosts is lost for good, until all {held:,} replicas that it had run elsewhere"
    note = f"half of them after {half_s:.0f} s; with follower_failed_s of {PATIENCE_S:g} s"
    yield Figure(name, taken_s, "s", better="lower", note=note)


def _places(db: Any) -> list[list[str]]:
    """The servers with voters of each tablet."""
    infos = [db.table(each.name).info() for each in db.tables()]
    return [
        [replica.address for replica in tablet.replicas if replica.role != "learner"]
        for info in infos
        for tablet in info.tablets
    ]


class Struck(NamedTuple):
    """Seconds after the death until each tablet that the victim led takes a write, the longest pauses of writers elsewhere, and
    seconds until the first and all replicas of the victim run again."""

    led: list[float]
    elsewhere: list[float]
    running: tuple[float, float]


async def _struck(victim: str) -> Struck:
    led: list[tuple[Any, int]] = []
    others: list[tuple[Any, int]] = []
    async with ebla.aio.Database(make_client("ebla")) as db:
        for name in [each.name for each in await db.tables("idle")]:
            table = await db.table(name)
            for tablet in (await table.info()).tablets:
                (led if tablet.leader == victim else others).append((table, tablet.bucket))
        over = asyncio.Event()
        writing = [asyncio.create_task(_longest_pause(table, k, over)) for table, k in others[:WRITERS]]
        await asyncio.sleep(CALM_S)
        await asyncio.to_thread(RealFaults().kill_actor, victim)
        began = time.perf_counter()

        async def written(table: Any, k: int) -> float:
            await table.upsert({"k": k, "v": b"after"}, deadline_s=DEAD_S)
            return time.perf_counter() - began

        returning = asyncio.create_task(_running_again(victim, LIMIT, began))
        times = await asyncio.gather(*[written(table, k) for table, k in led])
        running = await returning
        over.set()
        return Struck(times, await asyncio.gather(*writing), running)


async def _running_again(victim: str, wanted: int, began: float) -> tuple[float, float]:
    network, count, first_s = RayNetwork(namespace_of("ebla")), 0, 0.0
    while count < wanted:
        if time.perf_counter() - began > DEAD_S:
            raise RuntimeError(f"{count} of {wanted} replicas run {DEAD_S:.0f} s after the death of {victim}")
        await asyncio.sleep(POLL_S)
        with suppress(errors.EblaError):
            found = (await network.call(victim, "figures", FiguresRequest(), Figures, DEAD_S)).figures
            count = sum(each.value for each in found if each.tags.get("state") in ELECTABLE)
            first_s = first_s or (time.perf_counter() - began if count else 0.0)
    return first_s, time.perf_counter() - began


async def _longest_pause(table: Any, k: int, over: asyncio.Event) -> float:
    last, longest = time.perf_counter(), 0.0
    while not over.is_set():
        await table.upsert({"k": k, "v": b"all the time"}, deadline_s=DEAD_S)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        await asyncio.sleep(0.01)
    return longest


def _wide(db: Any) -> Iterator[Figure]:
    """The same rows in few and in many tablets, in turn."""
    rows = loads.rows_of(ROWS)
    tables = {NARROW: _table(db, "narrow", NARROW), WIDE: _table(db, "wide", WIDE)}
    loaded, scanned, compared = ({width: [] for width in tables} for _ in range(3))
    for _ in range(TURNS):
        for width, table in tables.items():
            loaded[width].append(loads.bulk_upsert(table, rows))
    for _ in range(TURNS):
        for width, table in tables.items():
            scanned[width].append(loads.scan(table))
    for _ in range(TURNS):
        for width, table in tables.items():
            compared[width].append(_compare(table))
    for what, rates, target in (
        (f"bulk upsert of {ROWS:,} rows into {WIDE} tablets", loaded, 0.8),
        (f"scan of {WIDE} tablets through the servers", scanned, 0.7),
        (f"digests of three replicas of {WIDE} tablets", compared, 0.5),
    ):
        yield Figure(
            f"{what}, median of {TURNS}",
            median(rates[WIDE]),
            "rows/s",
            floor=median(rates[NARROW]),
            floor_name=f"{NARROW} tablets",
            target=target,
            of_floor=True,
        )


def _compare(table: Any) -> float:
    """Rows per second of one replica."""
    network, info = table._awaited._client.world.network, table.info()
    began = time.perf_counter()
    found = table._run(digests(network, [info]))
    seconds = time.perf_counter() - began
    for tablet, each in found.items():
        if each.error is not None or len({(of.rows, of.digest) for of in each.replicas.values()}) != 1:  # type: ignore[union-attr]
            raise RuntimeError(f"the replicas of tablet {tablet} have different rows: {each}")
    return ROWS / seconds


def _commands(db: Any) -> Iterator[Figure]:
    """Each tablet has one replica: what a command costs depends on the number of tablets."""
    _create(db, range(MANY), replicas=1)
    for command, times_s in commands.each(COMMANDS, TURNS):
        name = f"`ebla {command}` with {MANY:,} tablets, the whole process, median of {TURNS}"
        yield Figure(name, median(times_s), "s", target=5.0, better="lower")


def _create(db: Any, tablets: range, replicas: int) -> None:
    """In tables of AT_ONCE tablets at most."""
    for first in tablets[::AT_ONCE]:
        count = min(AT_ONCE, tablets.stop - first)
        by_key = ebla.range("k", splits=list(range(1, count)))
        db.create_table(
            f"idle{first}", schema=BY_KEY, primary_key=["k"], partition_by=by_key, replicas=replicas
        )


def _table(db: Any, name: str, buckets: int) -> Any:
    partition = ebla.hash("k", buckets=buckets)
    return db.create_table(name, schema=loads.SCHEMA, primary_key=["k"], partition_by=partition, replicas=3)


class Upserts(NamedTuple):
    """The p50 of single-row upserts, and of those in a second deployment on the same hosts, which has no other tablets, in turns: the
    speed of the machine differs from one minute to the next."""

    ms: float
    other_ms: float


def _upserts(table: Any) -> Upserts:
    """Medians of five rounds. The second deployment runs only meanwhile."""
    with tempfile.TemporaryDirectory(prefix="ebla-bench-") as directory:
        launch.up({"name": OTHER, "data_dir": directory})
        with ebla.connect(OTHER) as db:
            other = _table(db, "narrow", NARROW)

            def timed(count: int) -> Upserts:
                mine, theirs = loads.paired(
                    count, lambda number: loads.upsert_one(table, number), lambda: loads.upsert_one(other, 0)
                )
                return Upserts(mine.quantile_ms(0.5), theirs.quantile_ms(0.5))

            timed(WARM)
            found = [timed(SAMPLES) for _ in range(5)]
        launch.down(OTHER)
    return Upserts(*(median(each) for each in zip(*found, strict=True)))


class Cost(NamedTuple):
    """CPU in percent of a core, and resident MB, of the tablet server in the middle; and the CPU of an actor that does nothing."""

    cpu: float
    memory_mb: float
    bare_cpu: float


def _cost(bare: Any) -> Cost:
    time.sleep(SETTLE_S)
    processes = [psutil.Process(pid) for pid in (ray.get(bare.pid.remote()), *loads.tablet_server_pids())]
    began, before = time.perf_counter(), [_cpu_s(each) for each in processes]
    time.sleep(WATCH_S)
    seconds = time.perf_counter() - began
    bare_cpu, *used = [
        (_cpu_s(each) - at) / seconds * 100 for each, at in zip(processes, before, strict=True)
    ]
    memory_mb = median([each.memory_info().rss / 2**20 for each in processes[1:]])
    return Cost(median(used), memory_mb, bare_cpu)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
