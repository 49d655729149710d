"""The limits of the Raft core, and the plan of a message with entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ebla.actors.messages.raft import AppendRequest
from ebla.actors.tablet.engine.core import Plan
from ebla.storage.errors import InvalidArgument
from ebla.storage.logs.entries import Entry

PRE_CANDIDATE = "pre_candidate"


@dataclass(frozen=True)
class RaftLimits:
    """A leader trusts its lease for `lease_s` of its own clock after the *sending* of a message
    that a majority answered; a voter that accepted the message helps no challenger for
    `election_s_min` of its clock after its *arrival*. So reads stay linearizable unless a voter's
    clock runs faster than the leader's by election_s_min / lease_s or more: 1.25 by default, a
    drift of 25 %. Clocks need not agree on the time, only on its speed; a paused process does no
    harm.
    """

    heartbeat_s: float = 0.15
    election_s_min: float = 1.0  # the timeout is drawn from [min, 2 min); six lost heartbeats at least
    election_s_max: float = 20.0  # the longest back-off after failed elections (Kudu's number)
    lease_s: float = 0.8
    append_bytes_max: int = 1 << 20  # one message; a single larger entry travels alone
    inflight_max: int = 4  # messages with entries under way to one peer
    inflight_bytes_max: int = 8 << 20

    def __post_init__(self) -> None:
        for holds, remedy in (
            (0 < self.heartbeat_s <= self.lease_s / 2, "heartbeat_s must be above 0, at most lease_s / 2"),
            (self.lease_s < self.election_s_min, "lease_s must be below election_s_min, or reads go stale"),
            (self.election_s_min <= self.election_s_max, "election_s_max must not be below election_s_min"),
            (self.append_bytes_max > 0, "append_bytes_max must be above 0"),
            (self.inflight_max > 0, "inflight_max must be above 0"),
            (self.inflight_bytes_max > 0, "inflight_bytes_max must be above 0"),
        ):
            if not holds:
                raise InvalidArgument(f"{remedy}; got {self}")

    @cached_property
    def patience_s(self) -> float:
        """The time after which the next status message is sent although the last one has no answer."""
        return self.lease_s / 2


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
        )
