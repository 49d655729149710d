"""Copy sessions that are slow to begin, and many who ask for one at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine.replica import Replica
from ebla.storage.errors import EblaError
from tests.tablet.copies import fill
from tests.tablet.harness import TABLET, Group, simulate
from tests.tablet.test_recovery import lead

SLOW_S = 1.0


def slow(group: Group, host: str) -> None:
    """What comes first when a session begins there takes a second."""
    sessions = group.server(host).copy_sources
    flush = sessions.flush

    async def slowly(replica: Replica) -> Any:
        await group.sleep(SLOW_S)
        return await flush(replica)

    sessions.flush = slowly


async def begin(group: Group, source: str, target: str, tablet: str = TABLET) -> tuple[str, float]:
    """What came of it, and how long that took."""
    replica, asking = group.replica(source, tablet), group.server(target).instance.uuid
    request = m.BeginCopyRequest(group.server(source).instance.uuid, tablet, asking, replica.core.term)
    began = group.client.clock.monotonic()
    try:
        await group.ask(source, "begin_copy_session", request, m.CopyBegun, 10.0)
        told = "begun"
    except EblaError as error:
        told = type(error).__name__ if error.retriable else str(error)
    return told, group.client.clock.monotonic() - began


def test_of_many_who_begin_one_session_at_once_one_succeeds_and_the_others_fail_at_once() -> None:
    """S6 of the reference: ten tablets, five requests for each; sessions of different tablets begin side by side."""
    tablets = [f"{number:032x}" for number in range(1, 11)]

    async def scenario(group: Group) -> None:
        for tablet in tablets:
            await group.create(tablet)
        source = await group.leader(tablets[0])
        target = next(host for host in group.hosts if host != source)
        for tablet in tablets:
            await lead(group, source, tablet)
        slow(group, source)
        asked = [begin(group, source, target, tablet) for tablet in tablets for _ in range(5)]
        began = group.client.clock.monotonic()
        answers = await asyncio.gather(*asked)
        assert group.client.clock.monotonic() - began < 2 * SLOW_S
        assert Counter(told for told, _ in answers) == {"begun": 10, "Throttled": 40}
        assert all(took < SLOW_S / 2 for told, took in answers if told == "Throttled")
        open_now = group.server(source).copy_sources.all()
        assert sorted(session.replica.tablet for session in open_now) == tablets

    simulate(scenario, copy_sessions_max=20)


def test_sessions_that_are_just_beginning_count_for_the_bound() -> None:
    async def scenario(group: Group) -> None:
        source = await group.leader()
        followers = await group.followers()
        await fill(group, 50)
        slow(group, source)
        answers = await asyncio.gather(*(begin(group, source, target) for target in followers))
        assert sorted(told for told, _ in answers) == ["Throttled", "begun"]
        sessions = group.server(source).copy_sources
        assert len(sessions) == 1
        sessions.close_tablet(TABLET)
        assert (await begin(group, source, followers[1]))[0] == "begun", "the place is free again"

    simulate(scenario, copy_sessions_max=1)


def test_a_beginning_that_failed_leaves_no_place_taken() -> None:
    async def scenario(group: Group) -> None:
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

    simulate(scenario, copy_sessions_max=1)
