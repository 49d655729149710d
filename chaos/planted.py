"""Defects that the simulation must find: each one a known way to get a replicated database wrong.

A simulator that finds nothing may be one that cannot. `planted(name)` puts a defect into the production classes of this
process for as long as the block lasts; runs inside it must end in a violation within `seeds_max` seeds of `scenario`
(docs/testing.md has the table with the seeds that were needed, tests/chaos/test_planted.py holds us to it).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ebla.chaos import alter_defects, crowd_defects, defects, repair_defects
from ebla.chaos.defect import LATE_DUPLICATES, SLOW_AND_CUT_OFF, Defect
from ebla.chaos.planted_disasters import DISASTERS
from ebla.chaos.planted_disks import DISKS
from ebla.chaos.planted_masters import MASTERS
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
        defects.acknowledge_before_commit,
        seed=0,
    ),
    Defect(
        "follower-counts-twice",
        "one follower's acknowledgement is counted for two",
        "five",
        60,
        defects.count_a_follower_twice,
        seed=14,
    ),
    Defect(
        "older-term-by-counting",
        "an entry of an older term is committed by counting its copies",
        "five",
        400,
        defects.commit_an_older_term_by_counting,
        seed=75,
    ),
    Defect(
        "commit-uncompared",
        "a follower commits entries that it has not compared with the leader's",
        "registers",
        60,
        defects.commit_what_was_not_compared,
        seed=16,
    ),
    Defect(
        "forget-the-vote",
        "a restart forgets whom it voted for",
        "votes",
        200,
        defects.forget_the_vote,
        seed=1,
    ),
    Defect(
        "vote-not-durable",
        "a vote is answered before it is on disk",
        "votes",
        400,
        defects.vote_before_it_is_durable,
        seed=7,
    ),
    Defect(
        "acknowledge-before-sync",
        "a follower acknowledges entries before they are on disk",
        "elections",
        100,
        defects.acknowledge_before_the_sync,
        seed=36,
    ),
    Defect(
        "vote-for-older-log",
        "a vote for a candidate that lacks entries",
        "registers",
        60,
        defects.vote_for_an_older_log,
        seed=6,
    ),
    Defect("vote-twice", "two votes in one term", "elections", 60, defects.vote_twice, seed=36),
    Defect(
        "truncate-without-conflict",
        "a late, shorter message truncates what a later one brought",
        "registers",
        60,
        defects.truncate_without_a_conflict,
        seed=0,
    ),
    Defect(
        "stale-durability",
        "a sync that ended after a truncation counts for what came in the place of its entries",
        "registers",
        200,
        defects.believe_an_old_notice_of_durability,
        seed=13,
        faults=SLOW_AND_CUT_OFF,
    ),
    Defect("no-lease", "a leader reads without a lease", "registers", 60, defects.ignore_the_lease, seed=6),
    Defect(
        "read-before-own-term",
        "a new leader reads before it has committed in its term",
        "reads",
        200,
        defects.read_before_the_own_term_commits,
        seed=3,
    ),
    Defect(
        "lease-from-answer",
        "the lease counts from the answer, not from the question",
        "leases",
        400,
        defects.count_the_lease_from_the_answer,
        seed=148,
    ),
    Defect(
        "lease-without-margin",
        "a lease is trusted for as long as votes are withheld, as if no clock ran faster than another",
        "drift",
        100,
        defects.trust_the_lease_as_long_as_votes_are_withheld,
        seed=32,
    ),
    Defect(
        "vote-right-after-a-restart",
        "a restarted replica helps a challenger of the leader that it listened to before",
        "restarts",
        100,
        defects.vote_right_after_a_restart,
        seed=38,
    ),
    Defect(
        "lead-after-abdicating",
        "a leader that ordered its successor to take over reads on",
        "handovers",
        100,
        defects.lead_on_after_abdicating,
        seed=80,
    ),
    Defect(
        "local-read-unasked",
        "who reads where the rows lie is told no index that it must see",
        "tokens",
        20,
        defects.tell_local_readers_no_index,
    ),
    Defect(
        "unpinned-scan",
        "a scan reads rows that are flushed meanwhile",
        "bank",
        60,
        defects.scan_what_changes,
        seed=15,
    ),
    Defect("apply-twice", "a retry is applied again", "tokens", 20, defects.apply_a_retry_again, seed=1),
    Defect(
        "forgotten-is-new",
        "a late duplicate of a write whose answer is forgotten is applied again",
        "registers",
        20,
        defects.apply_what_is_forgotten,
        faults=LATE_DUPLICATES,
    ),
    Defect(
        "answers-not-stored",
        "a flush stores rows without the answers that belong to them",
        "retries",
        100,
        defects.store_rows_without_their_answers,
        seed=13,
    ),
    Defect(
        "log-trimmed-early",
        "the shared log lets go of what a tablet still needs",
        "logs",
        60,
        defects.trim_the_shared_log_early,
        seed=4,
    ),
    Defect(
        "flush-claims-too-much",
        "a flush claims the position at its end for the rows of its beginning",
        "chains",
        60,
        defects.flush_claims_what_came_meanwhile,
        seed=22,
    ),
    Defect(
        "no-checksums",
        "records are believed as they are read",
        "disks",
        60,
        defects.believe_every_checksum,
        seed=1,
    ),
    Defect(
        "no-directory-lock",
        "two incarnations write one directory",
        "registers",
        60,
        defects.two_incarnations_write_one_directory,
        seed=7,
    ),
    Defect(
        "old-copy-believed",
        "an older copy of a server's directory is taken for the server",
        "copies",
        60,
        defects.believe_an_old_copy,
    ),
    *MASTERS,
    Defect(
        "copy-forgets-the-vote",
        "the merge of a copy's metadata forgets a vote in a term that is not over",
        "mending",
        40,
        repair_defects.merge_forgets_the_vote,
        seed=1,
    ),
    Defect(
        "copy-takes-the-term",
        "the merge of a copy's metadata takes the source's term, be it lower",
        "mending",
        40,
        repair_defects.merge_takes_the_sources_term,
        seed=1,
    ),
    Defect(
        "tombstone-forgets-its-end",
        "a tombstone, or a replica that is being copied, votes as if its log had been empty",
        "mending",
        100,
        repair_defects.tombstone_votes_for_older_logs,
        seed=6,
    ),
    Defect(
        "tombstone-without-votes",
        "a deletion takes the consensus metadata along",
        "mending",
        40,
        repair_defects.tombstone_forgets_its_votes,
        seed=1,
    ),
    Defect(
        "ready-before-durable",
        "the superblock says ready before the data is copied",
        "mending",
        40,
        repair_defects.ready_before_the_data_is_durable,
        seed=1,
    ),
    Defect(
        "former-entries",
        "a start takes what the shared log holds of a former replica for the copy's",
        "mending",
        100,
        repair_defects.a_former_replicas_entries_are_taken_for_the_copys,
        seed=23,
    ),
    Defect(
        "copy-without-its-log",
        "a copy ends where the source's rows end: entries that were acknowledged are not in it",
        "mending",
        200,
        repair_defects.the_log_is_not_copied,
        seed=1,
    ),
    Defect(
        "altered-where-it-leads",
        "an alteration is carried out by the leader alone, and a new leader has the older schema",
        "alters",
        20,
        alter_defects.only_the_leader_is_altered,
    ),
    Defect(
        "old-cells-return",
        "a column that is added under a dropped one's name shows what that one held",
        "alters",
        100,
        alter_defects.old_cells_come_back_under_their_name,
        seed=7,
    ),
    Defect(
        "flushed-without-schema",
        "a flush stores rows without the alteration that they were written under",
        "alters",
        20,
        alter_defects.rows_are_flushed_without_their_schema,
    ),
    Defect(
        "reserve-without-end",
        "a dropped table can be recalled when the time for that is over",
        "alters",
        20,
        alter_defects.a_reserve_never_ends,
    ),
    Defect(
        "copy-without-answers",
        "a copy brings the rows without the answers that belong to them",
        "mending",
        30,
        repair_defects.answers_are_not_copied,
        seed=1,
    ),
    Defect(
        "copy-from-anybody",
        "a copy is made from whoever is asked, leader of the term or not",
        "mending",
        60,
        repair_defects.copy_from_whoever_asks,
        seed=13,
    ),
    Defect(
        "start-forgets-its-end",
        "a start forgets where the log of a tombstone ended",
        "mending",
        40,
        repair_defects.a_start_forgets_where_the_log_ended,
        seed=1,
    ),
    Defect(
        "tombstone-vote-not-durable",
        "a tombstone, or a replica that is being copied, answers a vote before it is on disk",
        "mending",
        40,
        repair_defects.tombstone_votes_before_it_is_durable,
        seed=1,
    ),
    Defect(
        "anchor-dropped-early",
        "the log lets go of what an open copy session is still to send",
        "mending",
        60,
        repair_defects.log_trimmed_under_a_copy,
        seed=42,
    ),
    Defect(
        "promoted-before-caught-up",
        "a leader makes a voter of a pre-voter that does not hold what is committed",
        "members",
        60,
        repair_defects.promote_at_once,
        seed=0,
    ),
    Defect(
        "promoted-while-pending",
        "a leader promotes a pre-voter while another change of members is not committed",
        "members",
        60,
        repair_defects.promote_beside_a_pending_change,
        seed=12,
    ),
    Defect(
        "compare-and-set-ignored",
        "a change of members is made from another configuration than the one that it was asked for",
        "members",
        40,
        repair_defects.ignore_the_compare_and_set,
        seed=24,
    ),
    Defect(
        "non-voters-elect",
        "the votes of non-voters and pre-voters count in an election",
        "members",
        60,
        repair_defects.non_voters_elect,
        seed=11,
    ),
    Defect(
        "non-voters-count",
        "what non-voters and pre-voters hold counts for the commit index",
        "members",
        40,
        repair_defects.non_voters_count,
    ),
    Defect(
        "open-request-forgotten",
        "the lowest of a client's open requests counts as answered: its retry is refused",
        "crowds",
        60,
        crowd_defects.forget_the_lowest_open_request,
        seed=4,
    ),
    Defect(
        "first-answer-for-all",
        "all callers whose rows went together are told what became of the first one's",
        "crowds",
        60,
        crowd_defects.tell_all_callers_what_the_first_is_told,
        seed=1,
    ),
    Defect(
        "open-change-forgotten",
        "the answer to the lowest of a session's open changes is dropped: its retry is carried out again",
        "crowds",
        60,
        crowd_defects.drop_the_answer_to_the_lowest_open_change,
        seed=1,
    ),
    Defect(
        "frozen-beside-a-flush",
        "a flush lets go of the rows that a scan froze while it wrote",
        "crowds",
        60,
        crowd_defects.flush_lets_go_of_what_was_frozen_meanwhile,
        seed=11,
    ),
    Defect(
        "row-behind-a-block",
        "a scan does not see a row that is the only one behind a block",
        "crowds",
        60,
        crowd_defects.pass_over_a_single_row_behind_a_block,
        seed=1,
    ),
    Defect(
        "oldest-frozen-first",
        "a read finds the oldest of the values of a key that scans froze one after the other",
        "scans",
        40,
        crowd_defects.read_the_oldest_of_what_was_frozen,
        seed=0,
    ),
    *DISASTERS,
    *DISKS,
)

DEFECTS = {defect.name: defect for defect in _ALL}


def defect(name: str) -> Defect:
    if name not in DEFECTS:
        raise InvalidArgument(f"there is no planted defect {name!r}; there are {', '.join(DEFECTS)}")
    return DEFECTS[name]
