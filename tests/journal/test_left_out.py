"""Nodes that the writer has left out: how that is reported, and when they return."""

from __future__ import annotations

import asyncio

from ebla.actors.journal.errors import QuorumFailed
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.chaos.simulation.medium import COMMIT_S
from tests.journal.raw import Raw
from tests.journal.stage import A, B, C, Stage, play, status_of, writer_of
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
