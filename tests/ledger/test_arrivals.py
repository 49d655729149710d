"""Entries in the order of their arrival, and their move to the database of entries."""

from __future__ import annotations

from collections.abc import Sequence

from ebla.actors.ledger.messages import Entry, make_entry
from ebla.actors.ledger.store.arrivals import ARRIVALS, Arrivals
from ebla.actors.ledger.store.records import ENTRIES, entry_of
from ebla.storage.environment import DeleteRange, Put


def entries(ledger: int, *numbers: int) -> Sequence[Entry]:
    return [make_entry(ledger, number, -1, 0, b"x" * 10) for number in numbers]


def test_an_entry_whose_commit_has_not_returned_is_not_removed() -> None:
    arrivals = Arrivals(1000)
    _, first = arrivals.put(1, entries(1, 0))
    _, second = arrivals.put(2, entries(2, 0, 1))
    arrivals.arrived(second)
    assert arrivals.moves(1000, arrivals.next) == ([], []), (
        "the first one is on disk before the second, and not in memory yet"
    )
    assert arrivals.get(2, 1) is not None and arrivals.get(1, 0) is None
    arrivals.arrived(first)
    changes, numbers = arrivals.moves(1000, arrivals.next)
    assert numbers == [0, 1, 2]
    put, removed = changes
    assert isinstance(put, Put) and put.database == ENTRIES and len(put.items) == 3
    assert isinstance(removed, DeleteRange) and removed.database == ARRIVALS
    arrivals.moved(numbers)
    assert (arrivals.bytes, arrivals.last(1), arrivals.last(2)) == (0, None, None)


def test_a_failed_commit_holds_nothing_up() -> None:
    arrivals = Arrivals(1000)
    _, failed = arrivals.put(1, entries(1, 0))
    _, second = arrivals.put(1, entries(1, 1))
    arrivals.failed(failed)
    arrivals.arrived(second)
    assert arrivals.moves(1000, arrivals.next)[1] == [1]


def test_an_entry_that_arrives_twice_is_moved_once() -> None:
    arrivals = Arrivals(1000)
    for _ in range(2):
        arrivals.arrived(arrivals.put(1, entries(1, 7))[1])
    changes, numbers = arrivals.moves(1000, arrivals.next)
    put = changes[0]
    assert isinstance(put, Put) and [entry_of(key) for key, _ in put.items] == [7] and numbers == [0, 1]
    arrivals.moved(numbers)
    assert arrivals.bytes == 0 and list(arrivals.after(1, -1)) == []


def test_entries_are_moved_a_bounded_number_at_a_time_and_not_those_of_deleted_ledgers() -> None:
    arrivals = Arrivals(1000)
    for ledger in (1, 2):
        arrivals.arrived(arrivals.put(ledger, entries(ledger, *range(10)))[1])
    changes, numbers = arrivals.moves(100, arrivals.next)
    assert 0 < len(numbers) < 10
    changes, numbers = arrivals.moves(10_000, arrivals.next, lambda ledger: ledger == 1)
    put = changes[0]
    assert isinstance(put, Put) and len(put.items) == 10 and len(numbers) == 20


def test_what_arrives_during_a_round_of_moves_waits_for_the_next_round() -> None:
    arrivals = Arrivals(1000)
    arrivals.arrived(arrivals.put(1, entries(1, 0, 1))[1])
    before = arrivals.next
    arrivals.arrived(arrivals.put(1, entries(1, 2))[1])
    numbers = arrivals.moves(10_000, before)[1]
    assert numbers == [0, 1]
    arrivals.moved(numbers)
    assert arrivals.moves(10_000, before) == ([], []) and arrivals.last(1) == 2


def test_a_large_entry_is_written_where_it_stays() -> None:
    arrivals = Arrivals(100)
    large = make_entry(1, 1, -1, 0, b"x" * 100)
    changes, arriving = arrivals.put(1, [*entries(1, 0), large])
    assert [each.database for each in changes if isinstance(each, Put)] == [ARRIVALS, ENTRIES]
    arrivals.arrived(arriving)
    assert arrivals.last(1) == 0 and arrivals.next == 1
    _, alone = arrivals.put(1, [large])
    _, second = arrivals.put(2, entries(2, 0))
    arrivals.arrived(alone)
    assert arrivals.moves(1000, arrivals.next)[1] == [0], "the entry of ledger 2 is on its way"
    arrivals.arrived(second)
    assert arrivals.moves(1000, arrivals.next)[1] == [0, 1]
