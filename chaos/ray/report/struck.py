"""The outcome of one fault of a plan: when it was carried out, its target, and its effects that were seen.

observed     carried out, and its effect was seen: an ended or paused process, a route, an error
unobserved   carried out or tried, and no effect was seen: a run with such a fault proves nothing
missed       there was no target, or the act was over
skipped      this machine, or Ray, cannot do it; the reason says why
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ebla.chaos.plans import Fault

OBSERVED, UNOBSERVED, MISSED, SKIPPED = "observed", "unobserved", "missed", "skipped"
VIOLATED = "violated"


class FaultReport(msgspec.Struct, frozen=True, kw_only=True):
    """Times are of the run's clock. `seen_s`: when its effect was first seen. `undone_s`: when the target served again; None if that
    was not seen.

    `led`: the tablets of the pulse (chaos/ray/pulse.py) that the host led at that moment, and `recovery_s` the time
    from the fault to the first acknowledged write in the last of them. `windows`: per table, the longest time around
    the fault without an acknowledged write. `alone`: no other fault was in force from the fault to its end.
    """

    number: int
    fault: Fault
    outcome: str
    reason: str = ""
    effects: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    at_s: float | None = None
    seen_s: float | None = None
    undone_s: float | None = None
    led: tuple[int, ...] = ()
    recovery_s: float | None = None
    windows: dict[str, float] = {}
    alone: bool = False


class Missed(Exception):
    """There is no target; the message says why."""


class Unobserved(Exception):
    """The expected effect was not seen; the message names it."""


class Violated(Exception):
    """A forbidden effect was seen; the message names it."""


class Struck:
    """One fault while it is carried out."""

    def __init__(self, number: int, fault: Fault, now_s: Callable[[], float]) -> None:
        self.number = number
        self.fault = fault
        self.outcome = MISSED
        self.reason = ""
        self.effects: list[str] = []
        self.pids: list[int] = []
        self.at_s: float | None = None
        self.seen_s: float | None = None
        self.undone_s: float | None = None
        self.led: tuple[int, ...] = ()
        self._now_s = now_s

    @property
    def host(self) -> str:
        return self.fault.where[0]

    def now(self, *pids: int) -> None:
        self.at_s = self._now_s()
        self.outcome = UNOBSERVED
        self.pids += pids

    def saw(self, effect: str) -> None:
        assert self.at_s is not None, "a fault is carried out before its effect is seen"
        self.outcome = OBSERVED
        self.seen_s = self.seen_s or self._now_s()
        self.effects.append(effect)

    def failed(self, reason: str) -> None:
        """Note that the fault failed, also if an effect was seen before."""
        self.outcome, self.reason = UNOBSERVED, reason

    def violated(self, reason: str) -> None:
        self.outcome, self.reason = VIOLATED, reason

    def missed(self, reason: str) -> None:
        self.outcome, self.reason = MISSED, reason

    def skipped(self, reason: str) -> None:
        self.outcome, self.reason = SKIPPED, reason

    def undone(self) -> None:
        self.undone_s = self._now_s()

    def report(self) -> FaultReport:
        return FaultReport(
            number=self.number,
            fault=self.fault,
            outcome=self.outcome,
            reason=self.reason,
            effects=tuple(self.effects),
            pids=tuple(self.pids),
            at_s=self.at_s,
            seen_s=self.seen_s,
            undone_s=self.undone_s,
            led=self.led,
        )
