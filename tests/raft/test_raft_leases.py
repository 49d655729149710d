"""Linearizable reads under a lease, and the graceful step-down that must not break it."""

from __future__ import annotations

import pytest

from ebla.actors.errors import InvalidArgument, NotLeader, Unavailable
from ebla.actors.messages.raft import TimeoutNow
from ebla.actors.messages.stream import AppendReply
from ebla.actors.tablet.engine.core import Sent
from ebla.storage.logs.entries import WRITE
from tests.raft.builders import BEAT, agree, core, leader, plans, proposed, refuse, replicating

LEASE = 0.8


def test_reads_wait_for_the_first_commit_of_the_term() -> None:  # 6.4
    made = leader(terms="11")
    for plan in plans(made.take()).values():
        agree(made, 10.0, plan)
    with pytest.raises(Unavailable, match="not yet committed in term 2"):
        made.read_index(10.0)
    for plan in plans(made.take()).values():
        agree(made, 10.0, plan)
    assert made.read_index(10.0) == 3


def test_a_lease_counts_from_the_time_of_the_answered_request() -> None:  # 6.4.1
    made = replicating(leader())
    made.tick(11.0)
    plan = plans(made.take())["b"]
    made.replied(11.5, "b", Sent(11.0, plan), AppendReply(1, True, 1, 1, 1, 1))
    assert made.read_index(11.0 + LEASE - 0.001) == 1
    with pytest.raises(Unavailable, match="no lease"):
        made.read_index(11.0 + LEASE)


def test_a_lease_needs_a_majority() -> None:
    made = replicating(leader("a", "abcde"))
    made.tick(11.0)
    sends = plans(made.take())
    agree(made, 11.0, sends["b"])
    with pytest.raises(Unavailable):
        made.read_index(11.0)
    agree(made, 11.0, sends["c"])
    assert made.read_index(11.0) == 1


def test_a_refused_append_of_the_same_term_extends_the_lease() -> None:
    made = replicating(leader())
    made.propose(11.0, WRITE, 1)
    refuse(made, 11.0, plans(made.take())["b"], hint=0)
    assert made.read_index(11.0 + LEASE / 2) == 1


def test_a_late_answer_does_not_shorten_the_lease() -> None:
    made = replicating(leader())
    made.tick(11.0)
    early = plans(made.take())["b"]
    made.tick(11.5)
    late = plans(made.take())["b"]
    made.replied(11.6, "b", Sent(11.5, late), AppendReply(1, True, 1, 1, 1, 1))
    made.replied(11.7, "b", Sent(11.0, early), AppendReply(1, True, 1, 1, 1, 1))
    assert made.read_index(11.5 + LEASE - 0.001) == 1


def test_a_single_voter_always_has_its_lease() -> None:
    made = leader("a", "a")
    made.durable(1, 1)
    assert made.read_index(1e6) == 1


def test_late_answers_do_not_renew_the_lease_of_a_leader_that_abdicated() -> None:
    made = replicating(leader())
    made.tick(10.0 + BEAT)
    sends = plans(made.take())
    made.step_down(10.0 + BEAT, "b")
    for plan in sends.values():
        agree(made, 10.0 + BEAT, plan)
    with pytest.raises(NotLeader):
        made.read_index(10.0 + BEAT)
    with pytest.raises(NotLeader):
        made.propose(10.0 + BEAT, WRITE, 1)


def test_a_leader_abdicates_when_a_lagging_successor_has_all_entries() -> None:
    made = replicating(leader())
    made.propose(10.0, WRITE, 1)
    plan = plans(made.take())["b"]
    made.step_down(10.0, "b")
    with pytest.raises(NotLeader, match="handing over to b"):
        made.propose(10.0, WRITE, 1)
    assert made.read_index(10.0) == 1, "the order was not sent, so the lease holds"
    made.durable(2, 1)
    assert made.role == "leader"
    agree(made, 10.0, plan, match=1)
    assert made.role == "leader"
    agree(made, 10.0, plan)
    assert made.role == "follower"
    assert made.take().sends[0].request == TimeoutNow(1, "a")


def test_without_a_name_the_voter_with_the_longest_log_is_chosen() -> None:
    made, sends = proposed(leader("a", "abc", others="d"))
    agree(made, 10.0, sends["d"])
    agree(made, 10.0, sends["c"])
    assert made.step_down(10.0, None) == "c"


def test_a_successor_must_be_another_voter() -> None:
    made = replicating(leader("a", "abc", others="d"))
    for wrong in ("a", "d", "z"):
        with pytest.raises(InvalidArgument, match="not another voter"):
            made.step_down(10.0, wrong)
    with pytest.raises(Unavailable, match="no other voter"):
        leader("a", "a").step_down(10.0, None)
    with pytest.raises(NotLeader):
        core(terms="1").step_down(10.0, None)
