"""Chaos on a real Ray cluster of this machine.

    python -m ebla.chaos.ray --scenario crashes --duration 60 --seed 7

The cluster, its data and its processes are the command's own, and gone when it ends; Ctrl-C ends it at any moment.
Exit status: 0 judged and valid, 1 something was violated, 2 void (too little happened to judge, or it could not be
begun), 130 interrupted. Histories and the roles' logs are kept with --keep, and where the run was not valid.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from ebla.chaos.plans import Plan, decode
from ebla.chaos.ray import report
from ebla.chaos.ray.run import CLIENTS, GROUPS, Request, run
from ebla.chaos.ray.scenarios import HOSTS, SCENARIOS, scenario
from ebla.chaos.report import page
from ebla.pipelines.steps import Steps
from ebla.storage.errors import EblaError, InvalidArgument

HOSTS_MAX = 8
INTERRUPTED = 130


def main(words: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    steps = Steps(Console(stderr=True), quiet=given.json)
    directory = Path(tempfile.mkdtemp(prefix="ebla-chaos-"))
    kept = False
    try:
        request = _request(given, directory)
        found = run(request, steps, _silent if given.json else steps.end)
        shown = page.write(found, request.results)
        kept = given.keep is None and found.verdict != report.VALID
    except KeyboardInterrupt:
        steps.end("interrupted; everything was ended and removed")
        return INTERRUPTED
    except (EblaError, msgspec.ValidationError, OSError) as error:
        steps.end(f"void: the run did not come about: {error}")
        return report.STATUS[report.VOID]
    finally:
        if not kept:
            shutil.rmtree(directory, ignore_errors=True)
    if kept:
        steps.end(f"histories, logs and data are kept in {directory}")
    if kept or given.keep:
        steps.end(f"the report is {shown}")
    if given.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    else:
        console = Console()
        Console(width=None if console.is_terminal else 140).print(report.view(found))
    return found.status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ebla.chaos.ray", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--scenario", default="crashes", help=f"one of {', '.join(SCENARIOS)}, or the simulation's"
    )
    parser.add_argument("--duration", type=float, default=60.0, metavar="S", help="of act one, in seconds")
    parser.add_argument("--seed", type=int, default=0, help="decides the plan of faults and what clients ask")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a plan as JSON, instead of the seed's")
    parser.add_argument(
        "--hosts", type=int, metavar="N", help="Ray nodes; the scenario's own number if left out"
    )
    parser.add_argument("--groups", type=int, default=GROUPS, help="processes of clients")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="clients in each of them")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="put the histories and logs there")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON document")
    return parser


def _request(given: argparse.Namespace, directory: Path) -> Request:
    plan: Plan | None = decode(given.plan.read_bytes()) if given.plan else None
    name = plan.scenario if plan else given.scenario
    scenario(name)  # or InvalidArgument, before anything is started
    if given.duration <= 0:
        raise InvalidArgument(f"--duration must be above 0 s, not {given.duration:g}")
    if given.hosts is not None and not HOSTS <= given.hosts <= HOSTS_MAX:
        raise InvalidArgument(f"--hosts must be between {HOSTS} and {HOSTS_MAX}, not {given.hosts}")
    if given.groups < 1 or given.clients < 1:
        raise InvalidArgument("--groups and --clients must be 1 at least")
    return Request(
        scenario=name,
        directory=directory,
        results=given.keep.absolute() if given.keep else directory / "results",
        duration_s=given.duration,
        seed=plan.seed if plan else given.seed,
        hosts=given.hosts,
        plan=plan,
        groups=given.groups,
        clients=given.clients,
    )


def _silent(text: str) -> None:
    """Standard output is for the document, and standard error for errors."""


if __name__ == "__main__":
    sys.exit(main())
