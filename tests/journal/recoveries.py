"""Histories that a recovery must decide correctly. Each is a scenario of three nodes a, b, c, and finds a mutant that
no other test may find (test_mutants.py); test_recovery.py plays them without mutants.

One node is out of reach during a recovery, so the two that answer are known.
"""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.journal.errors import JournalBroken, OutOfSync, QuorumFailed
from ebla.actors.journal.writer.recovery import End
from tests.journal.line import DROP, Line, without
from tests.journal.raw import FIRST, Raw, digest, edits_of
from tests.journal.stage import A, B, C, Hand, Stage, scenarios_of


async def recovered(stage: Stage, line: Line) -> End:
    hand = stage.hand(line)
    end = await hand.recover()
    await settled(hand)
    return end


async def fails(stage: Stage, line: Line) -> None:
    hand = stage.hand(line)
    with pytest.raises(QuorumFailed):
        await hand.recover()
    await settled(hand)


async def ends_at(stage: Stage, request: int) -> None:
    """A recovery that c does not hear of ends, because this request does not reach b."""
    line = without(C)
    line.faults[B, request] = DROP
    await fails(stage, line)


async def settled(hand: Hand) -> None:
    """Requests under way arrive."""
    await asyncio.sleep(1.0)
    hand.session.close()


async def the_longest_copy_of_one_writer_is_recovered(stage: Stage) -> None:
    for lengths, absent, end in (((3, 4, 5), A, 5), ((3, 4, 5), B, 5), ((3, 4, 5), C, 4)):
        epoch = 1 + max(stage.view(node).state.promised for node in stage.nodes)
        assert epoch == 1
        await Raw(stage, 1).leave(lengths)
        assert (await recovered(stage, without(absent))).txid == end
        await stage.finish()
        await stage.afresh()


async def a_shorter_copy_that_was_accepted_beats_a_longer_one(stage: Stage) -> None:
    """Epoch 2 gets answers of a and b, and both accept 4. For epoch 3, segment 4 may have been finalized."""
    await Raw(stage, 1).leave((3, 4, 5))
    await ends_at(stage, 5)  # its finalize reaches only a
    assert stage.view(A).segments[1].finalized and not stage.view(B).segments[1].finalized
    end = await recovered(stage, without(A))
    assert end == End(4, digest(1, 1, 4))
    await stage.finish()


async def edits_of_a_minority_survive_if_it_answers(stage: Stage) -> None:
    """Epoch 2 chooses 4, which only a accepts, so only a is longer."""
    await Raw(stage, 1).leave((3, 4, 5))
    await ends_at(stage, 4)
    assert stage.view(A).segments[1].accepted == 2 and stage.view(B).segments[1].accepted == 0
    assert (await recovered(stage, without(B))).txid == 4
    await stage.finish()


async def a_later_writer_beats_an_older_acceptance(stage: Stage) -> None:
    """Epoch 2 chose the one edit of writer 1 that a has, and stopped. Epoch 3 got no answer with it, and wrote."""
    await Raw(stage, 1).leave((1, -1, -1))
    await ends_at(stage, 4)
    assert stage.view(A).segments[1].accepted == 2
    third = stage.hand(without(A))
    assert (await third.recover()).txid == 0
    await third.write(3)
    third.session.close()
    assert (await recovered(stage, without(C))) == End(3, digest(3, 1, 3))
    await stage.finish()


async def a_segment_that_is_started_again_forgets_its_acceptance(stage: Stage) -> None:
    await Raw(stage, 1).leave((1, -1, -1))
    await ends_at(stage, 4)
    third = Raw(stage, 3)
    await third.promise(A, B, C)
    await third.start([A])
    await third.edits(A, 2)
    fourth = Raw(stage, 4)
    await fourth.promise(A)
    reported = await fourth.prepare(A)
    assert reported.segment is not None and reported.segment.end == 2
    assert (reported.accepted, reported.writer) == (0, 3)


async def a_finalized_copy_beats_everything(stage: Stage) -> None:
    """Epoch 2 decided 4, and only a knows that it is final. Epoch 3 gets answers of c first, or of a, or of both."""
    await Raw(stage, 1).leave((4, 4, 5))
    await ends_at(stage, 5)
    assert stage.view(A).segments[1].finalized
    for absent in (B, C, A):
        assert (await recovered(stage, without(absent))).txid == 4
    assert all(stage.view(node).segments[1].finalized for node in stage.nodes)
    await stage.finish()


async def a_final_copy_is_chosen_over_one_of_a_later_epoch(stage: Stage) -> None:
    """b missed that segment 1 was finalized, and is longer; then only b gets writer 2's start of segment 4."""
    first = Raw(stage, 1)
    await first.leave((3, 5, 3))
    for node in (A, C):
        await first.finalize(node, 1, 3, digest(1, 1, 3))
    second = Raw(stage, 2)
    await second.promise(A, B, C)
    await second.start([B], 4, digest(1, 1, 3))
    assert (await recovered(stage, without(C))).txid == 3
    await stage.finish()


async def two_final_lengths_are_never_reconciled(stage: Stage) -> None:
    first = Raw(stage, 1)
    await first.leave((3, 4, 4))
    await first.finalize(A, 1, 3, digest(1, 1, 3))
    await first.finalize(B, 1, 4, digest(1, 1, 4))
    hand = stage.hand(without(C))
    with pytest.raises(JournalBroken, match="finalized"):
        await hand.recover()


async def a_recovery_that_would_lose_committed_edits_stops(stage: Stage) -> None:
    first = Raw(stage, 1)
    await first.leave((3, 3, 5))
    first.committed = 5
    await first.heartbeat(A)
    hand = stage.hand(without(C))
    with pytest.raises(JournalBroken, match="committed"):
        await hand.recover()


async def first_edits_of_two_writers_are_distinguished(stage: Stage) -> None:
    """Without a marker a segment's first edit may be [x] of writer 1 on a and [y] of writer 2 on b and c: the same start,
    the same end. The decision is y, everywhere."""
    await Raw(stage, 1).leave((1, -1, -1))
    second = await stage.wrote(1, without(A))
    second.session.close()
    end = await recovered(stage, without(C))
    assert end == End(1, digest(2, 1, 1))
    assert all(stage.view(node).segments[1].state.digest == end.digest for node in (A, B))
    await stage.finish()


async def a_node_that_missed_the_roll_appends_nothing_to_the_old_segment(stage: Stage) -> None:
    """c misses finalize(1-3) and start(4), and then gets edit 4."""
    first = Raw(stage, 1)
    await first.leave((3, 3, 3))
    after = digest(1, 1, 3)
    for node in (A, B):
        await first.finalize(node, 1, 3, after)
    await first.start([A, B], 4, after)
    for node in (A, B):
        await first.edits(node, 4, first=4, segment=4, before=after)
    with pytest.raises(OutOfSync):
        await first.edits(C, 4, first=4, segment=4, before=after)
    assert stage.view(C).segments[1].end == 3 and stage.view(C).open is None
    stage.acked.update(enumerate(edits_of(1, 1, 4), 1))
    assert (await recovered(stage, without(B))).txid == 4
    await stage.finish()


async def a_node_with_another_length_does_not_finalize(stage: Stage) -> None:
    """c missed that 3 was accepted, and has 5; asked to finalize at 3 it refuses, and does not count."""
    await Raw(stage, 1).leave((3, 3, 5))
    line = without(C)
    await recovered(stage, line)
    third = Raw(stage, 3)
    with pytest.raises(OutOfSync, match="ends here at 5"):
        await third.finalize(C, 1, 3, digest(1, 1, 3))
    assert not stage.view(C).segments[1].finalized
    await stage.finish()


async def an_unacknowledged_first_edit_is_overwritten(stage: Stage) -> None:
    """Only a has the start, and a is out of reach: the next writer starts there again, later on a too."""
    await Raw(stage, 1).leave((1, -1, -1))
    second = stage.hand()
    line = without(A)
    end = await recovered(stage, line)
    assert end == End(0, FIRST)
    assert (await second.recover()).txid in (0, 1)
    await second.write(3)
    await second.finalize()
    second.session.close()
    await stage.finish()


SCENARIOS = scenarios_of(__name__)
