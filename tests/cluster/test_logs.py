"""Logs on real Ray: stores start with the first log, are killed under a writer, and return after a restart of everything.

The tests run in this order on one deployment.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

import ebla
from ebla.chaos.faults import RealFaults
from ebla.log.blocking import Log
from ebla.log.options import LogFenced
from ebla.placement import launch, state
from ebla.placement.config import DeploymentConfig, configure
from ebla.placement.local.cluster import LocalCluster
from ebla.table import Database
from tests.cluster.conftest import eventually, run_ebla, runs_again

pytestmark = pytest.mark.cluster

NAME = "logs"
NAMESPACE = f"ebla-{NAME}"
MORE = 20  # records that are appended when a killed role is back


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DeploymentConfig:
    return configure({"name": NAME, "data_dir": str(tmp_path_factory.mktemp("data"))})


@pytest.fixture(scope="module")
def db(cluster: LocalCluster, config: DeploymentConfig) -> Iterator[Database]:
    launch.up(config)
    with ebla.connect(NAME) as database:
        yield database


def addresses() -> list[str]:
    return [role.address for role in launch.status(NAME).roles]


def test_the_first_log_starts_a_store_on_every_host(db: Database) -> None:
    assert not any(address.startswith("ledger-store/") for address in addresses())
    log = db.create_log("events", roll_bytes=20_000)
    assert [a for a in addresses() if a.startswith("ledger-store/")] == [
        f"ledger-store/host-{number}" for number in range(1, 5)
    ]
    with log.writer() as writer:
        assert writer.append_many([b"%d" % number for number in range(100)]) == range(100)
    assert [entry.data for entry in log.read()] == [b"%d" % number for number in range(100)]


def test_no_record_is_lost_or_moved_while_stores_and_the_master_are_killed(
    db: Database, faults: RealFaults
) -> None:
    log = db.log("events")
    appended: dict[int, bytes] = {}
    followed: list[tuple[int, bytes]] = []

    def follow() -> None:
        for entry in log.read(100, follow=True):
            followed.append((entry.position, entry.data))
            if entry.data == b"the end":
                return

    follower = threading.Thread(target=follow)
    follower.start()
    with log.writer() as writer:

        def append() -> None:
            data = b"%d" % len(appended)
            appended[writer.append(data)] = data

        def back(victim: str, killed: int) -> bool:
            append()
            return runs_again(NAMESPACE, victim, killed)

        for victim in ("ledger-store/host-2", "ledger-store/host-3", "master/0"):
            killed = faults.kill_actor(victim)
            eventually(partial(back, victim, killed), f"{victim} is back")
            for _ in range(MORE):
                append()
        writer.append(b"the end")
    follower.join(120.0)
    assert not follower.is_alive()
    read = {entry.position: entry.data for entry in log.read(100)}
    assert {position: read.get(position) for position in appended} == appended
    assert dict(followed) == read and len(followed) == len(read)


def test_a_second_writer_fences_the_first(db: Database) -> None:
    log = db.log("events")
    first = log.writer()
    first.append(b"first")
    with ebla.connect(NAME).log("events").writer() as second:
        after = second.append(b"second")
        with pytest.raises(LogFenced):
            first.append(b"late")
    assert log.info().end == after + 1


@pytest.mark.deep
def test_a_host_leaves_with_its_ledgers_under_a_writer_and_may_come_back(db: Database) -> None:
    log = db.log("events")
    before = log.info().end
    with log.writer() as writer:
        writer.append(b"before")
        run_ebla(NAME, "nodes", "decommission", "host-4", "--wait", "--timeout", "60")
        writer.append(b"after")
    registered = run_ebla(NAME, "autorecovery", "status", "--json")
    uuid = next(each["uuid"] for each in registered["known"] if each["address"] == "ledger-store/host-4")
    ledgers = run_ebla(NAME, "ledger", "list", "--json")["ledgers"]
    assert not any(uuid in segment["stores"] for each in ledgers for segment in each["segments"])
    assert [entry.data for entry in log.read(before)] == [b"before", b"after"]
    run_ebla(NAME, "nodes", "decommission", "host-4", "--off")


@pytest.mark.deep
def test_logs_are_whole_after_a_restart_of_everything(
    db: Database, config: DeploymentConfig, cluster: LocalCluster
) -> None:
    before = [entry.data for entry in db.log("events").read()]
    launch.down(NAME)
    saved = state.load(config.data_dir)
    assert saved is not None and saved.config.logs, "the first log is remembered"
    launch.up(saved.config)
    with ebla.connect(NAME) as again:
        log = again.log("events")
        read = eventually(lambda: _read(log), "the log is read")
        assert read == before
        with log.writer() as writer:
            assert writer.append(b"next") == len(before)


def _read(log: Log) -> list[bytes] | None:
    try:
        return [entry.data for entry in log.read()]
    except ebla.EblaError:
        return None
