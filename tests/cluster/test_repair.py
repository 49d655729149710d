"""Tables heal and move on real Ray under writes: replicas move, sources of copies are killed, disks are wiped, hosts are
drained, nodes are lost. Afterwards every acknowledged row is there once, on three equal replicas.

The tests run in this order on one deployment of four hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ebla
from ebla.actors import messages as m
from ebla.actors.errors import NetworkError, NotRunning
from ebla.actors.master.messages import MoveReplicaRequest
from ebla.chaos.faults import RealFaults
from ebla.health.digests import digests
from ebla.health.verdicts import Unanswered
from ebla.placement import launch
from ebla.placement.asking import named_actors
from ebla.placement.config import configure
from ebla.placement.local.cluster import LocalCluster
from ebla.table import Database
from tests.cluster import load
from tests.cluster.conftest import HOSTS, Caller, eventually, run_ebla

pytestmark = pytest.mark.cluster

NAME = "repair"
NAMESPACE = f"ebla-{NAME}"
MASTER = "master/0"
SCHEMA = load.SCHEMA.append(pa.field("filling", pa.string()))
ROWS = 12  # rows of each writer that a test waits for
FILLING = "x" * 2000
FILLED = {(100, number) for number in range(4000)}  # rows that no load writes
REPAIR_S = 150.0  # for the detection of a lost node and the copies of its replicas


def address(host: str) -> str:
    return f"tablet-server/{host}"


def row(writer: int, number: int) -> dict[str, Any]:
    return {**load.row(writer, number), "filling": FILLING}


class Deployment:
    def __init__(self, cluster: LocalCluster, data_dir: Path) -> None:
        self.cluster = cluster
        self.data_dir = data_dir
        self.ask = Caller(NAMESPACE)
        self.offset = 0

    def up(self) -> None:
        settings = {
            "name": NAME,
            "data_dir": str(self.data_dir),
            "masters": 1,
            "journals": 1,
            "master": {"unresponsive_s": 4.0},
            "tablet_server": {"follower_failed_s": 6.0, "copy_bytes_per_s": 4_000_000},
        }
        report = launch.up(configure(settings))
        assert report.ready, report.warnings

    @contextlib.contextmanager
    def loaded(self) -> Iterator[Database]:
        """Write rows during the block. Afterwards all of them are there once, on three equal replicas."""
        with ebla.connect(NAME) as db:
            table = db.table("rows")
            writers = load.Load(table, row, ROWS)
            with writers.running():
                yield db
            self.require_whole()
            load.require_rows(table, writers.written() | FILLED)
            load.delete_rows(table, writers.written())

    def tablets(self) -> tuple[m.TabletLocation, ...]:
        return self.ask(MASTER, "get_table", m.TableName("rows"), m.TableInfo).tablets

    def hosts_of(self, tablet: m.TabletLocation) -> list[str]:
        return [replica.address.rpartition("/")[2] for replica in tablet.replicas]

    def spare(self, tablet: m.TabletLocation) -> str:
        """The host without a replica of the tablet."""
        (found,) = [host for host in HOSTS if host not in self.hosts_of(tablet)]
        return found

    def require_whole(self, without: str = "") -> None:
        """Every tablet has three equal replicas, and none on the host `without`."""

        def whole() -> bool:
            try:
                info = self.ask(MASTER, "get_table", m.TableName("rows"), m.TableInfo)
            except (NetworkError, NotRunning):
                return False
            if any(len(t.replicas) != 3 or without in self.hosts_of(t) for t in info.tablets):
                return False
            return self._agree(info)

        eventually(
            whole, f"three equal replicas of each tablet, none on {without or 'a lost host'}", REPAIR_S
        )

    def _agree(self, info: m.TableInfo) -> bool:
        found = asyncio.run(digests(self.ask.network, [info], timeout_s=20.0))
        for tablet in info.tablets:
            seen = found[tablet.tablet]
            known = [r for r in seen.replicas.values() if not isinstance(r, Unanswered)]
            if len(known) < 3:
                return False
            assert len({(r.rows, r.digest) for r in known}) == 1, seen
        return True

    def move(self, *moves: MoveReplicaRequest) -> None:
        """Make all these moves at once."""
        for request in moves:
            eventually(lambda request=request: self._begun(request), "the move has begun")

        def done() -> bool:
            hosts = {tablet.tablet: self.hosts_of(tablet) for tablet in self.tablets()}
            return all(
                each.target in hosts[each.tablet] and each.source not in hosts[each.tablet] for each in moves
            )

        eventually(done, f"done: {moves}", REPAIR_S)

    def _begun(self, request: MoveReplicaRequest) -> bool:
        try:
            self.ask(MASTER, "move_replica", request, m.MembersReply)
        except ebla.EblaError as error:
            if not error.retriable and not error.possibly_applied:
                raise
            return False
        return True


@pytest.fixture(scope="module")
def deployment(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = Deployment(cluster, tmp_path_factory.mktemp("data"))
    made.up()
    with ebla.connect(NAME) as db:
        table = db.create_table(
            "rows",
            schema=SCHEMA,
            primary_key=["writer", "number"],
            partition_by=ebla.hash("number", buckets=2),
        )
        table.upsert([row(*each) for each in FILLED])
    return made


@pytest.mark.deep
def test_every_replica_of_a_table_moves_while_rows_are_written(deployment: Deployment) -> None:
    with deployment.loaded():
        first = {tablet.tablet: deployment.hosts_of(tablet) for tablet in deployment.tablets()}
        for replica in range(3):
            deployment.move(
                *(
                    MoveReplicaRequest(tablet.tablet, first[tablet.tablet][replica], deployment.spare(tablet))
                    for tablet in deployment.tablets()
                )
            )


def test_a_copy_whose_source_is_killed_is_completed(deployment: Deployment, faults: RealFaults) -> None:
    with deployment.loaded():
        tablet = deployment.tablets()[0]
        leader = (tablet.leader or "").rpartition("/")[2]
        source = next(host for host in deployment.hosts_of(tablet) if host != leader)
        spare = deployment.spare(tablet)
        request = MoveReplicaRequest(tablet.tablet, source, spare)
        deployment.ask(MASTER, "move_replica", request, m.MembersReply)

        def under_way() -> m.CopyJob | None:
            jobs = deployment.ask(address(spare), "list_copies", m.Empty(), m.CopyJobs).jobs
            return next((job for job in jobs if job.copied_bytes), None)

        job = eventually(under_way, "the copy is under way")
        faults.kill_actor(job.source)
        deployment.move(request)


def test_a_server_with_a_wiped_disk_returns_as_a_new_one_and_gets_replicas(
    deployment: Deployment,
) -> None:
    victim = "host-4"

    def identity() -> Any:
        return deployment.ask.when_back(address(victim), "status", m.Empty(), m.ServerState).instance.uuid

    with deployment.loaded():
        before = identity()
        deployment.cluster.kill_node(4)
        shutil.rmtree(deployment.data_dir / victim)
        deployment.cluster.start_node(4)
        assert identity() != before


@pytest.mark.deep
def test_a_drained_and_forgotten_host_returns_as_a_new_one(deployment: Deployment) -> None:
    host = "host-3"

    def statuses() -> dict[str, str]:
        servers = run_ebla(NAME, "check", "--wait", "60", "--json")["servers"]
        return {each["address"]: each["status"] for each in servers}

    def identity() -> str:
        return deployment.ask.when_back(address(host), "status", m.Empty(), m.ServerState).instance.uuid

    before = identity()
    with deployment.loaded():
        run_ebla(NAME, "nodes", "drain", host, "--wait", "--stop")
        assert all(host not in deployment.hosts_of(tablet) for tablet in deployment.tablets())
        assert address(host) not in named_actors(NAMESPACE)
        assert statuses()[address(host)] == "STOPPED"
        run_ebla(NAME, "nodes", "forget", host)
        assert address(host) not in statuses() and host not in run_ebla(NAME, "nodes")
    assert address(host) not in named_actors(NAMESPACE), "no role has started it again"
    deployment.up()
    eventually(lambda: identity() != before, "the server has a new identity")
    eventually(lambda: statuses().get(address(host)) == "HEALTHY", "the server is healthy again")


def test_a_lost_node_is_replaced_and_forgotten(deployment: Deployment) -> None:
    for tablet in deployment.tablets():
        if "host-4" not in deployment.hosts_of(tablet):
            deployment.move(MoveReplicaRequest(tablet.tablet, deployment.hosts_of(tablet)[0], "host-4"))
    with deployment.loaded():
        deployment.cluster.kill_node(4)
    deployment.require_whole(without="host-4")
    assert "UNREACHABLE" in run_ebla(NAME, "check", status=1)
    run_ebla(NAME, "nodes", "forget", "host-4")
    run_ebla(NAME, "check")
    deployment.up()
    with ebla.connect(NAME) as db:
        load.require_rows(db.table("rows"), FILLED)
