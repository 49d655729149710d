"""The two sides of a forced configuration: its members, and the replicas that it gave up.

A forced configuration is made without a majority, so the majority that it gives up may return and
elect: two leaders, whose terms are not comparable. The forced epoch (Configuration.unsafe), which
only grows, distinguishes the sides. A replica's forced epoch is that of the newest configuration in
its log, committed or not: like the members, it counts as soon as it is appended. Every request has
its sender's forced epoch.

    old leader, old candidate -> survivor
                A request of a lower forced epoch is refused as FORCED, in any term, before anything else: no
                term is adopted, no vote given, no entry taken, no promise made. The answer names the highest
                forced epoch that is known to be committed. If that exceeds the sender's own, the sender is
                given up for good: it neither leads nor campaigns, and refuses its own side in the same way,
                so one answer of one survivor ends the whole side. A forced epoch that is not committed yet
                (the kept members may never answer) refuses requests, and ends no replica
    survivor -> old replica
                A kept member is asked before (members.py): the survivor has all its entries, so it takes the
                entry with the forced epoch. A replica that continued with the old side, or was added again
                before it became a tombstone, may hold as committed entries that were given up. It takes only
                entries that follow its whole committed log, answers STRANDED, and is copied in place. If it
                follows or leads in the same term, it ends the term first
    master      ignores reports of a replica with an uncommitted forced epoch: its term is above any term that
                the old side, which may continue without it, will reach
    restart     a given-up replica forgets that it is one, and learns it again. A side that meets no survivor
                and no master meanwhile may elect; the entries that it acknowledges go into quarantine with it
    tombstones  vote by the same rule, by the forced epoch of the configuration that they keep, or of the one
                on whose evidence they were made
    non-voters  request no votes and get no vote requests; they follow any leader whose forced epoch is not
                below theirs

The terms of a forced leadership begin TERMS or more above all terms that the kept members know; the
distance is drawn. Both sides continue to count, and (index, term) still names one entry only: the
other side would need as many elections without meeting a survivor.

Two configurations that are forced at survivors without contact have the same forced epoch. They
begin in different ranges of TERMS terms, so that no term has two leaders, except for one case in
DRAWN. When the two meet later, no rule decides which remains: an operator must (docs/repair.md).
"""

from __future__ import annotations

from ebla.actors.world import Random

TERMS = 1_000_000
DRAWN = 1 << 31  # ranges to draw from; a thousand forced configurations use up half of all possible terms
GIVEN_UP = "a configuration was forced on its tablet without it; it takes no part any more, and the master makes a tombstone of it"
NOT_COMMITTED = "the configuration that was forced on its tablet is not committed: force one that keeps fewer, or remove the replica"


def forced_term(known: int, random: Random) -> int:
    """Draw the first term of a forced leadership, when terms up to `known` are known. Even if
    another survivor with the same knowledge forces a configuration, the two ranges most likely
    differ."""
    term = (known // TERMS + 2 + random.getrandbits(DRAWN.bit_length() - 1)) * TERMS
    assert term - known >= TERMS, ("a forced leadership has terms of its own", term, known)
    return term
