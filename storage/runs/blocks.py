"""A block: some thousand rows of a run in key order, column by column, as Arrow reads them where they lie.

    u32        the number of rows
    u32        the size of each key in bytes; 0: keys have offsets
    u16        the layout (storage/rows/altered.py)
    u16        the number of parts
    u32 each   the place of each part; 0: there is no such part
    parts      each at a multiple of ALIGNED

A part is a buffer of Arrow. In this order: the keys' offsets, the keys, a bitmap of deleted rows, u16 lengths for each closed
key column (storage/rows/keys.py); then for each value column a bitmap of validity, offsets, and values. Numbers are in little
endian. Nested values are binary (storage/rows/nested.py). A deleted row has a key and no values.

A block is an item of the database of rows, and has their checksum (storage/rows/checksum.py): it is bound to the tablet, the
run and the block's number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.storage.errors import Corruption
from ebla.storage.rows import nested, ragged
from ebla.storage.rows.fixed import Fixed, nulls
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.pieces import Piece, lacking
from ebla.storage.schema import Column

ROWS, BYTES = 4096, 512 << 10  # of a block, at most; a larger row has its own
ALIGNED = 16
HEADER = struct.Struct("<IIHH")
KEY_PARTS, COLUMN_PARTS = 3, 3


class Cut:
    """The rows from `start` to `stop` of what was encoded, as an unsealed block."""

    def __init__(self, first: bytes, last: bytes, rows: int, body: bytes) -> None:
        self.first, self.last, self.rows, self.body = first, last, rows, body


# -- writing


class _Written:
    """A column as buffers of all rows, of which blocks have slices."""

    def __init__(
        self, valid: Array | None, places: Array | None, values: Array, *, bits: bool = False
    ) -> None:
        self.valid, self.places, self.values, self.bits = valid, places, values, bits

    def parts(self, start: int, stop: int) -> Iterator[bytes]:
        valid = self.valid
        yield b"" if valid is None or valid[start:stop].all() else _packed(valid[start:stop])
        if self.places is None:
            yield b""
            values = self.values[start:stop]
            yield _packed(values) if self.bits else values.tobytes()
            return
        places = self.places[start : stop + 1]
        yield (places - places[0]).tobytes()
        yield self.values[places[0] : places[-1]].tobytes()

    def sizes(self) -> Array | int:
        return self.values.itemsize if self.places is None else np.diff(self.places)


def encode(piece: Piece, codec: RowCodec) -> list[Cut]:
    """The blocks of a piece with all value columns of the codec, whose layout they have."""
    columns = [_written(column, piece.columns[column.name]) for column in codec.header.columns]
    places = ragged.offsets(piece.keys)
    keys = _Written(None, places - places[0], ragged.content(piece.keys))
    gone = None if piece.gone is None else _flags(piece.gone)
    closed = [array.to_numpy().astype("<u2", copy=False) for array in piece.closed]
    sizes = np.zeros(len(piece), np.int64)
    for column in (keys, *columns):
        sizes += column.sizes()
    found = []
    for start, stop in _cuts(sizes):
        _, offsets, data = keys.parts(start, stop)
        width = _width(places[start : stop + 1])
        parts = [b"" if width else offsets, data]
        parts.append(b"" if gone is None or not gone[start:stop].any() else _packed(gone[start:stop]))
        parts += [array[start:stop].tobytes() for array in closed]
        for column in columns:
            parts += column.parts(start, stop)
        body = _assembled(stop - start, width, codec.layout, parts)
        found.append(Cut(piece.keys[start].as_py(), piece.keys[stop - 1].as_py(), stop - start, body))
    return found


def _written(column: Column, array: pa.Array) -> _Written:
    valid = ~nulls(array) if array.null_count else None
    if column.variable:
        text = nested.to_binary(column, array)
        places = ragged.offsets(text)
        return _Written(valid, places - places[0], ragged.content(text))
    values = np.ascontiguousarray(Fixed(column).values(array))
    return _Written(valid, None, values, bits=column.type == "bool")


def _cuts(sizes: Array) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + BYTES, "right"))
        stop = max(start + 1, min(stop, start + ROWS, len(sizes)))
        yield start, stop
        start = stop


def _width(places: Array) -> int:
    """The size of every key; 0 if they differ."""
    sizes = np.diff(places)
    width = int(sizes[0])
    return width if (sizes == width).all() else 0


def _assembled(rows: int, width: int, layout: int, parts: Sequence[bytes]) -> bytes:
    at = HEADER.size + 4 * len(parts)
    places, body = [], []
    for part in parts:
        if not len(part):
            places.append(0)
            continue
        pad = -at % ALIGNED
        body += [bytes(pad), part]
        places.append(at + pad)
        at += pad + len(part)
    header = HEADER.pack(rows, width, layout, len(parts)) + struct.pack(f"<{len(parts)}I", *places)
    return b"".join([header, *body])


def _packed(flags: Array) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes()


def _flags(array: pa.BooleanArray) -> Array:
    found: Array = array.to_numpy(zero_copy_only=False)
    return found


# -- reading


class Block:
    """A verified block. `codec`: of the tablet's present schema."""

    def __init__(self, data: Any, codec: RowCodec, path: str) -> None:
        self.path = path
        try:
            self.rows, self.width, layout, parts = HEADER.unpack_from(data)
            self._places = struct.unpack_from(f"<{parts}I", data, HEADER.size)
        except struct.error as error:
            raise Corruption(f"a block of {path} cannot be read: {error}", path=path) from error
        self.present = codec
        self.codec = codec.of_layout(layout, path)
        self._closed = len(self.codec.keys.closed_names)
        if parts != KEY_PARTS + self._closed + COLUMN_PARTS * len(self.codec.header.columns):
            raise Corruption(f"a block of {path} has {parts} parts, not those of layout {layout}", path=path)
        self._whole = pa.py_buffer(data)

    def keys(self) -> pa.BinaryArray:
        if self.width:
            data = self._part(1, self.rows * self.width)
            places = np.arange(self.rows + 1, dtype=np.int32) * np.int32(self.width)
            return ragged.from_offsets(places, data)
        offsets = self._part(0, 4 * (self.rows + 1))
        return pa.BinaryArray.from_buffers(pa.binary(), self.rows, [None, offsets, self._values(offsets, 1)])

    def is_gone(self, row: int) -> bool:
        return bool(self._places[2]) and bool(self._part(2, (self.rows + 7) // 8)[row >> 3] >> (row & 7) & 1)

    def piece(self, names: Sequence[str]) -> Piece:
        """The rows with the value columns `names`. A column that they lack has its default."""
        size = (self.rows + 7) // 8
        gone = self._part(2, size) if self._places[2] else None
        flags = None if gone is None else pa.Array.from_buffers(pa.bool_(), self.rows, [None, gone])
        closed = [
            pa.Array.from_buffers(pa.uint16(), self.rows, [None, self._part(KEY_PARTS + at, 2 * self.rows)])
            for at in range(self._closed)
        ]
        held = self.codec.header.bit
        columns = {
            name: self._column(name, held[name]) if name in held else lacking(self.present, name, self.rows)
            for name in names
        }
        return Piece(self.keys(), tuple(closed), columns, flags)

    def _column(self, name: str, place: int) -> pa.Array:
        column = self.codec.header.columns[place]
        at = KEY_PARTS + self._closed + COLUMN_PARTS * place
        valid = self._part(at, (self.rows + 7) // 8) if self._places[at] else None
        if column.variable:
            offsets = self._part(at + 1, 4 * (self.rows + 1))
            buffers = [offsets, self._values(offsets, at + 2)]
            if not column.nested:
                return pa.Array.from_buffers(column.arrow_type(), self.rows, [valid, *buffers])
            texts = pa.Array.from_buffers(pa.binary(), self.rows, [None, *buffers])
            return self._nested(column, texts, valid)
        size = (self.rows + 7) // 8 if column.type == "bool" else self.rows * Fixed(column).width
        return pa.Array.from_buffers(column.arrow_type(), self.rows, [valid, self._part(at + 2, size)])

    def _nested(self, column: Column, texts: pa.BinaryArray, valid: pa.Buffer | None) -> pa.Array:
        null = None
        if valid is not None:
            null = nulls(pa.Array.from_buffers(pa.binary(), self.rows, [valid, *texts.buffers()[1:]]))
        try:
            return nested.from_binary(column, texts, null)
        except ValueError as error:
            raise Corruption(
                f"column {column.name!r} of a block of {self.path} is not of this schema: {error}",
                path=self.path,
            ) from error

    def _values(self, offsets: pa.Buffer, part: int) -> pa.Buffer:
        return self._part(part, int(np.frombuffer(offsets, np.int32)[-1]))

    def _part(self, number: int, size: int) -> pa.Buffer:
        at = self._places[number]
        if not size:
            return pa.py_buffer(b"")
        if not HEADER.size < at <= self._whole.size - size:
            raise Corruption(f"a part of a block of {self.path} is outside of it", path=self.path)
        return self._whole.slice(at, size)
