"""A tablet's own log: the entries that outlive the shared log, because data or a peer still needs them.

It is written in batches, off the write path, when the shared log is about to be trimmed. Entries that a newer leader
has replaced may remain here as a stale tail while the shared log has their replacements: `extend` replaces everything
from its first entry on, and `trim`, which runs before the shared log is trimmed, cuts the rest of the tail.

Key: index u64 big endian. Value: storage/logs/entries.py (`to_item`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ebla.storage.environment import Change, DeleteRange, Disk, Environment, Item, Put
from ebla.storage.errors import Corruption, Damaged, StorageError
from ebla.storage.logs.entries import Entry, Position, Record, from_item, to_item

ENTRIES = "entries"
READ_ITEMS = 256
_INDEX = struct.Struct(">Q")


def path_of(tablet: str) -> str:
    return f"wals/{tablet}"


def item_of(entry: Entry, previous: Position) -> Item:
    """The item of an entry, which is the same on every server."""
    return to_item(_INDEX.pack(entry.index), entry, previous)


class PrivateLog:
    def __init__(self, tablet: str, environment: Environment) -> None:
        self.tablet = tablet
        self.environment = environment
        last = environment.last(ENTRIES)
        self.last_index = self._index(last[0]) if last else 0

    @staticmethod
    async def open(disk: Disk, tablet: str, *, create: bool) -> PrivateLog:
        environment = await disk.open_environment(
            path_of(tablet), [ENTRIES], create=create, map_bytes=1 << 28
        )
        try:
            return PrivateLog(tablet, environment)
        except StorageError:
            await environment.close()  # a damaged tablet must still be deletable
            raise

    def recover(self) -> Iterator[tuple[int, Record | Corruption]]:
        """Every entry by ascending index, or its Corruption. Raises Damaged if entries are missing or cannot be
        identified."""
        start, before, found = b"", -1, 0
        while items := self.environment.items(ENTRIES, start, limit=READ_ITEMS):
            for key, value in items:
                index = self._index(key)
                if index <= before:
                    raise self._damaged(f"entry {index} follows entry {before}")
                before, found = index, found + 1
                try:
                    yield index, from_item(self.tablet, index, key, value, self.environment.path)
                except Corruption as error:
                    yield index, error
            start = items[-1][0] + b"\0"
        if found != self.environment.count(ENTRIES):
            raise self._damaged(f"it has {self.environment.count(ENTRIES)} entries, {found} are found")

    def _index(self, key: bytes) -> int:
        if len(key) != _INDEX.size:
            raise self._damaged(f"an entry has a key of {len(key)} bytes, not {_INDEX.size}")
        index: int = _INDEX.unpack(key)[0]
        return index

    def _damaged(self, what: str) -> Damaged:
        return Damaged(f"the log of tablet {self.tablet} is damaged: {what}", path=self.environment.path)

    async def extend(self, entries: Sequence[tuple[Entry, Position]]) -> None:
        """Replace everything from the first of these consecutive entries on, durably."""
        first = entries[0][0].index
        items = [item_of(entry, previous) for entry, previous in entries]
        changes: list[Change] = [
            DeleteRange(ENTRIES, _INDEX.pack(first), None),
            Put(ENTRIES, items, sorted_keys=True),
        ]
        await self.environment.commit(changes)
        self.last_index = entries[-1][0].index

    def read(self, first: int, last: int) -> list[Record]:
        """Checked records first..last inclusive, which must have been written. Raises Corruption."""
        keys = [_INDEX.pack(index) for index in range(first, last + 1)]
        found: list[Record] = []
        stored = self.environment.get_many(ENTRIES, keys)
        for index, key, data in zip(range(first, last + 1), keys, stored, strict=True):
            if data is None:
                raise Corruption(
                    f"entry {index} of tablet {self.tablet} is missing", path=self.environment.path
                )
            try:
                found.append(from_item(self.tablet, index, key, data, self.environment.path))
            except Damaged as error:  # the key was asked for, so the entry is known: one replica is damaged
                raise Corruption(str(error), path=self.environment.path) from error
        return found

    async def trim(self, to_index: int, valid_index: int) -> None:
        """Keep only to_index < index <= valid_index, durably: earlier entries are not needed, later ones are stale."""
        changes = [DeleteRange(ENTRIES, b"", _INDEX.pack(to_index + 1))]
        changes.append(DeleteRange(ENTRIES, _INDEX.pack(max(to_index, valid_index) + 1), None))
        await self.environment.commit(changes)
        self.last_index = min(self.last_index, valid_index)
