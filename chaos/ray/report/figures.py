"""The figures of a run, computed from its histories: rates, windows without an acknowledged write, recoveries."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from ebla.chaos.history import FAIL, INFO, INVOKE, OK, Event, History, is_data
from ebla.chaos.plans import DESTROY, MASTER
from ebla.chaos.ray.report.injection import OBSERVED, FaultReport

WINDOW_S = 1.0  # shorter gaps are no windows without writes
AROUND_S = 1.0  # a gap that begins this long after a fault still belongs to it
TO_THE_END = math.inf
P99_MIN = 100  # with fewer values the 99th percentile is the greatest of them

Times = Sequence[float]


class Second(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of operations in one second of the run, by outcome."""

    acknowledged: int
    failed: int
    unknown: int


class Window(msgspec.Struct, frozen=True, array_like=True):
    """A time without an acknowledged write."""

    began_s: float
    length_s: float


class Recovery(msgspec.Struct, frozen=True):
    """The times from faults of one kind, each alone, to the first acknowledged write in each tablet that needed a new leader."""

    faults: int
    median_s: float
    p99_s: float
    max_s: float


def writes(event: Event) -> bool:
    operation = event.operation
    return is_data(operation) and operation != "count" and not operation.startswith("read")


def per_second(histories: Iterable[History], until_s: float) -> tuple[Second, ...]:
    counts = [[0, 0, 0] for _ in range(max(0, math.ceil(until_s)))]
    kinds = {OK: 0, FAIL: 1, INFO: 2}
    for history in histories:
        for event in history.events:
            second = event.time_us // 1_000_000
            if event.type != INVOKE and is_data(event.operation) and 0 <= second < len(counts):
                counts[second][kinds[event.type]] += 1
    return tuple(Second(*each) for each in counts)


def acknowledged(history: History) -> list[float]:
    """The times of acknowledged writes, in order."""
    return sorted(event.time_us / 1e6 for event in history.events if event.type == OK and writes(event))


def acknowledged_by_key(history: History) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for event in history.events:
        if event.type == OK and writes(event):
            found.setdefault(event.key, []).append(event.time_us / 1e6)
    return found


def windows(times: Times, began_s: float, ended_s: float) -> tuple[Window, ...]:
    """Windows of WINDOW_S or more, between `began_s` and `ended_s`."""
    inside = [began_s, *(time_s for time_s in times if began_s < time_s < ended_s), ended_s]
    return tuple(
        Window(round(earlier, 3), round(later - earlier, 3))
        for earlier, later in pairwise(inside)
        if later - earlier >= WINDOW_S
    )


def longest_gap(times: Times, at_s: float, until_s: float) -> tuple[float, float] | None:
    """The longest gap between two acknowledgements that touches [at_s, until_s]; None if there is none."""
    first = max(0, bisect_right(times, at_s) - 1)
    gaps = []
    for earlier, later in pairwise(times[first:]):
        if earlier > until_s:
            break
        gaps.append((later - earlier, earlier, later))
    if not gaps:
        return None
    _, earlier, later = max(gaps)
    return earlier, later


def recovery_s(
    pulse: Mapping[int, Times], led: Iterable[int], at_s: float, seen_s: float | None = None
) -> float | None:
    """The time from the fault to the first acknowledged write in the last of the tablets; None without such tablets. The outage may
    begin as late as `seen_s`: a role continues for a second or two after its raylet was killed, and a PacificA server for the rest
    of its lease after its master was paused. Such a late outage is one of WINDOW_S at least."""
    soon_s = at_s + AROUND_S
    until_s = max(at_s, seen_s or at_s) + AROUND_S
    ends = []
    for tablet in led:
        gap = longest_gap(pulse.get(tablet, ()), at_s, until_s)
        if gap is not None and gap[0] > soon_s and gap[1] - gap[0] < WINDOW_S:
            gap = longest_gap(pulse[tablet], at_s, soon_s)
        if gap is None:
            return None
        ends.append(gap[1] - at_s)
    return round(max(ends), 3) if ends else None


def with_figures(
    faults: Sequence[FaultReport], pulse: Mapping[int, Times], tables: Mapping[str, Times]
) -> tuple[FaultReport, ...]:
    """Add the figures of the histories to the reports of observed faults."""
    found = []
    for fault in faults:
        if fault.outcome == OBSERVED and fault.at_s is not None:
            until_s = max(fault.undone_s or 0.0, fault.at_s + AROUND_S)
            gaps = {name: longest_gap(times, fault.at_s, until_s) for name, times in tables.items()}
            fault = msgspec.structs.replace(
                fault,
                recovery_s=recovery_s(
                    pulse, fault.led, fault.at_s, fault.undone_s if _of_master(fault) else fault.seen_s
                ),
                windows={name: round(gap[1] - gap[0], 3) for name, gap in gaps.items() if gap is not None},
                alone=_alone(fault, faults),
            )
        found.append(fault)
    return tuple(found)


def _alone(fault: FaultReport, faults: Sequence[FaultReport]) -> bool:
    began, ended = _in_force(fault)
    for other in faults:
        if other.fault.at_s != fault.fault.at_s and other.at_s is not None:
            other_began, other_ended = _in_force(other)
            if other_began <= ended and began <= other_ended:
                return False
    return True


def _in_force(fault: FaultReport) -> tuple[float, float]:
    assert fault.at_s is not None
    if fault.fault.kind in DESTROY or fault.undone_s is None:
        return fault.at_s, TO_THE_END  # one replica less for the rest of the run
    return fault.at_s, fault.undone_s


def recoveries(faults: Iterable[FaultReport]) -> dict[str, Recovery]:
    """Recoveries by kind, from faults that were alone. Those of one moment count as one, of a kind of their own."""
    moments: dict[float, list[FaultReport]] = {}
    for fault in faults:
        moments.setdefault(fault.fault.at_s, []).append(fault)
    by_kind: dict[str, list[float]] = {}
    for together in moments.values():
        lasted = [fault.recovery_s for fault in together if fault.recovery_s is not None]
        if lasted and all(fault.alone for fault in together):
            by_kind.setdefault(" + ".join(sorted(map(_kind, together))), []).append(max(lasted))
    return {
        kind: Recovery(len(found), quantile(found, 0.5), quantile(found, 0.99), max(found))
        for kind, found in sorted(by_kind.items())
    }


def _of_master(fault: FaultReport) -> bool:
    return fault.fault.where == (MASTER,)


def _kind(fault: FaultReport) -> str:
    return f"{fault.fault.kind} {MASTER}" if _of_master(fault) else fault.fault.kind


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
