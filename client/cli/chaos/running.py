"""`ebla chaos run`: faults on a real Ray cluster of its own on this machine.

The command removes its cluster, data and processes at its end. Ctrl-C ends it at any moment; a second Ctrl-C is ignored, since
the clean-up is bounded. Exit status: 0 judged and valid, 1 a violation, 2 void (too little happened to judge, or the
run could not begin, or ended in an error), 130 interrupted, 143 by SIGTERM. The report, the histories and the roles' logs are
always kept, also of a run that was interrupted or ended in an error, in the directory of --keep or in a new one whose name is
printed; the data is kept if the run was judged and not valid.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from ebla.chaos.export import LINES
from ebla.chaos.pages import VALID, VOID
from ebla.chaos.plans import Plan, decode
from ebla.chaos.ray.report import page, report
from ebla.chaos.ray.run import CLIENTS, GROUPS, Request, run
from ebla.chaos.ray.scenarios import HOSTS, HOSTS_MAX, scenario
from ebla.cli.frame.problems import document, next_step
from ebla.cli.frame.ui import write_json
from ebla.show.steps import Steps
from ebla.storage.errors import EblaError, InvalidArgument

SCENARIO = "crashes"
PLAIN_WIDTH = 140  # of output that is not on a terminal
RESULTS = "results"
KEPT = "what there is of the histories and logs is in"


class Options(NamedTuple):
    scenario: str | None = None
    duration: float = 60.0
    seed: int | None = None
    plan: Path | None = None
    hosts: int | None = None
    groups: int = GROUPS
    clients: int = CLIENTS
    keep: Path | None = None
    json: bool = False
    quiet: bool = False


def main(given: Options) -> int:
    steps = Steps(Console(stderr=True), quiet=given.json or given.quiet)
    kept: list[Path] = []
    with _interrupted_once(steps):
        try:
            return _run(given, steps, kept)
        except KeyboardInterrupt as interrupt:
            steps.end("interrupted; everything was ended")
            if kept:  # also with --json, whose document every interrupted command writes
                print(f"{KEPT} {kept[0]}", file=sys.stderr)
            return 128 + int(*interrupt.args or (signal.SIGINT,))
        except EblaError as error:
            return _not_judged(error, kept, steps, given.json)
        except OSError as error:
            why = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
            refused = InvalidArgument(f"{why}; name places that can be used")
            return _not_judged(refused, kept, steps, given.json)


def _run(given: Options, steps: Steps, kept: list[Path]) -> int:
    """`kept`: gets the directory of the results of a run that is not judged, if it has any."""
    plan = _plan(given)
    directory = Path(tempfile.mkdtemp(prefix="ebla-chaos-"))
    remove: list[Path] = [directory]
    try:
        request = _request(given, plan, directory)
        try:
            found = run(request, steps, _silent if given.json else steps.end)
        except BaseException:
            if any(request.results.glob("*")):
                kept.append(request.results)
                remove = [path for path in directory.iterdir() if path != request.results]
            raise
        shown = page.write(found, request.results)
        if found.verdict != VALID:
            remove = []
            steps.end(f"the data of the run is kept in {directory}")
        elif given.keep is None:
            remove = [path for path in directory.iterdir() if path.name != RESULTS]
    finally:
        for path in remove:
            shutil.rmtree(path, ignore_errors=True)
    if given.json:
        write_json({**msgspec.structs.asdict(found), "page": str(shown)})
    else:
        console = Console()
        Console(width=None if console.is_terminal else PLAIN_WIDTH).print(report.view(found))
        steps.end(f"the report is {shown}")
    return found.status


@contextlib.contextmanager
def _interrupted_once(steps: Steps) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the run by a KeyboardInterrupt with its number. Later ones are ignored: they would interrupt
    the clean-up."""

    def end(number: int, _: Any) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        steps.end("ending everything; this takes a few seconds")
        raise KeyboardInterrupt(number)

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        for each in before:
            signal.signal(each, end)
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _not_judged(error: EblaError, kept: list[Path], steps: Steps, as_json: bool) -> int:
    """Report that nothing was judged: void, for every kind of error."""
    status = report.STATUS[VOID]
    if as_json:
        shown = document(error, status)
        write_json({**shown, "results": str(kept[0])} if kept else shown)
        return status
    begun = any(kept[0].glob(f"*{LINES}")) if kept else False
    why = "the run ended before it was judged" if begun else "the run could not begin"
    steps.end(f"void, {why}: {error}")
    if kept:
        steps.end(f"{KEPT} {kept[0]}")
    if step := next_step(error):
        steps.end(f"  next: {step}")
    return status


def _plan(given: Options) -> Plan | None:
    if given.plan is None:
        return None
    if given.scenario is not None or given.seed is not None:
        raise InvalidArgument("a plan has its scenario and seed; give --plan, or --scenario and --seed")
    try:
        return decode(given.plan.read_bytes())
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{given.plan} is not a plan of faults: {error}") from error


def _request(given: Options, plan: Plan | None, directory: Path) -> Request:
    name = plan.scenario if plan else given.scenario or SCENARIO
    scenario(name)  # or InvalidArgument, before anything is started
    if not 0 < given.duration < math.inf:
        raise InvalidArgument(f"--duration must be above 0 s, not {given.duration:g}")
    if given.hosts is not None and not HOSTS <= given.hosts <= HOSTS_MAX:
        raise InvalidArgument(f"--hosts must be between {HOSTS} and {HOSTS_MAX}, not {given.hosts}")
    if given.groups < 1 or given.clients < 1:
        raise InvalidArgument("--groups and --clients must be 1 at least")
    return Request(
        scenario=name,
        directory=directory,
        results=given.keep.absolute() if given.keep else directory / RESULTS,
        duration_s=given.duration,
        seed=plan.seed if plan else given.seed or 0,
        hosts=given.hosts,
        plan=plan,
        groups=given.groups,
        clients=given.clients,
    )


def _silent(text: str) -> None:
    """Prints nothing: standard output is for the document, and standard error for errors."""
