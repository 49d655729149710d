"""Known mistakes of the quorum journal, each swapped into the production code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from typing import Any

from msgspec.structs import replace

from ebla.actors.journal import messages as m
from ebla.actors.journal.node import rules
from ebla.actors.journal.node.rules import Change, View
from ebla.actors.journal.records import Segment, State
from ebla.actors.journal.writer import recovery

Swap = tuple[Any, str, Any]  # class or module, name, replacement


def _merit(
    prepared: m.Prepared, epoch: Callable[[m.Prepared], int], *, final: bool = True
) -> tuple[Any, ...]:
    segment = prepared.segment
    if segment is None:
        return False, False, 0, 0
    return True, segment.finalized and final, epoch(prepared), segment.end


def _later(prepared: m.Prepared) -> int:
    return max(prepared.accepted, prepared.writer)


def choose_the_longest() -> list[Swap]:
    return [(recovery, "merit", lambda each: _merit(each, lambda _: 0))]


def choose_by_accepted_epoch_only() -> list[Swap]:
    return [(recovery, "merit", lambda each: _merit(each, lambda it: it.accepted))]


def choose_by_writer_epoch_only() -> list[Swap]:
    return [(recovery, "merit", lambda each: _merit(each, lambda it: it.writer))]


def finalized_is_not_preferred() -> list[Swap]:
    return [(recovery, "merit", lambda each: _merit(each, _later, final=False))]


def choose_the_shortest() -> list[Swap]:
    def merit(each: m.Prepared) -> tuple[Any, ...]:
        has, final, epoch, end = _merit(each, _later)
        return has, final, epoch, -end

    return [(recovery, "merit", merit)]


def accept_is_not_remembered() -> list[Swap]:
    return [(rules, "remembered", lambda segment, epoch: segment)]


def accept_keeps_its_own_length() -> list[Swap]:
    return [(rules, "is_same", lambda local, chosen: True)]


def accept_compares_the_end_only() -> list[Swap]:
    return [(rules, "is_same", lambda local, chosen: local.end == chosen.end)]


def start_keeps_what_was_accepted() -> list[Swap]:
    honest = rules.start

    def start(view: View, request: m.StartSegment) -> Change:
        old, change = view.segment(request.start), honest(view, request)
        put = tuple(replace(each, accepted=old.accepted if old else 0) for each in change.put)
        return changed(change, put=put)

    return [(rules, "start", start)]


def journal_ignores_the_segment() -> list[Swap]:
    def taking(view: View, start: int) -> Segment:
        found = view.segment(view.open) if view.open is not None else None
        if found is None:
            raise rules.OutOfSync("no segment is open here")
        return found

    return [(rules, "taking", taking)]


def finalize_ignores_the_length() -> list[Swap]:
    return [(rules, "is_whole", lambda segment, request: True)]


def no_fence() -> list[Swap]:
    return [(rules, "fence", lambda view, epoch: None)]


def gaps_are_accepted() -> list[Swap]:
    def follows(view: View, segment: Segment, first: int) -> None:
        return None

    return [(rules, "follows", follows), (rules, "continues", lambda items, digest: True)]


def the_same_epoch_is_promised_twice() -> list[Swap]:
    def is_new(state: State, epoch: int) -> bool:
        return epoch >= state.promised

    return [(rules, "is_new", is_new)]


def a_superseded_writer_raises_its_epoch() -> list[Swap]:
    return [(rules, "is_overtaken", lambda state, after: False)]


def a_promise_leaves_the_segment_open() -> list[Swap]:
    honest = rules.new_epoch

    def new_epoch(view: View, epoch: int, held_ms: int = 0, after: int = 0) -> Change:
        change = honest(view, epoch, held_ms, after)
        return Change(change.state, dropped=change.dropped, open=view.open)

    return [(rules, "new_epoch", new_epoch)]


def every_promised_writer_may_write() -> list[Swap]:
    return [(rules, "writes", lambda view, epoch: None)]


def empty_segments_are_reported() -> list[Swap]:
    def newest(self: View) -> Segment | None:
        return next(reversed(self.segments.values()), None)

    return [(rules, "empties", lambda view: ()), (View, "newest", newest)]


def late_requests_are_accepted() -> list[Swap]:
    honest = rules.admit

    def admit(view: View, stamp: m.Stamp) -> State:
        late = replace(stamp, serial=max(stamp.serial, view.state.serial + 1))
        return honest(view, late)

    return [(rules, "admit", admit)]


def all_of_a_segment_in_progress_is_shown() -> list[Swap]:
    return [(rules, "visible_end", lambda view, segment: segment.end)]


def any_committed_txid_exposes_a_segment() -> list[Swap]:
    def visible_end(view: View, segment: Segment) -> int:
        return segment.end if segment.finalized else min(segment.end, view.state.committed)

    return [(rules, "visible_end", visible_end)]


MUTANTS: tuple[Callable[[], list[Swap]], ...] = (
    choose_the_longest,
    choose_by_accepted_epoch_only,
    choose_by_writer_epoch_only,
    finalized_is_not_preferred,
    choose_the_shortest,
    accept_is_not_remembered,
    accept_keeps_its_own_length,
    accept_compares_the_end_only,
    start_keeps_what_was_accepted,
    journal_ignores_the_segment,
    finalize_ignores_the_length,
    no_fence,
    gaps_are_accepted,
    the_same_epoch_is_promised_twice,
    a_superseded_writer_raises_its_epoch,
    a_promise_leaves_the_segment_open,
    every_promised_writer_may_write,
    empty_segments_are_reported,
    late_requests_are_accepted,
    all_of_a_segment_in_progress_is_shown,
    any_committed_txid_exposes_a_segment,
)


@contextmanager
def swapped(mutant: Callable[[], list[Swap]]) -> Iterator[None]:
    undo: list[Swap] = []
    try:
        for where, name, instead in mutant():
            undo.append((where, name, getattr(where, name)))
            setattr(where, name, instead)
        yield
    finally:
        for where, name, was in reversed(undo):
            setattr(where, name, was)
