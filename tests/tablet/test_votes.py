"""A vote that has left a server is on its disk, whatever becomes of the replica meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.raft import HardState, VoteReply, VoteRequest
from ebla.actors.tablet.engine.replica import Replica
from ebla.storage.errors import Damaged, DiskFull
from tests.tablet.copies import ended, entomb, fill, start, until
from tests.tablet.harness import TABLET, Group, address, simulate


class Election:
    """Two candidates of the next term ask one server, ordered to, so that no live leader is in their way."""

    def __init__(self, group: Group, asked: str) -> None:
        self.group, self.asked = group, asked
        replica = group.replica(asked)
        self.term, self.last = replica.core.term + 1, replica.log.last

    async def ask(self, candidate: str, term: int | None = None) -> VoteReply | None:
        source, server = self.group.server(candidate), self.group.server(self.asked)
        uuid = source.instance.uuid
        vote = VoteRequest(
            term or self.term, uuid, self.last.index, self.last.term, pre_vote=False, ignore_live_leader=True
        )
        envelope = source.identity.envelope(server.instance.uuid, ((TABLET, vote),))
        reply = await self.group.ask(self.asked, "replicate", envelope, peers.EnvelopeReply, 20.0)
        answer = reply.answers[0]
        assert answer is None or isinstance(answer, VoteReply)
        return answer

    def on_disk(self) -> HardState:
        found = self.group.server(self.asked).consensus.get(TABLET)
        assert found is not None
        return found.record

    def held_up(self) -> tuple[asyncio.Event, asyncio.Event]:
        """From now on commits of the server say when they have begun, and wait until they may go on."""
        rounds = self.group.server(self.asked).rounds
        commit, begun, over = rounds._commit, asyncio.Event(), asyncio.Event()

        async def slowly(replicas: list[Replica]) -> None:
            begun.set()
            await over.wait()
            await commit(replicas)

        rounds._commit = slowly  # type: ignore[method-assign]
        return begun, over

    async def granted(self, candidate: str) -> None:
        answer = await self.ask(candidate)
        assert answer is not None and answer.granted
        assert self.on_disk() == HardState(self.term, self.group.server(candidate).instance.uuid)

    async def refused_after_a_restart(self, candidate: str) -> None:
        self.group.cluster.crash(address(self.asked))
        await self.group.restart(self.asked)
        answer = await self.ask(candidate)
        assert answer is not None
        assert (answer.term, answer.reason) == (self.term, "voted")


async def ballot(group: Group) -> tuple[Election, str, str]:
    """And the candidates; nobody else is heard by the server that is asked."""
    leader = await group.leader()
    target, other = await group.followers()
    await fill(group, 50)
    await group.settle()
    for host in (leader, other):
        group.cluster.network.cut(address(target), address(host))
    return Election(group, target), leader, other


@pytest.mark.parametrize("failed", [False, True])
def test_a_vote_that_a_full_disk_held_up_is_not_given_by_the_tombstone_until_it_is_on_disk(
    failed: bool,
) -> None:
    async def scenario(group: Group) -> None:
        election, one, two = await ballot(group)
        state = group.cluster.state(address(election.asked))
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

    simulate(scenario)


def test_a_vote_that_was_on_its_way_to_the_disk_is_saved_again_by_the_tombstone() -> None:
    async def scenario(group: Group) -> None:
        election, one, two = await ballot(group)
        begun, over = election.held_up()
        first = asyncio.ensure_future(election.ask(one))
        await begun.wait()
        await entomb(group, election.asked)
        await election.granted(one)
        over.set()
        assert await first is None
        assert election.on_disk().term == election.term
        await election.refused_after_a_restart(two)

    simulate(scenario)


async def held_up(group: Group) -> tuple[Election, str, str]:
    """A follower is copied to, and its disk is full: it gives no vote. Leader and the other one. The copy is slow."""
    leader = await group.leader()
    target, other = await group.followers()
    await fill(group, 300)
    await group.settle()
    election = Election(group, target)
    await entomb(group, target)
    await start(group, target, leader)
    group.cluster.state(address(target)).fill()
    assert await election.ask(leader) is None
    return election, leader, other


def test_a_vote_that_a_copy_could_not_save_is_still_not_given_when_the_copy_was_undone() -> None:
    async def scenario(group: Group) -> None:
        election, leader, other = await held_up(group)
        target, state = election.asked, group.cluster.state(address(election.asked))
        group.server(target).copies.jobs[TABLET].cancel()
        await ended(group, target)
        assert await election.ask(leader) is None
        for host in (leader, other):
            group.cluster.network.cut(address(target), address(host))
        state.free()
        await election.granted(leader)
        await election.refused_after_a_restart(other)

    simulate(scenario, copy_bytes_per_s=10_000)


def test_a_vote_that_a_copy_could_not_save_is_on_disk_before_the_copy_counts() -> None:
    async def scenario(group: Group) -> None:
        election, _, _ = await held_up(group)
        server = group.server(election.asked)
        state = group.cluster.state(address(election.asked))
        state.free()
        await until(group, lambda: server.lifecycle.state_of(TABLET) == m.RUNNING, "the tablet is copied")
        assert election.on_disk().term >= election.term

    simulate(scenario, copy_bytes_per_s=10_000)


def test_a_replica_that_is_being_stopped_is_told_of_and_votes_as_a_tombstone() -> None:
    """However long the last flush takes: a master that heard nothing of it would take it for gone."""

    async def scenario(group: Group) -> None:
        election, one, two = await ballot(group)
        server, store = group.server(election.asked), group.replica(election.asked).store
        flush, slow = store.flush, asyncio.Event()

        async def slowly() -> object:
            await slow.wait()
            return await flush()

        store.flush = slowly  # type: ignore[method-assign, assignment]
        stopping = asyncio.ensure_future(entomb(group, election.asked))
        await until(group, lambda: server.lifecycle.state_of(TABLET) != m.RUNNING, "it is being stopped")
        state = await group.ask(election.asked, "status", m.Empty(), m.ServerState)
        assert [(each.tablet, each.state) for each in state.replicas] == [(TABLET, m.DELETED)]
        assert set(server.lifecycle.all()) == {TABLET}
        await group.sleep(1.0)
        assert not stopping.done()
        await election.granted(one)
        slow.set()
        await stopping
        await election.refused_after_a_restart(two)

    simulate(scenario)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_second_request_for_a_vote_that_is_on_its_way_to_the_disk_is_not_answered_before_it_is_there(
    repeated: bool,
) -> None:
    """Of the same candidate, or of another one, who would learn of a term that the server may forget."""

    async def scenario(group: Group) -> None:
        election, one, two = await ballot(group)
        begun, over = election.held_up()
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

    simulate(scenario)
