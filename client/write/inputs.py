"""The forms of a caller's rows and keys, and checks that do not convert them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.storage.errors import InvalidArgument
from ebla.write.streams import batch_of, is_frame, is_stream


def listed(rows: Any) -> Any:
    """A list for one row, or for rows in a sequence of any kind; an array for one of NumPy's records; a record batch for
    Arrow's array interface; other inputs unchanged."""
    if isinstance(rows, Mapping):
        return [rows]
    if is_stream(rows):
        return rows
    if isinstance(rows, (np.ndarray, np.void)) and rows.dtype.names:
        return _one_dimensional(np.atleast_1d(rows))
    if hasattr(rows, "__arrow_c_array__") and not isinstance(rows, pa.RecordBatch):
        return batch_of(rows)
    if isinstance(rows, Sequence) and not isinstance(rows, (list, tuple, str, bytes, bytearray, memoryview)):
        return list(rows)
    return rows


def count(rows: Any) -> int | None:
    """The number of rows; None if the input is not rows."""
    taken = isinstance(rows, (pa.RecordBatch, pa.Table, list, tuple)) or is_frame(rows) or _is_records(rows)
    return len(rows) if taken else None


def names(rows: Any) -> tuple[str, ...] | None:
    """The columns of the rows; None if they are not known without conversion."""
    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return tuple(rows.schema.names)
    if isinstance(rows, (list, tuple)):
        return tuple(rows[0]) if rows and isinstance(rows[0], Mapping) else ()
    if _is_records(rows):
        return tuple(rows.dtype.names)
    return tuple(rows.columns) if is_frame(rows) else None


def check_uniform(rows: Any, wanted: tuple[str, ...]) -> None:
    """An update changes the same columns in every row of a call; a missing one would silently become null."""
    for at, row in enumerate(rows if isinstance(rows, (list, tuple)) else ()):
        if isinstance(row, Mapping) and (len(row) != len(wanted) or any(name not in row for name in wanted)):
            raise InvalidArgument(
                f"row {at} names the columns {', '.join(map(str, row))} and row 0 {', '.join(map(str, wanted))}; the "
                "rows of one update name the same columns",
                row=at,
            )


def select(rows: Any, key: tuple[str, ...]) -> Any:
    """Only the key columns: whole rows may be given as keys."""
    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return rows.select([at for at, name in enumerate(rows.schema.names) if name in key])
    if isinstance(rows, (list, tuple)):
        return [{n: row[n] for n in key if n in row} if isinstance(row, Mapping) else row for row in rows]
    if _is_records(rows):
        return rows[[name for name in rows.dtype.names if name in key]]
    return rows.loc[:, [name in key for name in rows.columns]] if is_frame(rows) else rows


def _is_records(rows: Any) -> bool:
    return isinstance(rows, np.ndarray) and bool(rows.dtype.names)


def _one_dimensional(rows: Any) -> Any:
    if rows.ndim != 1:
        raise InvalidArgument(
            f"rows are an array of records with {rows.ndim} dimensions; give one dimension, such as rows.ravel()"
        )
    return rows
