"""Nodes that the writer has left out: who is told of it and why, and with what they are back."""

from __future__ import annotations

import asyncio

from ebla.actors.journal import messages as m
from ebla.actors.journal.writer import JournalWriter
from tests.journal.stage import JOURNAL, Stage, play, status_of, writer_of

A, B, C = "journal/a", "journal/b", "journal/c"


async def until_out_of_sync(writer: JournalWriter, node: str, wanted: bool) -> None:
    for _ in range(300):
        if status_of(writer, node).out_of_sync == wanted:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{status_of(writer, node)}, after 30 s")


def test_a_node_that_was_away_when_the_segment_began_is_back_soon_though_nobody_writes():
    async def scenario(stage: Stage) -> None:
        stage.cluster.crash(C)
        writer = await writer_of(stage)
        await asyncio.sleep(60.0)
        assert status_of(writer, C).out_of_sync and "is down" in status_of(writer, C).error
        assert writer.segment == 1, "a dead node is no reason for another segment"
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

    play(scenario, segment_s=30.0)


def test_a_node_that_was_started_again_while_nobody_writes_is_left_out_and_back_soon():
    async def scenario(stage: Stage) -> None:
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

    play(scenario, segment_s=1000.0, return_s=10.0)


def test_a_node_that_promised_a_later_epoch_to_somebody_without_a_majority_is_told_of_with_the_remedy():
    async def scenario(stage: Stage) -> None:
        writer = await writer_of(stage)
        await stage.ask(C, "new_epoch", m.NewEpochRequest(JOURNAL, writer.session.epoch + 1), m.NewEpochReply)
        await until_out_of_sync(writer, C, True)
        status = status_of(writer, C)
        assert status.superseded and status.error.startswith("StaleEpoch: ")
        assert "back with the next epoch, which `ebla master failover` begins" in str(status)
        await writer.append(b"by A and B")
        writer.close()
        writer = await writer_of(stage)
        await writer.append(b"by all")
        assert not status_of(writer, C).out_of_sync

    play(scenario)


def test_a_node_with_a_full_disk_is_left_out_with_the_reason_and_no_segment_is_begun_for_it():
    async def scenario(stage: Stage) -> None:
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

    play(scenario, segment_s=30.0)
