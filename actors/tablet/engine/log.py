"""One replica's log: its entries, their places, and their payloads.

An entry begins in memory, becomes durable in the shared log with its round's one sync, and moves to
the private log only if it must outlive the shared log. `slots` records where each entry from
`first_index` on lies; the payload cache holds what apply and the peers need soon. Terms and sizes
for decisions are in the core's LogIndex; this class decides nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ebla.actors.world import Faults, NoFaults
from ebla.storage.environment import Disk
from ebla.storage.errors import Corruption
from ebla.storage.logs.entries import START, Entry, Position, follows
from ebla.storage.logs.private_log import PrivateLog
from ebla.storage.logs.shared_log import SharedLog

CACHE_BYTES_MAX = 8 << 20  # payloads that are applied here but not yet everywhere, per tablet
MOVE_BYTES_MAX = 4 << 20  # per commit to the private log
NO_FAULTS = NoFaults()

# Called when a private log is made, while it is empty.
NotePrivateLog = Callable[["TabletLog"], Awaitable[None]]


async def _not_noted(log: TabletLog) -> None:
    pass


class Slot:
    """The place of one entry. `seq` is its place in the shared log (0: only in the private log)."""

    __slots__ = ("chain", "entry", "seq", "size", "term", "time_us")

    def __init__(self, entry: Entry) -> None:
        self.seq = 0
        self.term = entry.term
        self.chain = entry.chain
        self.time_us = entry.time_us
        self.size = len(entry.payload)
        self.entry: Entry | None = entry


@dataclass(eq=False)
class TabletLog:
    """Entries dropped.index + 1 .. last_index. `dropped` is the position before the first one kept."""

    tablet: str
    disk: Disk
    shared: SharedLog
    private: PrivateLog | None = None
    dropped: Position = START
    note_private: NotePrivateLog = _not_noted
    faults: Faults = NO_FAULTS

    def __post_init__(self) -> None:
        self.slots: list[Slot] = []
        self.private_last = 0  # entries up to this index are in the private log as well
        self.size_bytes = 0  # payloads of all entries here
        self.cached_bytes = 0
        self._cache_from = 1  # no payload below this index is cached

    # -- views

    @property
    def last_index(self) -> int:
        return self.dropped.index + len(self.slots)

    @property
    def first_index(self) -> int:
        return self.dropped.index + 1

    def slot(self, index: int) -> Slot:
        at = index - self.dropped.index - 1
        assert 0 <= at < len(self.slots), ("the log has this entry", self.tablet, index, self.dropped.index)
        return self.slots[at]

    def position(self, index: int) -> Position:
        if index == self.dropped.index:
            return self.dropped
        slot = self.slot(index)
        return Position(index, slot.term, slot.chain, slot.time_us)

    @property
    def last(self) -> Position:
        return self.position(self.last_index)

    def check_chain(self, previous: int, previous_term: int, entries: Sequence[Entry]) -> None:
        """Refuse entries that differ from the leader's chain: damaged in transit, or of another history."""
        if not entries or not self.dropped.index <= previous <= self.last_index:
            return
        position = self.position(previous)
        if position.term != previous_term:
            return  # the core refuses the message, with a hint
        for entry in entries:
            if not follows(self.tablet, position, entry):
                raise Corruption(f"entry {entry.index} of tablet {self.tablet} arrived damaged")
            position = entry.position

    # -- changes in memory; durability is the log writer's business

    def append(self, entry: Entry) -> Slot:
        last_term = self.slots[-1].term if self.slots else self.dropped.term
        assert entry.index == self.last_index + 1, ("a log has no gaps", self.tablet, entry.index)
        assert entry.term >= last_term, (
            "terms never go back",
            self.tablet,
            entry.index,
            entry.term,
            last_term,
        )
        slot = Slot(entry)
        self.slots.append(slot)
        self.size_bytes += slot.size
        self.cached_bytes += slot.size
        return slot

    def truncate(self, from_index: int) -> None:
        """Remove the entries from `from_index` on: a newer leader has other entries there."""
        assert from_index > self.dropped.index, ("dropped entries never change", self.tablet, from_index)
        self._forget(from_index - self.first_index, len(self.slots))
        self.private_last = min(self.private_last, from_index - 1)

    def drop_to(self, index: int) -> None:
        """Drop the entries up to `index`: they are flushed here, and every peer holds them."""
        if index <= self.dropped.index:
            return
        assert index <= self.last_index, ("only entries of the log are dropped", self.tablet, index)
        position = self.position(index)
        self._forget(0, index - self.dropped.index)
        self.dropped = position

    def excess(self, entries_max: int, bytes_max: int, until: int) -> int:
        """The index up to which entries must be dropped to keep within both limits; at most `until`."""
        index, entries, size = self.dropped.index, len(self.slots), self.size_bytes
        while index < until and (entries > entries_max or size > bytes_max):
            index += 1
            entries -= 1
            size -= self.slot(index).size
        return index

    def _forget(self, start: int, stop: int) -> None:
        for slot in self.slots[start:stop]:
            self.size_bytes -= slot.size
            if slot.entry is not None:
                self.cached_bytes -= slot.size
        assert 0 <= self.cached_bytes <= self.size_bytes, ("each payload is counted once", self.tablet)
        del self.slots[start:stop]

    def uncache(self, everywhere: int, applied: int) -> None:
        """Drop payloads that every peer holds; under pressure also those that are only applied."""
        index = max(self._cache_from, self.first_index)
        while index <= applied and (index <= everywhere or self.cached_bytes > CACHE_BYTES_MAX):
            slot = self.slot(index)
            if slot.entry is not None and (slot.seq or index <= self.private_last):
                slot.entry = None
                self.cached_bytes -= slot.size
            index += 1
        self._cache_from = index

    # -- payloads

    def cached(self, first: int, last: int) -> list[Entry] | None:
        """Entries first..last if every payload is in memory."""
        base = self.first_index
        assert base <= first, ("dropped entries are not asked for", self.tablet, first, base)
        found: list[Entry] = []
        for slot in self.slots[first - base : last + 1 - base]:
            if slot.entry is None:
                return None
            found.append(slot.entry)
        return found

    def load(self, first: int, last: int) -> list[Entry]:
        """Entries first..last, from memory or disk, checked. Raises Corruption."""
        found: list[Entry] = []
        for index in range(first, last + 1):
            slot = self.slot(index)
            found.append(slot.entry if slot.entry is not None else self._read(index, slot))
        return found

    def _read(self, index: int, slot: Slot) -> Entry:
        if self.private is not None and index <= self.private_last:
            (record,) = self.private.read(index, index)
        else:
            assert slot.seq, ("a payload that is not in memory is on disk", self.tablet, index)
            (record,) = self.shared.read(self.tablet, [(slot.seq, index, slot.term)])
        if record.entry.chain != slot.chain:
            path = self.shared.environment.path
            raise Corruption(
                f"entry {index} of tablet {self.tablet} is not the one that was written", path=path
            )
        return record.entry

    # -- from the shared to the private log

    def oldest_shared_seq(self) -> int | None:
        """The lowest sequence number of the shared log that this tablet needs."""
        first = max(self.first_index, self.private_last + 1)
        for slot in self.slots[first - self.first_index :]:
            return slot.seq if slot.seq else None  # seq 0: not yet written, so after all written entries
        return None

    async def move(self, below_seq: int) -> None:
        """Copy the entries that the shared log is about to drop into the private log. Durable when
        it returns. Entries that are truncated meanwhile stay in the private log until the next
        `extend` or `trim_private`."""
        while batch := self._movable(max(self.first_index, self.private_last + 1), below_seq):
            if self.private is None:
                self.private = await self._make_private()
            await self.faults.here("tablet.private_log.before_extend")
            await self.private.extend(batch)
            await self.faults.here("tablet.private_log.after_extend")
            last = batch[-1][0]
            kept = last.index <= self.dropped.index or (
                last.index <= self.last_index and self.position(last.index).chain == last.chain
            )
            if kept:
                self.private_last = max(self.private_last, last.index)
            assert self.private_last <= self.last_index or not kept, ("only entries are moved", last.index)

    async def _make_private(self) -> PrivateLog:
        made = await PrivateLog.open(self.disk, self.tablet, create=True)
        try:
            await self.note_private(self)
        except BaseException:
            await made.environment.close()
            raise
        return made

    def _movable(self, first: int, below_seq: int) -> Sequence[tuple[Entry, Position]]:
        batch: list[tuple[Entry, Position]] = []
        size = 0
        for index in range(first, self.last_index + 1):
            slot = self.slot(index)
            if not 0 < slot.seq < below_seq or size > MOVE_BYTES_MAX:
                break
            entry = slot.entry if slot.entry is not None else self._read(index, slot)
            batch.append((entry, self.position(index - 1)))
            size += slot.size
        return batch

    async def trim_private(self) -> None:
        """Drop from the private log the entries that `drop_to` and `truncate` have removed from memory.

        Called before the shared log is trimmed: the entries that replaced a stale tail may be
        flushed and dropped by then, and a restart could not recognise the tail. Entries truncated
        meanwhile were replaced by entries that the shared log keeps in this round.
        """
        if self.private is not None:
            await self.private.trim(self.dropped.index, self.private_last)
