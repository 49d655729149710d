"""What becomes of a tablet whose members are not as they should be: the next step, or none.

Await-free. `decide` judges by what the tablet's present leader said of the committed configuration; every step is one change
of it, made with a compare-and-set, and after each the leader is heard again. Kudu's 3-4-3 rules:

    evict       who cannot come back (lost); a non-voter that failed, or that nobody needs any more; of more voters than the
                table wants the one that failed, is to go, or came last
    add         a pre-voter, for as long as voters failed, are to go or are missing; it counts once it has caught up
    hand over   a leader that is to go leads on until as many others are there as the table wants
    stay        a mark `replace` that no server can take the replica for is taken back

A failed voter goes after its replacement is there, so one that returns meanwhile keeps its place, and the newcomer goes. A
lost one may go first: the place of its host is free then. Nobody is evicted unless a majority of the voters that remain is
healthy, nothing is begun unless a majority of the present ones is, and the leader is never evicted.

Silence of a server in maintenance is borne: its replicas are not known to be well, and nothing more. What failed or is lost
there, or is to go, goes as anywhere else; so does a pre-voter that has fallen silent, which held nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from ebla.actors.replication.configuration import (
    NON_VOTER,
    VOTER,
    Configuration,
    Peer,
)
from ebla.actors.replication.health import (
    HEALTHY,
    LOST,
    SILENT,
    UNHEALTHY,
    UNKNOWN,
)


class Situation(NamedTuple):
    """`configuration`: committed. `health`: what the leader says of the others. `draining`: addresses of servers that shall
    hold nothing; `maintained`: of servers that may be silent. `replicas`: how many voters the table wants."""

    configuration: Configuration
    replicas: int
    leader: str
    health: Mapping[str, str]
    draining: Container[str] = ()
    maintained: Container[str] = ()


class Add(NamedTuple):
    peer: Peer


class Evict(NamedTuple):
    peer: Peer
    why: str


class HandOver(NamedTuple):
    """To whoever has caught up: those that are to go, too, are gone by then."""

    leader: str


class Stay(NamedTuple):
    """`peer` as it shall be: without the mark."""

    peer: Peer


Action = Add | Evict | HandOver | Stay
Pick = Callable[[], Peer | None]


class Member(NamedTuple):
    """`going`: marked `replace`, or on a server that drains. `age`: its place in the configuration; the last came last."""

    peer: Peer
    word: str
    going: bool
    age: int

    @property
    def broken(self) -> bool:
        return self.word in (SILENT, UNHEALTHY, LOST)


def majority(voters: int) -> int:
    return voters // 2 + 1


def decide(situation: Situation, pick: Pick) -> Action | None:
    """`pick` names the best server for one more replica, or None; it is asked only if one is needed."""
    tablet = _Tablet(situation)
    return tablet.evict() or tablet.add(pick) or tablet.hand_over()


def settled(situation: Situation) -> bool:
    """Whether everything is as it should be, so that nothing need be decided."""
    tablet = _Tablet(situation)
    voters = tablet.voters
    if len(voters) != situation.replicas or not all(each.word == HEALTHY for each in voters):
        return False
    return not any(each.going for each in tablet.members) and not any(
        each.peer.promote or each.broken for each in tablet.others
    )


def stands_without(situation: Situation, uuid: str) -> bool:
    """Whether a majority of the other voters is healthy. Never without the leader."""
    tablet = _Tablet(situation)
    return any(each.peer.uuid == uuid and tablet.stands_without(each) for each in tablet.members)


def healthy_without(situation: Situation, uuid: str) -> int:
    """How many healthy voters there are beside it."""
    return sum(each.word == HEALTHY and each.peer.uuid != uuid for each in _Tablet(situation).voters)


def is_needed(situation: Situation, uuid: str) -> bool:
    """Whether it is a voter that works, and the table wants as many as there are."""
    tablet = _Tablet(situation)
    return any(
        each.peer.uuid == uuid and not each.broken and len(tablet.voters) <= tablet.wanted
        for each in tablet.voters
    )


def wants_more(situation: Situation) -> bool:
    """Whether fewer replicas stay, or come, than the table wants."""
    return _Tablet(situation).wants_more


class _Tablet:
    def __init__(self, situation: Situation) -> None:
        self.leader = situation.leader
        self.wanted = situation.replicas
        self.members = [
            Member(peer, _word(situation, peer), peer.replace or peer.address in situation.draining, age)
            for age, peer in enumerate(situation.configuration.peers)
        ]
        self.voters = [each for each in self.members if each.peer.member == VOTER]
        self.others = [each for each in self.members if each.peer.member != VOTER]
        self.healthy = sum(each.word == HEALTHY for each in self.voters)
        self.viable = sum(each.word == HEALTHY and not each.going for each in self.voters)
        self.coming = sum(each.peer.promote and not each.broken and not each.going for each in self.others)

    @property
    def stands(self) -> bool:
        """Whether a change can be committed."""
        return self.healthy >= majority(len(self.voters))

    @property
    def wants_more(self) -> bool:
        staying = sum(not each.going and not each.broken for each in self.voters)
        return staying + self.coming < self.wanted

    # -- evict -----------------------------------------------------------------------------------------------

    def evict(self) -> Evict | None:
        others = self.others if self.stands else []
        voters = [each for each in self.voters if self.stands_without(each)]
        for found in (
            [each for each in others if each.word == LOST],
            [each for each in voters if each.word == LOST],
            [each for each in others if self._is_not_needed(each)],
            [each for each in voters if self._is_one_too_many(each)],
        ):
            if found:
                member = max(found, key=_weight)
                return Evict(member.peer, self._why(member))
        return None

    def stands_without(self, member: Member) -> bool:
        """Whether a majority of the voters that remain is healthy; never without the leader."""
        if member.peer.uuid == self.leader:
            return False
        rest = self.healthy - (member.word == HEALTHY)
        return rest >= majority(len(self.voters) - 1)

    def _is_not_needed(self, member: Member) -> bool:
        """Of a non-voter. One that is not to be promoted stays for as long as it is well: somebody wanted it."""
        return member.broken or member.going or (member.peer.promote and self.viable >= self.wanted)

    def _is_one_too_many(self, member: Member) -> bool:
        if len(self.voters) <= self.wanted:
            return False
        if member.broken or self.viable > self.wanted:
            return True
        return self.viable >= self.wanted and (member.going or member.word == UNKNOWN)

    def _why(self, member: Member) -> str:
        if member.broken:
            return member.word
        if member.going:
            return "to be replaced" if member.peer.replace else "on a server that drains"
        return "one too many"

    # -- add, hand over, stay --------------------------------------------------------------------------------

    def add(self, pick: Pick) -> Add | Stay | None:
        if not self.wants_more or not self.stands:
            return None
        peer = pick()
        if peer is not None:
            return Add(Peer(peer.uuid, peer.address, NON_VOTER, promote=True))
        return self._stay()

    def _stay(self) -> Stay | None:
        """Of a voter that could not go: nobody is there to take its place, or on the way."""
        if self.coming:
            return None
        for each in self.voters:
            if each.peer.replace and each.word == HEALTHY:
                peer = each.peer
                return Stay(Peer(peer.uuid, peer.address, peer.member))
        return None

    def hand_over(self) -> HandOver | None:
        leader = next((each for each in self.voters if each.peer.uuid == self.leader), None)
        if leader is None or not leader.going or self.viable < self.wanted:
            return None
        return HandOver(self.leader)


def _word(situation: Situation, peer: Peer) -> str:
    """What the leader says of it, or what that means in maintenance."""
    if peer.uuid == situation.leader:
        return HEALTHY
    word = situation.health.get(peer.uuid, UNKNOWN)
    borne = word == SILENT and peer.address in situation.maintained and not peer.promote
    return UNKNOWN if borne else word


def _weight(member: Member) -> tuple[int, int]:
    """Who goes first of several: the one that is worth least, then the one that came last."""
    worth = {LOST: 8, UNHEALTHY: 4, SILENT: 4, UNKNOWN: 1}.get(member.word, 0)
    return worth + 2 * member.going, member.age
