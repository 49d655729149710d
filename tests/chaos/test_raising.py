"""The number of masters is raised in simulation: after any crash the catalog moves, and counts once."""

from __future__ import annotations

import pytest

from ebla.actors.fault_points import MOVE_POINTS
from ebla.chaos import soak
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.runs import REFUSED, Report, Run
from ebla.chaos.scenarios.scenarios import scenario


def played(seed: int, *faults: Fault) -> tuple[Run, Report]:
    run = Run(scenario("raised"), Plan("raised", seed, faults))
    report = soak.quiet(run.go)
    assert report.violation == ""
    assert run.raising is not None and run.raising.memory is not None and run.deployment is not None
    memory = run.raising.memory
    assert (memory.formatted, memory.moving, run.deployment.moved) == (True, False, True)
    return run, report


@pytest.mark.parametrize("point", MOVE_POINTS)
def test_a_move_continues_after_its_mover_dies_at_any_step(point: str) -> None:
    _, report = played(3, Fault(0.5, "crash_point", ("master-0",), 0.3, 0.0, point))
    assert report.crashed == {point: 1}
    assert report.verbs["move"] >= 1
    assert report.answered > 20


def test_the_old_master_is_refused_after_the_move() -> None:
    reports = [played(seed)[1] for seed in range(3)]
    asked = sum(each.asked.get(REFUSED, 0) for each in reports)
    assert asked > 0
    assert sum(each.carried_out.get(REFUSED, 0) for each in reports) == asked, (
        "no other cause delayed the start"
    )


def test_the_only_directory_of_a_catalog_is_not_destroyed() -> None:
    early = Fault(0.3, "lose_disk", ("master-0",), 0.2), Fault(0.4, "fail_sync", ("master-0",), 0.2)
    effects = played(1, *early)[1].effects
    assert not (effects.get("lose_disk") or effects.get("fail_sync"))
    late = Fault(11.0, "lose_disk", ("master-0",), 0.2)
    assert played(1, late)[1].effects["lose_disk"] == 1
