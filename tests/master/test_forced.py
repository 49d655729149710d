"""A configuration is forced on a tablet without a majority, and then the lost hosts return."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec
import pytest

from ebla.actors import messages as m
from ebla.actors.deadlines import timeout
from ebla.actors.errors import OutcomeUnknown, Unavailable
from ebla.actors.replication.configuration import Configuration
from tests.master.real_servers import OPTIONS, members_of, role, server, voters, with_a_tablet
from tests.master.stage import Stage, play
from tests.staged import staged


class ForcedInVain(NamedTuple):
    """`kept` crashed before it got the configuration, `lost` were given up; none of them runs."""

    tablet: str
    survivor: str
    kept: str
    lost: list[str]
    request: m.UnsafeChangeRequest


async def forced_in_vain(stage: Stage, hosts: str) -> ForcedInVain:
    tablet, survivor = await with_a_tablet(stage, hosts, 5)
    leader = next(host for host in voters(stage, tablet) if role(stage, host).replicas[tablet].leads)
    kept, *others = [host for host in voters(stage, tablet) if host not in (survivor, leader)]
    for host in (leader, *others):
        stage.cluster.crash(server(host))
    await asyncio.sleep(10.0)
    core = role(stage, survivor).replicas[tablet].core
    honest = core.force_configuration

    def dies(*given: object, **more: object) -> None:
        """The other survivor crashes between the request and the entry."""
        stage.cluster.crash(server(kept))
        core.force_configuration = honest  # type: ignore[method-assign]
        honest(*given, **more)  # type: ignore[arg-type]

    core.force_configuration = dies  # type: ignore[method-assign]
    keep = tuple(role(stage, host).instance.uuid for host in (survivor, kept))
    index = core.committed_configuration.index
    request = m.UnsafeChangeRequest(keep[0], tablet, keep, index, "for a test")
    with pytest.raises(OutcomeUnknown, match="is not committed: too few of"):
        await force(stage, survivor, request)
    return ForcedInVain(tablet, survivor, kept, [leader, *others], request)


async def force(stage: Stage, survivor: str, request: m.UnsafeChangeRequest) -> Configuration:
    network = stage.client.network
    reply = await network.call(server(survivor), "unsafe_change", request, m.MembersReply, 25.0)
    return reply.configuration


@staged(play, 0, OPTIONS)
async def test_a_repeated_uncommitted_force_gets_the_same_answer(stage: Stage) -> None:
    """The command repeats the request after a refusal, and once got the answer that nothing is to be forced."""
    forced = await forced_in_vain(stage, "abcde")
    with pytest.raises(OutcomeUnknown, match=f"too few of tablet-server/{forced.kept} have taken it"):
        await force(stage, forced.survivor, forced.request)
    core = role(stage, forced.survivor).replicas[forced.tablet].core
    assert core.configuration.unsafe == 1, "the configuration was forced once"
    again = asyncio.ensure_future(force(stage, forced.survivor, forced.request))
    await stage.cluster.restart(server(forced.kept))
    committed = await again
    assert sorted(peer.uuid for peer in committed.peers) == sorted(forced.request.keep)
    assert committed.unsafe == 1


@staged(play, 0, OPTIONS)
async def test_a_second_force_with_fewer_survivors_is_adopted(stage: Stage) -> None:
    """The crashed survivor returns as a new member."""
    forced = await forced_in_vain(stage, "abcdefghi")
    fewer = msgspec.structs.replace(forced.request, keep=forced.request.keep[:1])

    async def taken() -> bool:
        """At first it may still know itself as the leader."""
        try:
            await force(stage, forced.survivor, fewer)
        except (Unavailable, OutcomeUnknown):
            return False
        return True

    async with timeout(20.0):
        while not await taken():
            await asyncio.sleep(1.0)

    def healed() -> bool:
        members = members_of(stage, forced.tablet)
        return list(members.values()) == ["voter"] * 5 and forced.kept not in members

    await stage.until(healed, 120.0)
    await stage.cluster.restart(server(forced.kept))
    state = role(stage, forced.kept).lifecycle.state_of
    await stage.until(lambda: state(forced.tablet) == m.DELETED, 60.0)


@staged(play, 0, OPTIONS)
async def test_a_side_without_an_uncommitted_configuration_is_healed(stage: Stage) -> None:
    """The term of the forced leader is far above theirs."""
    forced = await forced_in_vain(stage, "abcdefg")
    for host in forced.lost:
        await stage.cluster.restart(server(host))

    def healed() -> bool:
        members = members_of(stage, forced.tablet)
        gone = {forced.survivor, forced.kept}
        return list(members.values()) == ["voter"] * 5 and not gone & set(members)

    await stage.until(healed, 120.0)
