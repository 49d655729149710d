"""A server with an uncommitted addition to a tablet keeps its copy."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ebla.actors.master.messages import AddReplicaRequest
from ebla.actors.messages.repair import DeleteTabletRequest
from ebla.actors.replication.health import RUNNING
from tests.master.healed import asked
from tests.master.real_servers import HOSTS, OPTIONS, members_of, role, server, voters, with_a_tablet
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

_decode = msgspec.msgpack.Decoder(DeleteTabletRequest).decode
SLOW_S = 18.0  # of the followers' disks: the addition is pending for this time


@pytest.mark.parametrize("leader_is_heard", [True, False])
@pytest.mark.parametrize("seed", range(2))
@staged(play, options=OPTIONS)
async def test_a_member_with_a_pending_addition_is_copied_once_and_stays(
    stage: Stage, seed: int, leader_is_heard: bool
) -> None:
    tablet, _ = await with_a_tablet(stage, election_s_min=16.0)
    # A leader is patient with followers whose disks are slow.
    deletions: list[DeleteTabletRequest] = []
    stage.cluster.network.tap("delete_tablet", lambda data: deletions.append(_decode(data)))
    new = next(host for host in HOSTS if host not in voters(stage, tablet))
    uuid = role(stage, new).instance.uuid
    leader = stage.master.views.of(tablet).leader
    leading = next(host for host in HOSTS if role(stage, host).instance.uuid == leader)
    followers = [host for host in voters(stage, tablet) if host != leading]
    for host in followers:
        stage.cluster.state(server(host)).commit_s = (SLOW_S, SLOW_S)
    adding = asyncio.ensure_future(asked(stage, "add_replica", AddReplicaRequest(tablet, new, "non_voter")))
    while role(stage, leading).replicas[tablet].core.configuration.peer(uuid) is None:
        await asyncio.sleep(0.001)  # before the leader reports it
    if not leader_is_heard:
        stage.cluster.network.cut(MASTER, server(leading))
    await stage.until(lambda: role(stage, new).lifecycle.state_of(tablet) == RUNNING)
    assert new not in members_of(stage, tablet)
    await asyncio.sleep(5.0)
    assert bool(deletions) != leader_is_heard, (
        "a master with only the leader's older report is refused by the server"
    )
    assert role(stage, new).lifecycle.state_of(tablet) == RUNNING
    for host in followers:
        stage.cluster.state(server(host)).commit_s = (0.001, 0.001)
    stage.cluster.network.heal()
    await adding
    await stage.until(lambda: new in members_of(stage, tablet))
    assert (role(stage, new).lifecycle.state_of(tablet), role(stage, new).copies.done) == (RUNNING, 1)
