"""How handles, results and lists show themselves: text in a terminal, tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any, TypeVar

import msgspec

from ebla.actors.messages import MasterStatus, ServerStatus, TableInfo, TableSummary
from ebla.storage.schema import TableSchema
from ebla.wording import count, protocol, size

Record = TypeVar("Record", bound=msgspec.Struct)
Kind = TypeVar("Kind", bound=type[msgspec.Struct])
HIDDEN = (
    "uuid",
    "seqno",
    "instance",
)  # ids that fill half a line; names and addresses say the same to people
ROWS_MAX = 20  # of a list inside of a record


def shown(kind: Kind) -> Kind:
    """Let records of this type show themselves: a line for each field, and a table for each list of records in a field. Fields
    without a value are left out. Usable as a decorator."""
    setattr(kind, "__repr__", _record_text)  # noqa: B010 - the type checker refuses an assignment
    setattr(kind, "_repr_html_", _record_html)  # noqa: B010
    return kind


class Listing(list[Record]):
    """A list of records that shows itself as a table: one row for each record, without ids. A column is left out if it is empty
    in all rows, or optional with its default in all rows."""

    def __repr__(self) -> str:
        headers, rows = _columns(self)
        return "\n".join(_aligned([headers, *rows])) if rows else "[]"

    def _repr_html_(self) -> str:
        return html_table(*_columns(self))


def _columns(records: Sequence[msgspec.Struct]) -> tuple[list[str], list[list[str]]]:
    """The headers and the cells of a list."""
    kept = []
    for field in _fields(records[0]) if records else ():
        values = [getattr(each, field.name) for each in records]
        if any(_cell(field.name, value) for value in values) and any(
            value != field.default for value in values
        ):
            kept.append(field.name)
    return kept, [[_cell(name, getattr(each, name)) for name in kept] for each in records]


def _fields(record: msgspec.Struct) -> list[msgspec.structs.FieldInfo]:
    found = msgspec.structs.fields(record)
    named = any(field.name == "name" for field in found)  # then `table` is the id beside the name
    return [field for field in found if field.name not in HIDDEN and not (named and field.name == "table")]


def _record_text(record: msgspec.Struct) -> str:
    facts, lists = _parts(record)
    lines = [type(record).__name__, *_aligned([f"  {name}", value] for name, value in facts)]
    for title, headers, rows in lists:
        lines += [f"  {title}", *(f"    {line}" for line in _aligned([headers, *rows]))]
    return "\n".join(lines)


def _record_html(record: msgspec.Struct) -> str:
    facts, lists = _parts(record)
    tables = (html_table(headers, rows, title) for title, headers, rows in lists)
    return html_table(("field", "value"), facts, type(record).__name__) + "".join(tables)


Facts = list[tuple[str, str]]
Lists = list[tuple[str, Sequence[str], Sequence[Sequence[str]]]]


def _parts(record: msgspec.Struct) -> tuple[Facts, Lists]:
    """The plain fields, and the fields with lists of records: title, headers and the first rows."""
    facts: Facts = []
    lists: Lists = []
    for field in _fields(record):
        value = getattr(record, field.name)
        if isinstance(value, TableSchema):
            lists.append(("columns", COLUMN_HEADERS, _schema_rows(value)))
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
            more = f" (the first {ROWS_MAX} of {len(value):,})" if len(value) > ROWS_MAX else ""
            lists.append((field.name + more, *_columns(value[:ROWS_MAX])))
        elif cell := _cell(field.name, value):
            facts.append((field.name, f"{value:,}" if type(value) is int and cell == str(value) else cell))
    return facts, lists


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """The rows as lines with columns of equal width."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in lines)
    return [line.rstrip() for line in padded]


def _cell(field: str, value: Any) -> str:
    if value is None:
        return ""
    if field.endswith("_bytes"):
        return size(value)
    if field.endswith("_us"):
        return f"{datetime.fromtimestamp(value / 1e6, timezone.utc):%Y-%m-%d %H:%M:%S} UTC" if value else ""
    if field == "disks":
        return ", ".join(f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free" for disk in value)
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, dict):
        return ", ".join(f"{name}={'null' if each is None else each}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(getattr(each, "address", each)) for each in value)
    return str(value)


def html_table(headers: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table for a notebook."""
    head = "".join(f"<th>{escape(each)}</th>" for each in headers)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    above = f"<div><code>{escape(caption)}</code></div>" if caption else ""
    return f"{above}<table style='white-space: nowrap'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def describe(info: TableInfo) -> str:
    """A table in one line."""
    return (
        f"{info.name!r}: {count(len(info.schema.columns), 'column')}, key ({', '.join(info.schema.key)}), "
        f"{count(len(info.tablets), 'tablet')}, {info.replicas} x {protocol(info)}"
    )


def table_html(info: TableInfo) -> str:
    """A table's columns, for a notebook."""
    return columns_html(info.schema, f"table {describe(info)}")


def columns_html(schema: TableSchema, caption: str, names: Sequence[str] | None = None) -> str:
    """The columns of a schema, or those of `names`, for a notebook."""
    return html_table(COLUMN_HEADERS, _schema_rows(schema, names), caption)


def database_html(name: str, closed: bool) -> str:
    """A connection, for a notebook. Nothing is asked for it: a notebook must not wait for a deployment that does not answer."""
    return html_table(
        ("field", "value"), [("connection", "closed" if closed else "open")], f"database {name!r}"
    )


COLUMN_HEADERS = ("column", "type", "null", "key")


def _schema_rows(schema: TableSchema, names: Sequence[str] | None = None) -> list[tuple[str, str, str, str]]:
    """Each column's name, type, whether it may be null, and its place in the key."""
    return [
        (
            column.name,
            str(column.arrow_type()),
            "yes" if column.nullable else "no",
            str(schema.key.index(column.name) + 1) if column.name in schema.key else "",
        )
        for column in (schema.columns if names is None else map(schema.column, names))
    ]


for _kind in (TableInfo, TableSummary, MasterStatus, ServerStatus):
    shown(_kind)
