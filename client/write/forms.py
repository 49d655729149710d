"""The two forms in which rows of a bulk call travel: packed row by row, or column by column.

Columns are for UPSERT and INSERT of columnar tables. A batch with few rows for its columns is packed, because each column costs
some microseconds whatever its length. The form depends on the rows alone, so a repeated call makes the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ebla.actors.messages import DELETE, INSERT, UPSERT
from ebla.options import COLUMNAR_ROWS_MIN, COLUMNAR_ROWS_PER_COLUMN
from ebla.storage.rows import convert
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import batches
from ebla.storage.runs.pieces import Piece, joined
from ebla.storage.schema import COLUMNS
from ebla.transport.batches import ROW_OVERHEAD_BYTES


@dataclass(frozen=True)
class Packed:
    keys: list[bytes]
    values: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, start: int, stop: int) -> Packed:
        return Packed(self.keys[start:stop], self.values[start:stop])

    def sizes(self) -> Array:
        found = np.full(len(self.keys), ROW_OVERHEAD_BYTES, np.int64)
        for column in (self.keys, self.values):
            if column:
                found += np.fromiter(map(len, column), np.int64, len(column))
        return found


Form = Packed | Piece


def cut(rows: Form, start: int, stop: int) -> Form:
    """Some of the rows. A small part is a copy, because a view would keep all rows in memory."""
    part = rows.slice(start, stop)
    return part.take(np.arange(len(part))) if isinstance(part, Piece) and 2 * len(part) < len(rows) else part


def make(codec: RowCodec, kind: int, rows: pa.RecordBatch, keys: pa.BinaryArray, seeds: Array) -> Form:
    """The rows, whose encoded keys are known; `seeds` of the tablet of each. Raises InvalidArgument."""
    if kind == DELETE:
        return Packed(keys.to_pylist(), [])
    if codec.schema.storage != COLUMNS or kind not in (UPSERT, INSERT):
        return Packed(*codec.encode(rows, seeds, keys))
    for column in codec.header.columns:
        convert.refuse_nulls(column, rows.column(column.name))
    closed = [pa.array(sizes, pa.uint16()) for sizes in codec.keys.closed_lengths(rows)]
    return Piece(keys, tuple(closed), {name: rows.column(name) for name in codec.header.bit})


def batch_of(codec: RowCodec, forms: Sequence[Form], seed: int) -> Packed | bytes:
    """One batch of the rows of a tablet: packed, or encoded columns."""
    pieces = [each for each in forms if isinstance(each, Piece)]
    if not pieces:
        some = [each for each in forms if isinstance(each, Packed)]
        return Packed(
            [key for each in some for key in each.keys], [value for each in some for value in each.values]
        )
    whole = joined(pieces)
    if len(whole) < max(COLUMNAR_ROWS_MIN, COLUMNAR_ROWS_PER_COLUMN * len(codec.header.columns)):
        return Packed(*codec.encode(whole.rows(codec, codec.names), seed, whole.keys))
    return batches.encode(whole, codec, seed)
