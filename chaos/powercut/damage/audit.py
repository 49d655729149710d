"""Checks that storage does not make today, and which of them would have found a damage that a read did not notice.

    neighbours  for each row that was silently absent: the rows on both sides of its place are verified, and lie on those
                sides. Costs two more rows for a read that finds nothing
    count       every database is walked from end to end: keys ascend, and their number is the one in its root
    checksums   every record in that walk passes its checksum
    digest      the records, as a set, are those that were written. Needs a digest that every commit updates, such as a sum of
                hashes; it must be kept elsewhere, or an old version of the whole file has the old digest
    structure   `lmdb.verify`: pages, pointers, counters and the free list agree. Has false alarms on healthy files

All but the first read the whole file. The digest does not exist today; the others need no new data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import lmdb
import lmdb.verify
import xxhash

from ebla.actors import incarnations
from ebla.storage.directories.records import unseal
from ebla.storage.errors import Corruption, Damaged
from ebla.storage.lmdb.files import DATABASES_MAX
from ebla.storage.lmdb.identity import IDENTITY_DATABASE
from ebla.storage.logs import entries, private_log, shared_log
from ebla.storage.rows import checksum
from ebla.storage.tablets import positions, results, tablet_store

NEIGHBOURS, COUNT, CHECKSUMS, DIGEST, STRUCTURE = ("neighbours", "count", "checksums", "digest", "structure")
_SEALED = (positions.META, results.RESULTS, "records", incarnations.DATABASE)
_SEQ_BYTES, _TABLET_BYTES, _INDEX_BYTES = 8, 16, 8

_verify: Callable[..., list[str]] = lmdb.verify.verify

Records = dict[str, list[tuple[bytes, bytes]]]


def findings(
    file: Path, healthy: bytes, *, tablet: str, absent: Sequence[bytes], scratch: Path
) -> Iterator[str]:
    """The checks that find the damage. `absent`: keys of rows that were not found. May end the process, because the file is
    damaged."""
    if _verify(str(file), subdir=False):
        yield STRUCTURE
    if absent and all(_beside(file, tablet, key) for key in absent):
        yield NEIGHBOURS
    whole = scratch / "healthy.mdb"
    whole.write_bytes(healthy)
    wanted, _ = _walk(whole)
    try:
        found, counted = _walk(file)
    except lmdb.Error:
        yield COUNT
        return
    if not counted:
        yield COUNT
    if _digest(found) != _digest(wanted):
        yield DIGEST
    if not all(_passes(name, key, value, tablet) for name, items in found.items() for key, value in items):
        yield CHECKSUMS


def _beside(file: Path, tablet: str, key: bytes) -> bool:
    """Whether the rows beside the place of this key show the damage."""
    environment = lmdb.open(str(file), subdir=False, readonly=True, lock=False, max_dbs=DATABASES_MAX)
    try:
        with environment, environment.begin() as transaction:
            rows = environment.open_db(tablet_store.ROWS.encode(), txn=transaction, create=False)
            cursor = transaction.cursor(rows)
            after = cursor.item() if cursor.set_range(key) else None
            before = cursor.item() if (cursor.prev() if after else cursor.last()) else None
            beside = [item for item in (before, after) if item is not None]
            if (before and before[0] >= key) or (after and after[0] <= key):
                return True
            return not all(_passes(tablet_store.ROWS, *item, tablet) for item in beside)
    except lmdb.Error:
        return True


def _walk(file: Path) -> tuple[Records, bool]:
    """Every record by database, and whether keys ascend and their numbers are right."""
    found: Records = {}
    counted = True
    environment = lmdb.open(str(file), subdir=False, readonly=True, lock=False, max_dbs=DATABASES_MAX)
    with environment, environment.begin() as transaction:
        names = [bytes(name) for name, _ in transaction.cursor()]
        for name in names:
            database = environment.open_db(name, txn=transaction, create=False)
            items = [(bytes(key), bytes(value)) for key, value in transaction.cursor(database)]
            keys = [key for key, _ in items]
            counted &= keys == sorted(set(keys)) and len(keys) == transaction.stat(database)["entries"]
            found[name.decode()] = items
    return found, counted


def _digest(found: Records) -> int:
    """The digest of a set: independent of the order, so that a commit can update it."""
    parts = (
        xxhash.xxh3_128_intdigest(name.encode() + b"/" + key + value)
        for name, items in found.items()
        for key, value in items
    )
    return sum(parts) % (1 << 128)


def _passes(name: str, key: bytes, value: bytes, tablet: str) -> bool:
    try:
        if name == tablet_store.ROWS:
            checksum.verify_row(key, value, checksum.seed(tablet))
        elif name == shared_log.ENTRIES and len(key) == _INDEX_BYTES:
            entries.from_item(tablet, int.from_bytes(key, "big"), key, value, name)
        elif name == private_log.ENTRIES:
            owner = key[_SEQ_BYTES : _SEQ_BYTES + _TABLET_BYTES].hex()
            index = key[_SEQ_BYTES + _TABLET_BYTES :][:_INDEX_BYTES]
            entries.from_item(owner, int.from_bytes(index, "big"), key, value, name)
        elif name in _SEALED and name.encode() != IDENTITY_DATABASE:
            unseal(key, value, name)
    except (Corruption, Damaged):
        return False
    return True
