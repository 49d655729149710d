"""`ebla chaos scenarios | simulate | planted | run`: deployments under faults, from the command line.

All commands but `run` use the deterministic simulation: they do not need Ray, and a run depends on its scenario and seed only,
on every machine. `run` carries a plan out on a real Ray cluster of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebla.cli.chaos.replaying import PROVED_NOTHING, VIOLATED, make_directory, scenario_named, shrink
from ebla.cli.frame.options import option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.placement.extras import needs

if TYPE_CHECKING:
    from ebla.chaos.soak import Hunt, Soak, Task

MINUTES_MIN = 0.1
SHRUNK_MAX = 10  # failing plans of a soak; each takes up to a minute

Scenarios = Annotated[
    list[str] | None, option("-s --scenario NAME", "A scenario (repeatable; default: all of them).")
]
Workers = Annotated[int | None, option("--workers N", "Processes (default: one per core).", min=1)]


def scenarios() -> Shown:
    """List the scenarios: their workloads and their faults."""
    from ebla.chaos.scenarios.scenarios import SCENARIOS

    rows, document = [], []
    for each in SCENARIOS.values():
        shape, workloads = each.shape, [workload.name for workload in each.workloads()]
        journals = len(shape.journal_hosts())
        masters = f"{shape.masters}, {journals} journal nodes" if journals else f"{shape.masters}"
        hosts = f"{shape.hosts} x {each.replicas}"
        rows.append((each.name, hosts, masters, ", ".join(workloads), ", ".join(each.mix) or "nothing"))
        document.append(
            {
                "name": each.name,
                "hosts": shape.hosts,
                "replicas": each.replicas,
                "masters": shape.masters,
                "journals": journals,
                "workloads": workloads,
                "faults": dict(each.mix),  # expected per ten seconds, by kind
            }
        )
    titles = ("scenario", "hosts x replicas", "masters", "workloads", "faults")
    return {"scenarios": document}, listing(titles, rows)


def simulate(
    ui: Ui,
    scenario: Scenarios = None,
    seeds: Annotated[int, option("-n --seeds N", "Number of seeds in each scenario.", min=1)] = 1000,
    first: Annotated[int, option("--first N", "The first seed.", min=0)] = 0,
    minutes: Annotated[
        float | None,
        option("--minutes MINUTES", "Run for this long instead of a number of seeds.", min=MINUTES_MIN),
    ] = None,
    workers: Workers = None,
    keep: Annotated[
        Path | None, option("--keep DIR", "Write a report to DIR, and the shrunk plans of failing runs.")
    ] = None,
) -> None:
    """Run whole deployments in virtual time under faults, one history per seed, and judge every one of them.

    Exit status 0: no run failed, at most 2 % were void, and seeds that were run twice gave the same history. With one
    worker no seed is run twice. 1: a run failed, or two histories came from one seed, or 1,000 runs of all scenarios
    left a fault point out. 2: the runs prove nothing.
    """
    from ebla.chaos import soak, soak_page
    from ebla.chaos.pages import VALID, VOID
    from ebla.chaos.scenarios.scenarios import SCENARIOS

    names = list(dict.fromkeys(scenario_named(name).name for name in scenario or SCENARIOS))
    if keep is not None:
        with needs("demo", "jinja2"):  # for the report at the end
            make_directory(keep, "--keep")
    began_s = time.monotonic()
    limit = None if minutes is None else began_s + 60 * minutes
    numbers = range(first, first + seeds) if limit is None else _until(limit, first)
    done = soak.Soak(everything=not scenario, asked=len(names) * seeds if limit is None else None)

    try:
        _make_runs(ui, soak.tasks(names, numbers), workers or os.cpu_count() or 1, done)
    except BaseException as error:  # Ctrl-C, SIGTERM, or a defect of the tool
        done.seconds = time.monotonic() - began_s
        signalled = isinstance(error, KeyboardInterrupt | SystemExit)
        done.interrupted = "it was interrupted" if signalled else f"it ended in {type(error).__name__}"
        if keep is not None and done.runs:  # failures are kept, though they are not shrunk
            ui.note(f"the report of what was run is {soak_page.write(done, keep)}")
        raise
    done.seconds = time.monotonic() - began_s
    if keep is not None:
        _shrink_failed(ui, done, keep)
    never = [f"never came to: {', '.join(done.never())}"] if done.never() else []
    ui.show(soak_page.document(done), listing(("", ""), soak_page.figures(done)), *never)
    for why in done.voids():
        ui.warn(f"this is not a pass: {why}")
    if done.verdict != VALID:
        raise typer.Exit(PROVED_NOTHING if done.verdict == VOID else VIOLATED)


def _make_runs(ui: Ui, tasks: Iterator[Task], workers: int, done: Soak) -> None:
    from ebla.chaos import soak

    with ui.working("simulating") as progress, soak.workers(workers) as pools:
        for plan, report in soak.runs(tasks, pools, done):
            if report.violation:
                ui.warn(f"{plan.scenario} seed {plan.seed}: {report.violation.splitlines()[0][:400]}")
                ui.note(f"see it with: ebla chaos replay -s {plan.scenario} --seed {plan.seed} --story")
            progress.step(f"{done.runs:,} runs, {done.answered:,} operations", done.runs, done.asked)
    for plan in done.different:
        ui.warn(f"{plan.scenario} seed {plan.seed} had two histories: a run depends on more than its seed")


def _shrink_failed(ui: Ui, done: Soak, keep: Path) -> None:
    """Write the report before the first failures are shrunk, and again afterwards, also after Ctrl-C."""
    from ebla.chaos import soak, soak_page

    soak_page.write(done, keep)
    try:
        for number, (plan, why) in enumerate(done.failed[:SHRUNK_MAX]):
            shrunk = shrink(ui, soak.Task(plan))
            done.failed[number] = shrunk.plan, shrunk.why or f"in one of two runs only: {why}"
    finally:
        ui.note(f"the report is {soak_page.write(done, keep)}")
    if (left := len(done.failed) - SHRUNK_MAX) > 0:
        ui.note(f"the first {SHRUNK_MAX} plans are shrunk, the other {left} as they were drawn")


def _until(limit: float, first: int) -> Any:
    seed = first
    while time.monotonic() < limit:
        yield seed
        seed += 1


def planted(
    ui: Ui,
    defect: Annotated[
        list[str] | None, option("-d --defect NAME", "A defect (repeatable; default: all of them).")
    ] = None,
    seeds: Annotated[
        int | None,
        option(
            "-n --seeds N",
            "Seeds to try, from 0 on (default: the one that found the defect last, then as many as it may need).",
            min=1,
        ),
    ] = None,
    workers: Workers = None,
) -> None:
    """Plant known defects, one at a time, and check that the simulation finds them.

    Exit status 0: every defect was found.
    """
    from ebla.chaos import soak
    from ebla.chaos.defects.planted import DEFECTS
    from ebla.chaos.defects.planted import defect as named

    chosen = [named(name) for name in defect or DEFECTS]
    found: list[Hunt] = []
    with ui.working("hunting") as progress, soak.workers(workers or os.cpu_count() or 1) as pools:
        for hunt in soak.hunts(chosen, pools, seeds):
            found.append(hunt)
            progress.step(
                f"{hunt.defect}: {'not found' if hunt.seed is None else 'found'}", len(found), len(chosen)
            )
    rows = [
        (
            each.defect,
            each.scenario,
            "not found" if each.seed is None else f"seed {each.seed}",
            f"{each.seconds:.1f} s",
            each.violation.splitlines()[0][:100] if each.violation else "",
        )
        for each in found
    ]
    ui.show({"defects": found}, listing(("defect", "scenario", "found by", "in", "violation"), rows))
    if any(each.seed is None for each in found):
        raise typer.Exit(1)


def run_on_ray(
    ui: Ui,
    scenario: Annotated[str | None, option("-s --scenario NAME", "The scenario (default: crashes).")] = None,
    duration: Annotated[float, option("--duration SECONDS", "Length of act one.")] = 60.0,
    seed: Annotated[
        int | None, option("--seed N", "Determines the plan and the clients' requests (default: 0).", min=0)
    ] = None,
    plan: Annotated[
        Path | None,
        option("--plan FILE", "A saved plan, instead of a scenario.", exists=True, dir_okay=False),
    ] = None,
    hosts: Annotated[
        int | None, option("--hosts N", "Number of Ray nodes (default: the scenario's).")
    ] = None,
    groups: Annotated[int, option("--groups N", "Number of client processes.")] = 2,
    clients: Annotated[int, option("--clients N", "Number of clients in each process.")] = 2,
    keep: Annotated[
        Path | None,
        option(
            "--keep DIR",
            "Write the report, histories and logs to DIR (default: a new directory, which the last line names).",
        ),
    ] = None,
) -> None:
    """Kill, pause and cut off nodes of a real Ray cluster while clients use it, and judge the clients' answers.

    The run starts a cluster on this machine and removes it afterwards, also after Ctrl-C. Faults that this machine cannot carry out
    are skipped, and the report says why. Scenarios are those of `ebla chaos scenarios`, and calm, crashes, kills, losses,
    leaders, stops, blackouts, pauses, nodes, zombies, partitions, calls, disks, logs, everything; each also with
    PacificA tables (pacifica-kills, ...), and `both` with tables of both kinds.

    Exit status 0: judged and valid. 1: a promise was broken. 2: void, too little happened to judge, or it
    could not be begun. 130: interrupted.
    """
    if ui.common.address is not None or ui.common.name is not None:
        raise Usage("chaos run starts its own cluster; leave out --address and --name")
    with needs("demo", "jinja2", "matplotlib"):
        from ebla.cli.chaos.running import Options, main

    raise typer.Exit(
        main(Options(scenario, duration, seed, plan, hosts, groups, clients, keep, ui.json, ui.silent))
    )
