"""A replica's rows: memtables over one LMDB environment, flushed together with the answers, the position and the table's
last alteration.

    atomic     a flush is one synced transaction of rows, answers, alteration and the applied position
    exact      after a restart the state is that of the flushed position; the log brings it forward
    consistent a snapshot shows one position, even if entries are applied or flushed while it is read

The rows on disk are items of a tree (row_tree.py) or sorted runs of columns (run_tree.py), as the table's schema says. Values
carry the row checksum (storage/rows/rows.py), which readers verify. All other records carry their own, and the position has
digests of them, so that none can be an older version of itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ebla.storage.environment import Disk, Environment
from ebla.storage.errors import Damaged, DataDiskFailed
from ebla.storage.logs.entries import START, Position
from ebla.storage.rows import checksum
from ebla.storage.runs.batches import Batch
from ebla.storage.schema import COLUMNS, TableSchema
from ebla.storage.tablets.columns_memtable import ColumnsMemtable
from ebla.storage.tablets.memtable import Memtable
from ebla.storage.tablets.positions import (
    META,
    POSITION,
    alteration_of,
    flushed_of,
    put_alteration,
    put_position,
    require_alteration,
)
from ebla.storage.tablets.results import NO_ANSWERS, RESULTS, Results
from ebla.storage.tablets.row_tree import ROWS as ROWS
from ebla.storage.tablets.row_tree import RowSnapshot, RowTree
from ebla.storage.tablets.run_tree import RunSnapshot, RunTree

SMALL_BYTES = 4 << 20  # up to this size all rows are verified before serving: some hundredths of a second

TabletSnapshot = RowSnapshot | RunSnapshot


def path_of(tablet: str) -> str:
    return f"data/{tablet}"


class TabletStore:
    """`schema`: of the tablet when it was created. Without one, rows are kept as items of a tree."""

    def __init__(
        self, environment: Environment, results: Results, seed: int, schema: TableSchema | None = None
    ) -> None:
        self.environment = environment
        self.seed = seed
        self.results = results
        found = flushed_of(environment, environment.path)
        self.flushed = found.position
        self.applied = self.flushed
        self._flushed_alteration = alteration_of(environment, environment.path)
        require_alteration(found, self._flushed_alteration, environment.path)
        self.alteration = self._flushed_alteration  # as of `applied`, encoded
        self.base: RowTree | RunTree = RowTree(environment, seed)
        if schema is not None and schema.storage == COLUMNS:
            self.base = RunTree(environment, seed, schema, self.alteration, self.flushed)
        self.active = self.base.memtable()
        self.frozen: list[Any] = []  # memtables of the base, the oldest first
        results.load(environment, environment.path, found.answers)

    @staticmethod
    async def open(
        disk: Disk, tablet: str, *, create: bool, schema: TableSchema | None = None
    ) -> TabletStore:
        """`create` makes an empty one at position START. A small one is verified as a whole."""
        environment = await disk.open_environment(path_of(tablet), [ROWS, RESULTS, META], create=create)
        try:
            if environment.get(META, POSITION) is None:
                if not create:
                    raise Damaged(f"the data of tablet {tablet} has no position", path=environment.path)
                await environment.commit([put_position(START, NO_ANSWERS, None)])
            store = TabletStore(environment, Results(), checksum.seed(tablet), schema)
            if environment.size_bytes() <= SMALL_BYTES:
                await store.scrub()
            environment.unmap()  # a start opens thousands
            return store
        except BaseException:
            await environment.close()  # otherwise it could be neither opened again nor removed
            raise

    @property
    def runs(self) -> RunTree | None:
        """The runs of a columnar tablet, for compactions."""
        return self.base if isinstance(self.base, RunTree) else None

    @property
    def memory_bytes(self) -> int:
        return sum(memtable.memory_bytes for memtable in (self.active, *self.frozen))

    @property
    def unflushed_rows(self) -> int:
        return sum(memtable.written for memtable in (self.active, *self.frozen))

    @property
    def size_bytes(self) -> int:
        """Bytes on disk and of unflushed rows. 0 if the disk is lost: the report of that loss must not fail here."""
        waiting: int = self.active.data_bytes + sum(memtable.data_bytes for memtable in self.frozen)
        try:
            return self.environment.size_bytes() + waiting
        except DataDiskFailed:
            return 0

    # -- reads at the applied position

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values with their checksum, None if absent. Raises Corruption if absence is not certain."""
        held = self._in_memory(keys)
        found = [None if each is None else each[0].value(each[1]) for each in held]
        missing = [at for at, each in enumerate(held) if each is None]
        if missing:
            stored = self.base.get_many([keys[at] for at in missing])
            for at, value in zip(missing, stored, strict=True):
                found[at] = value
        return found

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each key is there. Raises Corruption as `get_many`."""
        held = self._in_memory(keys)
        there = [each is not None and each[1] is not None for each in held]
        missing = [at for at, each in enumerate(held) if each is None]
        if missing:
            for at, is_there in zip(missing, self.base.contains([keys[at] for at in missing]), strict=True):
                there[at] = is_there
        return there

    def _in_memory(self, keys: Sequence[bytes]) -> list[tuple[Memtable, Any] | None]:
        """For each key the newest memtable that has it, and what that has in `rows`."""
        tables = [(memtable, memtable.rows) for memtable in (self.active, *reversed(self.frozen))]
        return [
            next(((memtable, rows[key]) for memtable, rows in tables if key in rows), None) for key in keys
        ]

    def snapshot(self) -> TabletSnapshot:
        """The state at the applied position. Close it soon: it delays page reuse."""
        self._freeze()
        return self.base.snapshot(tuple(self.frozen), self.applied)

    # -- changes, in log order; the caller advances `applied` with every entry

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.active.put(keys, values)

    def put_batch(self, batch: Batch) -> None:
        """Rows of a columnar tablet."""
        assert isinstance(self.active, ColumnsMemtable), "a batch of columns is for a columnar tablet"
        self.active.put_batch(batch)

    def delete(self, keys: Sequence[bytes]) -> None:
        self.active.delete(keys)

    def alter(self, alteration: bytes) -> None:
        self.alteration = alteration
        self.base.altered(alteration)

    async def flush(self) -> Position:
        """Make rows, answers, alteration and position at the present applied position durable, in one synced transaction.
        Returns that position. The caller makes one flush at a time."""
        target = self.applied
        if target.index == self.flushed.index:
            return target
        self._freeze()
        tables = list(self.frozen)
        alteration = self.alteration
        answers = self.results.take()
        try:
            changes = [
                *self.results.changes(answers),
                put_position(target, self.results.digest, alteration),
            ]
            if alteration is not None and alteration is not self._flushed_alteration:
                changes.append(put_alteration(alteration))
            await self.base.flush(tables, target, changes)
        except BaseException:
            # No space, or cancelled: the next flush must not write the rows without the answers they belong to.
            self.results.give_back(answers)
            raise
        self.frozen = self.frozen[len(tables) :]
        self.flushed = target
        self._flushed_alteration = alteration
        return target

    async def scrub(self, pause: Callable[[], Awaitable[None]] | None = None) -> int:
        """Verify every flushed row and that none is hidden, then position, alteration and answers. Return the number of rows.
        Raises Corruption, Damaged."""
        rows = await self.base.scrub(pause)
        await self.environment.run(self._verify_records)
        return rows

    def _verify_records(self) -> None:
        snapshot = self.environment.snapshot()
        try:
            found = flushed_of(snapshot, self.environment.path)
            require_alteration(found, alteration_of(snapshot, self.environment.path), self.environment.path)
            Results().load(snapshot, self.environment.path, found.answers)
        finally:
            snapshot.close()

    async def close(self) -> None:
        await self.environment.close()

    def _freeze(self) -> None:
        if not self.active.empty:
            self.active.freeze()
            self.frozen.append(self.active)
            self.active = self.base.memtable()
