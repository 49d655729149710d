"""Hosts are lost for good in simulation: tables with a majority survive, the rest is forced, and servers are forgotten."""

from __future__ import annotations

import pytest

from ebla.chaos import soak
from ebla.chaos.defects.defect import GIVEN_UP_AND_BACK
from ebla.chaos.plans import Fault, Plan
from ebla.chaos.runs import Report, Run
from ebla.chaos.scenarios.scenarios import scenario
from ebla.chaos.workloads.salvage import Salvage

LOST = (Fault(3.0, "lose_hosts", ("host-2",)), Fault(6.0, "lose_hosts", ("host-2",)))


# The first host's replicas are learners when the other voters of one tablet go away, and come back.
VOTERS_AWAY = (Fault(3.0, "crash", ("host-2",), 3.0), Fault(4.3, "away", ("host-3", "host-4"), 8.0))


def played(seed: int, faults: tuple[Fault, ...], name: str = "disasters") -> tuple[Run, Report]:
    run = Run(scenario(name), Plan(name, seed, faults))
    report = soak.quiet(run.go)
    assert report.violation == ""
    return run, report


def sides(run: Run) -> list[int]:
    """How often each tablet was forced, of those that may be."""
    return [max(marks) for marks in run.applied.sides(Salvage.name).values()]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_two_hosts_lost_for_good_cost_only_one_table_its_majorities_and_are_forgotten(
    seed: int,
) -> None:
    run, report = played(seed, LOST)
    assert run.deployment is not None
    gone = list(run.deployment.gone)
    assert len(gone) == report.effects["lose_hosts"] == 2, "the second fault has no effect"
    assert gone[0] == "tablet-server/host-2"
    assert sum(sides(run)) == report.carried_out["salvage.order-unsafe_change"] > 0
    assert report.carried_out["salvage.order-forget_server"] >= 2
    assert all(set(marks) == {0} for marks in run.applied.sides("registers").values())


def test_servers_that_were_given_up_return_and_get_the_answer() -> None:
    run, _ = played(1, GIVEN_UP_AND_BACK)
    assert run.deployment is not None and run.deployment.gone == {}
    assert sorted(sides(run)) == [0, 0, 1]
    answered = run.deployment.answers.notices
    assert {tablet for _, tablet in answered} == {
        tablet for tablet, marks in run.applied.sides(Salvage.name).items() if 1 in marks
    }


def test_a_pacifica_tablet_without_voters_is_forced_onto_a_learner_and_its_voters_return() -> None:
    run, report = played(1, VOTERS_AWAY, "pacifica-disasters")
    assert report.carried_out["salvage.order-force_primary"] > 0
    assert sorted(sides(run)) == [0, 0, 1]
    assert all(set(marks) == {0} for marks in run.applied.sides("registers").values())


def test_a_data_disk_is_lost_only_where_other_voters_have_its_rows() -> None:
    """The survivor's disk is kept until other replicas were copied from it."""
    away = Fault(1.0, "away", ("host-1", "host-2"), 8.0)
    tries = tuple(Fault(4.0 + 0.02 * number, "lose_data", ("host-5",)) for number in range(30))
    _, report = played(1, (away, *tries))
    assert report.carried_out["salvage.order-unsafe_change"] > 0
    assert 0 < report.effects["lose_data"] < len(tries)
