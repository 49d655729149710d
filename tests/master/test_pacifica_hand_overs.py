"""What the master makes of a request for a successor. The successor is a process: the next one of its server may run on an older copy."""

from __future__ import annotations

import pytest

from ebla.actors.messages import ReplicaReport
from ebla.actors.messages.appointments import ConfigurationsRequest
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.replication.appointments import appointed
from tests.master.builders import report
from tests.master.planning import GRACE_S, Deployment


def stepped_down(**changes: object) -> tuple[Deployment, ConfigurationsRequest]:
    """The primary a has asked for b, which held everything and has restarted since."""
    deployment = Deployment("abc", primary="a", **changes)
    deployment.reports("a", 1, "primary")
    asked = deployment.asks("a", appointed(deployment.stored(), "b"))
    deployment.restart("b")
    deployment.commit(deployment.plan())
    deployment.beacons("b")
    return deployment, asked


def primary_after(deployment: Deployment, *asked: ConfigurationsRequest) -> str | None:
    plan = deployment.plan(*asked)
    deployment.commit(plan)
    made = plan.configurations.get(deployment.tablets[0])
    return made.primary if made is not None else None


@pytest.mark.parametrize("new_master", [False, True])
@pytest.mark.parametrize(("verified", "chosen"), [("c", "c"), ("bc", "c"), ("", "a")])
def test_the_next_process_of_a_successor_does_not_lead_in_its_place(
    verified: str, chosen: str, new_master: bool
) -> None:
    """One that has shown since that it has everything would do; `c` is the one that leads nothing."""
    deployment, asked = stepped_down()
    if new_master:
        deployment.take_over()
        deployment.beacons("abc")
    for uuid in verified:
        deployment.holds(uuid, verified=True)
    deployment.planner._reported.clear()
    if verified == "bc":
        deployment.detector.allowed = lambda uuid: uuid != "b"
    assert primary_after(deployment, asked) == chosen


def test_the_process_that_held_everything_leads_before_it_has_reported() -> None:
    deployment = Deployment("abc", primary="a", created=False)
    asked = deployment.asks("a", appointed(deployment.stored(), "b"))
    deployment.take_over()
    deployment.beacons("a")
    assert primary_after(deployment, asked) == "b"


def test_a_request_for_a_process_of_a_server_that_has_sent_no_beacon_waits_for_the_first_one() -> None:
    """Its incarnation is not recorded yet: a tablet may be young."""
    deployment = Deployment("abc", primary="a")
    deployment.detector._servers["b"].instance = None
    asked = deployment.asks("a", appointed(deployment.stored(), "b"))
    assert primary_after(deployment, asked) is None
    deployment.beacons("b")
    deployment.commit(deployment.plan())
    assert primary_after(deployment, asked) == "b"


def test_with_a_suspended_primary_the_next_process_of_a_successor_waits_for_the_end_of_its_lease() -> None:
    deployment, asked = stepped_down()
    deployment.detector.allowed = lambda uuid: uuid != "a"
    for _ in range(4):
        assert primary_after(deployment, asked) is None
        deployment.passes(GRACE_S / 4, "bc")
    assert primary_after(deployment, asked) in ("b", "c")


def reports_that_it_asks(deployment: Deployment, ballot: int = 1) -> None:
    view = PacificaView("inactive", ballot, last_index=9, verified=True, asks=True)
    asking = ReplicaReport(deployment.tablets[0], "running", view, deployment.stored())
    deployment.planner.take(deployment.now, deployment.instance("a"), report(asking))


def test_a_report_that_overtakes_the_request_for_a_successor_does_not_undo_the_hand_over() -> None:
    deployment = Deployment(primary="a")
    deployment.reports("a", 1, "primary")
    reports_that_it_asks(deployment)
    assert primary_after(deployment) is None
    assert primary_after(deployment, deployment.asks("a", appointed(deployment.stored(), "b"))) == "b"


def test_a_primary_whose_request_for_a_successor_does_not_come_gets_another_ballot_after_the_grace() -> None:
    """Its reports arrive, and its requests do not."""
    deployment = Deployment("abc", primary="a")
    deployment.reports("a", 1, "primary")
    reports_that_it_asks(deployment)
    for _ in range(3):
        assert primary_after(deployment) is None and deployment.planner.orders() == {}
        deployment.passes(GRACE_S / 3, "abc")
        reports_that_it_asks(deployment)
    assert primary_after(deployment) == "a"
    assert deployment.planner.orders() == {"a": list(deployment.tablets)}


def test_a_decline_of_an_earlier_ballot_does_not_hide_that_a_primary_asks() -> None:
    """It declined ballot 1, and led ballot 2, of which no report came."""
    deployment = Deployment("abc", primary="a")
    deployment.declines("a")
    assert primary_after(deployment, deployment.asks("a", appointed(deployment.stored(), "a"))) == "a"
    for _ in range(3):
        reports_that_it_asks(deployment, ballot=2)
        deployment.passes(GRACE_S / 2, "abc")
    assert primary_after(deployment) == "a"


def test_the_wait_for_a_voter_goes_on_while_it_restarts() -> None:
    """Everything has restarted, and b has the only report; c has a lease, and restarts once more."""
    deployment = Deployment("abc", primary="a")
    for uuid in "abc":
        deployment.restart(uuid)
    deployment.planner.voters.forget(deployment.tablets[0])
    deployment.commit(deployment.plan())
    for _ in range(2):
        deployment.now += GRACE_S / 2 + 0.1
        for uuid in "bc":
            deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
        deployment.commit(deployment.plan())
    deployment.holds("b")
    assert deployment.stored().index == 1
    deployment.starts["c"] += 1
    deployment.detector.beacon(deployment.now, deployment.instance("c"), 1)
    assert primary_after(deployment) is None, "c has no lease, and comes soon"
    deployment.holds("c")
    deployment.detector.beacon(deployment.now, deployment.instance("c"), 1)
    assert primary_after(deployment) in ("b", "c")


def test_a_hand_over_to_a_new_server_is_not_undone_in_the_plan_that_records_its_first_process() -> None:
    deployment = Deployment("abc", primary="a")
    deployment.detector._servers["b"].instance = None
    asked = deployment.asks("a", appointed(deployment.stored(), "b"))
    deployment.beacons("b")
    assert primary_after(deployment, asked) == "b"


def test_a_hand_over_to_a_process_of_which_no_beacon_has_come_waits_for_the_first_one() -> None:
    """It has just started, and the primary has heard of it before the master."""
    deployment = Deployment("abc", primary="a")
    deployment.starts["b"] += 1
    asked = deployment.asks("a", appointed(deployment.stored(), "b"))
    assert primary_after(deployment, asked) is None
    deployment.beacons("b")
    deployment.commit(deployment.plan())
    deployment.beacons("b")
    assert primary_after(deployment, asked) == "b"


def test_voters_do_not_wait_for_one_that_restarts_again_and_again() -> None:
    deployment = Deployment("abc", primary="a")
    for uuid in "abc":
        deployment.restart(uuid)
    deployment.planner.voters.forget(deployment.tablets[0])
    deployment.commit(deployment.plan())
    while deployment.stored().index == 1:
        deployment.now += 0.9 * GRACE_S
        assert deployment.now < 7 * GRACE_S
        deployment.starts["c"] += 1
        for _ in range(2):
            for uuid in "abc":
                deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
            deployment.commit(deployment.plan())
        deployment.reports("a", 1)
        deployment.holds("b")
        deployment.commit(deployment.plan())


def test_an_answer_that_grants_nothing_is_no_order() -> None:
    """The primary has stepped down, and its successor is not known yet."""
    deployment = Deployment("abc", primary="a")
    deployment.reports("a", 1, "primary")
    deployment.detector._servers["b"].instance = None
    reports_that_it_asks(deployment)
    asked = deployment.asks("a", appointed(deployment.stored(), "b"))
    assert primary_after(deployment, asked) is None
    assert deployment.tablets[0] in deployment.planner.unled


def test_a_hand_over_to_the_next_process_of_a_suspended_server_does_not_wait_for_its_beacons() -> None:
    deployment = Deployment("abc", primary="a")
    deployment.reports("a", 1, "primary")
    deployment.holds("c", verified=True)
    deployment.starts["b"] += 1
    deployment.detector.allowed = lambda uuid: uuid != "b"
    assert primary_after(deployment, deployment.asks("a", appointed(deployment.stored(), "b"))) == "c"
