"""What must hold where the members of a tablet change, and where a tablet is copied.

    commits_have_a_majority     a leader commits what a majority of the voters holds durably, as they told it; nobody else counts
    only_voters_count           in an election, and for what a leader commits and its lease: the voters of its configuration
    elections_have_a_majority   who leads was voted for by a majority of them
    promoted_have_caught_up     a leader makes a voter of whom it knows to hold what was committed some time before
    forced_only_when_asked      a configuration that is forced is one that an operator asked for
    changes_were_asked_for      a configuration is a promotion, forced, or the answer to a request on the very one before it: one
                                that was made from an older one has no effect
    anchors_hold                no log lets go of what an open copy session is still to send
    newcomers_stay              a replica that its leader is adding does not become a tombstone because it left

A look comes late: what is past by then is known from earlier looks, and where it is not, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ebla.actors.master.errands.messenger import LEFT
from ebla.actors.messages.repair import ChangeMembersRequest, UnsafeChangeRequest
from ebla.actors.replication.configuration import (
    PRE_VOTER,
    Configuration,
    Order,
)
from ebla.actors.tablet.engine.core import LEADER
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.raft import members, membership
from ebla.actors.tablet.raft.members import raft_of
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.simulation.network import SimulatedNetwork
from ebla.storage.errors import StorageError

NO_ORDER: Order = (0, -2)  # of no configuration

# Clocks run up to a tenth apart.
DRIFT = 1.3

_configuration = msgspec.msgpack.Decoder(Configuration).decode
_request = msgspec.msgpack.Decoder(ChangeMembersRequest).decode
_forced = msgspec.msgpack.Decoder(UnsafeChangeRequest).decode


@dataclass
class Reign:
    """What was seen of one leader's term: its commit index and configuration at the last look, and both at earlier ones."""

    commit_index: int
    configuration: Configuration
    looked_at: float
    commits: list[tuple[float, int]] = field(default_factory=list)

    def committed_at(self, at: float) -> int:
        return max((index for when, index in self.commits if when <= at), default=0)


@dataclass
class Membership:
    """`asked`: every request to change a tablet's members, whoever sent it, whatever became of it."""

    reigns: dict[tuple[str, int], Reign] = field(default_factory=dict)
    configurations: dict[str, dict[Order, Configuration]] = field(default_factory=dict)  # committed ones
    judged: dict[tuple[str, int, int], None] = field(default_factory=dict)  # tablet, index, term
    asked: dict[str, list[ChangeMembersRequest]] = field(default_factory=dict)
    forced: dict[str, list[UnsafeChangeRequest]] = field(default_factory=dict)

    def listen(self, network: SimulatedNetwork) -> None:
        network.tap("change_members", self._heard)
        network.tap("unsafe_change", self._heard_forced)

    def _heard(self, data: bytes) -> None:
        request = _request(data)
        self.asked.setdefault(request.tablet, []).append(request)

    def _heard_forced(self, data: bytes) -> None:
        request = _forced(data)
        self.forced.setdefault(request.tablet, []).append(request)

    def look_at(self, replica: Replica, now: float, who: str) -> None:
        """Raises AssertionError, as the others do."""
        core = replica.core
        committed = core.committed_configuration
        self.configurations.setdefault(replica.tablet, {}).setdefault(committed.order, committed)
        only_voters_count(replica, who)
        if core.role != LEADER:
            return
        one_change_at_a_time(replica, who)
        before = self.reigns.get((replica.tablet, core.term))
        if before is not None:
            commits_have_a_majority(replica, before, who)
        reign = before or Reign(core.commit_index, core.configuration, now)
        self._judge_changes(replica, reign if before else None, who)
        reign.commit_index, reign.configuration, reign.looked_at = core.commit_index, core.configuration, now
        reign.commits.append((now, core.commit_index))
        self.reigns[replica.tablet, core.term] = reign

    def _judge_changes(self, replica: Replica, reign: Reign | None, who: str) -> None:
        core, log = replica.core, replica.log
        known = self.configurations[replica.tablet]
        for made in core.log.configurations:
            key = replica.tablet, made.index, core.term
            if key in self.judged or not log.dropped.index < made.index <= log.last_index:
                continue
            if log.position(made.index).term != core.term:
                continue  # of another leader, who is not asked any more
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
            elif reign is not None:
                promoted_have_caught_up(replica, promoted, reign, who)


class Newcomers:
    """Replicas that knew at the last look that they are in a configuration that is not committed, and that their leader has: its
    term and the configuration's order."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, Order]] = {}

    def look_at(self, servers: Iterable[TabletServer]) -> None:
        cores = [(server, replica.core) for server in servers for replica in server.replicas.values()]
        led = {(core.tablet, core.term): core.configuration.order for _, core in cores if core.role == LEADER}
        for server in servers:
            for tablet, tombstone in server.lifecycle.tombstones.items():
                term, order = self._known.get((server.instance.start, tablet), (0, NO_ORDER))
                still_added = led.get((tablet, term)) == order
                assert not still_added or tombstone.superblock.reason != LEFT, (
                    f"{server.world.address} was told to make a tombstone of tablet {tablet}, and the leader of term {term} is "
                    f"adding it at {order}"
                )
        self._known = {
            (server.instance.start, core.tablet): (core.term, core.configuration.order)
            for server, core in cores
            if core.configuration != core.committed_configuration
            and core.configuration.peer(core.me) is not None
            and led.get((core.tablet, core.term)) == core.configuration.order
        }


def one_change_at_a_time(replica: Replica, who: str) -> None:
    """Of two that a leader has made, and that are not committed, the second may have a majority that the first one's basis lacks."""
    core, log = replica.core, replica.log
    pending = [
        made.index
        for made in core.log.configurations
        if core.commit_index < made.index <= log.last_index and log.position(made.index).term == core.term
    ]
    assert len(pending) <= 1, f"{who} has made changes of members at {pending}, and none is committed"


def made_from(replica: Replica, index: int) -> int | None:
    """The index of the configuration that this one was made from; None if it cannot be read."""
    try:
        (entry,) = replica.log.load(index, index)
    except StorageError:
        return None  # the disk is gone, or damaged
    return _configuration(entry.payload).index


def is_forced(replica: Replica, made: Configuration) -> bool:
    """It begins its leader's term, in the place of the empty entry."""
    return replica.log.position(made.index - 1).term != replica.log.position(made.index).term


def forced_only_when_asked(made: Configuration, asked: Iterable[UnsafeChangeRequest], who: str) -> None:
    kept = {peer.uuid for peer in made.peers}
    assert any(set(request.keep) == kept for request in asked), (
        f"{who} has forced the configuration {made}, and nobody asked for it"
    )


def promoted_by(before: Configuration, made: Configuration) -> str | None:
    """Whom the leader made a voter, if that is all that the configuration changes."""
    for peer in before.peers:
        if peer.kind == PRE_VOTER and membership.promoted(before, peer.uuid).peers == made.peers:
            return peer.uuid
    return None


def commits_have_a_majority(replica: Replica, before: Reign, who: str) -> None:
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
    ballot, lead = core._ballot, core._lead
    voters = [peer.uuid for peer in core.configuration.voters()]
    counted = [*(ballot.answers if ballot is not None else ()), *(lead._voters if lead is not None else ())]
    strangers = [uuid for uuid in counted if uuid not in voters]
    assert not strangers, f"{who} counts {strangers}, who are none of the voters {voters}"


def elections_have_a_majority(replica: Replica, servers: Iterable[TabletServer], who: str) -> None:
    """Asked when a leader is first seen. Who is down, or has forgotten the tablet, may have voted; so may have who is in a later
    term by now."""
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
    if state is None or state.record.term > core.term:
        return True
    return (state.record.term, state.record.vote) == (core.term, core.me)


def promoted_have_caught_up(replica: Replica, uuid: str, reign: Reign, who: str) -> None:
    """What was committed an election timeout before the look that had not seen the promotion yet."""
    core = raft_of(replica)
    peer = core.progress.get(uuid)
    if peer is None:
        return  # it has gone again
    committed = reign.committed_at(reign.looked_at - DRIFT * core.limits.election_s_min)
    assert peer.match >= committed, (
        f"{who} has made {uuid} a voter, which holds {peer.match} entries; {committed} were committed long before"
    )


def changes_were_asked_for(
    before: Configuration, made: Configuration, asked: Iterable[ChangeMembersRequest], who: str
) -> None:
    requests = [
        request for request in asked if all(members.in_force(made, change) for change in request.changes)
    ]
    seen = [request.configuration_index for request in requests]
    assert before.index in seen or None in seen, (
        f"{who} has changed its members at index {made.index}, from those of index {before.index}; this was asked for only of "
        f"those of {seen}"
    )


def anchors_hold(server: TabletServer, who: str) -> None:
    for session in server.copy_sources.all():
        replica = session.replica
        if replica.state == RUNNING:
            dropped = replica.log.dropped.index
            assert dropped <= session.anchor, (
                f"{who} has let go of its log of {replica.tablet} up to {dropped}; a copy is to get what follows "
                f"{session.anchor}"
            )
