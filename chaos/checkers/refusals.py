"""Refused operations, and kinds of operations that were never carried out: a service that answers every request with an error
keeps all other promises.

Faults, if there are any (`excused`), explain a missing answer, an unavailable role and a lost snapshot (EXPLAINED), and full disks
explain DiskFull. Every other error is a violation, unless the workload declares that it causes the error (`explained`, by operation). An error that promises
that nothing was carried out (CERTAIN) is a violation if the operation's outcome is open. Operators' requests to roles
(`is_order`) may be refused for many reasons, so they are only counted: each kind must be carried out now and then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ebla.chaos.checkers.verdict import LISTED_MAX, Verdict, described, places
from ebla.chaos.history import INFO, INVOKE, OK, Event, History, is_order
from ebla.chaos.plans import Fault

EXPLAINED = ("TimedOut", "OutcomeUnknown", "Unavailable", "EndUnknown", "Frozen", "ScanInterrupted")
CERTAIN = ("Unavailable", "EndUnknown", "NotDelivered")
ASKED_MIN = 20  # of so many requests one at least must have been carried out

Explained = Mapping[str, Collection[str]]
NOTHING: Explained = MappingProxyType({})


def excused_by(faults: Iterable[Fault], explained: Collection[str] = EXPLAINED) -> tuple[str, ...]:
    """The errors that are excused in a disturbed run with these faults."""
    full = any(fault.kind == "full_disk" for fault in faults)
    return (*explained, *(["DiskFull"] if full else []))


def check_refusals(
    history: History, explained: Explained = NOTHING, excused: Collection[str] = EXPLAINED
) -> Verdict:
    """Valid if every error is explained, also if there was none: the verdict rests on no operation."""
    ends = {event.index for event in history.events if not _explained(event, explained, excused)}
    if not ends:
        return Verdict(True)
    refused = [each for each in history.operations() if each.end is not None and each.end.index in ends]
    first = refused[0]
    assert first.end is not None
    more = f"; likewise {len(refused) - 1} more operations" if len(refused) > 1 else ""
    problem = f"{described(first)} was refused, and no fault explains it: {first.end.error}{more}"
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
    """How often each kind of operation was requested and carried out, by `<history>.<operation>`."""

    asked: Counter[str] = field(default_factory=Counter)
    carried_out: Counter[str] = field(default_factory=Counter)

    def add(self, asked: Mapping[str, int], carried_out: Mapping[str, int]) -> None:
        self.asked.update(asked)
        self.carried_out.update(carried_out)

    def never(self) -> list[str]:
        """Sentences about operations that were requested ASKED_MIN times or more, and never carried out."""
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
