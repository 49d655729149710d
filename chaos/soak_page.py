"""The page of a soak: how much was run, which runs failed and how to repeat them, and what no run reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ebla.actors.fault_points import MARKS
from ebla.chaos import pages, plans
from ebla.chaos.pages import VALID, VIOLATION, VOID, Table
from ebla.chaos.soak import Soak

PAGE, FIGURES = "soak.html", "soak.json"
WORDS = {VALID: "all held", VIOLATION: "failed", VOID: "void"}
SUB = "Each run is a whole deployment in virtual time under faults, and is judged by checkers and invariants."


def figures(soak: Soak) -> list[tuple[str, str]]:
    """Values and their labels."""
    seconds = max(soak.seconds, 0.001)
    crashes = f"{soak.crashed.total():,} at {len(soak.crashed)} of {len(soak.points())}"
    return [
        (f"{soak.runs:,}", f"runs, {soak.runs / seconds:.1f} a second"),
        (f"{soak.virtual_s / 3600:.2f} h", f"of virtual time, {soak.virtual_s / seconds:,.0f} x real time"),
        (f"{soak.answered:,}", "operations answered"),
        (f"{soak.unknown:,}", "with an unknown outcome"),
        (f"{soak.effects.total():,}", f"faults of {len(soak.effects)} kinds that had an effect"),
        (crashes, "crashes at fault points"),
        (soak.compared, "runs made twice, equal"),
        (f"{soak.void:,}", "void"),
        (f"{len(soak.failed):,}", "failed"),
    ]


def html(soak: Soak) -> str:
    failed = [
        (f"ebla chaos replay -s {plan.scenario} --seed {plan.seed} --story", f"{len(plan.faults)}", why)
        for plan, why in soak.failed
    ]
    points = [(point, f"{soak.fired[point]:,}", f"{soak.crashed[point]:,}") for point in soak.points()]
    tables = [
        Table("This is not a pass", ("reason",), [(why,) for why in soak.voids()]),
        Table("Failed", ("run", "faults", "violation"), failed, (1,)),
        Table(
            "Two histories from one seed",
            ("scenario", "seed"),
            [(plan.scenario, f"{plan.seed}") for plan in soak.different],
        ),
        Table("Never reached", ("fault point, mark, effect or call",), [(name,) for name in soak.never()]),
        _counts("Scenarios", ("scenario", "runs"), soak.per_scenario),
        _counts("Faults that had an effect", ("fault", "times"), dict(sorted(soak.effects.items()))),
        Table("Fault points", ("point", "passed", "crashed at"), points, (1, 2)),
        _counts("Rare paths", ("mark", "reached"), {mark: soak.reached[mark] for mark in MARKS}),
    ]
    return pages.page("Soak", soak.verdict, WORDS[soak.verdict], SUB, figures(soak), tables)


def _counts(title: str, columns: tuple[str, str], counts: dict[str, int]) -> Table:
    return Table(title, columns, [(name, f"{count:,}") for name, count in counts.items()], (1,))


def document(soak: Soak) -> dict[str, Any]:
    """The figures as plain data. `points` and `crashed`: how often each fault point was passed, and crashed a node."""
    counted = ("workers", "runs", "void", "pairs", "answered", "unknown", "failed", "different", "crashed")
    found = {name: getattr(soak, name) for name in ("verdict", "interrupted", "asked", *counted)} | {
        "virtual_s": round(soak.virtual_s, 3),
        "seconds": round(soak.seconds, 3),
        "never": soak.never(),
        "thorough": soak.thorough,
        "voids": soak.voids(),
        "scenarios": soak.per_scenario,
        "faults": soak.effects,
        "points": {point: soak.fired[point] for point in soak.points()},
        "marks": soak.reached,
    }
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def write(soak: Soak, directory: Path) -> Path:
    """Write the page, the figures as JSON, and every plan that failed or had two histories. Returns the page's path."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / FIGURES).write_bytes(msgspec.json.format(msgspec.json.encode(document(soak)), indent=1))
    for plan in [*soak.different, *(plan for plan, _ in soak.failed)]:
        (directory / f"{plan.scenario}-{plan.seed}.json").write_bytes(plans.encode(plan))
    page = directory / PAGE
    page.write_text(html(soak))
    return page
