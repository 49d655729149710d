"""Recovery: a new writer decides which edits of the last writer stay, with the answers of any majority.

    1  promise   a majority promises an epoch above all it has promised: this fences the last writer
    2  prepare   a majority reports its copies of the newest segment, and takes no more edits into it
    3  choose    the best of these copies, by `merit`
    4  accept    a majority has the chosen content, and remembers that it was chosen
    5  finalize  a majority knows that the content is decided

The result has every edit that was ever acknowledged to a writer as durable. Two recoveries never have
different results: the later one learns of the earlier one from a node that both asked, and step 4 makes
sure that it learns enough. The next recovery completes one that ended between two steps. The promise is
never taken back.
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
    """Rank a copy by these criteria, the most important first.

    1  The copy has edits: some of them may be committed.
    2  The copy is finalized: a majority decided its length.
    3  The later epoch: in which the copy was accepted, or in which this node last had a writer. Either proves
       that this node knows the outcome up to that epoch. A shorter copy that was accepted in epoch 5 beats a
       longer one of writer 3, since the shorter one may have been finalized. The edits of writer 6 beat a
       copy that was accepted in epoch 5 at the same start: had that choice held, writer 6 would not have
       started there.
    4  The longer copy: within one epoch it includes every edit that a majority has.
    """
    segment = prepared.segment
    if segment is None:
        return False, False, 0, 0
    return True, segment.finalized, max(prepared.accepted, prepared.writer), segment.end


def choose(journal: str, start: int, prepared: Mapping[str, m.Prepared]) -> m.SegmentState | None:
    """Choose the segment's content; None: no copy has edits. Raises JournalBroken if answers conflict."""
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
    """List the nodes that can send the chosen content."""
    return tuple(
        node
        for node, each in prepared.items()
        if each.segment is not None and each.segment.same_edits(chosen)
    )


async def recover(session: Session) -> End:
    """Become the only writer and decide where the journal ends.

    Raises QuorumFailed; nothing is lost then: recover again, with a new session. Raises JournalBroken if
    edits are lost.
    """
    options = session.options
    states = await session.states()
    require_same_nodes(options.journal.name, options.nodes, {node: s.nodes for node, s in states.items()})
    promises = await session.new_epoch(max(state.promised for state in states.values()) + 1)
    newest = newest_of([promise.last for promise in promises.values()])
    if newest is None:
        return End(0, first_digest(options.journal))
    prepared = await session.prepare(newest.start)
    chosen = choose(options.journal.name, newest.start, prepared)
    if chosen is None:  # some node has edits of the segment, and no majority ever had
        end = End(newest.start - 1, newest.before)
    else:
        assert chosen.start == newest.start and chosen.end >= chosen.start, (chosen, newest)
        end = End(chosen.end, chosen.digest)
        await session.accept(chosen, sources(chosen, prepared))
        session.committed(end.txid)  # it is decided, and the request to finalize carries this txid
        await session.finalize(chosen.start, chosen.end, chosen.digest)
    session.committed(end.txid)
    log.info("journal %s: epoch %d begins after edit %d", options.journal.name, session.epoch, end.txid)
    return end


def newest_of(lasts: Sequence[m.SegmentState | None]) -> m.SegmentState | None:
    return max((last for last in lasts if last is not None), key=lambda last: last.start, default=None)
