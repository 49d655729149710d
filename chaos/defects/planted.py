"""Defects that the simulation must find: each one a known way to get a replicated database wrong.

A simulator that finds nothing may be one that cannot. `planted(name)` puts a defect into the production classes of this
process for as long as the block lasts; runs inside it must end in a violation within `seeds_max` seeds of `scenario`
(docs/testing.md has the table with the seeds that were needed, tests/chaos/test_planted.py holds us to it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ebla.chaos.defects import alters, repairs, replication
from ebla.chaos.defects.defect import LATE_DUPLICATES, SLOW_AND_CUT_OFF, Defect
from ebla.chaos.defects.planted_answers import ANSWERS
from ebla.chaos.defects.planted_crowds import CROWDS
from ebla.chaos.defects.planted_disasters import DISASTERS
from ebla.chaos.defects.planted_disks import DISKS
from ebla.chaos.defects.planted_masters import MASTERS
from ebla.storage.errors import InvalidArgument


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Everything in this process has the defect until the block ends. "" plants nothing."""
    with ExitStack() as stack:
        for where, attribute, instead in defect(name).swaps() if name else ():
            stack.callback(setattr, where, attribute, vars(where)[attribute])
            setattr(where, attribute, instead)
        yield


_ALL = (
    Defect(
        "acknowledge-before-commit",
        "a write is answered when it is on the leader's own disk",
        "chains",
        60,
        replication.acknowledge_before_commit,
    ),
    Defect(
        "follower-counts-twice",
        "one follower's acknowledgement counts twice",
        "five",
        60,
        replication.count_a_follower_twice,
        seed=14,
    ),
    Defect(
        "older-term-by-counting",
        "an entry of an older term is committed by counting its copies",
        "five",
        400,
        replication.commit_an_older_term_by_counting,
        seed=3,
    ),
    Defect(
        "commit-uncompared",
        "a follower commits entries without comparing them with the leader's",
        "registers",
        60,
        replication.commit_what_was_not_compared,
        seed=21,
    ),
    Defect(
        "forget-the-vote",
        "a restart forgets the vote",
        "votes",
        200,
        replication.forget_the_vote,
        seed=1,
    ),
    Defect(
        "vote-not-durable",
        "a vote is answered before it is on disk",
        "votes",
        400,
        replication.vote_before_it_is_durable,
        seed=4,
    ),
    Defect(
        "acknowledge-before-sync",
        "a follower acknowledges entries before they are on disk",
        "elections",
        100,
        replication.acknowledge_before_the_sync,
        seed=36,
    ),
    Defect(
        "vote-for-older-log",
        "a vote for a candidate that lacks entries",
        "registers",
        60,
        replication.vote_for_an_older_log,
        seed=6,
    ),
    Defect("vote-twice", "two votes in one term", "elections", 60, replication.vote_twice, seed=1),
    Defect(
        "truncate-without-conflict",
        "a late, shorter message truncates the entries of a later one",
        "registers",
        60,
        replication.truncate_without_a_conflict,
        seed=3,
    ),
    Defect(
        "stale-durability",
        "a sync that ended after a truncation counts for the entries that replaced the truncated ones",
        "registers",
        400,
        replication.believe_an_old_notice_of_durability,
        seed=335,
        faults=SLOW_AND_CUT_OFF,
    ),
    Defect(
        "no-lease", "a leader reads without a lease", "registers", 60, replication.ignore_the_lease, seed=6
    ),
    Defect(
        "read-before-own-term",
        "a new leader reads before it has committed in its term",
        "reads",
        200,
        replication.read_before_the_own_term_commits,
        seed=3,
    ),
    Defect(
        "lease-from-answer",
        "the lease counts from the answer, not from the question",
        "leases",
        400,
        replication.count_the_lease_from_the_answer,
        seed=50,
    ),
    Defect(
        "lease-without-margin",
        "a lease is trusted for as long as votes are withheld, as if all clocks had the same speed",
        "drift",
        200,
        replication.trust_the_lease_as_long_as_votes_are_withheld,
        seed=123,
    ),
    Defect(
        "vote-right-after-a-restart",
        "a restarted replica votes against the leader that it followed before",
        "restarts",
        100,
        replication.vote_right_after_a_restart,
        seed=91,
    ),
    Defect(
        "lead-after-abdicating",
        "a leader that ordered its successor to take over still answers reads",
        "handovers",
        100,
        replication.lead_on_after_abdicating,
        seed=65,
    ),
    Defect(
        "local-read-unasked",
        "a node-local read gets no index up to which it must see",
        "tokens",
        20,
        replication.tell_local_readers_no_index,
    ),
    Defect(
        "unpinned-scan",
        "a scan also reads rows that are flushed during the scan",
        "bank",
        60,
        replication.scan_what_changes,
        seed=18,
    ),
    Defect("apply-twice", "a retry is applied again", "tokens", 20, replication.apply_a_retry_again, seed=0),
    Defect(
        "forgotten-is-new",
        "a late duplicate of a write whose answer is forgotten is applied again",
        "registers",
        20,
        replication.apply_what_is_forgotten,
        seed=2,
        faults=LATE_DUPLICATES,
    ),
    Defect(
        "answers-not-stored",
        "a flush stores rows without the answers that belong to them",
        "retries",
        100,
        replication.store_rows_without_their_answers,
        seed=13,
    ),
    Defect(
        "log-trimmed-early",
        "the shared log drops entries that a tablet still needs",
        "logs",
        60,
        replication.trim_the_shared_log_early,
        seed=4,
    ),
    Defect(
        "flush-claims-too-much",
        "a flush stores its end position with the rows of its beginning",
        "chains",
        60,
        replication.flush_claims_what_came_meanwhile,
        seed=22,
    ),
    Defect(
        "no-checksums",
        "records are used without checking their checksums",
        "disks",
        60,
        replication.believe_every_checksum,
        seed=1,
    ),
    Defect(
        "no-directory-lock",
        "two incarnations write one directory",
        "registers",
        60,
        replication.two_incarnations_write_one_directory,
        seed=0,
    ),
    Defect(
        "old-copy-believed",
        "an old copy of a server's directory is accepted as the server",
        "copies",
        60,
        replication.believe_an_old_copy,
    ),
    *MASTERS,
    Defect(
        "copy-forgets-the-vote",
        "the merge of a copy's metadata forgets a vote in a term that is not over",
        "mending",
        40,
        repairs.merge_forgets_the_vote,
        seed=1,
    ),
    Defect(
        "copy-takes-the-term",
        "the merge of a copy's metadata takes the source's term, also a lower one",
        "mending",
        40,
        repairs.merge_takes_the_sources_term,
        seed=1,
    ),
    Defect(
        "tombstone-forgets-its-end",
        "a tombstone, or a replica that is being copied, votes as if its log had been empty",
        "mending",
        100,
        repairs.tombstone_votes_for_older_logs,
        seed=56,
    ),
    Defect(
        "tombstone-without-votes",
        "a deletion also deletes the consensus metadata",
        "mending",
        40,
        repairs.tombstone_forgets_its_votes,
        seed=1,
    ),
    Defect(
        "ready-before-durable",
        "the superblock says ready before the data is copied",
        "mending",
        40,
        repairs.ready_before_the_data_is_durable,
        seed=1,
    ),
    Defect(
        "former-entries",
        "a start takes a former replica's entries in the shared log for the copy's",
        "mending",
        100,
        repairs.a_former_replicas_entries_are_taken_for_the_copys,
        seed=4,
    ),
    Defect(
        "copy-without-its-log",
        "a copy ends where the source's rows end, so acknowledged entries are missing",
        "mending",
        200,
        repairs.the_log_is_not_copied,
        seed=22,
    ),
    Defect(
        "altered-where-it-leads",
        "an alteration is carried out by the leader alone, and a new leader has the older schema",
        "alters",
        20,
        alters.only_the_leader_is_altered,
    ),
    Defect(
        "old-cells-return",
        "a column that is added under a dropped column's name shows the old values",
        "alters",
        100,
        alters.old_cells_come_back_under_their_name,
        seed=7,
    ),
    Defect(
        "flushed-without-schema",
        "a flush stores rows without the alteration under which they were written",
        "alters",
        20,
        alters.rows_are_flushed_without_their_schema,
    ),
    Defect(
        "reserve-without-end",
        "a dropped table can be recalled after its reserve time",
        "alters",
        20,
        alters.a_reserve_never_ends,
    ),
    Defect(
        "copy-without-answers",
        "a copy brings the rows without the answers that belong to them",
        "mending",
        30,
        repairs.answers_are_not_copied,
        seed=1,
    ),
    Defect(
        "copy-from-anybody",
        "a copy is made from any replica, also from one that does not lead",
        "mending",
        200,
        repairs.copy_from_whoever_asks,
        seed=153,
    ),
    Defect(
        "start-forgets-its-end",
        "a start forgets the end of a tombstone's log",
        "mending",
        40,
        repairs.a_start_forgets_where_the_log_ended,
        seed=1,
    ),
    Defect(
        "tombstone-vote-not-durable",
        "a tombstone, or a replica that is being copied, answers a vote before it is on disk",
        "mending",
        40,
        repairs.tombstone_votes_before_it_is_durable,
        seed=1,
    ),
    Defect(
        "anchor-dropped-early",
        "the log drops entries that an open copy session still has to send",
        "mending",
        60,
        repairs.log_trimmed_under_a_copy,
        seed=47,
    ),
    Defect(
        "promoted-before-caught-up",
        "a leader promotes a pre-voter that lacks committed entries",
        "members",
        60,
        repairs.promote_at_once,
        seed=28,
    ),
    Defect(
        "promoted-while-pending",
        "a leader promotes a pre-voter while another change of members is not committed",
        "members",
        60,
        repairs.promote_beside_a_pending_change,
        seed=12,
    ),
    Defect(
        "compare-and-set-ignored",
        "a change of members ignores the configuration for which it was requested",
        "members",
        40,
        repairs.ignore_the_compare_and_set,
        seed=1,
    ),
    Defect(
        "non-voters-elect",
        "the votes of non-voters and pre-voters count in an election",
        "members",
        60,
        repairs.non_voters_elect,
        seed=11,
    ),
    Defect(
        "non-voters-count",
        "the entries of non-voters and pre-voters count for the commit index",
        "members",
        40,
        repairs.non_voters_count,
    ),
    *CROWDS,
    *DISASTERS,
    *DISKS,
    *ANSWERS,
)

DEFECTS = {defect.name: defect for defect in _ALL}


def defect(name: str) -> Defect:
    if name not in DEFECTS:
        raise InvalidArgument(f"there is no planted defect {name!r}; there are {', '.join(DEFECTS)}")
    return DEFECTS[name]
