"""A tablet server's part of the failure detector: its leases, one after the other.

Each beacon names a lease: the current one, or the next one if the current one is over. An acknowledgement begins
or extends only the lease that its beacon named, and a lease that is over never continues. So a lease has no gap:
from its first to its last moment the master has not taken this server's replicas away.

An order of the master (be primary, be secondary) names a lease too. The server follows it only during that
lease, and a replica serves only during the lease of its last order. So neither an order that arrives late nor a
replica that was paused meanwhile outlives the master's decision.
"""

from __future__ import annotations

from ebla.actors.detector.limits import DetectorLimits

NEVER = float("-inf")


class Lease:
    """`number`: of the lease that beacons name; 0 before the first. `until`: when this lease is over unless it is
    extended; for a lease that no acknowledgement has begun yet, lease_s after the first beacon that named it."""

    def __init__(self, limits: DetectorLimits) -> None:
        self._limits = limits
        self.number = 0
        self.until = NEVER
        self._begun = False

    def holds(self, now: float, number: int) -> bool:
        """Whether lease `number` is in force. `now` must be read after the request came that this decides about."""
        return self._begun and number == self.number and now < self.until

    def is_over(self, now: float) -> bool:
        """Whether the lease that beacons named last had begun, and is over."""
        return self._begun and now >= self.until

    def beacon(self, now: float, *, log_stalled: bool) -> int | None:
        """The number of the lease that a beacon sent now names; None: send no beacon.

        A server that cannot write its log asks for no lease: once it is silent, others take over.
        """
        if log_stalled:
            return None
        if now >= self.until:
            self.number, self.until, self._begun = self.number + 1, now + self._limits.lease_s, False
        return self.number

    def acknowledged(self, now: float, number: int, sent_at: float) -> None:
        """Take the active master's acknowledgement of the beacon that named lease `number` and was sent at
        `sent_at`, which must be read before the beacon leaves.

        It does not begin a lease that is over: the master may know the number from an earlier beacon, have
        decided that this server is silent since, and have sent orders that name it before that.
        """
        assert sent_at <= now and number <= self.number, ("an answer follows its beacon", self.number, number)
        if number == self.number and now < self.until:
            self._begun = True
            self.until = max(self.until, sent_at + self._limits.lease_s)
