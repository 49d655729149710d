"""The next configurations of PacificA tablets, decided without waiting: many tablets, several events at once, old reports."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from ebla.actors.detector.detector import ACKNOWLEDGED, RESTARTED, SILENT, Detector, End
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.master.errands.errands import _creates
from ebla.actors.master.pacifica.planner import Plan, Planner
from ebla.actors.messages import ReplicaReport
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.replication.appointments import appointed, next_members
from tests.master.builders import report
from tests.master.planning import GRACE_S, LIMITS, Deployment


def test_a_thousand_tablets_of_a_dead_server_are_one_edit_and_spread_their_primaries() -> None:
    deployment = Deployment("abcd", buckets=1000)
    deployment.silence("a")
    plan = deployment.plan()
    assert plan.ends == [End("a", SILENT, deployment.instance("a"))] and len(plan.configurations) == 1000
    assert deployment.plan() == plan, "until the edit is durable, the same is decided again"
    deployment.commit(plan)
    require_sound(deployment.story.catalog)
    for tablet in deployment.tablets:
        assert deployment.stored(tablet).index == 2
        assert deployment.stored(tablet).peer("a").kind == "pre_voter"
    led = Counter(deployment.stored(tablet).primary for tablet in deployment.tablets)
    assert led["a"] == 0 and max(led.values()) - min(led[uuid] for uuid in "bcd") <= 1
    assert deployment.plan() == Plan({}, [])
    orders = deployment.planner.orders()
    assert sorted(orders) == ["b", "c", "d"] and sum(map(len, orders.values())) == 1000


def test_several_servers_that_end_at_once_cost_a_tablet_one_ballot() -> None:
    deployment = Deployment("abcde", least=2, primary="a")
    deployment.silence("ab")
    plan = deployment.plan()
    made = plan.configurations[deployment.tablets[0]]
    assert len(plan.ends) == 2 and made.index == 2 and made.primary == "c"
    assert [peer.uuid for peer in made.voters()] == ["c", "d", "e"]


def test_as_many_voters_stay_as_the_minimum_demands() -> None:
    deployment = Deployment("abc", least=2, primary="a")
    deployment.silence("bc")
    deployment.commit(deployment.plan())
    assert deployment.stored().primary == "a" and len(deployment.stored().voters()) == 2


def test_a_restarted_secondary_changes_nothing() -> None:
    deployment = Deployment(primary="a")
    deployment.restart("b")
    assert deployment.plan() == Plan({}, [End("b", RESTARTED, deployment.instance("b"), 1)])


def test_a_restarted_secondary_does_not_cost_a_primary_that_this_master_has_no_beacon_of() -> None:
    deployment = Deployment(primary="a")
    recorded = [(uuid, deployment.instance(uuid)) for uuid in "abc"]
    deployment.detector = Detector(LIMITS, deployment.now, recorded)
    deployment.planner = Planner(deployment.story.catalog, deployment.detector)
    deployment.beacons("bc")
    deployment.restart("b")
    plan = deployment.plan()
    assert plan == Plan({}, [End("b", RESTARTED, deployment.instance("b"), 1)])
    deployment.commit(plan)
    deployment.passes(GRACE_S, "bc")
    assert deployment.plan().configurations[deployment.tablets[0]].primary in "bc"


def test_a_request_waits_behind_the_end_of_a_server_that_is_decided_with_it() -> None:
    deployment = Deployment(primary="a")
    asked = deployment.asks("a", appointed(deployment.stored(), "a"))
    deployment.silence("b")
    made = deployment.plan(asked).configurations[deployment.tablets[0]]
    assert made.peer("b").kind == "pre_voter" and made.index == 2


def test_a_server_whose_end_is_decided_gets_nothing() -> None:
    deployment = Deployment("a", least=1)
    asked = deployment.asks("a", appointed(deployment.stored(), "a"))
    assert deployment.plan(asked).configurations
    deployment.silence("a")
    assert deployment.plan(asked) == Plan({}, [End("a", SILENT, deployment.instance("a"))])
    assert deployment.beacons("a") != [ACKNOWLEDGED] and deployment.planner.orders() == {}


def test_only_the_first_of_two_requests_of_one_ballot_counts() -> None:
    deployment = Deployment(primary="a")
    first, second = (appointed(deployment.stored(), uuid) for uuid in "bc")
    plan = deployment.plan(deployment.asks("a", first), deployment.asks("a", second))
    assert plan.configurations == {deployment.tablets[0]: first}


@pytest.mark.parametrize(("ballot", "role", "result"), [(0, "inactive", "order"), (1, "inactive", "ballot")])
def test_a_primary_that_does_not_lead_is_ordered_or_gets_a_ballot(
    ballot: int, role: str, result: str
) -> None:
    deployment = Deployment(primary="a")
    deployment.reports("a", ballot, role)
    plan = deployment.plan()
    if result == "ballot":
        assert plan.configurations == {deployment.tablets[0]: appointed(deployment.stored(), "a")}
        deployment.commit(plan)
    assert deployment.planner.orders() == {"a": [deployment.tablets[0]]}
    assert deployment.plan() == Plan({}, []), "an order is enough"


def test_a_primary_that_leads_needs_no_order() -> None:
    deployment = Deployment(primary="a")
    assert deployment.planner.orders() == {"a": [deployment.tablets[0]]}, "a new master orders every primary"
    deployment.reports("a", 1, "primary")
    assert deployment.planner.orders() == {} and deployment.plan() == Plan({}, [])
    deployment.reports("b", 1, "secondary")
    assert deployment.planner.orders() == {} and not deployment.planner.unled


@pytest.mark.parametrize("state", ["failed", "copying", "deleted"])
def test_a_primary_without_a_working_replica_is_replaced(state: str) -> None:
    deployment = Deployment(primary="a")
    deployment.reports("a", 1, "primary")
    deployment.reports("a", 1, state=state)
    assert deployment.plan() == Plan({}, []), "the report may be older than the order that a follows"
    assert deployment.planner.orders() == {"a": [deployment.tablets[0]]}
    deployment.declines("a")
    deployment.reports("a", 1, state=state)
    made = deployment.plan().configurations[deployment.tablets[0]]
    assert made.primary in "bc" and made.peer("a").kind == "pre_voter"
    assert deployment.planner.orders() == {}


def test_a_primary_whose_server_has_no_replica_is_replaced_unless_it_is_being_created() -> None:
    deployment = Deployment(primary="a", created=False)
    instance, tablet = deployment.instance("a"), deployment.tablets[0]
    deployment.planner.take(deployment.now, instance, report(full=True))
    assert deployment.plan() == Plan({}, []) and deployment.planner.orders() == {}
    deployment.story.apply(e.ReplicasSeen("a", (tablet,)))
    deployment.planner.take(deployment.now, instance, report(full=True))
    assert deployment.plan() == Plan({}, []) and deployment.planner.orders() == {"a": [tablet]}
    deployment.declines("a")
    assert deployment.plan().configurations[tablet].primary in "bc"


def test_a_voter_that_is_an_old_copy_becomes_no_primary() -> None:
    """Its server came back with a directory from before a ballot that all voters held."""
    deployment = Deployment("abc", primary="a")
    asked = replace(appointed(deployment.stored(), "a"), settled=1)
    deployment.commit(deployment.plan(deployment.asks("a", asked)))
    for uuid in "bc":
        deployment.reports(uuid, 2, "secondary")
    deployment.reports("a", 2, "primary")
    deployment.restart("b")
    old = replace(asked, index=1)
    deployment.reports("b", 1, configuration=old)
    deployment.commit(deployment.plan())
    for deployment.now in (0.0, GRACE_S):
        assert {
            deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1) for uuid in "bc"
        } == {ACKNOWLEDGED}
    made = deployment.plan().configurations[deployment.tablets[0]]
    assert (made.primary, made.settled) == ("c", 2), "the primary had reported that ballot 2 is committed"
    deployment.reports("b", 2, "secondary", pending=deployment.stored(), configuration=old)
    assert deployment.planner.voters.may_lead(deployment.tablets[0], "b", made.settled), (
        "it has got what it lacked"
    )


def test_a_voter_that_reports_that_it_lacks_committed_entries_becomes_no_primary_until_it_has_them() -> None:
    deployment = Deployment("abc", primary="a")
    view, (tablet,) = PacificaView("secondary", 1, "a", 9, 5), deployment.tablets
    lacking = ReplicaReport(
        tablet, "running", view, deployment.stored(), error="its log lacks committed entries up to 9"
    )
    deployment.passes(GRACE_S / 2, "bc")
    deployment.planner.take(deployment.now, deployment.instance("b"), report(lacking))
    deployment.now += GRACE_S / 2
    for uuid in "bc":
        deployment.detector.beacon(deployment.now, deployment.instance(uuid), 1)
    assert deployment.plan().configurations[tablet].primary == "c"
    deployment.planner.take(deployment.now, deployment.instance("b"), report(replace(lacking, error=None)))
    assert deployment.plan().configurations[tablet].primary == "b"


def test_a_primary_that_steps_down_for_a_voter_that_may_not_lead_is_followed_by_one_that_may() -> None:
    deployment = Deployment("abc", primary="a")
    deployment.holds("c", verified=True)
    deployment.detector.allowed = lambda uuid: uuid != "b"
    asked = appointed(deployment.stored(), "b")
    made = deployment.plan(deployment.asks("a", asked)).configurations[deployment.tablets[0]]
    assert (made.primary, made.peers, made.index) == ("c", asked.peers, asked.index)
    deployment.detector.allowed = lambda uuid: uuid == "a"
    made = deployment.plan(deployment.asks("a", asked)).configurations[deployment.tablets[0]]
    assert made == appointed(deployment.stored(), "a"), "better than none"
    late = replace(asked, peers=next_members(deployment.stored(), (), ["a"]))
    made = deployment.plan(deployment.asks("a", late)).configurations[deployment.tablets[0]]
    assert made == appointed(deployment.stored(), "a"), "its disk is late, and it votes on"
    deployment.detector.allowed = lambda uuid: False
    assert deployment.plan(deployment.asks("a", asked)).configurations == {}
    deployment.detector.allowed = lambda uuid: uuid == "b"
    deployment.silence("a")
    assert deployment.plan().configurations[deployment.tablets[0]].primary == "b"


def test_a_suspended_voter_becomes_no_primary_while_its_last_lease_holds() -> None:
    deployment = Deployment("abc", primary="a")
    deployment.silence("a")
    deployment.detector.allowed = lambda uuid: uuid != "b"
    made = deployment.plan().configurations[deployment.tablets[0]]
    assert made.primary == "c"


def test_a_decline_counts_for_its_process_and_its_ballot_only() -> None:
    deployment = Deployment("a", least=1)
    deployment.declines("a")
    assert deployment.plan() == Plan({}, []) and deployment.planner.orders() == {}, "no other voter is there"
    deployment.restart("a")
    deployment.commit(deployment.plan())
    deployment.beacons("a")
    deployment.reports("a", 0)
    deployment.commit(deployment.plan())
    assert deployment.stored().index == 2, "another process may have a replica"
    deployment.declines("a")
    deployment.reports("a", 2)
    deployment.commit(deployment.plan())
    assert deployment.stored().index == 3, "it runs again, and needs a ballot after the one that it declined"
    deployment.declines("a", 2)
    assert deployment.planner.orders() == {"a": list(deployment.tablets)}


def test_a_tablet_gets_no_order_of_the_ballot_before_while_another_is_appointed() -> None:
    """A primary that returns in the meantime would lead in a lease that nobody waits for."""
    deployment = Deployment("ab", least=2, primary="a")
    deployment.silence("ab")
    deployment.commit(deployment.plan())
    deployment.beacons("b", lease=2)
    plan = deployment.plan()
    assert plan.configurations[deployment.tablets[0]].primary == "b"
    deployment.beacons("a", lease=2)
    assert deployment.planner.orders() == {}
    deployment.planner.settled()
    assert deployment.planner.orders() == {"a": list(deployment.tablets)}, "the edit was refused"
    assert deployment.plan() == Plan({}, []), "a is back"


def test_a_tablet_that_lost_all_servers_waits_for_one_of_its_voters() -> None:
    deployment = Deployment(primary="a")
    deployment.silence("abc")
    plan = deployment.plan()
    assert len(plan.ends) == 3
    deployment.commit(plan)
    assert deployment.stored().primary == "a" and deployment.plan() == Plan({}, [])
    deployment.beacons("c")
    assert deployment.plan().configurations[deployment.tablets[0]].primary == "c"


def test_a_learner_leads_no_tablet_though_no_voter_lives() -> None:
    deployment = Deployment(primary="a")
    deployment.silence("c")
    deployment.commit(deployment.plan())
    deployment.silence("abc")
    deployment.commit(deployment.plan())
    deployment.beacons("c")
    assert deployment.plan() == Plan({}, []), "a learner may lack entries"
    deployment.beacons("b")
    assert deployment.plan().configurations[deployment.tablets[0]].primary == "b"


def test_what_was_known_of_a_dropped_tablet_is_forgotten_with_its_replicas() -> None:
    deployment = Deployment("abc", primary="a")
    (tablet,) = deployment.tablets
    deployment.reports("a", 1, "primary")
    planner = deployment.planner
    assert tablet in planner.voters.shown_by(deployment.instance("a").uuid) and tablet in planner._settled
    table = deployment.story.catalog.tablets[tablet].table
    deployment.story.apply(e.TableDropped("r2", 0, table, 1))
    for uuid in "abc":
        deployment.planner.take(deployment.now, deployment.instance(uuid), report(removed=(tablet,)))
    assert not planner.voters.shown_by(deployment.instance("a").uuid) and not planner._settled


def test_a_primary_that_was_never_ordered_is_still_created_after_another_server_has_ended() -> None:
    """Its server was away when the tablet was made. Nobody led, so no replica can have lost what it acknowledged."""
    deployment = Deployment("abc", primary="a", created=False)
    (tablet,) = deployment.tablets
    deployment.story.apply(e.ReplicasSeen("c", (tablet,)))
    deployment.silence("b")
    deployment.commit(deployment.plan())
    assert (deployment.stored().index, deployment.stored().primary) == (2, "a")

    def created(uuid: str) -> bool:
        return _creates(deployment.story.catalog.tablets[tablet], uuid)

    assert created("a") and created("b")
    deployment.story.apply(e.ReplicasSeen("a", (tablet,)))
    assert not created("c"), "the primary may have led, and c may have acknowledged entries"
