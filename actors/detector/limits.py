"""The times of the failure detector, in seconds, and how they depend on each other."""

from __future__ import annotations

import msgspec

from ebla.storage.errors import InvalidArgument, require_positive

DRIFT = 1.25  # the greatest ratio between the speeds of two clocks


class DetectorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`beacon_s`: between two beacons. `lease_s`: a server serves for this long after it sent its last
    acknowledged beacon. `grace_s`: the active master takes the replicas of a server away after this long
    without a beacon.

    A server with `restarts_max` restarts in a row, each within `stable_s` of the one before, gets no lease
    until it has run for `stable_s`.
    """

    beacon_s: float = 1.0
    lease_s: float = 4.0
    grace_s: float = 5.0
    restarts_max: int = 5
    stable_s: float = 60.0

    def outlasts(self, lease_s: float) -> bool:
        """Whether a lease of this length is over when the grace is, by any two clocks."""
        return self.grace_s >= DRIFT * lease_s

    def validate(self) -> None:
        require_positive(self, self.__struct_fields__)
        if self.lease_s < 3 * self.beacon_s:
            raise InvalidArgument(
                f"lease_s must be at least 3 times beacon_s, or one lost beacon ends the lease; "
                f"got {self.lease_s:g} and {self.beacon_s:g}"
            )
        if not self.outlasts(self.lease_s):
            raise InvalidArgument(
                f"grace_s must be at least {DRIFT} times lease_s, or a server with a slow clock serves after its "
                f"replicas were taken away; got {self.grace_s:g} and {self.lease_s:g}"
            )
