"""Rows in a buffer, column by column, as Arrow reads them where they lie: what blocks on disk and batches of writes share.

A part is a buffer of Arrow (storage/runs/parts.py), at a multiple of ALIGNED. In this order: the keys' offsets, the keys, a
bitmap of deleted rows, u16 lengths for each closed key column (storage/rows/keys.py); then for each value column a bitmap of
validity, offsets, and values. Numbers are in little endian. Nested values are binary (storage/rows/nested.py). A deleted row has
a key and no values.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.storage.errors import Corruption
from ebla.storage.rows import checksum, nested, ragged
from ebla.storage.rows.fixed import Fixed, nulls
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.parts import BITS, CLOSED, GONE, KEY_OFFSETS, KEYS, PAIR, Frame, Layout
from ebla.storage.runs.pieces import Piece, lacking
from ebla.storage.schema import Column

ALIGNED = 16


@lru_cache(256)
def layout_of(codec: RowCodec) -> Layout:
    return Layout(codec)


@lru_cache(64)
def _steps(rows: int, width: int) -> pa.Buffer:
    """The offsets of keys of one size."""
    return pa.py_buffer(np.arange(rows + 1, dtype=np.int32) * np.int32(width))


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
            values = self.values[start:stop]
            yield _packed(values) if self.bits else values.tobytes()
            return
        places = self.places[start : stop + 1]
        yield (places - places[0]).tobytes()
        yield self.values[places[0] : places[-1]].tobytes()

    def sizes(self) -> Array | int:
        return self.values.itemsize if self.places is None else np.diff(self.places)


class Writer:
    """The parts of a piece's rows, with all value columns of the codec, whose layout they have."""

    def __init__(self, piece: Piece, codec: RowCodec) -> None:
        self.layout = layout_of(codec)
        self._columns = [_written(column, piece.columns[column.name]) for column in codec.header.columns]
        self._places = ragged.offsets(piece.keys)
        self._keys = _Written(None, self._places - self._places[0], ragged.content(piece.keys))
        self._gone = None if piece.gone is None else _flags(piece.gone)
        self._closed = [array.to_numpy().astype("<u2", copy=False) for array in piece.closed]

    def sizes(self) -> Array:
        """Of each row."""
        found = np.zeros(len(self._places) - 1, np.int64)
        for column in (self._keys, *self._columns):
            found += column.sizes()
        return found

    def parts(self, start: int, stop: int) -> tuple[int, list[bytes]]:
        """The size of every key, 0 if they differ; and the parts of these rows, empty where they are absent."""
        _, offsets, data = self._keys.parts(start, stop)
        sizes = np.diff(self._places[start : stop + 1])
        width = int(sizes[0])
        if (sizes != width).any():
            width = 0
        gone = None if self._gone is None else self._gone[start:stop]
        found = [b"" if width else offsets, data, b"" if gone is None or not gone.any() else _packed(gone)]
        found += [array[start:stop].tobytes() for array in self._closed]
        for column in self._columns:
            found += column.parts(start, stop)
        return width, found


def put_parts(whole: bytearray, parts: Sequence[bytes]) -> list[int]:
    """Append the parts. Returns the place of each; 0: it is absent."""
    places = []
    for part in parts:
        if part:
            whole += bytes(-len(whole) % ALIGNED)
            places.append(len(whole))
            whole += part
        else:
            places.append(0)
    return places


def _written(column: Column, array: pa.Array) -> _Written:
    valid = ~nulls(array) if array.null_count else None
    if column.variable:
        text = nested.to_binary(column, array)
        places = ragged.offsets(text)
        return _Written(valid, places - places[0], ragged.content(text))
    values = np.ascontiguousarray(Fixed(column).values(array))
    return _Written(valid, None, values, bits=column.type == "bool")


def _packed(flags: Array) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes()


def _flags(array: pa.BooleanArray) -> Array:
    found: Array = array.to_numpy(zero_copy_only=False)
    return found


# -- reading


class Columns(ABC):
    """Rows of a layout, which may be an older one than that of `present`, the codec of the tablet's present schema. `width`: of
    keys of one size, or 0. `places`: of the parts; 0: it is absent.

    Methods raise Corruption for parts that cannot be.
    """

    def __init__(
        self, layout: Layout, present: RowCodec, rows: int, width: int, places: Sequence[int]
    ) -> None:
        self.layout, self.present, self.rows, self.width, self.places = layout, present, rows, width, places

    @property
    @abstractmethod
    def frame(self) -> Frame:
        """All parts, for single rows."""

    @abstractmethod
    def damaged(self, what: str) -> Corruption:
        """The error for data that has `what`."""

    @abstractmethod
    def buffer(self, number: int, size: int) -> pa.Buffer | None:
        """A part that has `size` bytes, for as long as the result lives. None if it cannot be."""

    # -- single rows

    def key_at(self, row: int) -> bytes:
        return bytes(self.frame.value(KEYS, row))

    def packed(self, row: int, seed: int) -> bytes:
        """The value of a row that is not deleted, as the row codec packs it in this layout."""
        frame, layout = self.frame, self.layout
        slots, header = frame.slots, layout.codec.header
        nulls_, size = 0, 0
        texts: list[Any] = []
        fixed: list[Any] = []
        ends: list[int] = []
        for at, (valid, offsets, values, is_bool) in enumerate(layout.ordered):
            if slots[valid] is not None and not frame.bit(valid, row):
                nulls_ |= 1 << at
            if offsets is not None:
                if slots[values] is not None:
                    texts.append(frame.value(values, row))
                    size += len(texts[-1])
                ends.append(size)
            elif is_bool:
                is_true = slots[values] is not None and frame.bit(values, row)
                fixed.append(b"\x01" if is_true else b"\x00")
            else:
                fixed.append(frame.value(values, row))
        body = b"".join(
            [
                *texts,
                nulls_.to_bytes(header.bitmap_bytes, "little"),
                *fixed,
                struct.pack(f"<{len(ends)}I", *ends),
                *[frame.value(at, row) for at in layout.closed],
                header.tag.to_bytes(checksum.TAG_BYTES, "little") if header.tag else b"",
            ]
        )
        return checksum.seal(self.key_at(row), body, seed, header.mark)

    # -- all rows

    def keys(self) -> pa.BinaryArray:
        width = self.width
        if width:
            buffers = [None, _steps(self.rows, width), self._part(KEYS, self.rows * width)]
            return pa.BinaryArray.from_buffers(pa.binary(), self.rows, buffers)
        offsets = self._part(KEY_OFFSETS, 4 * (self.rows + 1))
        buffers = [None, offsets, self._values(offsets, KEYS)]
        return pa.BinaryArray.from_buffers(pa.binary(), self.rows, buffers)

    def piece(self, names: Sequence[str]) -> Piece:
        """The rows with the value columns `names`. A column that they lack has its default."""
        size = (self.rows + 7) // 8
        gone = self._part(GONE, size) if self.places[GONE] else None
        flags = None if gone is None else pa.Array.from_buffers(pa.bool_(), self.rows, [None, gone])
        count = len(self.layout.codec.keys.closed_names)
        closed = [
            pa.Array.from_buffers(pa.uint16(), self.rows, [None, self._part(at, 2 * self.rows)])
            for at in range(CLOSED, CLOSED + count)
        ]
        held = self.layout.codec.header.bit
        columns = {
            name: self._column(name) if name in held else lacking(self.present, name, self.rows)
            for name in names
        }
        return Piece(self.keys(), tuple(closed), columns, flags)

    def _column(self, name: str) -> pa.Array:
        column, kind, valid_at, offsets_at, values_at = self.layout.columns[name]
        valid = self._part(valid_at, (self.rows + 7) // 8) if self.places[valid_at] else None
        if offsets_at is not None:
            offsets = self._part(offsets_at, 4 * (self.rows + 1))
            buffers = [offsets, self._values(offsets, values_at)]
            if not column.nested:
                return pa.Array.from_buffers(kind, self.rows, [valid, *buffers])
            texts = pa.Array.from_buffers(pa.binary(), self.rows, [None, *buffers])
            return self._nested(column, texts, valid)
        part = self.layout.parts[values_at]
        size = (self.rows + 7) // 8 if part is BITS else self.rows * part.width
        return pa.Array.from_buffers(kind, self.rows, [valid, self._part(values_at, size)])

    def _nested(self, column: Column, texts: pa.BinaryArray, valid: pa.Buffer | None) -> pa.Array:
        null = None
        if valid is not None:
            null = nulls(pa.Array.from_buffers(pa.binary(), self.rows, [valid, *texts.buffers()[1:]]))
        try:
            return nested.from_binary(column, texts, null)
        except ValueError as error:
            raise self.damaged(
                f"values of column {column.name!r} that are not of its type: {error}"
            ) from error

    def _values(self, offsets: pa.Buffer, part: int) -> pa.Buffer:
        return self._part(part, PAIR.unpack_from(offsets, offsets.size - PAIR.size)[1])

    def _part(self, number: int, size: int) -> pa.Buffer:
        if not size:
            return pa.py_buffer(b"")
        found = self.buffer(number, size) if size > 0 else None
        if found is None:
            raise self.damaged("a part outside of it")
        return found
