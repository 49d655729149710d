"""Defects of changes of members, copies and tombstones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.master.cluster.reports import Views
from ebla.actors.messages.raft import HardState, VoteRequest
from ebla.actors.replication.configuration import PRE_VOTER, Configuration
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.job import Job
from ebla.actors.tablet.copy.log_retention import LogRetention
from ebla.actors.tablet.copy.sources import CopySources
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.records import Superblock
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.lifecycle import bootstrap, deletion
from ebla.actors.tablet.lifecycle.deletion import Deletion
from ebla.actors.tablet.lifecycle.starting import Starting
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.actors.tablet.raft import election, members, membership
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.raft.parts import Raft
from ebla.actors.tablet.raft.state import RaftState
from ebla.actors.tablet.raft.tombstone import TombstoneVoter
from ebla.actors.tablet.stream.progress import Progress
from ebla.chaos.defects.defect import Swap, defect
from ebla.storage.environment import DeleteRange
from ebla.storage.logs.entries import START
from ebla.storage.logs.shared_log import Found
from ebla.storage.tablets.positions import META, alteration_of, flushed_of, put_position
from ebla.storage.tablets.results import NO_ANSWERS, RESULTS
from ebla.storage.tablets.tablet_store import path_of


@defect("mending", 40, Raft, "copied", seed=1)
def copy_forgets_the_vote(
    self: Raft, own: HardState, source: str, term: int, *, knows_end: bool
) -> HardState:
    """The merge of a copy's metadata forgets a vote in a term that is not over."""
    merged = HardState(max(own.term, term))
    return merged if knows_end or merged != HardState(term) else HardState(term, source)


@defect("mending", 40, Raft, "copied", seed=1)
def copy_takes_the_term(self: Raft, own: HardState, source: str, term: int, *, knows_end: bool) -> HardState:
    """The merge of a copy's metadata takes the source's term, also a lower one."""
    return HardState(term) if knows_end else HardState(term, source)


@defect("mending", 100, TombstoneVoter, "_judge", seed=95)
def tombstone_forgets_its_end(self: TombstoneVoter, now: float, request: VoteRequest) -> str:
    """A tombstone, or a replica that is being copied, votes as if its log had been empty."""
    alive = now < self._withheld_until
    return election.judge(request, self.hard_state, LogIndex(), leader_alive=alive)


@defect("mending", 40, Tombstone, "save", seed=3)
async def tombstone_vote_not_durable(self: Tombstone, consensus: object) -> None:
    """A tombstone, or a replica that is being copied, answers a vote before it is on disk."""
    self.voter.saved(self.voter.hard_state)


@defect("mending", 40, deletion.Deletion, "entomb", seed=8)
async def tombstone_without_votes(
    original: Any, self: Deletion, tablet: str, reason: str, unsafe: int = 0
) -> Any:
    """A deletion also deletes the consensus metadata."""
    tombstone = await original(self, tablet, reason, unsafe)
    await self.lifecycle.consensus.environment.commit([self.lifecycle.consensus.delete(tablet)])
    return tombstone


@defect("mending", 40, Copies, "_reserve", seed=2)
async def ready_before_durable(
    original: Any, self: Copies, request: m.StartCopyRequest, begun: m.CopyBegun
) -> Any:
    """The superblock says ready before the data is copied."""
    tombstone = await original(self, request, begun)
    ready = replace(tombstone.superblock, state="ready", last=None)
    await self.lifecycle.superblocks.save(request.tablet, ready)
    return tombstone


@defect("mending", 200, bootstrap, "gather", seed=32)
def former_entries(shared: Iterable[Found], tails: dict[str, bootstrap.Tail]) -> None:
    """A start takes a former replica's entries in the shared log for the copy's."""
    for found in shared:
        tail = tails.get(found.tablet)
        if tail is not None:
            tail.add(found.index, found.seq, found.record, found.damage)


@defect("mending", 200, seed=4)
def copy_without_its_log() -> list[Swap]:
    """A copy ends where the source's rows end, so acknowledged entries are missing."""
    begun = CopySources._begun

    def without(self: CopySources, replica: Replica, *rest: object) -> m.CopyBegun:
        reply = begun(self, replica, *rest)  # type: ignore[arg-type]
        session = self.retention.sources[reply.session]
        session.last = session.flushed
        return replace(reply, last=reply.flushed)

    return [(CopySources, "_begun", without), (Job, "_require_not_older", lambda self, parts: None)]


@defect("mending", 30, Job, "_finish_data", seed=1)
async def copy_without_answers(original: Any, self: Job) -> None:
    """A copy brings the rows without the answers that belong to them."""
    await original(self)
    data = await self.world.disk.open_environment(path_of(self.tablet), [RESULTS, META], create=False)
    flushed = flushed_of(data, data.path)
    altered = alteration_of(data, data.path)
    position = put_position(flushed.position, NO_ANSWERS, altered)
    await data.commit([DeleteRange(RESULTS, b"", None), position])
    await data.close()


@defect("members", 40, Leadership, "reconfigure")
def non_voters_count(
    original: Any, self: Leadership, configuration: Configuration, now: float, next_index: int
) -> None:
    """The entries of non-voters and pre-voters count for the commit index."""
    original(self, configuration, now, next_index)
    self._voters = tuple(peer.uuid for peer in configuration.peers)


@defect("members", 60, RaftState, "_become_candidate", seed=1)
def non_voters_elect(original: Any, self: RaftState, *, pre_vote: bool, ordered: bool) -> Any:
    """The votes of non-voters and pre-voters count in an election."""
    poll = original(self, pre_vote=pre_vote, ordered=ordered)
    poll.voters = tuple(peer.uuid for peer in self.configuration.peers)
    return poll


@defect("members", 60, RaftCore, "_promote", seed=9)
def promoted_while_pending(self: RaftCore, peer: str, sent_at: float, committed: int) -> None:
    """A leader promotes a pre-voter while another change of members is not committed."""
    lead, member = self._lead, self.configuration.peer(peer)
    if lead is None or lead.transfer is not None or self.commit_index < lead.noop:
        return
    if member is None or member.kind != PRE_VOTER or not lead.peers[peer].caught_up(committed):
        return
    if self._now - sent_at <= self.limits.election_s_min:
        self._append_configuration(membership.promoted(self.configuration, peer))


@defect("members", 60, Progress, "caught_up", seed=31)
def promoted_before_caught_up(self: Progress, committed: object) -> bool:
    """A leader promotes a pre-voter that lacks committed entries."""
    return True


@defect("mending", 60, LogRetention, "anchor", seed=17)
def anchor_dropped_early(self: LogRetention, tablet: object) -> None:
    """The log drops entries that an open copy session still has to send."""


@defect("members", 40, members, "require_unmoved", seed=9)
def compare_and_set_ignored(tablet: object, found: object, index: object, unsafe: object) -> None:
    """A change of members ignores the configuration for which it was requested."""


@defect("members", 80, seed=9)
def newcomer_evicted() -> list[Swap]:
    """A replica whose addition is not committed yet is made a tombstone."""

    def committed(self: Deletion, request: m.DeleteTabletRequest) -> Configuration:
        replica = self.lifecycle.replicas.get(request.tablet)
        if replica is not None:
            return replica.core.committed_configuration
        state = self.lifecycle.consensus_of(request.tablet)
        return Configuration(()) if state is None else state.configuration

    return [
        (Deletion, "_configuration", committed),
        (Views, "excluded_in", lambda self, catalog, tablet, uuid: 1),
    ]


@defect("mending", 200, seed=60)
def copy_from_anybody() -> list[Swap]:
    """A copy is made from any replica, also from one that does not lead."""
    return [
        (CopySources, "_require_leading", lambda self, replica, term: replica.require_running()),
        (Copies, "_require_term", lambda self, request, term: None),
        (Job, "_require_not_older", lambda self, parts: None),
    ]


@defect("mending", 40, Starting, "_read_tombstone", seed=2)
async def start_forgets_its_end(original: Any, self: Starting, superblock: Superblock) -> None:
    """A start forgets the end of a tombstone's log."""
    await original(self, replace(superblock, last=START))
