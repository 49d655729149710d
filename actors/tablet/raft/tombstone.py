"""How a replica without a log votes: with the position that its log ended at. Stand-in until the core's own."""

from __future__ import annotations

from ebla.actors.tablet.raft import election
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.tablet.raft.log_index import LogIndex
from ebla.actors.tablet.raft.messages import AppendRequest, HardState, VoteReply, VoteRequest


class Tombstone:
    def __init__(
        self,
        tablet: str,
        me: str,
        hard_state: HardState,
        last: tuple[int, int] | None,
        limits: RaftLimits,
        now: float,
    ) -> None:
        self.hard_state = hard_state
        self.last = last
        self._limits = limits
        self._withheld = now + limits.election_s_min

    def heard(self, now: float, request: AppendRequest) -> None:
        if request.term >= self.hard_state.term:
            self._withheld = now + self._limits.election_s_min

    def vote(self, now: float, request: VoteRequest) -> VoteReply:
        if self.last is None:
            return VoteReply(self.hard_state.term, False, request.pre_vote, election.LOG_BEHIND)
        log = LogIndex(self.last[1], self.last[0])
        reason = election.judge(request, self.hard_state, log, leader_alive=now < self._withheld)
        if not request.pre_vote and reason != election.LEADER_ALIVE and request.term > self.hard_state.term:
            self.hard_state = HardState(request.term)
        granted = reason == election.GRANTED
        if granted and not request.pre_vote and self.hard_state.vote is None:
            self.hard_state = HardState(self.hard_state.term, request.candidate)
        return VoteReply(self.hard_state.term, granted, request.pre_vote, reason)
