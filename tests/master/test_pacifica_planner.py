"""The next configurations of PacificA tablets, decided without waiting: many tablets, several events at once, old reports."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from msgspec.structs import replace

from ebla.actors.detector.detector import ACKNOWLEDGED, RESTARTED, SILENT, Detector, End
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.cluster.assignment import Assignment, Candidate
from ebla.actors.master.cluster.reports import Views, durable_changes
from ebla.actors.master.pacifica.planner import Plan, Planner
from ebla.actors.master.tables import requests
from ebla.actors.messages import ReplicaReport, ServerInstance
from ebla.actors.messages.appointments import ConfigurationsRequest, Requested
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.replication.appointments import appointed
from ebla.actors.replication.configuration import Configuration
from tests.master.builders import Story, create_request, report

LIMITS = DetectorLimits()
GRACE_S = LIMITS.grace_s


class Deployment:
    """A catalog, its detector and its planner, and servers that send beacons."""

    def __init__(self, voters: str = "abc", **changes: object) -> None:
        self.story = Story()
        self.tablets = self.story.appointed(voters, **changes)
        self.now = 0.0
        self.starts = dict.fromkeys(voters, 1)
        self.detector = Detector(LIMITS, self.now, [(uuid, None) for uuid in voters])
        self.planner = Planner(self.story.catalog, self.detector)
        self.beacons(voters)
        self.commit(self.plan())
        self.beacons(voters)

    def instance(self, uuid: str) -> ServerInstance:
        return ServerInstance(uuid, self.starts[uuid], f"start {self.starts[uuid]}")

    def beacons(self, uuids: str, lease: int = 1) -> list[str]:
        for uuid in uuids:
            self.holds(uuid)
        return [self.detector.beacon(self.now, self.instance(uuid), lease) for uuid in uuids]

    def holds(self, uuid: str) -> None:
        """The server reports that its secondaries run."""
        known = {tablet: self.stored(tablet) for tablet in self.tablets}
        replicas = [
            shown(tablet, made, made.index, "secondary")
            for tablet, made in known.items()
            if made.primary != uuid
        ]
        self.planner.take(self.instance(uuid), report(*replicas))

    def restart(self, uuid: str) -> None:
        self.starts[uuid] += 1
        self.beacons(uuid)

    def passes(self, seconds: float, alive: str = "") -> None:
        """Time passes, in which these servers send beacons."""
        self.now += seconds
        self.beacons(alive)

    def silence(self, uuids: str) -> None:
        """All but these servers live on until the grace is over."""
        others = "".join(uuid for uuid in self.starts if uuid not in uuids)
        for _ in range(2):
            self.passes(GRACE_S / 2, others)

    def stored(self, tablet: str = "") -> Configuration:
        known = self.story.catalog.tablets[tablet or self.tablets[0]].configuration
        assert known is not None
        return known

    def plan(self, *asked: ConfigurationsRequest) -> Plan:
        return self.planner.plan(self.now, asked)

    def commit(self, plan: Plan) -> None:
        """Make the plan durable."""
        if plan.configurations:
            self.story.apply(e.ConfigurationsAppointed(plan.configurations))
        for end in plan.ends:
            self.detector.ended(end)
        for tablet in plan.configurations:
            self.planner.changed(tablet)

    def asks(self, uuid: str, *configurations: Configuration) -> ConfigurationsRequest:
        named = zip(self.tablets, configurations, strict=False)
        return ConfigurationsRequest(self.instance(uuid), tuple(Requested(*each) for each in named))

    def reports(self, uuid: str, ballot: int, role: str = "inactive", **changes: object) -> None:
        known = self.stored()
        replica = shown(self.tablets[0], known, ballot, role, **changes)
        self.planner.take(self.instance(uuid), report(replica))


def shown(tablet: str, known: Configuration, ballot: int, role: str, **changes: object) -> ReplicaReport:
    view = PacificaView(role, ballot, known.primary if role != "inactive" else None)
    values = {"state": "running", "configuration": known, **changes}
    return ReplicaReport(tablet=tablet, view=view, **values)


def test_a_thousand_tablets_of_a_dead_server_are_one_edit_and_spread_their_primaries() -> None:
    deployment = Deployment("abcd", buckets=1000)
    deployment.silence("a")
    plan = deployment.plan()
    assert plan.ends == [End("a", SILENT, deployment.instance("a"))] and len(plan.configurations) == 1000
    assert deployment.plan() == plan, "until the edit is durable, the same is decided again"
    deployment.commit(plan)
    deployment.story.catalog.check()
    for tablet in deployment.tablets:
        assert deployment.stored(tablet).index == 2
        assert deployment.stored(tablet).peer("a").kind == "pre_voter"
    led = Counter(deployment.stored(tablet).primary for tablet in deployment.tablets)
    assert led["a"] == 0 and max(led.values()) - min(led[uuid] for uuid in "bcd") <= 1
    assert deployment.plan() == Plan({}, [])
    orders = deployment.planner.orders()
    assert sorted(orders) == ["b", "c", "d"] and sum(map(len, orders.values())) == 1000


def test_the_edit_survives_its_encoding() -> None:
    deployment = Deployment(buckets=3)
    deployment.silence("b")
    edit = e.ConfigurationsAppointed(deployment.plan().configurations)
    assert e.decode(e.encode([edit])) == [edit]
    again = Catalog()
    again.load(deployment.story.catalog.image())
    again.apply([edit])
    assert again.tablets[deployment.tablets[0]].configuration == edit.configurations[deployment.tablets[0]]


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
    assert deployment.plan() == Plan({}, [End("b", RESTARTED, deployment.instance("b"))])


def test_a_restarted_secondary_does_not_cost_a_primary_that_this_master_has_no_beacon_of() -> None:
    deployment = Deployment(primary="a")
    recorded = [(uuid, deployment.instance(uuid)) for uuid in "abc"]
    deployment.detector = Detector(LIMITS, deployment.now, recorded)
    deployment.planner = Planner(deployment.story.catalog, deployment.detector)
    deployment.beacons("bc")
    deployment.restart("b")
    plan = deployment.plan()
    assert plan == Plan({}, [End("b", RESTARTED, deployment.instance("b"))])
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


def test_a_report_of_an_earlier_process_does_not_count() -> None:
    deployment = Deployment("a", least=1)
    deployment.reports("a", 1)
    deployment.restart("a")
    plan = deployment.plan()
    assert plan == Plan({}, [End("a", RESTARTED, deployment.instance("a"))])
    deployment.commit(plan)
    deployment.beacons("a")
    assert deployment.plan() == Plan({}, []), "the report of the first process is over"
    assert deployment.planner.orders() == {"a": [deployment.tablets[0]]}
    deployment.reports("a", 1)
    assert deployment.plan().configurations[deployment.tablets[0]].index == 2


@pytest.mark.parametrize("state", ["failed", "copying", "deleted"])
def test_a_primary_without_a_working_replica_is_replaced(state: str) -> None:
    deployment = Deployment(primary="a")
    deployment.reports("a", 1, state=state)
    made = deployment.plan().configurations[deployment.tablets[0]]
    assert made.primary in "bc" and made.peer("a").kind == "pre_voter"
    assert deployment.planner.orders() == {}


def test_a_primary_whose_server_has_no_replica_is_replaced_unless_it_is_being_created() -> None:
    deployment = Deployment(primary="a")
    instance, tablet = deployment.instance("a"), deployment.tablets[0]
    deployment.planner.take(instance, report(full=True))
    assert deployment.plan() == Plan({}, [])
    deployment.story.apply(e.ReplicasSeen("a", (tablet,)))
    deployment.planner.take(instance, report(full=True))
    assert deployment.plan().configurations[tablet].primary in "bc"


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


# -- the catalog ----------------------------------------------------------------------------------------------


def test_the_first_configuration_has_a_ballot_a_primary_and_the_minimum() -> None:
    story = Story()
    for name, least in (("one", 2), ("two", None)):
        story.create(name, replication="pacifica", replicas=4, buckets=6, min_members=least)
    story.create("raft")
    hosts = [Candidate(uuid, f"tablet-server/{uuid}", uuid) for uuid in "abcd"]
    story.apply(*Assignment(30.0, story.random).plan(story.catalog, hosts, 0.0, 0).edits)
    of = {
        name: [story.catalog.tablets[tablet].configuration for tablet in story.catalog.named(name).tablets]
        for name in ("one", "two", "raft")
    }
    assert {(each.index, each.min_members) for each in of["one"]} == {(1, 2)}
    assert {(each.index, each.min_members) for each in of["two"]} == {(1, 3)}
    assert {(each.index, each.min_members, each.primary) for each in of["raft"]} == {(-1, 0, None)}
    led = Counter(each.primary for each in of["one"] + of["two"])
    assert [led[uuid] for uuid in "abcd"] == [3, 3, 3, 3]
    again = Catalog()
    again.load(story.catalog.image())
    assert again.image() == story.catalog.image()


def test_a_replica_decides_no_configuration_of_a_pacifica_tablet() -> None:
    deployment = Deployment(primary="a")
    later = replace(deployment.stored(), index=9, peers=deployment.stored().peers[:2])
    replica = shown(deployment.tablets[0], later, 1, "primary")
    changes = durable_changes(deployment.story.catalog, "a", report(replica))
    assert [type(each) for each in changes] == [e.ReplicasSeen]
    with pytest.raises(AssertionError, match="a replica decides no PacificA configuration"):
        deployment.story.catalog.apply([e.ConfigurationChanged(deployment.tablets[0], later)])


@pytest.mark.parametrize(
    "wrong",
    [
        {"index": 1},
        {"primary": None, "index": 2},
        {"primary": "z", "index": 2},
    ],
)
def test_the_catalog_takes_no_configuration_without_a_new_ballot_and_a_primary(
    wrong: dict[str, object],
) -> None:
    deployment = Deployment(primary="a")
    made = {deployment.tablets[0]: replace(deployment.stored(), **wrong)}
    with pytest.raises(AssertionError):
        deployment.story.catalog.apply([e.ConfigurationsAppointed(made)])


def test_members_that_leave_stay_known_until_their_data_is_gone() -> None:
    deployment = Deployment(primary="a")
    made = appointed(replace(deployment.stored(), peers=deployment.stored().peers[:2]), "a")
    deployment.story.apply(e.ConfigurationsAppointed({deployment.tablets[0]: made}))
    assert [peer.uuid for peer in deployment.story.catalog.tablets[deployment.tablets[0]].former] == ["c"]


def test_the_leader_of_a_pacifica_tablet_is_the_primary_of_the_catalog_while_it_reports_that_it_leads() -> (
    None
):
    deployment = Deployment(primary="a")
    catalog, (tablet,), views = deployment.story.catalog, deployment.tablets, Views()
    first = deployment.stored()

    def take(uuid: str, known: Configuration, ballot: int, role: str, **changes: object) -> str | None:
        views.merge(catalog, uuid, report(shown(tablet, known, ballot, role, **changes)))
        return views.of(tablet).leader

    assert take("b", first, 1, "secondary") is None
    assert take("a", first, 1, "primary", health=dict.fromkeys("abc", "healthy")) == "a"
    assert views.situation(catalog, tablet) is not None
    second = appointed(first, "b")
    catalog.apply([e.ConfigurationsAppointed({tablet: second})])
    views.appointed(tablet, second)
    assert views.of(tablet).leader is None and views.situation(catalog, tablet) is None
    assert take("a", first, 1, "primary") is None, "its ballot is over"
    assert take("c", second, 2, "secondary") is None
    health = {"a": "unknown", "b": "healthy", "c": "healthy"}
    assert take("b", first, 2, "primary", pending=second, health=health) == "b"
    assert views.situation(catalog, tablet) is not None, "the configuration in force counts, committed or not"
    assert take("b", second, 2, "inactive") is None and views.leader_conflicts == 0


def test_a_pacifica_table_is_created_with_its_minimum() -> None:
    story = Story()
    request = create_request("pair", replication="pacifica", replicas=2)
    story.apply(requests.created(request, story.random, 0))
    assert story.catalog.named("pair").min_members == 2


@pytest.mark.parametrize("state", ["failed", "copying", "deleted"])
def test_a_voter_whose_replica_does_not_run_becomes_no_primary(state: str) -> None:
    """It may have lost what it acknowledged, even if its server lives."""
    deployment = Deployment("abc", primary="a")
    deployment.silence("a")
    deployment.reports("b", 1, state=state)
    assert deployment.plan().configurations[deployment.tablets[0]].primary == "c"


def test_what_a_former_process_had_says_nothing_about_the_next_one() -> None:
    deployment = Deployment("ab", least=1, primary="a")
    deployment.starts["b"] += 1
    beacon = partial(deployment.detector.beacon, 0.0, deployment.instance("b"), 1)
    beacon()
    deployment.commit(deployment.plan())
    beacon()
    deployment.detector.beacon(GRACE_S - 1, deployment.instance("b"), 1)
    deployment.now = GRACE_S
    assert deployment.plan().configurations == {}, "b has not reported a replica since it started again"
    deployment.holds("b")
    assert deployment.plan().configurations[deployment.tablets[0]].primary == "b"
