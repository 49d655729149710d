"""A real deployment under faults: what was acknowledged stays, nothing is written twice, nothing old is read.

The tests run in this order on one deployment of three hosts; each waits until the group is whole again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pyarrow as pa
import pytest

import ebla
from ebla.actors import messages as m
from ebla.chaos.faults import RealFaults
from ebla.health import survey, tablets
from ebla.placement import launch
from ebla.placement.config import configure
from ebla.placement.local.cluster import LocalCluster
from ebla.storage.errors import InvalidArgument
from ebla.table import Database, Table
from tests.cluster.conftest import THREE_HOSTS, eventually

pytestmark = pytest.mark.cluster

NAME = "chaos"
WRITERS = 4
WRITE_PAUSE_S = 0.005
TABLETS = 3
SCHEMA = pa.schema([("writer", pa.int32()), ("number", pa.int64())])


@pytest.fixture(scope="module")
def db(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    data = tmp_path_factory.mktemp("data")
    assert launch.up(configure({"name": NAME, "data_dir": str(data), "slots": THREE_HOSTS})).ready
    with ebla.connect(NAME) as found:
        yield found


@pytest.fixture
def table(db: Database, request: pytest.FixtureRequest) -> Table:
    made = db.create_table(
        request.node.name[:60],
        schema=SCHEMA,
        primary_key=["writer", "number"],
        partition_by=ebla.hash("writer", "number", buckets=TABLETS),
    )
    eventually(lambda: all(leaders(made)), "every tablet is led")
    return made


@pytest.fixture
def faults(cluster: LocalCluster) -> Iterator[RealFaults]:
    with RealFaults(NAME, cluster) as found:
        yield found


def leaders(table: Table) -> list[str | None]:
    return [tablet.leader for tablet in table.info().tablets]


class Writers:
    """Threads that insert one row after another. A row that is written twice would raise AlreadyPresent."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.acknowledged: list[set[tuple[int, int]]] = [set() for _ in range(WRITERS)]
        self.errors: list[Exception] = []
        self._end = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._write, args=(number,), daemon=True) for number in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        try:
            self.await_more(10)
            yield
            self.await_more(10)
        finally:
            self._end.set()
            for thread in threads:
                thread.join()

    def await_more(self, rows: int) -> None:
        """Until each writer has had so many more answers."""
        goal = [len(done) + rows for done in self.acknowledged]

        def reached() -> bool:
            assert not self.errors, self.errors
            return all(len(done) >= wanted for done, wanted in zip(self.acknowledged, goal, strict=True))

        eventually(reached, "writes go on")

    def rows(self) -> set[tuple[int, int]]:
        return set().union(*self.acknowledged)

    def _write(self, writer: int) -> None:
        number = 0
        while not self._end.wait(WRITE_PAUSE_S):
            try:
                self.table.insert({"writer": writer, "number": number}, deadline_s=60.0)
            except Exception as error:
                self.errors.append(error)
                return
            self.acknowledged[writer].add((writer, number))
            number += 1


def holds(table: Table) -> set[tuple[int, int]]:
    found = table.scan().to_arrow().to_pydict()
    pairs = list(zip(found["writer"], found["number"], strict=True))
    assert len(pairs) == len(set(pairs))
    return set(pairs)


def assert_whole(db: Database, table: Table) -> None:
    """All is healthy again, and the replicas of every tablet are equal."""

    def judged() -> tablets.ClusterHealth | None:
        found = tablets.judge(db._run(survey.survey(network(db), ["master/0"])))
        return found if found.healthy else None

    eventually(judged, "the deployment is healthy")
    digests = db._run(survey.digests(network(db), [table.info()]))
    for tablet, seen in digests.items():
        assert seen.error is None, (tablet, seen.error)
        replies = [reply for reply in seen.replicas.values() if isinstance(reply, m.ChecksumReply)]
        assert len(replies) == 3
        assert len({(reply.rows, reply.digest) for reply in replies}) == 1


def network(db: Database) -> Any:
    return db._awaited._client.world.network


def test_a_killed_leader_loses_nothing_and_repeats_nothing(
    db: Database, table: Table, faults: RealFaults
) -> None:
    writers = Writers(table)
    with writers.running():
        for _ in range(2):
            victim = eventually(lambda: next(filter(None, leaders(table)), None), "somebody leads")
            faults.kill_actor(victim)
            writers.await_more(10)
    assert not writers.errors
    assert holds(table) == writers.rows()
    assert_whole(db, table)


def test_a_leader_that_stood_still_past_its_lease_answers_nothing_old(
    db: Database, table: Table, faults: RealFaults
) -> None:
    key = {"writer": 0, "number": 0}
    only = db.create_table(
        "stale", schema=pa.schema([("k", pa.int32()), ("v", pa.int32())]), primary_key=["k"]
    )
    only.upsert({"k": 1, "v": 1})
    leader = eventually(lambda: leaders(only)[0], "it is led")
    with ebla.connect(NAME) as other:
        late = other.table("stale")
        assert late.get({"k": 1}) == {"k": 1, "v": 1}  # it knows this leader
        faults.pause_actor(leader)
        only.upsert({"k": 1, "v": 2})  # waits for the next leader
        faults.resume_actor(leader)
        assert late.get({"k": 1}) == {"k": 1, "v": 2}
    table.insert(key)
    assert_whole(db, only)


def test_writes_go_on_while_a_node_is_away_and_it_catches_up(
    db: Database, table: Table, faults: RealFaults
) -> None:
    writers = Writers(table)
    with writers.running():
        faults.kill_node(3)
        writers.await_more(10)
        faults.return_node(3)
        writers.await_more(10)
    assert not writers.errors
    assert holds(table) == writers.rows()
    assert_whole(db, table)


def test_a_fault_reaches_only_what_was_named(faults: RealFaults) -> None:
    with pytest.raises(InvalidArgument, match="was not paused"):
        faults.resume_actor("tablet-server/host-1")
    with pytest.raises(InvalidArgument, match="give it as `cluster`"):
        RealFaults(NAME).kill_node(2)


def test_what_stood_still_goes_on_after_the_block(cluster: LocalCluster) -> None:
    with RealFaults(NAME, cluster) as faults:
        process = psutil.Process(faults.pause_actor("tablet-server/host-2"))
        eventually(lambda: process.status() == psutil.STATUS_STOPPED, "it stands still")
    eventually(lambda: process.status() != psutil.STATUS_STOPPED, "it goes on")
