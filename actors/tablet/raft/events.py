"""The limits of the Raft core."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ebla.actors.tablet.stream.limits import StreamLimits

PRE_CANDIDATE = "pre_candidate"


@dataclass(frozen=True, kw_only=True)
class RaftLimits(StreamLimits):
    """A leader trusts its lease for `lease_s` of its own clock after the *sending* of a message
    that a majority answered; a voter that accepted the message helps no challenger for
    `election_s_min` of its clock after its *arrival*, as long as that leader may lead. So reads stay linearizable unless a voter's
    clock runs faster than the leader's by election_s_min / lease_s or more: 1.25 by default, a
    drift of 25 %. Clocks need not agree on the time, only on its speed; a paused process does no
    harm.
    """

    election_s_min: float = 1.0  # the timeout is drawn from [min, 2 min); six lost heartbeats at least
    election_s_max: float = 20.0  # the longest back-off after failed elections (Kudu's number)
    lease_s: float = 0.8

    def rules(self) -> list[tuple[bool, str]]:
        return [
            *super().rules(),
            (self.heartbeat_s <= self.lease_s / 2, "heartbeat_s must be above 0, at most lease_s / 2"),
            (self.lease_s < self.election_s_min, "lease_s must be below election_s_min, or reads go stale"),
            (self.election_s_min <= self.election_s_max, "election_s_max must not be below election_s_min"),
        ]

    @cached_property
    def patience_s(self) -> float:
        return self.lease_s / 2

    @property
    def absent_s(self) -> float:
        return 2 * self.election_s_min
