"""Tables heal: servers fail, are lost and return, masters crash, and every tablet gets its replicas on healthy servers."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from ebla.actors.errors import AlreadyInProgress
from ebla.actors.fault_points import MEMBER_POINTS
from ebla.actors.replication.health import LOST
from tests.master.healed import (
    OPTIONS,
    configuration,
    follower,
    has_left,
    hosts_of,
    leader,
    opened,
    silence,
    spare,
    wake,
    well,
)
from tests.master.stage import Stage, play
from tests.staged import staged


@pytest.mark.parametrize("seed", range(3))
@staged(play, options=OPTIONS)
async def test_replicas_of_a_silent_server_are_replaced_and_become_tombstones(
    stage: Stage, seed: int
) -> None:
    tablets = await opened(stage, "abcde", buckets=6)
    silence(stage, "b")
    held = [tablet for tablet in tablets if "b" in hosts_of(stage, tablet)]
    assert held
    await stage.until(lambda: has_left(stage, "b", tablets))
    assert all(stage.master.catalog.tablets[tablet].former for tablet in held)
    wake(stage, "b")
    await stage.until(lambda: well(stage))
    assert {r.state for t, r in stage.server("b").replicas.items() if t in held} == {"deleted"}
    assert all(r.configuration_index >= 2 and r.dest_uuid for r in stage.scripts["b"].tombstones)
    counts = [sum(h in hosts_of(stage, tablet) for tablet in tablets) for h in "acde"]
    assert max(counts) - min(counts) <= 1, "concurrent choices are spread evenly"
    stage.cluster.crash("tablet-server/b")
    await stage.drop("flights")
    await asyncio.sleep(20.0)
    assert stage.master.catalog.ended, "the master waits for a server with tombstones"
    await stage.cluster.restart("tablet-server/b")
    await stage.until(lambda: stage.replicas() == 0 and not stage.master.catalog.tablets)


@staged(play, 0, OPTIONS)
async def test_on_three_hosts_a_server_with_a_lost_directory_gets_its_replicas_back(stage: Stage) -> None:
    tablets = await opened(stage, "abc", buckets=4)
    old = stage.server("c").uuid
    stage.cluster.crash("tablet-server/c")
    stage.cluster.lose_disk("tablet-server/c")
    await stage.cluster.restart("tablet-server/c")
    stage.raft.unhealthy[old] = LOST
    for here in stage.raft.existing.values():
        here.pop(old, None)
    await stage.until(lambda: well(stage))
    new = stage.server("c").uuid
    assert new != old
    assert all(configuration(stage, tablet).peer(new) for tablet in tablets)
    assert all(not stage.master.catalog.tablets[tablet].tombstones for tablet in tablets)


@pytest.mark.parametrize("point", [point for point in MEMBER_POINTS if point.endswith("_rpc")])
@staged(play, 0, OPTIONS)
async def test_a_restarted_master_continues_its_repairs(stage: Stage, point: str) -> None:
    tablets = await opened(stage, buckets=4)
    revived = stage.revive_master()
    stage.crash_at(point)
    silence(stage, "b")
    await stage.until(lambda: has_left(stage, "b", tablets))
    wake(stage, "b")
    await stage.until(lambda: well(stage) and revived[0] == 1)
    stage.watcher.cancel()


@staged(play, 0, OPTIONS)
async def test_a_leader_that_refuses_is_asked_with_growing_pauses(stage: Stage) -> None:
    (tablet,) = await opened(stage)
    here = leader(stage, tablet)
    stage.scripts[here].refuses = AlreadyInProgress("another change", tablet=tablet)
    silence(stage, follower(stage, tablet))
    await asyncio.sleep(20.0)
    asked = stage.scripts[here].changes
    index = configuration(stage, tablet).index
    assert {request.configuration_index for request in asked} == {index}, "compare-and-set"
    assert 5 <= len(asked) <= 40, "pauses of up to a second"
    assert len({request.changes for request in asked}) == 1, "always the same server"
    stage.scripts[here].refuses = None
    await stage.until(lambda: len(hosts_of(stage, tablet)) == 3 and not stage.master.views.unsettled)


@staged(play, 0, OPTIONS)
async def test_a_stray_replica_becomes_a_tombstone_and_an_unknown_one_stays(stage: Stage) -> None:
    (tablet,) = await opened(stage)
    outside = spare(stage, tablet)
    replica = stage.server(follower(stage, tablet)).replicas[tablet]
    await stage.server(outside).put(replica)
    unknown = replace(replica.request, tablet="mystery")
    await stage.server(outside).put(replace(replica, request=unknown))
    await stage.until(lambda: stage.server(outside).replicas[tablet].state == "deleted")
    assert stage.server(outside).replicas["mystery"].state == "running"
    await stage.drop("flights")
    await stage.until(lambda: stage.replicas() == 1)
