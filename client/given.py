"""Rows and keys as callers give them, looked at without converting them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ebla.storage.errors import InvalidArgument


def names(rows: Any) -> tuple[str, ...] | None:
    """The columns that the rows bring, as far as it can be told without converting them."""
    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return tuple(rows.schema.names)
    if isinstance(rows, (list, tuple)):
        return tuple(rows[0]) if rows and isinstance(rows[0], Mapping) else ()
    columns = getattr(rows, "columns", None)
    return None if columns is None else tuple(columns)


def check_uniform(rows: Any, wanted: tuple[str, ...]) -> None:
    """An update changes the same columns in every row of a call; a missing one would silently become null."""
    for at, row in enumerate(rows if isinstance(rows, (list, tuple)) else ()):
        if isinstance(row, Mapping) and (len(row) != len(wanted) or any(name not in row for name in wanted)):
            raise InvalidArgument(
                f"row {at} names the columns {', '.join(row)} and row 0 {', '.join(wanted)}; the rows of one update "
                "name the same columns",
                row=at,
            )


def select(rows: Any, key: tuple[str, ...]) -> Any:
    """Only the key columns: what is given as keys may be whole rows."""
    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return rows.select([name for name in rows.schema.names if name in key])
    if isinstance(rows, (list, tuple)):
        return [{n: row[n] for n in key if n in row} if isinstance(row, Mapping) else row for row in rows]
    columns = getattr(rows, "columns", None)
    return rows if columns is None else rows[[name for name in columns if name in key]]
