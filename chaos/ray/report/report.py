"""The report of a run on real Ray: a value, and its view for terminals."""

from __future__ import annotations

import msgspec
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ebla.chaos.pages import VALID, VIOLATION, VOID, Table
from ebla.chaos.plans import Plan
from ebla.chaos.ray.orders import Judged
from ebla.chaos.ray.report.figures import P99_MIN, Recovery, Second, Window
from ebla.chaos.ray.report.injection import OBSERVED, FaultReport

PLAN, JSON = "plan.json", "report.json"  # beside the page, the picture and the histories
SLOW_S = 15.0  # from a fault without others to the first acknowledged write: the aim after the loss of a node
STATUS = {VALID: 0, VIOLATION: 1, VOID: 2}  # of the command


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict`: valid, violation, or void (too little happened to judge); `reasons` say why not valid. Times are of the run's
    clock. `act_s`: when act one began and ended. `healed_s`: how much later every request was answered and all replicas were equal.
    `unavailable`: per table, the windows without an acknowledged write. `skipped`: by kind, why its faults were not carried out.
    `histories`: files of chaos/history.py's events, in all forms of chaos/export.py.
    """

    scenario: str
    seed: int
    hosts: int
    groups: int
    clients: int
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
    """The report in a terminal."""
    healed = (
        "never healthy again" if report.healed_s is None else f"healthy {report.healed_s:.1f} s after act one"
    )
    parts: list[RenderableType] = [
        f"{report.scenario}, seed {report.seed}: {len(report.faults)} faults",
        *(table.shown() for table in (faults(report), judged(report), recoveries(report)) if table.rows),
        f"{report.acknowledged:,} operations acknowledged ({rate(report):,.0f}/s), "
        f"{report.failed:,} failed, {report.unknown:,} unknown; {healed}",
    ]
    if longest := longest_window(report):
        parts.append(f"longest time without an acknowledged write in a table: {longest:.1f} s")
    parts += [f"[yellow]slow[/yellow] {escape(text)}" for text in slow(report)]
    parts += [f"[yellow]skipped[/yellow] {kind}: {escape(why)}" for kind, why in report.skipped.items()]
    colour = {VALID: "green", VIOLATION: "red", VOID: "yellow"}[report.verdict]
    parts.append(f"[bold {colour}]{report.verdict}[/]")
    return Group(*parts, *(Text(f"  {reason}") for reason in report.reasons))


def faults(report: RunReport) -> Table:
    rows = [
        (
            when(report, each),
            each.fault.kind,
            " ".join(each.fault.where),
            each.outcome,
            f"{each.recovery_s:.2f} s" if each.recovery_s is not None else "",
            "; ".join([*each.effects, *([each.reason] if each.reason else [])]),
        )
        for each in report.faults
    ]
    columns = ("at", "fault", "where", "outcome", "recovered", "observations")
    return Table("Faults", columns, rows, (0, 4), empty="none: a calm run")


def judged(report: RunReport) -> Table:
    words = {True: "valid", False: "VIOLATION", None: "undecided"}
    rows = [
        (each.workload, f"{each.judged:,}", words[each.valid] + (f": {each.problem}" if each.problem else ""))
        for each in report.judged
    ]
    return Table("Judged", ("history", "operations", "verdict"), rows, (1,))


def recoveries(report: RunReport) -> Table:
    columns, rows = recovery_rows(report)
    title = "From a fault without others to the first acknowledged write"
    return Table(title, columns, rows, range(1, len(columns)))


def recovery_rows(report: RunReport) -> tuple[list[str], list[list[str]]]:
    """Titles and rows; the 99th percentile is shown for kinds with so many faults that it is not the longest."""
    many = any(found.faults >= P99_MIN for found in report.recoveries.values())
    rows = []
    for kind, found in report.recoveries.items():
        p99 = [f"{found.p99_s:.2f} s" if found.faults >= P99_MIN else ""] if many else []
        rows.append([kind, str(found.faults), f"{found.median_s:.2f} s", *p99, f"{found.max_s:.2f} s"])
    return ["fault", "count", "median", *(["p99"] if many else []), "longest"], rows


def slow(report: RunReport) -> list[str]:
    """Warnings, which do not affect the verdict: no recovery time is promised."""
    return [
        f"{each.fault.kind} {' '.join(each.fault.where)}".rstrip()
        + f" at {when(report, each)}: {each.recovery_s:.1f} s until writes were acknowledged again, more than {SLOW_S:g} s"
        for each in report.faults
        if each.alone and each.recovery_s is not None and each.recovery_s > SLOW_S
    ]


def when(report: RunReport, fault: FaultReport) -> str:
    """The time in act one. A fault from before act one is in force during the whole run."""
    if fault.at_s is None:
        return ""
    at_s = fault.at_s - report.act_s[0]
    return f"{at_s:.1f} s" if at_s >= 0 else "all along"


def rate(report: RunReport) -> float:
    """Acknowledged operations per second of act one."""
    return report.acknowledged / max(1e-9, report.act_s[1] - report.act_s[0])


def longest_window(report: RunReport) -> float:
    """The longest time without an acknowledged write in any table."""
    return max((each.length_s for found in report.unavailable.values() for each in found), default=0.0)


def observed(faults: tuple[FaultReport, ...]) -> int:
    return sum(each.outcome == OBSERVED for each in faults)
