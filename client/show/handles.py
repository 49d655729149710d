"""How handles and lists show themselves: text in a terminal, tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ebla.wording import count, size

if TYPE_CHECKING:
    from ebla.actors.messages import TableInfo

Record = TypeVar("Record", bound=msgspec.Struct)
HIDDEN = ("table", "uuid", "seqno")  # ids that fill half a line; names and addresses say the same to people


class Listing(list[Record]):
    """A list of records that shows itself as a table: one row for each record, without ids, and without fields that are empty
    in all."""

    def __repr__(self) -> str:
        headers, rows = self._table()
        if not rows:
            return "[]"
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        lines = (
            "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
            for row in [headers, *rows]
        )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        return html_table(*self._table())

    def _table(self) -> tuple[list[str], list[list[str]]]:
        fields = msgspec.structs.fields(self[0]) if self else ()
        kept = [
            f.name for f in fields if f.name not in HIDDEN and any(getattr(each, f.name) for each in self)
        ]
        return kept, [[_cell(name, getattr(each, name)) for name in kept] for each in self]


def _cell(field: str, value: Any) -> str:
    if field.endswith("_bytes"):
        return size(value)
    if field.endswith("_us"):
        return f"{datetime.fromtimestamp(value / 1e6, UTC):%Y-%m-%d %H:%M:%S} UTC" if value else ""
    if field == "disks":
        return ", ".join(f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free" for disk in value)
    if isinstance(value, float):
        return f"{value:.1f}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


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
        f"{count(len(info.tablets), 'tablet')}, {info.replicas} x {info.replication}"
    )


def table_html(info: TableInfo) -> str:
    """A table's columns, for a notebook."""
    key = info.schema.key
    rows = (
        (
            column.name,
            str(column.arrow_type()),
            "yes" if column.nullable else "no",
            str(key.index(column.name) + 1) if column.name in key else "",
        )
        for column in info.schema.columns
    )
    return html_table(("column", "type", "null", "key"), rows, f"table {describe(info)}")
