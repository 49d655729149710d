"""A replica whose record of votes is damaged counts for nothing until it has left the configuration; then it comes back as a
newcomer, on the same server."""

from __future__ import annotations

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.raft import (
    HardState,
    VoteRequest,
)
from ebla.actors.messages.repair import (
    ADD,
    MODIFY,
    REMOVE,
    MemberChange,
)
from ebla.actors.replication.configuration import (
    NON_VOTER,
    VOTER,
    Configuration,
    Peer,
)
from ebla.actors.replication.health import LOST
from ebla.actors.tablet.server import RECORDS
from tests.tablet.copies import one_away, same_rows, start, until
from tests.tablet.harness import TABLET, Group, address, row, simulate

CONSENSUS = "consensus-meta"


async def forgotten(group: Group) -> tuple[str, str, str]:
    """Leader, a follower that came up without its votes, and the other one."""
    leader, target, other = await one_away(group)
    group.cluster.state(address(target)).rot(CONSENSUS, RECORDS, TABLET.encode())
    await group.restart(target)
    assert group.server(target).lifecycle.state_of(TABLET) == m.FAILED
    return leader, target, other


def as_peer(group: Group, host: str, **changes: object) -> Peer:
    return Peer(group.server(host).instance.uuid, address(host), **changes)  # type: ignore[arg-type]


async def change(group: Group, leader: str, kind: str, peer: Peer) -> None:
    uuid = group.server(leader).instance.uuid
    request = m.ChangeMembersRequest(uuid, TABLET, (MemberChange(kind, peer),))
    await group.ask(leader, "change_members", request, m.MembersReply, 10.0)


def words(group: Group, leader: str) -> dict[str, str]:
    return dict(group.replica(leader).report().health)


def test_a_voter_that_forgot_its_votes_is_lost_to_its_leader_and_is_not_copied_onto() -> None:
    async def scenario(group: Group) -> None:
        leader, target, other = await forgotten(group)
        uuid = group.server(target).instance.uuid
        await until(group, lambda: words(group, leader)[uuid] == LOST, "the leader hears it")
        with pytest.raises(errors.IllegalState, match="has forgotten its votes and is a voter"):
            await start(group, target, leader)
        assert group.server(target).lifecycle.state_of(TABLET) == m.FAILED
        await until(group, lambda: not len(group.server(leader).copy_sources), "the source lets go")
        core = group.replica(other).core
        request = VoteRequest(core.term + 5, core.me, core.last_index, core.log.last_term)
        envelope = group.server(other).identity.envelope(uuid, ((TABLET, request),))
        reply = await group.ask(target, "replicate", envelope, peers.EnvelopeReply)
        assert (reply.answers, reply.refusals) == ((None,), ("votes_forgotten",))

    simulate(scenario)


@pytest.mark.parametrize("restarted", [False, True])
def test_it_comes_back_as_a_newcomer_once_it_was_removed(restarted: bool) -> None:
    async def scenario(group: Group) -> None:
        leader, target, other = await forgotten(group)
        await change(group, leader, REMOVE, as_peer(group, target))
        await group.upsert(row(9000, "without it"))
        if restarted:
            await group.restart(target)
        await change(group, leader, ADD, as_peer(group, target, member=NON_VOTER, promote=True))

        def votes() -> bool:
            peer = group.replica(leader).core.committed_configuration.peer(as_peer(group, target).uuid)
            return peer is not None and peer.member == "voter"

        await until(group, votes, "it has caught up")
        await same_rows(group, target, other, leader)
        kept = group.server(target).consensus.get(TABLET)
        # Not for another one in the leader's term, in which it may have voted before.
        assert kept is not None
        assert kept.record == HardState(group.replica(leader).core.term, group.server(leader).instance.uuid)
        successor = group.server(target).instance.uuid
        await group.ask(leader, "step_down", m.StepDownRequest(TABLET, successor), m.StepDownReply, 10.0)
        group.leader_hint = None
        assert await group.leader() == target
        assert await group.get(9000) == [row(9000, "without it")]

    simulate(scenario)


async def forgotten_and_removed(group: Group) -> tuple[str, str, str]:
    """As `forgotten`; and the master has had the replica removed, and made a tombstone."""
    leader, target, other = await forgotten(group)
    gone = as_peer(group, target)
    await change(group, leader, REMOVE, gone)
    index = group.replica(leader).core.committed_configuration.index
    delete = m.DeleteTabletRequest(gone.uuid, TABLET, "it left", True, index)
    await group.ask(target, "delete_tablet", delete, m.Empty, 10.0)
    return leader, target, other


async def asked_in_vain(group: Group, by: str, whom: str, term: int, **more: bool) -> None:
    """For a vote."""
    core = group.replica(by).core
    request = VoteRequest(term, core.me, core.last_index, core.log.last_term, **more)
    envelope = group.server(by).identity.envelope(group.server(whom).instance.uuid, ((TABLET, request),))
    reply = await group.ask(whom, "replicate", envelope, peers.EnvelopeReply)
    assert reply.answers[0] is not None and not reply.answers[0].granted  # type: ignore[union-attr]


def test_a_tombstone_that_forgot_its_votes_comes_back_the_same_way() -> None:
    """The master has had it deleted in the meantime, and somebody has asked it for a vote since."""

    async def scenario(group: Group) -> None:
        leader, target, other = await forgotten_and_removed(group)
        await asked_in_vain(group, other, target, group.replica(other).core.term)
        await change(group, leader, ADD, as_peer(group, target, member=NON_VOTER, promote=True))
        await until(
            group,
            lambda: group.server(target).lifecycle.state_of(TABLET) == m.RUNNING,
            "the copy takes its place",
        )
        kept = group.server(target).consensus.get(TABLET)
        assert kept is not None and kept.record.vote == group.server(leader).instance.uuid
        await same_rows(group, target, other, leader)

    simulate(scenario)


def test_a_tombstone_that_forgot_its_votes_refuses_without_writing_any() -> None:
    """With a record it would be taken for one that knows what it promised, and be copied onto while it is a voter."""

    async def scenario(group: Group) -> None:
        _, target, other = await forgotten_and_removed(group)
        term = group.replica(other).core.term
        for asked in (term, term + 5):
            await asked_in_vain(group, other, target, asked, ignore_live_leader=True)
        server = group.server(target)
        assert server.lifecycle.consensus_of(TABLET) is None
        await group.restart(target)
        assert group.server(target).lifecycle.consensus_of(TABLET) is None, "nor after a restart"

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_a_leader_that_may_be_superseded_makes_no_newcomer() -> None:
    """Another one may have made it a voter since."""

    async def scenario(group: Group) -> None:
        leader, target, _ = await forgotten(group)
        await change(group, leader, REMOVE, as_peer(group, target))
        await change(group, leader, ADD, as_peer(group, target, member=NON_VOTER, promote=True))
        replica, source = group.replica(leader), group.server(leader).copy_sources
        uuid, term = group.server(target).instance.uuid, replica.core.term
        request = m.BeginCopyRequest(group.server(leader).instance.uuid, TABLET, uuid, term, forgetful=True)
        begun = await source.begin(replica, request)
        source.end(begun.session)
        group.cluster.network.isolate(address(leader))
        await group.sleep(group.server(leader).options.lease_s + 0.1)
        assert replica.leads and replica.core.term == term, "it does not know it yet"
        with pytest.raises(errors.Unavailable, match="no lease"):
            await source.begin(replica, request)
        assert not source.all()

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize(("before", "after"), [(VOTER, NON_VOTER), (NON_VOTER, VOTER)])
def test_one_whose_removal_or_return_is_not_committed_yet_is_no_newcomer(before: str, after: str) -> None:
    """The one may be undone; the other counts from its appending on."""

    async def scenario(group: Group) -> None:
        leader, target, other = await forgotten(group)
        server, replica = group.server(leader), group.replica(leader)
        core, uuid = replica.core, group.server(target).instance.uuid
        if before == NON_VOTER:
            await change(group, leader, MODIFY, as_peer(group, target, member=before))
        for host in (target, other):
            group.cluster.network.isolate(address(host))
        peers = tuple(
            as_peer(group, target, member=after) if peer.uuid == uuid else peer
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

    simulate(scenario)
