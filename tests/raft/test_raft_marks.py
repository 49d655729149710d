"""The two sides of a forced configuration meet: marks.py decides which side yields."""

from __future__ import annotations

import itertools
from random import Random

import msgspec
import pytest

from ebla.actors.messages.raft import HardState, Request, TimeoutNow, TimeoutNowReply, VoteReply, VoteRequest
from ebla.actors.messages.stream import FORCED, STRANDED, AppendReply, AppendRequest
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import Sent
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.forced import DRAWN, TERMS, forced_term
from ebla.actors.tablet.raft.members import ANY_TERM
from ebla.actors.tablet.raft.tombstone import TombstoneVoter
from ebla.actors.tablet.stream.progress import LAGGING
from tests.raft.builders import (
    BEAT,
    MIN,
    agree,
    append,
    config_entry,
    core,
    leader,
    logged,
    plans,
    replicating,
)
from tests.raft.group import configuration

OLD = HardState(1)


def marked(request: AppendRequest, unsafe: int = 1) -> AppendRequest:
    return msgspec.structs.replace(request, unsafe=unsafe)


def forced_append(index: int, of: int, wanted: Configuration, *, term: int, commit: int = 0) -> AppendRequest:
    """The message in which a, which was forced to lead, sends the configuration."""
    entry = config_entry(index, term, wanted)
    sent = append(f"{index - 1}@{of}", "", term=term, commit=commit, sender="a")
    return marked(msgspec.structs.replace(sent, entries=(entry,)), wanted.unsafe)


def survivor(*, committed: bool) -> RaftCore:
    """a, which was forced to lead a and b, two of five."""
    made = core("a", "abcde", terms="11", now=0.0)
    made.force_configuration(MIN, ["a", "b"], "c, d and e burnt")
    sends = plans(made.take())
    if committed:
        agree(made, MIN, sends["b"])
        made.durable(3, made.term)
        for plan in plans(made.take()).values():
            agree(made, MIN, plan)
        assert made.committed_configuration.unsafe == 1
    made.take()
    return made


def kept(*, committed: bool) -> RaftCore:
    """b, which follows a."""
    made = core("b", "abcde", terms="11", now=0.0)
    made.receive(
        0.1, "a", forced_append(3, 1, configuration("ab", unsafe=1), term=TERMS, commit=3 if committed else 0)
    )
    made.take()
    made.durable(3, TERMS)
    return made


def campaigning() -> RaftCore:
    made = kept(committed=True)
    made.tick(0.1 + 2 * MIN)
    made.take()
    return made


def requests_of_the_old_side(term: int) -> list[Request]:
    return [
        append("2@1", "", term=term, commit=2, sender="c"),
        append("0@0", "111", term=term, commit=3, sender="c"),
        VoteRequest(term, "c", 99, term, pre_vote=True),
        VoteRequest(term, "c", 99, term, pre_vote=False, ignore_live_leader=True),
        TimeoutNow(term, "c"),
    ]


def state(made: RaftCore) -> tuple[object, ...]:
    return made.hard_state, made.role, made.leader, logged(made), made.commit_index, made.timer.deadline


@pytest.mark.parametrize("term", [1, TERMS, TERMS + 1, 5 * TERMS])
@pytest.mark.parametrize(
    "receiver", ["leader", "follower", "candidate", "uncommitted leader", "uncommitted follower"]
)
def test_requests_of_the_side_given_up_change_nothing_in_any_term(receiver: str, term: int) -> None:
    for request in requests_of_the_old_side(term):
        made = {
            "leader": lambda: survivor(committed=True),
            "follower": lambda: kept(committed=True),
            "candidate": campaigning,
            "uncommitted leader": lambda: survivor(committed=False),
            "uncommitted follower": lambda: kept(committed=False),
        }[receiver]()
        before = state(made)
        answer = made.receive(20.0, "c", request)
        assert state(made) == before and made.quiet and made.take(sends=False).hard_state is None
        epoch = 0 if receiver.startswith("uncommitted") else 1
        if isinstance(request, AppendRequest):
            assert isinstance(answer, AppendReply) and not answer.success
            assert (answer.reason, answer.unsafe) == (FORCED, epoch)
        elif isinstance(request, VoteRequest):
            assert answer == VoteReply(made.term, False, request.pre_vote, FORCED, epoch)
        else:
            assert answer == TimeoutNowReply(term), "the answer does not show the receiver's own term"


def refuse_as_forced(made: RaftCore, unsafe: int, *, term: int = TERMS) -> None:
    """b answers the last message as a member of the other side."""
    plan = plans(made.take())["b"]
    made.replied(10.0 + BEAT, "b", Sent(10.0, plan), AppendReply(term, False, 0, 0, 3, term, FORCED, unsafe))


def beating() -> RaftCore:
    """c leads, and a heartbeat is due."""
    made = replicating(leader("c", "abcde"))
    made.tick(10.0 + BEAT)
    return made


def test_a_given_up_leader_steps_down_for_good_and_keeps_its_term() -> None:
    made = beating()
    refuse_as_forced(made, 1)
    assert made.given_up and (made.role, made.leader, made.term) == ("follower", None, 1)
    for at in range(11, 100):
        made.tick(float(at))
    assert made.role == "follower" and not made.take().sends
    assert made.receive(100.0, "d", TimeoutNow(1, "d")) == TimeoutNowReply(1)
    assert made.role == "follower"


@pytest.mark.parametrize("term", [1, TERMS])
def test_an_uncommitted_forced_epoch_refuses_but_gives_up_no_leader(term: int) -> None:
    made = beating()
    refuse_as_forced(made, 0, term=term)
    assert not made.given_up and (made.role, made.term) == ("leader", 1)
    assert made.progress["b"].refusal == FORCED and made.progress["b"].acked_at <= 10.0
    assert made.health(200.0, 60.0)["b"] == "unhealthy"


@pytest.mark.parametrize("pre_vote", [True, False])
def test_a_given_up_candidate_stops_campaigning(pre_vote: bool) -> None:
    made = core("c", "abcde", terms="1", now=0.0)
    made.tick(made.timer.deadline)
    sent = {send.peer: send.request for send in made.take().sends}
    if not pre_vote:
        for peer in "de":
            request = sent[peer]
            made.replied(2.0, peer, Sent(2.0, request), VoteReply(1, True, True, "granted"))
        sent = {send.peer: send.request for send in made.take().sends}
    term = made.term
    made.replied(2.0, "b", Sent(2.0, sent["b"]), VoteReply(TERMS, False, pre_vote, FORCED, 1))
    assert made.given_up and made.role == "follower" and made.term == term
    for peer in "de":  # late
        made.replied(2.0, peer, Sent(2.0, sent[peer]), VoteReply(term, True, pre_vote, "granted"))
    made.tick(100.0)
    assert made.role == "follower" and not made.take().sends


def test_a_given_up_replica_reports_the_forced_epoch_to_its_own_side() -> None:
    made = beating()
    refuse_as_forced(made, 1)
    for request in requests_of_the_old_side(7)[:4]:
        answer = made.receive(12.0, "d", request)
        assert isinstance(answer, AppendReply | VoteReply) and (answer.reason, answer.unsafe) == (FORCED, 1)
    assert made.hard_state.term == 1


def test_a_given_up_replica_takes_part_again_with_the_forced_configuration() -> None:
    made = core("c", "abcde", terms="1", now=0.0)
    made.superseded_by = 1
    made.receive(1.0, "a", forced_append(2, 1, configuration("ac", unsafe=1), term=TERMS))
    assert not made.given_up and made.last_index == 2
    made.take()
    made.durable(2, TERMS)
    made.tick(made.timer.deadline)
    assert made.role == "pre_candidate"
    assert [send.request.unsafe for send in made.take().sends] == [1]


def test_two_survivors_that_are_forced_separately_never_lead_the_same_term() -> None:
    """Each knows the other's term before, and not that the other was forced. Terms grow on both sides."""
    terms = []
    for seed, survivor in enumerate("abcde"):
        made = core(survivor, "abcde", terms="11", term=3, random=Random(seed), now=0.0)
        made.force_configuration(MIN, [survivor], "all others are away", above_term=3)
        terms.append(made.term)
    ranges = [range(term, term + TERMS) for term in sorted(terms)]
    assert all(low.stop <= high.start for low, high in itertools.pairwise(ranges)), terms
    assert all(3 + TERMS <= term < (DRAWN + 2) * TERMS for term in terms)


def test_a_thousand_forced_configurations_stay_far_below_the_highest_term() -> None:
    class Longest(Random):
        def getrandbits(self, bits: int) -> int:
            return (1 << bits) - 1

    term = 0
    for _ in range(1000):
        term = forced_term(term, Longest())
    assert term < ANY_TERM // 2


def test_a_configuration_forced_on_the_given_up_side_has_a_higher_epoch_than_it_knows() -> None:
    made = core("c", "abcde", terms="1", now=0.0)
    made.superseded_by = 3
    made.force_configuration(MIN, ["c"], "the others burnt after all")
    assert made.configuration.unsafe == 4 and not made.given_up and made.role == "leader"


# -- the survivors' leader and a replica of the old side


def test_a_replica_that_committed_given_up_entries_is_stranded_and_appends_nothing() -> None:
    """It was added again before it became a tombstone."""
    for previous in ("2@1", "1@1", "3@7", "0@0"):
        made = core("c", "abcde", terms="112", commit_index=3)
        sent = marked(append(previous, "9", term=TERMS, commit=9, sender="a"))
        answer = made.receive(1.0, "a", sent)
        assert isinstance(answer, AppendReply) and answer.reason == STRANDED and not answer.success
        assert (answer.last_index, answer.last_term) == (3, 2)
        assert logged(made) == "112" and made.commit_index == 3 and made.term == TERMS


def test_uncommitted_entries_are_replaced_by_the_forced_configuration() -> None:
    made = core("c", "abcde", terms="112", commit_index=2)
    made.receive(1.0, "a", forced_append(3, 1, configuration("ac", unsafe=1), term=9))
    assert made.configuration.unsafe == 1 and logged(made) == "119"


def test_a_forced_append_in_the_term_of_an_old_leader_ends_that_term() -> None:
    for made in (core("c", "abcde", terms="1", now=0.0), leader("c", "abcde", terms="1")):
        if made.role == "follower":
            made.receive(10.0, "d", append("1@1", "2", term=2, sender="d"))
        before = logged(made)
        made.take()
        answer = made.receive(10.1, "a", forced_append(2, 1, configuration("ac", unsafe=1), term=2))
        assert isinstance(answer, AppendReply) and (answer.term, answer.success) == (3, False)
        assert made.take().hard_state == HardState(3) and made.role == "follower"
        assert logged(made) == before


def test_a_successor_without_the_leaders_configuration_ignores_its_order() -> None:
    for made in (core("c", terms="1"), leader("c", terms="1")):
        role = made.role
        assert made.receive(10.0, "a", TimeoutNow(2, "a", 1)) == TimeoutNowReply(made.term)
        assert made.role == role


def test_a_stranded_member_is_copied_and_does_not_affect_its_leader() -> None:
    made = survivor(committed=True)
    made.tick(MIN + BEAT)
    plan = plans(made.take())["b"]
    made.replied(
        MIN + BEAT, "b", Sent(MIN + BEAT, plan), AppendReply(made.term, False, 0, 0, 9, 5, STRANDED, 0)
    )
    assert made.role == "leader" and made.needs_copy("b") and made.progress["b"].state == LAGGING
    assert made.progress["b"].last == (9, 5) and made.progress["b"].match == 3


# -- tombstones


def tombstone(unsafe: int) -> TombstoneVoter:
    return TombstoneVoter(OLD, (3, 1), MIN, 0.0, durable=OLD, forced_epoch=unsafe)


def test_a_tombstone_refuses_candidates_of_the_side_given_up() -> None:
    made = tombstone(1)
    for pre_vote in (True, False):
        request = VoteRequest(9, "c", 99, 8, pre_vote=pre_vote)
        answer = made.receive(10.0, request)
        assert answer == VoteReply(1, False, pre_vote, FORCED, 1) and made.unsaved is None
    made.receive(10.0, append("3@1", "", term=9, sender="c"))
    answer = made.receive(10.1, VoteRequest(9, "a", 99, 8, unsafe=1))
    assert answer == VoteReply(9, True, False, "granted"), "a message of the other side withholds no vote"
    assert made.unsaved == HardState(9, "a")


def test_a_tombstone_of_the_old_side_votes_for_survivors_by_the_end_of_its_log() -> None:
    for last_index, last_term, vote in ((99, 8, "a"), (2, 1, None)):
        made = tombstone(0)
        made.receive(10.0, VoteRequest(9, "a", last_index, last_term, unsafe=1))
        assert made.unsaved == HardState(9, vote)
