"""How a new writer decides what the last one wrote, whoever of the nodes answers.

    1  promise   a majority promises an epoch above all it has promised: the last writer is fenced from here on
    2  prepare   a majority tells what it has of the newest segment, and takes no more edits into it
    3  choose    the best of what they told, by `merit`
    4  accept    a majority has the chosen content, and remembers that it was chosen
    5  finalize  a majority knows that it is decided

Whatever a writer was ever told to be durable is in the result, and two recoveries never come to different results: a
later one hears of the earlier one from a node that both asked, and step 4 makes sure that it hears enough. A recovery
that ends anywhere in between is carried on by the next one. The promise is never taken back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import broken
from ebla.actors.journal.quorum import require_same_nodes
from ebla.actors.journal.records import first_digest
from ebla.actors.journal.writer.session import Session

log = logging.getLogger(__name__)


class End(NamedTuple):
    """The last decided edit, and the running digest after it."""

    txid: int
    digest: int


def merit(prepared: m.Prepared) -> tuple[bool, bool, int, int]:
    """What to choose by, most important first.

    1  There are edits: some of them may be committed.
    2  It is finalized: a majority decided its length.
    3  The later epoch, in which it was accepted or this node last had a writer. Either proves that this node knows how
       matters stood in that epoch: a shorter copy that was accepted in epoch 5 beats a longer one of writer 3, since
       it may have been finalized; what writer 6 wrote beats what was accepted in epoch 5 at the same start, since
       writer 6 would not be there if that had held.
    4  The longer: within one epoch it includes whatever a majority has.
    """
    segment = prepared.segment
    if segment is None:
        return False, False, 0, 0
    return True, segment.finalized, max(prepared.accepted, prepared.writer), segment.end


def choose(journal: str, start: int, prepared: Mapping[str, m.Prepared]) -> m.SegmentState | None:
    """The content that the segment is to have; None if nobody has edits of it. Raises JournalBroken if the answers
    cannot all be true."""
    chosen = max(prepared.values(), key=merit).segment
    end = start - 1 if chosen is None else chosen.end
    for node, each in prepared.items():
        has = each.segment
        if chosen is not None and has is not None and has.finalized and not has.same_edits(chosen):
            raise broken(
                journal, f"segment {start} is finalized at {has.end} on {node}, and it ends at {end}"
            )
        if each.committed > end:
            raise broken(
                journal, f"{node} knows {each.committed} to be committed, segment {start} ends at {end}"
            )
    return chosen


def sources(chosen: m.SegmentState, prepared: Mapping[str, m.Prepared]) -> tuple[str, ...]:
    """Who can send the chosen content."""
    return tuple(
        node
        for node, each in prepared.items()
        if each.segment is not None and each.segment.same_edits(chosen)
    )


async def recover(session: Session) -> End:
    """Become the only writer and decide where the journal ends. Raises QuorumFailed, and then nothing is lost: do it
    again, with a new session; JournalBroken says that something is."""
    options = session.options
    states = await session.states()
    require_same_nodes(options.journal.name, options.nodes, {node: s.nodes for node, s in states.items()})
    promises = await session.new_epoch(max(state.promised for state in states.values()) + 1)
    newest = newest_of([promise.last for promise in promises.values()])
    if newest is None:
        return End(0, first_digest(options.journal))
    prepared = await session.prepare(newest.start)
    chosen = choose(options.journal.name, newest.start, prepared)
    if chosen is None:  # one node has some of it, and no majority ever had
        end = End(newest.start - 1, newest.before)
    else:
        end = End(chosen.end, chosen.digest)
        await session.accept(chosen, sources(chosen, prepared))
        session.committed(end.txid)  # it is decided, and finalize tells so
        await session.finalize(chosen.start, chosen.end, chosen.digest)
    session.committed(end.txid)
    log.info("journal %s: epoch %d begins after edit %d", options.journal.name, session.epoch, end.txid)
    return end


def newest_of(lasts: Sequence[m.SegmentState | None]) -> m.SegmentState | None:
    return max((last for last in lasts if last is not None), key=lambda last: last.start, default=None)
