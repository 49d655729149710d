"""A vote that a server has sent is on its disk, also if the replica is deleted, copied or stopped meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.messages.raft import HardState, VoteReply, VoteRequest
from ebla.storage.errors import Damaged, DiskFull
from tests.tablet.copies import ended, entomb, filled, start, until
from tests.tablet.harness import TABLET, Group, held, simulated


class Election:
    """Two candidates of the next term ask one server for its vote, as named successors, so that no live leader matters."""

    def __init__(self, group: Group, asked: str) -> None:
        self.group, self.asked = group, asked
        replica = group.replica(asked)
        self.term, self.last = replica.core.term + 1, replica.log.last

    async def ask(self, candidate: str, term: int | None = None) -> VoteReply | None:
        uuid, last = self.group.uuid(candidate), self.last
        vote = VoteRequest(term or self.term, uuid, last.index, last.term, ignore_live_leader=True)
        answer = (await self.group.replicate(self.asked, candidate, vote, timeout_s=20.0)).answers[0]
        assert answer is None or isinstance(answer, VoteReply)
        return answer

    def on_disk(self) -> HardState:
        found = self.group.server(self.asked).consensus.get(TABLET)
        assert found is not None
        return found.hard_state

    def held_commits(self) -> tuple[asyncio.Event, asyncio.Event]:
        return held(self.group.server(self.asked).rounds, "_commit")

    async def granted(self, candidate: str) -> None:
        answer = await self.ask(candidate)
        assert answer is not None and answer.granted
        assert self.on_disk() == HardState(self.term, self.group.uuid(candidate))

    async def refused_after_a_restart(self, candidate: str) -> None:
        self.group.crash(self.asked)
        await self.group.restart(self.asked)
        answer = await self.ask(candidate)
        assert answer is not None
        assert (answer.term, answer.reason) == (self.term, "voted")


async def ballot(group: Group) -> tuple[Election, str, str]:
    """Return an election and its two candidates; the asked server gets no other messages."""
    leader, target, other = await filled(group, 50)
    await group.settle()
    group.cut(target, leader, other)
    return Election(group, target), leader, other


@pytest.mark.parametrize("failed", [False, True])
@simulated()
async def test_a_tombstone_gives_a_vote_that_a_full_disk_delayed_only_once_it_is_on_disk(
    group: Group, failed: bool
) -> None:
    election, one, two = await ballot(group)
    state = group.disk(election.asked)
    state.fill()
    first = asyncio.ensure_future(election.ask(one))
    await group.sleep(0.3)
    assert not first.done() and election.on_disk().term < election.term
    if failed:
        group.replica(election.asked).fail(Damaged("for a test"))
    with pytest.raises(DiskFull):
        await entomb(group, election.asked)
    assert await first is None
    assert await election.ask(one) is None
    state.free()
    await election.granted(one)
    await election.refused_after_a_restart(two)


@simulated()
async def test_a_tombstone_saves_a_vote_again_whose_commit_was_under_way(group: Group) -> None:
    election, one, two = await ballot(group)
    begun, over = election.held_commits()
    first = asyncio.ensure_future(election.ask(one))
    await begun.wait()
    await entomb(group, election.asked)
    await election.granted(one)
    over.set()
    assert await first is None
    assert election.on_disk().term == election.term
    await election.refused_after_a_restart(two)


async def held_up(group: Group) -> tuple[Election, str, str]:
    """Copy slowly to a follower whose disk is full, so that it gives no vote; return leader and the other follower, too."""
    leader, target, other = await filled(group, 300)
    await group.settle()
    election = Election(group, target)
    await entomb(group, target)
    await start(group, target, leader)
    group.disk(target).fill()
    assert await election.ask(leader) is None
    return election, leader, other


@simulated(copy_bytes_per_s=10_000)
async def test_a_vote_that_a_copy_could_not_save_is_not_given_after_the_copy_was_undone(group: Group) -> None:
    election, leader, other = await held_up(group)
    target, state = election.asked, group.disk(election.asked)
    group.server(target).copies.jobs[TABLET].cancel()
    await ended(group, target)
    assert await election.ask(leader) is None
    group.cut(target, leader, other)
    state.free()
    await election.granted(leader)
    await election.refused_after_a_restart(other)


@simulated(copy_bytes_per_s=10_000)
async def test_a_vote_that_a_copy_could_not_save_is_on_disk_before_the_copy_is_complete(group: Group) -> None:
    election, _, _ = await held_up(group)
    server = group.server(election.asked)
    state = group.disk(election.asked)
    state.free()
    await until(group, lambda: server.lifecycle.state_of(TABLET) == m.RUNNING, "the tablet is copied")
    assert election.on_disk().term >= election.term


@simulated()
async def test_a_stopping_replica_is_reported_and_votes_as_a_tombstone(group: Group) -> None:
    """However long the last flush takes: without a report the master would consider it gone."""
    election, one, two = await ballot(group)
    server, store = group.server(election.asked), group.replica(election.asked).store
    _, over = held(store, "flush")
    stopping = asyncio.ensure_future(entomb(group, election.asked))
    await until(group, lambda: server.lifecycle.state_of(TABLET) != m.RUNNING, "the replica is being stopped")
    assert await group.reported(election.asked) == {TABLET: m.DELETED}
    assert set(server.lifecycle.all()) == {TABLET}
    await group.sleep(1.0)
    assert not stopping.done()
    await election.granted(one)
    over.set()
    await stopping
    await election.refused_after_a_restart(two)


@pytest.mark.parametrize("repeated", [False, True])
@simulated()
async def test_a_second_vote_request_waits_until_the_first_vote_is_on_disk(
    group: Group, repeated: bool
) -> None:
    """From the same candidate or from another one, which would learn a term that the server may forget."""
    election, one, two = await ballot(group)
    begun, over = election.held_commits()
    first = asyncio.ensure_future(election.ask(one))
    await begun.wait()
    second = asyncio.ensure_future(election.ask(one if repeated else two))
    await group.sleep(0.3)
    assert election.on_disk().term < election.term
    assert not first.done() and not second.done()
    over.set()
    answers = [await first, await second]
    assert [answer is not None and answer.granted for answer in answers] == [True, repeated]
    await election.granted(one)
    await election.refused_after_a_restart(two)
