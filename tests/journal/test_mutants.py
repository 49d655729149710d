"""The scripted histories can fail: each known mistake is found by the test named beside it."""

from __future__ import annotations

import pytest

from tests.journal import mutants, recoveries, refusals
from tests.journal.stage import play
from tests.mistakes import found

KILLERS = {
    mutants.choose_the_longest: recoveries.a_shorter_copy_that_was_accepted_beats_a_longer_one,
    mutants.choose_by_accepted_epoch_only: recoveries.a_later_writer_beats_an_older_acceptance,
    mutants.choose_by_writer_epoch_only: recoveries.what_a_minority_accepted_survives_if_it_is_heard,
    mutants.finalized_is_not_preferred: recoveries.a_finalized_copy_beats_everything,
    mutants.choose_the_shortest: recoveries.the_longest_copy_of_one_writer_is_recovered,
    mutants.accept_is_not_remembered: recoveries.a_shorter_copy_that_was_accepted_beats_a_longer_one,
    mutants.accept_keeps_its_own_length: recoveries.the_longest_copy_of_one_writer_is_recovered,
    mutants.accept_compares_the_end_only: recoveries.two_writers_first_edits_are_told_apart,
    mutants.start_keeps_what_was_accepted: recoveries.a_segment_that_is_started_anew_forgets_what_was_accepted,
    mutants.journal_ignores_the_segment: recoveries.a_node_that_missed_the_roll_appends_nothing_to_the_old_segment,
    mutants.finalize_ignores_the_length: recoveries.a_node_with_another_length_does_not_finalize,
    mutants.no_fence: refusals.a_newer_epoch_overtakes_a_download,
    mutants.gaps_are_taken: refusals.edits_follow_one_another,
    mutants.the_same_epoch_is_promised_twice: refusals.the_same_epoch_is_promised_once,
    mutants.a_writer_moves_on_over_others: refusals.a_writer_that_was_overtaken_does_not_move_on,
    mutants.a_promise_leaves_the_segment_open: refusals.a_promise_closes_the_open_segment,
    mutants.whoever_has_promised_may_write: refusals.only_who_started_a_segment_writes_into_it,
    mutants.empty_segments_are_reported: refusals.an_empty_segment_is_as_good_as_none,
    mutants.late_requests_are_taken: refusals.a_request_that_was_overtaken_is_refused,
    mutants.all_of_a_segment_in_progress_is_shown: (
        refusals.only_committed_edits_of_a_segment_in_progress_are_shown
    ),
    mutants.anybodys_committed_txid_shows_a_segment: (
        refusals.what_a_later_writer_committed_does_not_show_an_older_ones_leftover
    ),
}


def test_every_mutant_has_a_test_that_finds_it():
    assert list(KILLERS) == list(mutants.MUTANTS)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mistake_is_found(mutant):
    with mutants.swapped(mutant), found():
        play(KILLERS[mutant])
