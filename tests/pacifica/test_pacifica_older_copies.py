"""A PacificA core whose directory is an older copy, and those that have what it lacks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ebla.actors.errors import IllegalState, Unavailable
from ebla.actors.messages.pacifica import NOTHING
from ebla.actors.messages.stream import LACKING, AppendReply, AppendRequest
from ebla.actors.replication.appointments import appointed, forced
from ebla.actors.tablet.engine.core import Pending, Sent
from ebla.actors.tablet.pacifica.state import INACTIVE, PRIMARY
from ebla.storage.logs.entries import WRITE, Entry
from tests.pacifica.group import Group
from tests.pacifica.test_pacifica_core import FIRST, D, core, leased, plans, renew


def entry(index: int, ballot: int) -> Entry:
    return Entry(index, ballot, WRITE, 0, b"", 0)


@pytest.mark.parametrize(("held", "settled", "leads"), [(5, 1, True), (4, 1, False), (5, 2, False)])
def test_a_voter_that_lacks_what_all_voters_held_leads_no_more(held: int, settled: int, leads: bool) -> None:
    """Its directory is an older copy: as a voter it held every committed entry."""
    made = core(leased(), me="b", ballots="1" * held, record=1, commit=1)
    made.receive(0.1, "a", AppendRequest(1, "a", held, 1, (), 5))
    order = replace(appointed(FIRST, "b"), settled=settled)
    if not leads:
        with pytest.raises(IllegalState, match="an older copy; appoint another voter"):
            made.appoint(0.2, order, 1)
        made.decline(0.2, order.index)
        assert made.awaits_ballot and made.term == 2
        assert made.apart is not None and made.apart.endswith("its directory is an older copy")
        return
    made.appoint(0.2, order, 1)
    assert made.view().role == PRIMARY


def test_a_member_takes_nothing_from_a_primary_that_lacks_what_it_has_committed() -> None:
    """The primary's directory is an older copy. The member goes on with another, and the primary leads no more."""
    lease = leased()
    complete = core(leased(), me="b", ballots="11111", record=1, commit=4)
    stale = core(lease, ballots="111", record=1, commit=2)
    stale.appoint(0.1, appointed(FIRST, "a"), 1)
    probe = plans(stale)["b"]
    agreed = complete.receive(0.2, "a", probe.request("a", ()))
    assert isinstance(agreed, Pending)
    stale.replied(0.2, "b", Sent(0.2, probe), complete.answer(agreed))
    plan = plans(stale)["b"]
    refused = complete.receive(0.2, "a", plan.request("a", [entry(4, 2)]))
    assert isinstance(refused, AppendReply) and (refused.success, refused.reason) == (False, LACKING)
    assert (complete.last_index, complete.log.term_at(4)) == (5, 1)
    stale.replied(0.2, "b", Sent(0.2, plan), refused)
    assert stale.standing == INACTIVE and stale.awaits_ballot
    with pytest.raises(IllegalState, match="lacks committed entries up to 4: its directory is an older copy"):
        stale.appoint(0.3, appointed(appointed(FIRST, "a"), "a"), 1)


def test_a_log_that_has_caught_up_is_no_older_copy_any_more() -> None:
    made = core(leased(), ballots="111", record=1, commit=2)
    made.receive(0.1, "b", AppendRequest(1, "b", 3, 1, (), 5))
    order = appointed(appointed(FIRST, "b"), "a")
    with pytest.raises(IllegalState, match="older copy"):
        made.require_no_older_copy(order)
    assert made.apart == "its log lacks committed entries up to 5: its directory is an older copy"
    made.receive(0.2, "b", AppendRequest(1, "b", 3, 1, (), 2))
    assert made.apart, "a primary that knows of fewer commits proves nothing"
    entries = (entry(4, 1), entry(5, 1))
    made.receive(0.2, "b", AppendRequest(1, "b", 3, 1, entries, 5))
    made.take()
    made.durable(5, 1)
    made.receive(0.3, "b", AppendRequest(1, "b", 5, 1, (), 5))
    assert made.apart is None
    made.require_no_older_copy(order)


def test_a_primary_that_was_refused_may_lead_once_it_has_what_it_lacked() -> None:
    """Its log was longer than what was committed, with entries of its own; the one that it has in the end is shorter."""
    group = Group("abc", min_members=2)
    group.run(2.0)
    old = group.nodes["a"]
    group.propose("a", b"kept")
    group.run(1.0)
    backup = old.back_up()
    group.propose("a", b"lacking")
    group.run(1.0)
    old.restore(backup, recent=True)
    for name in "bc":
        group.cut(name, "master")
    group.run(6.0)
    old.start()
    assert group.run(6.0, until=lambda: old.running().standing == PRIMARY)
    for _ in range(10):
        group.propose("a", b"never acknowledged")
    group.heal()
    group.run(20.0)
    assert {node.running().last_index for node in group.nodes.values()} == {len(group.oracle.committed)}
    assert old.running().apart is None and group.master.stored.peer("a").kind == "voter"  # type: ignore[union-attr]
    for name in "bc":
        group.nodes[name].crash(commits_kept=99)
    assert group.run(20.0, until=lambda: old.running().standing == PRIMARY)


def test_a_late_message_takes_nothing_back_of_what_an_older_copy_lacks() -> None:
    made = core(leased(), ballots="111", record=1, commit=2)
    made.receive(0.1, "b", AppendRequest(1, "b", 3, 1, (), 9))
    made.receive(0.2, "b", AppendRequest(1, "b", 3, 1, (), 4))
    with pytest.raises(IllegalState, match="lacks committed entries up to 9"):
        made.require_no_older_copy(appointed(appointed(FIRST, "b"), "a"))


def test_a_learner_that_lags_later_is_no_older_copy() -> None:
    made = core(leased(), me="b", ballots="111", record=1, commit=2)
    made.receive(0.1, "a", AppendRequest(1, "a", 3, 1, (), 5))
    with pytest.raises(IllegalState):
        made.require_no_older_copy(appointed(FIRST, "b"))
    made.receive(0.2, "a", AppendRequest(1, "a", 3, 1, (entry(4, 1), entry(5, 1)), 5))
    made.take()
    assert made.apart is None
    made.receive(0.3, "a", AppendRequest(1, "a", 5, 1, (), 9))
    assert made.apart is None


def test_a_log_that_was_too_short_may_lead_once_it_agrees_with_a_primary_to_that_index() -> None:
    """That primary has not said that it has committed as much, and ends."""
    made = core(leased(), me="b", ballots="111", record=1, commit=2)
    made.receive(0.1, "a", AppendRequest(1, "a", 3, 1, (), 5))
    made.receive(0.2, "c", AppendRequest(2, "c", 3, 1, (entry(4, 1), entry(5, 1)), 3))
    made.take()
    made.require_no_older_copy(appointed(appointed(FIRST, "c"), "b"))


def test_what_a_log_lacks_is_remembered_until_the_entries_are_on_its_disk() -> None:
    """The record of ballots may be on the disk before the entries, and the process may end in between."""
    made = core(leased(), me="b", ballots="111", record=1, commit=2, lacks=(0, 5))
    entries = (entry(4, 1), entry(5, 1), entry(6, 2))
    made.receive(0.1, "a", AppendRequest(2, "a", 3, 1, entries, 6))
    assert made.hard_state.lacks == (0, 5)
    made.take()
    made.durable(6, 2)
    made.receive(0.2, "a", AppendRequest(2, "a", 6, 2, (), 6))
    assert made.hard_state.lacks == NOTHING


@pytest.mark.parametrize(
    ("commit_index", "knows_us", "verified"), [(5, True, False), (6, True, True), (6, False, False)]
)
def test_a_log_is_verified_once_its_primary_has_committed_an_entry_of_its_own_ballot(
    commit_index: int, knows_us: bool, verified: bool
) -> None:
    """Until then a voter may refuse what the primary began with; and a message to an earlier process may be older than the log."""
    made = core(leased(), me="b", ballots="111", record=1, commit=2)
    entries = (entry(4, 1), entry(5, 1), entry(6, 2))
    made.receive(0.1, "a", AppendRequest(2, "a", 3, 1, entries, commit_index), knows_us=knows_us)
    assert made.verified == verified


def test_what_a_forced_configuration_gave_up_is_not_reported_as_lacking() -> None:
    made = core(leased(), me="b", ballots="111", record=1, commit=2)
    made.receive(0.1, "a", AppendRequest(1, "a", 3, 1, (), 9))
    with pytest.raises(IllegalState):
        made.require_no_older_copy(appointed(FIRST, "b"))
    assert made.apart is not None
    made.appoint(0.2, forced(FIRST, FIRST.peers[1]), 1)
    assert made.apart is None


def test_what_a_forced_configuration_gave_up_keeps_nobody_from_leading() -> None:
    """A primary has shown a learner that it lacks entries. An operator gives them up, and the learner's lease ends once."""
    lease = leased()
    made = core(lease, me="d", first=replace(FIRST, peers=(*FIRST.peers, D)), ballots="1111", record=1)
    made.receive(0.1, "a", AppendRequest(1, "a", 4, 1, (), 9))
    alone = forced(FIRST, D)
    made.appoint(0.2, alone, 1)
    made.take()
    now = lease.until
    made.tick(now)
    renew(lease, now)
    assert made.standing == INACTIVE
    made.appoint(now, appointed(alone, "d"), 2)
    assert made.standing == PRIMARY
    with pytest.raises(Unavailable, match="began with"):
        made.read_index(now)  # another forced configuration may follow, if no learner has this one
