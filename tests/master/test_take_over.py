"""A successor continues its predecessor's work: servers, errands, half-done changes."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.errors import NotActive, OldCopy
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.tablet.engine.replica import Replica
from ebla.storage.errors import OverLimit
from ebla.storage.rows.alteration import AddColumn, DropColumn
from ebla.storage.schema import Column
from tests.master.builders import create_request
from tests.master.group_stage import MASTER, GroupStage, play
from tests.master.test_crashes import POINTS
from tests.staged import staged

CHANGES = [
    point for point in POINTS if not any(word in point for word in ("reserve", "forget", "checkpoint"))
]
ADD = AddColumn(Column("x", "int64"))


def all_replicas(stage: GroupStage) -> list[Replica]:
    servers = [stage.role(f"tablet-server/{host}") for host in stage.hosts]
    return [replica for server in servers for replica in server.replicas.values()]


@pytest.mark.parametrize("point", CHANGES)
def test_a_table_lives_and_dies_in_full_whichever_durable_step_a_master_is_replaced_at(point: str):
    async def scenario(stage: GroupStage) -> None:
        first = await stage.ready()
        stage.points.arm(first, point, lambda: stage.cluster.crash(first))
        made = await stage.create("flights", buckets=3)
        assert (await stage.running("flights")).table == made.table
        for version, change in enumerate((ADD, DropColumn("x")), 1):
            info = await stage.alter(change, request_id=f"version {version}")
            assert info.schema.version == version
            assert (await stage.alter(change, request_id=f"version {version}")).schema == info.schema
            while (await stage.persist(stage.table)).applied_version < version:
                await asyncio.sleep(0.1)
        await stage.until(lambda: [each.rows.schema for each in all_replicas(stage)] == [info.schema] * 9)
        await stage.drop("flights", reserve_s=3600.0)
        assert (await stage.recall(made.table)).table == made.table
        await stage.drop("flights", "for good")
        await stage.until(lambda: stage.replicas() == 0)
        assert not stage.cluster.alive(first), f"{point} was not reached"
        assert stage.served == [first, stage.other(first)]
        catalog = stage.role(stage.other(first)).active_term.master.catalog
        await stage.until(lambda: len(catalog.tablets) == 0)
        require_sound(catalog)

    play(scenario, seed=POINTS.index(point))


@pytest.mark.parametrize("point", ["before_epoch", "after_epoch"])
@staged(play, masters=3)
async def test_a_successor_that_dies_during_its_take_over_is_replaced(stage: GroupStage, point: str) -> None:
    first = await stage.ready()
    await stage.create("flights")
    for master in stage.masters:
        if master != first:
            stage.points.arm(
                master,
                f"master.take_over.{point}",
                lambda master=master: (stage.points.disarm_all(), stage.cluster.crash(master))[0],
            )
    stage.cluster.crash(first)
    assert await stage.names() == ["flights"]
    assert sum(stage.cluster.alive(master) for master in stage.masters) == 1


@staged(play)
async def test_every_server_sends_its_first_full_report_to_a_successor(stage: GroupStage) -> None:
    first = await stage.ready()
    await stage.made("flights", buckets=2)
    standby = stage.other(first)
    reported: dict[str, list[m.HeartbeatRequest]] = {master: [] for master in stage.masters}
    for master in stage.masters:
        role = stage.role(master)
        role.heartbeat = recording(role.heartbeat, reported[master])
    await asyncio.sleep(3.0)
    assert reported[standby], "a standby gets heartbeats"
    assert all(beat.report is None and beat.registration is None for beat in reported[standby])
    stage.cluster.crash(first)
    await stage.ready()
    await asyncio.sleep(1.0)
    for host in stage.hosts:
        uuid = stage.role(f"tablet-server/{host}").instance.uuid
        mine = [beat for beat in reported[standby] if beat.instance.uuid == uuid]
        assert sum(beat.registration is not None for beat in mine) == 1
        assert sum(beat.report is not None and not beat.report.incremental for beat in mine) == 1
    (tablet, _) = (await stage.table("flights")).tablets
    assert tablet.leader is not None


def recording(handler, heard: list[m.HeartbeatRequest]):
    async def heartbeat(request: m.HeartbeatRequest) -> m.HeartbeatReply:
        heard.append(request)
        return await handler(request)

    return heartbeat


@staged(play)
async def test_a_successor_counts_no_server_as_dead_during_its_grace_period(stage: GroupStage) -> None:
    first = await stage.ready()
    await stage.made("flights")
    silent = "tablet-server/a"
    stage.cluster.crash(silent)
    stage.cluster.crash(first)
    taken_over = await stage.active()
    began = stage.cluster.loop.time()

    async def alive() -> bool:
        (tablet,) = (await stage.table("flights")).tablets
        return next(replica.alive for replica in tablet.replicas if replica.address == silent)

    while await alive():
        await asyncio.sleep(0.05)
    late_s = 0.1  # after the master became active, `began` is read
    assert stage.cluster.loop.time() - began >= MASTER.unresponsive_s - late_s
    assert stage.serving() == [taken_over]


@staged(play)
async def test_a_standby_and_a_new_active_master_refuse_an_old_copy(stage: GroupStage) -> None:
    first = await stage.ready()
    standby = stage.other(first)
    known = m.ServerInstance("server", 5, "this start")
    with pytest.raises(NotActive):
        await stage.at(standby, "heartbeat", m.HeartbeatRequest(known), m.HeartbeatReply)
    old = m.HeartbeatRequest(m.ServerInstance("server", 4, "another start"))
    with pytest.raises(OldCopy):
        await stage.at(standby, "heartbeat", old, m.HeartbeatReply)
    stage.cluster.crash(first)
    await stage.until(lambda: stage.serving() == [standby])
    with pytest.raises(OldCopy):
        await stage.at(standby, "heartbeat", old, m.HeartbeatReply)


@staged(play)
async def test_a_master_without_a_lease_sends_no_errands(stage: GroupStage) -> None:
    first = await stage.ready()
    await stage.made("flights")
    stage.cut_from_journals(first)
    await stage.until(lambda: not stage.serving())
    active_term = stage.role(first).active_term
    before = stage.cluster.network._exchanges
    with pytest.raises(Exception, match="lease of the active master has run out"):
        await active_term.master.world.network.call(
            "tablet-server/a", "status", m.Empty(), m.ServerState, 1.0
        )
    assert stage.cluster.network._exchanges == before


@pytest.mark.parametrize("seed", range(3))
@staged(play)
async def test_a_retry_reports_a_change_under_way_at_the_loss_of_the_lease_correctly(
    stage: GroupStage, seed: int
) -> None:
    """The active master reaches only one journal node, so at most that node has the edit."""
    first = await stage.ready()
    for node in stage.journals[1:]:
        stage.cluster.network.cut(first, node)
    request = create_request("flights")
    asking = asyncio.ensure_future(stage.at(first, "create_table", request, m.TableInfo, 30.0))
    with pytest.raises(NotActive):
        await asking
    made = await stage.create("flights")
    stage.cluster.network.heal()
    assert (await stage.create("flights")).table == made.table
    assert await stage.names() == ["flights"]


@pytest.mark.parametrize("seed", range(3))
@staged(play, hosts="abcdef", master=replace(MASTER, replicas_of_server_max=5))
async def test_a_create_is_not_refused_before_servers_have_reported(stage: GroupStage, seed: int) -> None:
    await stage.made("full", buckets=20, replicas=1)
    for number in range(3):
        first = await stage.ready()
        stage.cluster.crash(first)
        await stage.create(f"table {number}", buckets=2, replicas=1)
        await stage.cluster.restart(first)
        await asyncio.sleep(3.0)
    await stage.ready()
    await asyncio.sleep(MASTER.unresponsive_s)
    with pytest.raises(OverLimit, match="6 live hosts, which may have 30"):
        await stage.create("too much", buckets=20, replicas=1)


@staged(play)
async def test_a_take_over_without_a_timely_lease_is_repeated(stage: GroupStage) -> None:
    """Its requests to two of three journal nodes were lost, and it would wait long for their answers."""
    first = await stage.ready()
    network, second = stage.cluster.network, stage.other(first)
    slow = replace(stage.journal, write_timeout_s=500.0, recovery_timeout_s=500.0)
    stage.role(second).options = replace(stage.options, journal=slow)

    def cut() -> None:
        for node in stage.journals[:2]:
            network.cut(second, node)

    stage.points.arm(second, "master.take_over.before_epoch", cut)
    stage.cluster.crash(first)
    await stage.until(lambda: stage.points.fired["master.take_over.before_epoch"] == 2)
    await asyncio.sleep(4.0)
    network.heal()
    before = stage.cluster.loop.time()
    assert await stage.active() == second
    assert stage.cluster.loop.time() - before < 10.0
