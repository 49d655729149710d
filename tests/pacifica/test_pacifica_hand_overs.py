"""A PacificA primary that hands over: because of its own disk, or as it was told."""

from __future__ import annotations

from msgspec.structs import replace

from ebla.actors.messages import ServerInstance
from ebla.actors.messages.stream import AppendReply
from ebla.actors.replication.appointments import appointed, next_members
from ebla.actors.replication.configuration import PRE_VOTER, Configuration
from ebla.actors.tablet.engine.core import Sent
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.tablet.pacifica.state import INACTIVE, PRIMARY
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.storage.logs.entries import WRITE
from tests.pacifica.test_pacifica_core import FIRST, LIMITS, leased, plans, primary, renew


def late_disk(first: Configuration) -> PacificaCore:
    """A primary whose disk has not written an entry for `stalled_s` that all others hold."""
    lease = leased()
    made = primary(lease, first=first)
    made.propose(0.1, WRITE, 1)
    now = 0.2
    while now <= 0.4 + LIMITS.stalled_s:
        renew(lease, now)
        made.tick(now)
        for peer, plan in plans(made).items():
            made.replied(now, peer, Sent(now, plan), AppendReply(1, True, plan.covers, 0, plan.covers, 1))
        if made.asked is not None:
            break
        now += 0.1
    return made


def test_a_primary_with_a_late_disk_stays_if_its_vote_has_to() -> None:
    """Its disk would delay the next primary as well."""
    assert late_disk(FIRST).standing == INACTIVE
    assert late_disk(replace(FIRST, min_members=3)).standing == PRIMARY


def test_a_pause_is_no_delay_of_the_disk_and_messages_that_wait_for_the_disk_are() -> None:
    for pause_s, stands in ((2.0, PRIMARY), (0.1, INACTIVE)):
        lease = leased()
        made = primary(lease)
        made.propose(0.1, WRITE, 1)
        for peer, plan in plans(made).items():
            made.replied(0.2, peer, Sent(0.1, plan), AppendReply(1, True, plan.covers, 0, plan.covers, 1))
        now = 0.2
        while now < 0.3 + LIMITS.stalled_s:
            now += pause_s if now > 1.0 else 0.1
            renew(lease, now)
            made.tick(now)
            made.take(sends=False)
        for _ in range(3):
            now += 0.1
            made.tick(now)
            for peer, plan in plans(made).items():
                made.replied(now, peer, Sent(now, plan), AppendReply(1, True, plan.covers, 0, plan.covers, 1))
        assert made.standing == stands, pause_s


def test_a_primary_hands_over_to_the_process_that_shows_in_its_answer_that_it_has_everything() -> None:
    """The former process of the successor holds more than the next one has shown."""
    made = primary(leased())
    index, _ = made.propose(0.1, WRITE, 1)
    for peer, plan in plans(made).items():
        made.replied(0.1, peer, Sent(0.1, plan, process(peer, 1)), agrees(plan, index))
    made.step_down(0.2, "b")
    made.tick(0.2)
    sent = plans(made)
    made.replied(0.2, "b", Sent(0.15, sent["b"], process("b", 1)), agrees(sent["b"], index))
    assert made.handing_over, "the message left before the hand-over began"
    made.replied(0.3, "b", Sent(0.25, sent["b"], process("b", 2)), agrees(sent["b"], index - 1))
    assert made.handing_over, "this process has not shown that it has the last entry"
    made.replied(0.3, "b", Sent(0.25, sent["b"], process("b", 2)), agrees(sent["b"], index))
    assert made.asked is not None and (made.asked.primary, made.successor) == ("b", process("b", 2))


def process(uuid: str, number: int) -> ServerInstance:
    return ServerInstance(uuid, number, f"start {number}")


def agrees(plan: AppendPlan, match: int) -> AppendReply:
    return AppendReply(1, True, match, 0, match, 1)


def test_a_hand_over_ends_when_its_successor_loses_its_vote() -> None:
    made = primary(leased())
    made.step_down(0.1, "b")
    members = next_members(FIRST, (), ["b"])
    made.appoint(0.2, appointed(replace(FIRST, peers=members), "a"), 1)
    assert not made.handing_over
    made.propose(0.3, WRITE, 1)


def test_a_primary_whose_disk_is_late_steps_down_for_a_voter_whose_disk_is_not() -> None:
    lease = leased()
    made = primary(lease)
    index, _ = made.propose(0.1, WRITE, 1)
    late_since = 0.2
    for peer, plan in plans(made).items():
        made.replied(late_since, peer, Sent(0.1, plan), AppendReply(1, True, plan.covers, 0, plan.covers, 1))
    now = late_since
    while now < late_since + LIMITS.stalled_s - 0.1:
        now += 0.1
        renew(lease, now)
        made.tick(now)
        for peer, plan in plans(made).items():
            made.replied(now, peer, Sent(now, plan), AppendReply(1, True, plan.covers, 0, plan.covers, 1))
        assert made.standing == PRIMARY and made.next_wake(now) <= late_since + LIMITS.stalled_s
    assert made.commit_index == index - 1
    now = late_since + LIMITS.stalled_s
    made.tick(now)
    assert made.standing == PRIMARY and made.handing_over, "the successor may have died a moment ago"
    made.tick(now + LIMITS.heartbeat_s)
    for peer, plan in plans(made).items():
        made.replied(
            now + 0.2, peer, Sent(now + 0.15, plan), AppendReply(1, True, plan.covers, 0, plan.covers, 1)
        )
    assert made.standing == INACTIVE and made.asked is not None
    assert (made.asked.primary, made.asked.peer("a").kind) == ("b", PRE_VOTER)  # type: ignore[union-attr]
