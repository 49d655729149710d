"""A node whose channel waits for an answer that never comes delays other requests for a bounded time."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.journal.errors import QuorumFailed
from ebla.actors.journal.writer.writer import JournalWriter
from tests.journal.line import Line
from tests.journal.stage import A, B, Stage, play, writer_of
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
