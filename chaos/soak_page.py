"""The page of a soak: how much was run, which runs failed and how to repeat them, and what no run reached."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ebla.actors.fault_points import MARKS
from ebla.chaos import plans
from ebla.chaos.plans import Plan
from ebla.chaos.soak import Soak
from ebla.chaos.style import render

COVERAGE_RUNS = 1000  # of all scenarios; in so many runs a fault point that none of them passed is a failure
PAGE, FIGURES = "soak.html", "soak.json"
VALID, VIOLATION, VOID = "valid", "violation", "void"
WORDS = {VALID: "all held", VIOLATION: "failed", VOID: "void"}


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a soak. `points` and `crashed`: how often each fault point was passed, and crashed a node. `never`: fault
    points and marks that no run reached; a failure if the soak was `thorough`: all scenarios, in COVERAGE_RUNS runs or more.
    `voids`: why the soak proves nothing."""

    workers: int
    runs: int
    void: int
    pairs: int
    answered: int
    unknown: int
    virtual_s: float
    seconds: float
    failed: tuple[tuple[Plan, str], ...]
    different: tuple[Plan, ...]
    never: tuple[str, ...]
    thorough: bool
    voids: tuple[str, ...]
    scenarios: dict[str, int]
    faults: dict[str, int]
    points: dict[str, int]
    crashed: dict[str, int]
    marks: dict[str, int]

    @property
    def good(self) -> bool:
        return self.verdict == VALID

    @property
    def verdict(self) -> str:
        if self.failed or self.different or (self.thorough and self.never):
            return VIOLATION
        return VOID if self.voids else VALID

    @property
    def compared(self) -> str:
        """How many of the runs that were made twice had equal digests."""
        if self.workers < 2:
            return "not compared: one worker"
        return f"{self.pairs - len(self.different)} of {self.pairs}"


def figures(soak: Soak, seconds: float, everything: bool) -> Figures:
    """`everything`: whether all scenarios were requested."""
    never, voids = soak.never(), soak.voids()
    thorough = everything and soak.runs >= COVERAGE_RUNS
    if everything and never and not thorough:
        voids.append(
            f"{len(never)} fault points or marks were never reached in so few runs; make {COVERAGE_RUNS:,} or more"
        )
    return Figures(
        workers=soak.workers,
        runs=soak.runs,
        void=soak.void,
        pairs=soak.pairs,
        answered=soak.answered,
        unknown=soak.unknown,
        virtual_s=round(soak.virtual_s, 3),
        seconds=round(seconds, 3),
        failed=tuple(soak.failed),
        different=tuple(soak.different),
        never=tuple(never),
        thorough=thorough,
        voids=tuple(voids),
        scenarios=dict(soak.per_scenario),
        faults=dict(soak.effects),
        points={point: soak.fired[point] for point in soak.points()},
        crashed=dict(soak.crashed),
        marks=dict(soak.reached),
    )


_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Soak: {{ word }}</title>
{{ style }}</head><body>
<h1>Soak <span class="verdict {{ f.verdict }}">{{ word }}</span></h1>
<p class="sub">Each run is a whole deployment in virtual time under faults, and is judged by checkers and invariants.</p>
<div class="figures">
{% for value, label in numbers %}<span><b>{{ value }}</b>{{ label }}</span>{% endfor %}
</div>
{% if f.voids %}<h2>This is not a pass</h2><ul>{% for why in f.voids %}<li>{{ why }}</li>{% endfor %}</ul>{% endif %}
{% if f.failed %}<h2>Failed</h2><table><tr><th>run</th><th class="n">faults</th><th>violation</th></tr>
{% for plan, why in f.failed %}<tr><td>ebla chaos replay -s {{ plan.scenario }} --seed {{ plan.seed }} --story</td>
<td class="n">{{ plan.faults | length }}</td><td>{{ why }}</td></tr>{% endfor %}</table>{% endif %}
{% if f.different %}<h2>Two histories from one seed</h2><ul>
{% for plan in f.different %}<li>{{ plan.scenario }} seed {{ plan.seed }}</li>{% endfor %}</ul>{% endif %}
{% if f.never %}<h2>Never reached</h2><ul>{% for name in f.never %}<li class="false">{{ name }}</li>{% endfor %}</ul>{% endif %}
<h2>Scenarios</h2><table><tr><th>scenario</th><th class="n">runs</th></tr>
{% for name, count in f.scenarios.items() %}<tr><td>{{ name }}</td><td class="n">{{ "{:,}".format(count) }}</td></tr>{% endfor %}
</table>
<h2>Faults that had an effect</h2><table><tr><th>fault</th><th class="n">times</th></tr>
{% for name, count in f.faults | dictsort %}<tr><td>{{ name }}</td><td class="n">{{ "{:,}".format(count) }}</td></tr>{% endfor %}
</table>
<h2>Fault points</h2><table><tr><th>point</th><th class="n">passed</th><th class="n">crashed at</th></tr>
{% for name, count in f.points.items() %}<tr><td>{{ name }}</td><td class="n">{{ "{:,}".format(count) }}</td>
<td class="n">{{ "{:,}".format(f.crashed.get(name, 0)) }}</td></tr>{% endfor %}</table>
<h2>Rare paths</h2><table><tr><th>mark</th><th class="n">reached</th></tr>
{% for name in marks %}<tr><td>{{ name }}</td><td class="n">{{ "{:,}".format(f.marks.get(name, 0)) }}</td></tr>{% endfor %}
</table></body></html>
"""


def html(found: Figures) -> str:
    seconds = max(found.seconds, 0.001)
    numbers = [
        (f"{found.runs:,}", f"runs, {found.runs / seconds:.1f} a second"),
        (f"{found.virtual_s / 3600:.1f} h", f"of virtual time, {found.virtual_s / seconds:,.0f} x real time"),
        (f"{found.answered:,}", "operations answered"),
        (f"{found.unknown:,}", "with an unknown outcome"),
        (f"{sum(found.faults.values()):,}", "faults that had an effect"),
        (found.compared, "runs made twice, equal"),
        (f"{found.void:,}", "void"),
        (f"{len(found.failed):,}", "failed"),
    ]
    word = WORDS[found.verdict]
    return render(_TEMPLATE, f=found, word=word, numbers=numbers, marks=MARKS)


def write(found: Figures, directory: Path) -> Path:
    """Write the page, the figures as JSON, and every failing plan. Returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FIGURES).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    for plan, _ in found.failed:
        (directory / f"{plan.scenario}-{plan.seed}.json").write_bytes(plans.encode(plan))
    page = directory / PAGE
    page.write_text(html(found))
    return page
