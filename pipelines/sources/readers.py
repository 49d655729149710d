"""The rows of one file, in parts of bounded size, with their row numbers.

CSV and JSON lines become columns of text, which types.py converts: a value that does not fit then has a place. Other formats
have typed columns. A row is numbered as an editor or a spreadsheet does: the header of a CSV file is row 1. A CSV row with a
line break in a value is one row. Rows without any value are left out.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.types as pt

from ebla.errors import SourceUnreadable
from ebla.pipelines.sources.decoded import SENTINEL, Decoded
from ebla.pipelines.sources.dialect import Dialect
from ebla.pipelines.sources.files import File, Place
from ebla.pipelines.sources.int96 import in_one_unit
from ebla.pipelines.sources.pieces import grouped
from ebla.pipelines.sources.types import RepeatedKey, json_object, json_text
from ebla.wording import count

BLOCK_BYTES = 8 << 20  # no row is larger
PART_ROWS = 32_768
READ_ROWS = 1024  # of a parquet file or a dictionary at once: their size is known only then
BUFFER_BYTES = 1 << 20  # of each column of a parquet file
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class Unfit(msgspec.Struct, frozen=True):
    """A row that the table cannot take. `column`: None if the row as a whole does not fit."""

    file: str
    row: int
    column: str | None
    problem: str


class Part(NamedTuple):
    """Some rows of a file. `text`: columns whose values are text of any type. `quoted`: those of them that had strings in JSON.
    `numbers`: the row numbers. `unread`: rows that are no rows of this source."""

    file: str
    columns: pa.RecordBatch
    text: frozenset[str]
    quoted: frozenset[str]
    numbers: Any
    unread: list[Unfit]


def parts(place: Place, file: File, dialect: Dialect | None) -> Iterator[Part]:
    """The rows of the file in their order. Raises SourceUnreadable for a damaged file."""
    labels = file.labels()
    try:
        for part in _READERS[file.format](place, file, dialect):
            yield _labelled(part, labels) if labels else part
    except (pa.ArrowException, OSError, EOFError, UnicodeError, KeyError) as error:
        if "straddling object" in str(error) and dialect is not None:
            raise SourceUnreadable(_unclosed(file.path, dialect.quote), source=place.source) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceUnreadable(
            f"{file.path} cannot be read as {file.format}: {reason}", source=place.source
        ) from error


def _labelled(part: Part, labels: dict[str, str]) -> Part:
    """With the columns that the names of the directories give."""
    columns = part.columns
    for name, value in labels.items():
        if name in columns.schema.names:
            continue
        text = pa.scalar(None if value == _NO_VALUE else unquote(value), pa.string())
        columns = columns.append_column(pa.field(name, pa.string()), pa.repeat(text, columns.num_rows))
    return part._replace(columns=columns, text=part.text | set(labels))


# -- CSV -----------------------------------------------------------------------------------------------------


def _csv(place: Place, file: File, dialect: Dialect | None) -> Iterator[Part]:
    assert dialect is not None, "a CSV file has a dialect"
    names = dialect.columns
    rows = _Numbered(file, len(names), dialect.skipped + 1)
    with place.open(file) as raw:
        batches = _open_csv(
            io.BufferedReader(Decoded(raw, dialect, file.path), 1 << 20), dialect, rows.refuse
        )
        for batch in batches:
            if len(names) == 1 and batch.num_rows and batch.column(0)[-1].as_py() == SENTINEL:
                batch, rows.ended = batch.slice(0, batch.num_rows - 1), True
            numbers = rows.number(batch.num_rows)
            batch = batch.rename_columns(names)
            yield _filled(Part(file.name, batch, frozenset(names), frozenset(), numbers, rows.take()))
    nothing = pa.RecordBatch.from_pydict({name: pa.array([], pa.string()) for name in names})
    yield Part(file.name, nothing, frozenset(names), frozenset(), np.zeros(0, np.int64), rows.take())
    if not rows.ended:
        raise SourceUnreadable(_unclosed(file.path, dialect.quote), source=place.source)


def _open_csv(stream: Any, dialect: Dialect, refuse: Callable[[Any], str]) -> Iterator[pa.RecordBatch]:
    columns = [str(at) for at in range(len(dialect.names))]
    return pacsv.open_csv(  # type: ignore[no-any-return]
        stream,
        pacsv.ReadOptions(
            use_threads=False,  # Arrow numbers rows only if one thread reads
            block_size=BLOCK_BYTES,
            column_names=columns,
            skip_rows_after_names=dialect.skipped,
        ),
        pacsv.ParseOptions(
            delimiter=dialect.separator,
            quote_char=dialect.quote,
            double_quote=not dialect.escape,
            escape_char=dialect.escape or False,
            newlines_in_values=True,
            ignore_empty_lines=False,  # they have numbers
            invalid_row_handler=refuse,
        ),
        pacsv.ConvertOptions(
            column_types={name: pa.string() for name in columns},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


class _Numbered:
    """The numbers of rows, and the rows with another number of fields. `ended`: the end mark was read as a row."""

    def __init__(self, file: File, fields: int, first: int) -> None:
        self.ended = False
        self._file = file
        self._fields = fields
        self._next = first
        self._refused: list[int] = []
        self._unread: list[Unfit] = []

    def refuse(self, row: Any) -> str:
        if row.text == SENTINEL:
            self.ended = True
            return "skip"
        self._refused.append(row.number)
        if row.text.strip():
            problem = f"has {count(row.actual_columns, 'field')}, not {self._fields}"
            self._unread.append(Unfit(self._file.name, row.number, None, problem))
        return "skip"

    def take(self) -> list[Unfit]:
        unread, self._unread = self._unread, []
        return unread

    def number(self, rows: int) -> Any:
        """The numbers of the next rows: the next numbers that no refused row has."""
        taken = np.array([number for number in self._refused if number >= self._next], np.int64)
        free = np.arange(self._next, self._next + rows + len(taken))
        numbers = free[~np.isin(free, taken)][:rows]
        if rows:
            self._next = int(numbers[-1]) + 1
            self._refused = [number for number in self._refused if number >= self._next]
        return numbers


def _unclosed(path: str, quote: str) -> str:
    return (
        f"{path} has a quotation mark ({quote}) that is never closed, or a row of more than {BLOCK_BYTES >> 20} MiB; mend "
        "the row, or name another mark with the option quote"
    )


def _filled(part: Part) -> Part:
    """Without the rows that have no value."""
    columns = part.columns.columns
    if not all(column.null_count for column in columns):
        return part
    filled = np.zeros(part.columns.num_rows, np.bool_)
    for column in columns:
        filled |= column.is_valid().to_numpy(zero_copy_only=False)
    if filled.all():
        return part
    return part._replace(columns=part.columns.filter(pa.array(filled)), numbers=part.numbers[filled])


# -- JSON lines ----------------------------------------------------------------------------------------------


def _json(place: Place, file: File, dialect: Dialect | None) -> Iterator[Part]:
    rows: list[dict[str, str | None]] = []
    quoted: set[str] = set()
    numbers: list[int] = []
    unread: list[Unfit] = []
    size = number = 0
    with place.open(file) as raw:
        for line, whole in _lines(io.BufferedReader(_Bytes(raw), 1 << 20)):
            number += 1
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                if line.lstrip().startswith(b"["):
                    raise SourceUnreadable(
                        f"{file.path} is one JSON array; write one object per line (pandas: to_json(path, "
                        'orient="records", lines=True))',
                        source=place.source,
                    )
            if whole and not line.strip():
                continue
            try:
                if not whole:
                    raise ValueError(f"the line has more than {BLOCK_BYTES >> 20} MiB")
                row = {}
                for name, raw in json_object(line).items():
                    value = bytes(raw)
                    row[name] = json_text(value)
                    if name not in quoted and value.startswith((b'"', b"{", b"[")):
                        quoted.add(name)
                rows.append(row)
                numbers.append(number)
            except RepeatedKey as error:
                unread.append(Unfit(file.name, number, None, str(error)))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                unread.append(Unfit(file.name, number, None, f"is no JSON object: {error}"))
            size += len(line)
            if size >= BLOCK_BYTES or len(rows) >= PART_ROWS:
                yield _json_part(file, rows, quoted, numbers, unread)
                rows, quoted, numbers, unread, size = [], set(), [], [], 0
    if rows or unread:
        yield _json_part(file, rows, quoted, numbers, unread)


def _lines(stream: io.BufferedReader) -> Iterator[tuple[bytes, bool]]:
    """The lines, and whether they are whole: of a longer line than BLOCK_BYTES only the beginning is held."""
    while line := stream.readline(BLOCK_BYTES):
        whole, rest = True, line
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(BLOCK_BYTES)
            whole = whole and not rest
        yield line, whole


def _json_part(
    file: File, rows: list[dict[str, str | None]], quoted: set[str], numbers: list[int], unread: list[Unfit]
) -> Part:
    names = list(dict.fromkeys(name for row in rows for name in row))
    # Made of a struct, the rows count also if none of them has a column.
    struct = pa.struct([(name, pa.string()) for name in names])
    batch = pa.RecordBatch.from_struct_array(pa.array(rows, struct))
    return Part(file.name, batch, frozenset(names), frozenset(quoted), np.array(numbers, np.int64), unread)


class _Bytes(io.RawIOBase):
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


# -- typed formats -------------------------------------------------------------------------------------------


def _parquet(place: Place, file: File, dialect: Dialect | None) -> Iterator[Part]:
    """Timestamps of the type INT96, which Spark writes by default, may be of any year and have nanoseconds. So they are read in
    both units: pyarrow wraps nanoseconds outside of 1677..2262, and cuts off what is below a microsecond."""
    import pyarrow.parquet as parquet

    with place.filesystem.open_input_file(file.path) as opened:
        reader = parquet.ParquetFile(opened, coerce_int96_timestamp_unit="us", buffer_size=BUFFER_BYTES)
        fine = parquet.ParquetFile(opened, metadata=reader.metadata, buffer_size=BUFFER_BYTES)
        _refuse_twice(file, reader.schema_arrow)
        schema, nanoseconds = reader.schema_arrow, fine.schema_arrow
        twice = [field for field in nanoseconds if field.type != schema.field(field.name).type]
        start, stop = file.groups or (0, reader.num_row_groups)
        before = sum(reader.metadata.row_group(at).num_rows for at in range(start))
        chosen = {"batch_size": READ_ROWS, "row_groups": range(start, stop)}
        batches = reader.iter_batches(**chosen)
        if twice:
            schema = pa.schema([*schema, *twice])
            others = fine.iter_batches(columns=[field.name for field in twice], **chosen)
            batches = (
                pa.RecordBatch.from_arrays([*one.columns, *other.columns], schema=schema)
                for one, other in zip(batches, others, strict=True)
            )
        for part in _typed(file, schema, batches, before + 1):
            yield part._replace(columns=in_one_unit(file.path, part.columns, len(twice)))


def row_groups(place: Place, file: File) -> int:
    """The number of row groups of a parquet file; 0 for other formats."""
    import pyarrow.parquet as parquet

    if file.format != "parquet":
        return 0
    with place.filesystem.open_input_file(file.path) as opened:
        return int(parquet.read_metadata(opened).num_row_groups)


def _arrow(place: Place, file: File, dialect: Dialect | None) -> Iterator[Part]:
    with place.filesystem.open_input_file(file.path) as opened:
        if file.stream:
            stream = pa.ipc.open_stream(opened)
            _refuse_twice(file, stream.schema)
            yield from _typed(file, stream.schema, _to_its_end(file, opened, stream))
            return
        reader = pa.ipc.open_file(opened)
        _refuse_twice(file, reader.schema)
        batches = (reader.get_batch(at) for at in range(reader.num_record_batches))
        yield from _typed(file, reader.schema, batches)


def _to_its_end(file: File, opened: Any, stream: Any) -> Iterator[pa.RecordBatch]:
    """The batches of a stream. pyarrow takes the end of the file for the end of the stream, also after some of its batches; the
    mark at the end is what it reads without returning a batch."""
    while True:
        before = opened.tell()
        try:
            batch = stream.read_next_batch()
        except StopIteration:
            break
        yield batch
    if opened.tell() == before:
        raise SourceUnreadable(
            f"{file.path} has no mark at the end of its Arrow stream, so it may be cut off; write it again and close the writer",
            source=file.path,
        )


def _orc(place: Place, file: File, dialect: Dialect | None) -> Iterator[Part]:
    import pyarrow.orc as orc

    with place.filesystem.open_input_file(file.path) as opened:
        reader = orc.ORCFile(opened)
        _refuse_twice(file, reader.schema)
        yield from _typed(file, reader.schema, (reader.read_stripe(at) for at in range(reader.nstripes)))


def _typed(file: File, schema: pa.Schema, batches: Any, first: int = 1) -> Iterator[Part]:
    """A file without rows has one part, too: its columns are known."""
    nothing = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    plain = (piece for batch in batches for piece in _decoded(batch))
    for pieces in chain(grouped(plain, PART_ROWS, BLOCK_BYTES), [[nothing]]):
        rows = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        numbers = np.arange(first, first + rows.num_rows)
        first += rows.num_rows
        yield Part(file.name, rows, frozenset(), frozenset(), numbers, [])


def _decoded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows without dictionaries, which would hide how large they are."""
    if not any(map(pt.is_dictionary, batch.schema.types)):
        yield batch
        return
    for at in range(0, batch.num_rows, READ_ROWS):
        piece = batch.slice(at, READ_ROWS).columns
        plain = [array.dictionary_decode() if pt.is_dictionary(array.type) else array for array in piece]
        yield pa.RecordBatch.from_arrays(plain, names=batch.schema.names)


def _refuse_twice(file: File, schema: pa.Schema) -> None:
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise SourceUnreadable(f"{file.path} has two columns {twice!r}; rename one of them", source=file.path)


_READERS: dict[str, Callable[[Place, File, Dialect | None], Iterator[Part]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "arrow": _arrow,
    "orc": _orc,
}
