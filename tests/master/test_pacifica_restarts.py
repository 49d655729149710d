"""Which process of a PacificA tablet's primary leads after restarts: a ballot is for one process, and a copy of a directory that no
number betrays must not lead before a voter with everything."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace

import pytest

from ebla.actors.detector.detector import REPORT_GRACES, RESTARTED, End
from ebla.actors.errors import NotDelivered
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.pacifica.orders import Orders
from ebla.actors.master.pacifica.planner import Plan
from ebla.actors.messages import ReplicaReport
from ebla.actors.messages.appointments import AppointReply, AppointRequest
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.replication.appointments import appointed
from tests.master.builders import report
from tests.master.planning import GRACE_S, Deployment, shown


def test_a_report_of_an_earlier_process_does_not_count() -> None:
    deployment = Deployment("a", least=1)
    deployment.reports("a", 1)
    deployment.restart("a")
    plan = deployment.plan()
    assert plan == Plan({}, [End("a", RESTARTED, deployment.instance("a"), 1)])
    deployment.commit(plan)
    deployment.beacons("a")
    assert deployment.plan() == Plan({}, []), "the report of the first process is over"
    assert deployment.planner.orders() == {}
    deployment.reports("a", 1)
    assert deployment.plan().configurations[deployment.tablets[0]].index == 2


@pytest.mark.parametrize("new_master", [False, True])
def test_no_process_gets_an_order_of_a_ballot_that_an_earlier_one_may_have_led(new_master: bool) -> None:
    """Its directory may be a copy of before the ballot, and then it does not know that it has led."""
    deployment = Deployment("abc", primary="a", least=3)
    deployment.reports("a", 1, "primary")
    deployment.silence("abc")
    deployment.commit(deployment.plan())
    deployment.restart("a")
    deployment.commit(deployment.plan())
    if new_master:
        deployment.take_over()
    deployment.beacons("a")
    deployment.reports("a", 0)
    assert deployment.planner.orders() == {} and deployment.plan() == Plan({}, []), "b or c may have more"
    deployment.passes(GRACE_S, "a")
    deployment.commit(deployment.plan())
    assert (deployment.stored().primary, deployment.stored().index) == ("a", 2), "no other has come in time"
    assert deployment.planner.orders() == {"a": list(deployment.tablets)}


def restarted_with_a_silent_secondary() -> Deployment:
    """The processes of a and b are new, and c is silent: the plan that follows has the end of c."""
    deployment = Deployment("abc", primary="a", least=2)
    deployment.reports("a", 1, "primary")
    deployment.reports("c", 1, state="failed")
    for _ in range(2):
        deployment.now += GRACE_S / 2
        deployment.detector.beacon(deployment.now, deployment.instance("c"), 1)
    deployment.commit(deployment.plan())
    deployment.now += GRACE_S - 0.1
    for uuid in "ab":
        deployment.starts[uuid] += 1
        deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
    deployment.commit(deployment.plan())
    for uuid in "ab":
        deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
    deployment.reports("a", 0)
    deployment.now += 0.2
    return deployment


def test_the_end_of_a_secondary_gives_no_ballot_to_a_process_that_has_just_begun() -> None:
    deployment = restarted_with_a_silent_secondary()
    view = PacificaView("secondary", 1, None, 9, 5)
    running = ReplicaReport(deployment.tablets[0], "running", view, deployment.stored())
    deployment.planner.take(deployment.now, deployment.instance("b"), report(running))
    plan = deployment.plan()
    assert [end.uuid for end in plan.ends] == ["c"] and plan.configurations == {}, "c may return"
    deployment.commit(plan)
    for _ in range(2):
        deployment.now += GRACE_S / 2
        for uuid in "ab":
            deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
    assert deployment.plan().configurations[deployment.tablets[0]].primary == "b", "it has the longest log"


def test_no_alteration_lets_a_process_lead_before_the_others_have_shown_their_replicas() -> None:
    deployment = restarted_with_a_silent_secondary()
    table = next(iter(deployment.story.catalog.tables.values()))
    deployment.story.apply(e.TableAltered("alter", 0, table.table, table.name, table.schema, 1))
    deployment.planner.altered.update(dict.fromkeys(deployment.tablets))
    assert deployment.plan().configurations == {}


@pytest.mark.parametrize(("restarted", "chosen"), [("b", "c"), ("bc", "b")])
def test_a_voter_that_has_agreed_with_no_primary_leads_only_if_no_other_can_and_the_longest_log_first(
    restarted: str, chosen: str
) -> None:
    """Its directory may be an older copy that no number shows. `c` leads nothing, so without a restart it would be chosen."""
    deployment = Deployment("abc", primary="a")
    for _ in range(20):
        deployment.passes(GRACE_S - 1.0, "abc")
    for uuid in restarted:
        deployment.restart(uuid)
    deployment.commit(deployment.plan())
    for _ in range(2):
        deployment.passes(GRACE_S / 2, "abc")
    for uuid, last in (("b", 9), ("c", 5)):
        view = PacificaView("secondary", 1, "a", last, 5, verified=uuid not in restarted)
        instance, tablet = deployment.instance(uuid), deployment.tablets[0]
        running = ReplicaReport(tablet, "running", view, deployment.stored())
        deployment.planner.take(deployment.now, instance, report(running))
    deployment.now += 1.0
    deployment.restart("a")
    plan = deployment.plan()
    assert bool(plan.configurations) == (chosen == "c"), "a may show that it has more"
    if not plan.configurations:
        deployment.commit(plan)
        for _ in range(2):
            deployment.now += GRACE_S / 2
            for uuid in "bc":
                deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
        plan = deployment.plan()
    assert plan.configurations[deployment.tablets[0]].primary == chosen


def test_a_tablet_waits_for_the_report_of_a_voter_with_a_lease_no_longer_than_three_graces() -> None:
    """After a take-over `b` has started of late, as far as this master knows. Beacons of `c` arrive, and its report does not."""
    deployment = Deployment("abc", primary="a")
    for _ in range(20):
        deployment.passes(GRACE_S - 1.0, "abc")
    deployment.take_over()
    waited_s = 0.0
    while not deployment.plan().configurations:
        deployment.passes(1.0)
        waited_s += 1.0
        for uuid in "bc":
            deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
        deployment.reports("b", 1, "secondary")
        assert waited_s <= REPORT_GRACES * GRACE_S + 2.0
    assert waited_s > 2 * GRACE_S
    assert deployment.plan().configurations[deployment.tablets[0]].primary == "b"


def test_the_answer_of_a_process_that_has_ended_meanwhile_does_not_count() -> None:
    """Otherwise nobody would lead: its successor is not the process of the ballot, and reports only once that it does not lead."""
    deployment = Deployment("abc", primary="a", least=3)
    tablet = deployment.tablets[0]

    async def call(address: str, method: str, request: AppointRequest, *_: object) -> AppointReply:
        deployment.restart("a")
        deployment.commit(deployment.plan())
        deployment.beacons("a")
        deployment.reports("a", 0)
        return AppointReply()

    first = deployment.instance("a")
    server = SimpleNamespace(address="a", instance=first)
    servers = SimpleNamespace(get=lambda uuid: server)
    world = SimpleNamespace(network=SimpleNamespace(call=call))
    orders = Orders(world, MasterOptions(), servers, deployment.detector, deployment.planner, lambda: None)
    deployment.silence("bc")
    deployment.commit(deployment.plan())
    asyncio.run(orders._call("a", [tablet]))
    assert orders.sent == 1 and tablet in deployment.planner.unled


def test_a_process_that_reported_while_its_ballot_was_being_made_durable_gets_another() -> None:
    """All three servers restart. The ballot goes to the former process of c, which still counts as alive; the next one has reported
    before the ballot is in the catalog, and has no reason to report again."""
    deployment = Deployment(primary="a")
    (tablet,), first = deployment.tablets, deployment.stored()
    deployment.reports("a", 1, "primary")
    for _ in range(40):
        deployment.passes(2.0, "abc")
    deployment.holds("c", verified=True)
    for uuid in "ab":
        deployment.starts[uuid] += 1
        deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
    plan = deployment.plan()
    assert plan.configurations[tablet].primary == "c"
    deployment.starts["c"] += 1
    deployment.planner.take(
        deployment.now, deployment.instance("c"), report(shown(tablet, first, 1, "inactive"))
    )
    deployment.commit(plan)
    deployment.detector.beacon(deployment.now, deployment.instance("c"), 1)
    deployment.commit(deployment.plan())
    for uuid in "abc":
        deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
    for uuid in "ab":
        deployment.planner.take(
            deployment.now, deployment.instance(uuid), report(shown(tablet, first, 1, "inactive"))
        )
    deployment.commit(deployment.plan())
    assert list(deployment.planner.orders().values()) == [[tablet]]


def test_a_primary_on_a_copy_of_before_a_ballot_that_all_voters_held_gets_none() -> None:
    """The active master knows of that ballot by the report of the primary alone: no configuration followed it."""
    deployment = Deployment(primary="b", least=3)
    (tablet,), first = deployment.tablets, deployment.stored()
    deployment.commit(deployment.plan(deployment.asks("b", appointed(first, "a"))))
    view = PacificaView("primary", 2, "a", 9, 9)
    leading = ReplicaReport(tablet, "running", view, deployment.stored())
    deployment.planner.take(deployment.now, deployment.instance("a"), report(leading))
    for _ in range(3):
        deployment.now += GRACE_S / 2
        deployment.detector.beacon(deployment.now, deployment.instance("a"), 1)
        deployment.commit(deployment.plan())
    assert deployment.stored().index == 2, "no vote is taken"
    deployment.restart("a")
    deployment.commit(deployment.plan())
    before = ReplicaReport(tablet, "running", PacificaView("inactive", 1, None, 3, 3), first)
    for _ in range(8):
        deployment.now += GRACE_S / 2
        deployment.detector.beacon(deployment.now, deployment.instance("a"), 1)
        deployment.planner.take(deployment.now, deployment.instance("a"), report(before))
        plan = deployment.plan()
        assert all(made.settled == 2 for made in plan.configurations.values()), "its replica declines"
        deployment.commit(plan)


def test_failed_calls_count_against_a_server_only_while_orders_to_it_are_necessary() -> None:
    """Otherwise a failure of long ago would keep its lease from it, or make it lose its lease by one more."""
    deployment = Deployment("abc", primary="a")
    tablet = deployment.tablets[0]

    async def call(*_: object) -> AppointReply:
        raise NotDelivered("no answer", address="a")

    servers = SimpleNamespace(
        get=lambda uuid: SimpleNamespace(address="a", instance=deployment.instance("a")),
        is_alive=lambda uuid, now: True,
    )
    world = SimpleNamespace(network=SimpleNamespace(call=call), now=lambda: deployment.now, random=Random(1))
    orders = Orders(world, MasterOptions(), servers, deployment.detector, deployment.planner, lambda: None)

    def fails() -> None:
        asyncio.run(orders._call("a", [tablet]))

    for _ in range(3):
        fails()
        assert orders.reaches("a")
        deployment.now += GRACE_S / 2
    fails()
    assert not orders.reaches("a")
    deployment.planner.follows(tablet, deployment.stored().index)
    orders.forget()
    assert orders.reaches("a")
    deployment.planner.changed(tablet)
    fails()
    assert orders.reaches("a"), "the first one of a new row"
