"""The outcome of one fault of a plan: when it was carried out, its target, and its effects that were seen.

observed     carried out, and its effect was seen: an ended or paused process, a route, an error
unobserved   carried out or tried, and no effect was seen: a run with such a fault proves nothing
missed       there was no target, or the act was over
skipped      this machine, or Ray, cannot do it; the reason says why
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ebla.chaos.plans import Fault

OBSERVED, UNOBSERVED, MISSED, SKIPPED = "observed", "unobserved", "missed", "skipped"
VIOLATED = "violated"


class FaultReport(msgspec.Struct, frozen=True, kw_only=True):
    """Times are of the run's clock. `seen_s`: when its effect was first seen. `undone_s`: when the target served again; None if that
    was not seen.

    `led`: the tablets of the pulse (chaos/ray/pulse.py) that the host led at that moment, of the master all, and
    `recovery_s` the time from the fault to the first acknowledged write in the last of them. `windows`: per table, the
    longest time around the fault without an acknowledged write. `alone`: from the fault to its end no other fault was in
    force, except those of the same moment.
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


class Failed(Exception):
    """The fault had no effect, or a wrong one; the message says why."""

    outcome: str


class Missed(Failed):
    """There is no target."""

    outcome = MISSED


class Unobserved(Failed):
    """The expected effect was not seen."""

    outcome = UNOBSERVED


class Violated(Failed):
    """A forbidden effect was seen."""

    outcome = VIOLATED


class Injection:
    """One fault while it is carried out. `report` grows with each observation."""

    def __init__(self, number: int, fault: Fault, now_s: Callable[[], float]) -> None:
        self.report = FaultReport(number=number, fault=fault, outcome=MISSED)
        self._now_s = now_s

    @property
    def host(self) -> str:
        return self.report.fault.where[0]

    def note(self, **fields: Any) -> None:
        self.report = msgspec.structs.replace(self.report, **fields)

    def ended(self, outcome: str, reason: str) -> None:
        """Note an outcome other than `observed`, also if an effect was seen before."""
        self.note(outcome=outcome, reason=reason)

    def now(self, *pids: int) -> None:
        self.note(at_s=self._now_s(), outcome=UNOBSERVED, pids=(*self.report.pids, *pids))

    def saw(self, effect: str) -> None:
        report = self.report
        assert report.at_s is not None, "a fault is carried out before its effect is seen"
        seen_s = report.seen_s or self._now_s()
        self.note(outcome=OBSERVED, seen_s=seen_s, effects=(*report.effects, effect))

    def undone(self) -> None:
        self.note(undone_s=self._now_s())
