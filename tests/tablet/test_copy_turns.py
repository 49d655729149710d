"""If more replicas need a copy than the limit of requests, each gets its turn."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from ebla.actors.replication.configuration import Peer
from ebla.actors.tablet.copy import recovery
from tests.tablet.copies import entomb, until
from tests.tablet.harness import TABLET, Group, simulated


@simulated()
async def test_replicas_without_a_request_yet_go_before_those_that_wait(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, int] = {}

    async def call(self: recovery.Recovery, peer: Peer, request: m.StartCopyRequest) -> float:
        asked[request.tablet] = asked.get(request.tablet, 0) + 1
        await self.world.clock.sleep(1.0)
        return recovery.RETRY_S_MIN

    monkeypatch.setattr(recovery.Recovery, "_call", call)
    leader, target, _ = await group.roles()
    tablets = [TABLET, *(f"{n:032x}" for n in range(1, 5 * recovery.PEER_CALLS_MAX))]
    for tablet in tablets[1:]:
        await group.create(tablet)
        await group.lead(leader, tablet)
    for tablet in tablets:
        await entomb(group, target, tablet)
    await until(group, lambda: len(asked) == len(tablets), "each copy was requested", 20.0)
    assert max(asked.values()) <= 3, "in turn"
