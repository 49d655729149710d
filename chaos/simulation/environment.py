"""Environments in memory: tables that change by whole batches, durable one group at a time.

The simulated twin of storage/lmdb/environment.py; chaos/simulation/disk.py has the fault model.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

from ebla.chaos.simulation.medium import Keeper, Tables, tables_bytes
from ebla.chaos.simulation.streams import MemoryStream
from ebla.storage.environment import JOINED_LARGE, Batch, Delete, DeleteRange, Item, Put, within
from ebla.storage.errors import DiskFull, InvalidArgument, SnapshotExpired, StorageError

T = TypeVar("T")
HUNG_RETRY_S = 0.05  # between two tries of a hanging disk
KEY_BYTES_MAX = 511  # LMDB's
FEW_ITEMS = 8
ACKNOWLEDGE_S = 0.0001  # from durable to acknowledged, at most


class TablesReader(abc.ABC):
    """Reads one state of an environment."""

    @abc.abstractmethod
    def _table(self, database: str) -> Any: ...

    def get(self, database: str, key: bytes) -> bytes | None:
        found: bytes | None = self._table(database).get(key)
        return found

    def look(self, database: str, keys: Sequence[bytes], work: Callable[[int, Any], T]) -> list[T | None]:
        found = map(self._table(database).get, keys)
        return [None if value is None else work(at, memoryview(value)) for at, value in enumerate(found)]

    def get_many(self, database: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._table(database).get, keys))

    def items(
        self,
        database: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Item]:
        table = self._table(database)
        if stop is not None and stop <= start:
            return []
        keys = table.irange(start, stop, (True, False))
        if bytes_max is None:
            return [(key, table[key]) for key in islice(keys, limit)]
        found = ((key, table[key]) for key in keys)
        large = max(map(len, dict.values(table)), default=0) + KEY_BYTES_MAX > JOINED_LARGE
        return within(found, limit, bytes_max, lambda item: len(item[0]) + len(item[1]), large=large)

    def keys(
        self, database: str, start: bytes = b"", stop: bytes | None = None, *, limit: int | None = None
    ) -> list[bytes]:
        if stop is not None and stop <= start:
            return []
        return list(islice(self._table(database).irange(start, stop, (True, False)), limit))

    def joined(
        self,
        database: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int,
        bytes_max: int | None = None,
    ) -> tuple[list[bytes], bytes | None]:
        assert limit > 0
        found = self.items(database, start, stop, limit=limit, bytes_max=bytes_max)
        after = self.items(database, found[-1][0] + b"\0", stop, limit=1) if found else []
        return [key + value for key, value in found], after[0][0] if after else None

    def last(self, database: str, stop: bytes | None = None) -> Item | None:
        table = self._table(database)
        key = next(table.irange(None, stop, (True, False), reverse=True), None)
        return None if key is None else (key, table[key])

    def around(self, database: str, keys: Sequence[bytes]) -> list[tuple[Item | None, Item | None]]:
        table = self._table(database)
        found: list[tuple[Item | None, Item | None]] = []
        for key in keys:
            before = next(table.irange(None, key, (True, False), reverse=True), None)
            after = next(table.irange(key), None)
            found.append(
                (
                    None if before is None else (before, table[before]),
                    None if after is None else (after, table[after]),
                )
            )
        return found

    def count(self, database: str) -> int:
        return len(self._table(database))


class MemorySnapshot(TablesReader):
    """The tables at one moment: the environment copies a table before it changes one that a snapshot holds."""

    def __init__(self, environment: MemoryEnvironment, tables: Tables) -> None:
        self._environment = environment
        self._tables: Tables | None = tables

    def _table(self, database: str) -> Any:
        self._environment.check()
        if self._tables is None:
            raise SnapshotExpired("the snapshot is closed; open a new one", path=self._environment.path)
        return _table_of(self._tables, database)

    def close(self) -> None:
        self._tables = None


class MemoryEnvironment(TablesReader):
    """Group commit as in LMDB: all batches that are queued when a sync ends share the next one."""

    def __init__(self, disk: Keeper, path: str) -> None:
        self.path = path
        self.directory = f"memory:{path}"
        self._disk = disk
        self._shared: dict[str, None] = {}
        self._snapshots: list[MemorySnapshot] = []
        self._queue: list[tuple[Batch, asyncio.Future[None]]] = []
        self._group: list[tuple[Batch, asyncio.Future[None]]] = []
        self._unacknowledged = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self.used = self.mapped = True

    def unmap(self) -> None:
        """Memory has nothing to give back, so this is only noted."""
        self.mapped = False

    def check(self) -> None:
        self._disk.check()
        self._disk.check_data(self.path)
        if self._closed:
            raise StorageError(f"environment {self.path} is closed", path=self.path)

    def _table(self, database: str) -> Any:
        self.check()
        self.used = self.mapped = True
        return _table_of(self._disk.state.environments[self.path], database)

    async def commit(self, batch: Batch) -> None:
        self.check()
        self.used = self.mapped = True
        check_batch(batch, self._disk.state.environments[self.path])
        future = self._disk.loop.create_future()
        self._queue.append((batch, future))
        self._idle.clear()
        if not self._group:
            self._begin()
        await future

    def snapshot(self, *, views: bool = False) -> MemorySnapshot:
        self.check()
        self.used = self.mapped = True
        tables = self._disk.state.environments[self.path]
        self._shared = dict.fromkeys(tables)
        self._snapshots = [
            *(s for s in self._snapshots if s._tables is not None),
            taken := MemorySnapshot(self, dict(tables)),
        ]
        return taken

    async def stream(self) -> MemoryStream:
        self.check()
        return MemoryStream(self.path, self.check, self._disk.state.environments[self.path])

    def expire_snapshots(self) -> int:
        """Close the open snapshots, as LMDB does when its map must grow and one stays open too long. Returns their number."""
        left = [snapshot for snapshot in self._snapshots if snapshot._tables is not None]
        for snapshot in left:
            snapshot.close()
        return len(left)

    async def reserve(self, bytes_wanted: int) -> None:
        self.check()
        await self._idle.wait()

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        self.check()
        await asyncio.sleep(0)
        return work(*arguments)

    def size_bytes(self) -> int:
        self.check()
        return tables_bytes(self._disk.state.environments[self.path])

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._idle.wait()
            self._disk.forget(self.path)

    def _begin(self) -> None:
        self._group, self._queue = self._queue, []
        self._disk.later(self._disk.state.sync_s(self._disk.random), self._synced)

    def _synced(self) -> None:
        state, group = self._disk.state, self._group
        if state.failed is not None or not group:
            return  # it failed meanwhile; `fail` has ended all waits
        if self.path in state.hung:
            state.seen["hung"] += 1
            self._disk.later(HUNG_RETRY_S, self._synced)
            return
        if state.takes_failure(self.path):
            self._disk.poison(f"sync of {self.path} failed: Input/output error")
            return
        error: StorageError | None = None
        if state.full:
            state.seen["full"] += 1
            error = DiskFull("no space left on the device; nothing was changed: free space", path=self.path)
        else:
            self._apply([batch for batch, _ in group])
        self._group = []
        self._unacknowledged += len(group)
        self._disk.later(ACKNOWLEDGE_S * self._disk.random.random(), self._acknowledge, group, error)
        if self._queue:
            self._begin()

    def _acknowledge(
        self, group: list[tuple[Batch, asyncio.Future[None]]], error: StorageError | None
    ) -> None:
        self._unacknowledged -= len(group)
        for _, future in group:
            _settle(future, error)
        if not self._group and not self._unacknowledged:
            self._idle.set()

    def _apply(self, batches: list[Batch]) -> None:
        tables = self._disk.state.environments[self.path]
        for change in (change for batch in batches for change in batch):
            if self._shared.pop(change.database, 0) is None:
                tables[change.database] = tables[change.database].copy()
            _apply_change(tables[change.database], change)

    def fail(self, error: StorageError) -> None:
        """Fail all commits under way: the disk is poisoned."""
        for _, future in (*self._group, *self._queue):
            _settle(future, error)
        self._group, self._queue = [], []
        self._idle.set()

    def crash(self) -> None:
        """Apply a random prefix of the batches in flight."""
        for batch, _ in (*self._group, *self._queue):
            if self._disk.random.random() < 0.5:
                break
            self._apply([batch])


def check_batch(batch: Batch, tables: Tables) -> None:
    for change in batch:
        _table_of(tables, change.database)
        if not isinstance(change, Put):
            continue
        for key, _ in change.items:
            if not 0 < len(key) <= KEY_BYTES_MAX:
                raise InvalidArgument(f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}: {key[:40]!r}")


def _apply_change(table: Any, change: Put | Delete | DeleteRange) -> None:
    if isinstance(change, Put):
        if len(change.items) > FEW_ITEMS:
            table.update(change.items)
        else:  # `update` may sort the whole table again
            for key, value in change.items:
                table[key] = value
    elif isinstance(change, Delete):
        for key in change.keys:
            table.pop(key, None)
    elif change.stop is None or change.start < change.stop:
        for key in list(table.irange(change.start, change.stop, (True, False))):
            del table[key]


def _table_of(tables: Tables, database: str) -> Any:
    table = tables.get(database)
    if table is None:
        raise InvalidArgument(f"there is no database {database!r} here; there are {', '.join(tables)}")
    return table


def _settle(future: asyncio.Future[None], error: StorageError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(type(error)(error.message, **error.values()))  # each waiter raises its own
