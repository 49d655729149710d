"""The entries of this store, wherever they lie: in the order of their arrival, or with their ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby, takewhile

from ebla.actors.ledger.store import records
from ebla.actors.ledger.store.arrivals import Arrivals
from ebla.actors.ledger.store.records import ENTRIES
from ebla.storage.environment import Environment

NO_LAC = -1
READ_KEYS = 1000


class Entries:
    def __init__(self, environment: Environment, arrivals: Arrivals) -> None:
        self._environment = environment
        self._arrivals = arrivals

    def get(self, ledger: int, entry: int) -> bytes | None:
        """The record of an entry, sound or not."""
        found = self._arrivals.get(ledger, entry)
        return self._environment.get(ENTRIES, records.key_of(ledger, entry)) if found is None else found

    def numbers(self, ledger: int, after: int = -1) -> Iterator[int]:
        """The entries of a ledger after this one, ascending."""
        moved, recent = self._moved_numbers(ledger, after), self._arrivals.after(ledger, after)
        return (number for number, _ in groupby(merge(moved, recent)))

    def _moved_numbers(self, ledger: int, after: int) -> Iterator[int]:
        start, stop = records.bounds(ledger, after)
        while keys := self._environment.keys(ENTRIES, start, stop, limit=READ_KEYS):
            for key in keys:
                yield records.entry_of(key)
            start = keys[-1] + b"\0"

    def absent(self, ledger: int, entries: Sequence[int]) -> Iterator[int]:
        """Those of the entries, ascending, that are not here."""
        numbers = self.numbers(ledger, entries[0] - 1) if entries else iter(())
        here = set(takewhile(lambda number: number <= entries[-1], numbers))
        return (number for number in entries if number not in here)

    def last(self, ledger: int) -> int | None:
        """The last entry here."""
        start, stop = records.bounds(ledger)
        found = self._environment.last(ENTRIES, stop)
        moved = records.entry_of(found[0]) if found is not None and found[0] >= start else None
        recent = self._arrivals.last(ledger)
        return max((number for number in (moved, recent) if number is not None), default=None)

    def lac(self, ledger: int) -> int:
        """The last acknowledged entry, as the last entry here tells it."""
        last = self.last(ledger)
        if last is None:
            return NO_LAC
        entry = records.read_entry(ledger, last, self.get(ledger, last) or b"")
        return NO_LAC if entry is None else entry.lac
