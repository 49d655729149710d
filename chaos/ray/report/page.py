"""The page of a run on a real cluster: verdict, figures, faults with their effects, the picture."""

from __future__ import annotations

import base64
import shlex
from pathlib import Path

from ebla.chaos import pages
from ebla.chaos.pages import Table
from ebla.chaos.ray.report.plot import png
from ebla.chaos.ray.report.report import (
    PLAN,
    RunReport,
    faults,
    judged,
    longest_window,
    observed,
    rate,
    recoveries,
    slow,
)
from ebla.placement.extras import needs

with needs("demo", "jinja2"):
    from markupsafe import Markup

PAGE, PICTURE = "report.html", "availability.png"
WINDOWS_MAX = 8  # listed for one table
MEANS = {
    "valid": "Every acknowledged write is there, once, and every answer can be explained.",
    "violation": "A promise was broken. The reasons are below.",
    "void": "Too little happened to judge. This is not a pass.",
}
SKIPPED = (
    "Faults of these kinds were in the plan and were not carried out: the verdict says nothing about them."
)
_PICTURE = Markup(
    '<img alt="Operations each second, faults, and windows without acknowledged writes" src="data:image/png;base64,{}">'
)
_REPEAT = Markup(
    """<h2>To repeat it</h2>
<p class="sub">This plan, its histories (JSON lines, EDN, for Knossos and Elle), report.json and the roles' logs are in {results}.
All times are seconds since the beginning of act one. The same faults again:
<code>ebla chaos run --plan {path} --duration {duration_s:g} --hosts {hosts} --groups {groups} --clients {clients}</code></p>"""
)


def html(report: RunReport, picture: bytes) -> str:
    repeat = _REPEAT.format(
        results=report.results,
        path=shlex.quote(str(Path(report.results) / PLAN)),
        duration_s=report.duration_s,
        hosts=report.hosts,
        groups=report.groups,
        clients=report.clients,
    )
    return pages.page(
        f"{report.scenario}, seed {report.seed}",
        report.verdict,
        report.verdict,
        MEANS[report.verdict],
        _figures(report),
        [
            faults(report),
            Table("Skipped", ("fault", "why"), list(report.skipped.items()), note=SKIPPED),
            judged(report),
            _windows(report),
            recoveries(report),
        ],
        reasons=report.reasons,
        remarks=[f"Slow: {text}" for text in slow(report)],
        picture=_PICTURE.format(base64.b64encode(picture).decode()),
        end=repeat,
    )


def write(report: RunReport, directory: Path) -> Path:
    """Write the page and its picture. Returns the page's path."""
    picture = png(report)
    (directory / PICTURE).write_bytes(picture)
    page = directory / PAGE
    page.write_text(html(report, picture))
    return page


def _windows(report: RunReport) -> Table:
    rows = []
    for name, found in report.unavailable.items():
        shown = [
            f"at {each.began_s - report.act_s[0]:.1f} s for {each.length_s:.1f} s"
            for each in found[:WINDOWS_MAX]
        ]
        if more := len(found) - len(shown):
            shown.append(f"and {more} more")
        if found:
            longest_s = max(each.length_s for each in found)
            rows.append((name, f"{len(found)}", f"{longest_s:.1f} s", ", ".join(shown)))
    title = "Windows of a second or more without an acknowledged write"
    empty = f"none in any of {len(report.unavailable)} tables"
    return Table(title, ("table", "windows", "longest", "when"), rows, (1, 2), empty=empty)


def _figures(report: RunReport) -> list[tuple[str, str]]:
    healed_s = report.healed_s
    return [
        (f"{report.acknowledged:,}", "operations acknowledged"),
        (f"{rate(report):,.0f}/s", "on average"),
        (f"{report.failed:,}", "failed"),
        (f"{report.unknown:,}", "with an unknown outcome"),
        (f"{observed(report.faults)} of {len(report.faults)}", "faults seen to have their effect"),
        (f"{longest_window(report):.1f} s", "longest without an acknowledged write in a table"),
        ("never" if healed_s is None else f"{healed_s:.1f} s", "after act one, until healthy"),
    ]
