"""The votes of a replica without a log: a tombstone, or a replica that is being copied.

It keeps term, vote and the end of its former log, so it still protects the entries that it
acknowledged: a candidate that lacks them does not get its vote, and a group of which one member was
deleted and another one died can still elect (Kudu's tombstoned voting). It never campaigns, takes
no entries and adopts nothing from a leader. Replicas that were given up by a forced configuration
that it knows of get neither its vote nor its patience (forced.py).

After `receive` the caller makes `unsaved` durable, then calls `saved`, and only then sends the
answer. Saves are stored in their order.
"""

from __future__ import annotations

from ebla.actors.messages.raft import (
    Answer,
    HardState,
    RaftView,
    Request,
    TimeoutNowReply,
    VoteReply,
    VoteRequest,
)
from ebla.actors.messages.stream import FORCED, AppendRequest
from ebla.actors.tablet.engine.core import Voter
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.raft import election


class TombstoneVoter(Voter):
    """A voter without a log. If `last` is unknown it grants no vote, because any candidate may lack
    an entry that it has acknowledged."""

    hard_state: HardState

    def __init__(
        self,
        hard_state: HardState,
        last: tuple[int, int] | None,
        election_s_min: float,
        now: float,
        *,
        durable: HardState,
        forced_epoch: int = 0,
    ) -> None:
        super().__init__(hard_state, last, durable=durable, forced_epoch=forced_epoch)
        self._election_s_min = election_s_min
        # The replica may have answered a leader just before, and a lease may depend on that answer.
        self._withheld_until = now + election_s_min

    def asks_vote(self, request: Request) -> bool:
        return not isinstance(request, AppendRequest)

    def receive(self, now: float, request: Request) -> Answer | None:
        if isinstance(request, AppendRequest):
            if request.unsafe >= self.forced_epoch and request.term >= self.hard_state.term:
                self._withheld_until = max(self._withheld_until, now + self._election_s_min)
            return None
        if isinstance(request, VoteRequest):
            return self._vote(now, request)
        return TimeoutNowReply(self.hard_state.term)

    def view(self) -> RaftView:
        return RaftView(term=self.hard_state.term, last_index=self.last[0] if self.last else 0)

    def _vote(self, now: float, request: VoteRequest) -> VoteReply:
        if request.unsafe < self.forced_epoch:
            return VoteReply(self.hard_state.term, False, request.pre_vote, FORCED, self.forced_epoch)
        reason = self._judge(now, request)
        state = self.hard_state
        # This voter votes in no term, so it need not remember one, and must not invent one.
        if self.last is None:
            assert reason != election.GRANTED, "a voter that does not know its end grants no vote"
            return VoteReply(state.term, False, request.pre_vote, reason)
        if not request.pre_vote and reason != election.LEADER_ALIVE and request.term > state.term:
            state = HardState(request.term)
        granted = reason == election.GRANTED
        if granted and not request.pre_vote:
            state = HardState(request.term, request.candidate)
        known = self.hard_state
        assert state.term >= known.term, ("terms never go back", state, known)
        kept = state.term > known.term or known.vote in (None, state.vote)
        assert kept, ("a replica votes once a term", state, known)
        self.hard_state = state
        return VoteReply(state.term, granted, request.pre_vote, reason)

    def _judge(self, now: float, request: VoteRequest) -> str:
        index, term = self.last or (0, 0)
        log = LogIndex(dropped_index=index, dropped_term=term)
        alive = now < self._withheld_until
        reason = election.judge(request, self.hard_state, log, leader_alive=alive)
        return election.LOG_BEHIND if reason == election.GRANTED and self.last is None else reason
