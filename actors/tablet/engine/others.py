"""What a server keeps of each other server for the quiescent groups that they share: see liveness.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ebla.actors.messages.peers import LivenessReply
from ebla.actors.tablet.engine.core import NEVER
from ebla.actors.tablet.engine.replica import Replica

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


class Asked(NamedTuple):
    """A request that went with an answer. `upto`: as in the request."""

    number: int
    upto: int
    sent_at: float


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
    followed: dict[str, Replica] = field(default_factory=dict)
    follower_changes: Changes = field(default_factory=Changes)
    asked: Asked | None = None  # the last request that went with an answer, until it is answered
    number: int = 0  # of the last such request
    owed: LivenessReply | None = None  # the answer to its last such request

    def wanted(self, now: float) -> bool:
        """Whether it needs messages."""
        return bool(self.led or self.absent or (self.leader_changes.numbers and now - self.since < GIVE_UP_S))
