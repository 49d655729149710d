"""`ebla chaos scenarios | simulate | replay | planted`: the deterministic simulation, from the command line.

Nothing here needs Ray: a run is a value of its scenario and seed, and the same everywhere.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.commands import command
from ebla.cli.problems import Refused
from ebla.cli.render import listing
from ebla.cli.ui import Ui
from ebla.storage.errors import InvalidArgument

if TYPE_CHECKING:
    from ebla.chaos.plans import Plan
    from ebla.chaos.simulation.runs import Run
    from ebla.chaos.soak import Soak

COVERAGE_RUNS = 1000  # from so many runs on, a fault point that none of them passed is a failure

Scenarios = Annotated[
    list[str] | None, typer.Option("--scenario", "-s", help="This one (repeatable; default: all of them).")
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Processes (default: one per core).", show_default=False),
]


def scenarios(ui: Ui) -> None:
    """The scenarios: what they do and what goes wrong in them."""
    from ebla.chaos.scenarios import SCENARIOS

    rows = [
        (
            each.name,
            f"{each.shape.hosts} x {each.replicas}",
            ", ".join(workload.name for workload in each.workloads()),
            ", ".join(each.mix) or "nothing",
        )
        for each in SCENARIOS.values()
    ]
    document = [
        dict(zip(("name", "hosts x replicas", "workloads", "faults"), row, strict=True)) for row in rows
    ]
    ui.show({"scenarios": document}, listing(("scenario", "hosts x replicas", "workloads", "faults"), rows))


def simulate(
    ui: Ui,
    scenario: Scenarios = None,
    seeds: Annotated[int, typer.Option("--seeds", "-n", min=1, help="How many, in each scenario.")] = 1000,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", help="Run on for so long instead of a number of seeds.", show_default=False
        ),
    ] = None,
    workers: Workers = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Write the plans of failing runs there, shrunk."),
    ] = None,
) -> None:
    """Run whole deployments in virtual time under faults, one history per seed, and judge every one of them.

    Exit status 0: no run failed, and seeds that were run twice gave the same history.
    """
    from ebla.chaos import soak
    from ebla.chaos.scenarios import SCENARIOS
    from ebla.chaos.scenarios import scenario as named

    told = soak.Soak()
    began_s = time.monotonic()
    limit = None if minutes is None else began_s + 60 * minutes
    names = [named(name).name for name in scenario or SCENARIOS]
    numbers = range(first, first + seeds) if limit is None else _until(limit, first)
    with ui.working("simulating") as progress, soak.workers(workers or os.cpu_count() or 1) as pools:
        total = len(names) * seeds if limit is None else None
        for plan, report in soak.runs(soak.tasks(names, numbers), pools, told):
            if report.violation:
                ui.warn(f"{plan.scenario} seed {plan.seed}: {report.violation.splitlines()[0][:400]}")
                ui.note(f"see it with: ebla chaos replay -s {plan.scenario} --seed {plan.seed} --story")
            progress.step(f"{told.answered:,} operations", told.runs, total)
    seconds = time.monotonic() - began_s
    if keep is not None:
        _keep(ui, keep, told)
    never = told.never() if not scenario and told.runs >= COVERAGE_RUNS else []
    ui.show(_document(told, seconds, never), *_table(told, seconds, never))
    if not told.good or never:
        raise typer.Exit(1)


def _until(limit: float, first: int) -> Any:
    seed = first
    while time.monotonic() < limit:
        yield seed
        seed += 1


def _keep(ui: Ui, directory: Path, told: Soak) -> None:
    from ebla.chaos import plans, soak

    directory.mkdir(parents=True, exist_ok=True)
    for plan, _ in told.failed:
        shrunk = soak.shrink(soak.Task(plan))
        path = directory / f"{plan.scenario}-{plan.seed}.json"
        path.write_bytes(plans.encode(shrunk))
        ui.note(f"{path}: {len(shrunk.faults)} of {len(plan.faults)} faults are needed")


def _document(told: Soak, seconds: float, never: list[str]) -> dict[str, Any]:
    return {
        "runs": told.runs,
        "void": told.void,
        "failed": [
            {"scenario": plan.scenario, "seed": plan.seed, "violation": why} for plan, why in told.failed
        ],
        "pairs": told.pairs,
        "different": [{"scenario": plan.scenario, "seed": plan.seed} for plan in told.different],
        "answered": told.answered,
        "unknown": told.unknown,
        "virtual_s": round(told.virtual_s, 3),
        "seconds": round(seconds, 3),
        "scenarios": dict(told.per_scenario),
        "faults": dict(told.effects),
        "points": dict(told.fired),
        "crashed_at": dict(told.crashed),
        "marks": dict(told.reached),
        "never": never,
    }


def _table(told: Soak, seconds: float, never: list[str]) -> list[Any]:
    rows = [
        ("runs", f"{told.runs:,} in {seconds:,.0f} s, {told.runs / max(seconds, 0.001):.1f} a second"),
        (
            "of virtual time",
            f"{told.virtual_s / 3600:.2f} h, {told.virtual_s / max(seconds, 0.001):,.0f} x real time",
        ),
        ("operations answered", f"{told.answered:,}, and {told.unknown:,} with an unknown outcome"),
        ("faults that had an effect", f"{sum(told.effects.values()):,} of {len(told.effects)} kinds"),
        (
            "crashes at fault points",
            f"{sum(told.crashed.values()):,} at {len(told.crashed)} of {len(told.fired)}",
        ),
        ("run twice, equal", f"{told.pairs - len(told.different)} of {told.pairs}"),
        ("void", f"{told.void:,}"),
        ("failed", f"{len(told.failed):,}"),
    ]
    if never:
        rows.append(("never came to", ", ".join(never)))
    return [listing(("", ""), rows)]


def replay(
    ui: Ui,
    scenario: Annotated[str | None, typer.Option("--scenario", "-s", help="The scenario.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="The seed.")] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", exists=True, dir_okay=False, help="A plan that was kept, instead."),
    ] = None,
    story: Annotated[bool, typer.Option("--story", help="Tell what happened before the violation.")] = False,
    messages: Annotated[bool, typer.Option("--messages", help="In the story, every message too.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="The story from its beginning.")] = False,
    defect: Annotated[
        str, typer.Option("--defect", help="With a planted defect (see `ebla chaos planted`).")
    ] = "",
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Leave out the faults that the failure does not need.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="DIR", help="Write the histories there (JSON lines and EDN)."),
    ] = None,
) -> None:
    """Make one run again, exactly as it was.

    Exit status 1 if it ends in a violation.
    """
    from ebla.chaos import soak
    from ebla.chaos.planted import planted
    from ebla.chaos.scenarios import scenario as named
    from ebla.chaos.simulation.runs import Run

    chosen = _plan(scenario, seed, plan)
    with planted(defect):
        if shrink:
            chosen = soak.shrink(soak.Task(chosen, defect))
        run = Run(named(chosen.scenario), chosen, whole_story=story)
        report = soak.quiet(run.go)
    if export is not None:
        _export(ui, export, run)
    verdict = report.violation or ("too little happened to judge" if report.void else "everything held")
    parts: list[Any] = (
        [listing(("", "fault"), [("", str(fault)) for fault in chosen.faults])] if chosen.faults else []
    )
    if story:
        parts += _told(run, messages, whole)
    parts.append(
        f"{chosen.scenario} seed {chosen.seed}, {report.virtual_s:.3f} s of virtual time, digest {report.digest}"
    )
    parts.append(verdict)
    document = msgspec.to_builtins(report) | {"plan": msgspec.to_builtins(chosen)}
    ui.show(document, *parts)
    if report.violation:
        raise typer.Exit(1)


def _plan(scenario: str | None, seed: int | None, path: Path | None) -> Plan:
    from ebla.chaos import plans
    from ebla.chaos.scenarios import scenario as named
    from ebla.chaos.simulation.runs import plan_of

    if path is not None:
        try:
            return plans.decode(path.read_bytes())
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"{path} is not a plan of faults: {error}") from error
    if scenario is None or seed is None:
        raise Refused("which run?", hint="give --scenario and --seed, or --plan")
    return plan_of(named(scenario), seed)


def _told(run: Run, messages: bool, whole: bool) -> list[Any]:
    from ebla.chaos.simulation import story

    lines = story.story(run, messages=messages, around_s=None if whole else story.AROUND_S)
    rows = [(f"{line.at_s:.6f}", line.kind, line.text) for line in lines]
    parts: list[Any] = [listing(("second", "", "what happened"), rows)]
    if run.violation:
        for who, notes in story.replicas(run):
            parts += [f"\n{who} remembers", *("  " + note for note in notes)]
    return [*parts, ""]


def _export(ui: Ui, directory: Path, run: Run) -> None:
    from ebla.chaos import export

    directory.mkdir(parents=True, exist_ok=True)
    for name, history in run.histories.items():
        (directory / f"{name}.jsonl").write_text(export.to_json_lines(history))
        (directory / f"{name}.edn").write_text(export.to_edn(history))
    ui.note(f"{2 * len(run.histories)} files in {directory}")


def planted(
    ui: Ui,
    defect: Annotated[
        list[str] | None, typer.Option("--defect", "-d", help="This one (repeatable; default: all of them).")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", "-n", min=1, help="At most so many (default: each one's own limit)."),
    ] = None,
    workers: Workers = None,
) -> None:
    """Put known defects in, one at a time, and see whether the simulation finds them.

    Exit status 0: every one of them was found.
    """
    from ebla.chaos import soak
    from ebla.chaos.planted import DEFECTS
    from ebla.chaos.planted import defect as named

    chosen = [named(name) for name in defect or DEFECTS]
    found: list[dict[str, Any]] = []
    with ui.working("hunting") as progress, soak.workers(workers or os.cpu_count() or 1) as pools:
        for hunt in soak.hunts(chosen, pools, seeds):
            found.append(msgspec.to_builtins(hunt))
            progress.step(
                f"{hunt.defect}: {'not found' if hunt.seed is None else 'found'}", len(found), len(chosen)
            )
    rows = [
        (
            each["defect"],
            each["scenario"],
            "not found" if each["seed"] is None else f"seed {each['seed']}",
            f"{each['seconds']:.1f} s",
            each["violation"].splitlines()[0][:100] if each["violation"] else "",
        )
        for each in found
    ]
    ui.show({"defects": found}, listing(("defect", "scenario", "found by", "in", "how it showed"), rows))
    if any(each["seed"] is None for each in found):
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    command(app)(scenarios)
    command(app)(simulate)
    command(app)(replay)
    command(app)(planted)
