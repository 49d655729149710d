"""The plan of a message with entries."""

from __future__ import annotations

from collections.abc import Sequence

from ebla.actors.messages.stream import AppendRequest
from ebla.actors.tablet.engine.core import Plan
from ebla.storage.logs.entries import Entry


class AppendPlan(Plan, frozen=True, kw_only=True):
    """An AppendRequest whose entries `first`..`last` (none if last < first) the caller reads from
    its log. `number` and `match` are for the core: the message's number, and the index up to which
    the peer was known to agree."""

    previous_index: int
    previous_term: int
    commit_index: int
    all_replicated: int
    number: int = 0
    match: int = 0
    unsafe: int = 0
    quiesce: bool = False

    @property
    def covers(self) -> int:
        """The index up to which a follower agrees if it accepts the message."""
        return max(self.previous_index, self.last)

    def request(self, leader: str, entries: Sequence[Entry]) -> AppendRequest:
        assert len(entries) == max(0, self.last - self.first + 1), (
            "a message has the entries of its plan",
            self,
        )
        assert not entries or entries[0].index == self.first, ("a message begins where its plan does", self)
        return AppendRequest(
            term=self.term,
            leader=leader,
            previous_index=self.previous_index,
            previous_term=self.previous_term,
            entries=tuple(entries),
            commit_index=self.commit_index,
            all_replicated=self.all_replicated,
            unsafe=self.unsafe,
            quiesce=self.quiesce,
        )
