"""The real roles over real LMDB keep every promise at any power cut; storage that breaks a promise is found.

`python -m ebla.chaos.powercut` tries many more cuts and bits, and says how to repeat one of a kept recording.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from ebla.chaos.powercut import __main__ as command
from ebla.chaos.powercut import runs
from ebla.chaos.powercut.cuts.cuts import DIED, KEPT, LOST, UNBORN, Cut, Moments
from ebla.chaos.powercut.damage.flips import FAILURES, Flip
from ebla.chaos.powercut.planted import PLANTED
from ebla.chaos.powercut.recording.events import Asked, Plan, Sync, Write, WriteThrough, load
from ebla.chaos.powercut.recording.facts import PROMISES
from ebla.chaos.powercut.runs import flip, record, record_recovery, replay
from tests.chaos.powercut import unchecked as unchecked_bits

STEPS = 50
# A share of what `python -m ebla.chaos.powercut` tries; the seeds of the bits aim at every part of a page.
CUTS, RECOVERY_CUTS, BITS = 40, 12, range(19649, 19693)
PLANTED_STEPS, PLANTED_CUTS, PLANTED_RECORDINGS = 12, 60, 6
COLUMNS_STEPS, COLUMNS_CUTS, COLUMNS_BITS = 30, 20, 30
SILENT, UNCHECKED_BITS_MAX, RECORDINGS_MAX = 2, 200, 3
ROOTS = ("root", "seal")  # parts of a file's first two pages: where its trees begin, and the digest of that


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(Plan(seed=3, steps=STEPS, data_dirs=2), tmp_path_factory.mktemp("life") / "recording")


@pytest.fixture(scope="module")
def recovery(life: Path) -> Path:
    return record_recovery(life, 0, life.with_name("recovery"))


@pytest.fixture(scope="module")
def bits(life: Path) -> list[Flip]:
    return list(flip(life, BITS))


def test_a_recording_has_writes_syncs_requests_and_fault_points(life: Path) -> None:
    recording = load(life)
    kinds = {type(event) for event in recording.events}
    assert {Write, WriteThrough, Sync} <= kinds
    assert {event.method for event in recording.events if isinstance(event, Asked)} == set(PROMISES)
    points = set(Moments(recording).points)
    assert points >= {
        "tablet.flush.after_commit",
        "tablet.private_log.after_trim",
        "tablet.shared_log.after_trim",
        "tablet.hard_state.after_commit",
        "tablet.delete.after_log",
        "tablet.entomb.after_mark",
        "tablet.entomb.after_data",
        "master.checkpoint.before_purge",
    }


@pytest.fixture(scope="module")
def cuts(life: Path, recovery: Path) -> list[Cut]:
    return list(chain(replay(life, range(CUTS)), replay(recovery, range(RECOVERY_CUTS))))


def test_no_power_cut_breaks_a_promise(cuts: list[Cut]) -> None:
    assert [cut for cut in cuts if cut.outcome not in (KEPT, UNBORN)] == []
    assert len(cuts) == CUTS + RECOVERY_CUTS
    assert sum(cut.gone > 0 for cut in cuts) > len(cuts) // 2, "most cuts lose something"
    assert sum(cut.outcome == UNBORN for cut in cuts) < len(cuts) // 20


def test_a_cut_is_repeated_by_its_seed(life: Path, cuts: list[Cut]) -> None:
    first = next(cut for cut in cuts if cut.gone > 1)
    (again,) = replay(life, range(first.seed, first.seed + 1))
    assert (first.at, first.unsynced, first.gone, first.point) == (
        again.at,
        again.unsynced,
        again.gone,
        again.point,
    )


@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(each, marks=[pytest.mark.deep] if each in ("no_directory_sync", "no_meta_sync") else [])
        for each in sorted(PLANTED)
    ],
)
def test_a_layer_that_answers_too_early_is_found_and_the_loss_can_be_repeated(
    defect: str, tmp_path: Path
) -> None:
    """Threads decide whether an answer leaves before its commit, so not every recording shows the defect."""
    for seed in range(PLANTED_RECORDINGS):
        plan = Plan(seed=seed, steps=PLANTED_STEPS, data_dirs=1, planted=defect)
        recording = record(plan, tmp_path / f"recording-{seed}")
        loss = first_loss(replay(recording, range(PLANTED_CUTS)))
        if loss is not None:
            break
    assert loss is not None
    if defect == "no_sync":
        again = run_cli("--recording", str(recording), "--cut", str(loss.seed), "--json")
        assert again.exit_code == 1
        assert f"--cut {loss.seed}" in again.stdout


def first_loss(cuts: Iterator[Cut]) -> Cut | None:
    return next((cut for cut in cuts if cut.outcome in (LOST, DIED)), None)


@pytest.mark.parametrize("where", ["values", "trees", "roots"])
def test_no_flipped_bit_causes_a_wrong_or_missing_answer(where: str, bits: list[Flip]) -> None:
    """LMDB does not notice a flipped bit in its own pages, so storage checks them. A flipped bit in a root or its seal
    is noticed before anything of the file is read; it does no harm in a file that only has to exist."""
    hit = [
        one
        for one in bits
        if where == {"value": "values"}.get(one.part, "roots" if one.part in ROOTS else "trees")
    ]
    failures = [one for one in hit if one.found.outcome in FAILURES]
    assert failures == []
    assert any(one.found.outcome == "refused" for one in hit), "bits that are never read prove nothing"
    if where == "roots":
        assert {one.part for one in hit} == set(ROOTS)
        assert [one for one in hit if one.found.outcome not in ("refused", "right")] == []


def test_rows_that_are_stored_as_columns_survive_power_cuts_and_flipped_bits(tmp_path: Path) -> None:
    columns = record(Plan(seed=4, steps=COLUMNS_STEPS, data_dirs=1), tmp_path / "recording")
    cuts = list(replay(columns, range(COLUMNS_CUTS)))
    assert [cut for cut in cuts if cut.outcome not in (KEPT, UNBORN)] == []
    flips = list(flip(columns, range(COLUMNS_BITS)))
    assert [one for one in flips if one.found.outcome in FAILURES] == []
    assert any(one.found.outcome == "refused" for one in flips)


@pytest.fixture(scope="module")
def silent(life: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A recording, and bits of it that lose rows silently if storage believes its pages. About one bit of four does;
    should a recording have too few of them, another is made."""
    scratch = tmp_path_factory.mktemp("silent")
    for seed in range(RECORDINGS_MAX):
        recording = (
            life if seed == 0 else record(Plan(seed=2 * seed + 1, steps=STEPS), scratch / f"recording-{seed}")
        )
        with closing(unchecked("believing", recording, range(UNCHECKED_BITS_MAX), scratch)) as flips:
            found = list(islice((one.seed for one in flips if loses_rows(one)), SILENT))
        if len(found) == SILENT:
            return recording, found
    raise AssertionError(f"{RECORDINGS_MAX} recordings, each with fewer than {SILENT} silent bits")


def loses_rows(one: Flip) -> bool:
    """Not only rows that are written later: those may be late."""
    rows = [name for name in one.found.read if name.startswith(("row ", "scan "))]
    return one.found.outcome in ("missing", "wrong") and bool(rows)


@pytest.mark.parametrize("checks", ["all", "large"])
def test_bits_that_are_silent_without_the_checks_are_noticed_with_them_also_in_large_files(
    checks: str, silent: tuple[Path, list[int]], tmp_path: Path
) -> None:
    """A file that is too large is not checked as a whole at a start."""
    recording, bits = silent
    flips = list(unchecked(checks, recording, bits, tmp_path))
    assert [one.seed for one in flips] == bits
    assert [one for one in flips if one.found.outcome in (*FAILURES, "right")] == []


def unchecked(
    checks: str, recording: Path, numbers: Iterable[int], scratch: Path
) -> Generator[Flip, None, None]:
    words = [sys.executable, "-m", unchecked_bits.__name__, checks, recording, scratch, *map(str, numbers)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as cases:
        assert cases.stdout is not None
        try:
            for line in cases.stdout:
                yield msgspec.json.decode(line, type=Flip)
            assert cases.wait() == 0, f"the cases of {recording} ended with status {cases.returncode}"
        finally:
            if cases.poll() is None:
                os.killpg(cases.pid, signal.SIGKILL)  # with the case that it has forked


def test_a_run_reports_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Plan", partial(Plan, steps=PLANTED_STEPS))
    good = run_cli("--lives", "1", "--cuts", "4", "--flips", "0", "--json")
    assert good.exit_code == 0, good.output
    figures = json.loads(good.stdout)
    assert sum(figures["cuts"].values()) == 4
    assert figures["failures"] == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--cut 5", "give --recording"),
        ("--cuts 1 --keep {file}/here", "--keep"),
        ("--cuts 1 --keep /proc/kept", "--keep"),  # not even root can create a file there
        ("--cuts 0 --flips 0", "raise --cuts"),
        ("--recording {file}", "give --cut, --flip or --spoil"),
        ("--recording {file} --cut 1", "is no recording"),
    ],
)
def test_a_run_that_can_try_nothing_exits_with_an_error(arguments: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"something else")
    ended = run_cli(*arguments.format(file=tmp_path / "file").split())
    assert (ended.exit_code, problem in ended.stderr) == (2, True)


def command_of(process: psutil.Process) -> list[str]:
    """Empty once the process has ended: each case is a short process."""
    try:
        command: list[str] = process.cmdline()
        return command
    except psutil.NoSuchProcess:
        return []


def test_stopping_in_the_middle_leaves_no_process_and_no_directory(
    life: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MEMORY", tmp_path)  # where no other process makes directories
    cases = runs.flip(life, range(10_000), jobs=2)
    next(cases)
    assert list(tmp_path.iterdir()) != []
    children = psutil.Process().children(recursive=True)
    mine = [each for each in children if "ebla.chaos.powercut.cases" in command_of(each)]
    assert len(mine) >= 2
    cases.close()  # type: ignore[attr-defined]
    _, left = psutil.wait_procs(mine, timeout=60.0)
    assert left == []
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_reported_by_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "record", interrupted)
    ended = run_cli("--cuts", "1", "--flips", "0", "--lives", "1")
    assert (ended.exit_code, "interrupted" in ended.stderr) == (130, True)


def run_cli(*arguments: str) -> Any:
    return CliRunner().invoke(command.app, arguments)
