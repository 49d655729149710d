"""One group of batches, one LMDB transaction, one sync; and the meaning of every failure.

invalid batch     a key too long, an unknown database: that batch alone gets InvalidArgument, the others are committed
not mapped        TooManyFiles, or StorageError without memory: it cannot be mapped again now; nothing was changed
map full          MapFull is raised to the writer, which makes the map larger and commits the group again
no space          DiskFull: LMDB writes to fresh pages and changes the root last, so nothing was changed
tree damaged      Corruption, found while changing pages, or in the roots before; nothing was changed
anything else     DiskFailed. After a failed sync the next commit would succeed, but the kernel has marked pages clean
                  that are not on disk. So the disk is no longer trusted
"""

from __future__ import annotations

import errno
import os
import resource
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import lmdb

from ebla.storage.environment import Batch, Delete, DeleteRange, Item, Put
from ebla.storage.errors import (
    Corruption,
    Damaged,
    DiskFailed,
    DiskFull,
    EblaError,
    InvalidArgument,
    StorageError,
)
from ebla.storage.lmdb.mapping import LmdbMapping
from ebla.storage.lmdb.reads import DAMAGE, MISSING, NO_DESCRIPTOR, Database, Transaction, code_of, read_error
from ebla.storage.lmdb.roots import Roots

KEY_BYTES_MAX = 511  # LMDB's compiled-in limit
FULL_BYTES = 1 << 20  # a write that was cut short with less than this free failed for lack of space
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BAD_IN_ITSELF = (lmdb.BadValsizeError, TypeError, ValueError, KeyError, AttributeError)


class MapFull(Exception):
    """The group does not fit into the map; nothing was changed."""


def commit_group(mapping: LmdbMapping, roots: Roots, batches: Sequence[Batch]) -> list[EblaError | None]:
    """Commit the batches in order. Return for each None (durable) or its error. Raises MapFull."""
    errors: list[EblaError | None] = [None] * len(batches)
    left = list(range(len(batches)))
    while left:  # each round but the last removes one batch
        try:
            refused = _commit(mapping, roots, [batches[position] for position in left])
        except _TooLarge as error:
            if len(left) == 1:
                errors[left[0]] = InvalidArgument(
                    f"the batch is too large for one commit: {error}; divide it"
                )
            else:
                for position in left:
                    errors[position] = commit_group(mapping, roots, [batches[position]])[0]
            return errors
        except StorageError as error:
            for position in left:
                errors[position] = type(error)(error.message, **error.values())
            return errors
        if refused is None:
            return errors
        position, reason = refused
        errors[left.pop(position)] = reason
    return errors


class _TooLarge(Exception):
    pass


def _commit(
    mapping: LmdbMapping, roots: Roots, batches: Sequence[Batch]
) -> tuple[int, InvalidArgument] | None:
    """None when all batches are durable; otherwise nothing was changed, and the result is the invalid batch."""
    path = mapping.path
    try:
        roots.check()
        transaction = mapping.lmdb.begin(write=True)
    except Damaged as error:
        raise Corruption(error.message, path=path) from error
    except (lmdb.Error, OSError) as error:
        if isinstance(error, (*MISSING, lmdb.MemoryError)) or code_of(error) in (
            *NO_DESCRIPTOR,
            errno.ENOMEM,
        ):
            raise read_error(error, path) from error
        raise DiskFailed(f"cannot begin a commit in {path}: {error}", path=path) from error
    databases = mapping.databases  # those of the present map
    committing = False
    try:
        for position, batch in enumerate(batches):
            try:
                for change in batch:
                    _apply(transaction, databases, change)
            except _BAD_IN_ITSELF as error:
                return position, _refusal(path, databases, batch, error)
        committing = True
        number = transaction.id()
        transaction.commit()
        roots.seal(number)
        return None
    except lmdb.MapFullError as error:
        raise MapFull(path) from error
    except lmdb.TxnFullError as error:
        raise _TooLarge(str(error)) from error
    except lmdb.Error as error:
        raise _classify(mapping.lmdb, path, error, committing) from error
    finally:
        if not committing:
            _abort(mapping, transaction)


def _abort(mapping: LmdbMapping, transaction: Transaction) -> None:
    """Abort with readers locked out: py-lmdb waits for a moment at which no thread is inside LMDB, and two threads that
    read without a pause leave none."""
    with mapping.gate.closed():
        transaction.abort()


def _classify(environment: lmdb.Environment, path: str, error: lmdb.Error, committing: bool) -> StorageError:
    if for_want_of_space(error.code, environment.path()):
        return _no_space(environment, path, error)
    if not committing and isinstance(error, DAMAGE):
        return Corruption(f"{path} is damaged inside: {error}; rebuild it from a peer", path=path)
    if not committing and isinstance(error, lmdb.MemoryError):
        return StorageError(f"no memory for a commit in {path}; nothing was changed", path=path)
    return DiskFailed(f"a commit in {path} failed: {error}; this disk is no longer trusted", path=path)


def for_want_of_space(code: int | None, directory: str | Path) -> bool:
    """Whether a failed write is due to a full disk: LMDB reports a write that was cut short as EIO."""
    return code in NO_SPACE or (code == errno.EIO and _is_full(Path(directory)))


def _is_full(directory: Path) -> bool:
    """Whether the file system, or the limit on file size, has no room for one write."""
    try:
        space = os.statvfs(directory)
    except OSError:
        return False
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    data_file = directory / "data.mdb"
    file_bytes = data_file.stat().st_size if data_file.exists() else 0
    at_limit = limit_bytes != resource.RLIM_INFINITY and file_bytes + FULL_BYTES > limit_bytes
    return at_limit or space.f_bavail * space.f_frsize < FULL_BYTES


def _no_space(environment: lmdb.Environment, path: str, error: lmdb.Error) -> StorageError:
    """DiskFull, or DiskFailed if the root could not be written: LMDB then refuses all further use."""
    try:
        environment.begin().abort()
    except lmdb.Error as panic:
        return DiskFailed(f"a commit in {path} failed in its last step: {error}, then {panic}", path=path)
    return DiskFull(f"no space left for {path}: {error}; nothing was changed: free space", path=path)


def _apply(
    transaction: Transaction, databases: Mapping[str, Database], change: Put | Delete | DeleteRange
) -> None:
    database = databases[change.database]
    if isinstance(change, Put):
        _put(transaction.cursor(database), change.items, change.sorted_keys)
    elif isinstance(change, Delete):
        delete = partial(transaction.delete, db=database)
        deque(map(delete, filter(None, change.keys)), maxlen=0)
    elif not change.start and change.stop is None:
        transaction.drop(database, delete=False)
    else:
        _delete_range(transaction.cursor(database), change.start, change.stop)


def _put(cursor: lmdb.Cursor[bytes], items: Sequence[Item], sorted_keys: bool) -> None:
    if not items:
        return
    if sorted_keys and (not cursor.last() or items[0][0] > cursor.key()):
        consumed, added = cursor.putmulti(items, append=True)
        if added == consumed:
            return  # otherwise the keys did not ascend, and LMDB left some out
    cursor.putmulti(items)


def _delete_range(cursor: lmdb.Cursor[bytes], start: bytes, stop: bytes | None) -> None:
    found = cursor.set_range(start) if start else cursor.first()
    while found and (stop is None or cursor.key() < stop):
        cursor.delete()
        found = bool(cursor.key())  # empty past the end; no key is empty


def _refusal(path: str, databases: Mapping[str, Database], batch: Batch, error: Exception) -> InvalidArgument:
    """The error of the batch, which names the invalid change."""
    for change in batch:
        if isinstance(change, Put | Delete | DeleteRange) and change.database not in databases:
            known = ", ".join(databases)
            return InvalidArgument(f"there is no database {change.database!r} in {path}; it has {known}")
        for item in change.items if isinstance(change, Put) else ():
            key = item[0] if isinstance(item, tuple) and len(item) == 2 else None
            if not isinstance(key, bytes) or not 0 < len(key) <= KEY_BYTES_MAX:
                return InvalidArgument(
                    f"{change.database} in {path}: an item is (key, value) with a key of 1 to {KEY_BYTES_MAX} "
                    f"bytes, not {str(item)[:80]}"
                )
    return InvalidArgument(f"{path} cannot take this batch: {error!r}")


def batch_bytes(batches: Sequence[Batch]) -> int:
    """Estimate how much the batches add to the file."""
    puts = (change for batch in batches for change in batch if isinstance(change, Put))
    return sum(len(key) + len(value) + 64 for put in puts for key, value in put.items)
