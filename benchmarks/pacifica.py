"""PacificA tables beside Raft tables: the same loads and the same faults, in turns, in the same run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import ebla
from benchmarks import loads
from benchmarks.figures import Samples, median
from benchmarks.masters import KEYS
from ebla.actors import messages as m
from ebla.actors.ray_world import RayNetwork
from ebla.actors.replication.configuration import PACIFICA, RAFT
from ebla.chaos.faults import RealFaults
from ebla.deployment import namespace_of
from ebla.placement.local.cluster import LocalCluster

PROTOCOLS = (RAFT, PACIFICA)
TURNS = 3
BULK_TURNS = 9  # one load differs from the next by a tenth
SAMPLES = 400
KILLS, LOSSES = 4, 1
HOSTS = 4
LAST_JOURNAL = "journal/1"  # on the last host: journal nodes take those without a master first
TRIES_MAX = 10
SPREAD = 8  # tablets of one table, each with a writer
SETTLED_S = 2.0  # a restarted Raft replica withholds its vote for an election timeout
CALM_S, AFTER_S = 1.0, 10.0  # of writes before a fault, and after it: more than the grace of a silent server
HAND_OVER_S = 5.0
PERIOD_S = 0.05  # between two writes to one tablet
SCHEMA = pa.schema([pa.field("k", pa.int32(), False), pa.field("v", pa.int64())])
BY_HASH, BY_TABLET = ebla.hash("k", buckets=8), ebla.range("k", splits=list(range(1, SPREAD)))


class Both(NamedTuple):
    """One value for each protocol, or several."""

    raft: Any
    pacifica: Any


def both(measure: Callable[[str], Any]) -> Both:
    return Both(*map(measure, PROTOCOLS))


def in_turns(measure: Callable[[str], float], turns: int = TURNS) -> Both:
    """The medians of measurements that alternate between the protocols, so that disturbances of the machine affect both. Every
    second turn begins with the other protocol, so that what a measurement leaves behind affects both."""
    found: dict[str, list[float]] = {each: [] for each in PROTOCOLS}
    for turn in range(turns):
        for replication in PROTOCOLS if turn % 2 else reversed(PROTOCOLS):
            found[replication].append(measure(replication))
    return Both(*map(median, found.values()))


@contextmanager
def tables(db: Any, name: str, partition_by: Any, schema: Any = loads.SCHEMA) -> Iterator[Both]:
    def make(replication: str) -> Any:
        return db.create_table(
            f"{name}-{replication}", schema=schema, partition_by=partition_by, replication=replication, **KEYS
        )

    made = both(make)
    for table in made:
        lead_evenly(table)
    yield made
    for replication in PROTOCOLS:
        db.drop_table(f"{name}-{replication}")


def lead_evenly(table: Any) -> None:
    """Hand leaderships over until the servers lead about as many tablets each.

    The fewer servers lead, the more one message carries and one sync writes, by either protocol. The master appoints primaries
    evenly; elections do not, and their chance would decide the ratio."""
    network, led = RayNetwork(namespace_of("ebla")), Counter[str]()
    for tablet in table.info().tablets:
        replica = min(tablet.replicas, key=lambda replica: led[replica.address])
        led[replica.address] += 1
        if replica.address != tablet.leader:
            request = m.StepDownRequest(tablet.tablet, replica.uuid, HAND_OVER_S)
            call = network.call(tablet.leader, "step_down", request, m.StepDownReply, 2 * HAND_OVER_S)
            asyncio.run(call)


# -- speed ---------------------------------------------------------------------------------------------------


def single(db: Any) -> Both:
    """Times of single upserts, one after the other."""
    with tables(db, "single", BY_HASH) as (raft, pacifica):

        def timed(count: int) -> tuple[Samples, Samples]:
            numbers = iter(range(count))
            return loads.paired(
                count,
                lambda number: loads.upsert_one(pacifica, number),
                lambda: loads.upsert_one(raft, next(numbers)),
            )

        timed(100)  # warms up
        mine, floor = timed(SAMPLES)
        return Both(floor, mine)


def concurrent(db: Any, count: int, width: int) -> Both:
    """Upserts per second of one process with `width` tasks."""
    with tables(db, "many", BY_HASH):
        return in_turns(
            lambda replication: asyncio.run(loads.concurrent(f"many-{replication}", "upsert", count, width))
        )


def bulk(db: Any, rows: int) -> Both:
    """Rows per second into new tables."""
    data = loads.rows_of(rows)

    def measure(replication: str) -> float:
        table = db.create_table(
            "bulk",
            schema=loads.SCHEMA,
            partition_by=BY_HASH,
            replication=replication,
            **KEYS,
        )
        lead_evenly(table)
        rate = loads.bulk_upsert(table, data)
        db.drop_table("bulk")
        return rate

    return in_turns(measure, BULK_TURNS)


# -- faults --------------------------------------------------------------------------------------------------


class Pauses(NamedTuple):
    """The longest pause of each tablet's writer around faults of a server: of the tablets that it led, and of all others."""

    led: list[float]
    followed: list[float]


def killed_processes(db: Any, kills: int = KILLS) -> Both:
    """Pauses around the SIGKILL of one server's process after the other; Ray starts it again."""
    found, faults = Both(Pauses([], []), Pauses([], [])), RealFaults()
    for number in range(kills):
        victim = f"tablet-server/host-{1 + number % HOSTS}"
        _strike(db, found, victim, lambda victim=victim: faults.kill_actor(victim))
    return found


def lost_nodes(db: Any, directory: Path, losses: int = LOSSES) -> Both:
    """Pauses around the loss of the last node."""
    found, faults = Both(Pauses([], []), Pauses([], [])), RealFaults(cluster=LocalCluster.attach(directory))

    def lose() -> None:
        """As with a machine, all at once: the journal node there tells nobody that the tablet server has ended before it ends, too."""
        faults.pause_actor(LAST_JOURNAL)
        faults.kill_node(HOSTS)

    for _ in range(losses):
        _strike(db, found, f"tablet-server/host-{HOSTS}", lose, lambda: faults.return_node(HOSTS))
    return found


def _strike(
    db: Any, found: Both, victim: str, strike: Callable[[], Any], undo: Callable[[], None] = lambda: None
) -> None:
    """Measure one fault on new tables, of which the victim leads some tablets each."""
    for _ in range(TRIES_MAX):
        with tables(db, "struck", BY_TABLET, SCHEMA) as made:
            for table in made:
                _until_whole(table)
            led = [[tablet.leader == victim for tablet in table.info().tablets] for table in made]
            if not all(map(any, led)):
                continue
            with ExitStack() as ending:
                times = [ending.enter_context(_written(table)) for table in made]
                time.sleep(CALM_S)
                strike()
                time.sleep(AFTER_S)
            undo()
            for table in made:
                _until_whole(table)
            break
    else:
        raise RuntimeError(f"{victim} led no tablet of {TRIES_MAX} tables")
    for pauses, leads, answered in zip(found, led, times, strict=True):
        for is_led, each in zip(leads, answered, strict=True):
            longest_s = max(later - earlier for earlier, later in pairwise(each))
            (pauses.led if is_led else pauses.followed).append(longest_s)


@contextmanager
def _written(table: Any) -> Iterator[list[list[float]]]:
    """Write to each tablet all the time, and note the times of the answers."""
    over, errors = threading.Event(), list[BaseException]()
    times: list[list[float]] = [[time.monotonic()] for _ in range(SPREAD)]

    def write(tablet: int) -> None:
        try:
            while not over.wait(PERIOD_S):
                table.upsert({"k": tablet, "v": len(times[tablet])})
                times[tablet].append(time.monotonic())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(tablet,), daemon=True) for tablet in range(SPREAD)]
    for thread in threads:
        thread.start()
    yield times
    over.set()
    for thread in threads:
        thread.join()
    assert not errors, errors


def _until_whole(table: Any, timeout_s: float = 120.0) -> None:
    """Wait until all tablets have a leader and all their replicas are alive and vote, for SETTLED_S."""
    deadline, since = time.monotonic() + timeout_s, time.monotonic()
    while time.monotonic() - since < SETTLED_S:
        for tablet in table.info().tablets:
            if tablet.leader is None or any(not r.alive or r.role == "learner" for r in tablet.replicas):
                since = time.monotonic()
        if time.monotonic() > deadline:
            raise RuntimeError("the table did not become whole")
        time.sleep(0.1)
