"""Defects of quiescent groups, and of the messages between servers that they rely on."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ebla.actors.messages.peers import LivenessReply, LivenessRequest
from ebla.actors.tablet.engine.liveness import Liveness
from ebla.actors.tablet.engine.others import Changes, Other
from ebla.actors.tablet.engine.quiescence import Answered
from ebla.actors.tablet.raft.election import ElectionTimer
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.actors.tablet.stream.progress import Progress
from ebla.chaos.defects.defect import LATE_AND_UNHEARD, ONE_HOST_DOWN, defect


@defect("quiet", 100, Liveness, "_take", seed=17, faults=LATE_AND_UNHEARD)
def quiet_lease_from_the_answer(
    original: Any, self: Liveness, other: Other, reply: LivenessReply, upto: int, sent_at: float
) -> None:
    """The lease of a quiescent leader counts from the answer, not from the message."""
    original(self, other, reply, upto, sent_at)
    now = self.world.now()
    self._answered[other.uuid] = Answered(now, now)


@defect("quiet", 100, Liveness, "_take", seed=3)
def answers_for_those_awake(
    original: Any, self: Liveness, other: Other, reply: LivenessReply, upto: int, sent_at: float
) -> None:
    """A server's answer counts for followers there that are awake, and may vote for others."""
    original(self, other, replace(reply, woken=()), upto, sent_at)


@defect("quiet", 100, Liveness, "receive", seed=5)
def changes_reported_once(original: Any, self: Liveness, request: LivenessRequest) -> LivenessReply:
    """A server reports once that a follower there is awake, whether the answer arrives or not."""
    reply: LivenessReply = original(self, request)
    self._other(request.source.uuid).follower_changes.taken(reply.upto)
    return reply


@defect("quiet", 100, Liveness, "_watch", seed=0, faults=ONE_HOST_DOWN)
def quiet_follower_never_wakes(original: Any, self: Liveness, other: Other, *arguments: Any) -> None:
    """A quiescent follower does not notice that its leader's server is silent."""
    followed, other.followed = other.followed, {}
    original(self, other, *arguments)
    other.followed = followed


@defect("quiet", 100, Changes, "add", seed=17)
def wake_up_lost(self: Changes, tablet: str) -> None:
    """A leader that steps down does not report this to its quiescent followers."""
    self.last += 1


@defect("quiet", 100, Liveness, "_other", seed=1)
def restarted_follower_stays_quiet(original: Any, self: Liveness, uuid: str) -> Other:
    """A leader takes the answers of a server that was started again for those of a quiescent follower."""
    other = self._others.get(uuid)
    if other is not None:
        other.start = self.identity.others.known(uuid).start
    found: Other = original(self, uuid)
    return found


@defect("quiet", 100, Progress, "quiesces", seed=13)
def agreement_of_an_earlier_quiescence(self: Progress, now: float, plan: AppendPlan, last_index: int) -> None:
    """A late answer of an earlier quiescence lets a leader rely on a follower that is awake."""
    if self.holds_all(last_index):
        self.asked_to_quiesce = self.asked_to_quiesce or plan.number
        self.quiescent_since = now


@defect("quiet", 100, Progress, "quiesces", seed=41)
def first_answer_lost(self: Progress, now: float, plan: AppendPlan, last_index: int) -> None:
    """Only the answer to the first message that asks for quiescence counts: once it is lost, the group is never quiescent."""
    if plan.number == self.asked_to_quiesce and self.holds_all(last_index):
        self.quiescent_since = now


@defect("quiet", 100, ElectionTimer, "note_server", seed=24)
def quiet_follower_makes_no_promise(self: ElectionTimer, at: float) -> None:
    """A quiescent follower votes against the leader whose server it has just answered."""
    self.failures = 0
