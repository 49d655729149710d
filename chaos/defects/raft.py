"""Defects of elections, commits, leases and reads."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors.messages import ReadIndexReply, TabletRequest
from ebla.actors.messages.raft import HardState, TimeoutNow
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.tablet.engine.core import Send
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.raft import election
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.election import ElectionTimer
from ebla.actors.tablet.raft.leadership import Leadership, majority_least
from ebla.actors.tablet.raft.state import RaftState
from ebla.actors.tablet.server import TabletServer
from ebla.actors.tablet.stream import member
from ebla.actors.tablet.stream.matching import Agreement, Disagreement, compare
from ebla.actors.tablet.stream.progress import Progress
from ebla.actors.world import rpc
from ebla.chaos.defects.defect import (
    ENDED_AND_UNHEARD,
    LATE_AND_UNHEARD,
    SLOW_AND_CUT_OFF,
    Swap,
    defect,
)


@defect("chains", 60, Leadership, "replicated_index", seed=1)
def acknowledge_before_commit(self: Leadership, own_durable: int) -> int:
    """A write is answered when it is on the leader's own disk."""
    return own_durable


@defect("five", 60, Leadership, "replicated_index", seed=14)
def follower_counts_twice(self: Leadership, own_durable: int) -> int:
    """One follower's acknowledgement counts twice."""
    held = [own_durable if uuid == self.me else self.peers[uuid].match for uuid in self._voters]
    best = sorted(held)[-1]
    return int(majority_least([*sorted(held)[1:], best], self._majority))


@defect("five", 400, RaftCore, "_advance_commit", seed=1)
def older_term_by_counting(self: RaftCore) -> None:
    """An entry of an older term is committed by counting its copies."""
    if self._lead is not None:
        self._commit_to(max(self.commit_index, self._lead.replicated_index(self.durable_index)))


@defect("registers", 60, RaftCore, "_receive_append", seed=1)
def commit_uncompared(original: Any, self: RaftCore, request: AppendRequest) -> Any:
    """A follower commits entries without comparing them with the leader's."""
    outcome = original(self, request)
    if not isinstance(outcome, AppendReply):
        self._commit_to(max(self.commit_index, min(request.commit_index, self.log.last_index)))
    return outcome


@defect("votes", 200, RaftState, "__init__", seed=1)
def forget_the_vote(
    original: Any, self: RaftState, tablet: str, me: str, hard_state: HardState, *rest: Any, **more: Any
) -> None:
    """A restart forgets the vote."""
    original(self, tablet, me, HardState(hard_state.term), *rest, **more)


@defect("votes", 400, Replica, "hard_state_durable", seed=1)
def vote_not_durable(self: Replica) -> None:
    """A vote is answered before it is on disk."""


@defect("elections", 100, seed=49)
def acknowledge_before_sync() -> list[Swap]:
    """A follower acknowledges entries before they are on disk."""

    def durable(self: Replica, index: int) -> None:
        return None

    def answer(self: RaftCore, pending: Any) -> AppendReply:
        if pending.term != self.term:
            return self._refuse_append(hint=0)
        return self._append_reply(True, pending.until, pending.until)

    return [(Replica, "entries_durable", durable), (RaftCore, "answer", answer)]


@defect("registers", 60, election, "judge", seed=2)
def vote_for_older_log(original: Any, *arguments: Any, **more: Any) -> Any:
    """A vote for a candidate that lacks entries."""
    reason = original(*arguments, **more)
    return election.GRANTED if reason == election.LOG_BEHIND else reason


@defect("elections", 60, election, "judge", seed=8)
def vote_twice(original: Any, request: Any, state: HardState, log: LogIndex, *, leader_alive: bool) -> Any:
    """Two votes in one term."""
    return original(request, HardState(state.term), log, leader_alive=leader_alive)


@defect("registers", 60, member, "compare", seed=3)
def truncate_without_conflict(
    log: LogIndex, commit_index: int, request: AppendRequest
) -> Agreement | Disagreement:
    """A late, shorter message truncates the entries of a later one."""
    outcome = compare(log, commit_index, request)
    after = request.previous_index + len(request.entries) + 1
    if isinstance(outcome, Disagreement) or outcome.first_new is not None or not request.entries:
        return outcome
    if log.dropped_index < after - 1 < log.last_index:
        return Agreement(outcome.until, after - 1, after - 1)
    return outcome


@defect("registers", 400, RaftCore, "durable", seed=42, faults=SLOW_AND_CUT_OFF)
def stale_durability(self: RaftCore, index: int, term: int, log_epoch: int | None = None) -> None:
    """A sync that ended after a truncation counts for the entries that replaced the truncated ones."""
    if self.durable_index < index <= self.log.last_index:
        self.durable_index = index
        self._advance_commit()


@defect("restarts", 100, ElectionTimer, "__init__", seed=50)
def vote_right_after_a_restart(
    original: Any, self: ElectionTimer, limits: Any, random: Any, now: float, **which: bool
) -> None:
    """A restarted replica votes against the leader that it followed before."""
    original(self, limits, random, now, **which)
    self.withheld_until = now


@defect("registers", 60, RaftCore, "read_index", seed=1)
def no_lease(self: RaftCore, now: float) -> int:
    """A leader reads without a lease."""
    if self._lead is None:
        raise self._not_leader("serves no linearizable reads", leader=self.leader)
    return self.commit_index


@defect("reads", 200, RaftCore, "read_index", seed=4)
def read_before_own_term(self: RaftCore, now: float) -> int:
    """A new leader reads before it has committed in its term."""
    self._pass_time(now)
    lead = self._lead
    if lead is None:
        raise self._not_leader("serves no linearizable reads", leader=self.leader)
    if now >= lead.lease_until(now):
        raise errors.Unavailable("no lease")
    return self.commit_index


@defect("tokens", 20, seed=2)
def local_read_unasked() -> list[Swap]:
    """A node-local read gets no index up to which it must see."""
    original = TabletServer.read_index

    async def read_index(self: TabletServer, request: TabletRequest) -> ReadIndexReply:
        return replace(await original(self, request), index=0)

    del read_index.__annotations__["self"]  # `rpc` reads the request and the answer from the rest
    return [(TabletServer, "read_index", rpc(read_index))]


@defect("leases", 60, Progress, "answered", seed=3, faults=LATE_AND_UNHEARD)
def lease_from_answer(
    original: Any, self: Progress, now: float, sent_at: float, plan: Any, answer: AppendReply
) -> None:
    """The lease counts from the answer, not from the question."""
    original(self, now, now, plan, answer)


@defect("drift", 400, Leadership, "lease_until", seed=319)
def lease_without_margin(self: Leadership, now: float) -> float:
    """A lease is trusted for as long as votes are withheld, as if all clocks had the same speed."""
    acked = [now if uuid == self.me else self.peers[uuid].acked_at for uuid in self._voters]
    return majority_least(acked, self._majority) + self._limits.election_s_min


@defect("leases", 60, RaftState, "_leader_has_ended", seed=2, faults=ENDED_AND_UNHEARD)
def promises_ignored_for_ever(self: RaftState) -> bool:
    """Once the process of a leader has ended, its followers ask the voters to ignore their promises to later leaders, too."""
    return self._ended_in >= 0


@defect("handovers", 100, RaftCore, "_continue_transfer", seed=59)
def lead_after_abdicating(self: RaftCore) -> None:
    """A leader that ordered its successor to take over still answers reads."""
    lead = self._lead
    if lead is None or lead.transfer is None or not lead.successor_ready(self._now - self.limits.lease_s):
        return
    successor, lead.transfer = lead.transfer.successor, None
    self._letters.append(Send(successor, TimeoutNow(self.term, self.me, self.configuration.unsafe)))
