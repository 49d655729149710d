"""Some rows of a tablet in key order, column by column: a part of a block, of a memtable, or of several that were merged."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.rows import convert, ragged
from ebla.storage.rows.ragged import Array, content, offsets
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.order import newest


@dataclass(frozen=True)
class Piece:
    """`closed`: for each closed key column (storage/rows/keys.py) the encoded length in each key. `columns`: value columns by
    name. `gone`: whether the row is deleted, in which case its columns have no meaning; None if no row is."""

    keys: pa.BinaryArray
    closed: tuple[pa.Array, ...]
    columns: Mapping[str, pa.Array]
    gone: pa.BooleanArray | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, names: Sequence[str]) -> Piece:
        """With the value columns `names` only."""
        return Piece(self.keys, self.closed, {name: self.columns[name] for name in names}, self.gone)

    def slice(self, start: int, stop: int) -> Piece:
        if start == 0 and stop == len(self):
            return self
        return self._each(lambda array: array.slice(start, stop - start))

    def take(self, places: Array) -> Piece:
        wanted = pa.array(places)
        return self._each(lambda array: array.take(wanted))

    def between(self, start: bytes, stop: bytes | None) -> Piece:
        """The rows with start <= key < stop."""
        low = place_of(self.keys, start) if start else 0
        return self.slice(low, len(self) if stop is None else max(low, place_of(self.keys, stop)))

    def sizes(self) -> Array:
        """About the bytes of each row."""
        found = ragged.lengths(self.keys).astype(np.int64)
        for array in self.columns.values():
            if pa.types.is_binary(array.type) or pa.types.is_string(array.type):
                found += ragged.lengths(array)
            else:
                found += array.nbytes // max(1, len(array))
        return found

    def present(self) -> Piece:
        """Without deleted rows."""
        if self.gone is None:
            return self
        there = pc.invert(self.gone)
        kept = self._each(lambda array: array.filter(there))
        return Piece(kept.keys, kept.closed, kept.columns)

    def rows(self, codec: RowCodec, names: Sequence[str]) -> pa.RecordBatch:
        """The columns `names` of rows that are all present, with key columns decoded from the keys."""
        assert self.gone is None
        if not names:
            return pa.RecordBatch.from_struct_array(
                pa.StructArray.from_buffers(pa.struct([]), len(self), [None])
            )
        if not len(self):
            return codec.decode([], None, names)
        found = dict(self.columns)
        keyed = [name for name in names if name not in found]
        if keyed:
            found |= self._keyed(codec, keyed)
        arrays = [found[name] for name in names]
        return pa.RecordBatch.from_arrays(arrays, schema=codec.arrow_of(names))

    def _keyed(self, codec: RowCodec, names: Sequence[str]) -> dict[str, pa.Array]:
        """The key columns `names`."""
        data = np.ascontiguousarray(content(self.keys))
        if all(codec.keys.fixed) and len(data) == len(self) * codec.keys.fixed_bytes:
            return codec.keys.decode_fixed(data, names)
        places = offsets(self.keys).astype(np.int64)
        places -= places[0]
        sizes = [array.to_numpy() for array in self.closed]
        return codec.keys.decode(pa.py_buffer(data), places[:-1], places[1:], sizes, names)

    def _each(self, change: Any) -> Piece:
        return Piece(
            change(self.keys),
            tuple(map(change, self.closed)),
            {name: change(array) for name, array in self.columns.items()},
            None if self.gone is None else change(self.gone),
        )


def place_of(keys: pa.BinaryArray, key: bytes) -> int:
    """The number of keys below `key`."""
    count = len(keys)
    if not count or key <= keys[0].as_py():
        return 0
    if key > keys[-1].as_py():
        return count
    view = memoryview(keys.buffers()[2])
    places = memoryview(keys.buffers()[1]).cast("i")[keys.offset :]
    return bisect_left(range(count), key, key=lambda at: bytes(view[places[at] : places[at + 1]]))


def merged(sources: Sequence[Piece]) -> Piece:
    """The newest row of each key, of sources in key order; the newest source is the last one. Deleted rows are kept."""
    sources = [piece for piece in sources if len(piece)]
    if len(sources) == 1:
        return sources[0]
    whole = joined(sources)
    return whole.take(newest(whole.keys))


def joined(sources: Sequence[Piece]) -> Piece:
    """One after the other; at least one."""
    first = sources[0]
    if len(sources) == 1:
        return first
    gone = None
    if any(piece.gone is not None for piece in sources):
        gone = pa.concat_arrays([_gone(piece) for piece in sources])
    return Piece(
        pa.concat_arrays([piece.keys for piece in sources]),
        tuple(pa.concat_arrays([piece.closed[at] for piece in sources]) for at in range(len(first.closed))),
        {name: pa.concat_arrays([piece.columns[name] for piece in sources]) for name in first.columns},
        gone,
    )


def _gone(piece: Piece) -> pa.BooleanArray:
    return pa.repeat(pa.scalar(False), len(piece)) if piece.gone is None else piece.gone


def of_rows(
    codec: RowCodec,
    rows: Mapping[bytes, bytes | None],
    keys: Sequence[bytes],
    seed: int,
    path: str,
    names: Sequence[str],
) -> Piece:
    """The packed rows of a memtable at `keys`, which ascend. Raises Corruption for a row that fails its checksum."""
    there = [key + value for key in keys if (value := rows[key]) is not None]
    wanted = [*codec.keys.closed_names, *names]
    batch = codec.decode(there, seed, wanted, path)
    closed = [pa.array(sizes, pa.uint16()) for sizes in codec.keys.closed_lengths(batch)]
    found = Piece(
        pa.array([key for key in keys if rows[key] is not None], pa.binary()),
        tuple(closed),
        {name: batch.column(len(closed) + at) for at, name in enumerate(names)},
    )
    if len(there) == len(keys):
        return found
    gone = np.fromiter((rows[key] is None for key in keys), np.bool_, len(keys))
    places = pa.array(np.cumsum(~gone) - 1, pa.int64(), mask=gone)
    return Piece(
        pa.array(keys, pa.binary()),
        tuple(array.take(places).fill_null(0) for array in found.closed),
        {name: array.take(places) for name, array in found.columns.items()},
        pa.array(gone),
    )


def lacking(codec: RowCodec, name: str, rows: int) -> pa.Array:
    """A column of rows that were written before it was added."""
    return convert.defaults(codec.schema.column(name), rows)
