"""The page of a run on a real cluster: verdict, figures, faults with their effects, the picture.

The page is one file: the picture is inside, and nothing is fetched.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from ebla.chaos.ray.report.figures import Window
from ebla.chaos.ray.report.plot import png
from ebla.chaos.ray.report.report import (
    PLAN,
    RunReport,
    longest_window,
    observations,
    observed,
    rate,
    recovery_rows,
    slow,
    when,
)
from ebla.chaos.style import render

PAGE, PICTURE = "report.html", "availability.png"
WINDOWS_MAX = 8  # listed for one table
MEANS = {
    "valid": "Every acknowledged write is there, once, and every answer can be explained.",
    "violation": "A promise was broken. The reasons are below.",
    "void": "Too little happened to judge. This is not a pass.",
}

_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ r.scenario }}, seed {{ r.seed }}: {{ r.verdict }}</title>
{{ style }}</head><body>
<h1>{{ r.scenario }}, seed {{ r.seed }} <span class="verdict {{ r.verdict }}">{{ r.verdict }}</span></h1>
<p class="sub">{{ means }}</p>
{% for reason in r.reasons %}<p class="false">{{ reason }}</p>{% endfor %}
{% for text in slow %}<p>Slow: {{ text }}</p>{% endfor %}
<div class="figures">
{% for value, label in figures %}<span><b>{{ value }}</b>{{ label }}</span>{% endfor %}
</div>
<img alt="Operations each second, faults, and windows without acknowledged writes" src="data:image/png;base64,{{ picture }}">
<h2>Faults</h2>
<table><tr><th class="n">at</th><th>fault</th><th>where</th><th>outcome</th><th class="n">recovered</th><th>observations</th></tr>
{% for f in r.faults %}<tr><td class="n">{{ when(r, f) }}</td>
<td>{{ f.fault.kind }}</td><td>{{ f.fault.where | join(" ") }}</td><td class="{{ f.outcome }}">{{ f.outcome }}</td>
<td class="n">{{ "%.2f s" | format(f.recovery_s) if f.recovery_s is not none else "" }}</td>
<td>{{ observations(f) | join("; ") }}</td></tr>
{% else %}<tr><td colspan="6">none: a calm run</td></tr>{% endfor %}</table>
{% if r.skipped %}<h2>Skipped</h2>
<p class="sub">Faults of these kinds were in the plan and were not carried out: the verdict says nothing about them.</p>
<table><tr><th>fault</th><th>why</th></tr>
{% for kind, reason in r.skipped.items() %}<tr><td>{{ kind }}</td><td>{{ reason }}</td></tr>{% endfor %}</table>{% endif %}
<h2>Judged</h2>
<table><tr><th>history</th><th class="n">operations</th><th>verdict</th></tr>
{% for j in r.judged %}<tr><td>{{ j.workload }}</td><td class="n">{{ "{:,}".format(j.judged) }}</td>
<td class="{{ (j.valid | string).lower() }}">{{ {true: "valid", false: "VIOLATION"}.get(j.valid, "undecided") }}{{ ": " + j.problem if j.problem else "" }}</td></tr>{% endfor %}</table>
<h2>Windows of a second or more without an acknowledged write</h2>
<table><tr><th>table</th><th class="n">windows</th><th class="n">longest</th><th>when</th></tr>
{% for name, found in r.unavailable.items() if found %}<tr><td>{{ name }}</td><td class="n">{{ found | length }}</td>
<td class="n">{{ "%.1f s" | format(found | map(attribute="length_s") | max) }}</td>
<td>{{ windows(found) }}</td></tr>
{% else %}<tr><td colspan="4">none in any of {{ r.unavailable | length }} tables</td></tr>{% endfor %}</table>
{% if r.recoveries %}<h2>From a fault without others to the first acknowledged write</h2>
<table><tr>{% for title in recoveries[0] %}<th{{ "" if loop.first else ' class="n"' | safe }}>{{ title }}</th>{% endfor %}</tr>
{% for row in recoveries[1] %}<tr>{% for cell in row %}<td{{ "" if loop.first else ' class="n"' | safe }}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>{% endif %}
<h2>To repeat it</h2>
<p class="sub">This plan, its histories (JSON lines, EDN, for Knossos and Elle), report.json and the roles' logs are in {{ r.results }}.
All times are seconds since the beginning of act one. The same faults again:
<code>ebla chaos run --plan {{ r.results }}/{{ plan_file }} --duration {{ "%g" | format(r.duration_s) }} --hosts {{ r.hosts }}</code></p>
</body></html>
"""


def html(report: RunReport, picture: bytes) -> str:
    return render(
        _TEMPLATE,
        r=report,
        means=MEANS[report.verdict],
        figures=_figures(report),
        observations=observations,
        slow=slow(report),
        recoveries=recovery_rows(report),
        when=when,
        windows=lambda found: _windows(found, report.act_s[0]),
        plan_file=PLAN,
        picture=base64.b64encode(picture).decode(),
    )


def write(report: RunReport, directory: Path) -> Path:
    """Write the page and its picture. Returns the page's path."""
    picture = png(report)
    (directory / PICTURE).write_bytes(picture)
    page = directory / PAGE
    page.write_text(html(report, picture))
    return page


def _windows(found: Sequence[Window], began_s: float) -> str:
    shown = [f"at {each.began_s - began_s:.1f} s for {each.length_s:.1f} s" for each in found[:WINDOWS_MAX]]
    more = len(found) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


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
