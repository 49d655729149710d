"""A vote that a server has sent is on its disk, also if the replica is deleted, copied or stopped meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.raft import HardState, VoteReply, VoteRequest
from ebla.actors.messages.repair import MODIFY
from ebla.actors.replication.configuration import NON_VOTER, VOTER, Configuration
from ebla.actors.replication.health import LOST
from ebla.actors.tablet.server import RECORDS
from ebla.storage.errors import Damaged, DiskFull
from tests.tablet.copies import ended, entomb, filled, one_down, same_rows, start, until
from tests.tablet.harness import TABLET, Group, held, row, simulated
from tests.tablet.test_members import adds, change, peer_of, promoted, removes


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

    def held_commits(self) -> tuple[asyncio.Event, asyncio.Event]:
        return held(self.group.server(self.asked).rounds, "_commit")

    async def granted(self, candidate: str) -> None:
        answer = await self.ask(candidate)
        assert answer is not None and answer.granted
        assert self.group.hard_state(self.asked) == HardState(self.term, self.group.uuid(candidate))

    async def refused_after_a_restart(self, candidate: str) -> None:
        self.group.crash(self.asked)
        await self.group.restart(self.asked)
        answer = await self.ask(candidate)
        assert answer is not None
        assert (answer.term, answer.reason) == (self.term, "voted")


async def prepared_election(group: Group) -> tuple[Election, str, str]:
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
    election, one, two = await prepared_election(group)
    state = group.disk(election.asked)
    state.fill()
    first = asyncio.ensure_future(election.ask(one))
    await group.sleep(0.3)
    assert not first.done() and group.hard_state(election.asked).term < election.term
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
    election, one, two = await prepared_election(group)
    begun, over = election.held_commits()
    first = asyncio.ensure_future(election.ask(one))
    await begun.wait()
    await entomb(group, election.asked)
    await election.granted(one)
    over.set()
    assert await first is None
    assert group.hard_state(election.asked).term == election.term
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
    assert group.hard_state(election.asked).term >= election.term


@simulated()
async def test_a_stopping_replica_is_reported_and_votes_as_a_tombstone(group: Group) -> None:
    """However long the last flush takes: without a report the master would consider it gone."""
    election, one, two = await prepared_election(group)
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
    election, one, two = await prepared_election(group)
    begun, over = election.held_commits()
    first = asyncio.ensure_future(election.ask(one))
    await begun.wait()
    second = asyncio.ensure_future(election.ask(one if repeated else two))
    await group.sleep(0.3)
    assert group.hard_state(election.asked).term < election.term
    assert not first.done() and not second.done()
    over.set()
    answers = [await first, await second]
    assert [answer is not None and answer.granted for answer in answers] == [True, repeated]
    await election.granted(one)
    await election.refused_after_a_restart(two)


# -- a damaged vote record: the replica does not count until the group has removed it


CONSENSUS = "consensus-meta"


async def forgotten(group: Group) -> tuple[str, str, str]:
    """Return the leader, a follower that started without its vote record, and the other follower."""
    leader, target, other = await one_down(group)
    group.disk(target).rot(CONSENSUS, RECORDS, TABLET.encode())
    await group.restart(target)
    assert group.state_of(target) == m.FAILED
    return leader, target, other


def health(group: Group, leader: str) -> dict[str, str]:
    return dict(group.replica(leader).report().health)


@simulated()
async def test_a_voter_without_its_vote_record_is_reported_lost_and_gets_no_copy(group: Group) -> None:
    leader, target, other = await forgotten(group)
    uuid = group.uuid(target)
    await until(group, lambda: health(group, leader)[uuid] == LOST, "the leader learns the loss")
    with pytest.raises(errors.IllegalState, match="has forgotten its votes and is a voter"):
        await start(group, target, leader)
    assert group.state_of(target) == m.FAILED
    await until(group, lambda: not len(group.server(leader).copy_sources), "the source ends its session")
    core = group.replica(other).core
    request = VoteRequest(core.term + 5, core.me, core.last_index, core.log.last_term)
    reply = await group.replicate(target, other, request)
    assert (reply.answers, reply.refusals) == ((None,), ("votes_forgotten",))


@pytest.mark.parametrize("restarted", [False, True])
@simulated()
async def test_a_voter_without_its_vote_record_returns_as_a_new_member_after_its_removal(
    group: Group, restarted: bool
) -> None:
    leader, target, other = await forgotten(group)
    await change(group, leader, removes(peer_of(group, target)))
    await group.upsert(row(9000, "without it"))
    if restarted:
        await group.restart(target)
    await change(group, leader, adds(peer_of(group, target, member=NON_VOTER, promote=True)))

    await promoted(group, leader, peer_of(group, target))
    await same_rows(group, target, other, leader)
    # The vote is the leader's: it may have voted in this term before, and must not vote for another candidate.
    assert group.hard_state(target) == HardState(group.replica(leader).core.term, group.uuid(leader))
    await group.lead(target)
    assert await group.get(9000) == [row(9000, "without it")]


async def forgotten_and_removed(group: Group) -> tuple[str, str, str]:
    """As `forgotten`, after the master removed the replica and made it a tombstone."""
    leader, target, other = await forgotten(group)
    await change(group, leader, removes(peer_of(group, target)))
    index = group.replica(leader).core.committed_configuration.index
    await group.delete(target, index)
    return leader, target, other


async def vote_refused(group: Group, by: str, whom: str, term: int, **more: bool) -> None:
    """Ask for a vote, which is refused."""
    core = group.replica(by).core
    request = VoteRequest(term, core.me, core.last_index, core.log.last_term, **more)
    reply = await group.replicate(whom, by, request)
    assert reply.answers[0] is not None and not reply.answers[0].granted  # type: ignore[union-attr]


@simulated()
async def test_a_tombstone_without_its_vote_record_returns_as_a_new_member(group: Group) -> None:
    """The master has deleted the replica meanwhile, and a candidate has asked it for a vote since."""
    leader, target, other = await forgotten_and_removed(group)
    await vote_refused(group, other, target, group.replica(other).core.term)
    await change(group, leader, adds(peer_of(group, target, member=NON_VOTER, promote=True)))
    await until(group, lambda: group.state_of(target) == m.RUNNING, "the copy takes its place")
    assert group.hard_state(target).vote == group.uuid(leader)
    await same_rows(group, target, other, leader)


@simulated()
async def test_a_tombstone_without_its_vote_record_refuses_votes_and_writes_none(group: Group) -> None:
    """With a new record it would count as a replica that knows its votes, and would be copied to while it is a voter."""
    _, target, other = await forgotten_and_removed(group)
    term = group.replica(other).core.term
    for asked in (term, term + 5):
        await vote_refused(group, other, target, asked, ignore_live_leader=True)
    server = group.server(target)
    assert server.lifecycle.consensus_of(TABLET) is None
    await group.restart(target)
    assert group.server(target).lifecycle.consensus_of(TABLET) is None, "nor after a restart"


@pytest.mark.usefixtures("unmended")
@simulated()
async def test_a_leader_without_a_lease_copies_to_no_member_without_its_vote_record(group: Group) -> None:
    """Another leader may have made it a voter since."""
    leader, target, _ = await forgotten(group)
    await change(group, leader, removes(peer_of(group, target)))
    await change(group, leader, adds(peer_of(group, target, member=NON_VOTER, promote=True)))
    replica, source = group.replica(leader), group.server(leader).copy_sources
    uuid, term = group.uuid(target), replica.core.term
    request = m.BeginCopyRequest(group.uuid(leader), TABLET, uuid, term, forgetful=True)
    begun = await source.begin(replica, request)
    source.end(begun.session)
    group.isolate(leader)
    await group.sleep(group.server(leader).options.lease_s + 0.1)
    assert replica.leads and replica.core.term == term, "it does not know that its lease ended"
    with pytest.raises(errors.Unavailable, match="no lease"):
        await source.begin(replica, request)
    assert not source.all()


@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize(("before", "after"), [(VOTER, NON_VOTER), (NON_VOTER, VOTER)])
@simulated()
async def test_no_copy_to_a_member_without_vote_record_while_its_change_is_uncommitted(
    group: Group, before: str, after: str
) -> None:
    """An uncommitted demotion may be undone; an uncommitted promotion is in force already."""
    leader, target, other = await forgotten(group)
    server, replica = group.server(leader), group.replica(leader)
    core, uuid = replica.core, group.uuid(target)
    if before == NON_VOTER:
        await change(group, leader, m.MemberChange(MODIFY, peer_of(group, target, member=before)))
    group.isolate(target, other)
    peers = tuple(
        peer_of(group, target, member=after) if peer.uuid == uuid else peer
        for peer in core.configuration.peers
    )
    wanted = Configuration(peers, core.configuration.index)
    index, term = server.rounds.step(
        replica, core.propose_configuration, server.world.clock.monotonic(), wanted
    )
    assert core.configuration.index == index > core.committed_configuration.index
    request = m.BeginCopyRequest(server.instance.uuid, TABLET, uuid, term, forgetful=True)
    with pytest.raises(errors.IllegalState, match="has forgotten its votes and is a voter"):
        await server.copy_sources.begin(replica, request)
    assert not server.copy_sources.all()
