"""Copy sessions that begin slowly, and many requests for one at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine.replica import Replica
from ebla.storage.errors import EblaError
from tests.tablet.copies import fill
from tests.tablet.harness import TABLET, Group, simulated

SLOW_S = 1.0


def slow(group: Group, host: str) -> None:
    """Delay the flush with which a session begins on the host by a second."""
    sessions = group.server(host).copy_sources
    flush = sessions.flush

    async def slowly(replica: Replica) -> Any:
        await group.sleep(SLOW_S)
        return await flush(replica)

    sessions.flush = slowly


async def begin(group: Group, source: str, target: str, tablet: str = TABLET) -> tuple[str, float]:
    """Ask for a session; return the outcome and its time."""
    replica, asking = group.replica(source, tablet), group.uuid(target)
    request = m.BeginCopyRequest(group.uuid(source), tablet, asking, replica.core.term)
    began = group.client.clock.monotonic()
    try:
        await group.ask(source, "begin_copy_session", request, m.CopyBegun, 10.0)
        outcome = "begun"
    except EblaError as error:
        outcome = type(error).__name__ if error.retriable else str(error)
    return outcome, group.client.clock.monotonic() - began


@simulated(copy_sessions_max=20)
async def test_of_many_requests_for_one_session_one_succeeds_and_others_fail_at_once(group: Group) -> None:
    """S6 of the reference: ten tablets, five requests for each; sessions of different tablets begin side by side."""
    tablets = [f"{number:032x}" for number in range(1, 11)]
    for tablet in tablets:
        await group.create(tablet)
    source = await group.leader(tablets[0])
    target = next(host for host in group.hosts if host != source)
    for tablet in tablets:
        await group.lead(source, tablet)
    slow(group, source)
    asked = [begin(group, source, target, tablet) for tablet in tablets for _ in range(5)]
    began = group.client.clock.monotonic()
    answers = await asyncio.gather(*asked)
    assert group.client.clock.monotonic() - began < 2 * SLOW_S
    assert Counter(outcome for outcome, _ in answers) == {"begun": 10, "Throttled": 40}
    assert all(took < SLOW_S / 2 for outcome, took in answers if outcome == "Throttled")
    open_now = group.server(source).copy_sources.all()
    assert sorted(session.replica.tablet for session in open_now) == tablets


@simulated(copy_sessions_max=1)
async def test_beginning_sessions_count_for_the_limit(group: Group) -> None:
    source = await group.leader()
    followers = await group.followers()
    await fill(group, 50)
    slow(group, source)
    answers = await asyncio.gather(*(begin(group, source, target) for target in followers))
    assert sorted(outcome for outcome, _ in answers) == ["Throttled", "begun"]
    sessions = group.server(source).copy_sources
    assert len(sessions) == 1
    sessions.close_tablet(TABLET)
    assert (await begin(group, source, followers[1]))[0] == "begun", "the session's place is free again"


@simulated(copy_sessions_max=1)
async def test_a_session_that_failed_to_begin_takes_no_place(group: Group) -> None:
    source = await group.leader()
    target, _ = await group.followers()
    await fill(group, 50)
    sessions = group.server(source).copy_sources
    flush = sessions.flush

    async def fails(replica: Replica) -> Any:
        raise errors.Unavailable("for a test")

    sessions.flush = fails
    assert (await begin(group, source, target))[0] == "Unavailable"
    sessions.flush = flush
    assert (await begin(group, source, target))[0] == "begun"
