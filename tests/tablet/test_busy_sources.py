"""Copies from a source that has little bandwidth, or as many sessions as it may; and what waits for a copy, and what does not."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.raft import AppendRequest, VoteReply, VoteRequest
from ebla.actors.tablet.engine.records import Superblock
from tests.tablet.copies import copied, copying, ended, entomb, fill, request, same_rows, start, until
from tests.tablet.harness import TABLET, Group, address, row, simulate
from tests.tablet.test_tombstones import delete, exclude

SLOW = 1500  # bytes per second: a chunk takes longer than anybody waits for an answer
SECOND = "1" * 32


def test_a_copy_over_little_bandwidth_takes_its_time_and_succeeds_at_once() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 600)
        await entomb(group, target)
        clock, source, server = group.client.clock, group.server(leader), group.server(target)
        await start(group, target, leader)
        began = clock.monotonic()
        await until(group, lambda: not server.copies.jobs, "the copy ends", 300.0)
        assert (server.copies.done, server.copies.failed) == (1, 0)
        assert source.copy_sources.sent_bytes > 20 * SLOW
        assert source.copy_sources.sent_bytes <= (clock.monotonic() - began) * SLOW
        await same_rows(group, target, other)

    simulate(scenario, copy_bytes_per_s=SLOW)


def test_who_looks_at_a_copy_over_little_bandwidth_sees_it_go_on_and_what_it_brought() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 3000)
        await entomb(group, target)
        await start(group, target, leader)
        server, seen = group.server(target), []
        while jobs := (await group.ask(target, "list_copies", m.Empty(), m.CopyJobs)).jobs:
            seen.append(jobs[0])
            await group.sleep(0.1)
        assert len({job.copied_bytes for job in seen}) > 3
        assert {job.phase for job in seen[:-5]} == {"data"}
        (ended_as,) = (await group.ask(target, "list_copies", m.Empty(), m.CopyJobs)).ended
        assert ended_as.copied_bytes == server.copies.copied_bytes >= seen[-1].copied_bytes > 0

    simulate(scenario, copy_bytes_per_s=100_000)


def test_what_a_copy_that_ended_had_not_sent_holds_up_no_other() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 600)
        await entomb(group, target)
        bandwidth = group.server(leader).copy_sources.bandwidth
        owed = []
        for _ in range(4):
            await start(group, target, leader)
            await group.sleep(2.0)
            owed.append(bandwidth.take(0) - group.server(leader).world.clock.monotonic())
            await group.server(target).deletion.cancel_copy(TABLET)
            await until(group, lambda: not len(group.server(leader).copy_sources), "the source lets go")
        assert owed[0] > 10.0
        assert max(owed) < 1.5 * owed[0]

    simulate(scenario, copy_bytes_per_s=SLOW)


def test_a_source_with_as_many_sessions_as_it_may_have_refuses_others_until_one_ends() -> None:
    """S15 of the reference: busy sources refuse, nothing is changed, and who asks again succeeds."""

    async def scenario(group: Group) -> None:
        await group.create(SECOND)
        leader = await group.leader()
        target, other = await group.followers()
        uuid = group.server(leader).instance.uuid
        group.leader_hint = None
        if (led := await group.leader(SECOND)) != leader:
            await group.ask(led, "step_down", m.StepDownRequest(SECOND, uuid), m.StepDownReply, 10.0)
            await until(group, lambda: group.replica(leader, SECOND).leads, "one server leads both")
        await fill(group, 400)
        await entomb(group, target)
        await entomb(group, other, SECOND)
        await start(group, target, leader)
        with pytest.raises(errors.Throttled) as refused:
            await start(group, other, leader, tablet=SECOND)
        assert refused.value.limit == "copy_sessions_max"
        assert group.server(other).lifecycle.state_of(SECOND) == m.DELETED
        assert not group.server(other).copies.jobs
        await ended(group, target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.RUNNING
        await copied(group, other, leader, tablet=SECOND)

    simulate(scenario, copy_sessions_max=1, copy_bytes_per_s=20_000)


def test_a_late_request_for_a_copy_makes_no_replica_on_a_server_that_is_no_member() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 50)
        late = request(group, target, leader, state=m.DELETED)
        await delete(group, target, await exclude(group, target))
        with pytest.raises(errors.IllegalState, match="no member"):
            await group.ask(target, "start_copy", late, m.Empty, 12.0)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED
        assert not len(group.server(leader).copy_sources)

    simulate(scenario)


async def told(
    group: Group, host: str, sender: str, *requests: AppendRequest | VoteRequest
) -> peers.EnvelopeReply:
    source = group.server(sender)
    envelope = source.identity.envelope(
        group.server(host).instance.uuid, tuple((TABLET, each) for each in requests)
    )
    reply: peers.EnvelopeReply = await group.ask(host, "replicate", envelope, peers.EnvelopeReply, 2.0)
    return reply


def test_heartbeats_and_votes_do_not_wait_for_the_data_of_a_copy_that_is_undone() -> None:
    """They travel in one message with those of all other tablets, whose leases stand on them."""

    async def scenario(group: Group) -> None:
        leader, target, _ = await copying(group, 600)
        server, over = group.server(target), asyncio.Event()
        remove = server.world.disk.remove

        async def slowly(path: str) -> None:
            await over.wait()
            await remove(path)

        server.world.disk.remove = slowly  # type: ignore[method-assign]
        server.copies.jobs[TABLET].cancel()
        await group.sleep(1.0)
        assert server.copies.jobs and server.lifecycle.state_of(TABLET) == m.DELETED
        core = group.replica(leader).core
        vote = VoteRequest(core.term + 1, core.me, 10**6, core.term, pre_vote=False, ignore_live_leader=True)
        reply = await told(group, target, leader, AppendRequest(core.term, core.me, 0, 0, (), 0), vote)
        assert reply.refusals == ("tablet_deleted", None)
        assert isinstance(reply.answers[1], VoteReply) and reply.answers[1].granted
        over.set()
        await ended(group, target)

    simulate(scenario, copy_bytes_per_s=20_000)


def test_heartbeats_do_not_wait_until_a_copy_has_become_a_replica() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 100)
        await entomb(group, target)
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
        reply = await told(group, target, leader, AppendRequest(core.term, core.me, 0, 0, (), 0))
        assert reply.refusals == ("tablet_copying",)
        over.set()
        await ended(group, target)
        assert server.lifecycle.state_of(TABLET) == m.RUNNING
        assert await group.upsert(row(1))
        assert group.cluster.alive(address(target))

    simulate(scenario)
