"""Copies from a source with little bandwidth or with the highest number of sessions; what waits for a copy and what does not."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.raft import VoteReply, VoteRequest
from ebla.actors.messages.stream import AppendRequest
from ebla.actors.tablet.engine.records import Superblock
from ebla.actors.tablet.engine.replica import Replica
from ebla.storage.errors import EblaError
from tests.tablet.copies import (
    copied,
    copying,
    deleted,
    ended,
    entomb,
    fill,
    filled,
    request,
    same_rows,
    start,
    until,
)
from tests.tablet.harness import OTHER, TABLET, Group, held, row, simulated
from tests.tablet.test_tombstones import exclude

SLOW = 1500  # bytes per second: a chunk takes longer than a call's timeout


@simulated(copy_bytes_per_s=SLOW)
async def test_a_copy_over_little_bandwidth_succeeds_at_the_first_attempt(group: Group) -> None:
    leader, target, other = await deleted(group, 600)
    clock, source, server = group.client.clock, group.server(leader), group.server(target)
    await start(group, target, leader)
    began = clock.monotonic()
    await until(group, lambda: not server.copies.jobs, "the copy ends", 300.0)
    assert (server.copies.done, server.copies.failed) == (1, 0)
    assert source.copy_sources.sent_bytes > 20 * SLOW
    assert source.copy_sources.sent_bytes <= (clock.monotonic() - began) * SLOW
    await same_rows(group, target, other)


@simulated(copy_bytes_per_s=100_000)
async def test_list_copies_shows_progress_and_the_bytes_of_ended_copies(group: Group) -> None:
    leader, target, _ = await deleted(group, 3000)
    await start(group, target, leader)
    server, seen = group.server(target), []
    while jobs := (await group.ask(target, "list_copies", m.Empty(), m.CopyJobs)).jobs:
        seen.append(jobs[0])
        await group.sleep(0.1)
    assert len({job.copied_bytes for job in seen}) > 3
    assert {job.phase for job in seen[:-5]} == {"data"}
    (ended_as,) = (await group.ask(target, "list_copies", m.Empty(), m.CopyJobs)).ended
    assert ended_as.copied_bytes == server.copies.copied_bytes >= seen[-1].copied_bytes > 0


@simulated(copy_bytes_per_s=SLOW)
async def test_the_unsent_bytes_of_an_ended_copy_delay_no_other(group: Group) -> None:
    leader, target, _ = await deleted(group, 600)
    bandwidth = group.server(leader).copy_sources.bandwidth
    owed = []
    for _ in range(4):
        await start(group, target, leader)
        await group.sleep(2.0)
        owed.append(bandwidth.take(0) - group.server(leader).world.clock.monotonic())
        await group.server(target).deletion.cancel_copy(TABLET)
        await until(group, lambda: not len(group.server(leader).copy_sources), "the source ends its session")
    assert owed[0] > 10.0
    assert max(owed) < 1.5 * owed[0]


@simulated(copy_sessions_max=1, copy_bytes_per_s=20_000)
async def test_a_source_at_its_session_limit_refuses_others_until_one_ends(group: Group) -> None:
    """S15 of the reference: busy sources refuse, nothing is changed, and a later request succeeds."""
    await group.create(OTHER)
    leader, target, other = await group.roles()
    await group.lead(leader, OTHER)
    await fill(group, 400)
    await entomb(group, target)
    await until(group, lambda: bool(group.server(target).copies.jobs), "the leader asks for a copy")
    await entomb(group, other, OTHER)
    with pytest.raises(errors.Throttled) as refused:
        await start(group, other, leader, tablet=OTHER)
    assert refused.value.limit == "copy_sessions_max"
    assert group.state_of(other, OTHER) == m.DELETED
    assert not group.server(other).copies.jobs
    await ended(group, target)
    assert group.state_of(target) == m.RUNNING
    await copied(group, other, leader, tablet=OTHER)


@simulated()
async def test_a_late_copy_request_makes_no_replica_on_a_nonmember(group: Group) -> None:
    leader, target, _ = await filled(group, 50)
    late = request(group, target, leader, state=m.DELETED)
    await group.delete(target, await exclude(group, target))
    with pytest.raises(errors.IllegalState, match="no member"):
        await group.ask(target, "start_copy", late, m.Empty, 12.0)
    assert group.state_of(target) == m.DELETED
    assert not len(group.server(leader).copy_sources)


@simulated(copy_bytes_per_s=20_000)
async def test_heartbeats_and_votes_do_not_wait_for_the_removal_of_a_copys_data(group: Group) -> None:
    """They share a message with those of all other tablets, whose leases depend on them."""
    leader, target, _ = await copying(group, 600)
    server = group.server(target)
    _, over = held(server.world.disk, "remove")
    server.copies.jobs[TABLET].cancel()
    await group.sleep(1.0)
    assert server.copies.jobs and server.lifecycle.state_of(TABLET) == m.DELETED
    core = group.replica(leader).core
    vote = VoteRequest(core.term + 1, core.me, 10**6, core.term, pre_vote=False, ignore_live_leader=True)
    reply = await group.replicate(target, leader, AppendRequest(core.term, core.me, 0, 0, (), 0), vote)
    assert reply.refusals == ("tablet_deleted", None)
    assert isinstance(reply.answers[1], VoteReply) and reply.answers[1].granted
    over.set()
    await ended(group, target)


@simulated()
async def test_heartbeats_do_not_wait_until_a_copy_becomes_a_replica(group: Group) -> None:
    leader, target, _ = await deleted(group, 100)
    server, begun, over = group.server(target), asyncio.Event(), asyncio.Event()
    save = server.lifecycle.superblocks.save

    async def slowly(name: str, superblock: Superblock) -> None:
        if superblock.state == "ready":
            begun.set()
            await over.wait()
        await save(name, superblock)

    server.lifecycle.superblocks.save = slowly  # type: ignore[method-assign, assignment]
    await start(group, target, leader)
    await begun.wait()
    core = group.replica(leader).core
    reply = await group.replicate(target, leader, AppendRequest(core.term, core.me, 0, 0, (), 0))
    assert reply.refusals == ("tablet_copying",)
    over.set()
    await ended(group, target)
    assert server.lifecycle.state_of(TABLET) == m.RUNNING
    assert await group.upsert(row(1))
    assert group.alive(target)


# -- sessions that begin slowly, and many requests for one at once


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
    tablets = await group.create_many(10)
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
