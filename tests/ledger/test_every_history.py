"""Every history of a small ledger, to the bounds named here; and wrong rules, each of which breaks a promise in one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles import ends, window
from ebla.actors.ledger.metadata import Metadata, Segment
from ebla.actors.ledger.store import rules
from ebla.actors.ledger.store.records import Head
from ebla.actors.ledger.worker import rules as worker_rules
from tests.ledger.exploring.explorer import Broken, explore
from tests.ledger.exploring.values import Bounds
from tests.mistakes import plant
from tests.sweeps import FACTOR

TWO_ENTRIES = Bounds(entries=2)
STRIPED = Bounds(entries=2, write_quorum=2)
REPLACED = Bounds(entries=1, stores=4, replacements=1)
TWO_RECOVERIES = Bounds(entries=1, write_quorum=2, recoveries=2)
RESTARTED = Bounds(entries=1, write_quorum=2, crashes=1)
REPAIRED = Bounds(entries=1, stores=4, losses=1, worker=True)
GIVEN_UP = Bounds(entries=1, losses=1, gives_up=True)
SMALL = {
    "two entries": TWO_ENTRIES,
    "two entries, striped": STRIPED,
    "the writer replaces a store": REPLACED,
    "two recoveries": TWO_RECOVERIES,
    "a store restarts": RESTARTED,
    "a store is lost and a worker repairs": REPAIRED,
    "a store is lost and given up": GIVEN_UP,
}
LARGE = {
    "three entries": Bounds(entries=3),
    "three entries, striped, confirmed": Bounds(entries=3, write_quorum=2, confirms=True),
    "two recoveries, each entry on all stores": Bounds(entries=1, recoveries=2),
    "two entries, striped, two recoveries": Bounds(entries=2, write_quorum=2, recoveries=2),
    "the writer replaces a store, two entries": Bounds(entries=2, stores=4, replacements=1),
    "a recovery replaces a store": Bounds(entries=1, stores=4, restores=1),
    "two entries and a restart": Bounds(entries=2, write_quorum=2, crashes=1),
    "stores are lost and given up, with the only copies": Bounds(
        entries=2, ack_quorum=1, losses=2, gives_up=True
    ),
    "a replacement, a loss and a worker": Bounds(
        entries=1, stores=4, write_quorum=2, replacements=1, losses=1, worker=True
    ),
}


@pytest.mark.parametrize("named", [*SMALL, *(LARGE if FACTOR > 1 else [])])
def test_every_history_of_a_ledger_keeps_every_promise(named: str) -> None:
    states = explore((SMALL | LARGE)[named])
    print(f"{named}: {states} states")
    assert states > 500


# -- wrong rules


def never_fenced(head: Head) -> Head:
    return head


def admits_when_fenced(honest: Callable[..., Any], head: Any, request: m.AddRequest, read_only: bool) -> Any:
    return honest(head, replace(request, recovery=True), read_only)


def absent_once(found: Metadata, number: int, answers: Any, gone: Any = ()) -> Any:
    for position in meta.positions(found, number):
        if position in answers:
            return next((e for e in answers[position].entries if e.entry == number), None)
    return False


def absent_with_its_store(
    honest: Callable[..., Any], found: Metadata, number: int, answers: Any, gone: Any
) -> Any:
    lacking = {at: m.ReadReply((), (number,)) for at in gone}
    return honest(found, number, {**answers, **lacking}, ())


def starts_at_the_confirmed_entry(found: Metadata, lacs: Iterable[int]) -> int:
    return max(lacs)


def one_copy_more(honest: Callable[..., int], self: window.Window, pending: window.Pending) -> int:
    return honest(self, pending) + 1


def next_stores_count(self: window.Window, pending: window.Pending) -> int:
    return (pending.stored | pending.joined).bit_count()


def joins_without_entries(honest: Callable[..., Any], self: window.Window, position: int) -> list[m.Entry]:
    honest(self, position)
    return []


def replaced_from_lac(found: Metadata, lac: int, replaced: Mapping[int, str]) -> Metadata:
    newest = found.segments[-1]
    stores = tuple(replaced.get(position, each) for position, each in enumerate(newest.stores))
    first = max(lac, newest.first)
    kept = found.segments[:-1] if first == newest.first else found.segments
    return replace(found, segments=(*kept, Segment(first, stores)))


def open_to_all(found: Metadata) -> None:
    return None


def last_word(found: Metadata, last: int, length: int, newest: Iterable[Segment] | None = None) -> Metadata:
    segments = found.segments if newest is None else (*found.segments[:-1], *newest)
    return replace(found, state=meta.CLOSED, last=last, length=length, segments=segments)


def read_any(found: Metadata, known: int, tails: Mapping[int, m.Tail]) -> tuple[int, bool]:
    return max([known, *(last for tail in tails.values() for _, last in tail.held)]), True


def read_only_lac(found: Metadata, known: int, tails: Mapping[int, m.Tail]) -> tuple[int, bool]:
    return known, True


def always_decided(known: int, end: int, tails: Mapping[int, m.Tail]) -> bool:
    return False


def moves_what_is_written(
    honest: Callable[..., Any], found: Metadata, mark: Any, findings: Any, *others: Any
) -> Any:
    closed = tuple(replace(each, fragment=replace(each.fragment, closed=True)) for each in findings.damaged)
    return honest(found, mark, replace(findings, damaged=closed), *others)


WRONG: dict[str, tuple[Bounds, tuple[Any, ...]]] = {
    "a_fence_is_not_durable": (STRIPED, (rules, "fenced", never_fenced)),
    "a_fenced_store_takes_entries": (STRIPED, (rules, "admit_add", admits_when_fenced)),
    "one_absence_ends_a_recovery": (TWO_ENTRIES, (ends, "fate", absent_once)),
    "a_given_up_store_counts_as_one_that_lacks_the_entry": (GIVEN_UP, (ends, "fate", absent_with_its_store)),
    "a_recovery_starts_before_the_last_segment": (REPLACED, (ends, "start", starts_at_the_confirmed_entry)),
    "an_entry_is_acknowledged_one_copy_early": (STRIPED, (window.Window, "_counted", one_copy_more)),
    "a_next_store_counts_before_it_is_named": (REPLACED, (window.Window, "_counted", next_stores_count)),
    "a_new_store_is_named_without_the_entries": (REPLACED, (window.Window, "join", joins_without_entries)),
    "a_replacement_begins_at_the_last_acknowledged_entry": (
        REPLACED,
        (meta, "with_replaced", replaced_from_lac),
    ),
    "a_writer_replaces_stores_during_a_recovery": (REPLACED, (meta, "require_open", open_to_all)),
    "the_last_to_close_decides": (TWO_RECOVERIES, (meta, "closed", last_word)),
    "a_reader_returns_what_any_store_has": (STRIPED, (ends, "durable", read_any)),
    "a_reader_stops_at_the_confirmed_entry": (STRIPED, (ends, "durable", read_only_lac)),
    "a_reader_returns_what_a_recovery_has_written": (TWO_RECOVERIES, (ends, "undecided", always_decided)),
    "a_worker_moves_a_fragment_that_is_still_written": (
        REPAIRED,
        (worker_rules, "plan", moves_what_is_written),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_breaks_a_promise_in_some_history(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds, wrong = WRONG[name]
    plant(monkeypatch, wrong)
    with pytest.raises(Broken) as broken:
        explore(bounds)
    print(broken.value)
