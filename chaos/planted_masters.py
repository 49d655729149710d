"""Defects of masters, their journal and coordination: rows of the table of chaos/planted.py."""

from __future__ import annotations

from ebla.chaos import defects, standby_defects
from ebla.chaos.defect import LATE_PROMISES, Defect

MASTERS = (
    Defect(
        "edit-not-durable",
        "the master answers before its edit is on disk",
        "churn",
        200,
        defects.acknowledge_edits_before_they_are_durable,
        seed=30,
    ),
    Defect(
        "no-master-lease",
        "a master answers as long as nobody told it that it is superseded",
        "masters",
        60,
        defects.believe_in_a_lease_for_ever,
        seed=8,
    ),
    Defect(
        "fence-skipped",
        "a journal node takes what a writer sends whose epoch is over",
        "masters",
        60,
        defects.skip_the_fence_of_journal_nodes,
        seed=23,
    ),
    Defect(
        "equal-epoch-promised",
        "a journal node promises an epoch that it has promised before",
        "masters",
        20,
        defects.promise_an_epoch_again,
        seed=6,
        faults=LATE_PROMISES,
    ),
    Defect(
        "take-over-behind",
        "a master takes over with what it has followed, and does not read what was recovered",
        "masters",
        60,
        defects.follow_and_read_no_further,
        seed=0,
    ),
    Defect(
        "follows-without-sets",
        "a standby passes over edits that only set nodes",
        "locks",
        20,
        standby_defects.follow_without_what_was_set,
    ),
    Defect(
        "sequences-in-memory",
        "the numbers of sequential nodes are counted in the memory of the active master",
        "locks",
        60,
        defects.count_sequences_in_memory,
    ),
    Defect(
        "change-carries-out-the-first",
        "of a change of several nodes the first operation is carried out",
        "locks",
        20,
        defects.carry_out_the_first_of_a_change,
    ),
    Defect(
        "watchers-not-told",
        "who watches a node is not told that it was set",
        "locks",
        20,
        defects.tell_nobody_who_watches,
    ),
    Defect(
        "deletions-not-told",
        "who watches a node is not told that it was deleted",
        "locks",
        20,
        defects.tell_nobody_of_deletions,
    ),
    Defect(
        "no-fresh-timeout",
        "a new master expires the sessions that it has not heard yet",
        "locks",
        100,
        defects.expire_what_a_predecessor_heard,
        seed=23,
    ),
    Defect(
        "nodes-outlive-sessions",
        "an expired session leaves its ephemeral nodes behind",
        "locks",
        60,
        defects.let_go_of_the_session_and_not_of_its_nodes,
    ),
    Defect(
        "turn-without-looking",
        "a waiter takes a lock when the one before it is gone, whoever holds it",
        "locks",
        60,
        defects.take_the_turn_of_whoever_was_before,
        seed=9,
    ),
)
