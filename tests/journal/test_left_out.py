"""Nodes that do not answer delay a writer for a bounded time; nodes that it has left out are reported, and return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import QuorumFailed
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.chaos.simulation.medium import COMMIT_S
from tests.journal.line import Line, without
from tests.journal.raw import Raw
from tests.journal.stage import JOURNAL, A, B, C, Stage, play, status_of, writer_of
from tests.staged import staged


async def edits_of(stage: Stage) -> list[bytes]:
    """The edits that the next writer finds."""
    await writer_of(stage)
    stage.judge_copies()
    page = await stage.reader().read_all(stage.reader().beginning())
    return [edit for _, edit in page.edits]


async def until_out_of_sync(writer: JournalWriter, node: str, wanted: bool) -> None:
    for _ in range(300):
        if status_of(writer, node).out_of_sync == wanted:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{status_of(writer, node)}, after 30 s")


@staged(play, segment_s=30.0)
async def test_a_node_that_missed_the_start_of_a_segment_returns_without_writes(stage: Stage) -> None:
    stage.cluster.crash(C)
    writer = await writer_of(stage)
    await asyncio.sleep(60.0)
    assert status_of(writer, C).out_of_sync and "is down" in status_of(writer, C).error
    assert writer.segment == 1, "a dead node causes no new segment"
    await stage.cluster.restart(C)
    await asyncio.sleep(15.0)
    status = status_of(writer, C)
    assert (status.out_of_sync, status.error) == (False, "")
    assert stage.view(C).last == writer.committed
    segment = writer.segment
    await asyncio.sleep(60.0)
    assert writer.segment == segment, "once is enough"
    stage.cluster.crash(A)
    await writer.append(b"with the other two")


@staged(play, segment_s=1000.0, return_s=10.0)
async def test_a_restarted_node_is_left_out_and_returns_without_writes(stage: Stage) -> None:
    writer = await writer_of(stage)
    for node in (A, B):
        await asyncio.sleep(60.0)
        segment = writer.segment
        await stage.cluster.restart(node)
        await until_out_of_sync(writer, node, True)
        assert "was started again" in status_of(writer, node).error
        assert writer.segment == segment
        await until_out_of_sync(writer, node, False)
        assert writer.segment > segment
    await asyncio.sleep(60.0)
    assert len(stage.view(C).all()) == 3, "once for each is enough"
    stage.cluster.crash(C)
    await writer.append(b"with the two that were started again")


@staged(play)
async def test_a_node_that_promised_to_a_failed_contender_returns_in_a_higher_epoch(stage: Stage) -> None:
    writer = await writer_of(stage)
    began = writer.session.epoch
    await Raw(stage, began + 5).promise(C)
    await until_out_of_sync(writer, C, True)
    assert status_of(writer, C).error.startswith("StaleEpoch: ")
    await writer.append(b"by A and B")
    await until_out_of_sync(writer, C, False)
    assert (writer.failed, writer.session.epoch) == (None, began + 6)
    stage.cluster.crash(A)
    await writer.append(b"by B and C")
    writer.close()
    await stage.cluster.restart(A)
    assert await edits_of(stage) == [b"by A and B", b"by B and C"]


@staged(play, segment_s=1000.0)
async def test_a_writer_raises_its_epoch_once_per_contender(stage: Stage) -> None:
    writer = await writer_of(stage)
    await Raw(stage, writer.session.epoch + 1).promise(C)
    await until_out_of_sync(writer, C, True)
    stage.cluster.crash(C)
    await asyncio.sleep(60.0)
    segment, epoch = writer.segment, writer.session.epoch
    await asyncio.sleep(120.0)
    assert (writer.segment, writer.session.epoch) == (segment, epoch), (
        "a new segment would bring no node back"
    )
    await stage.cluster.restart(C)
    await until_out_of_sync(writer, C, False)
    epoch = writer.session.epoch
    await asyncio.sleep(120.0)
    assert writer.session.epoch == epoch, "once is enough"


@staged(play)
async def test_a_writer_keeps_its_epoch_if_a_majority_promised_to_a_contender(stage: Stage) -> None:
    writer = await writer_of(stage)
    await writer.append(b"acknowledged")
    contender = Raw(stage, writer.session.epoch + 1)
    await contender.promise(C)
    await until_out_of_sync(writer, C, True)
    await contender.promise(B)
    assert isinstance(await writer.ended(), QuorumFailed)
    assert await edits_of(stage) == [b"acknowledged"]


@staged(play)
async def test_requests_under_way_keep_their_epoch(stage: Stage) -> None:
    writer = await writer_of(stage)
    await Raw(stage, writer.session.epoch + 1).promise(C)
    await until_out_of_sync(writer, C, True)
    stage.cluster.state(B).commit_s = (0.3, 0.3)
    writing = [asyncio.ensure_future(writer.append(b"x%d" % number)) for number in range(20)]
    await asyncio.gather(*writing, writer.roll())
    stage.cluster.state(B).commit_s = COMMIT_S
    await asyncio.sleep(5.0)
    assert not any(status.out_of_sync or status.error for status in writer.statuses())
    assert [stage.view(node).last for node in (A, B, C)] == [writer.committed] * 3


@staged(play, segment_s=30.0)
async def test_a_node_with_a_full_disk_is_left_out_with_the_reason(stage: Stage) -> None:
    writer = await writer_of(stage)
    stage.cluster.state(C).fill()
    await writer.append(b"1")
    await asyncio.sleep(40.0)
    segment = writer.segment
    status = status_of(writer, C)
    assert status.out_of_sync and status.error.startswith("DiskFull: ") and status.error in str(status)
    await asyncio.sleep(120.0)
    assert writer.segment == segment and status_of(writer, C).error == status.error
    stage.cluster.state(C).free()
    await asyncio.sleep(15.0)
    assert not status_of(writer, C).out_of_sync


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
