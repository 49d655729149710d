"""Scan a tablet's flushed rows in place, from another process on the same host, at the speed of memory.

    one moment   all rows of one scan are of one pinned snapshot, even if the owner writes meanwhile
    fresh        the snapshot reflects at least the requested log index, else it is refused as Stale
    verified     every row has passed its checksum before it is yielded; a bad one is Corruption

The roots of the file are trusted (storage/lmdb/roots.py): their seals are written after them, so a check beside the
owner would be a race. The owner checks them when it starts and before it commits.

client/local_scan.py first asks the owner (the tablet server) to flush up to an index. Pages of a snapshot are not
reused while it is open, so the owner's file grows with each write. The snapshot is closed when the scan's iterator is
closed or exhausted, and when its caller does not come back: the iterator then raises SnapshotExpired.
"""

from __future__ import annotations

import os
import threading  # noqa: TID251 - readers may be threads of any process
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from ebla.storage.environment import Reader, Snapshot
from ebla.storage.errors import StorageError
from ebla.storage.lmdb.neighbours import require_edges, require_order
from ebla.storage.lmdb.reader import LmdbReader
from ebla.storage.logs.entries import Position
from ebla.storage.predicates.conditions import Expression
from ebla.storage.rows.checksum import seed
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import blocks
from ebla.storage.runs import directory as directories
from ebla.storage.runs.reading import RunReader
from ebla.storage.schema import COLUMNS, TableSchema
from ebla.storage.tablets.positions import META, alteration_of, altered, flushed_of, require_alteration
from ebla.storage.tablets.run_tree import RunSnapshot
from ebla.storage.tablets.tablet_store import ROWS

BLOCK_ROWS = 4096  # of a row layout; the decoded block stays in the cache of a core
BLOCK_BYTES = 2_000_000
KEPT_S = 600.0  # and up to twice as long: a snapshot, while the caller is busy with a batch


class Stale(StorageError):
    """The flushed data is older than the requested index, or newer than the given schema."""

    retriable = True


def scan(
    directory: Path,
    tablet: str,
    schema: TableSchema,
    *,
    index: int = 0,
    columns: Sequence[str] | None = None,
    start: bytes = b"",
    stop: bytes | None = None,
    where: Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows with start <= encoded key < stop, by key, as batches of `columns` (all if None). `where`: a bound condition;
    blocks of a columnar tablet without a match are left out, other rows are not.

    `directory` is the tablet's environment. Raises Damaged if there is none, Stale, Corruption, SnapshotExpired.
    """
    with _shared(directory) as reader:
        snapshot = reader.snapshot(views=schema.storage == COLUMNS)
        caller = _Caller(snapshot)
        try:
            for batch in batches(
                snapshot,
                str(directory),
                tablet,
                schema,
                index=index,
                columns=columns,
                start=start,
                stop=stop,
                where=where,
            ):
                caller.has = batch
                yield batch
                caller.has = None
        finally:
            caller.ended.set()
            snapshot.close()


class _Caller:
    """The caller of a scan, whose snapshot is closed when the caller is busy with one batch for too long."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.has: pa.RecordBatch | None = None
        self.ended = threading.Event()
        self._snapshot = snapshot
        threading.Thread(target=self._watch, name="ebla-scan", daemon=True).start()

    def _watch(self) -> None:
        before = None
        while not self.ended.wait(KEPT_S):
            if self.has is not None and self.has is before:
                self._snapshot.close()
                return
            before = self.has


def batches(
    snapshot: Snapshot,
    path: str,
    tablet: str,
    schema: TableSchema,
    *,
    index: int = 0,
    columns: Sequence[str] | None = None,
    start: bytes = b"",
    stop: bytes | None = None,
    where: Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """As `scan`, of an open snapshot of the environment at `path`."""
    codec, begin = RowCodec(schema), seed(tablet)
    names = codec.names if columns is None else list(columns)
    flushed = flushed_of(snapshot, path)
    _require_fresh(flushed.position, path, index)
    encoded = alteration_of(snapshot, path)
    require_alteration(flushed, encoded, path)
    _require_known(encoded, path, schema)
    if schema.storage != COLUMNS:
        for joined in _blocks(snapshot, start, stop, begin, path):
            yield codec.decode(joined, begin, names, path)
        return
    directory = directories.load(snapshot, path, filters=False)
    directories.require_as_of(flushed.position.index, directory, path)
    runs = RunSnapshot(snapshot, RunReader(snapshot, directory, codec, begin, path), (), flushed.position)
    following: bytes | None = start
    while following is not None:
        batch, following = runs.read(codec, following, stop, blocks.ROWS, BLOCK_BYTES, names, where)
        if batch.num_rows:
            yield batch


def _require_fresh(found: Position, path: str, wanted: int) -> None:
    if found.index < wanted:
        raise Stale(
            f"the rows in {path} are as of index {found.index}, not yet {wanted}; ask their owner to flush",
            path=path,
        )


def _require_known(encoded: bytes | None, path: str, schema: TableSchema) -> None:
    """Raise Stale if the rows may have columns that the caller's schema lacks."""
    if encoded is not None:
        found = altered(encoded, path).schema
        if schema.version < found.renewed:
            raise Stale(
                f"the rows in {path} are of version {found.version} of their table, the reader knows {schema.version}; "
                "open the table again",
                path=path,
            )


def _blocks(
    snapshot: Reader, start: bytes, stop: bytes | None, seed: int, path: str
) -> Iterator[list[bytes]]:
    """Rows (key and value joined), up to BLOCK_ROWS or about BLOCK_BYTES at a time."""
    following: bytes | None = start
    while following is not None:
        begin = following
        rows, following = snapshot.joined(ROWS, begin, stop, limit=BLOCK_ROWS, bytes_max=BLOCK_BYTES)
        require_edges(snapshot, ROWS, begin, stop, rows, seed, path, to_the_end=following is None)
        require_order(snapshot, ROWS, begin, stop, rows, path)
        if rows:
            yield rows


# A process may open an LMDB environment only once, so scans of one tablet share it.
_gate = threading.Lock()
_open: dict[tuple[int, str], tuple[LmdbReader, int]] = {}


@contextmanager
def _shared(directory: Path) -> Iterator[LmdbReader]:
    key = os.getpid(), os.path.realpath(directory)
    with _gate:
        reader, users = _open.get(key) or (LmdbReader(directory, [ROWS, META]), 0)
        _open[key] = reader, users + 1
    try:
        yield reader
    finally:
        with _gate:
            reader, users = _open.pop(key)
            if users > 1:
                _open[key] = reader, users - 1
            else:
                reader.close()
