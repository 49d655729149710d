"""Invariants of changes of members and of copies.

    commits_have_a_majority     a leader commits an entry when a majority of voters has acknowledged it; no other member counts
    only_voters_count           only voters count in elections, for commits and for the lease
    elections_have_a_majority   a majority of voters voted for the leader
    promoted_have_caught_up     a leader promotes a member that has the entries committed some time before
    forced_only_when_asked      every forced configuration is one that an operator requested
    changes_were_asked_for      a configuration is a promotion, is forced, or answers a request that names the configuration
                                just before it; a request that names an older one has no effect
    anchors_hold                no log drops entries that an open copy session still has to send
    newcomers_stay              a replica that its leader is adding does not become a tombstone because it left

A check sees a change some time later. Earlier checks supply the past; where they do not, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ebla.actors.master.errands.messenger import LEFT
from ebla.actors.messages.repair import ChangeMembersRequest, UnsafeChangeRequest
from ebla.actors.replication.configuration import PRE_VOTER, Configuration, Order
from ebla.actors.tablet.engine.core import LEADER
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.raft import membership
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.members import raft_of
from ebla.actors.tablet.server import TabletServer
from ebla.actors.tablet.stream.member_changes import in_force
from ebla.chaos.simulation.network import SimulatedNetwork
from ebla.storage.errors import StorageError

NO_ORDER: Order = (0, -2)  # of no configuration
DRIFT = 1.3  # clocks run up to a tenth apart

_configuration = msgspec.msgpack.Decoder(Configuration).decode


@dataclass
class LeaderTerm:
    """One leader's term: its commit index and configuration at the last check, and its commit indexes at all checks."""

    commit_index: int
    configuration: Configuration
    checked_at: float
    commits: list[tuple[float, int]] = field(default_factory=list)

    def committed_at(self, at: float) -> int:
        return max((index for when, index in self.commits if when <= at), default=0)


@dataclass
class Membership:
    """`asked`: every request to change a tablet's members, from any sender and with any outcome."""

    terms: dict[tuple[str, int], LeaderTerm] = field(default_factory=dict)
    configurations: dict[str, dict[Order, Configuration]] = field(default_factory=dict)  # committed ones
    judged: dict[tuple[str, int, int], None] = field(default_factory=dict)  # tablet, index, term
    asked: dict[str, list[ChangeMembersRequest]] = field(default_factory=dict)
    forced: dict[str, list[UnsafeChangeRequest]] = field(default_factory=dict)

    def listen(self, network: SimulatedNetwork) -> None:
        network.tap("change_members", ChangeMembersRequest, self._note_change)
        network.tap("unsafe_change", UnsafeChangeRequest, self._note_forced)

    def _note_change(self, request: ChangeMembersRequest) -> None:
        self.asked.setdefault(request.tablet, []).append(request)

    def _note_forced(self, request: UnsafeChangeRequest) -> None:
        self.forced.setdefault(request.tablet, []).append(request)

    def check(self, replica: Replica, now: float, who: str) -> None:
        core = replica.core
        committed = core.committed_configuration
        self.configurations.setdefault(replica.tablet, {}).setdefault(committed.order, committed)
        only_voters_count(replica, who)
        if core.role != LEADER:
            return
        one_change_at_a_time(replica, who)
        before = self.terms.get((replica.tablet, core.term))
        if before is not None:
            commits_have_a_majority(replica, before, who)
        term = before or LeaderTerm(core.commit_index, core.configuration, now)
        self._judge_changes(replica, before, who)
        term.commit_index, term.configuration, term.checked_at = core.commit_index, core.configuration, now
        term.commits.append((now, core.commit_index))
        self.terms[replica.tablet, core.term] = term

    def _judge_changes(self, replica: Replica, term: LeaderTerm | None, who: str) -> None:
        core, log = replica.core, replica.log
        known = self.configurations[replica.tablet]
        for made in core.log.configurations.values():
            key = replica.tablet, made.index, core.term
            if key in self.judged or not log.dropped.index < made.index <= log.last_index:
                continue
            if log.position(made.index).term != core.term:
                continue  # made by an earlier leader
            self.judged[key] = None
            basis = made_from(replica, made.index)
            if is_forced(replica, made):
                forced_only_when_asked(made, self.forced.get(replica.tablet, ()), who)
                continue
            before = known.get((made.unsafe, basis)) if basis is not None else None
            if before is None:
                continue
            promoted = promoted_by(before, made)
            if promoted is None:
                asked = self.asked.get(replica.tablet, ())
                changes_were_asked_for(before, made, asked, who)
            elif term is not None:
                promoted_have_caught_up(replica, promoted, term, who)


class Newcomers:
    """Replicas that were, at the last check, in an uncommitted configuration that their leader also had: the leader's term and
    the configuration's order."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, Order]] = {}

    def check(self, servers: Iterable[TabletServer]) -> None:
        cores = [(server, replica.core) for server in servers for replica in server.replicas.values()]
        led = {(core.tablet, core.term): core.configuration.order for _, core in cores if core.role == LEADER}
        for server in servers:
            for tablet, tombstone in server.lifecycle.tombstones.items():
                term, order = self._known.get((server.instance.start, tablet), (0, NO_ORDER))
                left = tombstone.superblock.reason == LEFT
                # An operator forced it out, without the leader that adds it.
                forced_since = tombstone.superblock.unsafe > order[0]
                assert not left or forced_since or led.get((tablet, term)) != order, (
                    f"{server.world.address} had to make a tombstone of tablet {tablet}, although the leader of term {term} is "
                    f"adding it at {order}"
                )
        self._known = {
            (server.instance.start, core.tablet): (core.term, core.configuration.order)
            for server, core in cores
            if isinstance(core, RaftCore)
            and core.configuration != core.committed_configuration
            and core.configuration.peer(core.me) is not None
            and led.get((core.tablet, core.term)) == core.configuration.order
        }


def is_raft(replica: Replica) -> bool:
    return isinstance(replica.core, RaftCore)


def one_change_at_a_time(replica: Replica, who: str) -> None:
    """A leader makes no change while another one is uncommitted: the second might get a majority that the configuration before
    the first does not have."""
    core, log = replica.core, replica.log
    pending = [
        made.index
        for made in core.log.configurations.values()
        if core.commit_index < made.index <= log.last_index and log.position(made.index).term == core.term
    ]
    assert len(pending) <= 1, f"{who} has made changes of members at {pending}, and none is committed"


def made_from(replica: Replica, index: int) -> int | None:
    """The index of the configuration that the entry at `index` was made from; None if the entry cannot be read."""
    try:
        (entry,) = replica.log.load(index, index)
    except StorageError:
        return None  # the disk is lost, or damaged
    return _configuration(entry.payload).index


def is_forced(replica: Replica, made: Configuration) -> bool:
    """Whether the configuration begins its leader's term, in place of the empty entry."""
    return replica.log.position(made.index - 1).term != replica.log.position(made.index).term


def forced_only_when_asked(made: Configuration, asked: Iterable[UnsafeChangeRequest], who: str) -> None:
    kept = {peer.uuid for peer in made.peers}
    assert any(set(request.keep) == kept for request in asked), (
        f"{who} has forced the configuration {made}, which no operator requested"
    )


def promoted_by(before: Configuration, made: Configuration) -> str | None:
    """The member that the leader made a voter, if the configuration changes nothing else."""
    for peer in before.peers:
        if peer.kind == PRE_VOTER and membership.promoted(before, peer.uuid).peers == made.peers:
            return peer.uuid
    return None


def commits_have_a_majority(replica: Replica, before: LeaderTerm, who: str) -> None:
    core, configuration = replica.core, replica.core.configuration
    if core.commit_index == before.commit_index or configuration != before.configuration:
        return
    voters, progress = configuration.voters(), core.progress
    held = {
        peer.uuid: core.durable_index if peer.uuid == core.me else progress[peer.uuid].match
        for peer in voters
    }
    holding = [uuid for uuid, index in held.items() if index >= core.commit_index]
    assert len(holding) >= configuration.majority, (
        f"{who} has committed {core.commit_index} entries; of its voters {held} only {len(holding)} hold them"
    )


def only_voters_count(replica: Replica, who: str) -> None:
    core = raft_of(replica)
    poll, lead = core._poll, core._lead
    voters = [peer.uuid for peer in core.configuration.voters()]
    counted = [*(poll.answers if poll is not None else ()), *(lead._voters if lead is not None else ())]
    strangers = [uuid for uuid in counted if uuid not in voters]
    assert not strangers, f"{who} counts {strangers}, which are not among the voters {voters}"


def elections_have_a_majority(replica: Replica, servers: Iterable[TabletServer], who: str) -> None:
    """Checked when a leader is first seen. A server that is down, has forgotten the tablet, or is in a later term may have
    voted."""
    core = raft_of(replica)
    lead, configuration = core._lead, core.configuration
    if lead is None or configuration.index >= lead.noop:
        return  # forced, or changed since
    against = [server.instance.uuid for server in servers if not _may_have_voted(server, replica)]
    voters = [peer.uuid for peer in configuration.voters()]
    may = [uuid for uuid in voters if uuid not in against]
    assert len(may) >= configuration.majority, (
        f"{who} leads term {core.term}, and of the voters {voters} only {may} can have voted for it"
    )


def _may_have_voted(server: TabletServer, replica: Replica) -> bool:
    core = replica.core
    if server.instance.uuid == core.me:
        return True
    try:
        state = server.consensus.get(replica.tablet)
    except StorageError:
        return True
    if state is None or state.hard_state.term > core.term:
        return True
    return (state.hard_state.term, state.hard_state.vote) == (core.term, core.me)


def promoted_have_caught_up(replica: Replica, uuid: str, term: LeaderTerm, who: str) -> None:
    """The member has the entries that were committed an election timeout before the last check without the promotion."""
    core = raft_of(replica)
    peer = core.progress.get(uuid)
    if peer is None:
        return  # removed since
    committed = term.committed_at(term.checked_at - DRIFT * core.limits.election_s_min)
    assert peer.match >= committed, (
        f"{who} has made {uuid} a voter, which holds {peer.match} entries; {committed} were committed long before"
    )


def changes_were_asked_for(
    before: Configuration, made: Configuration, asked: Iterable[ChangeMembersRequest], who: str
) -> None:
    requests = [request for request in asked if all(in_force(made, change) for change in request.changes)]
    seen = [request.configuration_index for request in requests]
    assert before.index in seen or None in seen, (
        f"{who} has changed its members at index {made.index}, from those of index {before.index}; requests named only {seen}"
    )


def anchors_hold(server: TabletServer, who: str) -> None:
    for session in server.copy_sources.all():
        replica = session.replica
        if replica.state == RUNNING:
            dropped = replica.log.dropped.index
            assert dropped <= session.anchor, (
                f"{who} has dropped its log of {replica.tablet} up to {dropped}; a copy still needs the entries after "
                f"{session.anchor}"
            )
