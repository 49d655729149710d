"""Report pages are complete, self-contained and escaped; a story ends with the violation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from ebla.chaos import soak, soak_page
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import INVOKE, History
from ebla.chaos.pages import VALID, VIOLATION, VOID
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.ray.orders import Judged
from ebla.chaos.ray.report import page
from ebla.chaos.ray.report.figures import Recovery, Second, Window
from ebla.chaos.ray.report.injection import MISSED, OBSERVED, FaultReport
from ebla.chaos.ray.report.report import RunReport, recovery_rows, slow, view
from ebla.chaos.runs import Run, plan_of
from ebla.chaos.scenarios.scenarios import scenario
from ebla.chaos.story import AROUND_S, replicas, story

FAULTS = (Fault(3.0, "crash", ("host-2",), 1.0), Fault(5.0, "pause", ("host-3",), 2.0))


def report(verdict: str, *reasons: str) -> RunReport:
    return RunReport(
        scenario="crashes",
        seed=7,
        hosts=3,
        groups=2,
        clients=2,
        duration_s=10.0,
        plan=Plan("crashes", 7, FAULTS),
        verdict=verdict,
        reasons=reasons,
        faults=(
            FaultReport(
                number=0, fault=FAULTS[0], outcome=OBSERVED, effects=("process 4 is gone",), at_s=5.0
            ),
            FaultReport(number=1, fault=FAULTS[1], outcome=MISSED, reason="no host <there>"),
        ),
        skipped={"rot": "no such tool: it is a fault of simulated disks"},
        judged=(Judged("bank-1", "bank-1.jsonl", verdict != VIOLATION, "", (), 1234),),
        acknowledged=4321,
        failed=2,
        unknown=3,
        per_second=tuple(Second(400, 0, 1) for _ in range(12)),
        act_s=(2.0, 12.0),
        healed_s=1.5,
        unavailable={"bank-1": (Window(5.0, 1.75),), "pulse": ()},
        recoveries={"crash": Recovery(1, 1.6, 1.6, 1.6)},
        histories=("bank-1.jsonl",),
        results="results",
        phases={},
    )


def test_a_chaos_report_shows_faults_windows_and_the_verdict(tmp_path: Path) -> None:
    written = page.write(report(VALID), tmp_path)
    html = written.read_text()
    assert (tmp_path / page.PICTURE).read_bytes().startswith(b"\x89PNG")
    for said in (
        "valid",
        "4,321",
        "1 of 2",
        "process 4 is gone",
        "missed",
        "1.8 s",
        "1.60 s",
        "no such tool",
    ):
        assert said in html, said
    assert "no host &lt;there&gt;" in html and "<there>" not in html
    assert "http" not in html and 'src="data:image/png;base64,' in html


def test_a_void_run_is_never_shown_as_a_pass() -> None:
    void = page.html(report(VOID, "99 operations were acknowledged"), b"")
    assert "This is not a pass" in void and "99 operations were acknowledged" in void
    assert 'class="verdict void"' in void
    assert 'class="verdict violation"' in page.html(report(VIOLATION, "a stale read"), b"")


def terminal(shown: RunReport) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(view(shown))
    return console.export_text()


def test_a_long_unavailability_is_a_warning_and_no_verdict() -> None:
    crash, pause = report(VALID).faults
    lone = msgspec.structs.replace(crash, alone=True, recovery_s=21.04)
    (said,) = slow(msgspec.structs.replace(report(VALID), faults=(lone, pause)))
    assert said == "crash host-2 at 3.0 s: 21.0 s until writes were acknowledged again, more than 15 s"
    shown = msgspec.structs.replace(report(VALID), faults=(lone, pause))
    assert f"slow {said}" in terminal(shown) and f"Slow: {said}" in page.html(shown, b"")
    assert shown.status == 0
    for fine in (
        msgspec.structs.replace(lone, alone=False),
        msgspec.structs.replace(lone, recovery_s=15.0),
    ):
        quick = msgspec.structs.replace(shown, faults=(fine,))
        assert "slow" not in terminal(quick) and "Slow" not in page.html(quick, b"")


def test_few_values_have_no_percentile() -> None:
    few = report(VALID)
    assert "p99" not in terminal(few) + page.html(few, b"")
    many = {"crash": Recovery(1, 1.6, 1.6, 1.6), "pause": Recovery(100, 0.5, 0.875, 2.0)}
    shown = msgspec.structs.replace(few, recoveries=many)
    assert recovery_rows(shown) == (
        ["fault", "count", "median", "p99", "longest"],
        [["crash", "1", "1.60 s", "", "1.60 s"], ["pause", "100", "0.50 s", "0.88 s", "2.00 s"]],
    )
    assert "p99" in terminal(shown) and "p99" in page.html(shown, b"")


def test_a_soak_report_names_failures_and_unreached_points(tmp_path: Path) -> None:
    shown = soak.Soak()
    plan = plan_of(scenario("chains"), 1)
    shown.add(plan, soak.carry_out(soak.Task(plan)))
    assert shown.verdict == VALID and "all held" in soak_page.html(shown)
    shown.everything = True
    assert shown.verdict == VOID and "so few runs" in shown.voids()[0]
    shown.runs += soak.COVERAGE_RUNS
    assert shown.verdict == VIOLATION
    shown.everything = False
    shown.failed.append((plan, "Violation: chains: a node is lost"))
    html = soak_page.write(shown, tmp_path).read_text()
    assert "ebla chaos replay -s chains --seed 1" in html and "a node is lost" in html
    assert "master.drop_table.before_edit" in shown.never() and shown.verdict == VIOLATION
    assert (tmp_path / "chains-1.json").exists() and (tmp_path / "soak.json").exists()


@pytest.mark.parametrize(
    ("workers", "runs", "void", "pairs", "why"),
    [
        (2, 0, 0, 0, "no run was made"),
        (2, 5, 5, 1, "5 of 5 runs were void, more than 2 %"),
        (2, 100, 3, 5, "3 of 100 runs were void, more than 2 %"),
        (2, 10, 0, 0, "no run was made twice"),
    ],
)
def test_a_soak_that_proves_nothing_is_void_and_not_good(
    workers: int, runs: int, void: int, pairs: int, why: str
) -> None:
    shown = soak.Soak(workers=workers, runs=runs, void=void, pairs=pairs)
    assert [each.startswith(why) for each in shown.voids()] == [True]
    html = soak_page.html(shown)
    assert "This is not a pass" in html and why in html and "all held" not in html
    assert 'class="verdict void"' in html


def test_a_few_void_runs_and_a_single_worker_are_reported_and_good() -> None:
    several = soak.Soak(workers=2, runs=100, void=2, pairs=5)
    assert (several.verdict, several.compared) == (VALID, "5 of 5")
    alone = soak.Soak(workers=1, runs=100, void=2)
    assert (alone.verdict, alone.compared) == (VALID, "not compared: one worker")
    assert "not compared: one worker" in soak_page.html(alone)


def requests_at(*seconds: float) -> Run:
    """A run in which a client of `tokens` sent requests at these times."""
    history = History()
    for at_s in seconds:
        history.note(at_s, history.new_process(), INVOKE, "add", value=at_s)
    run = Run(scenario("tokens"), plan_of(scenario("tokens"), 1), histories={"tokens": history})
    run.loop = SimpleNamespace(story=[f"{seconds[-1]} fault 9.0: crash host-1"])
    return run


def times(run: Run, around_s: float | None = AROUND_S) -> Sequence[float]:
    return [line.at_s for line in story(run, around_s=around_s) if line.kind == "tokens"]


def test_a_story_shows_the_time_around_the_violating_events_or_the_end() -> None:
    moments = (0.5, 1.5, 4.0, 6.5, 7.5, 11.0, 12.5, 18.0)
    run = requests_at(*moments)
    assert times(run) == [12.5, 18.0]
    run.violation = "Violation: tokens: 4 was applied twice"
    run.judged = Verdict(False, "4 was applied twice", events=(2,), judged=8)
    assert times(run) == [1.5, 4.0, 6.5]
    run.judged = Verdict(False, "4 was applied twice", events=(2, 7), judged=8)
    assert times(run) == [1.5, 4.0, 6.5, 18.0]
    assert times(run, None) == list(moments)


def test_a_story_shows_operations_on_the_keys_of_the_named_events() -> None:
    run = requests_at(0.5, 18.0)
    history, other = run.histories["tokens"], History()
    for at_s, key in ((4.0, "a"), (4.5, "b"), (5.0, "a"), (17.0, "a")):
        history.note(at_s, history.new_process(), INVOKE, "add", key)
    other.note(4.2, other.new_process(), INVOKE, "read", "a")
    run.histories["registers"] = other
    run.violation = "Violation: tokens: add 'a' by process 2 (events 2 and 4) took place twice"
    run.judged = Verdict(False, "add 'a' took place twice", events=(0, 2, 3, 4, 5), judged=6)
    assert times(run) == [4.0, 5.0], "no other keys, and no events that the sentence does not name"
    assert not [line for line in story(run) if line.kind == "registers"]
    assert [line.at_s for line in story(run, around_s=None) if line.kind == "registers"] == [4.2]


def test_notes_of_replicas_are_in_seconds_of_the_run_and_within_the_window() -> None:
    run = Run(scenario("calm"), plan_of(scenario("calm"), 1))
    soak.quiet(run.go)
    ended_s = run.loop.time()
    notes = [note for _, shown in replicas(run, around_s=None) for note in shown]
    moments = [float(note.split(" ")[0]) for note in notes]
    assert moments and all(0.0 <= at_s <= ended_s for at_s in moments)
    assert any(" term 1: " in note for note in notes)
    lately = [float(note.split(" ")[0]) for _, shown in replicas(run, around_s=0.5) for note in shown]
    assert len(lately) < len(moments) and all(at_s > ended_s - 1.0 for at_s in lately)
