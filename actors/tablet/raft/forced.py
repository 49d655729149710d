"""Who was given up when a configuration was forced, and how those who were learn of it.

A forced configuration is made without a majority, so the majority that it gives up may come back and elect: two leaders, whose
terms mean nothing to each other. What tells the two sides apart is the mark (Configuration.unsafe), which only grows. A replica's
mark is that of the newest configuration in its log, committed or not: it counts from its appending on, as the members do. Every
request bears its sender's.

    old leader, old candidate -> survivor    a request of a lower mark is refused as FORCED, in any term, before anything else is
                looked at: no term is adopted, no vote given, no entry taken, no promise made. The answer says which mark is known to
                be committed. If that is higher than the sender's own, the sender is given up for good: it leads and campaigns no
                more, and refuses its own side in the same words, so that one answer of one survivor ends the whole side as
                fast as messages travel. A mark that is not committed yet (the kept ones may never answer) refuses and ends nobody
    survivor -> old replica    a kept one is asked before (members.py): nothing that it holds is missing there, and it
                takes the entry with the mark. One that went on with the old side, or was added anew before it became a tombstone, may
                hold as committed what was given up. It takes nothing that does not stand on its whole committed log, says
                STRANDED, and is copied in place. If it follows or leads in that very term, it ends the term first
    master      what a replica reports while it has such a mark does not count there: its term is above whatever the old side, which
                may go on without it, will reach
    restart     what a given up replica was told it forgets, and is told again. A side that meets no survivor and no master meanwhile
                may elect; what it acknowledges goes into quarantine with it
    tombstones  vote by the same rule, by the mark of the configuration that they keep, or of the one on whose evidence
                they were made
    non-voters  are asked nothing and ask nothing; they follow whoever's mark is not below theirs

Terms of a forced leadership begin TERMS above all that the kept ones know, or more: where is drawn. Both sides count on from there,
each for itself, and the pair (index, term) names one entry only: the other side would need as many elections without hearing a
survivor once.

Two configurations that are forced at survivors that do not hear each other bear the same mark. They begin in different ranges of
TERMS terms, so that no term has two leaders: not for certain, since neither can know of the other, but for one case in DRAWN. When
the two meet later nothing tells which is to stay: an operator's matter (docs/repair.md).
"""

from __future__ import annotations

from ebla.actors.messages.raft import AppendRequest
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.world import Random

TERMS = 1_000_000
DRAWN = 1 << 31  # ranges to draw from; a thousand forced configurations use up half of what a term may be
GIVEN_UP = "a configuration was forced on its tablet without it; it takes no part any more, and the master makes a tombstone of it"
NOT_COMMITTED = "the configuration that was forced on its tablet is not committed: force one that keeps fewer, or remove the replica"


def forced_term(known: int, random: Random) -> int:
    """The first term of a forced leadership, where terms are known up to `known`. It begins a range that another one, forced by
    whoever knows as much, does not share."""
    term = (known // TERMS + 2 + random.getrandbits(DRAWN.bit_length() - 1)) * TERMS
    assert term - known >= TERMS, ("a forced leadership has terms of its own", term, known)
    return term


def contradicts(log: LogIndex, commit_index: int, request: AppendRequest) -> bool:
    """Whether what is committed here may be missing there. Only a predecessor at or behind it shows that it is not."""
    assert commit_index <= log.last_index, ("committed entries are in the log", commit_index, log.last_index)
    previous = request.previous_index
    if previous != commit_index:
        return previous < commit_index
    return log.term_at(previous) != request.previous_term
