"""Leaders, event by event: what they send, what they commit, and when they stop."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.actors.errors import NotLeader
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.engine.core import Sent
from ebla.actors.tablet.engine.log_index import ENTRY_OVERHEAD_BYTES
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.tablet.raft.leadership import majority_least
from ebla.storage.logs.entries import WRITE
from tests.raft.builders import BEAT, MIN, agree, append, core, leader, plans, proposed, refuse, replicating

# -- commits


def test_an_entry_is_committed_when_a_majority_has_it_on_disk() -> None:  # 5.3
    made = replicating(leader())
    assert made.propose(10.0, WRITE, 1) == (2, 1)
    sends = plans(made.take())
    agree(made, 10.0, sends["b"])
    assert made.commit_index == 1, "one disk of three: the leader's own write is still under way"
    made.durable(2, 1)
    assert made.commit_index == 2


def test_a_majority_of_followers_commits_without_the_leaders_disk() -> None:  # 10.2.1
    made, sends = proposed()
    agree(made, 10.0, sends["b"])
    agree(made, 10.0, sends["c"])
    assert (made.commit_index, made.durable_index) == (2, 1)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=9))
def test_the_commit_index_is_the_highest_that_a_majority_holds(held: list[int]) -> None:
    counted = [index for index in range(13) if 2 * sum(have >= index for have in held) > len(held)]
    assert majority_least(held, len(held) // 2 + 1) == max(counted)


def test_the_least_match_is_the_index_replicated_everywhere() -> None:
    made = replicating(leader("a", "abc", others="d"))
    made.propose(10.0, WRITE, 1)
    made.durable(2, 1)
    sends = plans(made.take())
    for peer in "bc":
        agree(made, 10.0, sends[peer])
    assert (made.commit_index, made.all_replicated_index) == (2, 1)
    agree(made, 10.0, sends["d"])
    assert made.all_replicated_index == 2
    made.tick(10.0 + BEAT)
    assert plans(made.take())["b"].all_replicated == 2


# -- messages


def test_first_contact_carries_no_entries() -> None:
    made = leader(terms="11")
    sends = plans(made.take())
    assert list(sends) == ["b", "c"]
    first = sends["b"]
    assert (first.previous_index, first.previous_term, first.first, first.last) == (2, 1, 3, 2)
    assert plans(made.take()) == {}, "one message at a time"
    agree(made, 10.0, first)
    assert (plans(made.take())["b"].first, made.progress["b"].state) == (3, "replicate")


def test_messages_are_pipelined_up_to_a_limit() -> None:
    made = replicating(leader(limits=RaftLimits(inflight_max=2)))
    sent = []
    for _ in range(4):
        made.propose(10.0, WRITE, 1)
        sent.append(plans(made.take()).get("b"))
    assert [plan and (plan.first, plan.last) for plan in sent] == [(2, 2), (3, 3), None, None]
    assert sent[0] is not None
    agree(made, 10.0, sent[0])
    plan = plans(made.take())["b"]
    assert (plan.first, plan.last) == (4, 5)


def test_bytes_under_way_are_limited() -> None:
    made = replicating(leader(limits=RaftLimits(inflight_bytes_max=150)))
    for _ in range(4):
        made.propose(10.0, WRITE, 100 - ENTRY_OVERHEAD_BYTES)
        made.take()
    assert made.progress["b"].inflight_bytes == 200


def test_a_message_is_filled_up_to_its_limit_and_a_larger_entry_is_sent_alone() -> None:
    made = replicating(leader(limits=RaftLimits(append_bytes_max=300)))
    for size in (100, 100, 100, 500, 100):
        made.propose(10.0, WRITE, size - ENTRY_OVERHEAD_BYTES)
    assert made.next_wake(10.0) == 10.0
    sent = [plans(made.take())["b"] for _ in range(3)]
    assert [(plan.first, plan.last) for plan in sent] == [(2, 4), (5, 5), (6, 6)]


def test_many_proposals_make_one_message_if_sends_are_taken_later() -> None:
    made = replicating(leader())
    for _ in range(5):
        made.propose(10.0, WRITE, 1)
        assert made.take(sends=False).sends == ()
    plan = plans(made.take())["b"]
    assert (plan.first, plan.last) == (2, 6)


def test_a_heartbeat_refers_to_an_entry_that_the_peer_has() -> None:
    made = replicating(leader())
    assert plans(made.take()) == {}
    assert made.next_wake(10.0) == 10.0 + BEAT
    made.tick(10.0 + BEAT)
    plan = plans(made.take())["b"]
    assert (plan.previous_index, plan.last, plan.commit_index) == (1, 1, 1)


def test_heartbeats_are_sent_while_entries_wait_for_a_slow_disk() -> None:
    made = replicating(leader(limits=RaftLimits(inflight_max=1)))
    made.propose(10.0, WRITE, 1)
    first = plans(made.take())["b"]
    made.propose(10.0, WRITE, 1)
    made.tick(10.0 + BEAT)
    beat = plans(made.take())["b"]
    assert beat.last < beat.first and beat.previous_index == 1
    agree(made, 10.0 + BEAT, beat)
    assert (made.progress["b"].match, made.progress["b"].state) == (1, "replicate")
    agree(made, 10.0 + BEAT, first)
    assert made.progress["b"].match == 2


def test_entries_without_an_answer_do_not_replace_heartbeats() -> None:
    """With a write every 0.1 s and disks slower than a lease, the lease would otherwise end under load."""
    made = replicating(leader(limits=RaftLimits(inflight_max=100)))
    for tenth in range(20):
        now = 10.0 + tenth / 10
        made.propose(now, WRITE, 1)
        made.take()
        made.tick(now + 0.05)
        for plan in plans(made.take()).values():
            if plan.last < plan.first:
                agree(made, now + 0.05, plan, match=1)
    assert made.read_index(12.0) == 1


def test_one_heartbeat_is_under_way_at_a_time_until_its_timeout() -> None:
    made = replicating(leader())
    sent, now = [], 10.0
    while now < 12.0:
        now = made.next_wake(now)
        made.tick(now)
        for peer, plan in plans(made.take()).items():
            if peer == "c":
                agree(made, now, plan)
            else:
                sent.append(round(now - 10.0, 3))
    assert sent == [0.15, 0.55, 0.95, 1.35, 1.75]
    assert made.limits.patience_s == 0.4


def test_after_a_failure_the_leader_probes_from_the_known_match() -> None:
    made = replicating(leader())
    sent = []
    for _ in range(3):
        made.propose(10.0, WRITE, 1)
        sent.append(plans(made.take())["b"])
    agree(made, 10.0, sent[0])
    made.failed(10.1, "b", Sent(10.0, sent[1]), None)
    progress = made.progress["b"]
    assert (progress.state, progress.match, progress.next, progress.inflight) == ("probe", 2, 3, {})
    assert "b" not in plans(made.take()), "the next message waits for a heartbeat interval"
    agree(made, 10.1, sent[2])
    assert (progress.state, progress.match, progress.next) == ("probe", 4, 5), "a late answer still counts"


@pytest.mark.parametrize("answered", [False, True])
def test_a_timed_out_heartbeat_counts_as_failed_unless_a_later_one_was_answered(answered: bool) -> None:
    made = replicating(leader())
    made.tick(10.2)
    first = plans(made.take())["b"]
    made.tick(10.8)
    later = plans(made.take())["b"]
    if answered:
        agree(made, 10.9, later)
    made.failed(11.2, "b", Sent(10.2, first), None)
    assert made.progress["b"].state == ("replicate" if answered else "probe")


def test_reordered_messages_cost_one_probe() -> None:
    made = replicating(leader())
    made.propose(10.0, WRITE, 1)
    one = plans(made.take())["b"]
    made.propose(10.0, WRITE, 1)
    two = plans(made.take())["b"]
    refuse(made, 10.0, two, hint=1)
    agree(made, 10.0, one)
    probe = plans(made.take())["b"]
    assert (probe.previous_index, probe.last) == (2, 2)
    agree(made, 10.0, probe)
    again = plans(made.take())["b"]
    assert (again.first, again.last) == (3, 3)


def test_a_late_refusal_of_a_timed_out_message_changes_nothing() -> None:
    made = replicating(leader())
    made.propose(10.0, WRITE, 1)
    old = plans(made.take())["b"]
    made.failed(10.1, "b", Sent(10.0, old), None)
    made.tick(10.0 + BEAT)
    agree(made, 10.0 + BEAT, plans(made.take())["b"])
    agree(made, 10.0 + BEAT, plans(made.take())["b"])
    progress = made.progress["b"]
    assert (progress.state, progress.match) == ("replicate", 2)
    refuse(made, 10.2, old, hint=0)
    assert (progress.state, progress.match, progress.next) == ("replicate", 2, 3)


def test_answers_to_messages_of_another_term_are_ignored() -> None:
    made = leader(terms="1")
    old = plans(made.take())["b"]
    made.receive(10.0, "c", append("1@1", term=5, sender="c"))
    made.take()
    made.timer.deadline = 12.0
    agree(made, 12.0, old)
    made.failed(12.0, "b", Sent(10.0, old), None)
    assert made.progress == {} and made.role == "follower"


def test_a_peer_that_needs_dropped_entries_lags_until_it_is_copied() -> None:
    made = replicating(leader(terms="1111"))
    made.log.drop_to(4)
    progress = made.progress["b"]
    progress.match, progress.next = 2, 3
    made.propose(10.0, WRITE, 1)
    assert "b" not in plans(made.take())
    assert made.needs_copy("b") and not made.needs_copy("c")
    made.tick(10.0 + BEAT)
    beat = plans(made.take())["b"]
    assert (beat.previous_index, beat.last) == (4, 4)
    refuse(made, 10.0 + BEAT, beat, hint=2)
    assert made.needs_copy("b") and "b" not in plans(made.take()), "no hot loop"
    made.tick(10.0 + 2 * BEAT)
    agree(made, 10.0 + 2 * BEAT, plans(made.take())["b"])
    assert not made.needs_copy("b")
    assert plans(made.take())["b"].first == 5


def test_a_peer_that_lost_what_it_acknowledged_must_be_copied() -> None:
    made = replicating(leader(terms="11"))
    made.tick(10.0 + BEAT)
    refuse(made, 10.0 + BEAT, plans(made.take())["b"], hint=0)
    assert made.needs_copy("b")


def test_a_leader_without_answers_of_a_majority_steps_down() -> None:  # 6.2
    made = leader("a", "abcde")
    made.tick(10.0 + 1.5 * MIN)
    plan = plans(made.take())["b"]
    agree(made, 10.0 + 1.5 * MIN, plan)
    made.tick(10.0 + 2 * MIN - 0.001)
    assert made.role == "leader"
    made.tick(10.0 + 2 * MIN)
    assert (made.role, made.take().became) == ("follower", "follower")
    assert made.timer.deadline == 10.0 + 3 * MIN


def test_only_a_leader_takes_proposals_and_others_name_the_leader() -> None:
    made = core(terms="1")
    with pytest.raises(NotLeader) as refusal:
        made.propose(5.0, WRITE, 1)
    assert (refusal.value.leader, refusal.value.tablet, refusal.value.term) == (None, "t1", 1)
    made.receive(5.0, "b", append("1@1", term=2))
    with pytest.raises(NotLeader, match="host-b leads"):
        made.propose(5.0, WRITE, 1)


def test_a_plan_becomes_an_append_request() -> None:
    made = replicating(leader())
    made.propose(10.0, WRITE, 1)
    plan = plans(made.take())["b"]
    request = plan.request("a", append("1@1", "1", term=1).entries)
    assert request == append("1@1", "1", term=1, commit=1, sender="a", replicated=1)
    with pytest.raises(AssertionError):
        plan.request("a", ())


def test_a_configuration_is_proposed_from_the_one_in_force() -> None:
    made = replicating(leader())
    wanted = Configuration((*made.configuration.peers, Peer("d", "host-d")), index=-1)
    assert made.propose_configuration(10.0, wanted) == (2, 1)
    effects = made.take()
    sends = plans(effects)
    assert effects.configuration == msgspec.structs.replace(wanted, index=2)
    assert list(made.progress) == ["b", "c", "d"]
    made.durable(2, 1)
    agree(made, 10.0, sends["b"])
    assert made.committed_configuration.index == -1, "two of four are not a majority"
    agree(made, 10.0, sends["c"])
    assert made.committed_configuration.index == 2
