"""Tombstones, and replicas that are being copied: how they vote, and what they never do."""

from __future__ import annotations

from random import Random

import pytest

from ebla.actors.messages.raft import HardState, TimeoutNow, TimeoutNowReply, VoteReply, VoteRequest
from ebla.actors.tablet.raft.tombstone import TombstoneVoter
from tests.raft.builders import MIN, append, core

LAST = (7, 3)  # index, term


def tombstone(
    term: int = 3, vote: str | None = None, last: tuple[int, int] | None = LAST, now: float = 0.0
) -> TombstoneVoter:
    return TombstoneVoter(HardState(term, vote), last, MIN, now, durable=HardState(term, vote))


def vote(
    term: int, candidate: str = "b", last: tuple[int, int] = LAST, *, pre: bool = False, ordered: bool = False
) -> VoteRequest:
    return VoteRequest(term, candidate, *last, pre_vote=pre, ignore_live_leader=ordered)


def answered(made: TombstoneVoter, request: VoteRequest, now: float = 10.0) -> tuple[str, int]:
    answer = made.receive(now, request)
    assert isinstance(answer, VoteReply) and answer.granted == (answer.reason == "granted")
    return answer.reason, answer.term


@pytest.mark.parametrize(
    ("situation", "request_", "reason", "after"),
    [
        # the end of the log decides, as for a replica
        ({}, vote(4), "granted", HardState(4, "b")),
        ({}, vote(4, last=(6, 3)), "log_behind", HardState(4)),
        ({}, vote(4, last=(99, 2)), "log_behind", HardState(4)),
        ({}, vote(4, last=(1, 4)), "granted", HardState(4, "b")),
        ({"last": (0, 0)}, vote(4, last=(0, 0)), "granted", HardState(4, "b")),
        # a tombstone that does not know the end of its log grants no vote and adopts no term
        ({"last": None}, vote(4, last=(99, 99)), "log_behind", HardState(3)),
        # one vote a term, repeated for the same candidate only
        ({}, vote(3), "granted", HardState(3, "b")),
        ({"vote": "b"}, vote(3), "granted", HardState(3, "b")),
        ({"vote": "c"}, vote(3), "voted", HardState(3, "c")),
        ({"vote": "c"}, vote(4), "granted", HardState(4, "b")),
        ({"term": 5}, vote(4), "old_term", HardState(5)),
        # a pre-vote changes no state
        ({}, vote(4, pre=True), "granted", HardState(3)),
        ({"vote": "c"}, vote(3, pre=True), "voted", HardState(3, "c")),
        ({}, vote(9, last=(6, 3), pre=True), "log_behind", HardState(3)),
        ({"last": None}, vote(9, last=(99, 99), pre=True), "log_behind", HardState(3)),
    ],
)
def test_a_tombstone_votes_by_its_term_its_vote_and_the_end_of_its_log(
    situation: dict[str, object], request_: VoteRequest, reason: str, after: HardState
) -> None:
    made = tombstone(**situation)  # type: ignore[arg-type]
    before = made.hard_state
    answer = made.receive(10.0, request_)
    assert isinstance(answer, VoteReply)
    assert (answer.reason, answer.term, answer.pre_vote) == (reason, after.term, request_.pre_vote)
    assert made.hard_state == after
    assert made.unsaved == (after if after != before else None), (
        "the state is durable before the answer is sent"
    )


def test_a_tombstone_withholds_votes_for_an_election_timeout_after_its_start() -> None:
    made = tombstone(now=5.0)
    assert answered(made, vote(4), 5.0 + MIN - 0.01) == ("leader_alive", 3)
    assert made.hard_state == HardState(3), "the term stays"
    assert answered(made, vote(4, pre=True), 5.0 + MIN - 0.01) == ("leader_alive", 3)
    assert answered(made, vote(4), 5.0 + MIN) == ("granted", 4)


def test_a_tombstone_withholds_votes_after_a_leaders_message_that_it_refused() -> None:
    made = tombstone()
    assert made.receive(10.0, append("7@3", "33", term=3, sender="a")) is None
    assert answered(made, vote(4), 10.0 + MIN - 0.01) == ("leader_alive", 3)
    assert answered(made, vote(4, ordered=True), 10.0 + MIN - 0.01) == ("granted", 4), "the leader abdicated"
    made.receive(20.0, append("7@3", "9", term=9, sender="a"))
    assert answered(made, vote(10), 20.0 + MIN - 0.01) == ("leader_alive", 4)
    assert answered(made, vote(10), 20.0 + MIN) == ("granted", 10)


def test_a_message_of_an_older_term_withholds_no_vote() -> None:
    made = tombstone(term=5)
    made.receive(10.0, append("7@3", "", term=4, sender="a"))
    assert answered(made, vote(6)) == ("granted", 6)


def test_a_tombstone_adopts_nothing_from_a_leader() -> None:
    made = tombstone()
    made.receive(10.0, append("7@3", "9", term=9, sender="a", commit=8))
    assert (made.hard_state, made.last) == (HardState(3), LAST)


def test_a_tombstone_ignores_an_order_to_campaign() -> None:
    made = tombstone()
    assert made.receive(10.0, TimeoutNow(4, "a")) == TimeoutNowReply(3)
    assert made.unsaved is None


def test_an_answer_waits_for_a_state_that_is_still_being_saved() -> None:
    made = tombstone()

    def unsaved(now: float, request: VoteRequest) -> HardState | None:
        made.receive(now, request)
        return made.unsaved

    first, second = HardState(4, "b"), HardState(6, "b")
    assert unsaved(10.0, vote(4)) == first
    assert unsaved(10.1, vote(4)) == first, "a repeated request for the same vote"
    assert unsaved(10.1, vote(4, "c")) == first, "a refusal because of that vote"
    assert unsaved(10.1, vote(5, pre=True)) == first, "an answer that shows the term"
    made.saved(first)
    assert unsaved(10.2, vote(4)) is None
    assert unsaved(10.3, vote(6)) == second
    made.saved(first)
    assert unsaved(10.4, vote(6)) == second, "a late notice of the first save is not one of the second"


def test_a_tombstone_votes_as_its_replica_would_have() -> None:
    """Compare it over random requests with a core of the same log, term and vote."""
    random = Random(1)
    for _ in range(2_000):
        term, voted = random.randint(3, 5), random.choice([None, "b", "c"])
        living = core("a", "abc", terms="1123333", term=term, vote=voted, now=0.0)
        made = tombstone(term, voted, (7, 3))
        now = 0.0
        for _ in range(4):
            now += random.choice([0.1, 0.5, 3.0])
            asked = vote(
                random.randint(2, 7),
                random.choice("bc"),
                (random.randint(6, 8), random.randint(2, 4)),
                pre=random.random() < 0.4,
                ordered=random.random() < 0.2,
            )
            assert made.receive(now, asked) == living.receive(now, "b", asked)
            assert made.hard_state == living.hard_state
            living.take()
