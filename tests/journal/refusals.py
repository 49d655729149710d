"""Requests that a single node accepts or refuses. Each scenario is a promise of a node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ebla.actors.errors import NetworkError, Unavailable
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import (
    ForeignJournal,
    JournalBroken,
    NotFormatted,
    OutOfSync,
    QuorumFailed,
    StaleEpoch,
)
from ebla.storage.errors import Corruption, InvalidArgument
from tests.journal.line import without
from tests.journal.raw import FIRST, Raw, digest, edits_of
from tests.journal.stage import JOURNAL, A, B, C, Stage, scenarios_of


async def the_same_epoch_is_promised_once(stage: Stage) -> None:
    await Raw(stage, 3).promise(A)
    for epoch in (1, 2, 3):
        with pytest.raises(StaleEpoch) as refused:
            await Raw(stage, epoch).promise(A)
        assert (refused.value.epoch, refused.value.promised) == (epoch, 3)
    await Raw(stage, 4).promise(A)


async def a_superseded_writer_does_not_raise_its_epoch(stage: Stage) -> None:
    """Its segment is finalized, and a majority has promised to a contender, which has written. A node without that promise
    and those with it would form a majority for the epoch after the contender's."""
    writer = await stage.wrote(2)
    await writer.finalize()
    contender = Raw(stage, writer.session.epoch + 1)
    await contender.promise(B, C)
    await contender.start([B, C], 3, writer.end.digest)
    for node in (B, C):
        await contender.edits(node, 4, first=3, segment=3, before=writer.end.digest)
    with pytest.raises(QuorumFailed):
        await writer.session.new_epoch(contender.epoch + 1)
    assert stage.view(B).state.promised == stage.view(C).state.promised == contender.epoch


async def every_request_of_an_older_writer_is_refused(stage: Stage) -> None:
    old = Raw(stage, 1)
    await old.leave((2, -1, -1))
    await Raw(stage, 2).promise(A)
    chosen = m.SegmentState(1, 2, False, 1, FIRST, digest(1, 1, 2))
    asked = [
        lambda: old.edits(A, 3, first=3, before=digest(1, 1, 2)),
        lambda: old.finalize(A, 1, 2, digest(1, 1, 2)),
        lambda: old.start([A], 3, digest(1, 1, 2)),
        lambda: old.heartbeat(A),
        lambda: old.purge(A, 1),
        lambda: old.prepare(A),
        lambda: old.accept(A, chosen),
    ]
    before = stage.view(A).state, dict(stage.view(A).segments)
    for ask in asked:
        with pytest.raises(StaleEpoch):
            await ask()
    assert (stage.view(A).state, dict(stage.view(A).segments)) == before


async def a_promise_closes_the_open_segment(stage: Stage) -> None:
    old = Raw(stage, 1)
    await old.leave((2, -1, -1))
    second = Raw(stage, 2)
    await second.promise(A)
    assert stage.view(A).open is None


async def a_preparation_closes_the_open_segment_of_a_node_that_missed_the_promise(stage: Stage) -> None:
    await Raw(stage, 1).leave((2, -1, -1))
    assert stage.view(A).open == 1
    await Raw(stage, 2).prepare(A)
    assert stage.view(A).open is None


async def only_the_writer_that_started_a_segment_writes_into_it(stage: Stage) -> None:
    """A writer without a promise of the node starts the segment; a later one only gets the promise."""
    await Raw(stage, 1).start([A])
    second = Raw(stage, 2)
    await second.heartbeat(A)
    assert (stage.view(A).state.promised, stage.view(A).state.writer) == (2, 1)
    with pytest.raises(OutOfSync, match="started no segment"):
        await second.edits(A, 1)


async def edits_follow_one_another(stage: Stage) -> None:
    writer = Raw(stage, 1)
    await writer.leave((2, -1, -1))
    with pytest.raises(OutOfSync, match="does not follow"):
        await writer.edits(A, 4, first=4, before=digest(1, 1, 3))
    with pytest.raises(OutOfSync, match="does not follow"):
        await writer.edits(A, 3, first=2, before=digest(1, 1, 1))
    await writer.edits(A, 3, first=3, before=digest(1, 1, 2))
    assert stage.view(A).segments[1].state.digest == digest(1, 1, 3)


async def edits_that_continue_another_history_are_refused(stage: Stage) -> None:
    writer = Raw(stage, 1)
    await writer.leave((2, -1, -1))
    with pytest.raises(OutOfSync, match="do not continue"):
        await writer.edits(A, 3, first=3, before=digest(9, 1, 2))


async def a_late_request_is_refused(stage: Stage) -> None:
    writer = Raw(stage, 1)
    await writer.leave((2, -1, -1))
    late = m.FinalizeRequest(stage.stamp(1, 2), 1, 2, digest(1, 1, 2))
    for _ in range(2):
        with pytest.raises(OutOfSync, match="came after"):
            await stage.ask(A, "finalize", late, m.Done)
        await stage.cluster.restart(A)
    assert not stage.view(A).segments[1].finalized


async def an_empty_segment_counts_as_none(stage: Stage) -> None:
    await Raw(stage, 1).leave((2, -1, -1))
    second = Raw(stage, 2)
    await second.promise(A)
    await second.finalize(A, 1, 2, digest(1, 1, 2))
    await second.start([A], 3, digest(1, 1, 2))
    third = Raw(stage, 3)
    last = (await third.promise(A))[A].last
    assert last is not None and last.start == 1
    assert list(stage.view(A).segments) == [1]
    assert (await third.prepare(A, 3)).segment is None


async def a_leftover_of_one_edit_is_overwritten_only_by_a_later_writer(stage: Stage) -> None:
    first = Raw(stage, 1)
    await first.leave((1, -1, -1))
    with pytest.raises(InvalidArgument, match="exists"):
        await first.start([A])
    second = Raw(stage, 2)
    await second.promise(A)
    await second.start([A])
    assert stage.view(A).segments[1].count == 0
    await second.edits(A, 2)
    assert stage.view(A).segments[1].state.digest == digest(2, 1, 2)


async def a_leftover_of_two_edits_is_kept(stage: Stage) -> None:
    await Raw(stage, 1).leave((2, -1, -1))
    second = Raw(stage, 2)
    await second.promise(A)
    with pytest.raises(InvalidArgument, match="recover it first"):
        await second.start([A])
    assert stage.view(A).segments[1].end == 2


async def a_segment_is_finalized_only_with_its_exact_contents(stage: Stage) -> None:
    writer = Raw(stage, 1)
    await writer.leave((3, -1, -1))
    for end in (2, 4):
        with pytest.raises(OutOfSync, match="ends here at 3"):
            await writer.finalize(A, 1, end, digest(1, 1, end))
    with pytest.raises(OutOfSync):
        await writer.finalize(A, 1, 3, digest(2, 1, 3))
    with pytest.raises(OutOfSync, match="no segment 4"):
        await writer.finalize(A, 4, 5, 0)
    for _ in range(2):
        await writer.finalize(A, 1, 3, digest(1, 1, 3))
    with pytest.raises(JournalBroken):
        await writer.finalize(A, 1, 2, digest(1, 1, 2))
    with pytest.raises(InvalidArgument, match="exists"):
        await writer.start([A])


async def a_segment_stays_in_progress_if_its_end_was_missed(stage: Stage) -> None:
    writer = Raw(stage, 1)
    await writer.leave((2, -1, -1))
    await writer.start([A], 4, digest(1, 1, 3))
    segments = stage.view(A).segments
    assert list(segments) == [1, 4] and not segments[1].finalized and stage.view(A).open == 4


async def a_segment_may_start_late_but_not_before_committed_edits(stage: Stage) -> None:
    """Its own writer continued with the other nodes; another writer would have lost edits."""
    writer = Raw(stage, 1)
    await writer.leave((3, 3, -1))
    writer.committed = 6
    for node in (A, B):
        await writer.finalize(node, 1, 3, digest(1, 1, 3))
    await writer.start([A], 4, digest(1, 1, 3))
    second = Raw(stage, 2)
    await second.promise(A, B)
    with pytest.raises(JournalBroken, match="committed"):
        await second.start([B], 4, digest(1, 1, 3))


async def the_committed_txid_only_grows(stage: Stage) -> None:
    writer = Raw(stage, 1)
    await writer.leave((2, -1, -1))
    writer.committed = 100
    await writer.heartbeat(A)
    status = (await stage.status(A)).journals[0]
    assert (status.committed, status.lag_txns) == (100, 98)
    await writer.edits(A, 3, first=3, before=digest(1, 1, 2))
    assert (await stage.status(A)).journals[0].batches_lagging == 1
    writer.committed = 99
    with pytest.raises(JournalBroken, match="committed"):
        await writer.heartbeat(A)
    await stage.cluster.restart(A)
    assert stage.view(A).state.committed == 100


async def promises_and_edits_survive_a_restart_that_closes_the_segment(stage: Stage) -> None:
    writer = Raw(stage, 2)
    await writer.leave((3, -1, -1))
    await stage.cluster.restart(A)
    state = stage.view(A).state
    assert (state.promised, state.writer) == (2, 2)
    assert stage.view(A).segments[1].state.digest == digest(2, 1, 3)
    with pytest.raises(OutOfSync, match="no segment is open"):
        await writer.edits(A, 4, first=4, before=digest(2, 1, 3))
    with pytest.raises(StaleEpoch):
        await Raw(stage, 2).promise(A)


async def a_purge_deletes_whole_older_segments(stage: Stage) -> None:
    """Finalized 1-3 and 4-6, and 7.. open; then the open one is left behind by a restart."""
    writer = Raw(stage, 1)
    await writer.leave((3, -1, -1))
    await writer.finalize(A, 1, 3, digest(1, 1, 3))
    for start in (4, 7):
        before = digest(1, 1, start - 1)
        await writer.start([A], start, before)
        await writer.edits(A, start + 2, first=start, segment=start, before=before)
        if start == 4:
            await writer.finalize(A, 4, 6, digest(1, 1, 6))
    writer.committed = 9
    with pytest.raises(InvalidArgument, match="committed"):
        await writer.purge(A, 11)
    for before, left in ((4, [4, 7]), (6, [4, 7]), (7, [7]), (10, [7])):
        await writer.purge(A, before)
        assert list(stage.view(A).segments) == left, before
    assert len(stage.environment(A).items("edits")) == 3
    await stage.cluster.restart(A)
    assert list(stage.view(A).segments) == [7] and stage.view(A).state.purged == 9


async def a_purge_keeps_a_partial_copy_that_may_be_the_second_one(stage: Stage) -> None:
    """It missed the start of the next segment and is not open; its edits beyond the checkpoint may be needed."""
    writer = Raw(stage, 1)
    await writer.leave((3, -1, -1))
    await writer.start([A], 6, digest(1, 1, 5))
    await writer.edits(A, 6, first=6, segment=6, before=digest(1, 1, 5))
    writer.committed = 6
    await writer.purge(A, 3)
    assert list(stage.view(A).segments) == [1, 6]
    await writer.purge(A, 4)
    assert list(stage.view(A).segments) == [6]


async def only_committed_edits_of_a_segment_in_progress_are_shown(stage: Stage) -> None:
    writer = Raw(stage, 1)
    await writer.leave((3, -1, -1))
    writer.committed = 2
    await writer.heartbeat(A)
    assert (await stage.read(A, 0, in_progress=True)).edits == edits_of(1, 1, 2)
    assert (await stage.read(A, 2, in_progress=True)).edits == ()
    assert (await stage.read(A, 0, in_progress=False)).edits == ()
    assert [s.end for s in (await stage.manifest(A)).segments] == [2]


async def a_later_commit_does_not_expose_an_older_leftover(stage: Stage) -> None:
    """a has 1-5 of writer 1, of which 3 were decided. Writer 2 continues at 4 on b and c, and then on a."""
    await Raw(stage, 1).leave((5, 3, 3))
    await stage.wrote(3, without(A))
    reported = Raw(stage, 2)
    reported.committed = 6
    await reported.heartbeat(A)
    assert (await stage.read(A, 3, in_progress=True)).edits == ()
    assert (await stage.manifest(A)).segments == ()
    page = await stage.reader().read_all(stage.reader().beginning())
    assert [edit for _, edit in page.edits] == list(edits_of(1, 1, 3))


async def an_accepted_segment_replaces_another_atomically(stage: Stage) -> None:
    """A crash around the one commit leaves the state before or after it."""
    points = ["copy.before", "copy.after", "accept.before", "accept.after"]
    for epoch, point in enumerate(points, 2):
        await Raw(stage, 1).leave((3, 5, -1))
        recovery = Raw(stage, epoch)
        await recovery.promise(A, B)
        chosen = (await recovery.prepare(A)).segment
        assert chosen is not None
        await recovery.prepare(B)
        stage.crash_at(B, f"journal.{point}_commit")
        with pytest.raises(NetworkError):
            await recovery.accept(B, chosen, A)
        await stage.cluster.restart(B)
        after = Raw(stage, epoch + 1)
        reported = await after.prepare(B)
        assert reported.segment is not None
        want = (3, epoch) if point == "accept.after" else (5, 0)
        assert (reported.segment.end, reported.accepted) == want, point
        assert len(stage.environment(B).items("edits")) == want[0], "an unreferenced copy was left"
        await after.accept(B, chosen, A)
        assert (await Raw(stage, epoch + 2).prepare(B)).accepted == epoch + 1
        stage.judge_copies()
        await stage.afresh()


async def a_finalized_segment_is_never_replaced(stage: Stage) -> None:
    first = Raw(stage, 1)
    await first.leave((3, 4, -1))
    await first.finalize(A, 1, 3, digest(1, 1, 3))
    second = Raw(stage, 2)
    await second.promise(A, B)
    with pytest.raises(JournalBroken, match="finalized"):
        await second.accept(A, m.SegmentState(1, 4, False, 1, FIRST, digest(1, 1, 4)), B)
    assert stage.view(A).segments[1].end == 3


async def a_wrong_download_is_refused(stage: Stage) -> None:
    """The source was recovered to other contents, or sends damaged edits."""
    await Raw(stage, 1).leave((3, 5, -1))
    second = Raw(stage, 2)
    await second.promise(A, B)
    chosen = m.SegmentState(1, 4, False, 1, FIRST, digest(1, 1, 4))
    with pytest.raises(Unavailable, match="no peer could send"):
        await second.accept(A, chosen, B)
    assert stage.view(A).segments[1].end == 3 and stage.view(A).segments[1].accepted == 0


async def a_download_is_compared_with_the_choice(stage: Stage) -> None:
    """Even if the sources claim to have it."""
    await Raw(stage, 1).leave((3, 4, -1))
    second = Raw(stage, 2)
    await second.promise(A, B)
    chosen = (await second.prepare(B)).segment
    assert chosen is not None

    async def altered(segment: m.SegmentState) -> AsyncIterator[tuple[bytes, ...]]:
        yield edits_of(1, 1, 3)
        yield (b"another",)

    async def shorter(segment: m.SegmentState) -> AsyncIterator[tuple[bytes, ...]]:
        yield edits_of(1, 1, 3)

    for pages in (altered, shorter):
        request = m.AcceptRequest(second.stamp(A), chosen, (B,))
        with pytest.raises(Corruption, match="is not what was decided"):
            await stage.role(A).journals[JOURNAL.name].accept(request, pages)
    assert stage.view(A).segments[1].end == 3 and stage.view(A).segments[1].accepted == 0
    assert len(stage.environment(A).items("edits")) == 3, "a useless download was left"


async def a_newer_epoch_overtakes_a_download(stage: Stage) -> None:
    await Raw(stage, 1).leave((3, 5, -1))
    second, third = Raw(stage, 2), Raw(stage, 3)
    await second.promise(A, B)
    chosen = (await second.prepare(B)).segment
    assert chosen is not None
    stage.cluster.pause(B)
    accepting = asyncio.ensure_future(second.accept(A, chosen, B))
    await asyncio.sleep(1.0)
    await third.promise(A)
    stage.cluster.resume(B)
    with pytest.raises(StaleEpoch):
        await accepting
    reported = await third.prepare(A)
    assert reported.segment is not None and (reported.segment.end, reported.accepted) == (3, 0)
    assert len(stage.environment(A).items("edits")) == 3, "a useless download was left"


async def a_foreign_journal_is_refused(stage: Stage) -> None:
    foreign = m.JournalId(JOURNAL.name, "another")
    with pytest.raises(ForeignJournal, match="its id is one, not another"):
        await stage.ask(A, "new_epoch", m.NewEpochRequest(foreign, 7), m.NewEpochReply)
    with pytest.raises(ForeignJournal):
        await stage.ask(A, "manifest", m.ManifestRequest(foreign), m.Manifest)
    with pytest.raises(NotFormatted, match="let it rejoin"):
        await stage.ask(A, "manifest", m.ManifestRequest(m.JournalId("other", "one")), m.Manifest)
    assert stage.view(A).state.promised == 0


SCENARIOS = scenarios_of(__name__)
