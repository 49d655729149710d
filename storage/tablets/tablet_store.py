"""A replica's rows: memtables over one LMDB environment, flushed together with the answers, the position and the table's
last alteration.

    atomic     a flush is one synced transaction of rows, answers, alteration and the applied position
    exact      after a restart the state is that of the flushed position; the log brings it forward
    consistent a snapshot shows one position, even if entries are applied or flushed while it is read

Values carry the row checksum (storage/rows/rows.py), which readers verify; the position carries its own. A key that is
not found is verified by its neighbours (lmdb/neighbours.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import msgspec

from ebla.storage.directories.records import seal, unseal
from ebla.storage.environment import Change, Delete, Disk, Environment, Put, Reader, Snapshot, within
from ebla.storage.errors import Corruption, Damaged, DataDiskFailed
from ebla.storage.lmdb.neighbours import (
    require_absent,
    require_ascending,
    require_edges,
    require_order,
)
from ebla.storage.logs.entries import START, Position
from ebla.storage.rows import checksum
from ebla.storage.tablets.memtable import Memtable
from ebla.storage.tablets.results import RESULTS, Results
from ebla.storage.tablets.scrub import scrub

ROWS, META = "rows", "meta"
SMALL_BYTES = 4 << 20  # up to this size all rows are verified before serving: some hundredths of a second
POSITION = b"position"
ALTERATION = b"alteration"  # absent: the table was never altered


def path_of(tablet: str) -> str:
    return f"data/{tablet}"


class TabletStore:
    def __init__(self, environment: Environment, results: Results, seed: int) -> None:
        self.environment = environment
        self.seed = seed
        self.results = results
        self.active = Memtable()
        self.frozen: list[Memtable] = []
        self.flushed = position_of(environment, environment.path)
        self.applied = self.flushed
        self.alteration = _read_alteration(environment, environment.path)  # as of `applied`, encoded
        self._unflushed_alteration: bytes | None = None
        results.load(environment, environment.path)
        if (answered := results.last_index()) > self.flushed.index:
            raise Corruption(
                f"{environment.path} is at index {self.flushed.index} and has the answer to entry {answered}: its position is "
                "an older one, and the write of the present one was lost",
                path=environment.path,
            )

    @staticmethod
    async def open(disk: Disk, tablet: str, *, create: bool) -> TabletStore:
        """`create` makes an empty one at position START. A small one is verified as a whole."""
        environment = await disk.open_environment(path_of(tablet), [ROWS, RESULTS, META], create=create)
        try:
            if environment.get(META, POSITION) is None:
                if not create:
                    raise Damaged(f"the data of tablet {tablet} has no position", path=environment.path)
                await environment.commit([_put_position(START)])
            store = TabletStore(environment, Results(), checksum.seed(tablet))
            if environment.size_bytes() <= SMALL_BYTES:
                await store.scrub()
            return store
        except BaseException:
            await environment.close()  # otherwise it could be neither opened again nor removed
            raise

    @property
    def memory_bytes(self) -> int:
        held = self.active.memory_bytes
        return held + sum([memtable.memory_bytes for memtable in self.frozen]) if self.frozen else held

    @property
    def size_bytes(self) -> int:
        """Bytes on disk and of unflushed rows. 0 if the disk is lost: the report of that loss must not fail here."""
        waiting = self.active.data_bytes + sum(memtable.data_bytes for memtable in self.frozen)
        try:
            return self.environment.size_bytes() + waiting
        except DataDiskFailed:
            return 0

    # -- reads at the applied position

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values with their checksum, None if absent. Raises Corruption if absence is not certain."""
        tables = [self.active, *reversed(self.frozen)]
        found: list[bytes | None] = [None] * len(keys)
        missing: list[int] = []
        for at, key in enumerate(keys):
            for memtable in tables:
                if key in memtable.rows:
                    found[at] = memtable.rows[key]
                    break
            else:
                missing.append(at)
        if missing:
            stored = self.environment.get_many(ROWS, [keys[at] for at in missing])
            for at, value in zip(missing, stored, strict=True):
                found[at] = value
            absent = [keys[at] for at in missing if found[at] is None]
            if absent:
                require_absent(self.environment, ROWS, absent, self.seed, self.environment.path)
        return found

    def snapshot(self) -> TabletSnapshot:
        """The state at the applied position. Close it soon: it delays page reuse."""
        self._freeze()
        base = self.environment.snapshot()
        return TabletSnapshot(self.environment, base, tuple(self.frozen), self.applied, self.seed)

    # -- changes, in log order; the caller advances `applied` with every entry

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.active.put(keys, values)

    def delete(self, keys: Sequence[bytes]) -> None:
        self.active.delete(keys)

    def alter(self, alteration: bytes) -> None:
        self.alteration = self._unflushed_alteration = alteration

    async def flush(self) -> Position:
        """Make rows, answers, alteration and position at the present applied position durable, in one synced transaction.
        Returns that position. The caller makes one flush at a time."""
        target = self.applied
        if target.index == self.flushed.index:
            return target
        self._freeze()
        tables = list(self.frozen)
        alteration = self._unflushed_alteration
        answers = self.results.take()
        try:
            changes = [*self.results.changes(answers), *_put_alteration(alteration), _put_position(target)]
            rows = await self.environment.run(_row_changes, tables)
            await self.environment.commit([*rows, *changes])
        except BaseException:
            # No space, or cancelled: the next flush must not write the rows without the answers they belong to.
            self.results.give_back(answers)
            raise
        self.frozen = self.frozen[len(tables) :]
        self.flushed = target
        if self._unflushed_alteration is alteration:
            self._unflushed_alteration = None
        return target

    async def scrub(self, pause: Callable[[], Awaitable[None]] | None = None) -> int:
        """Verify every flushed row and that none is hidden, then position, alteration and answers. Return the number of rows.
        Raises Corruption, Damaged."""
        rows = await scrub(self.environment, ROWS, self.seed, pause)
        await self.environment.run(self._verify_records)
        return rows

    def _verify_records(self) -> None:
        snapshot = self.environment.snapshot()
        try:
            position_of(snapshot, self.environment.path)
            _read_alteration(snapshot, self.environment.path)
            Results().load(snapshot, self.environment.path)
        finally:
            snapshot.close()

    async def close(self) -> None:
        await self.environment.close()

    def _freeze(self) -> None:
        if self.active.rows:
            self.active.freeze()
            self.frozen.append(self.active)
            self.active = Memtable()


@dataclass(eq=False)
class TabletSnapshot:
    """One position of a tablet's rows, read block by block. `block` is CPU-heavy: call it through
    `environment.run`."""

    environment: Environment
    base: Snapshot
    tables: tuple[Memtable, ...]
    position: Position
    seed: int

    def block(
        self, start: bytes, stop: bytes | None, limit: int, bytes_max: int
    ) -> tuple[list[bytes], bytes | None]:
        """Rows (key and value joined) with start <= key < stop, ascending, and the key to continue from, None at the end.
        A block has about `limit` rows: at most that from each source, of which some are overwritten or deleted. Or about
        `bytes_max` bytes (less than twice that with rows of memtables), but at least one row if there is one."""
        overlays = [table.range(start, stop, limit) for table in self.tables]
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
        ordered = sorted(rows.items())
        if sum(_bytes(items) for items, _ in overlays) < bytes_max:
            return [key + value for key, value in ordered if value is not None], until
        left = iter(ordered)
        found = within((key + value for key, value in left if value is not None), None, bytes_max, len)
        return found, next(left, (until,))[0]

    def _require_edges(
        self, start: bytes, stop: bytes | None, rows: list[bytes], *, to_the_end: bool
    ) -> None:
        path = self.environment.path
        require_edges(self.base, ROWS, start, stop, rows, self.seed, path, to_the_end=to_the_end)

    def close(self) -> None:
        self.base.close()


def _below(items: list[Any], until: bytes | None) -> list[Any]:
    """The items with key < until, of ascending (key, value) pairs."""
    return items if until is None else items[: bisect_left(items, (until,))]


def _bytes(items: list[Any]) -> int:
    """Bytes of the values in (key, value) pairs."""
    return sum(map(len, filter(None, map(itemgetter(1), items))))


def _row_changes(tables: list[Memtable]) -> list[Change]:
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


def _put_position(position: Position) -> Put:
    return Put(META, [(POSITION, seal(POSITION, msgspec.msgpack.encode(position)))])


def position_of(reader: Reader, path: str) -> Position:
    """The position that the rows reflect. Raises Damaged, Corruption."""
    data = reader.get(META, POSITION)
    if data is None:
        raise Damaged("the data has no position", path=path)
    return msgspec.msgpack.decode(unseal(POSITION, data, path), type=Position)


def _put_alteration(alteration: bytes | None) -> list[Put]:
    return [] if alteration is None else [Put(META, [(ALTERATION, seal(ALTERATION, alteration))])]


def _read_alteration(reader: Reader, path: str) -> bytes | None:
    data = reader.get(META, ALTERATION)
    return None if data is None else unseal(ALTERATION, data, path)
