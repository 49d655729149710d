"""The next change of members that a tablet needs, or none.

Await-free. `decide` uses the present leader's report on the committed configuration. Every step is one
change of the configuration, by compare-and-set, and the next step waits for a new report of the leader.
Kudu's 3-4-3 rules:

    evict       a member that cannot return (lost); a non-voter that failed, or is no longer needed; if there
                are more voters than the table wants, the one that failed, is leaving, or came last
    add         a pre-voter, as long as voters failed, are leaving or are missing; it counts once it has
                caught up
    hand over   a leaving leader leads until there are as many other voters as the table wants
    stay        the flag `replace` is removed if no server can take the replica

A failed voter is evicted after its replacement has caught up, so a voter that returns before keeps its
place, and the newcomer is evicted. A lost voter may be evicted first, which frees its host. A member is
evicted only if a majority of the remaining voters is healthy. No change begins unless a majority of the
present voters is healthy. The leader is never evicted.

PacificA tablets (Situation.least): the primary that reports can change members by itself, with the master, so no majority
is needed. A voter is evicted only if `min_members` others stay. If fewer voters than that are healthy, writes wait, and so a
replica is added at once (`urgent`), up to one member more than the table wants. A secondary that does not answer is a
pre-voter already, by its primary. Its data is old, but complete up to then, so it keeps its place until as many voters as the
table wants work elsewhere, or it takes the place of another newcomer; if its server returns before, it catches up and votes. A
server that has left keeps its data until the tablet is whole (`is_whole`).

Silence is tolerated during maintenance: the health of the silent replicas is then unknown. Members there
that failed, are lost or are leaving are handled as everywhere else; so is a silent pre-voter of a Raft
tablet, which has no complete data yet.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from ebla.actors.replication.configuration import NON_VOTER, VOTER, Configuration, Peer
from ebla.actors.replication.health import HEALTHY, LOST, SILENT, UNHEALTHY, UNKNOWN


class Situation(NamedTuple):
    """`configuration`: the committed one. `replicas`: the number of voters that the table wants. `health`: of
    the other members, from the leader. `draining`: addresses of draining servers; `maintained`: of servers in
    maintenance. `urgent`: the tablet's writes have been waiting for a voter."""

    configuration: Configuration
    replicas: int
    leader: str
    health: Mapping[str, str]
    draining: Container[str] = ()
    maintained: Container[str] = ()
    urgent: bool = False

    @property
    def is_appointed(self) -> bool:
        """Whether the master appoints the leader: a PacificA tablet."""
        return self.configuration.primary is not None

    @property
    def least(self) -> int:
        """The fewest voters that take writes."""
        return self.configuration.min_members if self.is_appointed else majority(self.replicas)


class Add(NamedTuple):
    peer: Peer


class Evict(NamedTuple):
    peer: Peer
    why: str


class HandOver(NamedTuple):
    leader: str


class Stay(NamedTuple):
    """`peer` without the flag `replace`."""

    peer: Peer


class Later(NamedTuple):
    """All servers that could take the replica are getting as many others as they may at a time."""


LATER = Later()
Action = Add | Evict | HandOver | Stay
Pick = Callable[[], Peer | Later | None]


class Member(NamedTuple):
    """`leaving`: has the flag `replace`, or is on a draining server. `place`: the index in the configuration;
    later members came later."""

    peer: Peer
    health: str
    leaving: bool
    place: int

    @property
    def broken(self) -> bool:
        return self.health in (SILENT, UNHEALTHY, LOST)

    @property
    def eviction_order(self) -> tuple[int, int]:
        """The highest is evicted first: the least healthy, then the one that came last."""
        weight = {LOST: 8, UNHEALTHY: 4, SILENT: 4, UNKNOWN: 1}.get(self.health, 0)
        return weight + 2 * self.leaving, self.place


def majority(voters: int) -> int:
    return voters // 2 + 1


def decide(situation: Situation, pick: Pick) -> Action | None:
    """Return the next step.

    `pick` returns the best server for one more replica, LATER, or None if there is none; it is called only if one is needed.
    """
    tablet = _Tablet(situation)
    return tablet.evict() or tablet.add(pick) or tablet.hand_over()


def settled(situation: Situation) -> bool:
    """Whether the tablet has all the members that it needs, and no others."""
    tablet = _Tablet(situation)
    voters = tablet.voters
    if len(voters) != situation.replicas or not all(each.health == HEALTHY for each in voters):
        return False
    return not any(each.leaving for each in tablet.members) and not any(
        each.peer.promote or each.broken for each in tablet.others
    )


def is_whole(situation: Situation) -> bool:
    """Whether as many voters as the table wants are healthy and stay, so that data on other servers is surplus."""
    tablet = _Tablet(situation)
    return tablet.viable >= tablet.wanted


def can_lose(situation: Situation, uuid: str) -> bool:
    """Whether the voter can be removed now: enough of the others vote, and are healthy. False for the leader."""
    tablet = _Tablet(situation)
    return any(each.peer.uuid == uuid and tablet.can_lose(each) for each in tablet.members)


def healthy_without(situation: Situation, uuid: str) -> int:
    """The number of other healthy voters."""
    return sum(each.health == HEALTHY and each.peer.uuid != uuid for each in _Tablet(situation).voters)


def writes_wait(situation: Situation) -> bool:
    """Whether too few voters of a PacificA tablet are healthy for writes, and no change of votes helps."""
    return situation.is_appointed and _Tablet(situation).healthy < situation.least


def is_needed(situation: Situation, uuid: str) -> bool:
    """Whether the member is a working voter, and there are no more voters than the table wants."""
    tablet = _Tablet(situation)
    return any(
        each.peer.uuid == uuid and not each.broken and len(tablet.voters) <= tablet.wanted
        for each in tablet.voters
    )


def wants_more(situation: Situation) -> bool:
    """Whether fewer replicas stay or are coming than the table wants."""
    return _Tablet(situation).wants_more


class _Tablet:
    def __init__(self, situation: Situation) -> None:
        self.leader = situation.leader
        self.wanted = situation.replicas
        self.is_appointed, self.least = situation.is_appointed, situation.least
        self.urgent = situation.urgent
        self.members = [
            Member(peer, _health(situation, peer), peer.replace or peer.address in situation.draining, place)
            for place, peer in enumerate(situation.configuration.peers)
        ]
        self.voters = [each for each in self.members if each.peer.member == VOTER]
        self.others = [each for each in self.members if each.peer.member != VOTER]
        self.healthy = sum(each.health == HEALTHY for each in self.voters)
        self.viable = sum(each.health == HEALTHY and not each.leaving for each in self.voters)
        self.coming = sum(each.peer.promote and not each.broken and not each.leaving for each in self.others)

    @property
    def can_change(self) -> bool:
        """Whether a change can be committed."""
        return self.is_appointed or self.healthy >= majority(len(self.voters))

    @property
    def wants_more(self) -> bool:
        if self.urgent and len(self.members) <= self.wanted:
            return True
        staying = sum(not each.leaving and not each.broken for each in self.voters)
        return staying + self.coming < self.wanted

    def evict(self) -> Evict | None:
        others = self.others if self.can_change else []
        voters = [each for each in self.voters if self.can_lose(each)]
        for found in (
            [each for each in others if each.health == LOST],
            [each for each in voters if each.health == LOST],
            [each for each in others if self._is_not_needed(each)],
            [each for each in voters if self._is_one_too_many(each)],
        ):
            if found:
                member = max(found, key=lambda each: each.eviction_order)
                return Evict(member.peer, self._why(member))
        return None

    def can_lose(self, member: Member) -> bool:
        """Whether a majority of the remaining voters is healthy, or of a PacificA tablet enough remain. False for the leader."""
        if member.peer.uuid == self.leader:
            return False
        if self.is_appointed:
            return len(self.voters) > self.least
        rest = self.healthy - (member.health == HEALTHY)
        return rest >= majority(len(self.voters) - 1)

    def _is_not_needed(self, member: Member) -> bool:
        """Whether to evict a non-voter. A healthy one that is no pre-voter stays: an operator added it."""
        if self.is_appointed and member.health == SILENT and member.peer.promote and not member.leaving:
            blocks = not self.coming or member is self.members[-1]
            return self.viable >= self.wanted or (blocks and len(self.members) > self.wanted)
        return member.broken or member.leaving or (member.peer.promote and self.viable >= self.wanted)

    def _is_one_too_many(self, member: Member) -> bool:
        if len(self.voters) <= self.wanted:
            return False
        if member.broken or self.viable > self.wanted:
            return True
        return self.viable >= self.wanted and (member.leaving or member.health == UNKNOWN)

    def _why(self, member: Member) -> str:
        if member.broken:
            return member.health
        if member.leaving:
            return "to be replaced" if member.peer.replace else "on a server that drains"
        return "one too many"

    def add(self, pick: Pick) -> Add | Stay | None:
        if not self.wants_more or not self.can_change:
            return None
        found = pick()
        if isinstance(found, Peer):
            return Add(Peer(found.uuid, found.address, NON_VOTER, promote=True))
        return None if found is LATER else self._stay()

    def _stay(self) -> Stay | None:
        """Remove the mark of a healthy voter if no server can replace it and no pre-voter is coming."""
        if self.coming:
            return None
        for each in self.voters:
            if each.peer.replace and each.health == HEALTHY:
                peer = each.peer
                return Stay(Peer(peer.uuid, peer.address, peer.member))
        return None

    def hand_over(self) -> HandOver | None:
        leader = next((each for each in self.voters if each.peer.uuid == self.leader), None)
        if leader is None or not leader.leaving or self.viable < self.wanted:
            return None
        return HandOver(self.leader)


def _health(situation: Situation, peer: Peer) -> str:
    """The health from the leader's report; tolerated silence is UNKNOWN."""
    if peer.uuid == situation.leader:
        return HEALTHY
    health = situation.health.get(peer.uuid, UNKNOWN)
    tolerated = health == SILENT and peer.address in situation.maintained
    tolerated = tolerated and (situation.is_appointed or not peer.promote)
    return UNKNOWN if tolerated else health
