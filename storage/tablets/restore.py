"""Writes data in quarantine to files, for people to read or to load again:

    rows.parquet   every row that passes its checksum, with the table's schema as of the data
    log.jsonl      the entries of the private log, one per line: index, term, kind, time_us, bytes, payload (base64)
    about.json     the record of the replica, counts, and problems

Damaged rows and entries are left out and counted; `problems` says if the rest cannot be read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import IO, Any

import msgspec
import pyarrow as pa

from ebla.storage.environment import QUARANTINE, Disk, Environment, Outside, Snapshot
from ebla.storage.errors import Corruption, DiskFailed, DiskFull, EblaError, InvalidArgument, StorageError
from ebla.storage.logs.entries import Position, Record
from ebla.storage.logs.private_log import ENTRIES, PrivateLog
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import directory as directories
from ebla.storage.runs.pieces import Piece, joined, merged
from ebla.storage.runs.reading import RunReader
from ebla.storage.schema import COLUMNS, TableSchema
from ebla.storage.tablets.positions import (
    META,
    POSITION,
    alteration_of,
    altered,
    flushed_of,
    require_alteration,
)
from ebla.storage.tablets.tablet_store import ROWS

ROWS_FILE, LOG_FILE, ABOUT_FILE = "rows.parquet", "log.jsonl", "about.json"
PIECE_ROWS, PIECE_BYTES = 16_384, 4_000_000  # other work runs between two pieces
PIECE_ENTRIES = 256


# Reads the rows from a key on, and returns the key to continue from.
Piecewise = Callable[[bytes], tuple[list[pa.RecordBatch], bytes | None]]
Pieces = Callable[[Snapshot, RowCodec, int, "Restored", str], Piecewise]


class Quarantined(msgspec.Struct, frozen=True):
    """The record of an item in quarantine. `superblock` and `consensus` are the replica's encoded records; only the schema
    in the superblock is used here."""

    name: str
    tablet: str = ""
    table_name: str = ""
    reason: str = ""
    at_us: int = 0
    last_index: int = 0
    superblock: bytes = b""
    consensus: bytes = b""


class Restored(msgspec.Struct):
    """about.json. `flushed`: the position of the rows; `last_index`: the end of the log when it was moved."""

    name: str
    tablet: str
    table_name: str
    reason: str
    at: str
    last_index: int
    superblock: Any
    consensus: Any
    flushed: Position | None = None
    schema_version: int | None = None
    rows: int = 0
    rows_damaged: int = 0
    entries: int = 0
    entries_damaged: int = 0
    problems: list[str] = msgspec.field(default_factory=list)


class _Schema(msgspec.Struct):
    """The part of a superblock that is used here."""

    schema: TableSchema


def data_of(name: str) -> str:
    return f"{QUARANTINE}/{name}/data"


def wals_of(name: str) -> str:
    return f"{QUARANTINE}/{name}/wals"


async def restore(disk: Disk, environment: Environment, record: Quarantined, directory: str) -> Restored:
    """Write the files with the threads of `environment`. Raises InvalidArgument for an unusable directory, and DiskFull; then
    the files are removed. Unreadable data is reported in the result."""
    if not os.path.isabs(directory):
        raise InvalidArgument(f"{directory!r} is no absolute path; name one on the server's host")
    outside = disk.outside
    await environment.run(_make_empty, outside, directory)
    at = datetime.fromtimestamp(record.at_us / 1e6, timezone.utc).isoformat()
    about = Restored(
        record.name,
        record.tablet,
        record.table_name,
        record.reason,
        at,
        record.last_index,
        _readable(record.superblock),
        _readable(record.consensus),
    )
    try:
        await _write_rows(disk, record, about, f"{directory}/{ROWS_FILE}")
        await _write_log(disk, record, about, f"{directory}/{LOG_FILE}")
        text = msgspec.json.format(msgspec.json.encode(about))
        await environment.run(_write, outside, f"{directory}/{ABOUT_FILE}", text)
    except BaseException as error:
        for name in (ROWS_FILE, LOG_FILE, ABOUT_FILE):
            outside.remove(f"{directory}/{name}")
        if isinstance(error, OSError):
            raise _refusal(directory, error) from error
        raise
    return about


def _write(outside: Outside, path: str, data: bytes) -> None:
    with outside.create(path) as file:
        file.write(data)


def _make_empty(outside: Outside, directory: str) -> None:
    try:
        kept = outside.make(directory)
    except OSError as error:
        raise _refusal(directory, error) from error
    if kept:
        raise InvalidArgument(
            f"{directory} has contents ({', '.join(kept[:3])}); name an empty or a new directory"
        )


def _refusal(place: str, error: OSError) -> EblaError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(f"no space left to restore to {place}: {error}; free space", path=place)
    return InvalidArgument(f"cannot restore to {place}: {error}; name a directory that the server may write")


def _readable(data: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(data)
    except msgspec.MsgspecError:
        return data


async def _opened(
    disk: Disk, path: str, databases: Sequence[str], about: Restored, what: str
) -> Environment | None:
    try:
        return await disk.open_environment(path, databases, create=False)
    except DiskFailed:
        raise
    except StorageError as error:
        about.problems.append(f"the {what} cannot be read: {error}")
        return None


async def _write_rows(disk: Disk, record: Quarantined, about: Restored, file: str) -> None:
    if not disk.exists(data_of(record.name)):
        about.problems.append("there are no rows")
        return
    environment = await _opened(disk, data_of(record.name), [ROWS, META], about, "rows")
    if environment is None:
        return
    try:
        schema = _schema(environment, record, about)
        if schema is not None:
            about.schema_version = schema.version
            pieces = _run_piece if schema.storage == COLUMNS else _piece
            with disk.outside.create(file) as sink:
                await _write_pieces(environment, RowCodec(schema), record.tablet, about, sink, pieces)
    except (Corruption, InvalidArgument) as error:
        about.problems.append(f"not all rows can be read: {error}")
    finally:
        await environment.close()


def _schema(environment: Environment, record: Quarantined, about: Restored) -> TableSchema | None:
    """The schema of the data: of its last alteration, or of the new table."""
    path = environment.path
    try:
        flushed = None if environment.get(META, POSITION) is None else flushed_of(environment, path)
        about.flushed = None if flushed is None else flushed.position
        encoded = alteration_of(environment, path)
        if flushed is not None:
            try:
                require_alteration(flushed, encoded, path)
            except Corruption as error:
                about.problems.append(f"rows may be missing: {error}")
        if encoded is not None:
            return altered(encoded, path).schema
    except Corruption as error:
        about.problems.append(f"position or schema of the rows cannot be read: {error}")
    try:
        return msgspec.msgpack.decode(record.superblock, type=_Schema).schema
    except msgspec.MsgspecError as error:
        about.problems.append(f"the rows cannot be read, for their schema is not known: {error}")
        return None


async def _write_pieces(
    environment: Environment, codec: RowCodec, tablet: str, about: Restored, sink: IO[bytes], pieces: Pieces
) -> None:
    from pyarrow import parquet  # large, and rarely needed

    seed = checksum.seed(tablet)
    snapshot = environment.snapshot()
    writer = parquet.ParquetWriter(sink, codec.arrow_schema)
    try:
        following: bytes | None = b""
        read = pieces(snapshot, codec, seed, about, environment.path)
        while following is not None:
            batches, following = await environment.run(read, following)
            about.rows += sum(batch.num_rows for batch in batches)
            if any(batch.num_rows for batch in batches):
                await environment.run(writer.write_table, pa.Table.from_batches(batches))
    finally:
        snapshot.close()
        writer.close()


def _piece(snapshot: Snapshot, codec: RowCodec, seed: int, about: Restored, path: str) -> Piecewise:
    """Reads pieces of rows that are items of a tree."""

    def read(start: bytes) -> tuple[list[pa.RecordBatch], bytes | None]:
        rows, following = snapshot.joined(ROWS, start, limit=PIECE_ROWS, bytes_max=PIECE_BYTES)
        try:
            good = [codec.decode(rows, seed)]
        except Corruption:
            good = [batch for row in rows if (batch := _good(codec, row, seed)) is not None]
        about.rows_damaged += len(rows) - sum(batch.num_rows for batch in good)
        return good, following

    return read


def _run_piece(snapshot: Snapshot, codec: RowCodec, seed: int, about: Restored, path: str) -> Piecewise:
    """Reads pieces of rows that are runs of columns. Where a block is damaged, older rows of its range are left out as well: the
    block may have had newer ones. Raises Corruption if the directory of runs cannot be read."""
    found = directories.load(snapshot, path, filters=False)
    try:
        directories.require_as_of(about.flushed.index if about.flushed else 0, found, path)
    except Corruption as error:
        about.problems.append(f"rows may be missing or old: {error}")
    reader = RunReader(snapshot, found, codec, seed, path)
    names, damaged = list(codec.header.bit), dict[tuple[int, int], None]()

    def read(start: bytes) -> tuple[list[pa.RecordBatch], bytes | None]:
        places, until = reader.places(start, None)
        pieces: list[Piece] = []
        lost: list[tuple[bytes, bytes]] = []
        for run, number, begin in places:  # the newest first
            try:
                piece = reader.piece(run, number, names).between(begin, until)
            except Corruption:
                if (run.number, number) not in damaged:
                    damaged[run.number, number] = None
                    about.rows_damaged += run.counts[number]
                lost.append((begin, run.lasts[number]))
                continue
            for first, last in lost:
                piece = joined([piece.between(b"", first), piece.between(last + b"\0", None)])
            pieces.append(piece)
        return (
            [merged(pieces[::-1]).present().rows(codec, codec.names)] if any(map(len, pieces)) else []
        ), until

    return read


def _good(codec: RowCodec, row: bytes, seed: int) -> pa.RecordBatch | None:
    try:
        return codec.decode([row], seed)
    except Corruption:
        return None


async def _write_log(disk: Disk, record: Quarantined, about: Restored, file: str) -> None:
    if not disk.exists(wals_of(record.name)):
        return  # most tablets have none
    environment = await _opened(disk, wals_of(record.name), [ENTRIES], about, "log")
    if environment is None:
        return
    try:
        found = PrivateLog(record.tablet, environment).recover()
        with disk.outside.create(file) as lines:
            while await environment.run(_some_lines, found, lines, about):
                pass
    except DiskFailed:
        raise
    except StorageError as error:
        about.problems.append(f"not all of the log can be read: {error}")
    finally:
        await environment.close()


def _some_lines(found: Iterator[tuple[int, Record | Corruption]], lines: IO[bytes], about: Restored) -> bool:
    """Write some entries, and return whether there may be more."""
    some = list(islice(found, PIECE_ENTRIES))
    for _, outcome in some:
        if isinstance(outcome, Corruption):
            about.entries_damaged += 1
            continue
        entry = outcome.entry
        line = {
            "index": entry.index,
            "term": entry.term,
            "kind": entry.kind,
            "time_us": entry.time_us,
            "bytes": len(entry.payload),
            "payload": entry.payload,
        }
        lines.write(msgspec.json.encode(line) + b"\n")
        about.entries += 1
    return bool(some)
