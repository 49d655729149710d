"""Chaos on a real Ray cluster of this machine: what `ebla chaos run` does, and the same by itself.

    python -m ebla.chaos.ray --scenario crashes --duration 60 --seed 7

The cluster, its data and its processes are the command's own, and gone when it ends; Ctrl-C ends it at any moment, and
is heard once: what follows is bounded, and leaves nothing behind. Exit status: 0 judged and valid, 1 something was
violated, 2 void (too little happened to judge, or it could not be begun), 130 interrupted. The report, the histories
and the roles' logs are always kept, in the directory of --keep or in one that is told; the data is, where the run was
not valid.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from ebla.chaos.plans import Plan, decode
from ebla.chaos.ray.report import page, report
from ebla.chaos.ray.run import CLIENTS, GROUPS, Request, run
from ebla.chaos.ray.scenarios import HOSTS, SCENARIOS, scenario
from ebla.cli.frame.problems import document, next_step
from ebla.cli.frame.ui import write_json
from ebla.steps import Steps
from ebla.storage.errors import EblaError, InvalidArgument

HOSTS_MAX = 8
SCENARIO = "crashes"
INTERRUPTED = 130
PLAIN_WIDTH = 140  # of what is no terminal
RESULTS = "results"


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    steps = Steps(Console(stderr=True), quiet=given.json)
    with _interrupted_once(steps):
        try:
            return _run(given, steps)
        except KeyboardInterrupt:
            steps.end("interrupted; everything was ended" + (f", see {given.keep}" if given.keep else ""))
            return INTERRUPTED
        except EblaError as error:
            return _refused(error, steps, given.json)
        except OSError as error:
            why = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
            return _refused(InvalidArgument(f"{why}; name places that can be used"), steps, given.json)


def _run(given: argparse.Namespace, steps: Steps) -> int:
    plan = _plan(given)
    directory = Path(tempfile.mkdtemp(prefix="ebla-chaos-"))
    remove: list[Path] = [directory]
    try:
        request = _request(given, plan, directory)
        found = run(request, steps, _silent if given.json else steps.end)
        shown = page.write(found, request.results)
        if found.verdict != report.VALID:
            remove = []
            steps.end(f"the data of the run is kept in {directory}")
        elif given.keep is None:
            remove = [path for path in directory.iterdir() if path.name != RESULTS]
    finally:
        for path in remove:
            shutil.rmtree(path, ignore_errors=True)
    if given.json:
        write_json(msgspec.to_builtins(found) | {"page": str(shown)})
    else:
        console = Console()
        Console(width=None if console.is_terminal else PLAIN_WIDTH).print(report.view(found))
        steps.end(f"the report is {shown}")
    return found.status


@contextlib.contextmanager
def _interrupted_once(steps: Steps) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) ends the run. Those after it would only leave behind what is being ended."""

    def end(*_: Any) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        steps.end("ending everything; this takes a few seconds")
        raise KeyboardInterrupt

    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        for each in before:
            signal.signal(each, end)
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _refused(error: EblaError, steps: Steps, as_json: bool) -> int:
    """Nothing was judged: void, whatever kind of error it was."""
    status = report.STATUS[report.VOID]
    if as_json:
        told = document(error)
        told["error"]["exit_status"] = status
        write_json(told)
    else:
        steps.end(f"void, the run did not come about: {error}")
        if step := next_step(error):
            steps.end(f"  next: {step}")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ebla.chaos.ray", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--scenario",
        help=f"one of {', '.join(SCENARIOS)}, or the simulation's; {SCENARIO} if left out",
    )
    parser.add_argument("--duration", type=float, default=60.0, metavar="S", help="of act one, in seconds")
    parser.add_argument(
        "--seed", type=int, help="decides the plan of faults and what clients ask; 0 if left out"
    )
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a plan as JSON, instead of the seed's")
    parser.add_argument(
        "--hosts", type=int, metavar="N", help="Ray nodes; the scenario's own number if left out"
    )
    parser.add_argument("--groups", type=int, default=GROUPS, help="processes of clients")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="clients in each of them")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="put the report, histories and logs there")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON document")
    return parser


def _plan(given: argparse.Namespace) -> Plan | None:
    if given.plan is None:
        return None
    if given.scenario is not None or given.seed is not None:
        raise InvalidArgument("a plan has its scenario and seed; give --plan, or --scenario and --seed")
    try:
        return decode(given.plan.read_bytes())
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"{given.plan} is not a plan of faults: {error}") from error


def _request(given: argparse.Namespace, plan: Plan | None, directory: Path) -> Request:
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
    """Standard output is for the document, and standard error for errors."""


if __name__ == "__main__":
    sys.exit(main())
