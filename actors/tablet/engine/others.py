"""What a server knows of another one on whose liveness its quiescent groups rely, and when it sends it the next message."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.actors.tablet.engine.core import NEVER
from ebla.actors.tablet.engine.quiescence import Answered
from ebla.actors.tablet.engine.replica import Replica

# Of a lease, between two messages; after one without an answer; and after one without an answer while the lease of the last answer
# lasts: if two are lost one after the other, the third comes before it is over.
INTERVAL_SHARE, AGAIN_SHARE, HURRY_SHARE = 0.55, 0.25, 0.125
# Of an interval: a message that was sent so shortly before the common time replaces that one.
EARLY_SHARE = 0.25
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


class Pace:
    """The times of messages. Those to all servers that are well go together, so that this server wakes less often."""

    def __init__(self, lease_s: float, began: float) -> None:
        self.lease_s = lease_s
        self.interval_s = INTERVAL_SHARE * lease_s
        self._began = began

    def next_at(self, other: Other, answered: Answered | None) -> float:
        """The time of the next message, if one is wanted. Groups that return to the server, and changes that it does not know, wait
        for messages. `answered`: its last answer."""
        sent_at = other.sent_at
        if answered is not None and answered.sent_at >= sent_at:
            if not other.absent and not other.leader_changes.numbers:
                return self._next_together(sent_at)
        elif answered is not None and sent_at < answered.sent_at + self.lease_s:
            return sent_at + HURRY_SHARE * self.lease_s
        return sent_at + AGAIN_SHARE * self.lease_s

    def _next_together(self, sent_at: float) -> float:
        since_s = max(sent_at - self._began, 0.0) + EARLY_SHARE * self.interval_s
        return self._began + self.interval_s * (since_s // self.interval_s + 1)
