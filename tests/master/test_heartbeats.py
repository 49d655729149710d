"""Heartbeats (scenario S37), and actions that a master without reports must not take (S18)."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import OldCopy, Throttled
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.chaos.simulation.medium import DurableState
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


@staged(play, hosts="abc")
async def test_a_restarted_master_requests_one_full_report_of_every_server(stage: Stage) -> None:
    await stage.made("flights", buckets=3)
    await asyncio.sleep(2.0)
    script = stage.scripts["a"]
    script.beats.clear()
    script.replies.clear()
    await stage.cluster.restart(MASTER)
    info = await stage.table("flights")
    assert info.state == "running"
    assert [tablet.leader for tablet in info.tablets] == [None] * 3
    assert all(len(tablet.replicas) == 3 for tablet in info.tablets)
    await stage.until(
        lambda: all(
            t.leader
            for t in stage.master.answers.table(
                stage.master.catalog.named("flights"), stage.master.world.clock.monotonic()
            ).tablets
        )
    )
    await asyncio.sleep(2.0)
    assert sum(beat.registration is not None for beat in script.beats) == 1
    assert sum(not beat.report.incremental for beat in script.beats) == 1
    assert [reply.needs_register for reply in script.replies].count(True) == 1


@staged(play, hosts="abc")
async def test_a_leader_change_is_reported_without_an_edit(stage: Stage) -> None:
    await stage.made("flights")
    await stage.until(lambda: stage.replicas() == 3)
    await asyncio.sleep(1.0)
    (tablet,) = (await stage.table("flights")).tablets
    edits = (await stage.status()).edits
    other = next(r for r in tablet.replicas if r.address != tablet.leader)
    stage.raft.elect(tablet.tablet, other.uuid)
    await asyncio.sleep(2.0)
    (after,) = (await stage.table("flights")).tablets
    assert (after.leader, after.term) == (other.address, 2)
    assert (await stage.status()).edits == edits


@staged(play, hosts="abcd")
async def test_a_configuration_change_is_adopted_and_survives_a_restart(stage: Stage) -> None:
    await stage.made("flights")
    await stage.until(lambda: stage.replicas() == 3)
    (tablet,) = (await stage.table("flights")).tablets
    spare = next(host for host in stage.scripts if host not in stage.holders(tablet.tablet))
    out, *stay = tablet.replicas
    peers = [Peer(r.uuid, r.address) for r in stay]
    changed = Configuration((*peers, Peer(stage.server(spare).uuid, f"tablet-server/{spare}")), index=7)
    copied = next(iter(stage.server(stage.holders(tablet.tablet)[0]).replicas.values()))
    await stage.server(spare).put(copied)
    stage.raft.configurations[tablet.tablet] = changed
    await stage.until(lambda: stage.master.catalog.tablets[tablet.tablet].configuration == changed)
    await stage.cluster.restart(MASTER)
    record = stage.master.catalog.tablets[tablet.tablet]
    assert record.configuration == changed and [peer.uuid for peer in record.former] == [out.uuid]
    await stage.drop("flights")
    await stage.until(lambda: stage.replicas() == 0)  # also on the former member


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
    (server,) = (await stage.ask("list_servers", m.Empty(), m.ListServersReply)).servers
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
    assert (await stage.ask("list_servers", m.Empty(), m.ListServersReply)).servers == ()
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
async def test_a_repeated_or_late_report_does_no_harm(stage: Stage) -> None:
    await stage.made("flights")
    (tablet,) = (await stage.table("flights")).tablets
    leader = next(r for r in tablet.replicas if r.address == tablet.leader)
    host = next(h for h in stage.scripts if stage.server(h).uuid == leader.uuid)
    await asyncio.sleep(1.0)
    edits = (await stage.status()).edits
    for beat in list(stage.scripts[host].beats):
        await stage.ask("heartbeat", beat, m.HeartbeatReply)
    assert (await stage.table("flights")).tablets[0].leader == tablet.leader
    assert (await stage.status()).edits == edits


def test_reports_arrive_despite_lost_messages():
    async def scenario(stage: Stage) -> None:
        await stage.open("a", "b", "c")
        stage.cluster.network.drop_probability = 0.3
        await stage.persist(lambda: stage.create("flights", buckets=10))
        await stage.running("flights")
        await stage.until(lambda: not stage.master.catalog.unseen)
        assert stage.replicas() == 30

    for seed in range(3):
        play(scenario, seed)


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


@staged(play, hosts="abcd")
async def test_a_silent_server_gets_no_new_replicas(stage: Stage) -> None:
    stage.scripts["d"].silent = True
    await stage.until(lambda: not stage.alive("d"))
    await stage.made("flights", buckets=8)
    assert not stage.scripts["d"].creates
    servers = (await stage.ask("list_servers", m.Empty(), m.ListServersReply)).servers
    assert [server.alive for server in servers] == [True, True, True, False]


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
