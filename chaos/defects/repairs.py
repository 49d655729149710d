"""What planted defects swap where members change and tablets are copied; chaos/defects/planted.py names them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.master.cluster.reports import Views
from ebla.actors.messages.raft import (
    HardState,
    VoteRequest,
)
from ebla.actors.replication.configuration import (
    PRE_VOTER,
    Configuration,
)
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.job import Job
from ebla.actors.tablet.copy.log_retention import LogRetention
from ebla.actors.tablet.copy.sources import CopySources
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.records import Superblock
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.lifecycle import bootstrap, deletion
from ebla.actors.tablet.lifecycle.deletion import Deletion
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.actors.tablet.raft import election, members, membership
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.election import Ballot
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.raft.parts import Raft
from ebla.actors.tablet.raft.progress import Progress
from ebla.actors.tablet.raft.state import RaftState
from ebla.actors.tablet.raft.tombstone import TombstoneVoter
from ebla.chaos.defects.replication import Swap
from ebla.storage.environment import DeleteRange
from ebla.storage.logs.entries import START
from ebla.storage.logs.shared_log import Found
from ebla.storage.tablets.results import RESULTS
from ebla.storage.tablets.tablet_store import path_of


def merge_forgets_the_vote() -> list[Swap]:
    def copied(self: Raft, own: HardState, source: str, term: int, *, knows_end: bool) -> HardState:
        merged = HardState(max(own.term, term))
        return merged if knows_end or merged != HardState(term) else HardState(term, source)

    return [(Raft, "copied", copied)]


def merge_takes_the_sources_term() -> list[Swap]:
    def copied(self: Raft, own: HardState, source: str, term: int, *, knows_end: bool) -> HardState:
        return HardState(term) if knows_end else HardState(term, source)

    return [(Raft, "copied", copied)]


def tombstone_votes_for_older_logs() -> list[Swap]:
    def judge(self: TombstoneVoter, now: float, request: VoteRequest) -> str:
        alive = now < self._withheld_until
        return election.judge(request, self.hard_state, LogIndex(), leader_alive=alive)

    return [(TombstoneVoter, "_judge", judge)]


def tombstone_votes_before_it_is_durable() -> list[Swap]:
    async def save(self: Tombstone, consensus: object) -> None:
        self.voter.saved(self.voter.hard_state)

    return [(Tombstone, "save", save)]


def tombstone_forgets_its_votes() -> list[Swap]:
    entomb = Deletion.entomb

    async def forget(self: Deletion, tablet: str, reason: str, unsafe: int = 0) -> Tombstone:
        tombstone = await entomb(self, tablet, reason, unsafe)
        await self.lifecycle.consensus.environment.commit([self.lifecycle.consensus.delete(tablet)])
        return tombstone

    return [(deletion.Deletion, "entomb", forget)]


def ready_before_the_data_is_durable() -> list[Swap]:
    reserve = Copies._reserve

    async def early(self: Copies, request: m.StartCopyRequest, begun: m.CopyBegun) -> Tombstone:
        tombstone = await reserve(self, request, begun)
        ready = replace(tombstone.superblock, state="ready", last=None)
        await self.lifecycle.superblocks.save(request.tablet, ready)
        return tombstone

    return [(Copies, "_reserve", early)]


def a_former_replicas_entries_are_taken_for_the_copys() -> list[Swap]:
    def gather(shared: Iterable[Found], tails: dict[str, bootstrap.Tail]) -> None:
        for found in shared:
            tail = tails.get(found.tablet)
            if tail is not None:
                tail.add(found.index, found.seq, found.record, found.damage)

    return [(bootstrap, "gather", gather)]


def the_log_is_not_copied() -> list[Swap]:
    begun = CopySources._begun

    def without(self: CopySources, replica: Replica, *rest: object) -> m.CopyBegun:
        told = begun(self, replica, *rest)  # type: ignore[arg-type]
        session = self.retention.sources[told.session]
        session.last = session.flushed
        return replace(told, last=told.flushed)

    return [(CopySources, "_begun", without), (Job, "_require_not_older", lambda self, parts: None)]


def answers_are_not_copied() -> list[Swap]:
    finish = Job._finish_data

    async def without(self: Job) -> None:
        await finish(self)
        data = await self.world.disk.open_environment(path_of(self.tablet), [RESULTS], create=False)
        await data.commit([DeleteRange(RESULTS, b"", None)])
        await data.close()

    return [(Job, "_finish_data", without)]


def non_voters_count() -> list[Swap]:
    reconfigure = Leadership.reconfigure

    def everybody(self: Leadership, configuration: Configuration, now: float, next_index: int) -> None:
        reconfigure(self, configuration, now, next_index)
        self._voters = tuple(peer.uuid for peer in configuration.peers)

    return [(Leadership, "reconfigure", everybody)]


def non_voters_elect() -> list[Swap]:
    become = RaftState._become_candidate

    def everybody(self: RaftState, *, pre_vote: bool, ordered: bool) -> Ballot:
        ballot = become(self, pre_vote=pre_vote, ordered=ordered)
        ballot.voters = tuple(peer.uuid for peer in self.configuration.peers)
        return ballot

    return [(RaftState, "_become_candidate", everybody)]


def promote_beside_a_pending_change() -> list[Swap]:
    def promote(self: RaftCore, peer: str, sent_at: float, committed: int) -> None:
        lead, member = self._lead, self.configuration.peer(peer)
        if lead is None or lead.transfer is not None or self.commit_index < lead.noop:
            return
        if member is None or member.kind != PRE_VOTER or not lead.peers[peer].caught_up(committed):
            return
        if self._now - sent_at <= self.limits.election_s_min:
            self._append_configuration(membership.promoted(self.configuration, peer))

    return [(RaftCore, "_promote", promote)]


def promote_at_once() -> list[Swap]:
    return [(Progress, "caught_up", lambda self, committed: True)]


def log_trimmed_under_a_copy() -> list[Swap]:
    return [(LogRetention, "anchor", lambda self, tablet: None)]


def ignore_the_compare_and_set() -> list[Swap]:
    return [(members, "require_unmoved", lambda replica, index, unsafe: None)]


def evict_who_is_being_added() -> list[Swap]:
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


def copy_from_whoever_asks() -> list[Swap]:
    return [
        (CopySources, "_require_leading", lambda self, replica, term: replica.require_running()),
        (Copies, "_require_term", lambda self, request, term: None),
        (Job, "_require_not_older", lambda self, parts: None),
    ]


def a_start_forgets_where_the_log_ended() -> list[Swap]:
    load = Lifecycle._load_tombstone

    async def forget(self: Lifecycle, superblock: Superblock) -> None:
        await load(self, replace(superblock, last=START))

    return [(Lifecycle, "_load_tombstone", forget)]
