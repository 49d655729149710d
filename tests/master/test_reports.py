"""Tablet reports cause durable changes, views of leaders, and stragglers, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog import records
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.master.cluster.reports import Views, durable_changes
from ebla.actors.master.rules.healing import Situation
from ebla.actors.messages import TabletReport
from ebla.actors.replication.configuration import Configuration
from tests.master.builders import Story, configuration, replica, report

ABC = configuration("a", "b", "c")


class Heard(Story):
    """A tablet of three servers, and what a master knows of it by reports."""

    def __init__(self, uuids: str = "abc", running: bool = True) -> None:
        super().__init__()
        self.views = Views()
        self.tablet = self.running(*uuids) if running else self.creating(*uuids)

    def take(self, uuid: str, reported: TabletReport) -> list[e.Edit]:
        edits = durable_changes(self.catalog, uuid, reported)
        self.apply(*edits)
        self.views.merge(self.catalog, uuid, reported)
        return edits

    def says(
        self, uuid: str, members: Configuration, leader: str | None = None, **changes: Any
    ) -> list[e.Edit]:
        return self.take(uuid, report(replica(self.tablet, members, leader, **changes)))

    def leads(self, uuid: str, members: Configuration, **changes: Any) -> list[e.Edit]:
        return self.says(uuid, members, uuid, role="leader", **changes)

    def drop(self) -> None:
        self.apply(e.TableDropped("drop", 0, self.catalog.named("flights").table, 5))

    @property
    def led(self) -> tuple[str | None, int]:
        view = self.views.of(self.tablet)
        return view.leader, view.term

    def situation(self) -> Situation | None:
        return self.views.situation(self.catalog, self.tablet)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_a_tablet_runs_when_a_running_member_names_a_leader_of_the_configuration():
    heard = Heard(running=False)
    for uuid, leader, changes in (
        ("a", None, {}),
        ("a", "z", {}),  # not a member
        ("a", "a", {"state": "bootstrapping"}),
        ("a", "a", {"error": "a failed checksum"}),
        ("z", "a", {}),  # the reporter is not a member
    ):
        edits = heard.says(uuid, ABC, leader, **changes)
        assert not any(isinstance(edit, e.TabletRunning) for edit in edits), (uuid, leader, changes)
    assert heard.says("b", ABC, "a") == [e.ReplicasSeen("b", (heard.tablet,)), e.TabletRunning(heard.tablet)]


def test_a_pacifica_tablet_runs_once_a_replica_reports_a_committed_entry():
    heard = Heard(running=False)
    first = replace(ABC, index=1, primary="a", min_members=2)
    (tablet,) = heard.create("delays", replication="pacifica", replicas=3, min_members=2)
    heard.apply(e.TabletAssigned(tablet, first))
    heard.tablet = tablet
    assert heard.leads("a", first, commit_index=0) == [e.ReplicasSeen("a", (tablet,))]
    assert heard.leads("a", first) == [e.TabletRunning(tablet)]


def test_a_repeated_report_costs_no_edit():
    heard = Heard(running=False)
    assert heard.says("b", ABC, "a")
    assert heard.says("b", ABC, "a") == []


def test_a_leader_change_costs_no_edit(heard: Heard) -> None:
    heard.says("a", ABC, "a", term=1)
    heard.says("b", ABC, "a", term=1)
    assert heard.says("b", ABC, "b", term=2) == []
    assert heard.led == ("b", 2)


def test_a_newer_configuration_is_an_edit_and_an_older_one_is_ignored(heard: Heard) -> None:
    newer = configuration("a", "b", "d", index=9)
    assert heard.says("a", newer, "a") == [
        e.ReplicasSeen("a", (heard.tablet,)),
        e.ConfigurationChanged(heard.tablet, newer),
    ]
    assert heard.says("c", ABC, "a") == []
    assert heard.catalog.tablets[heard.tablet].configuration == newer


def test_a_forced_configuration_is_newer_than_any_other_and_its_leader_leads():
    """The log of s ended long before those of the lost replicas."""
    heard = Heard("sbc")
    changed, forced = configuration("s", "b", "d", index=9), Configuration(configuration("s").peers, 4, 1)
    heard.says("b", changed, "b", term=7)
    assert heard.leads("s", forced, term=5) == [
        e.ReplicasSeen("s", (heard.tablet,)),
        e.ConfigurationChanged(heard.tablet, forced),
    ]
    assert heard.led == ("s", 5)
    assert heard.situation() is not None

    assert heard.leads("b", configuration("s", "b", "d", index=12), term=8) == []
    assert heard.led == ("s", 5), "no replica of the other side counts"
    assert list(heard.views.strays) == [("b", heard.tablet)], "and its data goes into quarantine"
    after = Configuration(configuration("s", "e").peers, 6, 1)
    heard.says("s", after, "s", term=5)
    assert heard.catalog.tablets[heard.tablet].configuration == after
    require_sound(heard.catalog)


def test_a_survivor_must_get_an_alteration_that_only_lost_replicas_had():
    heard = Heard("sbc")
    (table,) = heard.catalog.tables.values()
    heard.apply(e.TableAltered("more", 0, table.table, table.name, replace(table.schema, version=1)))
    heard.says("b", configuration("s", "b", "c"), "b", schema_version=1)
    assert list(heard.views.behind) == []
    forced = Configuration(configuration("s").peers, 4, 1)
    heard.leads("s", forced)
    assert (list(heard.views.behind), heard.views.of(heard.tablet).version) == ([heard.tablet], 0)
    heard.says("b", configuration("s", "b", "c"), "b", term=8, schema_version=1)
    assert list(heard.views.behind) == [heard.tablet], "no replica of the other side counts"
    heard.leads("s", forced, schema_version=1)
    assert list(heard.views.behind) == []


def test_an_impossible_configuration_is_not_adopted(heard: Heard) -> None:
    for bad in (Configuration((), 9), configuration("a", "a", index=9)):
        assert heard.says("z", bad, "a") == []


def test_a_leader_that_left_the_configuration_is_no_leader(heard: Heard) -> None:
    heard.says("c", ABC, "c")
    assert heard.led[0] == "c"
    heard.says("a", configuration("a", "b", index=9))
    assert heard.led[0] is None
    heard.says("c", ABC, "c")
    assert heard.led[0] is None


def test_only_the_leader_itself_erases_its_leadership(heard: Heard) -> None:
    heard.says("a", ABC, "a", term=3)
    heard.says("b", ABC, None, term=3)
    heard.says("b", ABC, None, term=4)
    assert heard.led == ("a", 3)
    heard.says("a", ABC, None, term=4)
    assert heard.led[0] is None
    heard.says("b", ABC, "a", term=3)
    assert heard.led[0] is None, "a leader of an old term does not return"
    heard.says("b", ABC, "b", term=4)
    assert heard.led[0] == "b"


def test_a_lonely_candidate_in_a_newer_term_hides_no_leader(heard: Heard) -> None:
    """B and c elect in term 2, while a, which tried in term 3, is lost."""
    heard.leads("a", ABC, term=1)
    heard.says("a", ABC, None, term=3, role="candidate")
    assert heard.led == (None, 3)
    heard.says("c", ABC, "b", term=2, role="follower")
    assert heard.led[0] is None, "a follower's knowledge may be older"
    heard.leads("b", ABC, term=2, health={"a": "silent"})
    assert heard.led == ("b", 2)
    assert heard.situation().health == {"a": "silent"}
    heard.leads("c", ABC, term=4)
    heard.leads("b", ABC, term=2)
    assert heard.led == ("c", 4), "a superseded leader does not count"


def test_two_leaders_in_one_term_are_counted_and_ignored(heard: Heard) -> None:
    heard.says("a", ABC, "a", term=3)
    heard.says("b", ABC, "b", term=3)
    assert (heard.led[0], heard.views.leader_conflicts) == ("a", 1)


def test_unknown_tablets_are_counted_once_and_ignored(heard: Heard, caplog: pytest.LogCaptureFixture) -> None:
    reported = report(replica("mystery", ABC, "a"), replica("riddle", ABC, "a"), full=True)
    for _ in range(3):
        assert heard.take("a", reported) == []
        assert heard.views.merge(heard.catalog, "a", reported).stragglers == []
    assert len(heard.views.unknown) == 2
    assert len([r for r in caplog.records if "left alone" in r.message]) == 1
    heard.take("a", report(removed=["mystery"]))
    assert len(heard.views.unknown) == 1


def test_replicas_of_dropped_and_replaced_tablets_are_stragglers(heard: Heard) -> None:
    replaced = heard.creating("a", "b", "c", name="two")
    heard.drop()
    heard.apply(e.TabletReplaced(replaced, "new", 5))
    reported = report(replica(heard.tablet, ABC, "a"), replica(replaced, ABC, "a", state="deleted"))
    assert heard.take("a", reported) == []
    assert heard.views.merge(heard.catalog, "a", reported).stragglers == [heard.tablet, replaced]


def test_a_full_report_shows_the_tablets_that_a_server_lacks(heard: Heard) -> None:
    running = heard.running("a", "b", "c", name="two")
    heard.take("a", report(replica(running, ABC, "a")))
    heard.drop()
    assert heard.views.merge(heard.catalog, "a", report(sequence=1)).absent == []
    absent = heard.views.merge(heard.catalog, "a", report(sequence=2, full=True)).absent
    assert absent == [heard.tablet, running]
    assert heard.views.of(running).leader is None
    assert heard.catalog.tablets[running].state == records.RUNNING, "absence alone changes nothing durable"


def test_a_former_member_without_a_replica_is_an_edit(heard: Heard) -> None:
    heard.apply(e.ConfigurationChanged(heard.tablet, configuration("a", "b", index=4)))
    gone = [e.FormerMembersGone("c", (heard.tablet,))]
    for reported, edits in (
        (report(replica(heard.tablet, ABC, state="failed"), full=True), []),
        (report(), []),
        (report(full=True), gone),
        (report(removed=[heard.tablet, heard.tablet, "mystery"]), gone),
    ):
        assert durable_changes(heard.catalog, "c", reported) == edits


def test_a_former_members_tombstone_is_remembered(heard: Heard) -> None:
    heard.apply(*(e.ReplicasSeen(uuid, (heard.tablet,)) for uuid in "abc"))
    heard.apply(e.ConfigurationChanged(heard.tablet, configuration("a", "b", index=4)))
    assert heard.says("b", ABC, state="deleted") == [], "the server is a member"
    gone = [e.FormerMembersGone("c", (heard.tablet,), tombstone=True)]
    assert heard.says("c", ABC, state="deleted") == gone
    assert heard.says("c", ABC, state="deleted") == []
    assert [peer.uuid for peer in heard.catalog.tablets[heard.tablet].tombstones] == ["c"]


HEALTH = {"b": "healthy", "c": "unhealthy"}


def test_only_the_present_leader_reports_the_health_of_members(heard: Heard) -> None:
    heard.says("b", ABC, "a", health=HEALTH)
    assert heard.situation() is None, "a follower does not report the others"
    heard.leads("a", ABC, health=HEALTH)
    assert heard.situation().health == HEALTH
    assert list(heard.views.unsettled) == [heard.tablet]
    heard.leads("b", ABC, term=2, health={"a": "healthy", "c": "healthy"})
    assert heard.situation().health == {"a": "healthy", "c": "healthy"}
    assert not heard.views.unsettled
    heard.leads("a", ABC, term=1, health=HEALTH)
    assert not heard.views.unsettled, "it does not lead any more"
    heard.says("c", ABC, "c", term=3)
    assert heard.situation() is None, "the new leader has not reported yet"


def test_health_of_another_configuration_is_ignored(heard: Heard) -> None:
    heard.leads("a", ABC, health=HEALTH)
    newer = configuration("a", "b", "c", "d", index=9)
    heard.says("b", newer, "a")
    assert heard.situation() is None and not heard.views.unsettled
    heard.leads("a", ABC, health=HEALTH)
    assert heard.situation() is None
    heard.leads("a", newer, health=HEALTH)
    assert heard.situation().configuration == newer


def test_a_drain_unsettles_the_tablets_of_its_server(heard: Heard) -> None:
    heard.leads("a", ABC, health={"b": "healthy", "c": "healthy"})
    there = heard.tablet = heard.running("a", "b", "d", name="there")
    heard.leads("a", configuration("a", "b", "d"), health={"b": "healthy", "d": "healthy"})
    assert not heard.views.unsettled
    heard.apply(e.ServerDraining("tablet-server/d", True))
    heard.views.settle_held(heard.catalog, ["tablet-server/d"])
    assert list(heard.views.unsettled) == [there]
    heard.apply(e.ServerDraining("tablet-server/d", False))
    heard.views.settle_held(heard.catalog, ["tablet-server/d"])
    assert not heard.views.unsettled


def test_the_end_of_maintenance_unsettles_silent_members(heard: Heard) -> None:
    heard.leads("a", ABC, health={"b": "healthy", "c": "silent"})
    heard.apply(e.ServerMaintained("tablet-server/c", True))
    heard.views.news.clear()
    heard.apply(e.ServerMaintained("tablet-server/c", False))
    heard.views.settle_held(heard.catalog, ["tablet-server/c"])
    assert list(heard.views.news) == [heard.tablet], "it is decided before all waiting tablets"


def test_a_replica_outside_the_configuration_is_a_stray_unless_it_is_newer_or_copied(heard: Heard) -> None:
    heard.apply(e.ConfigurationChanged(heard.tablet, configuration("a", "b", "c", index=5)))
    for members, state, is_stray in (
        (configuration("a", "b", "z", index=4), "running", True),
        (ABC, "copying", False),
        (ABC, "failed", True),
        (configuration("a", "z", index=6), "failed", False),
        (ABC, "deleted", False),
    ):
        heard.says("z", members, state=state, error="damaged" if state == "failed" else None)
        assert (("z", heard.tablet) in heard.views.strays) == is_stray, (members, state)
    heard.says("z", ABC)
    assert heard.views.strays
    heard.take("z", report(removed=[heard.tablet]))
    heard.says("a", ABC)
    assert not heard.views.strays
    heard.says("z", configuration("a", "b", "c", "z", index=6), "a")
    assert not heard.views.strays and heard.catalog.tablets[heard.tablet].member("z") is not None


def test_a_late_replica_is_deleted_once_the_leader_adds_no_member(heard: Heard) -> None:
    coming = configuration("a", "b", "c", "z", index=5)
    heard.says("z", ABC)
    assert heard.views.excluded_in(heard.catalog, heard.tablet, "z") == 0
    for says, uuid, leader, changes, excluded in (
        (heard.says, "b", ("a",), {}, 0),
        (heard.leads, "a", (), {"pending": coming}, None),
        (heard.leads, "a", (), {}, 1),
        (heard.says, "b", ("b",), {"term": 2}, 0),
        (heard.leads, "b", (), {"term": 2}, 2),
        (heard.leads, "b", (), {"term": 2, "pending": coming}, None),
    ):
        says(uuid, ABC, *leader, **changes)
        assert heard.views.excluded_in(heard.catalog, heard.tablet, "z") == excluded
