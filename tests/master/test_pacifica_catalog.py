"""What the catalog, reports and old copies mean for PacificA tablets: next to the planner."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from msgspec.structs import replace

from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.cluster.assignment import Assignment, Candidate
from ebla.actors.master.cluster.reports import Views, durable_changes
from ebla.actors.replication.appointments import appointed
from ebla.actors.replication.configuration import Configuration
from tests.master.builders import Story, report
from tests.master.planning import GRACE_S, Deployment, shown


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
    deployment = Deployment(primary="a", created=False)
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
