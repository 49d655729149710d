"""The scripted histories can fail: each known mistake of the quorum journal is found by the history named beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors.journal import messages as m
from ebla.actors.journal.node import journal, rejoin, rules
from ebla.actors.journal.node.rules import Change, View
from ebla.actors.journal.records import Segment, State
from ebla.actors.journal.writer import recovery
from tests.journal import recoveries, refusals, rejoining
from tests.journal.stage import play
from tests.mistakes import must_be_found


def _merit(
    prepared: m.Prepared, epoch: Callable[[m.Prepared], int], *, final: bool = True
) -> tuple[Any, ...]:
    segment = prepared.segment
    if segment is None:
        return False, False, 0, 0
    return True, segment.finalized and final, epoch(prepared), segment.end


def _later(prepared: m.Prepared) -> int:
    return max(prepared.accepted, prepared.writer)


def shortest(prepared: m.Prepared) -> tuple[Any, ...]:
    has, final, epoch, end = _merit(prepared, _later)
    return has, final, epoch, -end


def start_with_the_acceptance(honest: Any, view: View, request: m.StartSegment) -> Change:
    old, change = view.segment(request.start), honest(view, request)
    put = tuple(replace(each, accepted=old.accepted if old else 0) for each in change.put)
    return changed(change, put=put)


def take_into_the_open_segment(view: View, start: int) -> Segment:
    found = view.segment(view.open) if view.open is not None else None
    if found is None:
        raise rules.OutOfSync("no segment is open here")
    return found


def promise_and_stay_open(honest: Any, view: View, epoch: int, held_ms: int = 0, after: int = 0) -> Change:
    change = honest(view, epoch, held_ms, after)
    return Change(change.state, dropped=change.dropped, open=view.open)


def admit_late(honest: Any, view: View, stamp: m.Stamp) -> State:
    return honest(view, replace(stamp, serial=max(stamp.serial, view.state.serial + 1)))


def visible_if_committed(view: View, segment: Segment) -> int:
    return segment.end if segment.finalized else min(segment.end, view.state.committed)


async def learned_no_promise(honest: Any, *arguments: Any) -> Any:
    return replace(await honest(*arguments), promised=0)


KNOWN: dict[str, tuple[Any, ...]] = {
    "choose_the_longest": (
        recoveries.a_shorter_copy_that_was_accepted_beats_a_longer_one,
        (recovery, "merit", lambda each: _merit(each, lambda _: 0)),
    ),
    "choose_by_accepted_epoch_only": (
        recoveries.a_later_writer_beats_an_older_acceptance,
        (recovery, "merit", lambda each: _merit(each, lambda it: it.accepted)),
    ),
    "choose_by_writer_epoch_only": (
        recoveries.edits_of_a_minority_survive_if_it_answers,
        (recovery, "merit", lambda each: _merit(each, lambda it: it.writer)),
    ),
    "finalized_is_not_preferred": (
        recoveries.a_finalized_copy_beats_everything,
        (recovery, "merit", lambda each: _merit(each, _later, final=False)),
    ),
    "choose_the_shortest": (
        recoveries.the_longest_copy_of_one_writer_is_recovered,
        (recovery, "merit", shortest),
    ),
    "accept_is_not_remembered": (
        recoveries.a_shorter_copy_that_was_accepted_beats_a_longer_one,
        (rules, "remembered", lambda segment, epoch: segment),
    ),
    "accept_keeps_its_own_length": (
        recoveries.the_longest_copy_of_one_writer_is_recovered,
        (rules, "is_same", lambda local, chosen: True),
    ),
    "accept_compares_the_end_only": (
        recoveries.first_edits_of_two_writers_are_distinguished,
        (rules, "is_same", lambda local, chosen: local.end == chosen.end),
    ),
    "start_keeps_what_was_accepted": (
        recoveries.a_segment_that_is_started_again_forgets_its_acceptance,
        (rules, "start", start_with_the_acceptance),
    ),
    "journal_ignores_the_segment": (
        recoveries.a_node_that_missed_the_roll_appends_nothing_to_the_old_segment,
        (rules, "taking", take_into_the_open_segment),
    ),
    "finalize_ignores_the_length": (
        recoveries.a_node_with_another_length_does_not_finalize,
        (rules, "is_whole", lambda segment, request: True),
    ),
    "no_fence": (refusals.a_newer_epoch_overtakes_a_download, (rules, "fence", lambda view, epoch: None)),
    "gaps_are_accepted": (
        refusals.edits_follow_one_another,
        (rules, "follows", lambda view, segment, first: None),
        (rules, "continues", lambda items, digest: True),
    ),
    "the_same_epoch_is_promised_twice": (
        refusals.the_same_epoch_is_promised_once,
        (rules, "is_new", lambda state, epoch: epoch >= state.promised),
    ),
    "a_superseded_writer_raises_its_epoch": (
        refusals.a_superseded_writer_does_not_raise_its_epoch,
        (rules, "is_overtaken", lambda state, after: False),
    ),
    "a_promise_leaves_the_segment_open": (
        refusals.a_promise_closes_the_open_segment,
        (rules, "new_epoch", promise_and_stay_open),
    ),
    "every_promised_writer_may_write": (
        refusals.only_the_writer_that_started_a_segment_writes_into_it,
        (rules, "writes", lambda view, epoch: None),
    ),
    "empty_segments_are_reported": (
        refusals.an_empty_segment_counts_as_none,
        (rules, "empties", lambda view: ()),
        (View, "newest", lambda self: next(reversed(self.segments.values()), None)),
    ),
    "late_requests_are_accepted": (refusals.a_late_request_is_refused, (rules, "admit", admit_late)),
    "all_of_a_segment_in_progress_is_shown": (
        refusals.only_committed_edits_of_a_segment_in_progress_are_shown,
        (rules, "visible_end", lambda view, segment: segment.end),
    ),
    "any_committed_txid_exposes_a_segment": (
        refusals.a_later_commit_does_not_expose_an_older_leftover,
        (rules, "visible_end", visible_if_committed),
    ),
    "an_empty_directory_counts": (
        rejoining.a_lost_directory_does_not_lose_a_committed_edit,
        (journal, "require_whole", lambda name, address, state: None),
    ),
    "promises_are_not_asked_for": (
        rejoining.a_lost_directory_does_not_lose_a_promise,
        (rejoin, "learned", learned_no_promise),
    ),
    "any_start_is_accepted": (
        rejoining.a_segment_start_from_before_the_loss_is_ignored,
        (rules, "knows_of_loss", lambda state, token: True),
    ),
    "complete_with_the_first_segment": (
        rejoining.a_node_without_earlier_edits_does_not_count,
        (rules, "covered", lambda segments, purged, before: True),
    ),
    "never_complete": (
        rejoining.a_node_is_complete_when_it_has_all_edits,
        (rules, "covered", lambda segments, purged, before: False),
    ),
}


@pytest.mark.parametrize("mistake", KNOWN.values(), ids=list(KNOWN))
def test_a_mistake_is_found(mistake: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    history, *swaps = mistake
    must_be_found(monkeypatch, partial(play, history), *swaps)
