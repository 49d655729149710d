"""The real roles over real LMDB: cut off anywhere they keep every promise, and a layer that does not is found out.

A failing cut is repeated by its recording and its seed; `python -m ebla.chaos.powercut` says how.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from ebla.chaos.powercut import Cut, Flip, Plan, flip, record, record_recovery, replay, runs
from ebla.chaos.powercut.__main__ import app
from ebla.chaos.powercut.cuts.cuts import DIED, KEPT, LOST, UNBORN, Moments
from ebla.chaos.powercut.damage.flips import FAILURES
from ebla.chaos.powercut.planted import PLANTED
from ebla.chaos.powercut.recording.events import Asked, Sync, Write, WriteThrough, load

STEPS = 50
CUTS, RECOVERY_CUTS, BITS = 80, 25, 75
PLANTED_STEPS, PLANTED_CUTS, PLANTED_RECORDINGS = 12, 60, 6
UNCHECKED_BITS, SILENT = 4000, 4
ROOTS = (
    "root",
    "seal",
)  # the parts of a file's first two pages: where its trees begin, and what that is held to


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(Plan(seed=3, steps=STEPS, data_dirs=2), tmp_path_factory.mktemp("life") / "recording")


@pytest.fixture(scope="module")
def recovery(life: Path) -> Path:
    return record_recovery(life, 0, life.with_name("recovery"))


@pytest.fixture(scope="module")
def bits(life: Path) -> list[Flip]:
    return list(flip(life, range(BITS)))


def test_a_recording_holds_a_whole_life(life: Path) -> None:
    recording = load(life)
    kinds = {type(event) for event in recording.events}
    assert {Write, WriteThrough, Sync} <= kinds
    asked = {event.method for event in recording.events if isinstance(event, Asked)}
    assert asked >= {
        "create_table",
        "drop_table",
        "create_tablet",
        "delete_tablet",
        "write",
        "replicate",
        "flush",
    }
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
    assert sum(cut.gone > 0 for cut in cuts) > len(cuts) // 2, "most of them took something"
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


@pytest.mark.parametrize("defect", sorted(PLANTED))
def test_a_layer_that_promises_too_early_is_found_out_and_the_loss_is_repeated(
    defect: str, tmp_path: Path
) -> None:
    """Whether an answer leaves before a commit that nobody waits for is decided by threads: not in every recording."""
    for seed in range(PLANTED_RECORDINGS):
        plan = Plan(seed=seed, steps=PLANTED_STEPS, data_dirs=1, planted=defect)
        recording = record(plan, tmp_path / f"recording-{seed}")
        loss = first_loss(replay(recording, range(PLANTED_CUTS)))
        if loss is not None:
            break
    assert loss is not None
    if defect == "no_sync":
        again = told("--recording", str(recording), "--cut", str(loss.seed), "--json")
        assert again.exit_code == 1
        assert f"--cut {loss.seed}" in again.stdout


def first_loss(cuts: Iterator[Cut]) -> Cut | None:
    return next((cut for cut in cuts if cut.outcome in (LOST, DIED)), None)


def test_a_bit_that_turns_in_a_value_never_comes_out_as_a_wrong_one(bits: list[Flip]) -> None:
    hit = [one for one in bits if one.part == "value"]
    assert [one for one in hit if one.found.outcome in FAILURES] == []
    assert any(one.found.outcome == "refused" for one in hit), "what nobody reads proves nothing"


def test_a_bit_that_turns_in_the_tree_never_comes_out_as_an_absence_or_a_wrong_answer(
    bits: list[Flip],
) -> None:
    """LMDB does not notice that a pointer or a key in its own pages has turned; storage looks for itself."""
    hit = [one for one in bits if one.part not in ("value", *ROOTS)]
    assert [one for one in hit if one.found.outcome in FAILURES] == []
    assert any(one.found.outcome == "refused" for one in hit), "what nobody reads proves nothing"


def test_a_bit_that_turns_in_a_root_or_its_seal_is_refused(bits: list[Flip]) -> None:
    """Before anything is read of the file. It does no harm in one that is only there, such as the mark of a catalog."""
    hit = [one for one in bits if one.part in ROOTS]
    assert {one.part for one in hit} == set(ROOTS)
    assert [one for one in hit if one.found.outcome not in ("refused", "right")] == []
    assert any(one.found.outcome == "refused" for one in hit), "what nobody reads proves nothing"


@pytest.fixture(scope="module")
def silent(life: Path, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Seeds of bits that nobody notices if storage does not look at pages and neighbours, or walks."""
    with closing(unnoticed_without_checks(life, tmp_path_factory.mktemp("silent"))) as seeds:
        found = list(islice(seeds, SILENT))
    assert len(found) == SILENT, f"{UNCHECKED_BITS} bits, and too few that only these checks find"
    return found


def test_bits_that_storage_would_not_notice_without_its_own_checks_are_noticed_with_them(
    life: Path, silent: list[int]
) -> None:
    with_checks = [one for seed in silent for one in flip(life, range(seed, seed + 1))]
    assert [one.seed for one in with_checks] == silent
    assert [one for one in with_checks if one.found.outcome in (*FAILURES, "right")] == []


def test_they_are_noticed_in_a_file_too_large_to_be_looked_at_as_a_whole(
    life: Path, silent: list[int], tmp_path: Path
) -> None:
    as_large = [one for seed in silent for one in unchecked("large", life, seed, 1, tmp_path)]
    assert [one.seed for one in as_large] == silent
    assert [one for one in as_large if one.found.outcome in (*FAILURES, "right")] == []


def unnoticed_without_checks(life: Path, scratch: Path) -> Generator[int, None, None]:
    """Seeds of bits that make rows come out as absent or wrong if nobody looks at pages and neighbours, or walks."""
    with closing(unchecked("believing", life, 0, UNCHECKED_BITS, scratch)) as flips:
        for one in flips:
            rows = [name for name in one.found.read if name.startswith(("row ", "scan "))]
            if (
                one.found.outcome in ("missing", "wrong") and rows
            ):  # not just late, as what comes later may be
                yield one.seed


def unchecked(checks: str, life: Path, first: int, count: int, scratch: Path) -> Generator[Flip, None, None]:
    command = [sys.executable, "-m", "tests.chaos.powercut.unchecked", checks, str(life), "flips"]
    with subprocess.Popen(
        [*command, str(first), str(count), str(scratch)], stdout=subprocess.PIPE, start_new_session=True
    ) as cases:
        assert cases.stdout is not None
        try:
            for line in cases.stdout:
                yield msgspec.json.decode(line, type=Flip)
        finally:
            if cases.poll() is None:
                os.killpg(cases.pid, signal.SIGKILL)  # with the case that it has forked


def test_a_run_tells_its_figures() -> None:
    good = told("--lives", "1", "--cuts", "4", "--flips", "0", "--json")
    assert good.exit_code == 0, good.output
    figures = json.loads(good.stdout)
    assert sum(figures["cuts"].values()) == 4
    assert figures["failures"] == []


def test_what_cannot_be_tried_is_no_pass(life: Path, tmp_path: Path) -> None:
    alone = told("--cut", "5")
    assert (alone.exit_code, "give --recording" in alone.stderr) == (2, True)
    (tmp_path / "taken").write_bytes(b"")
    nowhere = told("--cuts", "1", "--keep", str(tmp_path / "taken" / "here"))
    assert (nowhere.exit_code, "--keep" in nowhere.stderr) == (2, True)
    unreal = told("--cuts", "1", "--keep", "/proc/kept")  # a directory in which root, too, makes nothing
    assert (unreal.exit_code, "--keep" in unreal.stderr) == (2, True)
    nothing = told("--cuts", "0", "--flips", "0")
    assert (nothing.exit_code, "raise --cuts" in nothing.stderr) == (2, True)
    which = told("--recording", str(life))
    assert (which.exit_code, "give --cut, --flip or --spoil" in which.stderr) == (2, True)
    (tmp_path / "file").write_bytes(b"something else")
    strange = told("--recording", str(tmp_path / "file"), "--cut", "1")
    assert (strange.exit_code, "is no recording" in strange.stderr) == (2, True)


def command_of(process: psutil.Process) -> list[str]:
    """Empty once it has ended: each case is a process that lives for a moment."""
    try:
        command: list[str] = process.cmdline()
        return command
    except psutil.NoSuchProcess:
        return []


def test_an_end_in_the_middle_leaves_no_process_and_no_directory(
    life: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MEMORY", tmp_path)  # where nobody else makes directories meanwhile
    cases = runs.flip(life, range(10_000), jobs=2)
    next(cases)
    assert list(tmp_path.iterdir()) != []
    children = psutil.Process().children(recursive=True)
    mine = [each for each in children if "ebla.chaos.powercut.cases" in command_of(each)]
    assert len(mine) >= 2
    cases.close()  # type: ignore[attr-defined]
    _, left = psutil.wait_procs(mine, timeout=10.0)
    assert left == []
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_told_by_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "record", interrupted)
    ended = told("--cuts", "1", "--flips", "0", "--lives", "1")
    assert (ended.exit_code, "interrupted" in ended.stderr) == (130, True)


def told(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)
