"""Placement is even and spreads over hosts (scenario S38); tablets that do not start in time are replaced."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog import records
from ebla.actors.master.cluster.assignment import EDITS_MAX, Assignment, Candidate, Load
from tests.master.builders import Story


def candidates(count: int, per_host: int = 1) -> list[Candidate]:
    return [
        Candidate(f"server {n:02}", f"tablet-server/{n}", f"host {n // per_host:02}") for n in range(count)
    ]


def place(
    story: Story, servers: list[Candidate], assignment: Assignment | None = None, now: float = 0.0
) -> int:
    """Plan and apply until nothing changes; returns the number of tablets without servers."""
    assignment = assignment or Assignment(30.0, random.Random(1))
    while True:
        plan = assignment.plan(story.catalog, servers, now, 1)
        story.apply(*plan.edits)
        if not plan.more:
            return plan.unplaced


def members(story: Story, tablet: str) -> list[str]:
    return [peer.uuid for peer in story.catalog.tablets[tablet].configuration.peers]


@pytest.mark.parametrize("servers", [4, 5, 6, 7])
@pytest.mark.parametrize("burst", [True, False])
def test_ten_tables_of_sixteen_tablets_are_spread_evenly(servers: int, burst: bool):
    story = Story(servers)
    for number in range(10):
        story.create(f"table {number}", buckets=16)
        if not burst:
            place(story, candidates(servers))
    place(story, candidates(servers))
    load = Load(story.catalog)
    assert sum(load.total.values()) == 10 * 16 * 3 and len(load.total) == servers
    assert max(load.total.values()) - min(load.total.values()) <= 3
    for table in story.catalog.tables:
        of_table = load.of_table(table)
        assert max(of_table.values()) - min(of_table.values()) <= 1
    met: dict[str, set[str]] = {}
    for tablet in story.catalog.tablets:
        for uuid in members(story, tablet):
            met.setdefault(uuid, set()).update(members(story, tablet))
    assert sum(len(peers) - 1 for peers in met.values()) / servers >= servers / 2


@settings(max_examples=100, deadline=None)
@given(
    servers=st.integers(1, 12),
    per_host=st.integers(1, 3),
    replicas=st.sampled_from([1, 3, 5, 7]),
    buckets=st.integers(1, 20),
    seed=st.integers(0, 1000),
)
def test_replicas_are_on_distinct_hosts_or_the_tablet_waits(
    servers: int, per_host: int, replicas: int, buckets: int, seed: int
):
    story, available = Story(seed), candidates(servers, per_host)
    tablets = story.create(buckets=buckets, replicas=replicas)
    unplaced = place(story, available, Assignment(30.0, random.Random(seed)))
    host_of = {candidate.uuid: candidate.host for candidate in available}
    if replicas > len(set(host_of.values())):
        assert unplaced == buckets and len(story.catalog.preparing) == buckets
        return
    assert unplaced == 0
    for tablet in tablets:
        assert len({host_of[uuid] for uuid in members(story, tablet)}) == replicas


def test_a_table_without_enough_servers_does_not_delay_others():
    story = Story()
    (five,) = story.create("five", replicas=5)
    (three,) = story.create("three", replicas=3)
    assert place(story, candidates(3)) == 1
    assert story.catalog.tablets[five].state == records.PREPARING
    assert story.catalog.tablets[three].state == records.CREATING
    assert place(story, candidates(5)) == 0
    assert story.catalog.tablets[five].state == records.CREATING


def test_a_late_tablet_is_replaced_on_other_servers_in_one_transaction():
    story, assignment = Story(), Assignment(30.0, random.Random(1))
    (tablet,) = story.create()
    place(story, candidates(3), assignment, now=100.0)
    silent = members(story, tablet)[0]
    for uuid in members(story, tablet)[1:]:
        story.apply(e.ReplicasSeen(uuid, (tablet,)))
    assert (
        assignment.plan(story.catalog, candidates(4), 100.0, 7).edits == []
    )  # first seen creating: the clock starts
    assert not assignment.work(story.catalog, 130.0)
    assert assignment.work(story.catalog, 130.1)
    plan = assignment.plan(story.catalog, candidates(4), 130.1, 7)
    replaced, assigned = plan.edits
    assert replaced == e.TabletReplaced(tablet, assigned.tablet, 7)
    story.apply(*plan.edits)
    assert story.catalog.tablets[tablet].state == records.REPLACED
    assert silent not in members(story, assigned.tablet)
    assert story.catalog.named("flights").tablets == (assigned.tablet,)


def test_a_running_tablet_is_never_replaced():
    story, assignment = Story(), Assignment(30.0, random.Random(1))
    story.running("a", "b", "c")
    for now in (0.0, 31.0, 1e6):
        assert not assignment.work(story.catalog, now)


def test_a_big_table_is_placed_in_several_transactions():
    story, assignment = Story(), Assignment(30.0, random.Random(1))
    story.create("big", buckets=EDITS_MAX + 10)
    plan = assignment.plan(story.catalog, candidates(3), 0.0, 1)
    assert plan.more and len(plan.edits) == EDITS_MAX
    assert place(story, candidates(3), assignment) == 0
    assert not story.catalog.preparing
