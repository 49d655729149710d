"""S30: a server in maintenance may be silent and keeps its replicas; lost replicas and failures elsewhere are repaired."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import NotFound, Unavailable
from ebla.actors.master.messages import (
    ForgetReply,
    ForgetRequest,
    MoveReplicaRequest,
)
from ebla.actors.replication.health import SILENT
from ebla.actors.tablet.server import RECORDS
from ebla.storage.errors import Corruption, InvalidArgument
from tests.master import real_servers
from tests.master.healed import OPTIONS, asked, follower, hosts_of, leader, opened, silence, spare, wake, well
from tests.master.real_servers import healed, members_of, role, server, voters, with_a_tablet
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

LONG_S = 60.0  # ten times the limit for a silent follower


def words(stage: Stage, tablet: str) -> set[str]:
    reported = stage.master.views.of(tablet).leader_report
    return set(reported.health.values()) if reported else set()


# -- on real tablet servers ----------------------------------------------------------------------------------


async def down_in_maintenance(stage: Stage) -> tuple[str, str]:
    """A tablet, and the host of one of its voters, which is in maintenance and has been silent for long."""
    tablet, down = await with_a_tablet(stage)
    before = voters(stage, tablet)
    await stage.maintain(down)
    stage.cluster.crash(server(down))
    await stage.until(lambda: SILENT in words(stage, tablet))
    await asyncio.sleep(LONG_S)
    assert members_of(stage, tablet) == dict.fromkeys(before, "voter")
    return tablet, down


@staged(play, 0, real_servers.OPTIONS)
async def test_a_silent_server_in_maintenance_keeps_its_replicas(stage: Stage) -> None:
    tablet, down = await down_in_maintenance(stage)
    index = stage.master.catalog.tablets[tablet].configuration.index
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: stage.master.views.of(tablet).leader_report is not None)
    await asyncio.sleep(LONG_S)
    assert down in voters(stage, tablet), "the next incarnation of the master knows it"
    listed = await stage.servers()
    reported = {each.address: (each.maintained, each.alive, each.uuid) for each in listed}
    assert reported[server(down)] == (True, False, ""), "and reports it without a heartbeat"
    await stage.cluster.restart(server(down))
    await stage.until(lambda: healed(stage))
    assert stage.master.catalog.tablets[tablet].configuration.index == index, "no member was changed"
    assert list(stage.master.catalog.maintained) == [server(down)], "until an operator ends it"


@staged(play, 0, real_servers.OPTIONS)
async def test_a_silent_server_is_replaced_at_the_end_of_maintenance(stage: Stage) -> None:
    tablet, down = await down_in_maintenance(stage)
    (reported,) = (await stage.maintain(down, False)).servers
    assert (reported.maintained, reported.alive, reported.replicas) == (False, False, 1)
    await stage.until(lambda: "pre_voter" in members_of(stage, tablet).values(), timeout_s=1.0)
    await stage.until(lambda: len(voters(stage, tablet)) == 3 and down not in voters(stage, tablet))


@staged(play, 0, real_servers.OPTIONS)
async def test_a_voter_that_lost_its_votes_is_replaced_during_maintenance(stage: Stage) -> None:
    tablet, lost = await with_a_tablet(stage)
    free = next(host for host in real_servers.HOSTS if host not in voters(stage, tablet))
    await stage.maintain(lost)
    stage.cluster.crash(server(lost))
    stage.cluster.state(server(lost)).rot("consensus-meta", RECORDS, tablet.encode())
    await stage.cluster.restart(server(lost))
    await stage.until(lambda: free in voters(stage, tablet) and healed(stage))
    assert lost not in members_of(stage, tablet)


@staged(play, 0, real_servers.OPTIONS)
async def test_a_replica_damaged_in_maintenance_is_copied_in_place(stage: Stage) -> None:
    tablet, damaged = await with_a_tablet(stage)
    before = members_of(stage, tablet)
    await stage.maintain(damaged)
    role(stage, damaged).replicas[tablet].fail(Corruption("a failed checksum"))
    await stage.until(lambda: healed(stage) and role(stage, damaged).replicas[tablet].state == "running")
    assert members_of(stage, tablet) == before


@staged(play, 0, real_servers.OPTIONS)
async def test_a_replica_behind_the_log_is_replaced_during_maintenance(stage: Stage) -> None:
    short = {"log_retained_entries_max": 20, "memtable_bytes": 2_000}
    tablet, down = await with_a_tablet(stage, **short)
    await stage.maintain(down)
    stage.cluster.crash(server(down))
    await stage.until(lambda: SILENT in words(stage, tablet))
    table = await real_servers.table(stage)
    for number in range(200):
        await table.upsert([{"id": number, "note": "x" * 100}])
    await stage.until(lambda: len(voters(stage, tablet)) == 3 and down not in voters(stage, tablet))


# -- the notice ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [None, "master.maintain.before_edit", "master.maintain.after_edit"])
@staged(play, 0, OPTIONS)
async def test_a_server_in_maintenance_gets_no_new_replicas(stage: Stage, point: str | None) -> None:
    (tablet,) = await opened(stage, "abcde")
    held, name = hosts_of(stage, tablet), spare(stage, tablet)
    revived = stage.revive_master()
    if point is not None:
        stage.crash_at(point)
    (reported,) = (await stage.maintain(name)).servers
    assert (reported.address, reported.maintained, reported.replicas) == (server(name), True, 0)
    edits = stage.master.log.last_txid
    assert (await stage.maintain(name)).servers[0].maintained and stage.master.log.last_txid == edits
    await stage.until(lambda: all(stage.alive(each) for each in "abcde"))
    await stage.made("more", buckets=4)
    assert all(name not in hosts_of(stage, each) for each in stage.master.catalog.tablets)
    with pytest.raises(InvalidArgument, match="is in maintenance and gets nothing new"):
        await asked(stage, "move_replica", MoveReplicaRequest(tablet, held[0], name))
    silence(stage, gone := follower(stage, tablet))
    await stage.until(lambda: well(stage) and gone not in hosts_of(stage, tablet))
    assert name not in hosts_of(stage, tablet)
    assert not (await stage.maintain(stage.server(name).uuid, False)).servers[0].maintained
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, hosts_of(stage, tablet)[0], name))
    await stage.until(lambda: name in hosts_of(stage, tablet) and well(stage))
    assert revived[0] == (point is not None)
    stage.watcher.cancel()


@staged(play, options=OPTIONS, hosts="abc")
async def test_a_table_that_needs_the_server_in_maintenance_is_refused(stage: Stage) -> None:
    await stage.maintain("c")
    await asyncio.sleep(5.0)
    with pytest.raises((InvalidArgument, Unavailable), match="3 replicas"):
        await stage.create("flights")


@staged(play, 0, OPTIONS)
async def test_a_move_waits_for_the_server_in_maintenance(stage: Stage) -> None:
    """Otherwise only two voters would not be silent, or the silent one would be removed."""
    (tablet,) = await opened(stage)
    first, second = [host for host in hosts_of(stage, tablet) if host != leader(stage, tablet)]
    target = spare(stage, tablet)
    await stage.maintain(first)
    silence(stage, first)
    await stage.until(lambda: SILENT in words(stage, tablet))
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, second, target))
    await asyncio.sleep(20.0)
    assert hosts_of(stage, tablet) == ["a", "b", "c", "d"]
    wake(stage, first)
    await stage.until(lambda: well(stage))
    assert hosts_of(stage, tablet) == sorted({"a", "b", "c", "d"} - {second})


@staged(play, options=OPTIONS, hosts="abcd")
async def test_maintenance_of_an_unknown_host_is_refused_and_ends_when_forgotten(stage: Stage) -> None:
    with pytest.raises(NotFound, match="there is no server 'nowhere'; there are tablet-server/a, "):
        await stage.maintain("nowhere")
    await stage.maintain("d")
    stage.cluster.crash(server("d"))
    await asyncio.sleep(5.0)
    assert (await stage.maintain("d", None)).servers[0].maintained
    await stage.persist(lambda: stage.ask("forget_server", ForgetRequest("d"), ForgetReply))
    assert not stage.master.catalog.maintained
    await stage.cluster.restart(MASTER)
    await stage.until(lambda: stage.alive("a"))
    assert not stage.master.catalog.maintained
    with pytest.raises(NotFound):
        await stage.maintain("d")
