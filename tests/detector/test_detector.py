"""The failure detector in every history of a small deployment, and its rules one by one."""

from __future__ import annotations

import pytest

from ebla.actors.detector import detector as d
from ebla.actors.detector.detector import ALIVE, ENDING, RESTARTED, SILENT, Detector, End
from ebla.actors.detector.lease import NEVER, Lease
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.messages import ServerInstance
from ebla.storage.errors import InvalidArgument
from tests.detector.explorer import LEASE_S, Broken, Rules, explore

LIMITS = DetectorLimits()
FIRST, SECOND = ServerInstance("a", 1, "first"), ServerInstance("a", 2, "second")


def watching(known: ServerInstance | None = FIRST, allowed: tuple[str, ...] | None = None) -> Detector:
    return Detector(LIMITS, 0.0, [("a", known)], allowed)


# -- every history -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slow_tick_s", [8, 10, 12])
def test_no_server_serves_what_another_was_given(slow_tick_s: int) -> None:
    """With clocks that differ by up to grace_s / lease_s."""
    assert explore(Rules(slow_tick_s=slow_tick_s)) > 5_000


class CountsFromTheAnswer(Lease):
    def acknowledged(self, now: float, number: int, sent_at: float) -> None:
        super().acknowledged(now, number, now)


class ContinuesALostLease(Lease):
    def acknowledged(self, now: float, number: int, sent_at: float) -> None:
        if number == self.number:
            self._begun, self.until = True, max(self.until, sent_at + LEASE_S)


class FollowsOrdersOfAnyLease(Lease):
    def holds(self, now: float, number: int) -> bool:
        return super().holds(now, self.number)


class NamesOneLeaseForEver(Lease):
    def beacon(self, now: float, *, log_stalled: bool) -> int | None:
        self.number = 1
        self.until = max(self.until, now + LEASE_S) if not self._begun else self.until
        return self.number


class AcknowledgesTheEnding(Detector):
    def beacon(self, now: float, shown: ServerInstance, lease: int) -> str:
        answer = super().beacon(now, shown, lease)
        return d.ACKNOWLEDGED if answer == d.DECIDED else answer


class GivesNoGraceAfterATakeover(Detector):
    def __init__(self, limits, now, servers, allowed=None) -> None:  # type: ignore[no-untyped-def]
        super().__init__(limits, now - limits.grace_s if now else now, servers, allowed)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(lease=CountsFromTheAnswer),
        Rules(lease=ContinuesALostLease, tick_s=5, slow_tick_s=5),
        Rules(lease=FollowsOrdersOfAnyLease, ignores_old=False),
        Rules(lease=NamesOneLeaseForEver),
        Rules(detector=AcknowledgesTheEnding),
        Rules(detector=GivesNoGraceAfterATakeover),
        Rules(grace_s=LEASE_S, slow_tick_s=8),
        Rules(slow_tick_s=6),
    ],
    ids=lambda rules: f"{rules.lease.__name__}-{rules.detector.__name__}-{rules.grace_s}-{rules.slow_tick_s}",
)
def test_a_known_mistake_is_found(rules: Rules) -> None:
    with pytest.raises(Broken, match="serves"):
        explore(rules)
