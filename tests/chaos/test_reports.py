"""The pages that people look at say what happened, stand alone, and escape what they quote."""

from __future__ import annotations

from pathlib import Path

from ebla.chaos import soak
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.ray.figures import Recovery, Second, Window
from ebla.chaos.ray.orders import Judged
from ebla.chaos.ray.report import VALID, VIOLATION, VOID, RunReport
from ebla.chaos.ray.struck import MISSED, OBSERVED, FaultReport
from ebla.chaos.report import page, soak_page
from ebla.chaos.scenarios import scenario
from ebla.chaos.simulation.runs import plan_of

FAULTS = (Fault(3.0, "crash", ("host-2",), 1.0), Fault(5.0, "pause", ("host-3",), 2.0))


def report(verdict: str, *reasons: str) -> RunReport:
    return RunReport(
        scenario="crashes",
        seed=7,
        hosts=3,
        duration_s=10.0,
        plan=Plan("crashes", 7, FAULTS),
        verdict=verdict,
        reasons=reasons,
        faults=(
            FaultReport(
                number=0, fault=FAULTS[0], outcome=OBSERVED, effects=("process 4 is gone",), at_s=5.0
            ),
            FaultReport(number=1, fault=FAULTS[1], outcome=MISSED, reason="nobody <there>"),
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
    assert "nobody &lt;there&gt;" in html and "<there>" not in html
    assert "http" not in html and 'src="data:image/png;base64,' in html


def test_a_void_run_never_looks_like_a_pass() -> None:
    void = page.html(report(VOID, "99 operations were acknowledged"), b"")
    assert "This is not a pass" in void and "99 operations were acknowledged" in void
    assert 'class="verdict void"' in void
    assert 'class="verdict violation"' in page.html(report(VIOLATION, "a stale read"), b"")


def test_a_soak_report_names_failures_and_what_was_never_reached(tmp_path: Path) -> None:
    told = soak.Soak()
    plan = plan_of(scenario("chains"), 1)
    told.add(plan, soak.carry_out(soak.Task(plan)))
    held = soak_page.figures(told, 10.0, covered=False)
    assert held.good and "all held" in soak_page.html(held)
    told.failed.append((plan, "Violation: chains: a node is lost"))
    failed = soak_page.figures(told, 10.0, covered=True)
    html = soak_page.write(failed, tmp_path).read_text()
    assert "ebla chaos replay -s chains --seed 1" in html and "a node is lost" in html
    assert "master.drop_table.before_edit" in failed.never and not failed.good
    assert (tmp_path / "chains-1.json").exists() and (tmp_path / "soak.json").exists()
