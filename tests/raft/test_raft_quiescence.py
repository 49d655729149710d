"""A leader and its followers agree to be quiescent, and rely on the contacts between their servers from then on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from ebla.actors.errors import Unavailable
from ebla.actors.messages.raft import VoteRequest
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.tablet.engine.core import FOLLOWER, LEADER, Pending, Sent
from ebla.actors.tablet.engine.quiescence import AWAKE, Answered, Contacts
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.storage.logs.entries import WRITE
from tests.raft.builders import MIN, append, core, leader, plans, replicating

LIMITS = replace(RaftLimits(), quiesce_after_s=0.5)
IDLE = 10.0 + LIMITS.quiesce_after_s
LEASE = LIMITS.lease_s


def asks(made: RaftCore, now: float = IDLE) -> dict[str, AppendPlan]:
    """The heartbeats that an idle leader sends."""
    made.tick(now)
    sends = plans(made.take())
    assert sends and all(plan.quiesce for plan in sends.values())
    return sends


def agrees(made: RaftCore, now: float, plan: AppendPlan, *, quiescent: bool = True) -> None:
    held = plan.covers
    answer = AppendReply(made.term, True, held, held, held, made.term, quiescent=quiescent)
    made.replied(now, plan.peer, Sent(now, plan), answer)


def idle_leader(contacts: Contacts) -> RaftCore:
    return replicating(leader(limits=LIMITS, contacts=contacts))


def quiescent_leader() -> tuple[RaftCore, Contacts]:
    contacts = Contacts({}, {})
    made = idle_leader(contacts)
    for plan in asks(made).values():
        agrees(made, IDLE, plan)
    assert made.stance.quiescent
    return made, contacts


def asking(request: AppendRequest) -> AppendRequest:
    return structs.replace(request, quiesce=True)


def quiescent_follower(contacts: Contacts) -> RaftCore:
    made = core("b", terms="1", now=0.0, limits=LIMITS, contacts=contacts, commit_index=1)
    request = asking(append("1@1", term=1, commit=1, sender="a"))
    assert isinstance(made.receive(10.0, "a", request), Pending)
    assert made.stance.follows == "a" and made.next_wake(10.0) == float("inf")
    return made


def test_a_group_is_quiescent_when_all_followers_agree() -> None:
    made = idle_leader(Contacts({}, {}))
    sends = asks(made)
    agrees(made, IDLE, sends["b"])
    assert not made.stance.quiescent and set(made.stance.relying) == {"b", "c"}
    agrees(made, IDLE, sends["c"])
    assert made.stance.quiescent and made.next_wake(IDLE) == float("inf") and made.mute


def test_a_new_leader_asks_as_soon_as_all_have_its_first_entry() -> None:
    made = idle_leader(Contacts({}, {}))
    asks(made, IDLE - 0.1)


def test_a_leader_that_has_just_written_does_not_ask() -> None:
    made = idle_leader(Contacts({}, {}))
    index, term = made.propose(10.0, WRITE, 1)
    for plan in plans(made.take()).values():
        agrees(made, 10.0, plan, quiescent=False)
    made.durable(index, term, made.take().log_epoch)
    made.tick(IDLE - 0.1)
    assert not any(plan.quiesce for plan in plans(made.take()).values())
    asks(made, IDLE + 0.5)


def test_a_leader_whose_process_was_paused_gives_its_followers_their_full_time_again() -> None:
    made, contacts = quiescent_leader()
    contacts.watched_at = IDLE
    late = IDLE + 10 * MIN
    made.tick(late)
    assert made.role == LEADER
    contacts.watched_at = late + 2 * MIN
    made.tick(late + 2 * MIN)
    assert made.role == FOLLOWER, "nobody has answered since"


def test_the_agreement_to_an_earlier_request_does_not_count() -> None:
    made = idle_leader(Contacts({}, {}))
    early = asks(made)
    made.wake(IDLE)
    late = asks(made, IDLE + 0.7)
    agrees(made, IDLE + 0.7, early["b"])
    agrees(made, IDLE + 0.7, late["c"])
    assert not made.stance.quiescent
    agrees(made, IDLE + 0.7, late["b"])
    assert made.stance.quiescent


def test_a_write_wakes_a_quiescent_leader() -> None:
    made, _ = quiescent_leader()
    made.propose(IDLE + 1.0, WRITE, 1)
    sends = plans(made.take())
    assert made.stance is AWAKE and {plan.last for plan in sends.values()} == {made.last_index}


def test_a_member_that_asks_for_votes_wakes_a_quiescent_leader_and_gets_none() -> None:
    made, _ = quiescent_leader()
    answer = made.receive(IDLE, "b", VoteRequest(made.term + 1, "b", 9, made.term, pre_vote=True))
    assert made.stance is AWAKE and answer.reason == "leader_alive"


def test_a_quiescent_lease_counts_from_the_sending_of_server_messages_after_the_agreement() -> None:
    made, contacts = quiescent_leader()
    for uuid in "bc":
        contacts.answered[uuid] = Answered(IDLE - 0.1, IDLE + 0.5)  # type: ignore[index]
    with pytest.raises(Unavailable, match="no lease"):
        made.read_index(IDLE + LEASE)
    contacts.answered["b"] = Answered(IDLE + 0.3, IDLE + 0.5)  # type: ignore[index]
    assert made.read_index(IDLE + 0.3 + LEASE - 0.001) == made.commit_index
    with pytest.raises(Unavailable, match="no lease"):
        made.read_index(IDLE + 0.3 + LEASE)


def test_a_quiescent_leader_steps_down_when_no_majority_of_servers_answers() -> None:
    made, contacts = quiescent_leader()
    for uuid in "bc":
        contacts.answered[uuid] = Answered(IDLE + 5.0, IDLE + 5.0)  # type: ignore[index]
    made.note_silence(IDLE + 5.0 + MIN)
    assert made.next_wake(IDLE + 5.0 + MIN) == pytest.approx(IDLE + 5.0 + 2 * MIN)
    made.tick(IDLE + 5.0 + 2 * MIN)
    assert made.role == "follower" and made.stance is AWAKE


def test_a_quiescent_follower_keeps_its_promise_from_the_last_message_of_the_server() -> None:
    contacts = Contacts({}, {"a": 20.0})
    made = quiescent_follower(contacts)
    request = VoteRequest(2, "c", 9, 1)
    assert made.receive(20.0 + MIN - 0.001, "c", request).reason == "leader_alive"
    assert made.receive(20.0 + MIN, "c", request).reason == "granted"


def test_a_follower_that_wakes_is_as_patient_as_if_the_server_message_had_been_a_heartbeat() -> None:
    made = quiescent_follower(Contacts({}, {"a": 20.0}))
    made.wake(20.5)
    assert made.stance is AWAKE and made.timer.deadline == 20.0 + MIN


def test_a_follower_that_lacks_something_does_not_agree() -> None:
    made = core("b", terms="11", now=0.0, limits=LIMITS, commit_index=1)
    made.receive(10.0, "a", asking(append("1@1", term=1, commit=1, sender="a")))
    assert made.stance is AWAKE, "it has an entry more than the leader had"
    made.receive(10.0, "a", asking(append("2@1", term=1, commit=1, sender="a")))
    assert made.stance is AWAKE, "not all is committed"
    made.receive(10.0, "a", asking(append("2@1", term=1, commit=2, sender="a")))
    assert made.stance.follows == "a"
