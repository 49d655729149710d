"""Tablet reports cause durable changes, views of leaders, and stragglers, or nothing."""

from __future__ import annotations

from msgspec.structs import replace

from ebla.actors.master.catalog import catalog as c
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.cluster.reports import Views, durable_changes
from ebla.actors.messages import TabletReport
from ebla.actors.replication.configuration import Configuration
from tests.master.builders import Story, configuration, replica, report

ABC = configuration("a", "b", "c")


def take(story: Story, views: Views, uuid: str, reported: TabletReport) -> list[e.Edit]:
    edits = durable_changes(story.catalog, uuid, reported)
    story.apply(*edits)
    views.merge(story.catalog, uuid, reported)
    return edits


def test_a_tablet_runs_when_a_running_member_names_a_leader_of_the_configuration():
    story = Story()
    tablet = story.creating("a", "b", "c")
    for reported, uuid in (
        (replica(tablet, ABC), "a"),  # no leader
        (replica(tablet, ABC, "z"), "a"),  # not a member
        (replica(tablet, ABC, "a", state="bootstrapping"), "a"),
        (replica(tablet, ABC, "a", error="a failed checksum"), "a"),
        (replica(tablet, ABC, "a"), "z"),  # the reporter is not a member
    ):
        edits = durable_changes(story.catalog, uuid, report(reported))
        assert not any(isinstance(edit, e.TabletRunning) for edit in edits), reported
    edits = durable_changes(story.catalog, "b", report(replica(tablet, ABC, "a")))
    assert edits == [e.ReplicasSeen("b", (tablet,)), e.TabletRunning(tablet)]


def test_a_repeated_report_costs_no_edit():
    story, views = Story(), Views()
    tablet = story.creating("a", "b", "c")
    reported = report(replica(tablet, ABC, "a"))
    assert take(story, views, "b", reported)
    assert take(story, views, "b", reported) == []


def test_a_leader_change_costs_no_edit():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    take(story, views, "a", report(replica(tablet, ABC, "a", term=1)))
    take(story, views, "b", report(replica(tablet, ABC, "a", term=1)))
    assert take(story, views, "b", report(replica(tablet, ABC, "b", term=2))) == []
    assert (views.of(tablet).leader, views.of(tablet).term) == ("b", 2)


def test_a_newer_configuration_is_an_edit_and_an_older_one_is_ignored():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    newer = configuration("a", "b", "d", index=9)
    assert take(story, views, "a", report(replica(tablet, newer, "a"))) == [
        e.ReplicasSeen("a", (tablet,)),
        e.ConfigurationChanged(tablet, newer),
    ]
    assert take(story, views, "c", report(replica(tablet, ABC, "a"))) == []
    assert story.catalog.tablets[tablet].configuration == newer


def test_a_forced_configuration_is_newer_than_any_other_and_its_leader_leads():
    """The log of s ended long before those of the lost replicas."""
    story, views = Story(), Views()
    tablet = story.running("s", "b", "c")
    changed, forced = configuration("s", "b", "d", index=9), Configuration(configuration("s").peers, 4, 1)
    take(story, views, "b", report(replica(tablet, changed, "b", term=7)))
    reported = replica(tablet, forced, "s", term=5, role="leader")
    assert take(story, views, "s", report(reported)) == [
        e.ReplicasSeen("s", (tablet,)),
        e.ConfigurationChanged(tablet, forced),
    ]
    assert (views.of(tablet).leader, views.of(tablet).term) == ("s", 5)
    assert views.situation(story.catalog, tablet) is not None

    returned = replica(tablet, configuration("s", "b", "d", index=12), "b", term=8, role="leader")
    assert take(story, views, "b", report(returned)) == []
    assert (views.of(tablet).leader, views.of(tablet).term) == ("s", 5), "no replica of the other side counts"
    assert list(views.strays) == [("b", tablet)], "and its data goes into quarantine"
    after = Configuration(configuration("s", "e").peers, 6, 1)
    take(story, views, "s", report(replica(tablet, after, "s", term=5)))
    assert story.catalog.tablets[tablet].configuration == after
    story.catalog.check()


def test_a_survivor_must_get_an_alteration_that_only_lost_replicas_had():
    story, views = Story(), Views()
    tablet = story.running("s", "b", "c")
    (table,) = story.catalog.tables.values()
    story.apply(e.TableAltered("more", 0, table.table, table.name, replace(table.schema, version=1)))
    take(story, views, "b", report(replica(tablet, configuration("s", "b", "c"), "b", schema_version=1)))
    assert list(views.behind) == []
    forced = Configuration(configuration("s").peers, 4, 1)
    take(story, views, "s", report(replica(tablet, forced, "s", role="leader")))
    assert (list(views.behind), views.of(tablet).version) == ([tablet], 0)
    returned = replica(tablet, configuration("s", "b", "c"), "b", term=8, schema_version=1)
    take(story, views, "b", report(returned))
    assert list(views.behind) == [tablet], "no replica of the other side counts"
    take(story, views, "s", report(replica(tablet, forced, "s", role="leader", schema_version=1)))
    assert list(views.behind) == []


def test_an_impossible_configuration_is_not_adopted():
    story = Story()
    tablet = story.running("a", "b", "c")
    for bad in (Configuration((), 9), configuration("a", "a", index=9)):
        assert durable_changes(story.catalog, "z", report(replica(tablet, bad, "a"))) == []


def test_a_leader_that_left_the_configuration_is_no_leader():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    take(story, views, "c", report(replica(tablet, ABC, "c")))
    assert views.of(tablet).leader == "c"
    take(story, views, "a", report(replica(tablet, configuration("a", "b", index=9))))
    assert views.of(tablet).leader is None
    take(story, views, "c", report(replica(tablet, ABC, "c")))
    assert views.of(tablet).leader is None


def test_only_the_leader_itself_erases_its_leadership():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    take(story, views, "a", report(replica(tablet, ABC, "a", term=3)))
    take(story, views, "b", report(replica(tablet, ABC, None, term=3)))
    take(story, views, "b", report(replica(tablet, ABC, None, term=4)))
    assert (views.of(tablet).leader, views.of(tablet).term) == ("a", 3)
    take(story, views, "a", report(replica(tablet, ABC, None, term=4)))
    assert views.of(tablet).leader is None
    take(story, views, "b", report(replica(tablet, ABC, "a", term=3)))
    assert views.of(tablet).leader is None, "a leader of an old term does not return"
    take(story, views, "b", report(replica(tablet, ABC, "b", term=4)))
    assert views.of(tablet).leader == "b"


def test_a_lonely_candidate_in_a_newer_term_hides_no_leader():
    """B and c elect in term 2, while a, which tried in term 3, is lost."""
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    take(story, views, "a", report(replica(tablet, ABC, "a", term=1, role="leader")))
    take(story, views, "a", report(replica(tablet, ABC, None, term=3, role="candidate")))
    assert (views.of(tablet).leader, views.of(tablet).term) == (None, 3)
    take(story, views, "c", report(replica(tablet, ABC, "b", term=2, role="follower")))
    assert views.of(tablet).leader is None, "a follower's knowledge may be older"
    take(story, views, "b", report(replica(tablet, ABC, "b", term=2, role="leader", health={"a": "silent"})))
    assert (views.of(tablet).leader, views.of(tablet).term) == ("b", 2)
    assert views.situation(story.catalog, tablet).health == {"a": "silent"}
    take(story, views, "c", report(replica(tablet, ABC, "c", term=4, role="leader")))
    take(story, views, "b", report(replica(tablet, ABC, "b", term=2, role="leader")))
    assert (views.of(tablet).leader, views.of(tablet).term) == ("c", 4), "a superseded leader does not count"


def test_two_leaders_in_one_term_are_counted_and_ignored():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    take(story, views, "a", report(replica(tablet, ABC, "a", term=3)))
    take(story, views, "b", report(replica(tablet, ABC, "b", term=3)))
    assert (views.of(tablet).leader, views.leader_conflicts) == ("a", 1)


def test_unknown_tablets_are_counted_once_and_ignored(caplog):
    story, views = Story(), Views()
    reported = report(replica("mystery", ABC, "a"), replica("riddle", ABC, "a"), full=True)
    for _ in range(3):
        assert take(story, views, "a", reported) == []
        assert views.merge(story.catalog, "a", reported).stragglers == []
    assert len(views.unknown) == 2
    assert len([r for r in caplog.records if "left alone" in r.message]) == 1
    take(story, views, "a", report(removed=["mystery"]))
    assert len(views.unknown) == 1


def test_replicas_of_dropped_and_replaced_tablets_are_stragglers():
    story, views = Story(), Views()
    dropped, replaced = story.running("a", "b", "c", name="one"), story.creating("a", "b", "c", name="two")
    story.apply(
        e.TableDropped("drop", 0, story.catalog.named("one").table, 5), e.TabletReplaced(replaced, "new", 5)
    )
    reported = report(replica(dropped, ABC, "a"), replica(replaced, ABC, "a", state="deleted"))
    assert durable_changes(story.catalog, "a", reported) == []
    assert views.merge(story.catalog, "a", reported).stragglers == [dropped, replaced]


def test_a_full_report_shows_the_tablets_that_a_server_lacks():
    story, views = Story(), Views()
    ended, running = story.running("a", "b", "c", name="one"), story.running("a", "b", "c", name="two")
    take(story, views, "a", report(replica(running, ABC, "a")))
    story.apply(e.TableDropped("drop", 0, story.catalog.named("one").table, 5))
    assert views.merge(story.catalog, "a", report(sequence=1)).absent == []
    assert views.merge(story.catalog, "a", report(sequence=2, full=True)).absent == [ended, running]
    assert views.of(running).leader is None
    assert story.catalog.tablets[running].state == c.RUNNING, "absence alone changes nothing durable"


def test_a_former_member_without_a_replica_is_an_edit():
    story = Story()
    tablet = story.running("a", "b", "c")
    story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", index=4)))
    gone = [e.FormerMembersGone("c", (tablet,))]
    assert durable_changes(story.catalog, "c", report(replica(tablet, ABC, state="failed"), full=True)) == []
    assert durable_changes(story.catalog, "c", report()) == []
    assert durable_changes(story.catalog, "c", report(full=True)) == gone
    assert durable_changes(story.catalog, "c", report(removed=[tablet, tablet, "mystery"])) == gone


def test_a_former_members_tombstone_is_remembered():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    story.apply(*(e.ReplicasSeen(uuid, (tablet,)) for uuid in "abc"))
    story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", index=4)))
    buried = report(replica(tablet, ABC, state="deleted"))
    assert durable_changes(story.catalog, "b", buried) == [], "the server is a member"
    assert take(story, views, "c", buried) == [e.FormerMembersGone("c", (tablet,), tombstone=True)]
    assert take(story, views, "c", buried) == []
    assert [peer.uuid for peer in story.catalog.tablets[tablet].tombstones] == ["c"]


HEALTH = {"b": "healthy", "c": "unhealthy"}


def lead(tablet: str, members: Configuration, leader: str, **changes: object) -> TabletReport:
    return report(replica(tablet, members, leader, role="leader", **changes))


def test_only_the_present_leader_reports_the_health_of_members():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    take(story, views, "b", report(replica(tablet, ABC, "a", health=HEALTH)))
    assert views.situation(story.catalog, tablet) is None, "a follower does not report the others"
    take(story, views, "a", lead(tablet, ABC, "a", health=HEALTH))
    assert views.situation(story.catalog, tablet).health == HEALTH
    assert list(views.unsettled) == [tablet]
    take(story, views, "b", lead(tablet, ABC, "b", term=2, health={"a": "healthy", "c": "healthy"}))
    assert views.situation(story.catalog, tablet).health == {"a": "healthy", "c": "healthy"}
    assert not views.unsettled
    take(story, views, "a", lead(tablet, ABC, "a", term=1, health=HEALTH))
    assert not views.unsettled, "it does not lead any more"
    take(story, views, "c", report(replica(tablet, ABC, "c", term=3)))
    assert views.situation(story.catalog, tablet) is None, "the new leader has not reported yet"


def test_health_of_another_configuration_is_ignored():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    take(story, views, "a", lead(tablet, ABC, "a", health=HEALTH))
    newer = configuration("a", "b", "c", "d", index=9)
    take(story, views, "b", report(replica(tablet, newer, "a")))
    assert views.situation(story.catalog, tablet) is None and not views.unsettled
    take(story, views, "a", lead(tablet, ABC, "a", health=HEALTH))
    assert views.situation(story.catalog, tablet) is None
    take(story, views, "a", lead(tablet, newer, "a", health=HEALTH))
    assert views.situation(story.catalog, tablet).configuration == newer


def test_a_drain_unsettles_the_tablets_of_its_server():
    story, views = Story(), Views()
    here, there = story.running("a", "b", "c", name="here"), story.running("a", "b", "d", name="there")
    for tablet, last in ((here, "c"), (there, "d")):
        members = configuration("a", "b", last)
        take(story, views, "a", lead(tablet, members, "a", health={"b": "healthy", last: "healthy"}))
    assert not views.unsettled
    story.apply(e.ServerDraining("tablet-server/d", True))
    views.settle_held(story.catalog, ["tablet-server/d"])
    assert list(views.unsettled) == [there]
    story.apply(e.ServerDraining("tablet-server/d", False))
    views.settle_held(story.catalog, ["tablet-server/d"])
    assert not views.unsettled


def test_the_end_of_maintenance_unsettles_silent_members():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    take(story, views, "a", lead(tablet, ABC, "a", health={"b": "healthy", "c": "silent"}))
    story.apply(e.ServerMaintained("tablet-server/c", True))
    views.news.clear()
    story.apply(e.ServerMaintained("tablet-server/c", False))
    views.settle_held(story.catalog, ["tablet-server/c"])
    assert list(views.news) == [tablet], "it is decided before all waiting tablets"


def test_a_replica_outside_the_configuration_is_a_stray_unless_it_is_newer_or_copied():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", "c", index=5)))
    for reported, is_stray in (
        (replica(tablet, configuration("a", "b", "z", index=4)), True),
        (replica(tablet, ABC, state="copying"), False),
        (replica(tablet, ABC, state="failed", error="damaged"), True),
        (replica(tablet, configuration("a", "z", index=6), state="failed", error="damaged"), False),
        (replica(tablet, ABC, state="deleted"), False),
    ):
        take(story, views, "z", report(reported))
        assert (("z", tablet) in views.strays) == is_stray, reported
    take(story, views, "z", report(replica(tablet, ABC)))
    assert views.strays
    take(story, views, "z", report(removed=[tablet]))
    take(story, views, "a", report(replica(tablet, ABC)))
    assert not views.strays
    take(story, views, "z", report(replica(tablet, configuration("a", "b", "c", "z", index=6), "a")))
    assert not views.strays and story.catalog.tablets[tablet].member("z") is not None


def test_a_late_replica_is_deleted_once_the_leader_adds_no_member():
    story, views = Story(), Views()
    tablet = story.running("a", "b", "c")
    coming = configuration("a", "b", "c", "z", index=5)
    take(story, views, "z", report(replica(tablet, ABC)))
    excluded = [views.excluded_in(story.catalog, tablet, "z")]
    for uuid, said in (
        ("b", report(replica(tablet, ABC, "a"))),
        ("a", lead(tablet, ABC, "a", pending=coming)),
        ("a", lead(tablet, ABC, "a")),
        ("b", report(replica(tablet, ABC, "b", term=2))),
        ("b", lead(tablet, ABC, "b", term=2)),
        ("b", lead(tablet, ABC, "b", term=2, pending=coming)),
    ):
        take(story, views, uuid, said)
        excluded.append(views.excluded_in(story.catalog, tablet, "z"))
    assert excluded == [0, 0, None, 1, 0, 2, None]
