"""The next step for a tablet, from its leader's report on the members: Kudu's 3-4-3 rules, case by case, and that they end.

A situation in one line: `a* b c! d<` are the leader a, the healthy b, the failed c and the pre-voter d. Marks: `*` leads,
`.` silent, `!` failed, `x` lost, `?` unknown, `~` to be replaced, `-` on a server that drains, `=` on one in maintenance, `<`
pre-voter, `o` non-voter for good.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.actors.master.rules.healing import (
    Action,
    Add,
    Evict,
    HandOver,
    Situation,
    Stay,
    can_lose,
    decide,
    settled,
)
from ebla.actors.replication.configuration import (
    NON_VOTER,
    VOTER,
    Configuration,
    Peer,
)
from ebla.actors.replication.health import (
    HEALTHY,
    LOST,
    SILENT,
    UNHEALTHY,
    UNKNOWN,
)
from ebla.actors.tablet.raft.membership import check_change

WORDS = {".": SILENT, "!": UNHEALTHY, "x": LOST, "?": UNKNOWN}


def address(uuid: str) -> str:
    return f"tablet-server/{uuid}"


def situation(members: str, replicas: int = 3) -> Situation:
    peers, health, leader = [], {}, ""
    draining, maintained = [], []
    for reported in members.split():
        uuid, marks = reported[0], reported[1:]
        member = NON_VOTER if "<" in marks or "o" in marks else VOTER
        peers.append(Peer(uuid, address(uuid), member, promote="<" in marks, replace="~" in marks))
        if "*" in marks:
            leader = uuid
        else:
            health[uuid] = next((WORDS[mark] for mark in marks if mark in WORDS), HEALTHY)
        if "-" in marks:
            draining.append(address(uuid))
        if "=" in marks:
            maintained.append(address(uuid))
    return Situation(Configuration(tuple(peers), 7), replicas, leader, health, draining, maintained)


def reported(action: Action | None) -> str:
    match action:
        case Add(peer):
            assert peer.member == NON_VOTER and peer.promote and not peer.replace
            return f"add {peer.uuid}"
        case Evict(peer, _):
            return f"evict {peer.uuid}"
        case HandOver(leader):
            return f"{leader} hands over"
        case Stay(peer):
            assert not peer.replace
            return f"stay {peer.uuid}"
    return "-"


def decided(members: str, replicas: int = 3, spare: str | None = "z") -> str:
    pick = None if spare is None else Peer(spare, address(spare))
    return reported(decide(situation(members, replicas), lambda: pick))


@pytest.mark.parametrize(
    ("members", "step"),
    [
        ("a* b c", "-"),
        ("a* b", "add z"),
        ("a*", "add z"),
        # A silent voter is first replaced, then removed.
        ("a* b c!", "add z"),
        ("a* b c! z<", "-"),
        ("a* b c! z", "evict c"),
        ("a* b c.", "add z"),
        ("a* b c. z", "evict c"),
        # It returns in time and stays.
        ("a* b c z<", "evict z"),
        ("a* b c z", "evict z"),
        # A lost voter may be removed at once, and its host is free again.
        ("a* b cx", "evict c"),
        ("a* b cx z<", "evict c"),
        ("a* bx", "evict b"),
        # The new member fails, and another is tried.
        ("a* b c! z<!", "evict z"),
        ("a* b c! z<x", "evict z"),
        ("a* b c z<!", "evict z"),
        # An unknown member is waited for, unless enough others are healthy.
        ("a* b c?", "-"),
        ("a* b? c?", "-"),
        ("a* b c d?", "evict d"),
        ("a* b c? z<", "-"),
        # Permanent non-voters stay while they are healthy.
        ("a* b c do", "-"),
        ("a* b c do!", "evict d"),
        ("a* b c do-", "evict d"),
    ],
)
def test_each_situation_has_its_next_step(members: str, step: str) -> None:
    assert decided(members) == step


@pytest.mark.parametrize(
    "members",
    [
        "a* b! c!",
        "a* bx cx",
        "a* b? c!",
        "a* bx c!",
        "a* b! c! z<!",
        "a* b! cx",
        "a* b! c! d! e",
    ],
)
def test_a_removal_needs_a_healthy_majority_of_the_rest(members: str) -> None:
    assert decided(members) == "-"


def test_when_one_of_two_lost_followers_returns_the_other_is_replaced() -> None:
    assert decided("a* b! c!") == "-"
    assert decided("a* b c!") == "add z"
    assert decided("a* b! cx") == "-", "one of the two remaining voters is silent"
    assert decided("a* b~ c! d!") == "evict d", "two of the three remaining voters are healthy"


def test_lost_members_are_removed_before_silent_ones() -> None:
    assert decided("a* b c! dx e") == "evict d"
    assert decided("a* b c dx eo!") == "evict d"
    assert decided("a* b c do! e<x") == "evict e"
    assert decided("a* b c! d~ e? f g", replicas=3) == "evict c"


@pytest.mark.parametrize(
    ("members", "step"),
    [
        ("a* b c~", "add z"),
        ("a* b c~ z<", "-"),
        ("a* b c~ z", "evict c"),
        ("a* b c~ z?", "-"),
        ("a* b c~ z!", "evict z"),
        ("a*~ b c", "add z"),
        ("a*~ b c z", "a hands over"),
        ("a~ b c z*", "evict a"),
        ("a*~ b~ c y z", "evict b"),
        ("a*~ b! c z", "evict b"),
        # The same holds for all replicas on a draining server.
        ("a* b c-", "add z"),
        ("a*- b c z", "a hands over"),
        ("a*- b- c x y", "evict b"),
        ("a* b c! z<-", "evict z"),
    ],
)
def test_a_move_adds_then_hands_over_then_evicts(members: str, step: str) -> None:
    assert decided(members) == step


@pytest.mark.parametrize(
    ("members", "step"),
    [
        ("a* b c=", "-"),
        ("a* b c.=", "-"),
        ("a*= b= c.=", "-"),
        ("a* b. c.=", "-"),
        # Failed and lost replicas there are replaced, and removals continue.
        ("a* b c!=", "add z"),
        ("a* b cx=", "evict c"),
        ("a* b c.=-", "add z"),
        ("a* b c.=- z", "evict c"),
        ("a* b c.=~", "add z"),
        ("a* b c=.~ z", "evict c"),
        # A repair that began earlier continues.
        ("a* b c.= z<", "-"),
        ("a* b c.= z", "evict c"),
        # It is not removed in favour of another.
        ("a* b.= c~ z", "-"),
        ("a* b c~ z=.<", "evict z"),
        # A non-voter would not return by itself.
        ("a* b c do.", "evict d"),
        ("a* b c do.=", "-"),
    ],
)
def test_only_silence_is_tolerated_in_maintenance(members: str, step: str) -> None:
    assert decided(members) == step


def test_another_failure_during_maintenance_is_repaired() -> None:
    steps = ["a* b c d. e.=", "a* b c d. e.= z<", "a* b c d. e.= z", "a* b c e.= z"]
    assert [decided(members, 5) for members in steps] == ["add z", "-", "evict d", "-"]


def test_other_members_are_removed_before_the_leader_hands_over() -> None:
    assert decided("a*- b- c x y z") == "evict b"
    assert decided("a*~ b~ c", 1) == "evict b"
    assert decided("a*~ c", 1) == "a hands over"


def test_a_single_replica_can_move() -> None:
    steps = ["a*~", "a*~ z<", "a*~ z", "a~ z*", "z*"]
    assert [decided(members, 1) for members in steps] == [
        "add z",
        "-",
        "a hands over",
        "evict a",
        "-",
    ]


def test_an_impossible_replace_flag_is_cleared() -> None:
    assert decided("a* b c~", spare=None) == "stay c"
    assert decided("a*~ b c", spare=None) == "stay a"
    assert decided("a* b c~ z<", spare=None) == "-", "a new member is being added"
    assert decided("a* b~ c~ z<", spare=None) == "-", "and may suffice"
    assert decided("a* b~ c~ d~", spare=None) == "stay b", "then there are enough voters again"
    assert decided("a* b c~! ", spare=None) == "-", "it failed and is removed anyway"
    assert decided("a* b c-", spare=None) == "-", "a drain lasts until the operator ends it"


def test_without_a_target_nothing_is_added_but_lost_members_are_removed() -> None:
    assert decided("a* b c!", spare=None) == "-"
    assert decided("a* b", spare=None) == "-"
    assert decided("a* b cx", spare=None) == "evict c"


def test_a_voter_is_dispensable_if_a_majority_of_the_others_is_healthy() -> None:
    for members, uuid, can in (
        ("a* b c", "c", True),
        ("a* b c", "a", False),  # it leads
        ("a* b c!", "c", True),
        ("a* b c!", "b", False),
        ("a* b? c", "c", False),
        ("a* b c d! e!", "c", False),
        ("a* b c d! e!", "d", True),
        ("a* b c", "z", False),
    ):
        assert can_lose(situation(members), uuid) == can, (members, uuid)


def test_a_tablet_is_settled_when_it_needs_no_decision() -> None:
    assert settled(situation("a* b c"))
    assert settled(situation("a* b c do"))
    for members in (
        "a* b",
        "a* b c?",
        "a* b c!",
        "a* b c~",
        "a* b c-",
        "a* b c d<",
        "a* b c d",
        "a* b c do-",
    ):
        assert not settled(situation(members)), members


# -- termination ---------------------------------------------------------------------------------------------


class Room:
    """Servers, live or dead, and one tablet; its leader sees everything at once."""

    def __init__(
        self, members: list[tuple[str, str]], free: int, marks: dict[int, str], replicas: int
    ) -> None:
        peers, self.words, self.draining = [], {}, []
        for number, (role, word) in enumerate(members):
            uuid = f"m{number}"
            voter = role == "voter"
            mark = marks.get(number, "")
            peers.append(
                Peer(
                    uuid,
                    address(uuid),
                    VOTER if voter else NON_VOTER,
                    promote=role == "pre",
                    replace=voter and mark == "replace",
                )
            )
            self.words[uuid] = word
            if mark == "draining":
                self.draining.append(address(uuid))
        self.configuration = Configuration(tuple(peers), 0)
        self.replicas = replicas
        self.free = [f"s{number}" for number in range(free)]
        self.leader = next(p.uuid for p in peers if p.member == VOTER and self.words[p.uuid] == HEALTHY)

    def situation(self) -> Situation:
        health = {uuid: word for uuid, word in self.words.items() if uuid != self.leader}
        return Situation(self.configuration, self.replicas, self.leader, health, self.draining)

    def pick(self) -> Peer | None:
        members = [peer.uuid for peer in self.configuration.peers]
        free = [uuid for uuid in self.free if uuid not in members]
        return Peer(free[0], address(free[0])) if free else None

    def healthy_voters(self) -> int:
        return sum(self.words[peer.uuid] == HEALTHY for peer in self.configuration.voters())

    def carry_out(self, action: Action) -> None:
        peers = list(self.configuration.peers)
        match action:
            case Add(peer):
                peers.append(peer)
                self.words[peer.uuid] = HEALTHY
            case Evict(peer, _):
                assert peer.uuid != self.leader
                peers = [each for each in peers if each.uuid != peer.uuid]
            case Stay(peer):
                peers = [peer if each.uuid == peer.uuid else each for each in peers]
            case HandOver(leader):
                assert leader == self.leader
                voters = [p.uuid for p in self.configuration.voters() if self.words[p.uuid] == HEALTHY]
                self.leader = [uuid for uuid in voters if uuid != leader][-1]
                return
        self._commit(peers)

    def heal(self, eager: bool = False) -> None:
        """Carry out all steps. `eager`: pre-voters are promoted before the next step."""
        for _ in range(60):
            if eager and self.promote():
                continue
            action = decide(self.situation(), self.pick)
            if action is not None:
                self.carry_out(action)
            elif not self.promote():
                return
        raise AssertionError("it does not end")

    def promote(self) -> bool:
        """As leaders do when a pre-voter has caught up."""
        for peer in self.configuration.peers:
            if peer.promote and self.words[peer.uuid] == HEALTHY:
                voter = Peer(peer.uuid, peer.address)
                self._commit([voter if each is peer else each for each in self.configuration.peers])
                return True
        return False

    def _commit(self, peers: list[Peer]) -> None:
        proposed = Configuration(tuple(peers), self.configuration.index)
        check_change(self.configuration, proposed, self.leader)
        self.configuration = Configuration(tuple(peers), self.configuration.index + 1)
        assert self.healthy_voters() >= self.configuration.majority, "a healthy majority was given away"


WELL = st.sampled_from([HEALTHY] * 3 + [SILENT, UNHEALTHY, LOST])
ROLES = st.sampled_from(["voter"] * 4 + ["pre"])
MARKS = st.dictionaries(st.integers(0, 6), st.sampled_from(["replace", "draining"]), max_size=3)


@settings(max_examples=500, deadline=None)
@given(
    members=st.lists(st.tuples(ROLES, WELL), min_size=1, max_size=7),
    marks=MARKS,
    replicas=st.sampled_from([1, 3, 5]),
    eager=st.booleans(),
)
def test_every_state_with_a_healthy_majority_heals_completely(
    members: list[tuple[str, str]], marks: dict[int, str], replicas: int, eager: bool
) -> None:
    voters = [word for role, word in members if role == "voter"]
    if 2 * voters.count(HEALTHY) <= len(voters):
        return
    room = Room(members, 12, marks, replicas)
    room.heal(eager)
    assert settled(room.situation()), room.configuration
    assert len(room.configuration.peers) == replicas
    assert room.healthy_voters() == replicas


@settings(max_examples=300, deadline=None)
@given(members=st.lists(st.tuples(ROLES, WELL), min_size=1, max_size=5), marks=MARKS, free=st.integers(0, 1))
def test_healing_with_too_few_servers_ends_and_wastes_no_healthy_replica(
    members: list[tuple[str, str]], marks: dict[int, str], free: int
) -> None:
    voters = [word for role, word in members if role == "voter"]
    if 2 * voters.count(HEALTHY) <= len(voters):
        return
    room = Room(members, free, marks, 3)
    before = min(3, room.healthy_voters())
    room.heal()
    assert room.healthy_voters() >= before
