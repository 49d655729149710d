"""Records of a log as blocks of Arrow rows, and rows as records: what Ray Data and Spark share.

read     a record is a row with its position and its bytes; or, with `tables`, records are Arrow tables, and the rows are theirs.
         A block has the records in the order of their positions
append   with a job's name all rows are appended once under it, whose records the log counts: the same rows in the same order become
         the same records, however they come in blocks, so that a repetition passes over those that are in the log
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.actors.errors import NotFound
from ebla.arguments import check_int
from ebla.log.awaited import table_record
from ebla.log.blocking import Log
from ebla.log.options import RECORD_BYTES_MAX
from ebla.log.reading import Ledgers
from ebla.storage.errors import InvalidArgument

POSITION, DATA = "position", "data"
SCHEMA = pa.schema(
    [pa.field(POSITION, pa.int64(), nullable=False), pa.field(DATA, pa.binary(), nullable=False)]
)
BLOCK_ROWS, BLOCK_BYTES = 100_000, 32 << 20
APPEND_BYTES = 8 << 20  # of the records of one call, about
TABLE_ROWS = 10_000  # of one record


# -- reading -------------------------------------------------------------------------------------------------


def parts_of(log: Log, start: int | None, end: int | None) -> list[range]:
    """The positions from `start` to before `end`, for tasks that read them: one range for each ledger. Raises RecordsTrimmed,
    InvalidArgument."""
    first = None if start is None else check_int("start", start, 0)
    before = None if end is None else check_int("end", end, 0)
    return log._run(log._awaited._ledgers.ranges(log.name, first, before))


def schema_of(log: Log, parts: list[range]) -> pa.Schema:
    """The columns of the first Arrow table in these parts."""
    for part in parts:
        for table in log.read_tables(part.start):
            return table.schema
    raise InvalidArgument(f"log {log.name!r} has no record at these positions, so the columns are not known")


def read_part(log: Log, part: range, tables: pa.Schema | None) -> Iterator[pa.Table]:
    """The records at these positions. `tables`: the columns of the tables that they are."""
    for block in log._pull(_blocks(log._awaited._ledgers, log.name, part)):
        yield block if tables is None else _unpacked(block, log.name, tables)


async def _blocks(ledgers: Ledgers, name: str, part: range) -> AsyncGenerator[pa.Table, None]:
    records: list[bytes] = []
    first, size = part.start, 0
    async for each in ledgers.read(name, part.start, follow=False):
        if each.first != first + len(records):
            break  # behind entries that are lost for good
        some = each.records[: part.stop - each.first]
        records += some
        size += sum(map(len, some))
        done = first + len(records) == part.stop
        if done or len(records) >= BLOCK_ROWS or size >= BLOCK_BYTES:
            positions = pa.array(np.arange(first, first + len(records)))
            yield pa.table([positions, pa.array(records, pa.binary())], schema=SCHEMA)
            if done:
                return
            first, records, size = first + len(records), [], 0
    raise NotFound(
        f"log {name!r} has no record at position {first + len(records)}: it was dropped while it was read, and made again, or has lost "
        "the record for good",
        what=name,
    )


def _unpacked(block: pa.Table, name: str, schema: pa.Schema) -> pa.Table:
    """The rows of the tables that these records are."""
    found = []
    for position, data in zip(block.column(POSITION), block.column(DATA), strict=True):
        try:
            table = pa.ipc.open_stream(data.as_buffer()).read_all()
        except pa.ArrowInvalid as error:
            raise InvalidArgument(
                f"the record at position {position} of log {name!r} is no Arrow table; read the log without tables=True"
            ) from error
        if table.schema != schema:
            raise InvalidArgument(
                f"the table at position {position} of log {name!r} has other columns than the first one: "
                f"{', '.join(f'{each.name}: {each.type}' for each in table.schema)}; read these positions by themselves, with start and end"
            )
        found.append(table)
    return pa.concat_tables(found).combine_chunks()


# -- appending -----------------------------------------------------------------------------------------------


def append(log: Log, blocks: Iterable[pa.Table], job: str | None, tables: bool) -> int:
    """Append the records of all rows, and return how many these are, with those that the job has appended before. Without a job
    nothing is counted: a log remembers few producers."""
    count = 0
    with log.writer(job) as writer:
        for records in _packed(blocks) if tables else _values(blocks):
            if job is None:
                writer.append_many(records)
            else:
                writer.append_once(records, count)
            count += len(records)
        if job is not None and writer.sequence != count:
            raise InvalidArgument(
                f"job {job!r} has appended {writer.sequence} records to log {log.name!r} before, and there are {count} now; a "
                "repeated job has the same rows in the same order. Give another job its own name"
            )
    return count


def check_columns(names: Iterable[str]) -> None:
    """Raises InvalidArgument if rows with these columns are no records."""
    if DATA not in names:
        raise InvalidArgument(
            f"there is no column {DATA!r} with the bytes of each record; rename a column, or append the rows as Arrow tables with "
            "tables=True",
            column=DATA,
        )


def _values(blocks: Iterable[pa.Table]) -> Iterator[list[bytes]]:
    for rows in blocks:
        if not rows.num_rows:
            continue
        check_columns(rows.column_names)
        column = rows.column(DATA)
        if column.null_count or not _is_bytes(column.type):
            raise InvalidArgument(
                f"column {DATA!r} has the bytes or the text of each record, none of them null; it has {column.type} and "
                f"{column.null_count} nulls",
                column=DATA,
            )
        column = column.cast(pa.large_binary())
        step = max(1, rows.num_rows * APPEND_BYTES // (1 + pc.sum(pc.binary_length(column)).as_py()))
        for at in range(0, rows.num_rows, step):
            yield column.slice(at, step).to_pylist()


def _is_bytes(kind: pa.DataType) -> bool:
    one_of = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    return any(check(kind) for check in one_of)


def _packed(blocks: Iterable[pa.Table]) -> Iterator[list[bytes]]:
    for rows in _regrouped(blocks):
        yield list(_records(rows))


def _regrouped(blocks: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables of TABLE_ROWS, and the rest: how they come in blocks depends on chance and on settings."""
    held: list[pa.Table] = []
    wanted = TABLE_ROWS
    for rows in blocks:
        while rows.num_rows:
            taken, rows = rows.slice(0, wanted), rows.slice(wanted)
            held.append(_plain(taken))
            wanted -= taken.num_rows
            if not wanted:
                yield _joined(held)
                held, wanted = [], TABLE_ROWS
    if held:
        yield _joined(held)


def _plain(rows: pa.Table) -> pa.Table:
    """With values in place of dictionaries: a dictionary is that of a whole block, so the bytes of a record would depend on the
    blocks. And without views, which cannot be copied row by row."""
    for place, field in enumerate(rows.schema):
        wanted = field.with_type(_plain_type(field.type))
        if wanted.type != field.type:
            try:
                column = _without_dictionary(rows.column(place)).cast(wanted.type)
            except pa.ArrowNotImplementedError as error:
                raise InvalidArgument(
                    f"column {field.name!r} ({field.type}) is no column of a record: {error}; cast it to {wanted.type} first",
                    column=field.name,
                ) from error
            rows = rows.set_column(place, wanted, column)
    return rows


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow casts no dictionary of nested values."""
    if not pa.types.is_dictionary(column.type):
        return column
    chunks = [chunk.dictionary.take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, column.type.value_type)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return pa.string() if pa.types.is_string_view(kind) else pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        fields = [field.with_type(_plain_type(field.type)) for field in (kind.key_field, kind.item_field)]
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(_plain_type(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item)
    return kind


def _joined(parts: list[pa.Table]) -> pa.Table:
    try:
        rows = pa.concat_tables(parts).combine_chunks()
    except pa.ArrowInvalid as error:
        raise InvalidArgument(
            f"the rows have different columns: {error}; select and cast them first"
        ) from error
    # A slice becomes some bytes more than its copy, and the number of bytes decides whether rows are one record or several.
    return rows.take(np.arange(rows.num_rows))


def _records(rows: pa.Table) -> Iterator[bytes]:
    """Rows as one record, or as several if they have too many bytes."""
    record = table_record(rows)
    if len(record) <= RECORD_BYTES_MAX or rows.num_rows == 1:
        yield record
        return
    half = rows.num_rows // 2
    yield from _records(rows.slice(0, half))
    yield from _records(rows.slice(half))
