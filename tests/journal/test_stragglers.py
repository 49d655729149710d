"""A node whose channel waits for an answer that never comes delays other requests for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import QuorumFailed
from ebla.actors.journal.writer.writer import JournalWriter
from tests.journal.line import Line, without
from tests.journal.stage import JOURNAL, A, B, Stage, play, writer_of
from tests.staged import staged

PARTITION_S = 5.0


async def cut_off_for_a_while(stage: Stage, writer: JournalWriter) -> None:
    """From A, whose request under way is lost."""
    me = writer.session.world.address
    stage.cluster.network.cut(me, A)
    await asyncio.sleep(PARTITION_S)
    stage.cluster.network.mend(me, A)


@pytest.mark.parametrize("step", ["open", "roll"])
@staged(play)
async def test_a_lost_request_blocks_its_channel_no_longer_than_a_write(stage: Stage, step: str) -> None:
    await (await writer_of(stage)).append(b"of a former writer")
    writer = JournalWriter(stage.world(), stage.options)
    if step == "roll":
        await writer.open()
        await writer.begin()
    partition = asyncio.ensure_future(cut_off_for_a_while(stage, writer))
    await asyncio.sleep(0)
    await (writer.roll() if step == "roll" else writer.open())
    if step == "open":
        await writer.begin()
    await partition
    await asyncio.sleep(stage.options.write_timeout_s)
    stage.cluster.crash(B)
    began = stage.cluster.loop.time()
    await writer.append(b"by A and C")
    assert stage.cluster.loop.time() - began < 1.0


@staged(play)
async def test_a_lost_acceptance_is_repeated_after_the_time_of_a_write(stage: Stage) -> None:
    await (await writer_of(stage)).append(b"of a former writer")
    network, lost = stage.cluster.network, set[str]()

    async def lose_the_first(node: str, method: str) -> None:
        if method == "accept_recovery" and node not in lost:
            lost.add(node)
            me = writer.session.world.address
            network.cut(me, node)
            stage.cluster.loop.call_later(1.0, network.mend, me, node)

    writer = JournalWriter(stage.line_world(Line(before=lose_the_first)), stage.options)
    began = stage.cluster.loop.time()
    await writer.open()
    assert lost == set(stage.nodes)
    assert 0 <= stage.cluster.loop.time() - began - stage.options.write_timeout_s < 1.0


@staged(play)
async def test_an_acceptance_without_an_answer_fails_in_time(stage: Stage) -> None:
    await (await writer_of(stage)).append(b"of a former writer")

    async def lose(node: str, method: str) -> None:
        if method == "accept_recovery":
            stage.cluster.network.isolate(node)

    line = Line(before=lose)
    writer = JournalWriter(stage.line_world(line), stage.options)
    began = stage.cluster.loop.time()
    with pytest.raises(QuorumFailed, match="recover segment"):
        await writer.open()
    assert stage.cluster.loop.time() - began < stage.options.recovery_timeout_s + 1.0
    tries = stage.options.recovery_timeout_s // stage.options.write_timeout_s
    assert line.trace[A].count("accept_recovery") == tries


@staged(play)
async def test_a_repeated_acceptance_waits_for_the_download_of_the_first(stage: Stage) -> None:
    writer = await writer_of(stage, without(A))
    await writer.append(b"that A lacks")
    newest = stage.view(B).newest()
    assert newest is not None
    downloads, may_end = 0, asyncio.Event()

    async def pages(segment: m.SegmentState) -> AsyncIterator[tuple[bytes, ...]]:
        nonlocal downloads
        downloads += 1
        await may_end.wait()
        async for page in stage.role(A).pages(JOURNAL, segment, [B]):
            yield page

    journal, epoch = stage.role(A).journals[JOURNAL.name], writer.session.epoch + 1
    requests = [m.AcceptRequest(stage.stamp(epoch, serial), newest.state, (B,)) for serial in (1, 2)]
    answers = [asyncio.ensure_future(journal.accept(each, pages)) for each in requests]
    await stage.outside.clock.sleep(0.1)
    may_end.set()
    assert await asyncio.gather(*answers) == [m.Done(), m.Done()]
    assert downloads == 1
    assert stage.view(A).state.serial == 2


@staged(play)
async def test_a_writer_behind_slow_requests_ends_within_the_time_of_a_write(stage: Stage) -> None:
    await (await writer_of(stage)).append(b"of a former writer")

    async def downloads_for_long(node: str, method: str) -> None:
        if (node, method) == (A, "accept_recovery"):
            await asyncio.sleep(stage.options.recovery_timeout_s - 1.0)

    writer = await writer_of(stage, Line(before=downloads_for_long))
    await writer.append(b"by B and C")
    stage.cluster.crash(B)
    began = stage.cluster.loop.time()
    with pytest.raises(QuorumFailed, match="journal/a: no answer yet") as failed:
        await writer.append(b"by C alone")
    assert failed.value.possibly_applied
    assert stage.cluster.loop.time() - began <= stage.options.write_timeout_s
    assert writer.failed is not None
