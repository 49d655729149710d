"""`python -m ebla.chaos.powercut`: record lives, replay power cuts of them, and damage their files.

Exit status 0: no promise was broken and no answer was wrong. 1: one was. 2: nothing could be tried (this machine cannot record,
or the file is no recording). 130: interrupted. Recordings with failures are kept, and the command that repeats each failure is
printed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
import xxhash
from rich.console import Console
from rich.progress import Progress

from ebla.chaos.powercut import runs
from ebla.chaos.powercut.recording.events import Plan, load
from ebla.chaos.powercut.recording.slots import CannotRecord
from ebla.chaos.powercut.report import SHOWN_MAX, Figures
from ebla.storage.errors import EblaError, InvalidArgument

SHOWN_FAILURES_MAX = 20
INTERRUPTED = 130
console = Console()


def main(
    cuts: Annotated[int, typer.Option(min=0, help="Power cuts to replay.")] = 2000,
    flips: Annotated[int, typer.Option(min=0, help="Single bits to flip.")] = 2000,
    spoils: Annotated[
        int, typer.Option(min=0, help="Other damages: bytes, sectors, swapped and stale pages.")
    ] = 0,
    lives: Annotated[int, typer.Option(min=1, help="Recordings; for each a recovery is recorded, too.")] = 6,
    seed: Annotated[int, typer.Option(help="The first recording's seed; seeds of cases begin at 0.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that run cases.")] = max(
        1, (os.cpu_count() or 2) // 2
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")
    ] = False,
    keep: Annotated[Path, typer.Option(help="Where recordings with failures are kept.")] = Path(
        "powercut-failures"
    ),
    recording: Annotated[Path | None, typer.Option(help="A kept recording, to repeat a case of it.")] = None,
    cut: Annotated[int | None, typer.Option(help="With --recording: the seed of a power cut.")] = None,
    flip: Annotated[int | None, typer.Option(help="With --recording: the seed of a flipped bit.")] = None,
    spoil: Annotated[int | None, typer.Option(help="With --recording: the seed of another damage.")] = None,
) -> None:
    """Replay power cuts of real storage, and damage its files."""
    figures, errors = Figures(), Console(stderr=True)
    try:
        if recording is not None:
            _repeat(figures, recording, cut, flip, spoil, quiet=as_json)
        elif not cut is flip is spoil is None:
            raise InvalidArgument("--cut, --flip and --spoil repeat a case of a recording; give --recording")
        elif not cuts + flips + spoils:
            raise InvalidArgument("--cuts, --flips and --spoils are all 0; raise --cuts or --flips")
        else:
            _check_keep(keep)
            _run(figures, _Wanted(cuts, flips, spoils, lives, seed, jobs, keep), quiet=as_json)
    except KeyboardInterrupt as interrupt:
        errors.print("interrupted; every process was ended, and every directory removed")
        raise typer.Exit(INTERRUPTED) from interrupt
    except EblaError as error:
        what = "cannot record here" if isinstance(error, CannotRecord) else "nothing was tried"
        errors.print(f"{what}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    if as_json:
        print(json.dumps(figures.as_dict(), indent=2))
    else:
        _show(figures)
    raise typer.Exit(1 if figures.failures else 0)


class _Wanted(NamedTuple):
    cuts: int
    flips: int
    spoils: int
    lives: int
    seed: int
    jobs: int
    keep: Path


def _run(figures: Figures, wanted: _Wanted, *, quiet: bool) -> None:
    total = wanted.cuts + wanted.flips + wanted.spoils
    with (
        tempfile.TemporaryDirectory(prefix="ebla-recordings-") as directory,
        Progress(console=console, disable=quiet) as progress,
    ):
        recording = progress.add_task("recording", total=2 * wanted.lives)
        lives, recoveries = [], []
        for life in range(wanted.lives):
            plan = Plan(seed=wanted.seed + life, data_dirs=life % 3, bulk=life == wanted.lives - 1)
            lives.append(runs.record(plan, Path(directory) / f"life-{plan.seed}.recording"))
            progress.advance(recording)
            recoveries.append(
                runs.record_recovery(
                    lives[-1], plan.seed * 1000, Path(directory) / f"recovery-{plan.seed}.recording"
                )
            )
            progress.advance(recording)
        cases = progress.add_task("cases", total=total)
        for file, share in _shares([*lives, *recoveries], wanted.cuts):
            for cut in runs.replay(file, share, jobs=wanted.jobs):
                figures.add_cut(file, cut)
                progress.advance(cases)
        for kind, count in ((runs.flip, wanted.flips), (runs.spoil, wanted.spoils)):
            for file, share in _shares(lives, count):
                for flip in kind(file, share, jobs=wanted.jobs):
                    figures.add_flip(file, flip)
                    progress.advance(cases)
        _keep(figures, wanted.keep)


def _check_keep(keep: Path) -> None:
    """Check before recording that failures can be kept there: write a temporary file, since permissions are not the only possible
    obstacle."""
    there = next(place for place in (keep, *keep.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise InvalidArgument(f"--keep: {keep} cannot be made or written; name another directory") from error


def _shares(files: list[Path], count: int) -> Iterator[tuple[Path, range]]:
    """Each file with its part of the seeds."""
    for at, file in enumerate(files):
        share = range(count * at // len(files), count * (at + 1) // len(files))
        if share:
            yield file, share


def _keep(figures: Figures, keep: Path) -> None:
    """Keep the recordings with failures, under names that contain their digests."""
    kept: dict[str, Path] = {}
    for failure in figures.failures:
        file = Path(failure.recording)
        if failure.recording not in kept:
            digest = xxhash.xxh3_64_hexdigest(file.read_bytes())[:8]
            kept[failure.recording] = keep / f"{file.stem}-{digest}{file.suffix}"
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, kept[failure.recording])
    figures.failures = [
        msgspec.structs.replace(failure, recording=str(kept[failure.recording]))
        for failure in figures.failures
    ]


def _repeat(
    figures: Figures, recording: Path, cut: int | None, flip: int | None, spoil: int | None, *, quiet: bool
) -> None:
    if cut is None and flip is None and spoil is None:
        raise InvalidArgument("no case of the recording is named; give --cut, --flip or --spoil with a seed")
    load(recording)  # reports a file that is no recording here, not in a child process
    show = Console(quiet=quiet)
    for seed, kind in ((flip, runs.flip), (spoil, runs.spoil)):
        if seed is not None:
            for found in kind(recording, range(seed, seed + 1)):
                figures.add_flip(recording, found)
                show.print(found)
    if cut is not None:
        for done in runs.replay(recording, range(cut, cut + 1)):
            figures.add_cut(recording, done)
            show.print(done)


def _show(figures: Figures) -> None:
    for table in figures.tables():
        if table.rows:
            console.print(table.shown())
    for check, count in figures.audits.most_common():
        console.print(f"{count} damages with wrong answers would be found by: {check}")
    for outcome, signs in figures.notices.items():
        for sign, count in signs.most_common():
            console.print(f"{count} damages with outcome {outcome} were revealed by: {sign}")
    for failure in figures.failures[:SHOWN_FAILURES_MAX]:
        console.print(f"[red]{failure.why[:SHOWN_MAX]}[/red]\n  repeat: {failure.again}", highlight=False)
    if len(figures.failures) > SHOWN_FAILURES_MAX:
        console.print(f"... and {len(figures.failures) - SHOWN_FAILURES_MAX} more failures")
    console.print(
        "[green]nothing was lost[/green]" if not figures.failures else "[red]promises were broken[/red]"
    )


app = typer.Typer(add_completion=False)
app.command()(main)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends its child processes, as Ctrl-C does
    app(prog_name="python -m ebla.chaos.powercut")
