"""Parquet's old timestamps INT96, which Spark still writes by default: days and nanoseconds of any year.

Arrow has no type for all of them. So a part of the rows has microseconds (of every year) unless one of its values has
nanoseconds; then it has nanoseconds (of the years 1677 to 2262). Rows that need both are refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ebla.errors import SourceUnreadable

_MICROSECONDS_MAX = (2**63 - 1) // 1000  # that nanoseconds hold


def in_one_unit(path: str, rows: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """`rows` without its last `count` columns, which have the nanoseconds of columns with the same names. Each of those gets the
    unit that holds its values. Raises SourceUnreadable if neither does."""
    if not count:
        return rows
    names, columns = rows.schema.names[:-count], rows.columns[:-count]
    for name, fine in zip(rows.schema.names[-count:], rows.columns[-count:], strict=True):
        at = names.index(name)
        pairs = list(zip(_counts(columns[at]), _counts(fine), strict=True))
        # Both differ by the nanoseconds also where the second one is wrapped.
        if not any((fine != 1000 * coarse).any() for coarse, fine in pairs):
            continue
        if any((np.abs(coarse) > _MICROSECONDS_MAX).any() for coarse, _ in pairs):
            raise SourceUnreadable(
                f"column {name!r} of {path} has times with nanoseconds beside times outside of the years 1677 to 2262, which no "
                "timestamp holds; round the former to microseconds, or make the column text",
                source=path,
            )
        columns[at] = fine
    return pa.RecordBatch.from_arrays(columns, names=names)


def _counts(array: pa.Array) -> Iterator[npt.NDArray[np.int64]]:
    """The timestamps of a column of any depth as numbers."""
    if pt.is_timestamp(array.type):
        yield pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    elif pt.is_struct(array.type):
        for at in range(array.type.num_fields):
            yield from _counts(array.field(at))
    elif pt.is_list(array.type) or pt.is_map(array.type):
        yield from _counts(array.values)
