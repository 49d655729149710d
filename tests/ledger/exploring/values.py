"""The product's values for a state's numbers, each made once: metadata, entries, answers; and what its rules say of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import NamedTuple

from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import LedgerFenced
from ebla.actors.ledger.handles import ends
from ebla.actors.ledger.handles.window import Pending, Window
from ebla.actors.ledger.metadata import Metadata, Segment
from ebla.actors.ledger.store import rules
from ebla.actors.ledger.store.records import Head
from tests.ledger.exploring.states import NOTHING, Adder, Store

LEDGER, TOKEN = 1, "token"


class Bounds(NamedTuple):
    """How far a search goes. `replacements`, `restores`: how often the writer, and each recovery, may replace a store. `crashes`: stores that
    may stop between the arrival of a request and its sync. `losses`: stores that may be lost for good. `confirms`: the writer tells stores what
    is acknowledged without a further entry, too. `gives_up`: recoveries go on without the stores that are lost for good."""

    write_quorum: int = 3
    ack_quorum: int = 2
    stores: int = 3
    entries: int = 2
    recoveries: int = 1
    replacements: int = 0
    restores: int = 0
    crashes: int = 0
    losses: int = 0
    confirms: bool = False
    worker: bool = False
    gives_up: bool = False


def bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)


def numbers(found: int) -> list[int]:
    """The members of a set of entries."""
    return [number for number in range(found.bit_length()) if found >> number & 1]


class Values:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._metadata: list[Metadata] = []
        self._numbers: dict[Metadata, int] = {}
        self._renamed: dict[tuple[int, tuple[int, ...]], int] = {}
        self._entries: dict[tuple[int, int], m.Entry] = {}
        self._admitted: dict[tuple[bool, int, int, bool], bool] = {}
        self._ends: dict[object, tuple[int, int]] = {}

    # -- metadata

    def first(self) -> int:
        stores = tuple(str(at) for at in range(3))
        bounds = self.bounds
        return self.number(
            Metadata(LEDGER, 3, bounds.write_quorum, bounds.ack_quorum, TOKEN, (Segment(0, stores),), 0)
        )

    def number(self, found: Metadata) -> int:
        if self.bounds.write_quorum == 3:  # then the order of stores means nothing
            ordered = tuple(Segment(each.first, tuple(sorted(each.stores))) for each in found.segments)
            found = meta.replace(found, segments=ordered)
        known = self._numbers.get(found)
        if known is None:
            meta.validate(found)
            known = self._numbers[found] = len(self._metadata)
            self._metadata.append(found)
        return known

    def metadata(self, number: int) -> Metadata:
        return self._metadata[number]

    def renamed(self, number: int, name: tuple[int, ...]) -> int:
        key = number, name
        known = self._renamed.get(key)
        if known is None:
            found = self._metadata[number]
            segments = tuple(
                Segment(each.first, tuple(str(name[int(store)]) for store in each.stores))
                for each in found.segments
            )
            known = self._renamed[key] = self.number(meta.replace(found, segments=segments))
        return known

    # -- entries and stores

    def entry(self, number: int, stamps: tuple[int, ...]) -> m.Entry:
        """Each has one byte."""
        key = number, stamps[number]
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = m.make_entry(LEDGER, number, stamps[number], number + 1, b"x")
        return found

    def admits(self, fenced: bool, entry: m.Entry, recovery: bool) -> bool:
        key = fenced, entry.entry, entry.lac, recovery
        found = self._admitted.get(key)
        if found is None:
            request = m.AddRequest("", LEDGER, TOKEN, (entry,), recovery)
            try:
                rules.admit_add(Head(TOKEN, fenced), request, read_only=False)
                found = True
            except LedgerFenced:
                found = False
            self._admitted[key] = found
        return found

    def window(self, adder: Adder, stores: tuple[Store, ...], link: int, stamps: tuple[int, ...]) -> Window:
        """The product's window of a writer that has received every answer so far. A store answers a recovery at once if it has the
        entry already: a recovery that gets the answer later only does nothing meanwhile."""
        window = Window(self._metadata[0], adder.lac, adder.lac + 1)
        window.next = adder.next
        for join in adder.joins:
            window.joining |= 1 << join.position
        for number in range(adder.lac + 1, adder.next):
            pending = Pending(self.entry(number, stamps))
            for position, at in enumerate(adder.view):
                pending.stored |= (self.taken(stores[at], link) >> number & 1) << position
            for join in adder.joins:
                pending.joined |= (self.taken(stores[join.store], link) >> number & 1) << join.position
            window.pending.append(pending)
        return window

    def taken(self, store: Store, link: int) -> int:
        """The entries of this client that the store has taken."""
        found = store.links[link]
        return found.ok if link == 0 else found.sent & store.held

    # -- readers

    def ends(self, first: int, stores: tuple[Store, ...]) -> tuple[int, int]:
        """What readers of a last segment may take for its end: the last of all, and the first that any stores suffice for."""
        key = first, tuple((store.held, store.lac, store.lost, store.fenced) for store in stores)
        found = self._ends.get(key)
        if found is None:
            found = self._ends[key] = self._find_ends(first, stores)
        return found

    def _find_ends(self, first: int, stores: tuple[Store, ...]) -> tuple[int, int]:
        segment = Segment(first, tuple(map(str, range(len(stores)))))
        newest = meta.replace(self._metadata[0], segments=(segment,))
        tails = {
            at: m.Tail(store.lac, rules.ranges(numbers(store.held)), store.fenced)
            for at, store in enumerate(stores)
            if not store.lost
        }
        seen, certain = [first - 1], []
        for count in range(1, len(tails) + 1):
            for chosen in combinations(tails, count):
                answers = {at: tails[at] for at in chosen}
                known = max(first - 1, *(tail.lac for tail in answers.values()))
                end, surely = ends.durable(newest, known, answers)
                seen.append(known if ends.undecided(known, end, answers) else end)
                if surely:
                    certain.append(end)
        return max(seen), min(certain, default=1 << 30)

    def answers(
        self,
        asked_of: tuple[int, ...],
        stores: tuple[Store, ...],
        link: int,
        asked: range,
        stamps: tuple[int, ...],
    ) -> dict[int, m.ReadReply]:
        """What a recovery was answered to its reads, by position."""
        made = {}
        for position, at in enumerate(asked_of):
            read = stores[at].links[link].read
            if read == NOTHING:
                continue
            mine = list(meta.entries_of(self._metadata[0], position, asked.start, asked.stop - 1))
            here = tuple(self.entry(each, stamps) for each in mine if read >> each & 1)
            made[position] = m.ReadReply(here, tuple(each for each in mine if not read >> each & 1))
        return made
