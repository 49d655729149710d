"""The scripted histories can fail: each known mistake is found by the test named beside it."""

from __future__ import annotations

import pytest

from tests.journal import mutants, recoveries, refusals
from tests.journal.stage import play
from tests.mistakes import found

KILLERS = {
    mutants.choose_the_longest: recoveries.a_shorter_copy_that_was_accepted_beats_a_longer_one,
    mutants.choose_by_accepted_epoch_only: recoveries.a_later_writer_beats_an_older_acceptance,
    mutants.choose_by_writer_epoch_only: recoveries.edits_of_a_minority_survive_if_it_answers,
    mutants.finalized_is_not_preferred: recoveries.a_finalized_copy_beats_everything,
    mutants.choose_the_shortest: recoveries.the_longest_copy_of_one_writer_is_recovered,
    mutants.accept_is_not_remembered: recoveries.a_shorter_copy_that_was_accepted_beats_a_longer_one,
    mutants.accept_keeps_its_own_length: recoveries.the_longest_copy_of_one_writer_is_recovered,
    mutants.accept_compares_the_end_only: recoveries.first_edits_of_two_writers_are_distinguished,
    mutants.start_keeps_what_was_accepted: recoveries.a_segment_that_is_started_again_forgets_its_acceptance,
    mutants.journal_ignores_the_segment: recoveries.a_node_that_missed_the_roll_appends_nothing_to_the_old_segment,
    mutants.finalize_ignores_the_length: recoveries.a_node_with_another_length_does_not_finalize,
    mutants.no_fence: refusals.a_newer_epoch_overtakes_a_download,
    mutants.gaps_are_accepted: refusals.edits_follow_one_another,
    mutants.the_same_epoch_is_promised_twice: refusals.the_same_epoch_is_promised_once,
    mutants.a_superseded_writer_raises_its_epoch: refusals.a_superseded_writer_does_not_raise_its_epoch,
    mutants.a_promise_leaves_the_segment_open: refusals.a_promise_closes_the_open_segment,
    mutants.every_promised_writer_may_write: refusals.only_the_writer_that_started_a_segment_writes_into_it,
    mutants.empty_segments_are_reported: refusals.an_empty_segment_counts_as_none,
    mutants.late_requests_are_accepted: refusals.a_late_request_is_refused,
    mutants.all_of_a_segment_in_progress_is_shown: (
        refusals.only_committed_edits_of_a_segment_in_progress_are_shown
    ),
    mutants.any_committed_txid_exposes_a_segment: (refusals.a_later_commit_does_not_expose_an_older_leftover),
}


def test_every_mutant_has_a_test_that_finds_it():
    assert list(KILLERS) == list(mutants.MUTANTS)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mistake_is_found(mutant):
    with mutants.swapped(mutant), found():
        play(KILLERS[mutant])
