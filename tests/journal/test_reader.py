"""Readers get all edits that are certain to stay, from any nodes that have them."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.journal.errors import EditsGone, JournalBroken, QuorumFailed
from ebla.actors.journal.writer.reader import JournalReader, Position
from ebla.storage.errors import Corruption
from tests.journal.line import Line
from tests.journal.raw import digest, edits_of
from tests.journal.stage import JOURNAL, A, B, C, Stage, play, writer_of
from tests.staged import staged


async def three_segments(stage: Stage, missing: str | None = None) -> None:
    """Segments 1-3, 4-6, 7-9, all final; `missing` lacks the middle one."""
    hand = stage.hand()
    await hand.recover()
    for number in range(3):
        if missing and number == 1:
            stage.cluster.network.isolate(missing)
        await hand.write(3)
        await hand.finalize()
        if missing and number == 1:
            await asyncio.sleep(200.0)
            stage.cluster.network.rejoin(missing)
    await asyncio.sleep(1.0)
    hand.session.close()


async def everything(stage: Stage, *, in_progress: bool = False) -> list[bytes]:
    reader = stage.reader()
    return [edit for _, edit in (await reader.read_all(reader.beginning(), in_progress=in_progress)).edits]


@staged(play)
async def test_a_reader_combines_the_segments_of_several_nodes(stage: Stage) -> None:
    await three_segments(stage, missing=A)
    assert [segment.start for segment in stage.view(A).all()] == [1, 7]
    stage.cluster.crash(C)
    assert await everything(stage) == list(edits_of(1, 1, 9))


@staged(play)
async def test_a_reader_asks_for_the_segment_lists_only_twice(stage: Stage) -> None:
    await three_segments(stage)
    line = Line()
    reader = JournalReader(stage.line_world(line), stage.options)
    read = await reader.read_all(reader.beginning())
    assert [edit for _, edit in read.edits] == list(edits_of(1, 1, 9))
    assert {node: asked.count("manifest") for node, asked in line.trace.items()} == {A: 2, B: 2, C: 2}
    assert sum(asked.count("read") for asked in line.trace.values()) == 3


@staged(play)
async def test_without_a_majority_a_reader_names_the_silent_nodes(stage: Stage) -> None:
    await three_segments(stage)
    stage.cluster.crash(A)
    stage.cluster.crash(C)
    with pytest.raises(QuorumFailed) as failed:
        await everything(stage)
    assert [said.split(":")[0] for said in failed.value.nodes] == [A, B, C]


@staged(play)
async def test_a_reader_waits_for_a_segment_of_a_silent_node(stage: Stage) -> None:
    await three_segments(stage, missing=A)
    stage.view(B).segments.pop(4)  # as if b had missed it too
    stage.cluster.crash(C)
    with pytest.raises(Unavailable, match="edit 4"):
        await everything(stage)


@staged(play)
async def test_edits_in_progress_are_read_up_to_what_is_committed_and_only_on_request(stage: Stage) -> None:
    writer = await writer_of(stage)
    for number in range(5):
        await writer.append(b"%d" % number)
    assert await everything(stage) == []
    assert await everything(stage, in_progress=True) == [b"0", b"1", b"2", b"3"]
    await asyncio.sleep(2.0)  # the nodes learn of the last one by a heartbeat
    assert await everything(stage, in_progress=True) == [b"0", b"1", b"2", b"3", b"4"]
    await writer.roll()
    assert await everything(stage) == [b"0", b"1", b"2", b"3", b"4"]


@staged(play)
async def test_a_reader_refuses_a_copy_that_does_not_continue(stage: Stage) -> None:
    await three_segments(stage)
    reader = stage.reader()
    right, wrong = Position(3, digest(1, 1, 3)), Position(3, digest(2, 1, 3))
    assert (await reader.read(right)).edits == list(enumerate(edits_of(1, 4, 6), 4))
    with pytest.raises(JournalBroken, match="up to edit 3 is not what journal/"):
        await reader.read(wrong)


@staged(play)
async def test_after_a_purge_the_rest_can_be_read(stage: Stage) -> None:
    await three_segments(stage)
    purging = stage.hand()
    await purging.recover()
    await purging.session.purge(7)
    await asyncio.sleep(1.0)
    with pytest.raises(EditsGone, match="checkpoint"):
        await everything(stage)
    reader = JournalReader(stage.outside, stage.options)
    page = await reader.read_all(Position(6))
    assert [edit for _, edit in page.edits] == list(edits_of(1, 7, 9))


@staged(play)
async def test_a_damaged_edit_is_read_from_another_node(stage: Stage) -> None:
    await three_segments(stage)
    for node in (A, B):
        key = stage.environment(node).items("edits")[4][0]
        stage.cluster.state(node).rot("journals/edits", "edits", key)
    with pytest.raises(Corruption, match="edit 5 fails its checksum"):
        await stage.read(A, 3, in_progress=False)
    assert [segment.start for segment in (await stage.manifest(A)).segments] == [1, 7]
    assert "edit 5" in (await stage.status(A)).journals[0].damaged[4]
    assert await everything(stage) == list(edits_of(1, 1, 9))


@staged(play, read_bytes=20000)
async def test_pages_have_about_the_requested_size(stage: Stage) -> None:
    hand = await stage.wrote(2000)
    await hand.finalize()
    reader = stage.reader()
    page = await reader.read(reader.beginning())
    assert 100 < len(page.edits) < 1500
    assert await everything(stage) == list(edits_of(1, 1, 2000))


@staged(play)
async def test_a_reader_of_another_journal_of_the_same_name_is_refused(stage: Stage) -> None:
    await three_segments(stage)
    other = type(stage.options)(journal=type(JOURNAL)("edits", "two"), nodes=stage.nodes)
    with pytest.raises(QuorumFailed, match="ForeignJournal"):
        await JournalReader(stage.outside, other).manifests()
