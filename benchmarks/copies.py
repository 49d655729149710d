"""Times copies of tablets, and the repair after a lost node, from the outside. The floor of a copy: LMDB's own compacting copy of
the same data on the same disk, synced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import numpy as np
import pyarrow as pa

import ebla
from benchmarks import loads
from benchmarks.figures import Samples, Stopwatch, Watching, until
from benchmarks.floor import carry
from ebla.actors import messages as m
from ebla.actors.errors import NetworkError, NotRunning
from ebla.actors.master.messages import MoveReplicaRequest
from ebla.actors.ray_world import RayNetwork
from ebla.chaos.faults import RealFaults
from ebla.chaos.ray.stage import victims
from ebla.deployment import masters_of, namespace_of
from ebla.placement.local.cluster import LocalCluster
from ebla.storage.errors import EblaError

NAME = "ebla"
VALUE_BYTES = 1000
LOAD_ROWS = 50_000  # upserted at a time
REPAIR_TABLETS, REPAIR_TABLET_BYTES = 50, 20_000_000
WITHIN_S = 900.0
LOOK_S = 0.1  # between two looks at a state: more frequent ones would slow a copy down
SAMPLES = 400


class Copy(msgspec.Struct, frozen=True):
    """`data_bytes`: the size of LMDB's compacting copy; the file of a newly loaded tablet is up to twice as large.
    `carried_bytes_per_s`: the rate of bare actor calls between the same hosts. `busy_s`: the time of a copy beside a writer.
    `source_bytes`, `target_bytes`: the additional memory of each end; `cpu_s`: of both ends and their copiers."""

    data_bytes: int
    copy_s: float
    floor_s: float
    carried_bytes_per_s: float
    busy_s: float
    before: Samples
    during: Samples
    source_bytes: int
    target_bytes: int
    cpu_s: float


def fill(table: Any, total_bytes: int) -> None:
    """Rows of about 1 KB, in no order."""
    rows = total_bytes // (loads.KEY_BYTES + VALUE_BYTES)
    for first in range(0, rows, LOAD_ROWS):
        count = min(LOAD_ROWS, rows - first)
        chance = np.random.default_rng(first)
        keys = [b"%016x" % int(k) for k in chance.integers(0, 1 << 62, count)]
        data = chance.bytes(VALUE_BYTES * count)
        values = [data[at : at + VALUE_BYTES] for at in range(0, len(data), VALUE_BYTES)]
        table.upsert(pa.table([keys, values], schema=loads.SCHEMA))


def copy(db: Any, total_bytes: int, storage: str) -> Copy:
    """Move one tablet to the host that has no replica of it; then back, while another table gets writes."""
    table = db.create_table("copied", schema=loads.SCHEMA, primary_key=["k"], replicas=3, storage=storage)
    fill(table, total_bytes)
    table.flush()
    other = db.create_table("beside", schema=loads.SCHEMA, primary_key=["k"], replicas=3)
    ask = _Asker()
    tablet = table.info().tablets[0]
    if storage == "columns":
        _compact(ask, tablet)
    held = [replica.address for replica in tablet.replicas]
    target = next(each.address for each in db.servers() if each.address not in held)
    source = next(each for each in held if each != tablet.leader)
    assert tablet.leader is not None
    data_bytes, floor_s = _floor(ask, tablet)
    with _Memory([tablet.leader, target]) as memory:
        copy_s = _move(ask, tablet.tablet, source, target)
    carried = carry(total_bytes, *(each.partition("/")[2] for each in (tablet.leader, target)))
    before = _samples(other, lambda count: count >= SAMPLES)
    over, during = threading.Event(), list[Samples]()
    writer = threading.Thread(target=lambda: during.append(_samples(other, lambda _: over.is_set())))
    writer.start()
    try:
        busy_s = _move(ask, tablet.tablet, target, source)
    finally:
        over.set()
        writer.join()
    db.drop_table("copied")
    db.drop_table("beside")
    source_bytes, target_bytes = memory.grown
    ends = source_bytes, target_bytes, memory.cpu_s
    return Copy(data_bytes, copy_s, floor_s, carried, busy_s, before, during[0], *ends)


def _move(ask: _Asker, tablet: str, source: str, target: str) -> float:
    """Seconds from the begin of the copy until its replica runs. Returns when the source has deleted its replica."""
    request = MoveReplicaRequest(tablet, source, target)
    ask.until(lambda: ask("master", "move_replica", request, m.MembersReply))
    ask.until(lambda: ask.state(target, tablet) == m.COPYING)
    began = time.perf_counter()
    ask.until(lambda: ask.state(target, tablet) == m.RUNNING)
    copy_s = time.perf_counter() - began
    ask.until(lambda: ask.state(source, tablet) in (m.DELETED, m.DOES_NOT_EXIST))
    return copy_s


def _compact(ask: _Asker, tablet: m.TabletLocation) -> None:
    """Merge the rows of all replicas, which servers would do beside the copy."""
    for each in (replica.address for replica in tablet.replicas):
        first = ask(each, "compact", m.CompactRequest(tablet.tablet, None), m.CompactReply)
        again = m.CompactRequest(tablet.tablet, first.upto)
        ask.until(lambda each=each, again=again: not ask(each, "compact", again, m.CompactReply).left_bytes)


def _samples(table: Any, enough: Callable[[int], bool]) -> Samples:
    found = Samples()
    while not enough(len(found.seconds)):
        with found.timed():
            loads.upsert_one(table, len(found.seconds))
    return found


def _floor(ask: _Asker, tablet: m.TabletLocation) -> tuple[int, float]:
    """LMDB's own compacting copy of the leader's data, synced."""
    assert tablet.leader is not None
    request = m.LocalSnapshotRequest(tablet.tablet, 0)
    snapshot = ask(tablet.leader, "local_snapshot", request, m.LocalSnapshot)
    beside = tempfile.mkdtemp(dir=Path(snapshot.path).parent.parent.parent)
    environment = lmdb.open(snapshot.path, readonly=True, max_dbs=32, max_spare_txns=4)
    try:
        with Stopwatch() as watch:
            environment.copy(beside, compact=True)
            with open(Path(beside) / "data.mdb", "rb+") as file:
                os.fsync(file.fileno())
        size = os.path.getsize(Path(beside) / "data.mdb")
    finally:
        environment.close()
        shutil.rmtree(beside)
    return size, watch.seconds


class Repair(msgspec.Struct, frozen=True):
    """`whole_s`: from the death of a node until every tablet has three running voters again; `noticed_s`: until the first copy
    began."""

    tablets: int
    whole_s: float
    noticed_s: float


def repair(hosts: int = 4) -> Repair:
    """Lose a node of a deployment of its own, whose servers declare a silent peer lost after ten seconds."""
    settings = {"tablet_server": {"follower_failed_s": 10.0}}
    with (
        tempfile.TemporaryDirectory(prefix="ebla-bench-") as directory,
        ebla.local(hosts=hosts, data_dir=directory, masters=1, journals=1, settings=settings) as db,
    ):
        partition = ebla.hash("k", buckets=REPAIR_TABLETS)
        table = db.create_table(
            "repaired", schema=loads.SCHEMA, primary_key=["k"], partition_by=partition, replicas=3
        )
        fill(table, REPAIR_TABLETS * REPAIR_TABLET_BYTES)
        table.flush()
        cluster = LocalCluster.attach(Path(directory) / "cluster")
        lost = f"tablet-server/host-{hosts}"
        losing = [t for t in table.info().tablets if any(r.address == lost for r in t.replicas)]
        ask = _Asker()
        RealFaults(NAME, cluster).kill_node(hosts)
        began = time.perf_counter()
        others = [each.address for each in db.servers() if each.address != lost]
        ask.until(lambda: any(ask(a, "list_copies", m.Empty(), m.CopyJobs).jobs for a in others))
        noticed_s = time.perf_counter() - began
        ask.until(lambda: _whole(ask, lost))
        return Repair(len(losing), time.perf_counter() - began, noticed_s)


def _whole(ask: _Asker, lost: str) -> bool:
    info = ask("master", "get_table", m.TableName("repaired"), m.TableInfo)
    if any(len(t.replicas) != 3 or any(r.address == lost for r in t.replicas) for t in info.tablets):
        return False
    states: dict[tuple[str, str], str] = {}
    for address in dict.fromkeys(r.address for t in info.tablets for r in t.replicas):
        for report in ask(address, "status", m.Empty(), m.ServerState).replicas:
            states[address, report.tablet] = report.state
    return all(states.get((r.address, t.tablet)) == m.RUNNING for t in info.tablets for r in t.replicas)


class _Asker:
    def __init__(self) -> None:
        self.network = RayNetwork(namespace_of(NAME))

    def __call__(self, address: str, method: str, message: msgspec.Struct, reply: type[Any]) -> Any:
        addresses = masters_of(NAME) if address == "master" else [address]
        error: EblaError | None = None
        for each in addresses:
            try:
                return asyncio.run(self.network.call(each, method, message, reply, 10.0))
            except EblaError as refused:
                error = refused
        assert error is not None
        raise error

    def state(self, address: str, tablet: str) -> str:
        state = self(address, "status", m.Empty(), m.ServerState)
        return next((r.state for r in state.replicas if r.tablet == tablet), m.DOES_NOT_EXIST)

    def until(self, holds: Callable[[], Any]) -> None:
        """An error that may pass counts as false."""

        def tried() -> Any:
            try:
                return holds()
            except EblaError as error:
                if not (error.retriable or isinstance(error, NetworkError | NotRunning)):
                    raise
                return None

        until(tried, WITHIN_S, "not", LOOK_S)


class _Memory(Watching):
    """The greatest additional anonymous memory of each role's process."""

    every_s = 0.05

    def __init__(self, addresses: list[str]) -> None:
        network = RayNetwork(namespace_of(NAME))
        self.pids = [victims.process_of(asyncio.run(victims.ask(network, each))).pid for each in addresses]
        self.before = [_anonymous(pid) for pid in self.pids]
        self._cpu_s = sum(map(_cpu_s, self.pids))
        self.most = list(self.before)

    def look(self) -> None:
        self.most = [max(most, _anonymous(pid)) for most, pid in zip(self.most, self.pids, strict=True)]

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.cpu_s = sum(map(_cpu_s, self.pids)) - self._cpu_s

    @property
    def grown(self) -> list[int]:
        return [most - before for most, before in zip(self.most, self.before, strict=True)]


def _cpu_s(pid: int) -> float:
    """The CPU time of the process and of its copiers, also those that have ended."""
    ticks = 0
    for each in _processes(pid):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            times = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]
            ticks += sum(map(int, times))
    return ticks / os.sysconf("SC_CLK_TCK")


def _anonymous(pid: int) -> int:
    """The anonymous memory of a process and its copiers: the kernel can reclaim the pages of LMDB's files."""
    total = 0
    for each in _processes(pid):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            found = re.search(
                r"^Anonymous:\s+(\d+) kB", Path(f"/proc/{each}/smaps_rollup").read_text(), re.MULTILINE
            )
            total += int(found.group(1)) * 1024 if found else 0
    return total


def _processes(pid: int) -> list[int]:
    """The process, and those below it that have not ended."""
    found = [pid]
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                for child in map(int, (thread / "children").read_text().split()):
                    found += _processes(child)
    return found
