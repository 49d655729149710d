"""Where more replicas need a copy than may be asked for at a time, each has its turn."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from ebla.actors.replication.configuration import Peer
from ebla.actors.tablet.copy import recovery
from tests.tablet.copies import entomb, until
from tests.tablet.harness import TABLET, Group, simulate
from tests.tablet.test_recovery import lead


def test_who_was_told_to_wait_lets_those_go_first_who_were_not_asked_for_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, int] = {}

    async def call(self: recovery.Recovery, peer: Peer, request: m.StartCopyRequest) -> float:
        asked[request.tablet] = asked.get(request.tablet, 0) + 1
        await self.world.clock.sleep(1.0)
        return recovery.RETRY_S_MIN

    monkeypatch.setattr(recovery.Recovery, "_call", call)

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        tablets = [TABLET, *(f"{n:032x}" for n in range(1, 5 * recovery.PEER_CALLS_MAX))]
        for tablet in tablets[1:]:
            await group.create(tablet)
            await lead(group, leader, tablet)
        for tablet in tablets:
            await entomb(group, target, tablet)
        await until(group, lambda: len(asked) == len(tablets), "each was asked for", 20.0)
        assert max(asked.values()) <= 3, "in turn"

    simulate(scenario)
