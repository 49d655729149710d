"""Rows on disk as items of a tree: the row layout.

Values carry the row checksum (storage/rows/checksum.py), which readers verify. A key that is not found is verified by its
neighbours (lmdb/neighbours.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ebla.storage.environment import Change, Delete, Environment, Put, Snapshot
from ebla.storage.lmdb.neighbours import require_absent, require_ascending, require_edges, require_order
from ebla.storage.logs.entries import Position
from ebla.storage.predicates.conditions import Expression
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.tablets.memtable import Memtable
from ebla.storage.tablets.scrub import scrub

ROWS = "rows"


class RowTree:
    def __init__(self, environment: Environment, seed: int) -> None:
        self.environment = environment
        self.seed = seed

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values with their checksum, None if absent. Raises Corruption if absence is not certain."""
        found = self.environment.get_many(ROWS, keys)
        absent = [key for key, value in zip(keys, found, strict=True) if value is None]
        if absent:
            require_absent(self.environment, ROWS, absent, self.seed, self.environment.path)
        return found

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        return [value is not None for value in self.get_many(keys)]

    def memtable(self) -> Memtable:
        return Memtable()

    def altered(self, alteration: bytes) -> None:
        """Rows keep the layout that they were written in."""

    async def flush(self, tables: Sequence[Memtable], position: Position, others: Sequence[Change]) -> None:
        """Make the rows and the other changes durable, in one synced transaction."""
        changes = await self.environment.run(_row_changes, tables)
        await self.environment.commit([*changes, *others])

    def snapshot(self, tables: tuple[Memtable, ...], position: Position) -> RowSnapshot:
        return RowSnapshot(self.environment, self.environment.snapshot(), tables, position, self.seed)

    async def scrub(self, pause: Callable[[], Awaitable[None]] | None) -> int:
        return await scrub(self.environment, ROWS, self.seed, pause)


@dataclass(eq=False)
class RowSnapshot:
    """One position of a tablet's rows, read block by block. Reads are CPU-heavy: call them through `environment.run`."""

    environment: Environment
    base: Snapshot
    tables: tuple[Memtable, ...]
    position: Position
    seed: int

    def block(
        self, start: bytes, stop: bytes | None, limit: int, bytes_max: int
    ) -> tuple[list[bytes], bytes | None]:
        """Rows (key and value joined) with start <= key < stop, ascending, and the key to continue from, None at the end.
        At most `limit` rows, and about `bytes_max` bytes, are from the disk and from each memtable; some are overwritten or
        deleted."""
        overlays = [table.range(start, stop, limit, bytes_max) for table in self.tables]
        if not any(items for items, _ in overlays):
            found, following = self.base.joined(ROWS, start, stop, limit=limit, bytes_max=bytes_max)
            self._require_edges(start, stop, found, to_the_end=following is None)
            require_order(self.base, ROWS, start, stop, found, self.environment.path)
            return found, following
        stored = self.base.items(ROWS, start, stop, limit=limit, bytes_max=bytes_max)
        require_ascending([key for key, _ in stored], self.environment.path)
        ends = [following for _, following in overlays if following is not None]
        after = stored[-1][0] + b"\0" if stored else start
        if stored and self.base.items(ROWS, after, stop, limit=1):
            ends.append(after)
        edges = [key + value for key, value in (*stored[:1], *stored[-1:])]
        self._require_edges(start, stop, edges, to_the_end=after not in ends)
        until = min(ends, default=None)
        rows: dict[bytes, bytes | None] = {}
        rows.update(_below(stored, until))
        for items, _ in overlays:
            rows.update(_below(items, until))
        return [key + value for key, value in sorted(rows.items()) if value is not None], until

    def _require_edges(
        self, start: bytes, stop: bytes | None, rows: list[bytes], *, to_the_end: bool
    ) -> None:
        path = self.environment.path
        require_edges(self.base, ROWS, start, stop, rows, self.seed, path, to_the_end=to_the_end)

    def read(
        self,
        codec: RowCodec,
        start: bytes,
        stop: bytes | None,
        limit: int,
        bytes_max: int,
        names: Sequence[str],
        where: Expression | None = None,
    ) -> tuple[pa.RecordBatch, bytes | None]:
        """As `block`, in Arrow: the columns `names`. `where` leaves out no rows here."""
        joined, following = self.block(start, stop, limit, bytes_max)
        return codec.decode(joined, self.seed, names), following

    def packed(self, start: bytes, limit: int, bytes_max: int) -> tuple[list[bytes], bytes | None]:
        """As `block`, verified."""
        joined, following = self.block(start, None, limit, bytes_max)
        checksum.verify(joined, self.seed, self.environment.path)
        return joined, following

    def close(self) -> None:
        self.base.close()


def _below(items: list[Any], until: bytes | None) -> list[Any]:
    """The items with key < until, of ascending (key, value) pairs."""
    return items if until is None else items[: bisect_left(items, (until,))]


def _row_changes(tables: Sequence[Memtable]) -> list[Change]:
    rows: dict[bytes, bytes | None] = {}
    for table in tables:  # the later ones win
        rows.update(table.rows)
    keys = sorted(rows)  # in half the time of sorting the pairs
    changes: list[Change] = []
    gone = [key for key in keys if rows[key] is None]
    if gone:
        changes.append(Delete(ROWS, gone))
    items = [(key, value) for key in keys if (value := rows[key]) is not None]
    if items:
        changes.append(Put(ROWS, items, sorted_keys=True))
    return changes
