"""Servers that get no leases because of an operator: suspended ones, and those that are not on the allow list."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import NotFound, Unavailable
from ebla.actors.master.messages import AllowReply, AllowRequest, SuspendReply, SuspendRequest
from tests.master.stage import MASTER
from tests.master.toy_pacifica import LIMITS, PacificaStage, play
from tests.staged import staged

TIMES_S = LIMITS.grace_s + 1.0  # after which the end of a silent server is durable


@staged(play)
async def test_a_suspended_server_gets_no_lease_and_leads_nothing(stage: PacificaStage) -> None:
    tablets = await stage.opened(buckets=6)

    async def suspend(on: bool | None = True) -> SuspendReply:
        return await stage.persist(lambda: stage.ask("suspend", SuspendRequest("a", on), SuspendReply))

    (first,) = (await suspend()).servers
    assert (first.address, first.suspended, first.primaries) == ("tablet-server/a", True, 2)
    assert (await suspend()).servers[0].suspended, "it can be repeated"
    await stage.until(lambda: all(stage.primary(tablet) != "a" for tablet in tablets))
    assert not stage.server("a").lease.holds(
        stage.server("a").world.clock.monotonic(), stage.server("a").lease.number
    )
    await stage.cluster.restart(MASTER)
    await asyncio.sleep(2 * TIMES_S)
    assert all(stage.serving(tablet) == [stage.primary(tablet)] != ["a"] for tablet in tablets)
    listed = await stage.servers()
    assert [each.host for each in listed if each.suspended] == ["a"]
    with pytest.raises(Unavailable, match="has 2 live hosts"):
        await stage.create("more")
    assert not (await suspend(False)).servers[0].suspended
    toy = stage.server("a")
    await stage.until(lambda: toy.lease.holds(toy.world.clock.monotonic(), toy.lease.number))
    await stage.tablets("more", replication="pacifica")


@staged(play)
async def test_a_server_that_is_not_on_the_allow_list_is_as_if_suspended(stage: PacificaStage) -> None:
    tablets = await stage.opened(buckets=6)

    async def allow(*servers: str) -> AllowReply:
        request = AllowRequest(servers)
        return await stage.persist(lambda: stage.ask("allow_only", request, AllowReply))

    with pytest.raises(NotFound, match="there is no server 'x, y'; there are tablet-server/a, "):
        await allow("x", "y")
    assert not stage.master.catalog.allowed, "a list that allows no known server is a mistake"
    toy = stage.server("a")
    done = await allow("b", "c", "new")
    assert done.allowed == ("tablet-server/b", "tablet-server/c", "tablet-server/new")
    assert done.unknown == ("tablet-server/new",)
    assert [(each.address, each.primaries) for each in done.unlisted] == [("tablet-server/a", 2)]
    assert await allow("b", "c", "new") == done, "it can be repeated"
    await stage.until(lambda: all(stage.primary(tablet) != "a" for tablet in tablets))
    assert not toy.lease.holds(toy.world.clock.monotonic(), toy.lease.number)
    await stage.cluster.restart(MASTER)
    await asyncio.sleep(2 * TIMES_S)
    assert all(stage.serving(tablet) == [stage.primary(tablet)] != ["a"] for tablet in tablets)
    assert all("a" in stage.others(tablet) for tablet in tablets), "it keeps its replicas"
    listed = await stage.servers()
    assert [each.host for each in listed if each.suspended and each.unlisted] == ["a"]
    with pytest.raises(Unavailable, match="has 2 live hosts"):
        await stage.create("more")
    replaced = await allow("a", "c")
    assert sorted(replaced.allowed) == ["tablet-server/a", "tablet-server/c"] and not replaced.unknown
    await stage.until(lambda: toy.lease.holds(toy.world.clock.monotonic(), toy.lease.number))
    assert [each.host for each in await stage.servers() if each.suspended] == ["b"]
    assert await allow() == AllowReply((), (), ())
    await stage.tablets("more", replication="pacifica")


@staged(play)
async def test_a_new_master_gives_a_suspended_server_no_lease_before_its_first_heartbeat(
    stage: PacificaStage,
) -> None:
    await stage.opened()
    await stage.persist(lambda: stage.ask("suspend", SuspendRequest("a", True), SuspendReply))
    toy = stage.server("a")
    await stage.until(lambda: not toy.lease.holds(toy.world.clock.monotonic(), toy.lease.number))
    for host in "abc":
        stage.scripts[host].no_heartbeats = True
    await stage.cluster.restart(MASTER)
    await asyncio.sleep(2 * TIMES_S)
    assert not toy.lease.holds(toy.world.clock.monotonic(), toy.lease.number)
    assert stage.appointer.acknowledged and stage.appointer.refused, "the other servers have leases"
