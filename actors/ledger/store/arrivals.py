"""Entries in the order of their arrival: where a small entry is written first.

A commit writes entries of many ledgers next to each other, a few pages in all. In the database of entries, which has them by ledger,
each ledger would cost pages of its own: 100 ledgers with one entry of 100 bytes each wrote 6 MB. So entries are moved there later,
many of a ledger at a time. One transaction puts them there and removes them here. Until then they are read from memory, and a
start reads them from here.

A large entry has pages of its own anyway, and is written into the database of entries at once. Moved, it would be written twice, and
leave so many free pages behind that LMDB's list of them costs each later commit 100 kB.

    arrivals   number, ledger, entry   the same value as in the database of entries
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sortedcontainers import SortedDict

from ebla.actors.ledger.messages import Entry
from ebla.actors.ledger.store import records
from ebla.storage.environment import Change, DeleteRange, Environment, Item, Put

ARRIVALS = "arrivals"
_KEY = struct.Struct(">QQQ")
_NUMBER = struct.Struct(">Q")
READ_ITEMS = 1000


class Arriving(NamedTuple):
    """Entries whose commit is under way; their numbers follow `first`."""

    ledger: int
    first: int
    entries: tuple[int, ...]
    values: tuple[bytes, ...]


class Arrivals:
    def __init__(self, direct_bytes: int) -> None:
        """`direct_bytes`: of an entry that is written into the database of entries at once."""
        self._direct_bytes = direct_bytes
        self.bytes = 0  # of the entries here
        self.next = 0  # the number of the next entry
        self._ledgers: dict[int, SortedDict] = {}  # ledger -> entry -> (number, value)
        self._order = SortedDict()  # number -> ledger, entry, size
        self._arriving: dict[int, Arriving] = {}  # by first number, ascending

    def load(self, environment: Environment) -> None:
        """Read what an earlier incarnation has not moved."""
        start = b""
        while items := environment.items(ARRIVALS, start, limit=READ_ITEMS):
            for key, value in items:
                number, ledger, entry = _KEY.unpack(key)
                self._note(number, ledger, entry, value)
            start = items[-1][0] + b"\0"

    def put(self, ledger: int, entries: Sequence[Entry]) -> tuple[list[Change], Arriving]:
        """The changes that write these entries. Once they are committed, or have failed, `arrived` or `failed` must be called."""
        first = self.next
        small = [entry for entry in entries if len(entry.data) < self._direct_bytes]
        large = [entry for entry in entries if len(entry.data) >= self._direct_bytes]
        changes: list[Change] = []
        values = tuple(records.entry_item(ledger, entry)[1] for entry in small)
        arriving = Arriving(ledger, first, tuple(entry.entry for entry in small), values)
        if small:
            keys = [_KEY.pack(number, ledger, entry.entry) for number, entry in enumerate(small, first)]
            changes.append(Put(ARRIVALS, list(zip(keys, values, strict=True)), sorted_keys=True))
            self.next += len(small)
            self._arriving[first] = arriving
        if large:
            items = [records.entry_item(ledger, entry) for entry in large]
            changes.append(Put(records.ENTRIES, items, sorted_keys=True))
        return changes, arriving

    def arrived(self, arriving: Arriving) -> None:
        """The entries are durable: readers may see them."""
        self.failed(arriving)
        parts = zip(arriving.entries, arriving.values, strict=True)
        for number, (entry, value) in enumerate(parts, arriving.first):
            self._note(number, arriving.ledger, entry, value)

    def failed(self, arriving: Arriving) -> None:
        if arriving.entries:
            del self._arriving[arriving.first]

    def _note(self, number: int, ledger: int, entry: int, value: bytes) -> None:
        here = self._ledgers.get(ledger)
        if here is None:
            here = self._ledgers[ledger] = SortedDict()
        if entry not in here or here[entry][0] < number:
            here[entry] = (number, value)
        self._order[number] = (ledger, entry, len(value))
        self.next = max(self.next, number + 1)
        self.bytes += len(value)

    # -- reading

    def get(self, ledger: int, entry: int) -> bytes | None:
        found = self._ledgers.get(ledger, {}).get(entry)
        return None if found is None else found[1]

    def last(self, ledger: int) -> int | None:
        found = self._ledgers.get(ledger)
        return found.peekitem()[0] if found else None

    def after(self, ledger: int, entry: int) -> Iterator[int]:
        """The entries of the ledger after this one, ascending."""
        found = self._ledgers.get(ledger)
        return iter(()) if found is None else found.irange(entry, inclusive=(False, True))

    # -- moving

    def moves(
        self, bytes_max: int, before: int, gone: Callable[[int], bool] = lambda _: False
    ) -> tuple[list[Change], list[int]]:
        """The changes that move the oldest entries of about so many bytes, with numbers below `before`, and their numbers. Entries of
        ledgers that are `gone` are only removed."""
        numbers: list[int] = []
        items: list[Item] = []
        size = 0
        # A number whose commit has not returned must not be removed: nobody has it in memory yet.
        limit = min(before, next(iter(self._arriving), self.next))
        for number, (ledger, entry, length) in self._order.items():
            if size >= bytes_max or number >= limit:
                break
            numbers.append(number)
            size += length
            latest, value = self._ledgers[ledger][entry]
            if latest == number and not gone(ledger):
                items.append((records.key_of(ledger, entry), value))
        if not numbers:
            return [], []
        items.sort()
        stop = _NUMBER.pack(numbers[-1] + 1)
        return [Put(records.ENTRIES, items, sorted_keys=True), DeleteRange(ARRIVALS, b"", stop)], numbers

    def moved(self, numbers: Sequence[int]) -> None:
        """These are in the database of entries now."""
        for number in numbers:
            ledger, entry, length = self._order.pop(number)
            self.bytes -= length
            here = self._ledgers[ledger]
            if here[entry][0] == number:
                del here[entry]
                if not here:
                    del self._ledgers[ledger]
