"""Errands follow from the committed catalog: their begin, their pace, and when a tablet is forgotten."""

from __future__ import annotations

import random

from msgspec.structs import replace

from ebla.actors.master.catalog import edits as e
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.master.errands.errands import Errand, Errands
from ebla.actors.master.options import MasterOptions
from ebla.actors.replication.appointments import appointed, next_members
from ebla.actors.replication.configuration import Peer
from tests.master.builders import Story, configuration, heartbeat

OPTIONS = MasterOptions(
    rpcs_max=6, rpcs_per_server_max=2, rpc_backoff_s=1.0, rpc_backoff_max_s=8.0, forget_min_s=60.0
)


def live(*uuids: str) -> Servers:
    servers = Servers(unresponsive_s=1e9)
    for uuid in uuids:
        servers.heartbeat(heartbeat(uuid, register=True), 0.0)
    return servers


def errands() -> Errands:
    return Errands(OPTIONS, random.Random(1))


def kinds(begun: list[Errand]) -> list[tuple[str, str]]:
    return [(errand.kind, errand.uuid) for errand in begun]


def drop(story: Story, name: str = "flights", at_us: int = 0) -> None:
    story.apply(e.TableDropped(f"drop {name}", 0, story.catalog.named(name).table, at_us))


def test_every_member_of_a_created_tablet_is_asked_until_it_reports():
    story, todo = Story(), errands()
    tablet = story.creating("a", "b", "c")
    begun = todo.begin(story.catalog, live("a", "b", "c"), 0.0)
    assert kinds(begun) == [("create", "a"), ("create", "b"), ("create", "c")]
    assert todo.begin(story.catalog, live("a", "b", "c"), 0.0) == [], "one errand at a time per replica"
    story.apply(e.ReplicasSeen("a", (tablet,)), e.TabletRunning(tablet))
    for errand in begun:
        todo.failed(errand, 0.0)
    assert kinds(todo.begin(story.catalog, live("a", "b", "c"), 10.0)) == [("create", "b"), ("create", "c")]


def test_a_reported_replica_is_never_created_again():
    story, todo = Story(), errands()
    tablet = story.running("a", "b", "c")
    for uuid in "abc":
        story.apply(e.ReplicasSeen(uuid, (tablet,)))
    assert todo.begin(story.catalog, live("a", "b", "c"), 1e6) == []


def test_an_unreported_member_is_created_after_a_change_of_the_others():
    """Found by simulation: one voter was not created yet, another lost its disk, and the third could not be elected."""
    story, todo = Story(), errands()
    tablet = story.running("a", "b", "c")
    story.apply(e.ReplicasSeen("a", (tablet,)), e.ReplicasSeen("b", (tablet,)))
    story.apply(e.ConfigurationChanged(tablet, configuration("a", "c", "d", index=4)))
    assert kinds(todo.begin(story.catalog, live("a", "b", "c", "d"), 0.0)) == [
        ("create", "c"),
        ("tombstone", "b"),
    ]


def test_a_voter_of_a_later_ballot_is_not_created():
    """It may have acknowledged entries before its first report, and lost them: empty, it would count as one that has everything."""
    story, todo = Story(), errands()
    (tablet,) = story.appointed("abc", primary="a")
    story.apply(e.ReplicasSeen("a", (tablet,)))
    begun = todo.begin(story.catalog, live("a", "b", "c"), 0.0)
    assert kinds(begun) == [("create", "b"), ("create", "c")]
    first = story.catalog.tablets[tablet].configuration
    second = appointed(replace(first, peers=next_members(first, (), ["c"])), "a")
    story.apply(e.ConfigurationsAppointed({tablet: second}))
    assert [todo.still_wanted(each, story.catalog) for each in begun] == [False, True]
    for each in begun:
        todo.abandoned(each)
    assert kinds(todo.begin(story.catalog, live("a", "b", "c"), 0.0)) == [("create", "c")], (
        "a learner counts for nothing"
    )


def test_a_prepared_tablet_causes_no_errand():
    story = Story()
    story.create(buckets=5)
    assert errands().begin(story.catalog, live("a", "b", "c"), 0.0) == []


def test_a_dead_server_is_called_only_after_its_return():
    story, todo = Story(), errands()
    story.creating("a", "b", "c")
    assert kinds(todo.begin(story.catalog, live("b"), 0.0)) == [("create", "b")]
    assert kinds(todo.begin(story.catalog, live("a", "b"), 0.0)) == [("create", "a")]


def test_a_slow_server_uses_only_its_share_of_the_calls():
    story, todo = Story(), errands()
    for number in range(9):
        story.creating("a", name=f"on a {number}")
    story.creating("b", name="on b")
    begun = todo.begin(story.catalog, live("a", "b"), 0.0)
    assert kinds(begun) == [("create", "a"), ("create", "a"), ("create", "b")]


def test_pauses_grow_up_to_a_bound_for_each_kind_of_errand():
    story, todo = Story(), errands()
    tablet = story.creating("a")
    servers, now = live("a"), 0.0
    waits = []
    for _ in range(8):
        (errand,) = todo.begin(story.catalog, servers, now)
        todo.failed(errand, now)
        failed_at = now
        while not (retried := todo.begin(story.catalog, servers, now)):
            now += 0.01
        todo.abandoned(retried[0])
        waits.append(now - failed_at)
    assert all(0.5 * 2**n <= wait <= 1.0 * 2**n + 0.02 for n, wait in enumerate(waits[:4]))
    assert all(wait <= 8.02 for wait in waits)
    (errand,) = todo.begin(story.catalog, servers, now)
    todo.failed(errand, now)
    drop(story)
    assert kinds(todo.begin(story.catalog, servers, now)) == [("delete", "a")]
    assert not todo.still_wanted(Errand("create", tablet, "a", ""), story.catalog)


def test_a_dropped_tablet_is_forgotten_some_time_after_all_confirmations():
    story, todo = Story(), errands()
    tablet = story.running("a", "b", "c")
    story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", index=3)))
    drop(story)
    begun = todo.begin(story.catalog, live("a", "b", "c"), 0.0)
    assert kinds(begun) == [("delete", "a"), ("delete", "b"), ("delete", "c")], "former members are included"
    todo.succeeded(begun[0], 0.0)
    todo.failed(begun[1], 0.0)
    todo.absent(tablet, "c")
    todo.abandoned(begun[2])
    assert todo.forgettable(story.catalog, 1000.0, 0) == ()
    (again,) = todo.begin(story.catalog, live("a", "b", "c"), 1000.0)
    todo.succeeded(again, 1000.0)
    assert todo.forgettable(story.catalog, 1001.0, 0) == ()
    assert todo.forgettable(story.catalog, 1060.0, 0) == ()
    assert todo.forgettable(story.catalog, 1061.0, 0) == (tablet,)


def test_a_straggler_is_deleted_even_if_it_confirmed_or_was_no_member():
    story, todo = Story(), errands()
    tablet = story.running("a")
    drop(story)
    todo.absent(tablet, "a")
    assert todo.forgettable(story.catalog, 0.0, 0) == ()
    todo.straggler(tablet, Peer("a", "tablet-server/a"))
    todo.straggler(tablet, Peer("z", "tablet-server/z"))
    assert todo.forgettable(story.catalog, 1e6, 0) == ()
    begun = todo.begin(story.catalog, live("a", "z"), 0.0)
    assert kinds(begun) == [("delete", "a"), ("delete", "z")]
    for errand in begun:
        todo.succeeded(errand, 0.0)
    assert todo.forgettable(story.catalog, 1e6, 0) == ()
    assert todo.forgettable(story.catalog, 2e6, 0) == (tablet,)


def test_the_wait_for_a_lost_server_is_bounded():
    story, todo = Story(), errands()
    tablet = story.running("a")
    drop(story, at_us=1_000_000)
    week_us = int(OPTIONS.forget_max_s * 1e6)
    assert todo.forgettable(story.catalog, 1e9, week_us) == ()
    assert todo.forgettable(story.catalog, 1e9, week_us + 1_000_000) == (tablet,)


def test_a_restarted_master_repeats_all_unconfirmed_errands():
    story = Story()
    story.creating("a", "b", name="new")
    story.running("a", "b", name="old")
    drop(story, "old")
    begun = errands().begin(story.catalog, live("a", "b"), 0.0)
    assert kinds(begun) == [("create", "a"), ("create", "b"), ("delete", "a"), ("delete", "b")]


def test_a_twice_removed_member_gets_a_second_tombstone_errand():
    """Its own report showed the first tombstone before the errand's result was needed."""
    story, todo = Story(), errands()
    tablet, servers = story.running("a", "b", "c"), live("a", "b", "c", "d")
    for uuid in "abc":
        story.apply(e.ReplicasSeen(uuid, (tablet,)))
    for index in (4, 8):
        story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", "c", "d", index=index)))
        story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", "c", index=index + 1)))
        assert todo.former_gone(story.catalog) == {}, "no errand was sent yet"
        (errand,) = todo.begin(story.catalog, servers, 0.0)
        assert (errand.kind, errand.uuid) == ("tombstone", "d")
        todo.succeeded(errand, 0.0)
        assert todo.former_gone(story.catalog) == {("d", True): (tablet,)}
        story.apply(e.FormerMembersGone("d", (tablet,), tombstone=True))
    assert todo.former_gone(story.catalog) == {} and todo.departed == {}


def test_a_returned_member_gets_no_tombstone_errand():
    """The request would name the newest configuration, which that server may not have yet."""
    story, todo = Story(), errands()
    tablet = story.running("a", "b", "c")
    for uuid in "abc":
        story.apply(e.ReplicasSeen(uuid, (tablet,)))
    story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", index=4)))
    (errand,) = todo.begin(story.catalog, live("a", "b", "c"), 0.0)
    assert (errand.kind, errand.uuid) == ("tombstone", "c") and todo.still_wanted(errand, story.catalog)
    story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", "c", index=5)))
    assert not todo.still_wanted(errand, story.catalog)
