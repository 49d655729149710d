"""A configuration is forced on a tablet whose majority is lost, and then the hosts come back after all."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.errors import Unavailable
from tests.master.real_servers import OPTIONS, members_of, role, server, voters, with_a_tablet
from tests.master.stage import Stage, play


def test_a_side_that_goes_on_without_what_was_never_committed_is_heard_and_healed() -> None:
    """The term of who was forced to lead is far above theirs."""

    async def scenario(stage: Stage) -> None:
        tablet, survivor = await with_a_tablet(stage, "abcdefg", 5)
        leader = next(host for host in voters(stage, tablet) if role(stage, host).replicas[tablet].leads)
        kept, *others = [host for host in voters(stage, tablet) if host not in (survivor, leader)]
        lost = [leader, *others]
        for host in lost:
            stage.cluster.crash(server(host))
        await asyncio.sleep(10.0)
        core = role(stage, survivor).replicas[tablet].core
        honest = core.force_configuration

        def dies(*given: object, **more: object) -> None:
            """Who was kept beside it, between the question and the entry."""
            stage.cluster.crash(server(kept))
            honest(*given, **more)  # type: ignore[arg-type]

        core.force_configuration = dies  # type: ignore[method-assign]
        keep = tuple(role(stage, host).instance.uuid for host in (survivor, kept))
        index = core.committed_configuration.index
        request = m.UnsafeChangeRequest(keep[0], tablet, keep, index, "for a test")
        with pytest.raises(Unavailable, match="was not committed"):
            await stage.client.network.call(server(survivor), "unsafe_change", request, m.MembersReply, 25.0)
        for host in lost:
            await stage.cluster.restart(server(host))

        def healed() -> bool:
            members = members_of(stage, tablet)
            return list(members.values()) == ["voter"] * 5 and not {survivor, kept} & set(members)

        await stage.until(healed, 120.0)

    play(scenario, 0, OPTIONS)
