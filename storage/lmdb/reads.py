"""Reads of LMDB environments: short transactions, pinned snapshots, and the exchange of the map.

A read transaction points into the memory map, and the map may only be exchanged for a larger one while no transaction
of this process is open. So every read passes a gate, snapshots are registered, and an exchange of the map closes the
gate and expires the snapshots that are left. Loops run in C: no Python code per row.

A latent sector error under a memory map is SIGBUS, which Python cannot turn into an error: the process dies.
"""

from __future__ import annotations

import abc
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import lmdb

from ebla.storage.environment import JOINED_LARGE, Item, within
from ebla.storage.errors import Corruption, DiskFailed, InvalidArgument, SnapshotExpired, StorageError
from ebla.storage.lmdb.gate import Gate

T = TypeVar("T")
P = ParamSpec("P")
Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Database: TypeAlias = "lmdb._Database"

SPARE_READS = 1  # a read transaction kept for reuse: a new one costs three times as much

DAMAGE = (
    lmdb.BadTxnError,  # the error of a cursor after it has met a damaged page
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
)


class LmdbReads(abc.ABC):
    """The methods of `environment.Reader`; a subclass chooses the transaction."""

    @abc.abstractmethod
    def _read(
        self,
        work: Callable[Concatenate[Transaction, Database, P], T],
        database: str,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T: ...

    def get(self, database: str, key: bytes) -> bytes | None:
        return self._read(_get, database, key)

    def get_many(self, database: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._read(_get_many, database, keys)

    def look(self, database: str, key: bytes, work: Callable[[Any], T]) -> T | None:
        found = self.get(database, key)
        return None if found is None else work(memoryview(found))

    def items(
        self,
        database: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int | None = None,
        bytes_max: int | None = None,
    ) -> list[Item]:
        return self._read(_items, database, start, stop, limit, bytes_max)

    def keys(
        self, database: str, start: bytes = b"", stop: bytes | None = None, *, limit: int | None = None
    ) -> list[bytes]:
        return self._read(_keys, database, start, stop, limit)

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
        return self._read(_joined, database, start, stop, limit, bytes_max)

    def last(self, database: str, stop: bytes | None = None) -> Item | None:
        return self._read(_last, database, stop)

    def around(self, database: str, keys: Sequence[bytes]) -> list[tuple[Item | None, Item | None]]:
        return self._read(_around, database, keys)

    def count(self, database: str) -> int:
        return self._read(_count, database)


class LmdbMapping(LmdbReads):
    """An open LMDB environment as this process sees it. Its own reads see the newest committed state."""

    def __init__(self, path: str, environment: lmdb.Environment, databases: dict[str, Database]) -> None:
        self.path = path
        self.directory = os.path.realpath(environment.path())
        self.lmdb = environment
        self.databases = databases
        self._pid = os.getpid()
        self.gate = Gate()
        self._snapshots: dict[LmdbSnapshot, None] = {}
        self._snapshot_closed = threading.Condition()
        self._closed = False

    def check(self) -> None:
        if self._closed or os.getpid() != self._pid:
            assert os.getpid() == self._pid, "an LMDB environment never crosses a fork"
            raise StorageError(f"environment {self.path} is closed", path=self.path)

    def snapshot(self, *, views: bool = False) -> LmdbSnapshot:
        return self._inside(partial(self._pin, views))

    def info(self) -> dict[str, int]:
        """LMDB's own figures: map_size, last_txnid, last_pgno, num_readers, ..."""
        return self._inside(lambda: {k: v for k, v in self.lmdb.info().items() if isinstance(v, int)})

    def handle(self, name: str) -> Database:
        found = self.databases.get(name)
        if found is None:
            known = ", ".join(self.databases)
            raise InvalidArgument(f"there is no database {name!r} in {self.path}; it was opened with {known}")
        return found

    def forget(self, snapshot: LmdbSnapshot) -> None:
        with self._snapshot_closed:
            self._snapshots.pop(snapshot, None)
            self._snapshot_closed.notify_all()

    def _read(
        self,
        work: Callable[Concatenate[Transaction, Database, P], T],
        database: str,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        self.gate.enter()
        try:
            self.check()
            transaction = self.lmdb.begin()
            try:
                return work(transaction, self.handle(database), *arguments, **options)
            finally:
                transaction.abort()
        except lmdb.MapResizedError:
            pass
        except lmdb.Error as error:
            raise read_error(error, self.path) from error
        finally:
            self.gate.leave()
        self._adopt()
        return self._read(work, database, *arguments, **options)

    def look(self, database: str, key: bytes, work: Callable[[Any], T]) -> T | None:
        return self._inside(partial(self._look, database, key, work))

    def _look(self, database: str, key: bytes, work: Callable[[Any], T]) -> T | None:
        with self.lmdb.begin(buffers=True) as transaction:
            found = transaction.get(key, db=self.handle(database))
            return None if found is None else work(found)

    def _inside(self, work: Callable[[], T]) -> T:
        """As `_read`, for work without a database."""
        with self.gate.inside():
            self.check()
            try:
                return work()
            except lmdb.MapResizedError:
                pass
            except lmdb.Error as error:
                raise read_error(error, self.path) from error
        self._adopt()
        return self._inside(work)

    def _adopt(self) -> None:
        """Take over the larger map of the owner, which is another process. The map must grow, so retries end."""
        before = self.lmdb.info()["map_size"]
        try:
            self.exchange_map(0, grace_s=0.0)
        except lmdb.Error as error:
            raise read_error(error, self.path) from error
        if self.lmdb.info()["map_size"] <= before:
            raise StorageError(
                f"cannot take over the larger map of {self.path}; open it again", path=self.path
            )

    def _pin(self, views: bool) -> LmdbSnapshot:
        transaction: Any = self.lmdb.begin(buffers=True) if views else self.lmdb.begin()
        snapshot = LmdbSnapshot(self, transaction, views)
        with self._snapshot_closed:
            self._snapshots[snapshot] = None
        return snapshot

    def exchange_map(self, map_bytes: int, grace_s: float) -> None:
        """Map `map_bytes` (0: the size in the file), once no transaction points into the present map."""
        self._await_snapshots(grace_s)
        with self.gate.closed():
            self._expire_snapshots()
            if not self._closed:
                self.lmdb.set_mapsize(map_bytes)

    def _await_snapshots(self, grace_s: float) -> None:
        until = time.monotonic() + grace_s
        with self._snapshot_closed:
            while self._snapshots and (left_s := until - time.monotonic()) > 0:
                self._snapshot_closed.wait(left_s)

    def _expire_snapshots(self) -> None:
        with self._snapshot_closed:
            left = list(self._snapshots)
        for snapshot in left:
            snapshot.close()

    def renew(self, again: Callable[[int], lmdb.Environment]) -> bool:
        """Close the environment and open it `again` with a map of the same size. A no-op that returns False while a snapshot
        is open. After an lmdb.Error the environment is unusable."""
        with self.gate.closed():
            if self._snapshots or self._closed:
                return False
            map_bytes = self.lmdb.info()["map_size"]
            self.lmdb.close()
            self.lmdb = again(map_bytes)
            self.databases = {name: self.lmdb.open_db(name.encode(), create=False) for name in self.databases}
            return True

    def _shut(self) -> None:
        """Close the environment; later calls raise."""
        with self.gate.closed():
            self._expire_snapshots()
            self._closed = True
            self.lmdb.close()


class LmdbSnapshot(LmdbReads):
    """One pinned state, for any thread, one call at a time."""

    def __init__(self, mapping: LmdbMapping, transaction: Transaction, views: bool = False) -> None:
        self._mapping = mapping
        self._transaction: Transaction | None = transaction
        self._views = views
        self._lock = threading.Lock()

    def get(self, database: str, key: bytes) -> bytes | None:
        return self._read(_get_copied if self._views else _get, database, key)

    def look(self, database: str, key: bytes, work: Callable[[Any], T]) -> T | None:
        if not self._views:
            return super().look(database, key, work)
        return self._read(_look, database, key, work)

    def close(self) -> None:
        """Wait for a read in another thread, then close."""
        with self._lock:
            transaction, self._transaction = self._transaction, None
            if transaction is not None:
                transaction.abort()
        self._mapping.forget(self)

    def _read(
        self,
        work: Callable[Concatenate[Transaction, Database, P], T],
        database: str,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        assert not self._views or work in (_get_copied, _look), "what is read would end with the snapshot"
        mapping = self._mapping
        with mapping.gate.inside(), self._lock:
            mapping.check()
            if self._transaction is None:
                raise SnapshotExpired(
                    f"this snapshot of {mapping.path} was closed, or gave way to a larger map; open a new one",
                    path=mapping.path,
                )
            try:
                return work(self._transaction, mapping.handle(database), *arguments, **options)
            except lmdb.Error as error:
                raise read_error(error, mapping.path) from error


def read_error(error: lmdb.Error, path: str) -> StorageError:
    if isinstance(error, DAMAGE):
        return Corruption(f"{path} is damaged inside: {error}; rebuild it from a peer", path=path)
    if isinstance(error, lmdb.PanicError):
        return DiskFailed(f"{path} cannot be used after a failed write: {error}", path=path)
    if isinstance(error, lmdb.ReadersFullError):
        return StorageError(
            f"{path} has too many readers at once; close snapshots and local readers", path=path
        )
    return StorageError(f"cannot read {path}: {error}", path=path)


# -- the loops -----------------------------------------------------------------------------------------------


def _get(transaction: Transaction, database: Database, key: bytes) -> bytes | None:
    return transaction.get(key, db=database) if key else None  # LMDB raises an error for an empty key


def _get_copied(transaction: Transaction, database: Database, key: bytes) -> bytes | None:
    found = _get(transaction, database, key)
    return None if found is None else bytes(found)


def _look(transaction: Transaction, database: Database, key: bytes, work: Callable[[Any], T]) -> T | None:
    found = transaction.get(key, db=database)
    return None if found is None else work(found)


def _get_many(transaction: Transaction, database: Database, keys: Sequence[bytes]) -> list[bytes | None]:
    try:
        return list(map(partial(transaction.get, db=database), keys))
    except lmdb.BadValsizeError:
        return [_get(transaction, database, key) for key in keys]


def _range(cursor: lmdb.Cursor[bytes], start: bytes, stop: bytes | None) -> Iterator[Item]:
    """Items with start <= key < stop. `(stop,) > (key, value)` exactly when stop > key: one comparison in C per row."""
    if not (cursor.set_range(start) if start else cursor.first()):
        return iter(())
    items = cursor.iternext()
    return items if stop is None else takewhile((stop,).__gt__, items)


def _items(
    transaction: Transaction,
    database: Database,
    start: bytes,
    stop: bytes | None,
    limit: int | None,
    bytes_max: int | None,
) -> list[Item]:
    found = _range(transaction.cursor(database), start, stop)
    if bytes_max is None:
        return list(islice(found, limit))
    return within(found, limit, bytes_max, _size, large=_may_be_large(transaction, database))


def _keys(
    transaction: Transaction, database: Database, start: bytes, stop: bytes | None, limit: int | None
) -> list[bytes]:
    cursor = transaction.cursor(database)
    if not (cursor.set_range(start) if start else cursor.first()):
        return []
    found = cursor.iternext(keys=True, values=False)
    return list(islice(found if stop is None else takewhile(stop.__gt__, found), limit))


def _may_be_large(transaction: Transaction, database: Database) -> bool:
    """Whether there may be items above JOINED_LARGE: LMDB stores an item of half a page on its own pages."""
    stat = transaction.stat(database)
    return bool(stat["overflow_pages"]) or stat["psize"] // 2 > JOINED_LARGE


def _size(item: Item) -> int:
    return len(item[0]) + len(item[1])


def _joined(
    transaction: Transaction,
    database: Database,
    start: bytes,
    stop: bytes | None,
    limit: int,
    bytes_max: int | None,
) -> tuple[list[bytes], bytes | None]:
    cursor = transaction.cursor(database)
    whole = map(b"".join, _range(cursor, start, stop))
    if bytes_max is None:
        rows = list(islice(whole, limit))
    else:
        rows = within(whole, limit, bytes_max, len, large=_may_be_large(transaction, database))
    if not rows or not cursor.next():  # a cursor that found nothing would start again
        return rows, None
    following = cursor.key()
    return rows, following if stop is None or following < stop else None


def _last(transaction: Transaction, database: Database, stop: bytes | None) -> Item | None:
    cursor = transaction.cursor(database)
    if stop is None:
        return cursor.item() if cursor.last() else None
    if not stop:
        return None
    found = cursor.prev() if cursor.set_range(stop) else cursor.last()
    return cursor.item() if found else None


def _around(
    transaction: Transaction, database: Database, keys: Sequence[bytes]
) -> list[tuple[Item | None, Item | None]]:
    cursor = transaction.cursor(database)
    found: list[tuple[Item | None, Item | None]] = []
    for key in keys:
        after = cursor.item() if (cursor.set_range(key) if key else cursor.first()) else None
        before = cursor.item() if (cursor.prev() if after else cursor.last()) else None
        found.append((before, after))
    return found


def _count(transaction: Transaction, database: Database) -> int:
    return int(transaction.stat(database)["entries"])
