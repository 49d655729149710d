"""What a run on real Ray came to: a value, and how it is shown to people."""

from __future__ import annotations

from collections import Counter

import msgspec
from rich.console import Group
from rich.table import Table

from ebla.chaos.plans import Plan
from ebla.chaos.ray.figures import Recovery, Second, Window
from ebla.chaos.ray.orders import Judged
from ebla.chaos.ray.struck import OBSERVED, FaultReport

VALID, VIOLATION, VOID = "valid", "violation", "void"
STATUS = {VALID: 0, VIOLATION: 1, VOID: 2}  # of the command


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict`: valid, violation, or void (too little happened to judge); `reasons` say why not valid. Times are of the
    run's clock; `act_s` is when act one began and ended, `healed_s` how much later everything was answered and all
    replicas were equal. `unavailable`: per table, the windows without an acknowledged write. `skipped`: by kind, why
    its faults were not carried out. `histories` are files of chaos/history.py's events.
    """

    scenario: str
    seed: int
    hosts: int
    duration_s: float
    plan: Plan
    verdict: str
    reasons: tuple[str, ...]
    faults: tuple[FaultReport, ...]
    skipped: dict[str, str]
    judged: tuple[Judged, ...]
    acknowledged: int
    failed: int
    unknown: int
    per_second: tuple[Second, ...]
    act_s: tuple[float, float]
    healed_s: float | None
    unavailable: dict[str, tuple[Window, ...]]
    recoveries: dict[str, Recovery]
    histories: tuple[str, ...]
    results: str
    phases: dict[str, float]

    @property
    def status(self) -> int:
        return STATUS[self.verdict]


def view(report: RunReport) -> Group:
    """For a terminal."""
    parts: list[object] = [_faults(report), _judged(report)]
    if report.recoveries:
        parts.append(_recoveries(report))
    seconds = max(1e-9, report.act_s[1] - report.act_s[0])
    whole = "not whole again" if report.healed_s is None else f"whole {report.healed_s:.1f} s after act one"
    parts.append(
        f"{report.acknowledged:,} operations acknowledged ({report.acknowledged / seconds:,.0f}/s), "
        f"{report.failed:,} failed, {report.unknown:,} unknown; {whole}"
    )
    longest = max((w.length_s for found in report.unavailable.values() for w in found), default=0.0)
    if longest:
        parts.append(f"longest time without an acknowledged write in a table: {longest:.1f} s")
    colour = {VALID: "green", VIOLATION: "red", VOID: "yellow"}[report.verdict]
    parts.append(f"[bold {colour}]{report.verdict}[/]")
    parts += [f"  {reason}" for reason in report.reasons]
    return Group(*parts)  # type: ignore[arg-type]


def _faults(report: RunReport) -> Table:
    table = Table(
        title=f"{report.scenario}, seed {report.seed}: {len(report.faults)} faults", title_justify="left"
    )
    for column in ("at", "fault", "where", "outcome", "recovered", "what was seen"):
        table.add_column(column, overflow="fold")
    for each in report.faults:
        table.add_row(
            f"{each.at_s - report.act_s[0]:.1f} s" if each.at_s is not None else "",
            each.fault.kind,
            " ".join(each.fault.where),
            each.outcome,
            f"{each.recovery_s:.2f} s" if each.recovery_s is not None else "",
            "; ".join((*each.effects, *([each.reason] if each.reason else []))),
        )
    return table


def _judged(report: RunReport) -> Table:
    table = Table(title="judged", title_justify="left")
    for column in ("history", "operations", "verdict"):
        table.add_column(column, overflow="fold")
    words = {True: "valid", False: "VIOLATION", None: "undecided"}
    for each in report.judged:
        problem = f": {each.problem}" if each.problem else ""
        table.add_row(each.workload, f"{each.judged:,}", words[each.valid] + problem)
    return table


def _recoveries(report: RunReport) -> Table:
    table = Table(title="from a fault that came alone to the next acknowledged write", title_justify="left")
    for column in ("fault", "count", "median", "p99", "longest"):
        table.add_column(column)
    for kind, found in report.recoveries.items():
        row = (f"{found.median_s:.2f} s", f"{found.p99_s:.2f} s", f"{found.max_s:.2f} s")
        table.add_row(kind, str(found.faults), *row)
    return table


def outcomes(faults: tuple[FaultReport, ...]) -> Counter[str]:
    return Counter(each.outcome for each in faults)


def observed(faults: tuple[FaultReport, ...]) -> int:
    return outcomes(faults)[OBSERVED]
