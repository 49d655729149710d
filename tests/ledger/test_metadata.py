"""Where the entries of a ledger are, and how its metadata changes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced
from ebla.actors.ledger.metadata import Fragment, Metadata, Segment
from ebla.storage.errors import InvalidArgument


def ledger(ensemble: int = 3, write: int = 3, ack: int = 2, *segments: Segment) -> Metadata:
    first = Segment(0, tuple("abcdefgh"[:ensemble]))
    return Metadata(1, ensemble, write, ack, "token", segments or (first,), 0)


SHAPES = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]


def test_entries_go_round_the_ensemble() -> None:
    found = ledger(5, 3, 2)
    assert [meta.positions(found, entry) for entry in (0, 1, 4)] == [[0, 1, 2], [1, 2, 3], [4, 0, 1]]
    assert meta.stores_of(found, 4) == ["e", "a", "b"]
    assert list(meta.entries_of(found, 0, 0, 9)) == [0, 3, 4, 5, 8, 9]


@pytest.mark.parametrize(("ensemble", "write", "ack"), SHAPES)
def test_answers_cover_if_every_ack_quorum_has_one(ensemble: int, write: int, ack: int) -> None:
    """Against a second definition: no ack quorum of any entry lies outside of the answers."""
    found = ledger(ensemble, write, ack)
    for count in range(ensemble + 1):
        for answered in combinations(range(ensemble), count):
            outside = any(
                not set(quorum) & set(answered)
                for entry in range(ensemble)
                for quorum in combinations(meta.positions(found, entry), ack)
            )
            assert meta.covers(found, answered) == (not outside)


@pytest.mark.parametrize("shape", [(2, 3, 2), (3, 3, 4), (3, 2, 0), (17, 3, 2)])
def test_quorums_that_cannot_be_are_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidArgument, match="ensemble >= write_quorum >= ack_quorum >= 1"):
        meta.check_quorums(*shape)


def test_a_replacement_begins_a_segment_after_the_last_acknowledged_entry() -> None:
    once = meta.with_replaced(ledger(), 9, {1: "x"})
    assert once.segments == (Segment(0, ("a", "b", "c")), Segment(10, ("a", "x", "c")))
    assert meta.with_replaced(once, 9, {1: "x"}) is once, "a repeated change changes nothing"
    assert meta.with_replaced(once, 12, {1: "x"}) is once
    again = meta.with_replaced(once, 9, {0: "y"})
    assert again.segments == (Segment(0, ("a", "b", "c")), Segment(10, ("y", "x", "c")))
    meta.validate(again)


def test_fragments_end_where_the_next_begins_and_at_the_end_of_the_ledger() -> None:
    parts = (Segment(0, ("a", "b", "c")), Segment(10, ("a", "x", "c")))
    found = ledger(3, 3, 2, *parts)
    assert meta.fragments(found, 14) == [
        Fragment(0, 9, ("a", "b", "c"), True),
        Fragment(10, 14, ("a", "x", "c"), False),
    ]
    assert meta.fragments(found, 9) == [Fragment(0, 9, ("a", "b", "c"), True)]
    ended = meta.closed(found, 12, 100)
    assert meta.fragments(ended, meta.NONE)[1] == Fragment(10, 12, ("a", "x", "c"), True)


def test_a_ledger_is_closed_once() -> None:
    ended = meta.closed(ledger(), 4, 40)
    assert (ended.state, ended.last, ended.length) == (meta.CLOSED, 4, 40)
    assert meta.closed(ended, 4, 40) is ended
    with pytest.raises(LedgerClosed, match="closed at entry 4 by another client"):
        meta.closed(ended, 5, 50)
    with pytest.raises(LedgerFenced, match="write to a new ledger"):
        meta.require_open(ended)
    with pytest.raises(LedgerFenced, match="being recovered"):
        meta.require_open(meta.recovering(ledger()))
    assert meta.recovering(ended) is ended


def test_a_closed_ledger_keeps_no_segment_behind_its_end() -> None:
    found = ledger(3, 3, 2, Segment(0, ("a", "b", "c")), Segment(10, ("a", "x", "c")))
    assert meta.closed(found, 9, 90).segments == (Segment(0, ("a", "b", "c")),)
    assert meta.closed(ledger(), meta.NONE, 0).segments == (Segment(0, ("a", "b", "c")),)


def test_a_moved_store_changes_its_segment_only_and_only_once() -> None:
    found = ledger(3, 3, 2, Segment(0, ("a", "b", "c")), Segment(10, ("a", "x", "c")))
    moved = meta.with_moved(found, 0, "a", "y")
    assert moved is not None and moved.segments == (Segment(0, ("y", "b", "c")), Segment(10, ("a", "x", "c")))
    assert meta.with_moved(moved, 0, "a", "z") is None


@given(st.sampled_from(SHAPES), st.integers(0, 30), st.integers(0, 30))
def test_the_entries_of_all_positions_are_each_entry_write_quorum_times(
    shape: tuple[int, int, int], first: int, count: int
) -> None:
    found = ledger(*shape)
    entries = [
        e for position in range(shape[0]) for e in meta.entries_of(found, position, first, first + count)
    ]
    assert sorted(entries) == sorted(list(range(first, first + count + 1)) * shape[1])
