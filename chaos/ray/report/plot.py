"""Availability over time as a picture: operations per second, the time of each fault, and the windows without writes."""

from __future__ import annotations

import io
from typing import Any

from ebla.chaos.ray.report.injection import OBSERVED, FaultReport
from ebla.chaos.ray.report.report import RunReport
from ebla.placement.extras import needs

BLUE, AMBER, RED, GREY, INK = "#2f6fb0", "#d98e04", "#b3261e", "#9aa1a9", "#24292f"
ROWS_MAX = 40  # lanes; of a longer plan the first faults are shown
INCH_PER_LANE = 0.22


def png(report: RunReport) -> bytes:
    """The picture, about 1,100 pixels wide; times count from the beginning of act one."""
    with needs("demo", "matplotlib"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    faults = [each for each in report.faults if each.at_s is not None][:ROWS_MAX]
    tables = [(name, found) for name, found in report.unavailable.items() if found][: ROWS_MAX // 2]
    lanes = max(1, len(faults) + len(tables))
    figure = Figure(figsize=(11, 3.2 + INCH_PER_LANE * lanes), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    rates, times = figure.subplots(2, 1, sharex=True, height_ratios=(2.6, INCH_PER_LANE * lanes + 0.3))
    _rates(rates, report)
    _lanes(times, report, faults, tables)
    rates.set_xlim(-1.0, max(1.0, len(report.per_second) - report.act_s[0]))
    for axes in (rates, times):
        axes.axvspan(0.0, report.act_s[1] - report.act_s[0], color="#f3f5f7", zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _rates(axes: Any, report: RunReport) -> None:
    began = report.act_s[0]
    seconds = [number - began for number in range(len(report.per_second))]
    parts = (
        ("acknowledged", BLUE, [each.acknowledged for each in report.per_second]),
        ("failed", AMBER, [each.failed for each in report.per_second]),
        ("outcome unknown", GREY, [each.unknown for each in report.per_second]),
    )
    below = [0] * len(seconds)
    for label, colour, counts in parts:
        axes.bar(seconds, counts, 1.0, bottom=below, align="edge", color=colour, label=label)
        below = [a + b for a, b in zip(below, counts, strict=True)]
    axes.set_ylabel("operations each second", fontsize=8, color=INK)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, ncols=3)


def _lanes(axes: Any, report: RunReport, faults: list[FaultReport], tables: list[Any]) -> None:
    began, labels = report.act_s[0], []
    for lane, each in enumerate(faults):
        assert each.at_s is not None
        since, until = each.at_s, each.undone_s
        if since < began:
            since, until = report.act_s  # all along
        elif until is None:
            until = since + each.fault.for_s
        colour = AMBER if each.outcome == OBSERVED else GREY
        axes.barh(lane, max(0.15, until - since), 0.6, left=since - began, color=colour)
        mark = "" if each.outcome == OBSERVED else f" ({each.outcome})"
        labels.append(" ".join((each.fault.kind, *each.fault.where)) + mark)
    for lane, (name, found) in enumerate(tables, len(faults)):
        for window in found:
            axes.barh(lane, window.length_s, 0.6, left=window.began_s - began, color=RED)
        labels.append(f"no writes in {name}")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the beginning of act one (shaded)", fontsize=8, color=INK)
