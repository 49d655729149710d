"""A real deployment with two masters: its figures, and its promises under faults.

The tests run in this order on one deployment of three hosts. Each of them waits until the deployment is healthy again.
"""

from __future__ import annotations

import contextlib
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pyarrow as pa
import pytest
import ray

import ebla
from ebla.actors import messages as m
from ebla.actors.replication.configuration import PACIFICA, RAFT
from ebla.chaos.faults import RealFaults
from ebla.figure_docs import LOGS, definitions
from ebla.health import survey, tablets
from ebla.health.digests import digests
from ebla.placement import launch
from ebla.placement.config import configure
from ebla.placement.local.cluster import LocalCluster
from ebla.storage.errors import InvalidArgument
from ebla.table import Database, Table
from tests.cluster.conftest import THREE_HOSTS, eventually
from tests.cluster.load import SCHEMA, Load, Rows, require_rows, row

pytestmark = pytest.mark.cluster

NAME = "chaos"
MASTERS = ("master/0", "master/1")
JOURNALS = ("journal/0", "journal/1", "journal/2")
MORE = 5  # rows of each writer that a test waits for


@pytest.fixture(scope="module")
def db(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    data = str(tmp_path_factory.mktemp("data"))
    settings = {"name": NAME, "data_dir": data, "slots": THREE_HOSTS, "masters": 2, "journals": 3}
    assert launch.up(configure(settings)).ready
    with ebla.connect(NAME) as found:
        yield found


BOTH = pytest.mark.parametrize("replication", [RAFT, PACIFICA], indirect=True)


@pytest.fixture
def replication(request: pytest.FixtureRequest) -> str:
    return getattr(request, "param", RAFT)


@pytest.fixture
def table(db: Database, replication: str, request: pytest.FixtureRequest) -> Table:
    by = ebla.hash("writer", "number", buckets=3)
    name = re.sub(r"\W", "_", request.node.name)[-60:]
    key = ["writer", "number"]
    made = db.create_table(
        name, schema=SCHEMA, primary_key=key, partition_by=by, storage="columns", replication=replication
    )
    eventually(lambda: all(leaders(made)), "every tablet has a leader")
    return made


def leaders(table: Table) -> list[str | None]:
    return [tablet.leader for tablet in table.info().tablets]


# -- figures -------------------------------------------------------------------------------------------------

SAMPLE = re.compile(r"^(ray_ebla_\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
TAG = re.compile(r'(\w+)="([^"]*)"')
OWN = ("deployment", "role", "host", "node", "journal", "state", "limit", "environment")
# Ray shows counters after their first increment, and no test of figures increments these.
RARE = ("journal_synced_segments_total", "master_leader_conflicts_total", "tablet_writes_refused_total")
# Counters that may or may not have an increment.
POSSIBLE = (
    "master_ballot_edits_total",
    "master_ballots_total",
    "master_beacons_acknowledged_total",
    "master_beacons_refused_total",
    "master_repairs_total",
    "master_servers_ended_total",
    "tablet_compaction_steps_total",
    "tablet_copied_bytes_total",
    "tablet_copies_done_total",
    "tablet_copies_failed_total",
    "tablet_copy_sent_bytes_total",
    "journal_served_edits_total",
    "tablet_flushes_total",
    "tablet_scrubs_total",
    "tablet_candidacies_total",
)
Series = tuple[str, tuple[tuple[str, str], ...]]


def scrape() -> dict[Series, float]:
    """Read this deployment's figures from every node, with ebla's own tags only."""
    found: dict[Series, float] = {}
    for node in (each for each in ray.nodes() if each["Alive"]):
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        for name, tags, value in SAMPLE.findall(text):
            own = {key: each for key, each in TAG.findall(tags) if key in OWN}
            if own.get("deployment") == NAME:
                found[name, tuple(sorted(own.items()))] = float(value)
    return found


def series(name: str, **tags: str) -> Series:
    return name, tuple(sorted({"deployment": NAME, **tags}.items()))


def total(found: dict[Series, float], name: str, **tags: str) -> float:
    wanted = {"deployment": NAME, **tags}.items()
    return sum(value for (each, own), value in found.items() if each == name and wanted <= dict(own).items())


def missing(found: dict[Series, float]) -> list[str]:
    names = {name for name, _ in found}
    optional = {"ray_ebla_" + name for name in RARE + POSSIBLE}
    of_logs = {each.exported for sheet in LOGS for each in sheet.definitions}
    return sorted({each.exported for each in definitions()} - names - optional - of_logs)


def on_a_majority(found: dict[Series, float]) -> bool:
    """One journal node may be left out until the next segment."""
    taken = [total(found, "ray_ebla_journal_edits_total", role=node, journal="catalog") for node in JOURNALS]
    acked = [total(found, "ray_ebla_writer_acked_txid", node=node) for node in JOURNALS]
    return all(sum(value > 0 for value in each) > len(JOURNALS) // 2 for each in (taken, acked))


def test_every_figure_is_scraped_from_ray_with_its_tags(db: Database, table: Table) -> None:
    rows = 50
    table.upsert([row(0, number) for number in range(rows)])
    memtables = [
        series("ray_ebla_tablet_memtable_bytes", role=f"tablet-server/{host}", host=host)
        for host in THREE_HOSTS
    ]

    def settled() -> dict[Series, float] | None:
        """Roles export their figures at different times."""
        found = scrape()
        whole = (
            total(found, "ray_ebla_tablet_rows_applied_total") >= 3 * rows,
            total(found, "ray_ebla_master_tables") >= 1,
            total(found, "ray_ebla_master_active") == 1,
            total(found, "ray_ebla_role_running") == len(MASTERS) + len(JOURNALS) + len(THREE_HOSTS),
            all(found.get(memtable, 0) > 0 for memtable in memtables),
            on_a_majority(found),
        )
        return found if all(whole) and not missing(found) else None

    found = eventually(settled, f"every figure is scraped; missing: {missing(scrape())}", within_s=300.0)
    active = next(
        dict(own) for (name, own), value in found.items() if (name, value) == ("ray_ebla_master_active", 1)
    )
    where = {"role": active["role"], "host": active["host"]}
    for node in JOURNALS:
        assert series("ray_ebla_writer_acked_txid", node=node, **where) in found
    assert {"ray_ebla_" + name for name in RARE} & {name for name, _ in found} == set()


def active_master(db: Database) -> str:
    network: Any = db._awaited._client.world.network

    def found() -> str | None:
        for master in MASTERS:
            with contextlib.suppress(ebla.EblaError):
                call = network.call(master, "status", m.Empty(), m.MasterStatus, 2.0)
                return db._run(call).address  # a standby refuses
        return None

    return eventually(found, "a master is active")


# -- faults --------------------------------------------------------------------------------------------------


def require_whole(db: Database, table: Table, written: Rows) -> None:
    """Every acknowledged row is there once, the deployment is healthy, and the replicas of every tablet are equal."""
    require_rows(table, written)
    network: Any = db._awaited._client.world.network
    eventually(
        lambda: tablets.judge(db._run(survey.survey(network, MASTERS))).healthy, "the deployment is healthy"
    )
    for tablet, seen in db._run(digests(network, [table.info()])).items():
        assert seen.error is None, (tablet, seen.error)
        replies = [reply for reply in seen.replicas.values() if isinstance(reply, m.Digest)]
        assert len(replies) == 3
        assert len({(reply.rows, reply.digest) for reply in replies}) == 1


@BOTH
def test_killed_leaders_lose_no_row_and_repeat_none(db: Database, table: Table, faults: RealFaults) -> None:
    load = Load(table, row, MORE)
    with load.running():
        for _ in range(2):
            faults.kill_actor(eventually(lambda: next(filter(None, leaders(table)), None), "a tablet is led"))
            load.await_more()
    require_whole(db, table, load.written())


@BOTH
def test_a_leader_that_was_paused_past_its_lease_answers_nothing_old(
    db: Database, table: Table, replication: str, faults: RealFaults
) -> None:
    table.upsert(row(0, 0))
    schema = pa.schema([("k", pa.int32()), ("v", pa.int32())])
    name = f"stale_{replication}"
    stale = db.create_table(name, schema=schema, primary_key=["k"], replication=replication)
    stale.upsert({"k": 1, "v": 1})
    leader = eventually(lambda: leaders(stale)[0], "the tablet has a leader")
    with ebla.connect(NAME) as other:
        late = other.table(name)
        assert late.get({"k": 1}) == {"k": 1, "v": 1}  # this client knows the leader now
        faults.pause_actor(leader)
        stale.upsert({"k": 1, "v": 2})  # waits for the next leader
        faults.resume_actor(leader)
        assert late.get({"k": 1}) == {"k": 1, "v": 2}
    require_whole(db, table, {(0, 0)})


@pytest.mark.parametrize("replication", [PACIFICA], indirect=True)
@pytest.mark.parametrize("paused", [False, True], ids=["killed", "paused"])
def test_a_primary_and_the_active_master_that_fail_at_once_lose_no_row(
    db: Database, table: Table, faults: RealFaults, paused: bool
) -> None:
    load = Load(table, row, MORE)
    with load.running():
        primary = eventually(lambda: next(filter(None, leaders(table)), None), "a tablet is led")
        victims = active_master(db), primary
        for victim in victims:
            (faults.pause_actor if paused else faults.kill_actor)(victim)
        load.await_more()
        if paused:
            for victim in victims:
                faults.resume_actor(victim)
            load.await_more()
    require_whole(db, table, load.written())


@pytest.mark.deep
def test_writes_continue_while_a_node_is_lost_and_its_server_catches_up(
    db: Database, table: Table, faults: RealFaults
) -> None:
    load = Load(table, row, MORE)
    with load.running():
        faults.kill_node(3)
        load.await_more()
        faults.return_node(3)
        load.await_more()
    require_whole(db, table, load.written())


def test_a_fault_that_cannot_be_undone_or_injected_is_refused(faults: RealFaults) -> None:
    with pytest.raises(InvalidArgument, match="was not paused"):
        faults.resume_actor("tablet-server/host-1")
    with pytest.raises(InvalidArgument, match="give it as `cluster`"):
        RealFaults(NAME).kill_node(2)


def test_a_paused_actor_continues_after_the_block(cluster: LocalCluster) -> None:
    with RealFaults(NAME, cluster) as faults:
        process = psutil.Process(faults.pause_actor("tablet-server/host-2"))
        eventually(lambda: process.status() == psutil.STATUS_STOPPED, "the process is stopped")
    eventually(lambda: process.status() != psutil.STATUS_STOPPED, "the process continues")
