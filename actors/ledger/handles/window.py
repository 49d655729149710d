"""The entries of a writer that are not acknowledged yet, and which stores have them. Nothing here waits.

    in order   an entry is acknowledged when `ack_quorum` of its stores have it, and so are all entries before it
    joining    a position whose next store is getting the entries counts for nothing, neither the store that leaves nor the next one,
               until the change of the metadata is known

A set of positions is a number, whose bit p stands for position p.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.messages import Entry
from ebla.actors.ledger.metadata import Metadata


@dataclass(slots=True, eq=False)
class Pending:
    """`stored`: the positions whose stores have the entry. `joined`: those whose next stores have it."""

    entry: Entry
    future: asyncio.Future[int] | None = None
    stored: int = 0
    joined: int = 0


class Window:
    """`lac` and `length`: of the last acknowledged entry. `next`: the number of the next entry. `joining`: a set of positions."""

    __slots__ = ("found", "joining", "lac", "length", "next", "pending")

    def __init__(self, found: Metadata, lac: int, length: int) -> None:
        self.found = found
        self.lac = lac
        self.length = length
        self.next = lac + 1
        self.joining = 0
        self.pending: deque[Pending] = deque()

    def add(self, entry: Entry, future: asyncio.Future[int] | None = None) -> list[int]:
        """Add the next entry; returns the positions to whose stores it goes."""
        assert entry.entry == self.next, (entry.entry, self.next)
        self.next += 1
        self.pending.append(Pending(entry, future))
        return meta.positions(self.found, entry.entry)

    def added(self, position: int, entries: Iterable[Entry]) -> None:
        """The position's store has synced these entries; of a joining position: its next store."""
        if not self.pending:
            return
        first, bit = self.pending[0].entry.entry, 1 << position
        joins = bool(self.joining & bit)
        for entry in entries:
            assert entry.entry < self.next, (entry.entry, self.next)
            if entry.entry >= first:
                pending = self.pending[entry.entry - first]
                if joins:
                    pending.joined |= bit
                else:
                    pending.stored |= bit

    def acknowledge(self) -> list[Pending]:
        """Take the entries that are acknowledged now, in order."""
        made = []
        while self.pending and self._counted(self.pending[0]) >= self.found.ack_quorum:
            head = self.pending.popleft()
            assert head.entry.entry == self.lac + 1 and head.entry.length >= self.length, (
                self.lac,
                head.entry,
            )
            self.lac, self.length = head.entry.entry, head.entry.length
            made.append(head)
        return made

    def _counted(self, pending: Pending) -> int:
        return (pending.stored & ~self.joining).bit_count()

    def join(self, position: int) -> list[Entry]:
        """Another store shall take this position; returns what it must have before."""
        self.joining |= 1 << position
        for pending in self.pending:
            pending.joined &= ~(1 << position)
        return [
            pending.entry
            for pending in self.pending
            if position in meta.positions(self.found, pending.entry.entry)
        ]

    def take_over(self, positions: Iterable[int]) -> None:
        """The metadata name the next stores of these positions: what they have counts from now on, and the others' no more."""
        for position in positions:
            bit = 1 << position
            assert self.joining & bit, position
            self.joining &= ~bit
            for pending in self.pending:
                pending.stored = pending.stored & ~bit | pending.joined & bit
