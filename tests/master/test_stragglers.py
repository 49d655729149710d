"""A tombstone on a server that is down while its table is dropped (scenario S19)."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.master.messages import MoveReplicaRequest
from ebla.actors.messages.repair import DeleteTabletRequest
from ebla.actors.tablet.lifecycle.deletion import Deletion
from tests.master.healed import asked
from tests.master.real_servers import HOSTS, OPTIONS, healed, open_stage, role, server, voters
from tests.master.stage import MASTER, Stage, play
from tests.staged import staged

DELETIONS_MAX = 3


@pytest.mark.parametrize("takes_over", [False, True])
@staged(play, 0, OPTIONS)
async def test_a_tombstone_is_deleted_with_few_requests_when_its_server_returns(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, takes_over: bool
) -> None:
    asked_of: list[tuple[str, bool]] = []
    honest = Deletion.delete

    async def delete(self: Deletion, request: DeleteTabletRequest) -> None:
        asked_of.append((self.world.address, request.tombstone))
        await honest(self, request)

    monkeypatch.setattr(Deletion, "delete", delete)
    await open_stage(stage)
    (tablet,) = await stage.tablets("flights")
    await stage.until(lambda: len(voters(stage, tablet)) == 3 and healed(stage))
    source = next(
        peer
        for peer in stage.master.catalog.tablets[tablet].configuration.peers
        if peer.uuid != stage.master.views.of(tablet).leader
    )
    free = next(host for host in HOSTS if host not in voters(stage, tablet))
    await asked(stage, "move_replica", MoveReplicaRequest(tablet, source.uuid, free))
    host = source.address.rpartition("/")[2]
    await stage.until(lambda: host not in voters(stage, tablet) and healed(stage))
    assert role(stage, host).lifecycle.state_of(tablet) == "deleted"
    stage.cluster.crash(server(host))
    await stage.drop("flights")
    await asyncio.sleep(30.0)
    if takes_over:
        await stage.cluster.restart(MASTER)
    asked_of.clear()
    await stage.cluster.restart(server(host))
    await stage.until(lambda: not role(stage, host).lifecycle.all())
    await stage.until(lambda: len(stage.master.catalog.tablets) == 0)
    here = [tombstone for address, tombstone in asked_of if address == server(host)]
    assert here and len(here) <= DELETIONS_MAX and not any(here)
    asked_of.clear()
    await asyncio.sleep(120.0)
    assert asked_of == [], "no request after the deletion"
