"""The run of the fault sweeps: a writer until its first failure, perhaps a second one, and a clean one that is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ebla.actors.journal.errors import QuorumFailed
from tests.journal.line import Line
from tests.journal.stage import Stage

# format is sent before the faults, so index 1 of the original table means "no fault" here.
REQUESTS = [
    "journal_state",
    "new_epoch",
    "start_segment",
    "journal",
    "finalize",
    "start_segment",
    "journal",
    "finalize",
]
SECOND_REQUESTS = [
    "journal_state",
    "new_epoch",
    "prepare_recovery",
    "accept_recovery",
    "finalize",
    *REQUESTS[2:],
]


class Outcome(NamedTuple):
    """`counted`: last edit of the last finalized segment. `acked`: last edit that a majority accepted. `recovered`: the
    end that the clean writer found."""

    counted: int
    acked: int
    recovered: int


async def write_two_segments(stage: Stage, line: Line, flushes: Sequence[int] = (3,)) -> int:
    """The last edit that was counted; an edit counts after its segment's finalize."""
    hand, counted = stage.hand(line), 0
    try:
        await hand.recover()
        for _ in range(2):
            await hand.write(sum(flushes), flushes)
            await hand.finalize()
            counted = hand.end.txid
    except QuorumFailed:
        pass  # only the faults make it fail: one test runs without faults
    hand.session.close()
    return counted


async def outcome(stage: Stage, *lines: Line, flushes: Sequence[int] = (3,)) -> Outcome:
    """A writer on each of the lines in turn; then the result is judged."""
    counted = 0
    for line in lines:
        counted = max(counted, await write_two_segments(stage, line, flushes))
        await line.release()
    acked = max(stage.acked, default=0)
    end = await stage.finish()
    return Outcome(counted, acked, end.txid)
