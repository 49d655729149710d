"""The times of a PacificA group."""

from __future__ import annotations

from dataclasses import dataclass

from ebla.actors.tablet.stream.limits import StreamLimits


@dataclass(frozen=True, kw_only=True)
class PacificaLimits(StreamLimits):
    """`silent_s`: a secondary that has not answered for this long becomes a learner. `stalled_s`: so does one that
    answers, and has not written an entry for this long that the primary's own disk holds; and a primary steps down whose
    disk has not written an entry for this long that the disks of all others hold. `handover_s`: for how long a
    primary that steps down waits for its successor to hold everything.

    A learner that has just lost its vote gets it back after `rejoin_s` at the earliest, and after twice as long every time
    that it loses it again soon, up to `rejoin_s_max`. Otherwise a member whose disk is slow now and then would
    delay writers again and again.
    """

    silent_s: float = 1.0
    stalled_s: float = 3.0
    handover_s: float = 1.0
    rejoin_s: float = 1.0
    rejoin_s_max: float = 60.0

    def rules(self) -> list[tuple[bool, str]]:
        return [
            *super().rules(),
            (4 * self.heartbeat_s <= self.silent_s, "silent_s must be at least 4 times heartbeat_s"),
            (self.silent_s <= self.stalled_s, "stalled_s must not be below silent_s"),
            (self.handover_s > 0, "handover_s must be above 0"),
            (0 < self.rejoin_s <= self.rejoin_s_max, "rejoin_s must be above 0, at most rejoin_s_max"),
        ]

    @property
    def pause_s(self) -> float:
        """A primary that gets no event for longer was paused itself. (It sends something each `patience_s`.)"""
        return 0.75 * self.silent_s

    @property
    def patience_s(self) -> float:
        return 2 * self.heartbeat_s

    @property
    def absent_s(self) -> float:
        return self.silent_s
