"""What a server knows of another one on whose liveness its quiescent groups rely, and when it sends it the next message."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.actors.tablet.engine.core import NEVER
from ebla.actors.tablet.engine.quiescence import Answered
from ebla.actors.tablet.engine.replica import Replica

# Of a lease, between two messages: if two are lost one after the other, the third comes before the lease of the last answer is over.
INTERVAL_SHARE, AGAIN_SHARE = 0.5, 0.2
EARLY_SHARE = 0.1  # of a lease: a message goes earlier by that if one goes to another server, and both go together from then on
GIVE_UP_S = 60.0  # a server that has been silent for so long gets no changes, until groups rely on it again


@dataclass(eq=False)
class Changes:
    """The tablets whose replica here has changed its stance, until the other server knows; each with the number of the change."""

    numbers: dict[str, int] = field(default_factory=dict)
    last: int = 0

    def add(self, tablet: str) -> None:
        self.last += 1
        self.numbers[tablet] = self.last

    def taken(self, upto: int) -> None:
        if self.numbers:
            self.numbers = {tablet: number for tablet, number in self.numbers.items() if number > upto}


@dataclass(eq=False)
class Other:
    """Another server.

    `led`: the leaders here that rely on its replicas; `absent`: the quiescent leaders here whose replica there did not answer;
    `followed`: the quiescent followers here of leaders there. `start`: of its incarnation that all of this belongs to.
    """

    uuid: str
    start: str
    address: str = ""
    led: dict[str, Replica] = field(default_factory=dict)
    absent: dict[str, Replica] = field(default_factory=dict)
    # Those that woke because it answered again, and when.
    returned: dict[Replica, float] = field(default_factory=dict)
    leader_changes: Changes = field(default_factory=Changes)
    taken: int = 0  # the number of its latest change that we have taken
    sent_at: float = NEVER
    since: float = NEVER  # when it last answered, or leaders here began to rely on it
    noted_at: float = NEVER  # when leaders here last learned that it is silent
    in_flight: int = 0
    refused_at: float = NEVER  # when those that are quiescent without it last learned that it refuses
    has_ended: bool = False  # its process, for certain
    followed: dict[str, Replica] = field(default_factory=dict)
    follower_changes: Changes = field(default_factory=Changes)

    def wanted(self, now: float) -> bool:
        """Whether it needs messages."""
        return bool(self.led or self.absent or (self.leader_changes.numbers and now - self.since < GIVE_UP_S))

    def next_at(self, answered: Answered | None, lease_s: float) -> float:
        """The time of the next message, if one is wanted. `answered`: its last answer."""
        return self.sent_at + lease_s * (INTERVAL_SHARE if self._is_calm(answered) else AGAIN_SHARE)

    def early_at(self, answered: Answered | None, lease_s: float) -> float:
        """The time from which the next message may go together with one to another server."""
        return self.next_at(answered, lease_s) - (EARLY_SHARE * lease_s if self._is_calm(answered) else 0.0)

    def _is_calm(self, answered: Answered | None) -> bool:
        """Whether nothing waits for the next message: an answer, groups that return to the server, changes that it does not know."""
        has_answered = answered is not None and answered.sent_at >= self.sent_at
        return has_answered and not self.absent and not self.leader_changes.numbers
