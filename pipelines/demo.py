"""The main job, end to end: `ebla demo`.

A local Ray cluster of four nodes, a table of eight tablets with three replicas each, and 336,776 flights that Spark
loads into it. Meanwhile a log is written. At a third of the load the raylet of a node is killed with SIGKILL, and later
started again. At the end Spark compares the table with its source, and every replica with its peers; the log is read, and
every copy of its entries is checked. The report is ok only if nothing was lost, nothing was written twice, all replicas
agree, and replication workers have copied to the store of the killed node what it had missed.

The demo has its own processes and directory, and removes them; Ctrl-C ends it at any moment.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import ray

import ebla
from ebla.actors import messages as m
from ebla.actors.world import Network
from ebla.chaos.faults import RealFaults
from ebla.health import survey, tablets
from ebla.options import MASTER
from ebla.pipelines import datasets, report
from ebla.pipelines.events import EventLog
from ebla.pipelines.feed import feed, table_for
from ebla.pipelines.outcomes import FeedProgress, FeedReport
from ebla.pipelines.probe import Probe
from ebla.pipelines.session import spark
from ebla.pipelines.verify import verify
from ebla.placement import java, launch
from ebla.placement.config import configure
from ebla.placement.connection import connect_ray
from ebla.placement.local.cluster import START_S, LocalCluster
from ebla.placement.local.node import slot_of as slot
from ebla.show.steps import Show, Steps
from ebla.table import Database, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODES = 4
TABLETS = 8
REPLICAS = 3
KILL_AT = 1 / 3  # of the rows
DEAD_S_MIN = 4.0  # before the node is started again
CATCH_UP_S_MAX = 90.0
FLIGHTS = datasets.DATASETS["flights"]
POLL_S = 0.2


class Disaster:
    """Kills node `number` on `strike`, in a thread, and starts it again."""

    def __init__(self, cluster: LocalCluster, number: int, table: Table, probe: Probe) -> None:
        self.faults = RealFaults(cluster=cluster)
        self.number = number
        self.table = table
        self.probe = probe
        self.rows = 0
        self.led = self.held = 0
        self.killed_s = self.back_s = 0.0
        self.led_by_probe: tuple[int, ...] = ()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def begun(self) -> bool:
        return self._thread is not None

    def strike(self, rows: int) -> None:
        """Returns at once."""
        self.rows = rows
        self._thread = threading.Thread(target=self._run, name="disaster", daemon=True)
        self._thread.start()

    def wait_back(self) -> None:
        assert self._thread is not None, "nothing was killed"
        while self._thread.is_alive():
            self._thread.join(POLL_S)
        if self._error is not None:
            raise self._error

    def as_reported(self, load: FeedReport, load_ended: float, caught_up_s: float) -> report.Kill:
        return report.Kill(
            slot=slot(self.number),
            at_s=self.killed_s - (load_ended - load.seconds),
            rows=self.rows,
            led=self.led,
            held=self.held,
            during_load=self.killed_s < load_ended and self.rows < load.rows,
            down_s=self.back_s - self.killed_s,
            caught_up_s=caught_up_s,
        )

    def settle(self) -> None:
        """Wait for the thread: a cluster cannot be ended while one of its nodes is starting."""
        if self._thread is not None:
            self._thread.join(START_S)

    def _run(self) -> None:
        try:
            info = self.table.info()
            self.led, self.held = led(info, self.number), held(info, self.number)
            self.led_by_probe = self.probe.led_by(slot(self.number))
            self.killed_s = time.monotonic()
            self.faults.kill_node(self.number)
            time.sleep(max(0.0, self.killed_s + DEAD_S_MIN - time.monotonic()))
            self.faults.return_node(self.number)
            self.back_s = time.monotonic()
        except Exception as error:
            self._error = error


def led(info: m.TableInfo, number: int) -> int:
    return sum(tablet.leader == f"tablet-server/{slot(number)}" for tablet in info.tablets)


def held(info: m.TableInfo, number: int) -> int:
    address = f"tablet-server/{slot(number)}"
    return sum(any(replica.address == address for replica in tablet.replicas) for tablet in info.tablets)


def run(steps: Steps, replication: str = m.RAFT) -> report.DemoReport:
    """Run the demo, with tables of this protocol. The cluster and its directory are removed when this returns or raises."""
    began = time.monotonic()
    with contextlib.ExitStack() as ending:
        cluster, db = _deployment(steps, ending)
        table, probe, events, victim = _tables(steps, db, replication)
        with steps.step(f"starting Spark, away from {slot(victim)}") as show:
            session = ending.enter_context(
                spark("ebla demo", avoid_slots=[slot(victim)], quick=True, progress=show)
            )
        disaster = Disaster(cluster, victim, table, probe)
        ending.callback(disaster.settle)
        with events.running():
            load, load_ended = _load(steps, session, disaster)
            with steps.step(f"bringing {slot(victim)} back"):
                disaster.wait_back()
            with steps.step("waiting until all replicas have caught up, and the log is repaired") as show:
                _await_caught_up(table, show)
                caught_up_s = time.monotonic() - disaster.killed_s
                _await_repaired(events, show)
        with steps.step("comparing table and source, and the replicas with each other") as show:
            checked = verify(session, FLIGHTS.name, table, progress=show)
        with steps.step("reading the log, and checking every copy of its entries"):
            logged = events.proof(disaster.killed_s, cluster.slots)
        with steps.step("ending everything"):
            ending.close()
    found = report.DemoReport(
        nodes=NODES,
        tablets=TABLETS,
        replicas=REPLICAS,
        load=load,
        kill=disaster.as_reported(load, load_ended, caught_up_s),
        outage=probe.outage(disaster.led_by_probe, disaster.killed_s),
        verify=checked,
        events=logged,
        failures=(),
        phases=dict(steps.seconds),
        seconds=time.monotonic() - began,
        replication=replication,
    )
    return msgspec.structs.replace(found, failures=tuple(_failures(found, FLIGHTS.rows)))


def _load(steps: Steps, session: SparkSession, disaster: Disaster) -> tuple[FeedReport, float]:
    """Feed the flights; at a third of them the node is killed. Returns the report, and when the load ended."""
    with (
        steps.step(f"loading {FLIGHTS.rows:,} flights, and killing {slot(disaster.number)}") as show,
        disaster.probe.running(),
    ):

        def progress(seen: FeedProgress) -> None:
            if seen.rows >= KILL_AT * FLIGHTS.rows and not disaster.begun:
                disaster.strike(seen.rows)
            killed = f"; {slot(disaster.number)} was killed" if disaster.killed_s else ""
            show(f"{seen.rows:,} of {FLIGHTS.rows:,} rows, {seen.rows_per_s:,.0f} rows/s{killed}")

        load = feed(session, FLIGHTS.name, disaster.table, on_progress=progress)
        ended = time.monotonic()
        if not disaster.begun:
            disaster.strike(load.rows)
        disaster.probe.await_resumed()
    return load, ended


def _failures(found: report.DemoReport, rows: int) -> Iterator[str]:
    """The promises that did not hold."""
    checked = found.verify
    if found.load.rows != rows or checked.source_rows != rows:
        yield f"{found.load.rows:,} rows were written and {checked.source_rows:,} compared, of {rows:,}"
    if checked.missing:
        yield f"{checked.missing:,} rows were lost"
    if checked.extra:
        yield f"{checked.extra:,} rows are in the table that were never written"
    if checked.different:
        yield f"{checked.different:,} rows differ from those that were written"
    if not checked.replicas_equal:
        unequal = sum(not tablet.equal for tablet in checked.tablets)
        yield f"the replicas of {unequal} tablets do not agree"
    if not found.kill.during_load:
        yield "the load was over before the node was killed"
    if not found.kill.led:
        yield f"{found.kill.slot} led no tablet when it was killed"
    if found.outage.failed:
        yield f"{found.outage.failed} probing writes failed for good"
    yield from _failures_of_log(found.events, found.kill.slot)


def _failures_of_log(found: report.Events, killed: str) -> Iterator[str]:
    yield from found.errors
    if found.lost:
        yield f"{found.lost:,} acknowledged records of the log were lost"
    elif found.misplaced:
        yield f"{found.misplaced:,} records of the log are not at their positions"
    if found.repeated:
        yield f"{found.repeated:,} records are in the log twice"
    if not found.followed and not found.errors:
        yield "the reader that followed the log has not seen what is in it"
    if found.unsound:
        yield f"{found.unsound:,} of {found.copies:,} copies of the log's entries are missing or damaged"
    if not found.copied:
        yield f"no worker has copied anything to the store of {killed}"


# -- parts ---------------------------------------------------------------------------------------------------


def _deployment(steps: Steps, ending: contextlib.ExitStack) -> tuple[LocalCluster, Database]:
    """A Ray cluster and a deployment on this machine, in a directory that is removed at the end."""
    java.java_home()  # raises NoJava before anything is started
    directory = Path(tempfile.mkdtemp(prefix="ebla-demo-"))
    ending.callback(shutil.rmtree, directory, ignore_errors=True)
    with steps.step(f"starting a Ray cluster of {NODES} nodes") as show:
        cluster = LocalCluster.start(
            NODES, directory=directory / "cluster", dashboard=False, progress=show, owned=True
        )
        ending.callback(cluster.stop)
        connect_ray(cluster.address, directory=cluster.directory)
        ending.callback(ray.shutdown)
    with steps.step("deploying ebla: a master, and tables and logs on every node") as show:
        config = configure({"data_dir": str(directory / "data"), "logs": True})
        deployed = launch.up(config, progress=show)
        if not deployed.ready:
            raise ebla.Unavailable(f"the deployment did not come up: {'; '.join(deployed.warnings)}")
        db = ending.enter_context(ebla.connect(address=cluster.address, progress=False))
    return cluster, db


def _tables(steps: Steps, db: Database, replication: str) -> tuple[Table, Probe, EventLog, int]:
    """The table of the flights, the probe's table, the log, and the node to kill."""
    with steps.step(
        f"making a table of {TABLETS} tablets, {REPLICAS} replicas each ({replication}), and a log"
    ):
        table = table_for(
            db,
            FLIGHTS.name,
            FLIGHTS.name,
            partition_by=ebla.hash(*FLIGHTS.hash_by, buckets=TABLETS),
            replicas=REPLICAS,
            replication=replication,
        )
        probe = Probe(db, TABLETS, REPLICAS, replication)
        events = EventLog(db)
        return table, probe, events, _choose_victim(events.hosts(), table, probe.table)


def _choose_victim(writing: Sequence[str], *tables: Table) -> int:
    """Of the nodes whose stores are `writing` the log, the one that leads most tablets of each table, without the head node,
    whose loss would end the Ray cluster. In a table of which it leads no tablet it is made to lead one."""
    infos = [table.info() for table in tables]
    numbers = [number for number in range(2, NODES + 1) if slot(number) in writing]
    victim = max(numbers, key=lambda number: sorted(led(info, number) for info in infos))
    for table, info in zip(tables, infos, strict=True):
        if not led(info, victim):
            _let_lead(victim, table, info)
    return victim


def _let_lead(number: int, table: Table, info: m.TableInfo) -> None:
    """Hand one tablet's leadership over to node `number`."""
    address = f"tablet-server/{slot(number)}"
    for tablet in info.tablets:
        successor = next((replica.uuid for replica in tablet.replicas if replica.address == address), None)
        if successor is not None and tablet.leader is not None:
            request = m.StepDownRequest(tablet.tablet, successor)
            table._run(_network(table).call(tablet.leader, "step_down", request, m.StepDownReply, 10.0))
            return


def _network(table: Table) -> Network:
    return table._awaited._client.world.network


def _await_caught_up(table: Table, show: Show) -> None:
    """Wait until every replica runs, and has applied all entries that its leader has committed."""
    deadline = time.monotonic() + CATCH_UP_S_MAX
    while True:
        seen = tablets.judge(table._run(survey.survey(_network(table), [MASTER])))
        behind = [replica.lag or 0 for tablet in seen.tablets for replica in tablet.replicas]
        if seen.healthy and not any(behind):
            return
        reasons = "; ".join(seen.reasons) or f"{sum(map(bool, behind))} replicas are behind"
        show(reasons)
        if time.monotonic() > deadline:
            raise ebla.Unavailable(f"not all replicas had caught up after {CATCH_UP_S_MAX:.0f} s: {reasons}")
        time.sleep(POLL_S)


def _await_repaired(events: EventLog, show: Show) -> None:
    deadline = time.monotonic() + CATCH_UP_S_MAX
    while waiting := events.to_repair():
        show(f"{waiting} ledgers of the log are to be repaired")
        if time.monotonic() > deadline:
            raise ebla.Unavailable(
                f"the log was not repaired after {CATCH_UP_S_MAX:.0f} s; see the workers' logs"
            )
        time.sleep(POLL_S)
