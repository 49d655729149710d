"""The tablet-server manager: known servers, live servers, and valid reports (scenario S37, the master's side)."""

from __future__ import annotations

import pytest

from ebla.actors.master.cluster.servers import Servers
from ebla.storage.errors import InvalidArgument
from tests.master.builders import heartbeat, report


def registered(uuid: str = "a", seqno: int = 1, now: float = 0.0) -> Servers:
    servers = Servers(unresponsive_s=10.0)
    servers.heartbeat(heartbeat(uuid, seqno, register=True), now)
    return servers


def test_an_unknown_server_is_asked_to_register():
    servers = Servers(unresponsive_s=10.0)
    assert servers.heartbeat(heartbeat("a"), 0.0) is None
    assert servers.alive(0.0) == []
    assert servers.heartbeat(heartbeat("a", register=True), 0.0).uuid == "a"


def test_the_same_incarnation_may_register_again():
    servers = registered()
    server = servers.get("a")
    server.took(report(full=True))
    assert servers.heartbeat(heartbeat("a", 1, register=True), 1.0) is server
    assert server.reported_in_full


def test_a_later_incarnation_must_register_and_report_everything():
    servers = registered("a", 1)
    before = servers.get("a")
    before.took(report(full=True))
    assert servers.heartbeat(heartbeat("a", 2), 1.0) is None
    assert servers.current(before)
    after = servers.heartbeat(heartbeat("a", 2, register=True), 1.0)
    assert not servers.current(before) and not after.reported_in_full
    assert after.expects(report(sequence=0, full=True)) and not after.expects(report(sequence=0))


def test_a_higher_incarnation_number_is_accepted_and_a_lower_one_refused():
    servers = registered("a", 5)
    server = servers.get("a")
    for seqno in (1005, 5):
        assert servers.heartbeat(heartbeat("a", seqno, start="start 5"), 1.0) is server
        assert servers.statuses(1.0)[0].seqno == 1005


def test_a_known_server_cannot_move_to_another_address():
    servers = registered("a")
    with pytest.raises(InvalidArgument, match="cannot move"):
        servers.heartbeat(heartbeat("a", 2, register=True, host="elsewhere"), 1.0)
    assert servers.get("a").host == "a"


def test_a_host_with_a_lost_disk_returns_as_another_server():
    servers = registered("a")
    servers.heartbeat(heartbeat("b", register=True, host="a"), 1.0)
    assert servers.get("a") is None
    assert [server.uuid for server in servers.alive(1.0)] == ["b"]
    assert servers.heartbeat(heartbeat("a"), 2.0) is None


def test_a_silent_server_is_dead_until_its_next_heartbeat():
    servers = registered(now=0.0)
    assert servers.is_alive("a", 10.0) and not servers.is_alive("a", 10.1)
    (status,) = servers.statuses(12.0)
    assert (status.alive, status.heartbeat_age_s) == (False, 12.0)
    servers.heartbeat(heartbeat("a", replicas=3, leaders=1, disk_bytes=7), 13.0)
    (status,) = servers.statuses(13.0)
    assert (status.alive, status.replicas, status.leaders, status.disk_bytes) == (True, 3, 1, 7)


def test_only_new_and_sufficient_reports_count():
    server = registered().get("a")
    assert not server.expects(report(sequence=3)), "incremental before any full report"
    server.took(report(sequence=3, full=True))
    assert server.expects(report(sequence=3)) and server.expects(report(sequence=9))
    assert not server.expects(report(sequence=2)) and not server.expects(report(sequence=2, full=True))
