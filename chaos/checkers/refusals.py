"""Operations that were refused, and kinds of operations that were never carried out: a service that answers everything with
an error keeps every other promise.

Faults explain that there is no answer in time, that nobody can answer, or that a snapshot was lost (EXPLAINED), where there are
any (`excused`). Any other error is a violation, unless the workload brings it about and says so (`explained`, by operation);
so is an error that promises that nothing was carried out (CERTAIN) where that is open. What operators ask of roles
(`is_order`) may be refused for many reasons, so that it is only counted: each of it must be carried out now and then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ebla.chaos.checkers.verdict import LISTED_MAX, Verdict, places, told
from ebla.chaos.history import INFO, INVOKE, OK, Event, History, is_order

EXPLAINED = ("TimedOut", "OutcomeUnknown", "Unavailable", "ScanInterrupted")
CERTAIN = ("Unavailable", "NotDelivered")
ASKED_MIN = 20  # times, from which on one of them must have been carried out

Explained = Mapping[str, Collection[str]]
NOTHING: Explained = MappingProxyType({})


def check_refusals(
    history: History, explained: Explained = NOTHING, excused: Collection[str] = EXPLAINED
) -> Verdict:
    """Valid where every error is explained, also where there was none: it rests on no operation."""
    ends = {event.index for event in history.events if not _explained(event, explained, excused)}
    if not ends:
        return Verdict(True)
    refused = [each for each in history.operations() if each.end is not None and each.end.index in ends]
    first = refused[0]
    assert first.end is not None
    more = f"; likewise {len(refused) - 1} more operations" if len(refused) > 1 else ""
    problem = f"{told(first)} was refused, and no fault explains it: {first.end.error}{more}"
    return Verdict(False, problem, places(refused[:LISTED_MAX]))


def _explained(event: Event, explained: Explained, excused: Collection[str]) -> bool:
    kind = (event.error or "").partition(":")[0]
    if event.type == INFO and kind in CERTAIN:
        return False
    if event.type in (INVOKE, OK) or is_order(event.operation):
        return True
    return kind in excused or kind in explained.get(event.operation, ())


@dataclass
class Tally:
    """How often each kind of operation was asked, and how often it was carried out, by `<history>.<operation>`."""

    asked: Counter[str] = field(default_factory=Counter)
    carried_out: Counter[str] = field(default_factory=Counter)

    def add(self, asked: Mapping[str, int], carried_out: Mapping[str, int]) -> None:
        self.asked.update(asked)
        self.carried_out.update(carried_out)

    def never(self) -> list[str]:
        """Sentences on what was asked ASKED_MIN times or more, and never carried out."""
        return [
            f"{name} was asked {count} times and never carried out"
            for name, count in self.asked.items()
            if count >= ASKED_MIN and not self.carried_out[name]
        ]


def tally(histories: Mapping[str, History]) -> Tally:
    found = Tally()
    for name, history in histories.items():
        for event in history.events:
            if event.type in (INVOKE, OK):
                counts = found.asked if event.type == INVOKE else found.carried_out
                counts[f"{name}.{event.operation}"] += 1
    return found
