"""`ebla table scan`: rows on the terminal. `ebla table export`: rows into a csv, json or parquet file.

A file has a temporary name until it is complete, so that an interrupted scan leaves no file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import msgspec

from ebla.cli.frame.connection import within
from ebla.cli.frame.options import TableName, Where, argument, option
from ebla.cli.frame.problems import Usage, column_hint
from ebla.cli.frame.ui import Ui, write_json
from ebla.show.values import in_json, text, word
from ebla.wording import count, size

if TYPE_CHECKING:
    import pyarrow as pa

    from ebla.aio import Scan, Table
    from ebla.operate.cluster import Cluster
    from ebla.operate.waiting import Progress
    from ebla.storage.schema import TableSchema

TABLE_ROWS = 50  # shown as a table unless --limit says otherwise
CELL_MAX = 40


FileFormat = Literal["csv", "json", "parquet"]


ScanColumns = Annotated[str | None, option("-c --columns A,B", "The columns to read, in this order.")]


def scan(
    ui: Ui,
    name: TableName,
    columns: ScanColumns = None,
    where: Where = None,
    limit: Annotated[
        int | None,
        option("-l --limit N", f"Most rows to read (default: {TABLE_ROWS} as a table, else all).", min=0),
    ] = None,
    format: Annotated[
        Literal["table", "csv", "json"] | None,
        option("-f --format", "json: one row per line (default: table)."),
    ] = None,
) -> None:
    """Show the rows that meet a condition. `ebla table export` writes them to a file.

    Conditions compare columns with values: == != < <= > >=, in (..), is null, joined with and, or, not. Write
    dates, timestamps and decimals in quotes: time_hour >= '2013-07-04T12:00'. The rows of one tablet are of one moment;
    tablets are read one after the other.
    """
    if ui.json and format not in (None, "json"):
        raise Usage("--json prints rows as one JSON document; leave out --format", option="--format")
    chosen = "table" if ui.json else format or "table"
    shown = limit is None and chosen == "table" and not ui.json
    rows_max = TABLE_ROWS if shown else limit

    async def work(cluster: Cluster) -> None:
        table = await cluster.database.table(name)
        scanned = _plan(table, (await table.info()).schema, columns, where, rows_max)
        if chosen == "table":
            await _as_table(ui, scanned, name, limited=shown)
        else:
            with ui.working(f"scan {name}") as progress:
                await _write(scanned, chosen, sys.stdout.buffer, progress)
            sys.stdout.flush()

    within(ui, work)


def export(
    ui: Ui,
    name: TableName,
    file: Annotated[Path, argument("FILE", "The file.")],
    columns: ScanColumns = None,
    where: Where = None,
    limit: Annotated[int | None, option("-l --limit N", "Most rows to write (default: all).", min=0)] = None,
    format: Annotated[
        FileFormat | None, option("-f --format", "json: one row per line (default: by the file's name).")
    ] = None,
    overwrite: Annotated[bool, option("--overwrite", "Replace the file if it exists.")] = False,
) -> None:
    """Write the rows that meet a condition to a new csv, json or parquet file.

    The file appears when it is complete. Conditions are those of `ebla table scan`. In CSV, times with a zone are in UTC.

    ebla table export flights jfk.parquet --where "origin == 'JFK'"
    """
    chosen = _format_of(file, format)
    _require_free(file, overwrite)

    async def work(cluster: Cluster) -> None:
        table = await cluster.database.table(name)
        scanned = _plan(table, (await table.info()).schema, columns, where, limit)
        await _to_file(ui, scanned, name, chosen, file)

    within(ui, work)


_ENDINGS = {
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "pq": "parquet",
}


def _format_of(file: Path, given: FileFormat | None) -> str:
    chosen = given or _ENDINGS.get(file.suffix.lower().removeprefix("."))
    if chosen is None:
        raise Usage(
            f"the name {file} does not show its format; add --format csv, json or parquet",
            option="--format",
        )
    return chosen


def _require_free(file: Path, overwrite: bool) -> None:
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise Usage(
            f"{file} cannot be written: it is a directory, or its directory is missing", option="FILE"
        )
    if file.exists() and not overwrite:
        raise Usage(
            f"{file} exists already; name another file, or replace it with --overwrite", option="--overwrite"
        )


def _plan(
    table: Table, schema: TableSchema, columns: str | None, where: str | None, limit: int | None
) -> Scan:
    from ebla.cli.frame import where as conditions

    names = [column.name for column in schema.columns]
    wanted = [name.strip() for name in columns.split(",")] if columns else None
    for name in wanted or ():
        if name not in names:
            hint = column_hint(name, names)
            raise Usage(f"there is no column {name!r}{hint}", option="--columns", column=name)
    return table.scan(wanted, conditions.parse(where, schema) if where is not None else None, limit)


# -- on the terminal -----------------------------------------------------------------------------------------


async def _as_table(ui: Ui, scanned: Scan, name: str, limited: bool) -> None:
    from ebla.storage.rows import python_values

    found = await scanned.to_arrow()
    if ui.json:
        document = {"table": name, "columns": found.schema.names, "count": len(found)}
        write_json({**document, "rows": python_values.rows(found)})
        return
    rendered, left_out = rows_table(found, ui.out.width)
    ui.print(rendered)
    cut = limited and len(found) == TABLE_ROWS
    notes = [
        f"{TABLE_ROWS} rows, perhaps not all; --limit N shows more, `ebla table count` counts"
        if cut
        else count(len(found), "row")
    ]
    if left_out:
        notes.append(f"{count(len(left_out), 'more column')}: {', '.join(left_out)}; --columns chooses")
    ui.note("; ".join(notes))


def rows_table(found: pa.Table, width: int) -> tuple[Any, list[str]]:
    """The rows with as many columns as fit, and the names of the other columns."""
    import pyarrow as pa
    from rich.cells import cell_len

    from ebla.cli.frame.render import listing
    from ebla.storage.rows import python_values

    values = python_values.rows(found)
    texts = {name: [_cell(row[name]) for row in values] for name in found.schema.names}
    shown: list[str] = []
    used = 0
    for name, cells in texts.items():
        needed = max([cell_len(name), *map(cell_len, cells)]) + 2
        if shown and used + needed > width:
            break
        shown.append(name)
        used += needed
    numeric = [pa.types.is_integer(f.type) or pa.types.is_floating(f.type) for f in found.schema]
    headers = [name + ">" if numeric[place] else name for place, name in enumerate(shown)]
    rows = zip(*(texts[name] for name in shown), strict=True)
    return listing(headers, rows, keep_empty=True), list(texts)[len(shown) :]


def _cell(value: Any) -> str:
    from rich.cells import cell_len, set_cell_size

    shown = word(None if value is None else text(value))
    return shown if cell_len(shown) <= CELL_MAX else set_cell_size(shown, CELL_MAX - 3) + "..."


# -- into files ----------------------------------------------------------------------------------------------


async def _to_file(ui: Ui, scanned: Scan, name: str, chosen: str, output: Path) -> None:
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        with ui.working(f"scan {name}") as progress, open(partial, "wb") as file:
            rows = await _write(scanned, chosen, file, progress)
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)
    written = output.stat().st_size
    document = {"table": name, "file": str(output), "format": chosen, "count": rows, "bytes": written}
    ui.show(document, f"wrote {count(rows, 'row')} to {output} ({size(written)})")


async def _write(scanned: Scan, chosen: str, file: BinaryIO, progress: Progress) -> int:
    """Write the rows as they arrive; returns their number."""
    rows = 0
    plan = scanned._plan
    write, finish = WRITERS[chosen](plan.arrow, file)
    try:
        async with aclosing(scanned._stream(plan)) as batches:
            async for batch in batches:
                write(batch)
                rows += len(batch)
                progress.step(count(rows, "row"))
    finally:
        finish()
    return rows


_FOUR_DIGITS = (-62_167_219_200, 253_402_300_800)  # the years 0 and 10000, in seconds since 1970
_IN_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

Writer = tuple[Callable[[Any], object], Callable[[], object]]


def _csv(schema: pa.Schema, file: BinaryIO) -> Writer:
    import pyarrow as pa
    import pyarrow.csv as csv

    from ebla.storage.rows import python_values

    # Arrow's CSV has none of these types: they are as on the terminal.
    tests = (
        pa.types.is_binary,
        pa.types.is_nested,
        pa.types.is_duration,
        lambda kind: isinstance(kind, pa.JsonType),
    )
    odd = [place for place, field in enumerate(schema) if any(test(field.type) for test in tests)]
    texts = schema
    for place, field in enumerate(schema):
        if place in odd:
            texts = texts.set(place, pa.field(field.name, pa.string()))
        elif pa.types.is_timestamp(field.type) and field.type.tz:  # Arrow cuts the seconds of old offsets
            texts = texts.set(place, pa.field(field.name, pa.timestamp(field.type.unit, "UTC")))
    writer = csv.CSVWriter(file, texts)

    def write(batch: pa.RecordBatch) -> None:
        arrays = list(batch.columns)
        for place in odd:
            values = python_values.plain_values(schema.names[place], arrays[place])
            arrays[place] = pa.array(
                [None if value is None else text(value) for value in values], pa.string()
            )
        for name, array in zip(schema.names, arrays, strict=True):
            _require_years(name, array)
        arrays = [array.cast(field.type) for array, field in zip(arrays, texts, strict=True)]
        writer.write(pa.RecordBatch.from_arrays(arrays, schema=texts))

    return write, writer.close


def _require_years(name: str, array: pa.Array) -> None:
    """Refuse times outside of the years 0 to 9999: Arrow's CSV has texts for them that are no times."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from ebla.storage.errors import invalid_column

    kind = array.type
    if pa.types.is_date32(kind):
        units, first, stop = pa.int32(), *(second // 86_400 for second in _FOUR_DIGITS)
    elif pa.types.is_timestamp(kind):
        units, first, stop = pa.int64(), *(second * _IN_SECOND[kind.unit] for second in _FOUR_DIGITS)
    else:
        return
    found = pc.min_max(array.cast(units))
    for value in (found["min"].as_py(), found["max"].as_py()):
        if value is not None and not first <= value < stop:
            raise invalid_column(
                name,
                f"({kind}) holds {value}, which is outside of the years 0 to 9999 and has no form in CSV; export it as parquet, "
                "or leave the column out with --columns",
            )


def _json(schema: pa.Schema, file: BinaryIO) -> Writer:
    from ebla.storage.rows import python_values

    encoder = msgspec.json.Encoder()

    def write(batch: pa.RecordBatch) -> None:
        file.write(encoder.encode_lines(in_json(python_values.rows(batch))))

    return write, file.flush


def _parquet(schema: pa.Schema, file: BinaryIO) -> Writer:
    import pyarrow.parquet as parquet

    writer = parquet.ParquetWriter(file, schema)
    return writer.write_batch, writer.close


WRITERS: dict[str, Callable[[Any, BinaryIO], Writer]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}
