"""Those that a forced configuration gave up come back, together and while no master serves: they are a majority of what they know."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.raft import (
    FORCED,
    AppendReply,
    AppendRequest,
)
from ebla.actors.replication.configuration import (
    NON_VOTER,
    Peer,
)
from ebla.actors.tablet.raft.forced import GIVEN_UP, NOT_COMMITTED
from ebla.storage.logs.entries import (
    WRITE,
    Entry,
)
from tests.tablet.copies import entomb, until
from tests.tablet.harness import FIVE, TABLET, Group, address, row, simulate
from tests.tablet.test_members import adds, change, force, members, promoted, uuids
from tests.tablet.test_tombstones import delete

NEW = tuple(range(100, 110))


async def forced(group: Group, *keep: str) -> None:
    """Everybody else is lost; what is kept goes on, and acknowledges rows."""
    lost = [host for host in group.hosts if host not in keep]
    await group.upsert(*[row(k) for k in range(20)])
    await group.settle()
    for host in lost:
        group.cluster.crash(address(host))
    await group.sleep(5.0)
    await force(group, keep[0], uuids(group, *keep))
    group.leader_hint = keep[0]
    for k in NEW:
        await group.upsert(row(k, "by the survivors"))


async def learned(group: Group, *lost: str) -> None:
    await until(group, lambda: any(group.replica(host).core.given_up for host in lost), "one of them is told")
    await group.sleep(10.0)
    assert not any(group.replica(host).leads for host in lost)


def cut(group: Group, keep: str, lost: list[str]) -> None:
    for host in lost:
        group.cluster.network.cut(address(keep), address(host))


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_two_of_five_that_were_kept_stay_what_they_are_when_the_three_others_elect(seed: int) -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        one, two, *lost = await group.followers()
        lost.append(leader)
        await forced(group, one, two)
        term = group.replica(one).core.term
        for _ in range(2):  # what they were told they forget at a restart, and are told again
            await asyncio.gather(*[group.restart(host) for host in lost])
            await learned(group, *lost)
            assert group.replica(one).leads and group.replica(one).core.term == term
            assert group.replica(two).core.leader == group.server(one).instance.uuid
            for host in lost:
                group.cluster.crash(address(host))
        await asyncio.gather(*[group.restart(host) for host in lost])
        await group.upsert(row(200, "by the survivors"))
        order = members(group, one).order
        for host in lost:  # as the master asks for, once it serves
            await delete(group, host, order[1], unsafe=order[0])
        await group.sleep(5.0)
        assert group.replica(one).core.term == term
        assert [found["v"] for found in await group.get(*NEW, 200)] == ["by the survivors"] * 11

    simulate(scenario, seed=seed, hosts=FIVE)


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_one_that_was_kept_follows_nobody_of_the_two_others_and_they_say_why_they_serve_no_more(
    seed: int,
) -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        survivor, other = await group.followers()
        lost = [leader, other]
        await forced(group, survivor)
        before = group.replica(survivor).core.hard_state
        await asyncio.gather(*[group.restart(host) for host in lost])
        await learned(group, *lost)
        told = [host for host in lost if group.replica(host).core.given_up]
        for host in told:
            report = group.replica(host).report()
            assert report.error == GIVEN_UP and report.configuration.unsafe == 0 and report.state == "running"
        batch = m.WriteRequest((m.TabletWrite(TABLET, group.batch(m.UPSERT, [row(1)], 99)),), 0.5)
        reply = await group.ask(told[0], "write", batch, m.WriteReply, 3.0)
        assert isinstance(errors.from_triple(reply.errors[0]), errors.NotLeader)
        assert group.replica(survivor).core.hard_state == before and group.replica(survivor).leads
        await entomb(group, told[0])
        assert group.server(told[0]).lifecycle.tombstones[TABLET].voter.forced_epoch == 1, (
            "it remembers what it was told"
        )
        assert [found["v"] for found in await group.get(*NEW)] == ["by the survivors"] * 10

    simulate(scenario, seed=seed)


def test_one_that_went_on_with_the_old_side_is_copied_in_place_if_it_is_added_anew() -> None:
    """And what only the old side had acknowledged is gone from it. What it sent for itself it does not get."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        survivor, other = await group.followers()
        lost = [leader, other]
        await forced(group, survivor)
        cut(group, survivor, lost)
        await asyncio.gather(*[group.restart(host) for host in lost])
        await until(
            group, lambda: any(group.replica(host).leads for host in lost), "they elect among themselves"
        )
        group.leader_hint = other
        await group.upsert(*[row(k, "by the old side") for k in (*NEW, 300)])
        await group.upsert(row(301, "by the old side"))
        await until(group, lambda: group.replica(other).core.commit_index >= 4, "it has committed that")
        group.cluster.network.heal()
        await learned(group, *lost)
        group.leader_hint = survivor
        again = next(
            peer for peer in group.replica(other).core.configuration.peers if peer.address == address(other)
        )
        order = members(group, survivor).order
        wanted = Peer(again.uuid, again.address, NON_VOTER, promote=True)
        await change(group, survivor, adds(wanted), index=order[1], unsafe=order[0])
        await promoted(group, survivor, wanted)
        assert not group.replica(other).core.given_up and members(group, other).unsafe == 1
        assert group.server(other).copies.done == 1
        group.cluster.crash(address(leader))
        await group.upsert(row(302, "by both"))
        await until(
            group,
            lambda: group.replica(other).store.applied.index == group.replica(survivor).log.last_index,
            "all",
        )
        found = await group.scan(other, columns=("k", "v"))
        values = dict(zip(found["k"].to_pylist(), found["v"].to_pylist(), strict=True))
        assert {values[k] for k in NEW} == {"by the survivors"} and values[302] == "by both"
        assert 300 not in values and 301 not in values

    simulate(scenario)


def test_a_message_of_the_old_side_is_not_taken_for_a_damaged_one() -> None:
    """Its entries do not fit here, and it is to hear why."""

    async def scenario(group: Group) -> None:
        survivor, _ = await group.followers()
        await forced(group, survivor)
        replica, clock = group.replica(survivor), group.server(survivor).world.clock
        before = replica.log.position(2)
        sent = AppendRequest(before.term, "c", 2, before.term, (Entry(3, before.term, WRITE, 0, b"x", 0),), 3)
        answer = replica.receive(clock.monotonic(), "c", sent)
        assert isinstance(answer, AppendReply) and answer.reason == FORCED

    simulate(scenario)


def test_nobody_leads_those_who_know_of_more_forced_configurations() -> None:
    async def scenario(group: Group) -> None:
        survivor, other = await group.followers()
        await forced(group, survivor)
        await group.restart(other)
        with pytest.raises(errors.InvalidArgument, match="ask that one to lead"):
            await force(group, other, uuids(group, survivor, other))
        assert group.replica(survivor).leads and members(group, survivor).unsafe == 1

    simulate(scenario)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_server_that_knows_of_it_copies_nothing_from_the_side_given_up(restarted: bool) -> None:
    """A tombstone asks nobody, so nobody tells it again: it remembers."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        survivor, other = await group.followers()
        await forced(group, survivor)
        order = members(group, survivor).order
        await group.restart(other)
        await delete(group, other, order[1], unsafe=order[0])
        if restarted:
            await group.restart(other)
        cut(group, survivor, [leader, other])
        await group.restart(leader)
        source = group.replica(leader).core.configuration.peer(group.server(leader).instance.uuid)
        request = m.StartCopyRequest(group.server(other).instance.uuid, TABLET, source, 99, m.DELETED)
        with pytest.raises(errors.IllegalState, match="forced"):
            await group.ask(other, "start_copy", request, m.Empty)
        await group.sleep(10.0)
        assert group.replica(leader).core.given_up, "the tombstone does not vote for it, and says why"

    simulate(scenario)


def test_a_tombstone_that_is_told_of_it_later_remembers_it_and_so_does_a_copy_that_is_cut_short() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        survivor, other = await group.followers()
        await delete(group, other, 9999)
        await group.upsert(row(1))
        for host in (leader, other):
            group.cluster.crash(address(host))
        await group.sleep(5.0)
        await force(group, survivor, uuids(group, survivor))
        order = members(group, survivor).order
        await group.restart(other)
        await delete(group, other, order[1], unsafe=order[0])
        await group.restart(other)
        assert group.server(other).lifecycle.tombstones[TABLET].voter.forced_epoch == order[0]
        server = group.server(other)
        server.consensus.save = lambda *given: asyncio.Event().wait()  # type: ignore[method-assign]
        await change(group, survivor, adds(Peer(server.instance.uuid, address(other), NON_VOTER)))

        def marked() -> bool:
            superblock = server.lifecycle.superblock(TABLET)
            return superblock is not None and superblock.state == m.COPYING

        await until(group, marked, "a copy has just begun")
        group.cluster.crash(address(survivor))
        await group.restart(other)
        assert group.server(other).lifecycle.tombstones[TABLET].voter.forced_epoch == order[0]

    simulate(scenario)


def test_what_a_replica_says_counts_for_nothing_while_what_was_forced_on_it_is_not_committed() -> None:
    """The others may go on without it, in terms that are far below."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        survivor, other = await group.followers()
        await group.upsert(row(1))
        group.cluster.crash(address(leader))
        replica = group.replica(survivor)
        honest = replica.core.force_configuration

        def dies(*given: object, **more: object) -> None:
            group.cluster.crash(address(other))
            honest(*given, **more)  # type: ignore[arg-type]

        replica.core.force_configuration = dies  # type: ignore[method-assign]
        group.cluster.network.cut(address(survivor), address(other))
        await group.sleep(5.0)
        group.cluster.network.heal()
        with pytest.raises(errors.OutcomeUnknown, match="is not committed: too few of"):
            await force(group, survivor, uuids(group, survivor, other))
        assert replica.core.configuration.unsafe == 1 and replica.report().error == NOT_COMMITTED
        await group.restart(other)
        await until(group, lambda: replica.report().error is None, "the other one that is kept has it")
        assert members(group, survivor).unsafe == 1

    simulate(scenario)
