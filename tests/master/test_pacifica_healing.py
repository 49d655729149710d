"""The rules of healing for PacificA tablets: the primary and the master need no majority, and silent learners keep their places."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ebla.actors.master.rules.healing import Situation, decide, is_whole, writes_wait
from ebla.actors.replication.configuration import Peer
from tests.master.test_healing import address, reported, situation


def pacifica(members: str, least: int, *, replicas: int = 3, urgent: bool = False) -> Situation:
    found = situation(members, replicas)
    known = replace(found.configuration, primary=found.leader, min_members=least)
    return found._replace(configuration=known, urgent=urgent)


@pytest.mark.parametrize(
    ("members", "least", "urgent", "step"),
    [
        ("a* b c", 2, False, None),
        ("a* b c?<", 2, False, None),  # a secondary that does not answer; it may return
        ("a* b c.<", 2, False, "add z"),  # c keeps its data and its place until z votes
        ("a* b c.< d<", 2, False, None),
        ("a* b c.< d", 2, False, "evict c"),
        ("a* b c< d<", 2, False, None),  # c is back
        ("a* b c d<", 2, False, "evict d"),
        ("a* b c.< d.<", 2, False, "evict d"),  # the newcomer failed; then another one is added
        ("a* b.< c.< d", 2, False, "evict c"),  # one member more than wanted is the most
        ("a* b c!<", 2, False, "evict c"),  # it needs a whole copy anyway
        ("a* b c.-<", 2, False, "evict c"),
        ("a* b c.=<", 2, False, None),  # in maintenance
        ("a* b", 2, False, "add z"),
        ("a* b.", 2, False, "add z"),  # no majority is needed
        ("a* b?", 2, False, "add z"),
        ("a* b? c?<", 2, False, None),
        ("a* b? c?<", 2, True, "add z"),  # writes wait for b
        ("a* b? c?< d?<", 2, True, None),  # one more than wanted is coming
        ("a* b? c?< d.<", 2, True, "evict d"),
        ("a* bx c", 2, False, "evict b"),
        ("a* bx", 2, False, "add z"),  # b stays until another has caught up
        ("a* b c d", 2, False, "evict d"),
        ("a* b c d!", 4, False, None),  # the minimum stays
        ("a*- b c d", 2, False, "a hands over"),
        ("a* b~ c d", 3, False, "evict b"),
    ],
)
def test_the_primary_of_a_pacifica_tablet_changes_members_without_a_majority(
    members: str, least: int, urgent: bool, step: str | None
):
    action = decide(pacifica(members, least, urgent=urgent), lambda: Peer("z", address("z")))
    assert (None if action is None else reported(action)) == step


def test_a_pacifica_tablet_is_whole_if_as_many_voters_as_wanted_work_and_stay():
    for members, whole in (("a* b c", True), ("a* b c d.<", True), ("a* b c<", False), ("a* b c-", False)):
        assert is_whole(pacifica(members, 2)) == whole, members


def test_writes_of_a_pacifica_tablet_wait_if_fewer_voters_than_the_minimum_are_healthy():
    for members, waits in (("a* b c", False), ("a* b?", True), ("a* b c?", False), ("a* b. c?<", True)):
        assert writes_wait(pacifica(members, 2)) == waits, members
        assert not writes_wait(situation(members))
