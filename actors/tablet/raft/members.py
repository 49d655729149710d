"""Changes of a tablet's members, by its leader; or, when a majority is lost for good, by a survivor.

    change    one configuration from another, compare-and-set on the committed one, answered when it is
              committed. A change that is in force already is answered at once, so a request may be repeated
              while its outcome is unknown
    force     a voter makes itself the leader of the kept members. It asks them first: none may hold more than
              it does, or know of a leader. A forced configuration that is not committed yet may be requested
              again; so may one that keeps fewer members, if a kept member has died meanwhile

The rules are in engine/member_changes.py and membership.py; this module has the requests and the waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.raft import VoteReply, VoteRequest
from ebla.actors.messages.stream import FORCED
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.engine.waits import within
from ebla.actors.tablet.raft import election, membership
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.stream.member_changes import (
    TIMEOUT_S_MAX,
    changed,
    check,
    in_force,
    require_unmoved,
)
from ebla.actors.world import World
from ebla.storage.errors import EblaError, InvalidArgument

FORCE_S = 10.0  # for the commit of a forced configuration
ASK_S = 3.0  # for a peer's answer about its log
ANY_TERM = 1 << 62  # for a pre-vote in this term, a peer compares only the logs


def raft_of(replica: Replica) -> RaftCore:
    """The replica's Raft core. Raises InvalidArgument for a tablet of another replication protocol."""
    if not isinstance(replica.core, RaftCore):
        raise InvalidArgument(
            f"tablet {replica.tablet} does not use Raft; ask the master to change its members"
        )
    return replica.core


# -- changes -------------------------------------------------------------------------------------------------


async def change(
    world: World, rounds: Rounds, replica: Replica, request: m.ChangeMembersRequest
) -> m.MembersReply:
    """Change the members. Raises NotLeader, Unavailable (not yet), OutcomeUnknown (not known to be
    committed), ConfigurationMoved, AlreadyInProgress, InvalidArgument."""
    replica.require_running()
    core, changes = raft_of(replica), request.changes
    check(changes)
    if core.role != "leader":
        raise replica.not_leader()
    now = world.now()
    core.read_index(now)  # a leader without a lease may not know the committed configuration
    committed = core.committed_configuration
    if all(in_force(committed, change) for change in changes):
        return m.MembersReply(replica.tablet, committed)
    require_unmoved(replica.tablet, committed, request.configuration_index, request.configuration_unsafe)
    wanted = changed(committed, changes)
    index, term = rounds.step(replica, core.propose_configuration, now, wanted)
    assert index > committed.index, ("a change is newer than what it changes", index, committed.index)
    await _applied(world, replica, index, min(request.timeout_s, TIMEOUT_S_MAX))
    committed = core.committed_configuration
    if core.term != term and not all(in_force(committed, change) for change in changes):
        raise errors.OutcomeUnknown(
            f"another replica leads tablet {replica.tablet} since its members were to be changed: that was replaced, or undone; "
            "check again",
            address=world.address,
        )
    return m.MembersReply(replica.tablet, committed)


async def _applied(world: World, replica: Replica, index: int, timeout_s: float) -> None:
    """Wait until the entry is applied. Raises OutcomeUnknown at a timeout: the entry is in the log,
    and others may commit it."""
    what = f"the change of tablet {replica.tablet}'s members, at index {index},"
    late = errors.OutcomeUnknown(
        f"{what} was not committed within {timeout_s:g} s and may be later; check again",
        address=world.address,
    )
    await within(world.clock, replica.applied(index), timeout_s, late)
    if replica.state != RUNNING:
        raise errors.OutcomeUnknown(
            f"the replica at {world.address} is {replica.state}; {what} may be committed by the others",
            address=world.address,
        )


# -- the last resort -----------------------------------------------------------------------------------------


async def force(
    world: World, rounds: Rounds, identity: Identity, replica: Replica, request: m.UnsafeChangeRequest
) -> m.MembersReply:
    """Force a configuration. Raises Unavailable (a leader may live, or a kept member does not
    answer), OutcomeUnknown (forced, and not committed), ConfigurationMoved, InvalidArgument."""
    _require_unmoved(replica, request)
    core = raft_of(replica)
    if not _is_pending(core, request.keep):  # else the request is repeated, and only waits
        _require_forcible(replica, request)
        kept = [peer for peer in core.committed_configuration.peers if peer.uuid in request.keep]
        others = [peer for peer in kept if peer.uuid != core.me]
        terms = [await _ask(world, identity, replica, peer) for peer in others]
        _require_unmoved(replica, request)  # again: the wait may have changed it
        _require_forcible(replica, request)
        rounds.step(
            replica,
            core.force_configuration,
            world.now(),
            request.keep,
            request.reason,
            above_term=max(terms, default=0),
        )
    forced = core.configuration
    assert forced.unsafe > 0, ("a forced configuration has a forced epoch", forced)
    try:
        await _applied(world, replica, forced.index, FORCE_S)
    except errors.OutcomeUnknown as error:
        if replica.state != RUNNING:
            raise
        raise _uncommitted(replica, forced) from error
    if core.committed_configuration.order < forced.order:
        raise replica.not_leader()
    return m.MembersReply(replica.tablet, core.committed_configuration)


def _is_pending(core: RaftCore, keep: Sequence[str]) -> bool:
    """Whether exactly this configuration was forced here, and is not committed yet."""
    forced = core.configuration.unsafe > core.committed_configuration.unsafe
    return forced and sorted(peer.uuid for peer in core.configuration.peers) == sorted(keep)


def _uncommitted(replica: Replica, forced: Configuration) -> EblaError:
    """The error for a forced configuration that is not committed in time, for example because a
    kept member has died since it was asked. No other member may be kept instead without being
    asked: entries that only it holds would be lost."""
    others = ", ".join(peer.address for peer in forced.peers if peer.uuid != replica.core.me)
    return errors.OutcomeUnknown(
        f"the configuration that was forced on tablet {replica.tablet} is not committed: too few of {others} have taken it within "
        f"{FORCE_S:g} s; it is when they do, and if they are lost, too, force one that keeps fewer"
    )


def _require_unmoved(replica: Replica, request: m.UnsafeChangeRequest) -> None:
    replica.require_running()
    found = replica.core.committed_configuration
    require_unmoved(replica.tablet, found, request.configuration_index, request.configuration_unsafe)


def _require_forcible(replica: Replica, request: m.UnsafeChangeRequest) -> None:
    if not request.reason:
        raise InvalidArgument("say for what reason a configuration is forced; it is kept in the server's log")
    core = raft_of(replica)
    membership.forced(core.committed_configuration, core.configuration, request.keep, core.me)


async def _ask(world: World, identity: Identity, replica: Replica, peer: Peer) -> int:
    """The peer's term, 0 if it has no replica. Raises the reason why we must not lead it."""
    log = replica.core.log
    assert peer.uuid != replica.core.me, ("only others are asked", peer)
    request = VoteRequest(
        ANY_TERM,
        replica.core.me,
        log.last_index,
        log.last_term,
        pre_vote=True,
        unsafe=replica.core.forced_epoch,
    )
    envelope = identity.envelope(peer.uuid, ((replica.tablet, request),))
    try:
        reply = await world.network.call(peer.address, "replicate", envelope, peers.EnvelopeReply, ASK_S)
    except EblaError as error:
        identity.failed(error)
        raise errors.Unavailable(
            f"{peer.address} is to be kept and does not answer ({error}); try again, or do not keep it"
        ) from error
    if not identity.answered(reply):
        raise errors.Unavailable(f"{peer.address} runs on an old copy of its directory; do not keep it")
    answer = reply.answers[0]
    if not isinstance(answer, VoteReply):
        return 0
    if answer.reason == election.LEADER_ALIVE:
        raise errors.Unavailable(
            f"{peer.address} had contact with a leader of tablet {replica.tablet} a moment ago; change the members there, or, if "
            "there is none, try again in some seconds"
        )
    if answer.reason == FORCED:
        raise InvalidArgument(
            f"{peer.address} knows that a configuration was forced on tablet {replica.tablet}, which {world.address} does "
            "not; ask that one to lead"
        )
    if answer.reason == election.LOG_BEHIND:
        raise InvalidArgument(
            f"{peer.address} holds more of tablet {replica.tablet} than {world.address} does; ask that one to lead"
        )
    return answer.term
