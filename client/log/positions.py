"""Where the positions of records are in a ledger.

Entries that are lost for good have no position that can be read: a search passes over them, many at a time, however many they are.
"""

from __future__ import annotations

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EntryLost
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.registry import Registry
from ebla.actors.ledger.metadata import Metadata
from ebla.log.records import ENTRY_RECORDS_MAX, LogLedger, Records, decode


class Positions:
    def __init__(self, registry: Registry, reader: Reader) -> None:
        self._registry = registry
        self._reader = reader

    async def records(self, found: Metadata, entry: int, last: int | None = None) -> list[Records]:
        """The records of this entry, and of some after it up to `last`. Raises EntryLost, Unavailable."""
        read = await self._reader.read(found, entry, entry if last is None else last)
        return [decode(found.ledger, each.entry, each.data) for each in read]

    async def end_of(self, part: LogLedger, found: Metadata, last: int | None = None) -> int:
        """The position after the last record of the ledger, or after that of entry `last`."""
        last = found.last if last is None else last
        if last == meta.NONE:
            return part.first
        return (await self.records(found, last))[0].end

    async def ends_of(self, part: LogLedger, found: Metadata, last: int | None = None) -> tuple[int, int]:
        """The position after the last record of the ledger that is readable, up to entry `last`; and one that none of its records has.
        They differ if the last entries are lost for good."""
        last = found.last if last is None else last
        entry = last
        while True:
            try:
                end = await self.end_of(part, found, entry)
                return end, end + (last - entry) * ENTRY_RECORDS_MAX
            except EntryLost:
                before = await self._reader.first_sound(found, range(entry - 1, meta.NONE, -1))
            newer = await self._registry.read(found.ledger)
            if newer == found:  # otherwise entries may be on other stores by now
                entry = meta.NONE if before is None else before
            found = newer

    async def known_end(self, part: LogLedger, found: Metadata, confirmed: int | None) -> int:
        """The position after the last readable record up to entry `confirmed`, or up to the newest segment: all of them are acknowledged.
        The ledger's first position if that cannot be read now."""
        last = found.segments[-1].first - 1 if confirmed is None else confirmed
        try:
            return (await self.ends_of(part, found, last))[0]
        except Unavailable:
            return part.first

    async def entry_of(self, found: Metadata, last: int, position: int) -> int:
        """The entry up to `last` that has this position, or the first one after it: last + 1 if none has. Entries that are lost for
        good are passed over; EntryLost is raised if the position is in one of them."""
        low, high, lost = 0, last + 1, None
        while low < high:
            middle = (low + high) // 2
            entry, read, error = await self._readable(found, middle, high)
            if read is not None and read.end <= position:
                low = entry + 1
            elif read is not None and read.first <= position:
                return entry
            else:
                high, lost = middle, error
        if lost is not None:
            raise lost
        return low

    async def _readable(
        self, found: Metadata, first: int, end: int
    ) -> tuple[int, Records | None, EntryLost | None]:
        """The first readable entry from `first` to before `end`, and why `first` is not readable."""
        try:
            return first, (await self.records(found, first))[0], None
        except EntryLost as error:
            lost = error
        entry = await self._reader.first_sound(found, range(first + 1, end))
        if entry is None:
            return end, None, lost
        return entry, (await self.records(found, entry))[0], lost
