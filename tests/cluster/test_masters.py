"""Masters that fail over on real Ray: they are killed, paused, cut from journal nodes and handed over under a load of table
changes and writes. Every acknowledged operation is kept, and none is done twice.

The tests run in this order on one deployment, which begins with a single master and a single journal node in its process.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ebla
from ebla.actors import messages as m
from ebla.chaos.faults import RealFaults
from ebla.health import survey, tablets
from ebla.placement import launch, state
from ebla.placement.config import DeploymentConfig, configure
from ebla.placement.local.cluster import LocalCluster
from ebla.storage.errors import InvalidArgument
from ebla.table import Database
from tests.cluster.conftest import THREE_HOSTS, Caller, eventually, run_ebla, runs_again
from tests.cluster.load import SCHEMA, Load, Rows, delete_rows, require_rows, row

pytestmark = pytest.mark.cluster

NAME = "masters"
NAMESPACE = f"ebla-{NAME}"
MASTERS = ("master/0", "master/1")
NODES = ("master/0", "journal/1", "journal/2")  # as the journal has grown
MORE = 3  # rows and calls of a load that a test waits for
RETURN_S = 3.0  # the least age of a segment before a returned node makes the writer begin the next one
NEXT_SEGMENT_S = 180.0  # a node that was left out takes edits from the next segment on
BEFORE = ["first", "rows"]  # created by the single master


class Tables:
    """Creates tables, and drops every second one."""

    def __init__(self, db: Database, prefix: str) -> None:
        self.db = db
        self.prefix = prefix
        self.ids: dict[str, str] = {}
        self.made = 0

    def step(self) -> None:
        self.made += 1
        name = f"{self.prefix}-{self.made}"
        made = self.db.create_table(name, schema=SCHEMA, primary_key=["writer", "number"], replicas=1)
        self.ids[name] = made.info().table
        if self.made % 2 == 0:
            self.db.drop_table(name)
            del self.ids[name]


class Altered:
    """Adds, renames and drops a column of a table with rows. The next column of that name shows no old value."""

    def __init__(self, db: Database) -> None:
        schema = pa.schema([("number", pa.int64())])
        by = ebla.hash("number", buckets=2)
        self.table = db.create_table("altered", schema=schema, primary_key=["number"], partition_by=by)
        self.rows = 0

    def step(self) -> None:
        number, default = self.rows, -1 - self.rows
        self.table.alter().add_column("extra", pa.int64(), default=default).apply()
        self.table.insert({"number": number, "extra": number})
        self.rows += 1
        self.table.alter().rename_column("extra", "other").apply()
        shown = self.table.scan().to_arrow().to_pydict()
        found = dict(zip(shown["number"], shown["other"], strict=True))
        assert found == {**dict.fromkeys(range(number), default), number: number}
        self.table.alter().drop_column("other").apply()


class Recalled:
    """Drops a table, which refuses clients, and recalls it with all rows."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.table = db.create_table("recalled", schema=SCHEMA, primary_key=["writer", "number"])
        self.rows = [row(0, number) for number in range(100)]
        self.table.insert(self.rows)
        self.id = self.table.info().table

    def step(self) -> None:
        self.db.drop_table("recalled", reserve_s=3600.0)
        with pytest.raises(ebla.NotFound, match="recall"):
            self.db.table("recalled").info()
        table = self.db.recall_table("recalled")

        def served() -> bool:
            info = table.info()
            assert info.table == self.id
            return info.applied_version == info.schema.version

        eventually(served, "every tablet has the recalled schema")
        found = table.scan().to_arrow().to_pylist()
        assert sorted(found, key=lambda each: each["number"]) == self.rows


class Deployment:
    """The deployment, and every table and row that it has acknowledged."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = str(data_dir)
        self.tables: dict[str, str] = {}
        self.loads = 0
        self.rows: Rows = set()
        self.ask = Caller(NAMESPACE)

    def configured(self, **settings: int) -> DeploymentConfig:
        journal = {"return_s": RETURN_S}
        return configure(
            {"name": NAME, "data_dir": self.data_dir, "slots": THREE_HOSTS, "journal": journal, **settings}
        )

    def up(self, masters: int, journals: int) -> launch.UpReport:
        report = launch.up(self.configured(masters=masters, journals=journals))
        assert report.ready, report.warnings
        return report

    def down(self) -> None:
        assert launch.down(NAME).killed == ()
        self.ask.network.forget()

    def status(self, master: str) -> m.MasterStatus | None:
        try:
            return self.ask(master, "status", m.Empty(), m.MasterStatus, 2.0)
        except ebla.EblaError:
            return None

    def active(self, after_epoch: int = 0) -> m.MasterStatus:
        def found() -> m.MasterStatus | None:
            statuses = [self.status(master) for master in MASTERS]
            return next((each for each in statuses if each and each.epoch > after_epoch), None)

        return eventually(found, f"a master is active in a later epoch than {after_epoch}")

    @contextlib.contextmanager
    def loaded(self, *others: Callable[[], object]) -> Iterator[Load]:
        """Run a load during the block. Afterwards every acknowledged table and row is there once."""
        with ebla.connect(NAME) as db:
            self.loads += 1
            tables = Tables(db, f"load-{self.loads}")
            load = Load(db.table("rows"), row, MORE, tables.step, *others)
            with load.running():
                yield load
            self.tables |= tables.ids
            self.rows |= load.written()
            self.require_everything(db)
            delete_rows(db.table("rows"), self.rows)
            self.rows.clear()

    def require_everything(self, db: Database) -> None:
        found = db.tables()
        assert {table.name: table.table for table in found if table.name not in BEFORE} == self.tables
        assert [table.name for table in found if table.name in BEFORE] == BEFORE
        require_rows(db.table("rows"), self.rows)

    def require_well(self) -> None:
        """Every master, journal node and replica is healthy, and every replica belongs to a known tablet."""

        def well() -> bool:
            with ebla.connect(NAME) as db:
                world = db._awaited._client.world
                seen = db._run(survey.survey(world.network, MASTERS, journals=NODES))
            if not tablets.judge(seen).healthy:
                return False
            known = {tablet.tablet for info in seen.tables for tablet in info.tablets}
            held = {
                r.tablet
                for said in seen.states.values()
                if isinstance(said, m.ServerState)
                for r in said.replicas
            }
            return known == held

        eventually(well, "everything is healthy, and every replica belongs to a table")


@pytest.fixture(scope="module")
def deployment(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("data"))


def command(*words: str) -> Any:
    return run_ebla(NAME, *words, "--json")


def test_an_only_master_comes_back_and_its_journal_grows_while_it_serves(
    deployment: Deployment, faults: RealFaults
) -> None:
    assert deployment.up(1, 1).launched[0] == "master/0"
    with ebla.connect(NAME) as db:
        for name in BEFORE:
            table = db.create_table(name, schema=SCHEMA, primary_key=["writer", "number"], replicas=3)
        table.insert(row(0, -1))
        faults.kill_actor("master/0")
        assert [table.name for table in db.tables()] == BEFORE
    deployment.down()
    deployment.up(1, 1)
    with ebla.connect(NAME) as db:
        assert [table.name for table in db.tables()] == BEFORE
        db.table("rows").delete(row(0, -1))
    with deployment.loaded() as load:
        report = deployment.up(1, 3)
        load.await_more()
    assert sorted(report.launched) == list(NODES[1:])
    assert deployment.active().journals == NODES
    faults._network.forget()  # it caches the former master
    faults.kill_actor("master/0")
    assert deployment.active().journals == NODES, (
        "its own node knows the set, although the master was launched with another one"
    )
    memory = state.load(deployment.data_dir)
    assert memory is not None and memory.journal is not None
    grown = memory.journal.formatted, memory.journal.in_master, len(set(memory.journal.slots))
    assert grown == (True, True, 3)


def test_a_second_master_shares_the_catalog(deployment: Deployment) -> None:
    with pytest.raises(InvalidArgument, match="`ebla down`, then `ebla up` again"):
        launch.up(deployment.configured(masters=2, journals=3))
    deployment.down()
    report = deployment.up(2, 3)
    assert set(report.launched) >= {*MASTERS, *NODES}
    memory = state.load(deployment.data_dir)
    with ebla.connect(NAME) as db:
        deployment.require_everything(db)
    again = deployment.up(2, 3)
    assert again.launched == () and state.load(deployment.data_dir) == memory


def test_a_killed_master_is_replaced(deployment: Deployment, faults: RealFaults) -> None:
    with deployment.loaded() as load:
        first = deployment.active()
        faults.kill_actor(first.address)
        deployment.active(first.epoch)
        load.await_more()


def test_alterations_recalls_and_a_held_lock_survive_a_killed_master(
    deployment: Deployment, faults: RealFaults
) -> None:
    with ebla.connect(NAME) as db, db.session(name="the holder") as session:
        altered, recalled = Altered(db), Recalled(db)
        for table in (altered.table, recalled.table):
            deployment.tables[table.name] = table.info().table
        first_worker = session.create("/workers/w-", ephemeral=True, sequential=True, parents=True)
        with deployment.loaded(altered.step, recalled.step) as load, session.lock("/locks/nightly") as lock:
            (waiter,) = session.children("/locks/nightly")
            first = deployment.active()
            faults.kill_actor(first.address)
            deployment.active(first.epoch)
            load.await_more()
            assert session.children("/locks/nightly") == [waiter]
            eventually(lambda: lock.held, "the new master knows the holder of the lock")
            token = lock.token
        assert session.children("/workers") == [first_worker.path.rpartition("/")[2]]
        second_worker = session.create("/workers/w-", ephemeral=True, sequential=True)
        assert second_worker.path > first_worker.path
        with db.session() as other, other.lock("/locks/nightly") as next_lock:
            assert next_lock.token > token
    with ebla.connect(NAME) as db:
        assert db.coordination.children("/workers") == [], "its session is closed"


def test_a_master_that_was_paused_past_its_lease_follows_its_successor(
    deployment: Deployment, faults: RealFaults
) -> None:
    with deployment.loaded() as load:
        first = deployment.active()
        faults.pause_actor(first.address)
        second = deployment.active(first.epoch)
        assert second.address != first.address
        load.await_more()
        faults.resume_actor(first.address)

        def deposed() -> bool:
            status = deployment.status(first.address)
            return status is not None and (status.role, status.active) == ("standby", second.address)

        eventually(deposed, f"{first.address} follows its successor")
        assert deployment.active().epoch == second.epoch


def test_each_journal_node_is_killed_in_turn(deployment: Deployment, faults: RealFaults) -> None:
    with deployment.loaded() as load:
        for node in NODES[1:]:
            killed = faults.kill_actor(node)
            load.await_more()
            eventually(
                lambda node=node, killed=killed: runs_again(NAMESPACE, node, killed), f"{node} is back"
            )


@pytest.mark.deep
def test_each_journal_node_is_paused_in_turn(deployment: Deployment, faults: RealFaults) -> None:
    with deployment.loaded() as load:
        for node in NODES[1:]:
            faults.pause_actor(node)
            load.await_more()
            faults.resume_actor(node)
            load.await_more()
    eventually(lambda: journal_statuses() == ["HEALTHY"] * 3, "all nodes are back", within_s=NEXT_SEGMENT_S)


@pytest.mark.deep
def test_a_command_lets_a_journal_node_without_its_directory_rejoin(
    deployment: Deployment, faults: RealFaults
) -> None:
    memory = state.load(deployment.data_dir)
    assert memory is not None and memory.journal is not None
    lost = Path(deployment.data_dir) / memory.journal.slots[1] / "journal"
    with deployment.loaded() as load:
        faults.pause_actor("journal/1")  # no more writes
        shutil.rmtree(lost)
        killed = faults.kill_actor("journal/1")
        eventually(lambda: runs_again(NAMESPACE, "journal/1", killed), "journal/1 is back")
        eventually(lambda: journal_statuses()[1] == "MISSING", "its directory is missing")
        load.await_more()
        assert set(command("journal", "rejoin", "1")["learned_from"]) == {"master/0", "journal/2"}
        eventually(lambda: journal_statuses() == ["HEALTHY"] * 3, "it counts again")
        faults.pause_actor("journal/2")
        load.await_more()  # these need the rejoined node
        faults.resume_actor("journal/2")


def journal_statuses() -> list[str]:
    """In the order of NODES."""
    found = {node["address"]: node["status"] for node in command("journal", "status")["nodes"]}
    return [found[node] for node in NODES]


def test_a_command_makes_the_active_master_hand_over(deployment: Deployment) -> None:
    with deployment.loaded():
        before = deployment.active()
        done = command("master", "failover")
        first, second = before.address, deployment.active(before.epoch).address
        assert (done["before"], done["active"]) == (first, second) and first != second
        back = command("master", "failover", "--to", first)
        assert back["active"] == first
    listed = command("master", "list")["masters"]
    assert {each["address"]: each["role"] for each in listed} == {
        master: "active" if master == first else "standby" for master in MASTERS
    }
    assert all(each["host"] for each in listed)
    assert journal_statuses() == ["HEALTHY"] * 3


@pytest.mark.deep
def test_down_and_up_restore_the_catalog(deployment: Deployment) -> None:
    deployment.require_well()
    deployment.down()
    with pytest.raises(InvalidArgument, match="set journals to 3"):
        launch.up(deployment.configured(masters=1, journals=1))
    deployment.up(2, 3)
    with deployment.loaded():
        pass
    deployment.require_well()
