"""A peer's health, as its leader reports it: from the peer's answers and their times."""

from __future__ import annotations

import pytest

from ebla.actors.messages.stream import AppendReply
from ebla.actors.replication.health import (
    COPY_STALLED,
    NOT_RUNNING,
    REPLICA_FAILED,
    TABLET_COPYING,
    TABLET_DELETED,
    TABLET_NOT_FOUND,
    WRONG_SERVER,
)
from ebla.actors.tablet.engine.core import Effects, Sent
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.stream.progress import STARTS_FOR
from ebla.storage.logs.entries import WRITE
from tests.raft.builders import BEAT, MIN, agree, core, leader, next_plan, plans, replicating

FAILED_S = 60.0


def health(made: RaftCore, now: float) -> dict[str, str]:
    return made.health(now, FAILED_S)


def refusal(made: RaftCore, now: float, peer: str, why: str) -> None:
    plan = next_plan(made, peer, now)
    made.failed(now, peer, Sent(now, plan), True, why)


def test_a_peer_without_answers_is_unknown_then_silent_until_it_answers() -> None:
    made = replicating(leader(now=10.0))
    assert health(core(), 10.0) == {}, "only a leader knows"
    assert health(made, 10.0 + 2 * MIN)["b"] == "healthy"
    assert health(made, 10.01 + 2 * MIN)["b"] == "unknown"
    assert health(made, 10.0 + FAILED_S)["b"] == "unknown"
    assert health(made, 10.01 + FAILED_S)["b"] == "silent"
    agree(made, 80.0, plans(_ticked(made, 80.0))["b"])
    assert health(made, 80.0)["b"] == "healthy"


def _ticked(made: RaftCore, now: float) -> Effects:
    made.progress["c"].last_contact = now  # otherwise the leader steps down
    made.tick(now)
    return made.take()


def test_a_new_leader_counts_silence_from_its_election() -> None:
    made = leader(now=1000.0)
    assert set(health(made, 1000.0 + FAILED_S).values()) == {"unknown"}
    assert set(health(made, 1000.1 + FAILED_S).values()) == {"silent"}


UNWELL = (TABLET_NOT_FOUND, TABLET_DELETED, REPLICA_FAILED, COPY_STALLED)


@pytest.mark.parametrize("why", UNWELL)
def test_a_server_that_cannot_follow_is_failed_although_it_answers(why: str) -> None:
    made = replicating(leader(now=10.0))
    refusals(made, {20.0: why, 50.0: why, 79.0: why, 81.0: why})
    assert health(made, 20.0 + FAILED_S)["b"] == "unknown"
    assert health(made, 20.1 + FAILED_S)["b"] == "unhealthy"
    agree(made, 82.0, next_plan(made, "b", 82.0))
    assert health(made, 82.0)["b"] == "healthy"


def test_repeated_failed_copies_do_not_reset_the_time_of_failure() -> None:
    made = replicating(leader(now=10.0))
    refusals(made, {20.0: REPLICA_FAILED, 30.0: TABLET_COPYING, 31.0: TABLET_DELETED, 79.0: TABLET_COPYING})
    refusals(made, {81.0: TABLET_NOT_FOUND})
    assert health(made, 20.0 + FAILED_S)["b"] == "unknown"
    assert health(made, 20.1 + FAILED_S)["b"] == "unhealthy", "counted from the time it last followed"
    agree(made, 82.0, next_plan(made, "b", 82.0))
    refusals(made, {83.0: TABLET_DELETED})
    assert health(made, 83.0 + FAILED_S)["b"] == "unknown", "it has followed since"


def test_a_running_copy_or_start_is_not_a_failure() -> None:
    for why in (TABLET_COPYING, NOT_RUNNING):
        made = replicating(leader(now=10.0))
        refusals(made, {20.0: TABLET_DELETED, 60.0: why, 100.0: why})
        assert health(made, 100.0 + FAILED_S)["b"] == "unknown"
        assert health(made, 100.1 + FAILED_S)["b"] == "unhealthy", "no answer since then"


def test_a_start_that_never_ends_counts_as_silence() -> None:
    made = replicating(leader(now=10.0))
    begun, long = 20.0, STARTS_FOR * FAILED_S
    refusals(made, {begun + part * FAILED_S / 2: NOT_RUNNING for part in range(2 * STARTS_FOR + 1)})
    assert health(made, begun + long)["b"] == "unknown"
    # Not failed: the log can still help it, and silence is tolerated during maintenance.
    assert health(made, begun + long + 0.1)["b"] == "silent"
    agree(made, begun + long + 1.0, next_plan(made, "b", begun + long + 1.0))
    refusals(made, {begun + long + 2.0: NOT_RUNNING})
    assert health(made, begun + long + 2.0)["b"] == "unknown", "a new start gets the full time"


def test_a_start_during_a_repair_gets_the_full_time() -> None:
    begun, long = 25.0, STARTS_FOR * FAILED_S
    made = replicating(leader(now=10.0))
    refusals(made, {20.0: TABLET_DELETED})
    refusals(made, {begun + part * FAILED_S / 2: NOT_RUNNING for part in range(2 * STARTS_FOR + 1)})
    assert [health(made, begun + long + late)["b"] for late in (0.0, 0.1)] == ["unknown", "unhealthy"]


def test_a_server_that_copies_other_tablets_first_is_not_failed() -> None:
    made = replicating(leader(now=10.0))
    refusals(made, {20.0: TABLET_DELETED, 70.0: TABLET_DELETED, 81.0: TABLET_DELETED})
    made.progress["b"].waits(81.0)
    made.progress["c"].waits(81.0)
    assert health(made, 81.0 + FAILED_S)["b"] == "unknown"
    assert health(made, 81.1 + FAILED_S)["b"] == "unhealthy"
    assert made.progress["c"].unwell_since is None, "it follows"


def refusals(made: RaftCore, reasons: dict[float, str]) -> None:
    for now, why in reasons.items():
        made.progress["c"].last_contact = now  # otherwise the leader steps down
        refusal(made, now, "b", why)


def test_a_peer_is_lost_if_another_server_answers_at_its_address() -> None:
    made = replicating(leader(now=10.0))
    refusal(made, 11.0, "b", WRONG_SERVER)
    assert health(made, 11.0) == {"b": "lost", "c": "healthy"}


@pytest.mark.parametrize(
    ("why", "patient"),
    [
        (TABLET_DELETED, True),
        (TABLET_COPYING, True),
        (COPY_STALLED, True),
        (TABLET_NOT_FOUND, False),
        (REPLICA_FAILED, False),
    ],
)
def test_a_refusal_extends_no_lease_and_counts_as_contact_only_from_a_voting_peer(
    why: str, patient: bool
) -> None:
    made = replicating(leader(now=10.0))
    lead = made._lead
    assert lead is not None
    lease = lead.lease_until(10.0)
    made.tick(10.5)
    for peer, plan in plans(made.take()).items():
        made.failed(10.5, peer, Sent(10.5, plan), True, why)
    assert made.progress["b"].contact_at == made.progress["c"].contact_at == 10.5
    assert lead.lease_until(10.5) == lease
    assert lead.quorum_lost_at(10.5) == (10.5 if patient else 10.0) + 2 * MIN


def test_a_lagging_peer_is_not_healthy_until_it_is_copied() -> None:
    made = replicating(leader(now=10.0))
    for _ in range(5):
        made.propose(10.0, WRITE, 1)
    sends = plans(made.take())
    agree(made, 10.0, sends["b"])
    made.durable(6, 1)
    made.failed(10.0, "c", Sent(10.0, sends["c"]), None)
    made.log.drop_to(6)
    plan = next_plan(made, "c", 10.0 + BEAT)
    made.replied(10.2, "c", Sent(10.1, plan), AppendReply(1, False, 0, 1, 1, 1))
    assert made.needs_copy("c") and health(made, 10.2)["c"] == "unknown"
    made.progress["c"].contact_at = 10.3 + FAILED_S
    assert [health(made, at + FAILED_S)["c"] for at in (10.2, 10.3)] == ["unknown", "unhealthy"]
    made.progress["c"].contact_at, made.progress["c"].unwell_since = 10.2, None
    assert health(made, 10.3 + FAILED_S)["c"] == "unhealthy", "silent, and the log cannot help it"
    assert made.progress["c"].last == (1, 1)
    agree(made, 10.5, next_plan(made, "c", 10.5))
    assert not made.needs_copy("c") and health(made, 10.5)["c"] == "healthy"
    assert made.progress["c"].state == "replicate" and made.progress["c"].next == 7
