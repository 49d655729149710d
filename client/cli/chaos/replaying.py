"""`ebla chaos replay`: repeats one simulated run, prints its story, shrinks and exports it. The other commands use parts of it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame.options import option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Ui
from ebla.storage.errors import InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from ebla.chaos.plans import Plan
    from ebla.chaos.runs import Report, Run
    from ebla.chaos.scenarios.scenarios import Scenario
    from ebla.chaos.soak import Shrunk, Task

GIVE_ONE = "give --scenario and --seed, or --plan, or --defect"
VOID = "this is not a pass: too little happened to judge, or a checker could not decide"
VIOLATED, PROVED_NOTHING = 1, 2  # exit statuses


def replay(
    ui: Ui,
    scenario: Annotated[str | None, option("-s --scenario NAME", "The scenario.")] = None,
    seed: Annotated[int | None, option("--seed N", "The seed.", min=0)] = None,
    plan: Annotated[Path | None, option("--plan FILE", "A saved plan.", exists=True, dir_okay=False)] = None,
    story: Annotated[bool, option("--story", "Print the events around the violation.")] = False,
    messages: Annotated[bool, option("--messages", "With --story: every message, too.")] = False,
    whole: Annotated[
        bool, option("--whole", "With --story: every key and tablet, from the beginning.")
    ] = False,
    defect: Annotated[
        str, option("--defect NAME", "Plant this defect; without a scenario, in the run that shows it.")
    ] = "",
    shrink: Annotated[bool, option("--shrink", "Drop the faults that the failure does not need.")] = False,
    export: Annotated[
        Path | None, option("--export DIR", "Save the histories (JSON lines, EDN, for Knossos and Elle).")
    ] = None,
) -> None:
    """Repeat one run exactly.

    Exit status 0: everything held. 1: a violation. 2: void, too little was judged.
    """
    from ebla.chaos import soak
    from ebla.chaos.defects.planted import planted
    from ebla.chaos.ray.scenarios import scenario_of
    from ebla.chaos.runs import Run

    chosen = _plan(scenario, seed, plan, defect)
    if export is not None:
        make_directory(export, "--export")
    if shrink:
        chosen = _failing(ui, soak.Task(chosen, defect))
    with planted(defect):
        run = Run(scenario_of(chosen), chosen, whole_story=story)
        report = soak.quiet(run.go)
    if export is not None:
        _export(ui, export, run)
    verdict = report.violation or (VOID if report.void else "everything held")
    parts: list[Any] = _faults(chosen, report)
    if story:
        parts += _story(run, messages, whole)
    parts.append(
        f"{chosen.scenario} seed {chosen.seed}, {report.virtual_s:.3f} s of virtual time, digest {report.digest}"
    )
    parts.append(verdict)
    ui.show({**msgspec.structs.asdict(report), "plan": chosen}, *parts)
    if report.violation or report.void:
        raise typer.Exit(VIOLATED if report.violation else PROVED_NOTHING)


def _failing(ui: Ui, task: Task) -> Plan:
    shrunk = shrink(ui, task)
    if not shrunk.why:
        ui.warn("there is nothing to shrink: everything held; the plan is as it was")
    return shrunk.plan


def _faults(plan: Plan, report: Report) -> list[Any]:
    if not plan.faults:
        return []
    planned = Counter(fault.kind for fault in plan.faults)
    begun, effects = Counter(report.begun), Counter(report.effects)
    idle = {"had no effect": begun - effects, "had not begun when it ended": planned - begun}
    table = listing(("", "fault"), [("", str(fault)) for fault in plan.faults])
    return [table, *(f"{what}: {_listed(which, planned)}" for what, which in idle.items() if which)]


def _listed(which: Counter[str], planned: Counter[str]) -> str:
    parts = (kind if planned[kind] == 1 else f"{kind} ({which[kind]} of {planned[kind]})" for kind in which)
    return ", ".join(parts)


def _plan(scenario: str | None, seed: int | None, path: Path | None, defect: str) -> Plan:
    """The plan to repeat. A defect has a scenario, a seed that shows it, and perhaps a written plan."""
    from ebla.chaos.defects.planted import defect as named
    from ebla.chaos.runs import plan_of

    if path is not None:
        if scenario is not None or seed is not None:
            raise Usage(f"a plan has its scenario and seed; {GIVE_ONE}", option="--plan")
        return _read_plan(path)
    if defect:
        own = named(defect)
        if scenario in (None, own.scenario):
            return own.plan(own.seed if seed is None else seed)
    if scenario is None or seed is None:
        raise Usage("which run?", option="--scenario", hint=GIVE_ONE)
    return plan_of(scenario_named(scenario), seed)


def _read_plan(path: Path) -> Plan:
    from ebla.chaos import plans
    from ebla.chaos.ray.scenarios import NO_POINTS, scenario_of

    try:
        plan = plans.decode(path.read_bytes())
    except OSError as error:
        raise Usage(
            f"{path} cannot be read: {error.strerror}; name a readable plan", option="--plan"
        ) from None
    except msgspec.MsgspecError as error:
        raise Usage(f"{path} is not a plan of faults: {error}", option="--plan") from error
    wanted = scenario_of(plan)
    try:
        points = wanted.points if plan.stage == plans.SIMULATION else (*NO_POINTS, *wanted.points)
        plans.check(plan, wanted.host_names(), points, wanted.mix)
    except InvalidArgument as error:
        raise Usage(f"{path} cannot be carried out: {error}", option="--plan") from None
    return plan


def _story(run: Run, messages: bool, whole: bool) -> list[Any]:
    from ebla.chaos import story

    around_s = None if whole else story.AROUND_S
    lines = story.story(run, messages=messages, around_s=around_s)
    rows = [(f"{line.at_s:.6f}", line.kind, line.text) for line in lines]
    parts: list[Any] = [listing(("second", "", "what happened"), rows)]
    if run.violation:
        for who, notes in story.replicas(run, around_s=around_s):
            parts += [f"\n{who} remembers", *("  " + note for note in notes)]
    return [*parts, ""]


def _export(ui: Ui, directory: Path, run: Run) -> None:
    from ebla.chaos import export

    files = 0
    for name, history in run.histories.items():
        (directory / f"{name}{export.LINES}").write_text(export.to_json_lines(history))
        files += 1 + len(export.write(history, name, directory))
    ui.note(f"{files} files in {directory}")


def shrink(ui: Ui, task: Task) -> Shrunk:
    from ebla.chaos import soak

    with ui.working(f"shrinking {task.plan.scenario} seed {task.plan.seed}") as progress:
        return soak.shrink(task, lambda runs: progress.step(f"{runs} runs", runs, 1 + soak.SHRINK_RUNS_MAX))


def scenario_named(name: str) -> Scenario:
    from ebla.chaos.scenarios.scenarios import SCENARIOS
    from ebla.chaos.scenarios.scenarios import scenario as named

    try:
        return named(name)
    except InvalidArgument as error:
        raise Usage(f"{error}{did_you_mean(name, SCENARIOS)}", option="--scenario") from None


def make_directory(directory: Path, option: str) -> None:
    """Create the directory before any run, so that no run is wasted."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = f"{directory} cannot be created: {error.strerror}; name a directory that can be written"
        raise Usage(why, option=option) from None
    if not os.access(directory, os.W_OK):
        raise Usage(f"{directory} cannot be written; name another directory", option=option)
