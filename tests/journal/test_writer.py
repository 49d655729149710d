"""The writer: its promises to the caller, and its treatment of nodes that fail, lag or hang."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.journal.errors import JournalBroken, QuorumFailed
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.writer.writer import MARKER, JournalWriter
from ebla.storage.errors import InvalidArgument
from tests.journal.line import DROP, Line, without
from tests.journal.raw import Raw
from tests.journal.stage import JOURNAL, A, B, C, Stage, play, status_of, writer_of
from tests.staged import staged


async def written(stage: Stage) -> list[bytes]:
    """The edits that a clean recovery and a reader find, without markers."""
    again = JournalWriter(stage.world(), stage.options)
    end = await again.open()
    page = await stage.reader().read_all(stage.reader().beginning())
    assert page.position == end
    again.close()
    return [edit for _, edit in page.edits]


@staged(play)
async def test_edits_get_consecutive_txids_after_the_marker(stage: Stage) -> None:
    writer = await writer_of(stage)
    assert [await writer.append(edit) for edit in (b"a", b"b", b"c")] == [2, 3, 4]
    assert writer.committed == 4
    for node in stage.nodes:
        assert stage.environment(node).items("edits")[0][1][8:] == MARKER
    writer.close()
    assert await written(stage) == [b"a", b"b", b"c"]


@staged(play)
async def test_edits_during_a_batch_form_the_next_batch(stage: Stage) -> None:
    line = Line()
    writer = await writer_of(stage, line)
    before = len(line.trace[A])
    txids = await asyncio.gather(*(writer.append(b"%d" % number) for number in range(100)))
    assert txids == list(range(2, 102))
    flushes = line.trace[A][before:]
    assert flushes == ["journal"] * len(flushes) and 1 <= len(flushes) <= 2
    writer.close()
    assert await written(stage) == [b"%d" % number for number in range(100)]


@staged(play, buffer_bytes=100)
async def test_a_full_buffer_delays_the_next_edit(stage: Stage) -> None:
    writer = await writer_of(stage)
    edits = [bytes([number]) * 40 for number in range(50)]
    await asyncio.gather(*(writer.append(edit) for edit in edits))
    writer.close()
    assert sorted(await written(stage)) == edits


def test_the_marker_reaches_a_majority_before_any_edit_is_sent():
    async def scenario(stage: Stage) -> None:
        line = Line()
        writer = JournalWriter(stage.line_world(line), stage.options)
        await writer.open()
        beginning = asyncio.ensure_future(writer.begin())
        line.before = stop_edits
        with pytest.raises(QuorumFailed):
            await beginning
        assert all(stage.view(node).segments[1].count == 0 for node in stage.nodes)
        with pytest.raises(Unavailable, match="over"):
            await writer.append(b"x")

    async def stop_edits(node: str, method: str) -> None:
        if method == "journal":
            raise Unavailable("injected")

    play(scenario)


@staged(play)
async def test_an_empty_edit_is_refused_because_it_would_be_a_marker(stage: Stage) -> None:
    writer = await writer_of(stage)
    with pytest.raises(InvalidArgument, match="marker"):
        await writer.append(b"")
    assert await writer.append(b"x") == 2


@staged(play, segment_bytes=500)
async def test_a_segment_ends_when_it_is_large_and_every_segment_begins_with_a_marker(stage: Stage) -> None:
    writer = await writer_of(stage)
    for number in range(20):
        await writer.append(bytes([number]) * 100)
    segments = stage.view(A).all()
    assert len(segments) > 3 and all(segment.bytes < 600 for segment in segments)
    for segment in segments:
        key = b"".join(number.to_bytes(8, "big") for number in (segment.start, segment.copy, segment.start))
        assert stage.environment(A).get("edits", key)[8:] == MARKER
    writer.close()
    assert await written(stage) == [bytes([number]) * 100 for number in range(20)]


@staged(play, segment_s=10.0)
async def test_a_segment_ends_when_it_is_old_and_an_idle_one_does_not(stage: Stage) -> None:
    writer = await writer_of(stage)
    await asyncio.sleep(100.0)
    assert len(stage.view(A).all()) == 1
    await writer.append(b"x")
    await asyncio.sleep(12.0)
    assert [segment.finalized for segment in stage.view(A).all()] == [True, False]
    await asyncio.sleep(100.0)
    assert len(stage.view(A).all()) == 2


@staged(play)
async def test_a_failed_node_gets_only_heartbeats_until_the_next_segment(stage: Stage) -> None:
    line = Line()
    writer = await writer_of(stage, line)
    await writer.append(b"1")
    line.faults[C, len(line.trace[C]) + 1] = DROP
    await writer.append(b"2")
    assert status_of(writer, C).out_of_sync
    before = len(line.trace[C])
    for number in range(40):
        await writer.append(b"%d" % number)
        await asyncio.sleep(0.1)
    said = line.trace[C][before:]
    assert said == ["journal_heartbeat"] * len(said) and 3 <= len(said) <= 6
    status = status_of(writer, C)
    assert status.lag_txns == 41 and status.lag_ms > 3000 and "next segment" in str(status)
    assert stage.view(C).state.committed > 10 and stage.view(C).last == 2
    await writer.roll()
    await writer.append(b"last")
    await asyncio.sleep(1.0)
    status = status_of(writer, C)
    assert not status.out_of_sync and (status.lag_txns, status.lag_ms) == (0, 0.0)
    assert stage.view(C).last == writer.committed


@staged(play, queue_bytes_max=1000, queue_txns_max=10)
async def test_a_hanging_node_delays_no_other_and_has_a_bounded_queue(stage: Stage) -> None:
    writer = await writer_of(stage)
    await writer.append(b"1")
    stage.cluster.pause(C)
    began = stage.cluster.loop.time()
    for _ in range(100):
        await writer.append(b"x" * 100)
        status = status_of(writer, C)
        assert status.queue_bytes <= 1000 and status.queue_txns <= 10
    assert stage.cluster.loop.time() - began < 5.0
    assert status_of(writer, C).out_of_sync
    stage.cluster.resume(C)
    await asyncio.sleep(60.0)
    status = status_of(writer, C)
    assert (status.queue_bytes, status.queue_txns) == (0, 0)
    await writer.roll()
    await writer.append(b"y")
    await asyncio.sleep(1.0)
    assert not status_of(writer, C).out_of_sync and stage.view(C).last == writer.committed
    await stage.sound()


@staged(play, queue_bytes_max=1000)
async def test_a_single_batch_may_be_larger_than_the_queue(stage: Stage) -> None:
    writer = await writer_of(stage)
    await asyncio.sleep(1.0)
    await writer.append(b"x" * 5000)
    await asyncio.sleep(1.0)
    assert [stage.view(node).last for node in stage.nodes] == [2, 2, 2]


@staged(play)
async def test_without_a_majority_the_writer_ends_and_names_each_nodes_error(stage: Stage) -> None:
    writer = await writer_of(stage)
    await writer.append(b"1")
    stage.cluster.network.isolate(A)
    stage.cluster.network.isolate(B)
    sent = asyncio.ensure_future(writer.append(b"2"))
    await asyncio.sleep(0.01)
    unsent = asyncio.ensure_future(writer.append(b"3"))
    with pytest.raises(QuorumFailed) as failed:
        await sent
    assert failed.value.possibly_applied
    assert [said.split(":")[0] for said in failed.value.nodes] == [A, B, C]
    assert "journal/c: done" in failed.value.nodes
    with pytest.raises(Unavailable):
        await unsent
    with pytest.raises(Unavailable):
        await writer.append(b"4")
    assert await writer.ended() is writer.failed


@staged(play)
async def test_an_old_writer_is_superseded_at_its_next_edit(stage: Stage) -> None:
    old = await writer_of(stage)
    await old.append(b"old")
    new = await writer_of(stage)
    await new.append(b"new")
    with pytest.raises(QuorumFailed, match="StaleEpoch"):
        await old.append(b"zombie")
    await new.append(b"newer")
    new.close()
    assert await written(stage) == [b"old", b"new", b"newer"]


@staged(play)
async def test_a_broken_journal_is_never_outvoted(stage: Stage) -> None:
    writer = await writer_of(stage)
    await writer.append(b"1")
    liar = Raw(stage, writer.session.epoch)
    liar.committed = 50
    liar._serials[C] = 100
    writer.session.channels[2]._serial = 200
    await liar.heartbeat(C)
    with pytest.raises((JournalBroken, Unavailable)):
        for _ in range(3):
            await writer.append(b"2")
            await asyncio.sleep(1.0)
    assert isinstance(writer.failed, JournalBroken)


@staged(play, segment_s=5000.0)
async def test_the_lag_of_a_node_excludes_idle_time(stage: Stage) -> None:
    line = Line()
    writer = await writer_of(stage, line)
    await writer.append(b"before")
    await asyncio.sleep(1000.0)
    line.delays_s[C] = 2.0
    await writer.append(b"after")
    status = status_of(writer, C)
    assert status.lag_txns == 1 and 0.0 < status.lag_ms < 100.0
    for _ in range(10):
        await asyncio.sleep(0.1)
        await writer.append(b"more")
    assert 900.0 < status_of(writer, C).lag_ms < 1500.0


def test_a_new_writer_counts_lag_from_its_start():
    async def scenario(stage: Stage) -> None:
        writer = await writer_of(stage)
        for _ in range(20):
            await writer.append(b"x")
        await asyncio.sleep(1000.0)
        writer.close()
        writer = await writer_of(stage, Line(before=no_edits_to_c))
        await asyncio.sleep(1.0)
        await writer.append(b"y")
        status = status_of(writer, C)
        assert (status.acked, status.lag_txns) == (22, 2)  # with the markers of two segments
        assert 900.0 < status.lag_ms < 1500.0

    async def no_edits_to_c(node: str, method: str) -> None:
        if (node, method) == (C, "journal"):
            raise Unavailable("injected")

    play(scenario)


@staged(play)
async def test_a_purge_reaches_a_majority_and_keeps_needed_segments(stage: Stage) -> None:
    writer = await writer_of(stage)
    for _ in range(3):
        for _ in range(3):
            await writer.append(b"x")
        await writer.roll()
    starts = [segment.start for segment in stage.view(A).all()]
    await writer.purge(starts[2])
    await asyncio.sleep(1.0)
    assert [segment.start for segment in stage.view(A).all()] == starts[2:]


@pytest.mark.parametrize(
    ("count", "said"), [(0, "at least one"), (2, "bear the loss of 0, as 1 do"), (4, "bear the loss of 1")]
)
def test_an_even_number_of_nodes_is_refused_with_the_reason(count: int, said: str):
    options = JournalOptions(journal=JOURNAL, nodes=tuple("abcd"[:count]))
    with pytest.raises(InvalidArgument, match=said):
        options.validate()


@pytest.mark.parametrize("count", [1, 3, 5, 7])
def test_any_odd_number_of_nodes_tolerates_a_lost_minority(count: int):
    async def scenario(stage: Stage) -> None:
        writer = await writer_of(stage)
        await writer.append(b"1")
        for node in stage.nodes[: (count - 1) // 2]:
            stage.cluster.crash(node)
        await writer.append(b"2")
        writer.close()
        assert await written(stage) == [b"1", b"2"]

    play(scenario, count=count)


@staged(play)
async def test_a_writer_with_the_wrong_nodes_is_refused(stage: Stage) -> None:
    other = JournalOptions(journal=JOURNAL, nodes=(A, B, "journal/z"))
    with pytest.raises(InvalidArgument, match="formatted with the nodes"):
        await JournalWriter(stage.world(), other).open()
    assert stage.view(A).state.promised == 0


@staged(play)
async def test_a_recovery_without_a_majority_keeps_all_decisions(stage: Stage) -> None:
    writer = await writer_of(stage)
    await writer.append(b"1")
    failing = JournalWriter(stage.line_world(without(A, B)), stage.options)
    with pytest.raises(QuorumFailed):
        await failing.open()
    assert isinstance(failing.failed, QuorumFailed)
    await writer.append(b"2")
