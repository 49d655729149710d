"""Elections, event by event. Sections are those of the Raft paper and, from 6 on, of the thesis."""

from __future__ import annotations

import pytest

from ebla.actors.errors import InvalidArgument
from ebla.actors.messages.raft import HardState, TimeoutNow, TimeoutNowReply, VoteReply, VoteRequest
from ebla.actors.messages.stream import AppendReply
from ebla.actors.tablet.engine.core import Sent
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.events import RaftLimits
from tests.raft.builders import BEAT, MIN, append, core, leader, plans


def ask(made: RaftCore, now: float, request: VoteRequest) -> str:
    answer = made.receive(now, request.candidate, request)
    assert isinstance(answer, VoteReply)
    assert answer.granted == (answer.reason == "granted")
    return answer.reason


def vote(
    made: RaftCore, now: float, peer: str, request: VoteRequest, *, granted: bool = True, term: int = 0
) -> None:
    reason = "granted" if granted else "log_behind"
    made.replied(
        now, peer, Sent(now, request), VoteReply(max(term, made.term), granted, request.pre_vote, reason)
    )


def asked(made: RaftCore) -> dict[str, VoteRequest]:
    return {send.peer: send.request for send in made.take().sends if isinstance(send.request, VoteRequest)}


def campaigning(*who: str, others: str = "") -> tuple[RaftCore, VoteRequest]:
    """A replica with one entry, and the request for a pre-vote that it sends."""
    made = core(*who, others=others, terms="1")
    made.tick(MIN)
    return made, asked(made)["b"]


def test_a_follower_without_heartbeats_asks_for_pre_votes_in_its_own_term() -> None:  # 5.2, 9.6
    made = core(terms="112")
    made.tick(MIN)
    effects = made.take()
    assert effects.became == made.role == "pre_candidate"
    assert effects.hard_state is None and made.term == 2
    assert {send.peer: send.request for send in effects.sends} == {
        peer: VoteRequest(3, "a", 3, 2, pre_vote=True) for peer in "bc"
    }


def test_a_majority_of_pre_votes_begins_the_election_with_a_vote_for_itself() -> None:  # 5.2
    made, request = campaigning()
    vote(made, MIN, "b", request)
    effects = made.take()
    assert effects.hard_state == HardState(2, "a")
    assert [send.request for send in effects.sends] == [VoteRequest(2, "a", 1, 1)] * 2


def test_a_majority_of_votes_makes_a_leader_that_begins_with_an_empty_entry() -> None:  # 5.2, 5.4.2
    made = leader(terms="11")
    effects = made.take()
    assert (effects.became, effects.noop) == ("leader", (3, 2))
    assert made.leader == "a" and made.last_index == 3


def test_a_voter_votes_in_a_term_for_one_candidate_only() -> None:  # 5.2
    made = core(terms="1", term=1)
    assert ask(made, MIN, VoteRequest(2, "b", 1, 1)) == "granted"
    assert made.take().hard_state == HardState(2, "b")
    assert ask(made, MIN, VoteRequest(2, "c", 9, 1)) == "voted"
    assert ask(made, MIN, VoteRequest(2, "b", 1, 1)) == "granted"
    assert made.take().hard_state is None


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ((3, 2), "granted"),
        ((4, 2), "granted"),
        ((1, 3), "granted"),
        ((2, 2), "log_behind"),
        ((9, 1), "log_behind"),
    ],
)
def test_the_more_recent_log_is_the_one_with_the_later_term_then_the_longer(  # 5.4.1
    last: tuple[int, int], reason: str
) -> None:
    for pre_vote in (False, True):
        made = core(terms="112")
        assert ask(made, MIN, VoteRequest(4, "b", *last, pre_vote=pre_vote)) == reason


def test_a_vote_of_an_older_term_is_refused() -> None:  # 5.1
    assert ask(core(terms="13"), MIN, VoteRequest(2, "b", 9, 2)) == "old_term"


def test_a_refused_vote_request_still_raises_the_term() -> None:  # 5.1
    made = core(terms="112")
    assert ask(made, MIN, VoteRequest(7, "b", 1, 1)) == "log_behind"
    assert made.take().hard_state == HardState(7, None)


def test_a_pre_vote_changes_nothing_at_the_voter() -> None:  # 9.6
    made = core(terms="1")
    deadline = made.timer.deadline
    assert ask(made, MIN, VoteRequest(9, "b", 9, 9, pre_vote=True)) == "granted"
    assert ask(made, MIN, VoteRequest(9, "c", 9, 9, pre_vote=True)) == "granted"
    assert made.take().hard_state is None
    assert (made.term, made.timer.deadline) == (1, deadline)


def test_a_granted_vote_restarts_the_election_timer() -> None:
    made = core(terms="1")
    ask(made, MIN, VoteRequest(2, "b", 9, 9))
    assert made.timer.deadline == 2 * MIN


def test_votes_are_withheld_for_an_election_timeout_after_a_leaders_message() -> None:  # 4.2.3, 6.4.1
    made = core(terms="1")
    made.receive(5.0, "b", append("1@1", term=1))
    for pre_vote in (True, False):
        request = VoteRequest(9, "c", 9, 9, pre_vote=pre_vote)
        assert ask(made, 5.0 + MIN - 0.001, request) == "leader_alive"
    assert made.term == 1, "the term of a challenger is not adopted"
    assert ask(made, 5.0 + MIN, VoteRequest(9, "c", 9, 9)) == "granted"


def test_a_refused_append_counts_as_a_heartbeat() -> None:
    made = core(terms="1")
    made.receive(5.0, "b", append("7@1", term=1))
    assert ask(made, 5.5, VoteRequest(9, "c", 9, 9)) == "leader_alive"


def test_an_append_of_an_old_leader_is_no_heartbeat() -> None:
    made = core(terms="1", term=3)
    answer = made.receive(5.0, "b", append("1@1", term=1))
    assert isinstance(answer, AppendReply) and not answer.success and answer.term == 3
    assert ask(made, 5.0, VoteRequest(9, "c", 9, 9)) == "granted"


def test_a_restarted_replica_withholds_votes_for_an_election_timeout() -> None:
    made = core(terms="1", now=7.0)
    assert ask(made, 7.0 + MIN - 0.001, VoteRequest(9, "c", 9, 9)) == "leader_alive"
    assert made.timer.deadline >= 7.0 + MIN
    assert ask(made, 7.0 + MIN, VoteRequest(9, "c", 9, 9)) == "granted"


def test_a_replica_of_a_new_tablet_votes_at_once_and_campaigns_within_a_heartbeat() -> None:
    made = core(now=7.0)
    assert 7.0 <= made.timer.deadline <= 7.0 + BEAT
    assert ask(made, 7.0, VoteRequest(1, "c", 0, 0)) == "granted"


@pytest.mark.parametrize("situation", [{"terms": "1"}, {"term": 1}])
def test_a_replica_with_an_entry_or_a_term_is_not_new(situation: dict[str, object]) -> None:
    made = core(now=7.0, **situation)  # type: ignore[arg-type]
    assert ask(made, 7.0, VoteRequest(9, "c", 9, 9)) == "leader_alive"


def test_a_leader_votes_only_for_a_successor_that_a_leader_named() -> None:  # 3.10
    made = leader(terms="1")
    assert ask(made, 10.0, VoteRequest(9, "c", 9, 9)) == "leader_alive"
    assert ask(made, 10.0, VoteRequest(9, "c", 9, 9, ignore_live_leader=True)) == "granted"
    assert (made.role, made.term) == ("follower", 9)


def test_a_candidate_outside_the_configuration_can_get_a_vote() -> None:  # 4.1
    assert ask(core(terms="1"), MIN, VoteRequest(2, "z", 1, 1)) == "granted"


def test_votes_of_non_voters_and_nonmembers_do_not_count() -> None:
    made, request = campaigning("a", "abc", others="d")
    for peer in "ddzza":
        vote(made, MIN, peer, request)
    assert made.role == "pre_candidate"


def test_a_voter_counts_once() -> None:
    made, request = campaigning("a", "abcde")
    vote(made, MIN, "b", request)
    vote(made, MIN, "b", request)
    assert made.role == "pre_candidate"


def test_answers_to_an_earlier_round_do_not_count() -> None:
    made, first = campaigning()
    made.tick(3 * MIN)
    second = asked(made)["b"]
    assert first == second and first is not second
    vote(made, 3 * MIN, "b", first)
    assert made.role == "pre_candidate"
    vote(made, 3 * MIN, "b", second)
    assert made.role == "candidate"


def test_pre_votes_do_not_count_as_votes() -> None:
    made, pre = campaigning("a", "abcde")
    vote(made, MIN, "b", pre)
    vote(made, MIN, "c", pre)
    assert made.role == "candidate"
    vote(made, MIN, "d", pre)
    vote(made, MIN, "e", pre)
    assert made.role == "candidate"


def test_the_higher_term_of_a_refusal_is_adopted_but_not_of_a_granted_vote() -> None:
    made, request = campaigning()
    vote(made, MIN, "b", request, term=2)  # b is in term 2, has not voted there, and would vote for a
    assert (made.role, made.term) == ("candidate", 2)
    vote(made, MIN, "c", asked(made)["c"], granted=False, term=8)
    assert (made.role, made.term) == ("follower", 8)


def test_a_majority_of_refusals_ends_the_round() -> None:
    made, request = campaigning()
    vote(made, MIN, "b", request, granted=False)
    assert made.role == "pre_candidate"
    vote(made, MIN, "c", request, granted=False)
    assert made.role == "follower"
    assert made.timer.deadline == pytest.approx(2.5 * MIN)


def test_an_unreachable_voter_is_asked_again_after_a_heartbeat_interval() -> None:
    made, request = campaigning()
    made.failed(MIN, "b", Sent(MIN, request), False)
    made.tick(MIN)
    assert asked(made) == {}
    assert made.next_wake(MIN) == MIN + BEAT
    made.tick(MIN + BEAT)
    again = asked(made)
    assert list(again) == ["b"] and again["b"] is request
    vote(made, MIN + BEAT, "b", again["b"])
    assert made.role == "candidate"


def test_contested_elections_back_off_and_unanswered_ones_do_not() -> None:
    made = core(terms="1", limits=RaftLimits(election_s_max=4.0))
    now, waits = 0.0, []
    for round_ in range(7):
        wait, now = made.timer.deadline - now, made.timer.deadline
        waits.append(round(wait, 3))
        made.tick(now)
        request = asked(made)["b"]
        if round_ > 1:  # a round without answers is not contested
            vote(made, now, "b", request, granted=False)
            vote(made, now, "c", request, granted=False)
    assert waits == [1.0, 1.0, 1.0, 1.5, 2.25, 3.375, 4.0]
    made.receive(now, "b", append("1@1", term=1))
    assert made.timer.deadline == now + MIN, "a leader's message ends the back-off"


def test_a_candidate_follows_the_leader_of_its_own_term() -> None:  # 5.2
    made = core(terms="1")
    made.tick(MIN)
    vote(made, MIN, "b", asked(made)["b"])
    assert (made.role, made.term) == ("candidate", 2)
    made.receive(MIN, "c", append("1@1", term=2, sender="c"))
    assert (made.role, made.leader, made.hard_state) == ("follower", "c", HardState(2, "a"))


def test_a_leader_that_receives_a_newer_term_steps_down() -> None:  # 5.1
    made = leader(terms="1")
    plan = plans(made.take())["b"]
    made.replied(10.0, "b", Sent(10.0, plan), AppendReply(5, False, 0, 0, 0, 0))
    effects = made.take()
    assert (effects.became, effects.hard_state) == ("follower", HardState(5, None))


def test_two_leaders_in_one_term_raise_an_assertion() -> None:
    made = leader(terms="1")
    with pytest.raises(AssertionError, match="a term has one leader"):
        made.receive(10.0, "b", append("1@1", term=made.term))


def test_a_named_successor_campaigns_at_once_in_the_leaders_name() -> None:  # 3.10
    made = core(terms="11")
    made.receive(5.0, "b", append("2@1", term=1))
    assert made.receive(5.0, "b", TimeoutNow(1, "b")) == TimeoutNowReply(2)
    effects = made.take()
    assert effects.hard_state == HardState(2, "a")
    assert effects.sends[0].request == VoteRequest(2, "a", 2, 1, ignore_live_leader=True)


def test_a_late_order_to_campaign_is_ignored() -> None:
    made = core(terms="11", term=2)
    assert made.receive(5.0, "b", TimeoutNow(1, "b")) == TimeoutNowReply(2)
    assert made.role == "follower" and made.take().hard_state is None


def test_a_non_voter_ignores_an_order_to_campaign() -> None:
    made = core("d", "abc", others="d", terms="1")
    made.receive(5.0, "b", TimeoutNow(1, "b"))
    assert made.role == "follower"


def ended(made: RaftCore, now: float, wait_s: float = 0.0, peer: str = "b") -> dict[str, VoteRequest]:
    """The requests of a follower that learns, and lets the time pass, that the process of this peer has ended."""
    made.note_end(now, peer, wait_s)
    made.tick(now + wait_s)
    return asked(made)


def following(**situation: object) -> RaftCore:
    """A follower that has just had a message of its leader b."""
    made = core(terms="11", now=9.0, **situation)  # type: ignore[arg-type]
    made.receive(10.0, "b", append("2@1", term=1))
    made.take()
    return made


def test_a_follower_campaigns_at_once_when_the_process_of_its_leader_has_ended() -> None:
    made, voter = following(), core("c", terms="11", now=9.0)
    voter.receive(10.0, "b", append("2@1", term=1))
    request = ended(made, 10.01)["c"]
    assert request == VoteRequest(2, "a", 2, 1, pre_vote=True, ignore_live_leader=True)
    assert ask(voter, 10.01, request) == "granted"
    vote(made, 10.01, "c", request)
    request = asked(made)["c"]
    assert request == VoteRequest(2, "a", 2, 1, ignore_live_leader=True)
    assert ask(voter, 10.01, request) == "granted"
    vote(made, 10.01, "c", request)
    assert (made.role, made.term) == ("leader", 2)


def test_a_follower_that_waits_for_another_one_campaigns_only_without_a_new_leader() -> None:
    made = following()
    made.note_end(10.0, "b", 0.2)
    made.tick(10.19)
    assert asked(made) == {} and made.next_wake(10.19) == 10.2
    made.receive(10.19, "c", append("2@1", term=2, sender="c"))
    made.tick(10.2)
    assert asked(made) == {} and made.leader == "c"


def test_the_end_of_another_process_than_the_leaders_changes_nothing() -> None:
    made = following()
    assert ended(made, 10.01, peer="c") == {}
    made.receive(10.1, "c", append("2@1", term=2, sender="c"))
    assert ended(made, 10.2, peer="b") == {}, "it led in an earlier term"
    leads = leader(terms="1")
    leads.take()
    assert ended(leads, 10.0) == {} and leads.role == "leader"


def test_only_the_election_after_the_term_of_a_leader_that_has_ended_ignores_promises() -> None:
    made = following()
    made.note_end(10.0, "b", 0.0)
    assert ask(made, 10.0, VoteRequest(5, "c", 9, 9, ignore_live_leader=True)) == "granted"
    made.tick(10.0 + 3 * MIN)
    assert {request.ignore_live_leader for request in asked(made).values()} == {False}


def test_a_follower_that_may_not_campaign_waits_when_its_leader_has_ended() -> None:
    made = following(me="d", others="d")
    assert ended(made, 10.0) == {} and made.timer.deadline >= 10.0 + MIN


def test_a_log_newer_than_the_stored_term_raises_the_term_and_clears_the_vote() -> None:
    made = core(terms="13", term=2, vote="b")
    assert made.take().hard_state == HardState(3, None)


def test_a_lease_longer_than_the_election_timeout_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="lease_s"):
        RaftLimits(lease_s=1.0, election_s_min=1.0)


def test_the_story_is_bounded_keeps_the_end_and_skips_repeats() -> None:
    made = core(terms="1")
    for i in range(200):
        ask(made, 10.0, VoteRequest(2 + i, "b", 0, 0))
        ask(made, 10.0, VoteRequest(2 + i, "b", 0, 0))
    assert len(made.story().splitlines()) == 50
    assert "term 201 for b: log_behind" in made.story().splitlines()[-1]
