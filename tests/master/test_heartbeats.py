"""Heartbeats (scenario S37), and actions that a master without reports must not take (S18)."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import OldCopy, Throttled
from ebla.actors.master.cluster.servers import Servers
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import InvalidArgument
from tests.master.builders import configuration, heartbeat, replica, report
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged


@staged(play, hosts="abc")
async def test_a_forgetful_master_never_deletes_data(stage: Stage) -> None:
    for name in ("one", "two"):
        await stage.made(name, buckets=4)
    await stage.until(lambda: stage.replicas() == 24)
    stage.cluster.crash(MASTER)
    await stage.open_master_over(DurableState())
    await stage.until(lambda: len(stage.master.views.unknown) == 24)
    await asyncio.sleep(60.0)
    assert stage.replicas() == 24
    assert not any(script.deletes for script in stage.scripts.values())
    status = await stage.status()
    assert (status.tables, status.tablets_unknown, status.edits) == (0, 24, 2)
    await stage.made("three")
    await stage.drop("three")
    await stage.until(lambda: stage.replicas() == 24)
    await asyncio.sleep(60.0)
    assert stage.replicas() == 24


@staged(play)
async def test_an_earlier_incarnation_is_refused_and_changes_nothing(stage: Stage) -> None:
    await stage.open()
    beat = heartbeat("x", 2, register=True, report=report(full=True, sequence=1))
    assert await stage.ask("heartbeat", beat, m.HeartbeatReply) == m.HeartbeatReply(
        stage.master.instance, False, False, (beat.instance,), stage.master.catalog.lineage.version
    )
    for register in (True, False):
        with pytest.raises(OldCopy, match="shows number 1, and master/m has seen 2"):
            await stage.ask("heartbeat", heartbeat("x", 1, register=register), m.HeartbeatReply)
    (server,) = await stage.servers()
    assert server.seqno == 2
    reply = await stage.ask("heartbeat", heartbeat("x", 3), m.HeartbeatReply)
    assert (reply.needs_register, reply.needs_full_report) == (True, True)
    reply = await stage.ask("heartbeat", heartbeat("x", 3, register=True), m.HeartbeatReply)
    assert (reply.needs_register, reply.needs_full_report) == (False, True)
    beat = heartbeat("x", 3, report=report(sequence=5))
    reply = await stage.ask("heartbeat", beat, m.HeartbeatReply)
    assert reply.needs_full_report, "an incremental report before a full one is not enough"


@staged(play)
async def test_a_restarted_master_refuses_an_old_copy_but_not_a_late_heartbeat(stage: Stage) -> None:
    await stage.open()
    await stage.ask("heartbeat", heartbeat("x", 1001, start="s", register=True), m.HeartbeatReply)
    await asyncio.sleep(1.0)
    await stage.cluster.restart(MASTER)
    for seqno in (2, 1001):
        with pytest.raises(OldCopy, match=f"shows number {seqno}, and master/m has seen 1001"):
            await stage.ask("heartbeat", heartbeat("x", seqno, start="t"), m.HeartbeatReply)
    assert await stage.servers() == ()
    reply = await stage.ask("heartbeat", heartbeat("x", 1000, start="s"), m.HeartbeatReply)
    assert reply.needs_register
    assert stage.master.incarnations.known("x") == m.ServerInstance("x", 1001, "s")


@staged(play)
async def test_a_new_incarnation_gets_the_numbers_of_all_servers(stage: Stage) -> None:
    await stage.open()
    x, y = (heartbeat(uuid, 5, register=True) for uuid in ("x", "y"))
    assert (await stage.ask("heartbeat", x, m.HeartbeatReply)).others == (x.instance,)
    assert (await stage.ask("heartbeat", y, m.HeartbeatReply)).others == (x.instance, y.instance)
    assert (await stage.ask("heartbeat", x, m.HeartbeatReply)).others == ()
    later = heartbeat("x", 6, start=x.instance.start)
    assert (await stage.ask("heartbeat", later, m.HeartbeatReply)).others == (later.instance, y.instance)


@staged(play, hosts="abc")
async def test_a_heartbeat_with_many_changes_costs_one_edit(stage: Stage) -> None:
    for script in stage.scripts.values():
        script.silent = True
    await asyncio.sleep(0.5)
    await stage.create("flights", buckets=20)
    await stage.until(lambda: stage.replicas() == 60)
    edits = (await stage.status()).edits
    for script in stage.scripts.values():
        script.silent = False
    await stage.running("flights")
    await stage.until(lambda: not stage.master.catalog.unseen)
    assert edits < (await stage.status()).edits <= edits + 3


@staged(play)
async def test_reports_of_a_server_become_durable_one_at_a_time(stage: Stage) -> None:
    await stage.open()
    beat = heartbeat("x", register=True, report=report(full=True))
    await stage.ask("heartbeat", beat, m.HeartbeatReply)
    await stage.create("flights", replicas=1)
    await stage.until(lambda: bool(stage.master.catalog.creating))
    (tablet,) = stage.master.catalog.creating
    stage.cluster.state(MASTER).commit_s = (2.0, 2.0)
    reported = report(replica(tablet, configuration("x"), "x"), sequence=1)
    beat = heartbeat("x", report=reported)
    answers = await asyncio.gather(
        *(stage.ask("heartbeat", beat, m.HeartbeatReply) for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(answer, m.HeartbeatReply) for answer in answers) == 1
    assert sum(isinstance(answer, Throttled) for answer in answers) == 4
    assert (await stage.table("flights")).state == "running"


@staged(play, hosts="abc")
async def test_the_status_shows_two_leaders_in_one_term(stage: Stage) -> None:
    await stage.made("flights")
    (tablet,) = (await stage.table("flights")).tablets
    await asyncio.sleep(1.0)
    follower = next(r for r in tablet.replicas if r.address != tablet.leader)
    server = next(stage.server(h) for h in stage.scripts if stage.server(h).uuid == follower.uuid)
    members = configuration(*(r.uuid for r in tablet.replicas))
    lie = replica(tablet.tablet, members, follower.uuid, term=tablet.term)
    beat = m.HeartbeatRequest(server.instance, report=report(lie, sequence=1000))
    await stage.ask("heartbeat", beat, m.HeartbeatReply)
    assert (await stage.status()).leader_conflicts == 1
    assert (await stage.table("flights")).tablets[0].leader == tablet.leader


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
