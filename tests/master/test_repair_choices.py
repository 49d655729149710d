"""The server of a new replica, and the end of a replace flag, follow from catalog, servers and leaders' reports."""

from __future__ import annotations

import random
from collections import Counter

from msgspec.structs import replace

from ebla.actors.master.catalog import edits as e
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.master.errands.errands import REPAIR, Errands
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.repair import repairs
from ebla.actors.master.repair.repairs import Repair, Repairs
from ebla.actors.master.rules.healing import Add, Stay
from ebla.actors.replication.configuration import NON_VOTER, Configuration, Peer
from tests.master.builders import Story, configuration, heartbeat, replica, report

OPTIONS = MasterOptions(unresponsive_s=10.0)


class Scene:
    def __init__(self, *uuids: str, coming_max: int = OPTIONS.replicas_coming_max) -> None:
        self.story, self.views = Story(), Views()
        self.servers = Servers(unresponsive_s=1e9)
        for uuid in uuids:
            self.servers.heartbeat(heartbeat(uuid, register=True), 0.0)
        options = replace(OPTIONS, replicas_coming_max=coming_max)
        self.repairs = Repairs(options, random.Random(1), self.views)
        self.repairs.begins_at = 0.0

    def tablet(self, members: Configuration, health: dict[str, str], name: str = "flights") -> str:
        """Reports of the first member, which leads."""
        tablet = self.story.running(*(peer.uuid for peer in members.peers), name=name)
        self.report(tablet, members, health)
        return tablet

    def report(self, tablet: str, members: Configuration, health: dict[str, str]) -> None:
        reported = replica(tablet, members, members.peers[0].uuid, role="leader", health=health)
        self.story.apply(e.ConfigurationChanged(tablet, members))
        self.views.merge(self.story.catalog, members.peers[0].uuid, report(reported))

    def decide(self, tablet: str, now: float = 0.0) -> Repair | None:
        return self.repairs.decide(self.story.catalog, self.servers, tablet, now)

    def chosen(self, tablet: str, now: float = 0.0) -> str:
        repair = self.decide(tablet, now)
        assert repair is not None and isinstance(repair.action, Add)
        return repair.action.peer.uuid


FAILED = {"b": "healthy", "c": "unhealthy"}


def test_a_server_that_never_had_the_tablet_is_preferred():
    scene = Scene("a", "b", "c", "d", "e")
    tablet = scene.tablet(configuration("a", "b", "c", index=1), FAILED)
    scene.story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", "c", "d", index=2)))
    scene.story.apply(e.ConfigurationChanged(tablet, configuration("a", "b", "c", index=3)))
    reported = replica(tablet, configuration("a", "b", "c", index=3), "a", role="leader", health=FAILED)
    scene.views.merge(scene.story.catalog, "a", report(reported))
    for n in range(3):
        scene.story.running("e", name=f"more {n}")  # so that d has fewer replicas
    assert scene.chosen(tablet) == "e"
    scene.story.apply(e.FormerMembersGone("d", (tablet,), tombstone=True))
    assert scene.chosen(tablet) == "e"
    scene.story.apply(e.ServerDraining("tablet-server/e", True))
    assert scene.chosen(tablet) == "d"


def test_an_unsuitable_server_gets_no_replica():
    scene = Scene("a", "b", "c", "d")
    tablet = scene.tablet(configuration("a", "b", "c", index=1), FAILED)
    assert scene.chosen(tablet) == "d"
    scene.story.apply(e.ServerDraining("tablet-server/d", True))
    assert scene.decide(tablet) is None
    scene.story.apply(e.ServerDraining("tablet-server/d", False))
    assert scene.chosen(tablet) == "d"
    scene.servers.heartbeat(heartbeat("d", takes_data=False), 0.0)
    assert scene.decide(tablet) is None and not scene.repairs.has_room(
        scene.story.catalog, scene.servers, tablet, 0.0
    )
    scene.servers = Servers(unresponsive_s=1.0)
    scene.servers.heartbeat(heartbeat("d", register=True), 0.0)
    assert scene.decide(tablet, now=1.5) is None


def test_concurrent_choices_spread_evenly_and_repeat_identically():
    scene = Scene("a", "b", "c", "d", "e", "f")
    tablets = [
        scene.tablet(configuration("a", "b", "c", index=1), FAILED, name=f"table {n}") for n in range(12)
    ]
    chosen = [scene.chosen(tablet) for tablet in tablets]
    assert Counter(chosen) == {"d": 4, "e": 4, "f": 4}
    assert [scene.chosen(tablet) for tablet in reversed(tablets)] == chosen[::-1]


def test_a_replace_flag_is_cleared_only_after_a_while_without_targets():
    scene = Scene("a", "b", "c")
    peers = configuration("a", "b", "c").peers
    marked = Configuration((*peers[:2], Peer("c", "tablet-server/c", replace=True)), 1)
    tablet = scene.tablet(marked, {"b": "healthy", "c": "healthy"})
    assert scene.decide(tablet, now=100.0) is None
    assert scene.decide(tablet, now=109.0) is None
    scene.servers.heartbeat(heartbeat("d", register=True), 109.5)
    repair = scene.decide(tablet, now=109.5)
    assert repair is not None and isinstance(repair.action, Add), "it was silent only for a moment"
    scene.story.apply(e.ServerDraining("tablet-server/d", True))
    assert scene.decide(tablet, now=110.0) is None
    repair = scene.decide(tablet, now=120.0)
    assert repair is not None and repair.action == Stay(peers[2])


def _coming(leader: str, newcomer: str) -> Configuration:
    """The newcomer is on its way into the place of c."""
    peers = configuration(leader, "b", "c").peers
    return Configuration((*peers, Peer(newcomer, f"tablet-server/{newcomer}", NON_VOTER, promote=True)), 2)


def test_a_server_gets_a_bounded_number_of_replicas_at_a_time():
    scene = Scene("a", "b", "c", "d", coming_max=2)
    tablets = [scene.tablet(configuration("a", "b", "c", index=1), FAILED, name=f"t{n}") for n in range(4)]
    assert [scene.chosen(tablet) for tablet in tablets[:2]] == ["d", "d"]
    assert scene.decide(tablets[2]) is None and scene.decide(tablets[3], now=5.0) is None
    assert [scene.chosen(tablet) for tablet in tablets[:2]] == ["d", "d"], "a choice is kept"
    for tablet, health in zip(tablets[:2], ("healthy", "unhealthy"), strict=True):
        scene.report(tablet, _coming("a", "d"), {**FAILED, "d": health})
    assert scene.decide(tablets[2], now=6.0) is not None, "one of them will not arrive"
    assert scene.decide(tablets[3], now=6.0) is None
    scene.report(tablets[0], configuration("a", "b", "d", index=3), {"b": "healthy", "d": "healthy"})
    assert scene.decide(tablets[3], now=6.1) is None, "they are counted from time to time"
    assert scene.decide(tablets[3], now=7.0) is not None


def test_a_choice_that_a_leader_does_not_carry_out_keeps_no_other_replica_from_its_server():
    scene = Scene("a", "b", "c", "d", coming_max=1)
    tablets = [scene.tablet(configuration("a", "b", "c", index=1), FAILED, name=f"t{n}") for n in range(2)]
    assert scene.chosen(tablets[0]) == "d"
    assert scene.decide(tablets[1], now=OPTIONS.rpc_timeout_s - 1.0) is None
    assert scene.chosen(tablets[1], now=OPTIONS.rpc_timeout_s + 1.0) == "d"


def test_moves_leave_places_to_tablets_that_have_lost_a_replica():
    scene = Scene("a", "b", "c", "d", coming_max=4)
    peers = configuration("a", "b", "c").peers
    marked = Configuration((*peers[:2], Peer("c", "tablet-server/c", replace=True)), 1)
    well = {"b": "healthy", "c": "healthy"}
    moves = [scene.tablet(marked, well, name=f"move {n}") for n in range(3)]
    assert [scene.chosen(tablet) for tablet in moves[:2]] == ["d", "d"]
    assert scene.decide(moves[2]) is None
    short = [scene.tablet(configuration("a", "b", "c", index=1), FAILED, name=f"t{n}") for n in range(3)]
    assert [scene.chosen(tablet) for tablet in short[:2]] == ["d", "d"]
    assert scene.decide(short[2]) is None


def test_a_tablet_whose_leader_cannot_be_called_takes_no_place():
    scene = Scene("a", "b", "c", "d", "e", coming_max=1)
    members = configuration("e", "b", "c", index=1)
    stuck = scene.tablet(members, FAILED, name="led by e")
    tablet = scene.tablet(configuration("a", "b", "c", index=1), FAILED)
    for uuid, held in (("a", (tablet,)), ("b", (stuck, tablet)), ("c", (stuck, tablet)), ("e", (stuck,))):
        scene.story.apply(e.ReplicasSeen(uuid, held))
    scene.servers = Servers(unresponsive_s=5.0)
    for uuid in "abcd":
        scene.servers.heartbeat(heartbeat(uuid, register=True), 10.0)
    errands = Errands(OPTIONS, random.Random(1), scene.views, scene.repairs)
    begun = errands.begin(scene.story.catalog, scene.servers, 10.0)
    assert [(errand.kind, errand.tablet) for errand in begun] == [(REPAIR, tablet)]


def test_a_tablet_whose_leader_has_enough_calls_under_way_takes_no_place():
    scene = Scene("a", "b", "c", "d", coming_max=2)
    busy = [scene.tablet(configuration("a", "b", "c", index=1), FAILED, name=f"t{n}") for n in range(2)]
    tablet = scene.tablet(configuration("b", "a", "c", index=1), {"a": "healthy", "c": "unhealthy"})
    for each in (*busy, tablet):
        for uuid in "abc":
            scene.story.apply(e.ReplicasSeen(uuid, (each,)))
    options = replace(OPTIONS, rpcs_per_server_max=1)
    errands = Errands(options, random.Random(1), scene.views, scene.repairs)
    begun = errands.begin(scene.story.catalog, scene.servers, 0.0)
    assert [(errand.kind, errand.tablet) for errand in begun] == [(REPAIR, busy[0]), (REPAIR, tablet)]


def test_a_replica_without_a_live_leader_keeps_no_other_from_its_server():
    scene = Scene("a", "b", "c", "d", "e", coming_max=1)
    stuck = scene.tablet(configuration("e", "b", "c", index=1), FAILED, name="stuck")
    scene.report(stuck, _coming("e", "d"), {**FAILED, "d": "healthy"})
    scene.story.apply(e.ServerDraining("tablet-server/e", True))
    tablet = scene.tablet(configuration("a", "b", "c", index=1), FAILED)
    assert scene.decide(tablet) is None
    scene.servers = Servers(unresponsive_s=5.0)
    for uuid in "abcd":
        scene.servers.heartbeat(heartbeat(uuid, register=True), 10.0)
    assert scene.chosen(tablet, now=10.0) == "d"


def test_a_replace_flag_is_kept_while_the_only_target_gets_other_replicas():
    scene = Scene("a", "b", "c", "d", coming_max=1)
    other = scene.tablet(configuration("a", "b", "c", index=1), FAILED)
    scene.report(other, _coming("a", "d"), {**FAILED, "d": "healthy"})
    peers = configuration("a", "b", "c").peers
    marked = Configuration((*peers[:2], Peer("c", "tablet-server/c", replace=True)), 1)
    tablet = scene.tablet(marked, {"b": "healthy", "c": "healthy"}, name="marked")
    assert [scene.decide(tablet, now) for now in (0.0, 20.0, 40.0)] == [None] * 3


def test_a_tablet_whose_writes_wait_gets_a_replica_beyond_the_bound(monkeypatch):
    scene = Scene("a", "b", "c", "d", coming_max=1)
    other, tablet = [
        scene.tablet(configuration("a", "b", "c", index=1), FAILED, name=f"t{n}") for n in range(2)
    ]
    assert scene.chosen(other) == "d" and scene.decide(tablet) is None
    monkeypatch.setattr(Repairs, "_is_urgent", lambda *_: True)
    assert scene.chosen(tablet) == "d"


def test_tablets_without_news_are_checked_at_a_bounded_rate(monkeypatch):
    monkeypatch.setattr(repairs, "TURNS_PER_S", 4)
    scene = Scene("a", "b", "c")
    tablets = [scene.tablet(configuration("a", "b", "c", index=1), FAILED, name=f"t{n}") for n in range(7)]
    assert list(scene.repairs.unsettled(0.0)) == tablets, "all are news"
    looks = [list(scene.repairs.unsettled(now)) for now in (1.0, 1.1, 1.3, 1.6, 2.6)]
    assert sum(map(len, looks)) >= len(tablets) and [t for look in looks for t in look][:7] == tablets
    assert all(len(look) <= 3 for look in looks), "as many as are due since half a second ago"


def test_a_bounded_number_of_tablets_is_checked_per_pass_in_turn(monkeypatch):
    monkeypatch.setattr(repairs, "CHECKS_MAX", 3)
    scene = Scene("a", "b", "c")
    tablets = [scene.tablet(configuration("a", "b", "c", index=1), FAILED, name=f"t{n}") for n in range(7)]
    looks = [list(scene.repairs.unsettled(0.0)) for _ in range(4)]
    assert looks == [tablets[:3], tablets[3:6], tablets[6:], []], "as news, and from a moment ago"
    reported = replica(tablets[5], configuration("a", "b", "c", index=1), "a", role="leader", health=FAILED)
    scene.views.merge(scene.story.catalog, "a", report(reported))
    assert list(scene.repairs.unsettled(0.2)) == [tablets[5]], (
        "except the one with a new report of its leader"
    )
    looks = [list(scene.repairs.unsettled(1.0)) for _ in range(4)]
    assert looks == [tablets[:3], tablets[3:6], tablets[6:], []], "in turn"


def test_a_new_master_decides_nothing_before_servers_can_report():
    scene = Scene("a", "b", "c")
    tablet = scene.tablet(configuration("a", "b", "c", index=1), FAILED)
    scene.story.apply(e.ServerDraining("tablet-server/b", True))
    scene.repairs.begins_at = 5.0
    assert list(scene.repairs.unsettled(4.9)) == [] and list(scene.repairs.unsettled(5.0)) == [tablet]
    catalog = scene.story.catalog
    assert scene.repairs.blocked(catalog, scene.servers, "tablet-server/b", 4.9) == 0
    assert scene.repairs.blocked(catalog, scene.servers, "tablet-server/b", 5.0) == 1


def test_tablets_with_silent_leaders_are_counted():
    scene = Scene("a", "b", "c")
    scene.tablet(configuration("a", "b", "c", index=1), FAILED)
    catalog, servers = scene.story.catalog, Servers(unresponsive_s=1.0)
    servers.heartbeat(heartbeat("a", register=True), 0.0)
    assert scene.repairs.leaderless(catalog, servers, "tablet-server/b", 0.5) == 0
    assert scene.repairs.leaderless(catalog, servers, "tablet-server/b", 1.5) == 1
    scene.story.running("b", "c", name="no report of its leader")
    servers.heartbeat(heartbeat("a"), 1.6)
    assert scene.repairs.leaderless(catalog, servers, "tablet-server/b", 1.7) == 1
    assert scene.repairs.leaderless(catalog, servers, "tablet-server/a", 1.7) == 0
