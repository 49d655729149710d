"""The memory of a PacificA replica without a log: a tombstone, or a replica that is being copied.

It answers nothing for its group: nobody votes, and only a log can acknowledge entries. It remembers its ballot, so that the
replica that a copy makes of it leads no ballot that the former one may have led.
"""

from __future__ import annotations

from ebla.actors.messages import protocols
from ebla.actors.messages.pacifica import BallotRecord, PacificaView
from ebla.actors.messages.protocols import Request
from ebla.actors.tablet.engine.core import Verdict


class Remembered:
    """`last`: index and term of the former log's last entry, None if unknown. `durable`: the record on disk; the replica may
    have been stopped while a later one was being written."""

    def __init__(
        self,
        hard_state: BallotRecord,
        last: tuple[int, int] | None,
        *,
        durable: protocols.HardState,
        forced_epoch: int = 0,
    ) -> None:
        assert durable.term <= hard_state.term, ("ballots never go back", durable, hard_state)
        self.hard_state = hard_state
        self.last = last
        self.forced_epoch = forced_epoch
        self._durable = durable

    @property
    def unsaved(self) -> BallotRecord | None:
        return None if self.hard_state == self._durable else self.hard_state

    def saved(self, state: protocols.HardState) -> None:
        assert state.term >= self._durable.term, ("records are saved in order", state, self._durable)
        self._durable = state

    def view(self) -> PacificaView:
        return PacificaView(term=self.hard_state.term, last_index=self.last[0] if self.last else 0)

    def asks_vote(self, request: Request) -> bool:
        return False

    def receive(self, now: float, request: Request) -> Verdict:
        return Verdict(None, None)
