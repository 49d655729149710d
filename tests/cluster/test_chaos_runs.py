"""One run on real Ray with several faults of tables, logs and masters, judged by every checker."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ebla.chaos import plans
from ebla.chaos.export import read_json_lines, to_edn
from ebla.chaos.pages import VALID
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.ray.report import report
from ebla.chaos.ray.report.injection import OBSERVED, SKIPPED
from ebla.chaos.ray.run import Request, run
from ebla.chaos.ray.scenarios import scenario
from ebla.placement.local.cluster import LocalCluster
from ebla.show.steps import Steps
from tests.cluster.conftest import restored_environment

DURATION_S = 18.0
PAUSES = 4.0  # clients that fill the cores would delay the recovery after each fault
# No host has a fault while it recovers from a crash: on a slow machine that takes longer than the act.
FAULTS = (
    Fault(1.0, "node_loss", ("host-2",), 1.0),
    Fault(2.0, "pause", ("store-1",), 4.0),
    Fault(4.0, "pause", ("host-3",), 2.5),
    Fault(6.0, "clock_jump", ("host-1",), 1.0, 60.0),
    Fault(8.0, "stop", ("host-3",), 0.5),
    Fault(9.0, "crash", ("store-4",)),
    Fault(11.0, "crash", ("host-1",)),
    Fault(12.0, "crash", ("auditor",)),
    Fault(15.0, "crash", ("master",)),
)


@pytest.mark.cluster
def test_a_real_cluster_passes_a_run_with_a_plan_of_faults(tmp_path: Path) -> None:
    plan = Plan("logs", 5, FAULTS)
    request = Request("logs", tmp_path, tmp_path / "results", DURATION_S, plan=plan, groups=1, pauses=PAUSES)
    with restored_environment():
        found = run(request, Steps(Console(stderr=True), quiet=True))
    assert (found.verdict, found.reasons) == (VALID, ())
    # On a slow machine a fault may begin after the next one.
    planned = sorted(found.faults, key=lambda each: each.fault.at_s)
    assert [(each.fault.kind, each.outcome) for each in planned] == [
        (fault.kind, SKIPPED if fault.kind == "clock_jump" else OBSERVED) for fault in FAULTS
    ]
    assert "share its clock" in found.skipped["clock_jump"]
    for each in found.faults:
        assert each.outcome == SKIPPED or (each.effects and each.pids and each.undone_s), each
    assert {verdict.workload.split("-")[0] for verdict in found.judged} == {
        "pulse",
        "shared",
        *(workload.name for workload in scenario("logs").workloads()),
    }
    assert all(verdict.valid and verdict.judged for verdict in found.judged)
    recovered = [each for each in found.faults if each.recovery_s is not None]
    assert recovered, "no host that was hit led a tablet"
    for path in map(Path, found.histories):
        if path.suffix == ".jsonl":
            history = read_json_lines(path.read_text())
            assert history.events, path
            assert path.with_suffix(".edn").read_text() == to_edn(history)
    assert str(tmp_path / "results" / "shared.elle.edn") in found.histories
    assert plans.decode((tmp_path / "results" / report.PLAN).read_bytes()) == plan
    kept = (tmp_path / "results" / "report.json").read_bytes()
    assert msgspec.json.decode(kept, type=report.RunReport) == found
    assert LocalCluster.find(tmp_path / "cluster") is None
