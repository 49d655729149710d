"""The methods of `environment.Reader` over an LMDB transaction, and the errors of reads. Loops run in C: no Python code per row.

A latent sector error under a memory map is SIGBUS, which Python cannot turn into an error: the process dies.
"""

from __future__ import annotations

import abc
import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import lmdb

from ebla.storage.environment import JOINED_LARGE, Item, within
from ebla.storage.errors import Corruption, DiskFailed, StorageError, TooManyFiles

T = TypeVar("T")
P = ParamSpec("P")
Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Database: TypeAlias = "lmdb._Database"

SPARE_READS = 1  # a read transaction kept for reuse: a new one costs three times as much

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
DAMAGE = (
    lmdb.BadTxnError,  # the error of a cursor after it has met a damaged page
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.CursorFullError,
    lmdb.PageFullError,
)


MISSING = (*DAMAGE, lmdb.NotFoundError, FileNotFoundError)  # of an environment that was mapped before


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
        return self._read(get, database, key)

    def get_many(self, database: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._read(_get_many, database, keys)

    def look(self, database: str, keys: Sequence[bytes], work: Callable[[int, Any], T]) -> list[T | None]:
        found = self.get_many(database, keys)
        return [None if value is None else work(at, memoryview(value)) for at, value in enumerate(found)]

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


def code_of(error: Exception) -> int | None:
    return error.code if isinstance(error, lmdb.Error) else getattr(error, "errno", None)


def read_error(error: lmdb.Error | OSError, path: str) -> StorageError:
    if isinstance(error, MISSING):
        return Corruption(f"{path} is damaged inside: {error}; rebuild it from a peer", path=path)
    if isinstance(error, lmdb.PanicError):
        return DiskFailed(f"{path} cannot be used after a failed write: {error}", path=path)
    if isinstance(error, lmdb.ReadersFullError):
        return StorageError(
            f"{path} has too many readers at once; close snapshots and local readers", path=path
        )
    if code_of(error) in NO_DESCRIPTOR:
        return TooManyFiles(
            f"cannot open {path}: too many files are open; raise the limit of this process (ulimit -Hn), then try again",
            path=path,
        )
    return StorageError(f"cannot read {path}: {error}", path=path)


# -- the loops -----------------------------------------------------------------------------------------------


def get(transaction: Transaction, database: Database, key: bytes) -> bytes | None:
    return transaction.get(key, db=database) if key else None  # LMDB raises an error for an empty key


def get_copied(transaction: Transaction, database: Database, key: bytes) -> bytes | None:
    found = get(transaction, database, key)
    return None if found is None else bytes(found)


def look(
    transaction: Transaction, database: Database, keys: Sequence[bytes], work: Callable[[int, Any], T]
) -> list[T | None]:
    found = [transaction.get(key, db=database) for key in keys]
    return [None if value is None else work(at, value) for at, value in enumerate(found)]


def _get_many(transaction: Transaction, database: Database, keys: Sequence[bytes]) -> list[bytes | None]:
    try:
        return list(map(partial(transaction.get, db=database), keys))
    except lmdb.BadValsizeError:
        return [get(transaction, database, key) for key in keys]


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
