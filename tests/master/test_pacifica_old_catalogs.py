"""PacificA tablets under an older copy of the catalog that an operator has accepted: real tablet servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.errors import Unavailable
from ebla.actors.master.messages import MoveReplicaRequest
from ebla.actors.messages.diagnosis import ForceRequest, TabletEvidence
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import OldCopy
from tests.master.healed import asked
from tests.master.real_servers import OPTIONS, members_of, open_stage, role, server, table
from tests.master.stage import MASTER, Stage, play
from tests.master.test_old_catalogs import newest
from tests.master.test_pacifica_servers import LATER, host_of, leads, rows, stored, with_rows
from tests.staged import staged

TIMES_S = 2 * OPTIONS.detector.grace_s + OPTIONS.settle_s + 2.0
ALONE = [{"id": n, "note": "alone"} for n in range(100, 110)]


def copied(stage: Stage) -> DurableState:
    return stage.cluster.state(MASTER).copy()


async def restored(stage: Stage, copy: DurableState) -> None:
    """The copy is in the place of the newest catalog, and accepted."""
    await stage.until(lambda: newest(stage).changes > 0)
    start = newest(stage).start
    stage.cluster.crash(MASTER)
    await stage.open_master_over(copy, replace(OPTIONS, accepts=(start,)))


async def another_primary(stage: Stage, tablet: str, first: str) -> None:
    """The primary dies, another one leads, and the former is a learner."""
    stage.cluster.crash(server(first))
    await stage.until(lambda: host_of(stage, tablet) != first and leads(stage, tablet))
    await stage.until(lambda: members_of(stage, tablet)[first] == "pre_voter")


def why(stage: Stage, tablet: str) -> str:
    return stage.master.appointer.planner.why_in_doubt(stage.master.world.clock.monotonic(), tablet)


def leaders(stage: Stage, tablet: str) -> list[str]:
    alive = [host for host in "abcd" if stage.cluster.alive(server(host))]
    held = [(host, role(stage, host).replicas.get(tablet)) for host in alive]
    return [host for host, replica in held if replica is not None and replica.leads]


@pytest.mark.parametrize("seed", range(3))
def test_tablets_serve_all_rows_once_every_member_of_the_last_ballot_has_shown_it(seed: int):
    async def scenario(stage: Stage) -> None:
        tablet, flights = await with_rows(stage, "abc", 60.0)
        copy, first = copied(stage), host_of(stage, tablet)
        await another_primary(stage, tablet, first)
        await flights.upsert(LATER)
        await stage.cluster.restart(server(first))
        await stage.until(lambda: members_of(stage, tablet) == dict.fromkeys("abc", "voter"))
        last = stored(stage, tablet)
        await restored(stage, copy)
        assert stored(stage, tablet).index < last.index
        await stage.until(lambda: leads(stage, tablet))
        known = stored(stage, tablet)
        assert known.index > 1 << 20 and known.peers == last.peers
        assert await rows(flights) == 30
        await flights.upsert(ALONE)
        await until_seen_by(stage, "abc")
        await stage.cluster.restart(MASTER)
        await stage.until(lambda: leads(stage, tablet) and not why(stage, tablet))
        assert await rows(flights) == 40

    play(scenario, seed, OPTIONS)


async def until_seen_by(stage: Stage, hosts: str) -> None:
    await stage.until(
        lambda: all(role(stage, host).identity.catalog.version == newest(stage) for host in hosts)
    )


@staged(play, 0, OPTIONS)
async def test_members_that_the_older_catalog_does_not_know_are_followed(stage: Stage) -> None:
    tablet, flights = await with_rows(stage, "abcd", 60.0, replicas=2)
    copy = copied(stage)
    first = list(members_of(stage, tablet))
    for host, spare in zip(first, [each for each in "abcd" if each not in first], strict=True):
        await asked(stage, "move_replica", MoveReplicaRequest(tablet, host, spare))
        await stage.until(lambda host=host: host not in members_of(stage, tablet), 200)
        await stage.until(lambda: list(members_of(stage, tablet).values()) == ["voter"] * 2, 200)
    await flights.upsert(LATER)
    last = members_of(stage, tablet)
    await restored(stage, copy)
    assert not set(members_of(stage, tablet)) & set(last)
    await stage.until(lambda: leads(stage, tablet))
    assert members_of(stage, tablet) == last and await rows(flights) == 30


@staged(play, 0, OPTIONS)
async def test_a_tablet_is_in_doubt_while_a_member_may_have_led_a_later_ballot(stage: Stage) -> None:
    """With `min_members` 1 the last primary was alone: only it has the last rows, and the copy does not know its ballot."""
    tablet, flights = await with_rows(stage, "abcd", 60.0, min_members=1)
    (raft,) = await stage.tablets("rafts", buckets=1)
    copy, members = copied(stage), list(members_of(stage, tablet))
    first = host_of(stage, tablet)
    others = [host for host in members if host != first]
    for host in others:
        stage.cluster.crash(server(host))
    await stage.until(lambda: list(members_of(stage, tablet).values()).count("voter") == 1)
    await flights.upsert(LATER)
    stage.cluster.crash(server(first))
    for host in others:
        await stage.cluster.restart(server(host))
    await restored(stage, copy)
    await asyncio.sleep(4 * TIMES_S)
    assert leaders(stage, tablet) == [] and stored(stage, tablet).index == 1
    assert f"its replica has not been seen at tablet-server/{first}" in why(stage, tablet)
    (place,) = (await stage.table()).tablets
    assert place.in_doubt == why(stage, tablet)
    assert leaders(stage, raft), "other tables work"
    await stage.cluster.restart(server(first))
    await stage.until(lambda: leads(stage, tablet))
    assert host_of(stage, tablet) == first and await rows(flights) == 30
    assert (await stage.table()).tablets[0].in_doubt == ""


def play_forced(act: Callable[[Stage, str, str, ForceRequest], Awaitable[None]]) -> None:
    """A member of the last ballot is lost for good, and an operator goes on with another one."""

    async def scenario(stage: Stage) -> None:
        tablet, flights = await with_rows(stage, "abcd", 60.0)
        copy, first = copied(stage), host_of(stage, tablet)
        await another_primary(stage, tablet, first)
        await flights.upsert(LATER)
        survivor = host_of(stage, tablet)
        uuid = role(stage, survivor).instance.uuid
        await restored(stage, copy)
        known = stored(stage, tablet)
        request = ForceRequest(tablet, uuid, known.index, known.unsafe, "ann@desk", 0, 0)
        await act(stage, tablet, first, request)
        await stage.until(lambda: leads(stage, tablet) and members_of(stage, tablet)[survivor] == "voter")
        await stage.until(lambda: list(members_of(stage, tablet).values()).count("voter") >= 2, 300)
        assert await rows(flights) == 30
        await flights.upsert(ALONE)

    play(scenario, 0, OPTIONS)


def test_an_operator_goes_on_without_a_member_that_is_lost():
    async def act(stage: Stage, tablet: str, first: str, request: ForceRequest) -> None:
        await stage.until(lambda: stage.master.servers.get(request.survivor) is not None)
        with pytest.raises(Unavailable, match="not every server has shown its replica"):
            await stage.ask("force_primary", request, m.MembersReply)
        await asyncio.sleep(TIMES_S)
        found = await stage.ask("tablet_evidence", m.TabletRequest(tablet), TabletEvidence)
        assert f"not been seen at tablet-server/{first}" in found.in_doubt
        reply = await stage.ask("force_primary", request, m.MembersReply)
        assert reply.configuration.unsafe == 1 and reply.configuration.index > 1 << 20
        again = await stage.ask("force_primary", request, m.MembersReply)
        assert again.configuration.unsafe == 1, "asked again"
        assert not why(stage, tablet)

    play_forced(act)


def test_what_was_given_up_returns_without_harm():
    async def act(stage: Stage, tablet: str, first: str, request: ForceRequest) -> None:
        await asyncio.sleep(TIMES_S)
        await stage.ask("force_primary", request, m.MembersReply)
        await stage.until(lambda: leads(stage, tablet))
        await stage.cluster.restart(server(first))
        await asyncio.sleep(TIMES_S)
        assert leaders(stage, tablet) == [host_of(stage, tablet)] != [first]

    play_forced(act)


@staged(play, 0, OPTIONS)
async def test_no_order_of_the_lost_catalog_makes_a_primary(stage: Stage) -> None:
    """While the older catalog is put in place, servers have leases of the lost one."""
    tablet, _ = await with_rows(stage, "abc", 60.0)
    copy, first = copied(stage), host_of(stage, tablet)
    await another_primary(stage, tablet, first)
    await stage.cluster.restart(server(first))
    await stage.until(lambda: members_of(stage, tablet) == dict.fromkeys("abc", "voter"))
    led, before = stored(stage, tablet).index, host_of(stage, tablet)
    await restored(stage, copy)
    assert not role(stage, before).leasing.holds(), "the master begins when all leases are over"
    await stage.until(lambda: leads(stage, tablet))
    assert stored(stage, tablet).index > led


@staged(play, 0, OPTIONS)
async def test_an_older_copy_that_only_a_ballot_reveals_is_refused_with_the_remedy(stage: Stage) -> None:
    tablet, flights = await with_rows(stage, "abc", 60.0)
    copy, first = copied(stage), host_of(stage, tablet)
    await another_primary(stage, tablet, first)
    found: list[str] = []

    def tolerates(address: str, error: BaseException, directory: object) -> bool:
        found.append(str(error))
        return isinstance(error, OldCopy)

    stage.cluster.tolerates = tolerates
    for host in "abc":
        if stage.cluster.alive(server(host)):
            role(stage, host).identity.catalog.version = None
    stage.cluster.crash(MASTER)
    await stage.open_master_over(copy, OPTIONS)
    await stage.until(lambda: not stage.cluster.alive(MASTER))
    assert "older copy of the catalog, bring back the newest" in found[0]
    token = found[0].partition("accepts: [")[2].partition("]")[0]
    await stage.cluster.restart(server(first))
    await stage.open_master_over(stage.cluster.state(MASTER), replace(OPTIONS, accepts=(token,)))
    await stage.until(lambda: leads(stage, tablet))
    assert await rows(flights) == 20


@staged(play, 0, OPTIONS)
async def test_a_tablet_that_was_being_created_when_the_copy_was_made_has_its_rows(stage: Stage) -> None:
    await open_stage(stage, hosts=tuple("abc"))
    for host in "abc":
        stage.cluster.network.cut(MASTER, server(host))
    await stage.create("flights", buckets=1, replication="pacifica")
    await stage.until(lambda: len(stage.master.catalog.creating) == 1)
    copy = copied(stage)
    stage.cluster.network.heal()
    (place,) = (await stage.running("flights")).tablets
    await stage.until(lambda: leads(stage, place.tablet))
    flights = await table(stage)
    await flights.upsert(ALONE)
    await another_primary(stage, place.tablet, host_of(stage, place.tablet))
    await stage.cluster.restart(server(next(host for host in "abc" if not stage.cluster.alive(server(host)))))
    await restored(stage, copy)
    await stage.until(lambda: leads(stage, place.tablet))
    assert (await stage.running("flights")).tablets[0].tablet == place.tablet
    assert await rows(flights) == 10
