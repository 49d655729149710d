"""A node that was away fetches decided segments from its peers."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import AlreadyPresent
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import NotFormatted, OutOfSync, QuorumFailed
from ebla.actors.journal.writer.session import format_journal
from ebla.storage.errors import Corruption, EblaError, InvalidArgument
from tests.journal.line import DROP, Line, without
from tests.journal.raw import Raw, digest
from tests.journal.stage import JOURNAL, PATH, A, B, C, Hand, Stage, play
from tests.staged import staged


async def segments(stage: Stage, count: int) -> Hand:
    """`count` final segments of three edits, and no open one."""
    hand = stage.hand()
    await hand.recover()
    for _ in range(count):
        await hand.write(3)
        await hand.finalize()
    await asyncio.sleep(200.0)
    return hand


def finals(stage: Stage, node: str) -> list[tuple[int, int]]:
    return [(segment.start, segment.end) for segment in stage.view(node).all() if segment.finalized]


@staged(play)
async def test_a_node_that_was_down_catches_up_after_its_start(stage: Stage) -> None:
    stage.cluster.crash(C)
    await segments(stage, 4)
    await stage.cluster.restart(C)
    await asyncio.sleep(1.0)
    assert finals(stage, C) == [(1, 3), (4, 6), (7, 9), (10, 12)]
    assert (await stage.status(C)).journals[0].synced_segments == 4
    stage.judge_copies()


@staged(play, sync_s=10.0)
async def test_a_node_that_was_cut_off_catches_up_without_a_restart(stage: Stage) -> None:
    stage.cluster.network.isolate(C)
    await segments(stage, 3)
    assert finals(stage, C) == []
    stage.cluster.network.rejoin(C)
    await asyncio.sleep(25.0)
    assert finals(stage, C) == [(1, 3), (4, 6), (7, 9)]


@staged(play, sync_s=10.0)
async def test_segments_lost_on_one_or_two_nodes_are_restored(stage: Stage) -> None:
    hand = await segments(stage, 3)
    hand.session.close()
    for node, start in ((A, 1), (A, 4), (B, 7)):
        stage.view(node).segments.pop(start)
    await asyncio.sleep(25.0)
    assert [finals(stage, node) for node in stage.nodes] == [[(1, 3), (4, 6), (7, 9)]] * 3
    stage.judge_copies()


@staged(play, sync_s=10.0)
async def test_a_complete_copy_is_finalized_without_a_download(stage: Stage) -> None:
    first = Raw(stage, 1)
    await first.leave((3, 3, 3))
    first.committed = 3
    for node in (A, B):
        await first.finalize(node, 1, 3, digest(1, 1, 3))
    await first.start([C], 4, digest(1, 1, 3))  # the start closed it
    await asyncio.sleep(25.0)
    assert finals(stage, C) == [(1, 3)] and stage.view(C).open == 4
    assert (await stage.status(C)).journals[0].synced_segments == 0


@staged(play, sync_s=10.0)
async def test_a_stale_copy_is_replaced_by_the_decided_segment(stage: Stage) -> None:
    await Raw(stage, 1).leave((3, 3, 5))
    stage.cluster.network.isolate(C)
    hand = stage.hand()
    assert (await hand.recover()).txid == 3
    await asyncio.sleep(200.0)
    stage.cluster.network.rejoin(C)
    await asyncio.sleep(25.0)
    assert finals(stage, C) == [(1, 3)]
    stage.judge_copies()


@staged(play, sync_s=10.0)
async def test_a_segment_in_progress_is_never_taken_from_a_peer(stage: Stage) -> None:
    hand = await segments(stage, 1)
    stage.cluster.network.isolate(C)
    await hand.write(3)
    await asyncio.sleep(200.0)
    stage.cluster.network.rejoin(C)
    await asyncio.sleep(25.0)
    assert finals(stage, C) == [(1, 3)] and stage.view(C).last == 3


@staged(play, sync_s=10.0)
async def test_an_uncommitted_segment_is_not_taken(stage: Stage) -> None:
    """An uncommitted final segment needs a broken rule elsewhere."""
    first = Raw(stage, 1)
    await first.leave((3, -1, -1))
    await first.finalize(A, 1, 3, digest(1, 1, 3))
    await asyncio.sleep(25.0)
    assert finals(stage, B) == []
    first.committed = 3
    await first.heartbeat(B)
    await asyncio.sleep(25.0)
    assert finals(stage, B) == [(1, 3)]


@staged(play, sync_s=10.0)
async def test_the_open_segment_of_the_writer_is_left_alone(stage: Stage) -> None:
    first = Raw(stage, 1)
    await first.leave((3, -1, 3))
    await first.finalize(A, 1, 3, digest(1, 1, 3))
    first.committed = 3
    await first.heartbeat(C)
    await asyncio.sleep(25.0)
    assert stage.view(C).open == 1 and finals(stage, C) == []
    await first.finalize(C, 1, 3, digest(1, 1, 3))
    assert finals(stage, C) == [(1, 3)]


@staged(play, sync_s=10.0)
async def test_purged_segments_are_not_restored(stage: Stage) -> None:
    hand = await segments(stage, 3)
    stage.cluster.network.isolate(C)
    await hand.session.purge(7)
    await asyncio.sleep(200.0)
    stage.cluster.network.rejoin(C)
    await asyncio.sleep(50.0)
    assert [finals(stage, node) for node in (A, B)] == [[(7, 9)], [(7, 9)]]
    assert finals(stage, C) == [(1, 3), (4, 6), (7, 9)]


@staged(play)
async def test_a_damaged_copy_does_not_count_in_a_recovery_and_is_replaced(stage: Stage) -> None:
    await Raw(stage, 1).leave((3, 3, 3))
    key = stage.environment(A).items("edits")[1][0]
    stage.cluster.state(A).rot(PATH, "edits", key)
    third = Raw(stage, 1)
    third._serials[A] = 10
    with pytest.raises(Corruption, match="edit 2 fails"):
        await third.prepare(A)
    hand = stage.hand(without(B))
    with pytest.raises(QuorumFailed, match="Corruption"):
        await hand.recover()
    await stage.hand().recover()
    await asyncio.sleep(1.0)
    stage.judge_copies()
    assert finals(stage, A) == [(1, 3)]


@staged(play)
async def test_a_node_verifies_its_copy_before_it_accepts_a_recovery(stage: Stage) -> None:
    await Raw(stage, 1).leave((3, 3, 3))
    key = stage.environment(C).items("edits")[1][0]
    stage.cluster.state(C).rot(PATH, "edits", key)
    line = Line({(C, number): DROP for number in (1, 2, 3)})  # it gets the accept first
    await stage.hand(line).recover()
    await asyncio.sleep(1.0)
    assert line.trace[C][3] == "accept_recovery"
    assert finals(stage, C) == [(1, 3)]
    stage.judge_copies()


@staged(play)
async def test_a_journal_with_a_damaged_header_is_not_served(stage: Stage) -> None:
    other = type(stage.options)(journal=m.JournalId("other", "two"), nodes=stage.nodes)
    await format_journal(stage.outside, other)
    await segments(stage, 1)
    for key in (b"state", b"format"):
        stage.cluster.crash(A)
        stage.cluster.state(A).rot(PATH, "state", key)
        await stage.cluster.restart(A)
        with pytest.raises(Corruption, match="damaged"):
            await stage.manifest(A)
        assert (await stage.ask(A, "manifest", m.ManifestRequest(other.journal), m.Manifest)).promised == 0
        stage.cluster.crash(A)
        stage.cluster.state(A).rot(PATH, "state", key)
        await stage.cluster.restart(A)
    assert finals(stage, A) == [(1, 3)]


@staged(play)
async def test_formatting_needs_all_nodes_and_names_the_missing_one(stage: Stage) -> None:
    other = type(stage.options)(journal=m.JournalId("other", "two"), nodes=stage.nodes)
    stage.cluster.crash(B)
    with pytest.raises(QuorumFailed, match="journal/b"):
        await format_journal(stage.outside, other)
    asked = "format_state", m.JournalName("other"), m.FormatState
    assert (await stage.ask(A, *asked)).id is None
    await stage.cluster.restart(B)
    await format_journal(stage.outside, other)
    await format_journal(stage.outside, other)  # no writer has written to it
    assert (await stage.ask(A, *asked)).id == "two"


@staged(play)
async def test_a_journal_with_a_promise_is_formatted_again_only_by_force(stage: Stage) -> None:
    await segments(stage, 1)
    with pytest.raises(AlreadyPresent, match="in use"):
        await format_journal(stage.outside, stage.options)
    with pytest.raises(AlreadyPresent, match="force deletes it"):
        await stage.ask(A, "format", m.FormatRequest(JOURNAL, stage.nodes), m.Done)
    await format_journal(stage.outside, stage.options, force=True)
    assert all(stage.view(node).last == 0 for node in stage.nodes)


@pytest.mark.parametrize("side", ["before", "after"])
@staged(play)
async def test_formatting_a_journal_is_atomic(stage: Stage, side: str) -> None:
    other = type(stage.options)(journal=m.JournalId("other", "two"), nodes=stage.nodes)
    stage.crash_at(A, f"journal.format.{side}_commit")
    with pytest.raises(QuorumFailed):
        await format_journal(stage.outside, other)
    await stage.cluster.restart(A)
    asking = stage.ask(A, "manifest", m.ManifestRequest(other.journal), m.Manifest)
    if side == "before":
        with pytest.raises(NotFormatted):
            await asking
    else:
        assert (await asking).promised == 0
    await format_journal(stage.outside, other)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "A", "x" * 65])
@staged(play)
async def test_a_name_that_is_no_directory_name_is_refused(stage: Stage, name: str) -> None:
    with pytest.raises(InvalidArgument, match="name"):
        request = m.FormatRequest(m.JournalId(name, "one"), stage.nodes)
        await stage.ask(A, "format", request, m.Done)


@staged(play)
async def test_a_node_with_a_failed_disk_answers_nothing(stage: Stage) -> None:
    stage.cluster.expect_failure(A)
    stage.cluster.state(A).fail_next_commit(PATH)
    with pytest.raises(EblaError):
        await Raw(stage, 1).promise(A)
    assert not stage.cluster.alive(A)
    await stage.finish()


@staged(play)
async def test_a_full_disk_refuses_edits_and_changes_nothing(stage: Stage) -> None:
    writer = Raw(stage, 1)
    await writer.leave((3, -1, -1))
    stage.cluster.state(A).fill()
    with pytest.raises(EblaError, match="no space"):
        await writer.edits(A, 4, first=4, before=digest(1, 1, 3))
    assert stage.view(A).last == 3
    assert (await Raw(stage, 1).stage.manifest(A)).promised == 1
    stage.cluster.state(A).free()
    await writer.edits(A, 4, first=4, before=digest(1, 1, 3))
    assert stage.view(A).last == 4


@pytest.mark.parametrize("side", ["before", "after"])
@staged(play)
async def test_a_crash_during_catch_up_leaves_the_old_or_the_decided_segment(stage: Stage, side: str) -> None:
    await Raw(stage, 1).leave((3, 3, 5))
    stage.cluster.network.isolate(C)
    await stage.hand().recover()
    await asyncio.sleep(1.0)
    stage.cluster.network.rejoin(C)
    stage.crash_at(C, f"journal.learn.{side}_commit")
    await stage.cluster.restart(C)
    await asyncio.sleep(1.0)
    assert not stage.cluster.alive(C)
    lines = stage.cluster.state(C).environments[PATH]["edits"]
    assert len(lines) in (8, 3)
    await stage.cluster.restart(C)
    await asyncio.sleep(1.0)
    assert finals(stage, C) == [(1, 3)]
    assert len(stage.environment(C).items("edits")) == 3
    stage.judge_copies()


@staged(play)
async def test_a_paused_recovery_is_refused_after_a_later_decision(stage: Stage) -> None:
    """a made no promise to the later one, and learned its decision from a peer."""
    await Raw(stage, 1).leave((5, 5, 7))
    late = Raw(stage, 2)
    await late.promise(A, B)
    chosen = (await late.prepare(A)).segment
    later = Raw(stage, 3)
    await later.promise(B, C)
    decided = (await later.prepare(C)).segment
    assert chosen is not None and decided is not None
    later.committed = decided.end
    for node in (B, C):
        await later.accept(node, decided, C)
        await later.finalize(node, 1, decided.end, decided.digest)
    for restarted in (False, True):
        await stage.role(A).sync.all()
        assert stage.view(A).segments[1].finalized and stage.view(A).state.promised == 2
        with pytest.raises(OutOfSync, match="finalized at 7, a recovery chose 5"):
            await late.accept(A, chosen, B)
        with pytest.raises(OutOfSync, match="ends here at 7, not at 5"):
            await late.finalize(A, 1, chosen.end, chosen.digest)
        if not restarted:
            await stage.cluster.restart(A)
    end = await stage.finish()
    assert end.txid == 7
