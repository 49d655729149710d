"""A block: some thousand rows of a run in key order, column by column, as Arrow reads them where they lie.

    u32        CRC-32C of the item's key and of all up to the parts
    u32        the size of the whole item
    u32        the number of rows
    u32        the size of each key in bytes; 0: keys have offsets
    u16        the layout (storage/rows/altered.py)
    u16        the number of parts
    u32 each   the place of each part; 0: there is no such part
    u32 each   the digest of each group of rows, for reads of single rows
    parts      each at a multiple of ALIGNED (storage/runs/parts.py)
    u32        the checksum of the whole item, as of every row (storage/rows/checksum.py)

A part is a buffer of Arrow. In this order: the keys' offsets, the keys, a bitmap of deleted rows, u16 lengths for each closed
key column (storage/rows/keys.py); then for each value column a bitmap of validity, offsets, and values. Numbers are in little
endian. Nested values are binary (storage/rows/nested.py). A deleted row has a key and no values.

A block is an item of the database of rows: both checksums are bound to the tablet, the run and the block's number.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebla.storage.errors import Corruption
from ebla.storage.rows import checksum, nested, ragged
from ebla.storage.rows.fixed import Fixed, nulls
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.parts import (
    CLOSED,
    GONE,
    GROUP,
    KEY_OFFSETS,
    KEYS,
    PAIR,
    Frame,
    Layout,
    groups,
)
from ebla.storage.runs.pieces import Piece, lacking
from ebla.storage.schema import Column

ROWS, BYTES = 8192, 1 << 20  # of a block, at most; a larger row has its own
ALIGNED = 16
HEADER = struct.Struct("<IIIIHH")
PLACE = struct.Struct(">QI")  # the key of a block: run, number


@lru_cache(256)
def layout_of(codec: RowCodec) -> Layout:
    return Layout(codec)


class Cut(NamedTuple):
    """Some rows of what was encoded, as the item of a block."""

    first: bytes
    last: bytes
    rows: int
    value: bytes


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


def encode(piece: Piece, codec: RowCodec, run: int, seed: int) -> list[Cut]:
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
    for number, (start, stop) in enumerate(_cuts(sizes)):
        _, offsets, data = keys.parts(start, stop)
        width = _width(places[start : stop + 1])
        parts = [b"" if width else offsets, data]
        parts.append(b"" if gone is None or not gone[start:stop].any() else _packed(gone[start:stop]))
        parts += [array[start:stop].tobytes() for array in closed]
        for column in columns:
            parts += column.parts(start, stop)
        value = _assembled(stop - start, width, layout_of(codec), parts, PLACE.pack(run, number), seed)
        found.append(Cut(piece.keys[start].as_py(), piece.keys[stop - 1].as_py(), stop - start, value))
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


def _assembled(rows: int, width: int, layout: Layout, parts: Sequence[bytes], key: bytes, seed: int) -> bytes:
    begin = HEADER.size + 4 * len(parts) + 4 * groups(rows)
    whole = bytearray(begin)
    places = []
    for part in parts:
        if part:
            whole += bytes(-len(whole) % ALIGNED)
            places.append(len(whole))
            whole += part
        else:
            places.append(0)
    frame = Frame(memoryview(whole), rows, width, layout.parts, places)
    digests = [frame.digest(group) for group in range(groups(rows))]
    del frame  # a bytearray with a view cannot grow
    size = len(whole) + checksum.CRC_BYTES
    HEADER.pack_into(whole, 0, 0, size, rows, width, layout.codec.layout, len(parts))
    struct.pack_into(f"<{len(places) + len(digests)}I", whole, HEADER.size, *places, *digests)
    whole[:4] = _header_crc(whole, begin, key, seed).to_bytes(4, "little")
    whole += int(checksum.crc(whole, checksum.crc(key, seed))).to_bytes(checksum.CRC_BYTES, "little")
    return bytes(whole)


def _header_crc(data: Any, begin: int, key: bytes, seed: int) -> int:
    return int(checksum.crc(data[4:begin], checksum.crc(key, seed)))


def _packed(flags: Array) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes()


def _flags(array: pa.BooleanArray) -> Array:
    found: Array = array.to_numpy(zero_copy_only=False)
    return found


# -- reading


class Block:
    """A block whose header is verified. `present`: the codec of the tablet's present schema. Single rows are verified when they
    are read; the caller verifies the whole before it takes a piece. Pieces are copies, so that they outlive the data.

    Raises Corruption, here and in its methods.
    """

    def __init__(self, data: Any, present: RowCodec, key: bytes, seed: int, path: str) -> None:
        self.key, self.seed, self.path = key, seed, path
        try:
            crc, size, self.rows, self.width, layout, parts = HEADER.unpack_from(data)
            count = groups(self.rows)
            begin = HEADER.size + 4 * parts + 4 * count
            if begin > len(data) or crc != _header_crc(data, begin, key, seed):
                raise self._damaged("a header that fails its checksum")
            if size != len(data):
                raise self._damaged(f"{len(data)} bytes, not {size}")
            numbers = struct.unpack_from(f"<{parts + count}I", data, HEADER.size)
        except struct.error as error:
            raise self._damaged("no header") from error
        self.present = present
        self.layout = layout_of(present.of_layout(layout, path))
        if parts != len(self.layout.parts):
            raise self._damaged(f"{parts} parts, not those of layout {layout}")
        self.frame = Frame(data, self.rows, self.width, self.layout.parts, numbers[:parts])
        self._digests = numbers[parts:]
        self._verified: dict[int, None] = {}

    # -- single rows

    def find(self, key: bytes) -> int | None:
        """The place of the key, None if it is not here. The key may not be above the block's last one."""
        row = bisect_left(range(self.rows), key, key=self._keys())
        if row == self.rows:
            raise self._damaged("a last key below its place")
        self._verify(row)
        if self.key_at(row) == key:
            return row
        if row:
            self._verify(row - 1)
        if self.key_at(row) < key or (row and self.key_at(row - 1) >= key):
            raise self._damaged("keys that do not ascend")
        return None

    def _keys(self) -> Callable[[int], bytes]:
        """As `key_at`, for many rows."""
        if not self.width:
            return self.key_at
        data, width, place = self.frame.data, self.width, self.frame.places[KEYS]
        return lambda row: bytes(data[(at := place + row * width) : at + width])

    def key_at(self, row: int) -> bytes:
        begin, end = self.frame.of(KEYS, row, row + 1)
        return bytes(self.frame.data[begin:end])

    def is_gone(self, row: int) -> bool:
        self._verify(row)
        return bool(self.frame.places[GONE]) and self.frame.bit(GONE, row)

    def packed(self, row: int, seed: int) -> bytes:
        """The value of a row that is not deleted, as the row codec packs it in the block's layout."""
        self._verify(row)
        frame, codec = self.frame, self.layout.codec
        places, data, header = frame.places, frame.data, codec.header
        nulls_, texts, ends, slots = 0, [], [], []
        size = 0
        for place, column in enumerate(header.columns):
            valid, offsets, values = self.layout.columns[column.name]
            if places[valid] and not frame.bit(valid, row):
                nulls_ |= 1 << place
            if offsets is None:
                slots.append(self._slot(column, values, row))
                continue
            if places[values]:
                begin, end = frame.of(values, row, row + 1)
                texts.append(data[begin:end])
                size += end - begin
            ends.append(size)
        closed = [
            data[places[at] + 2 * row : places[at] + 2 * row + 2]
            for at in range(CLOSED, CLOSED + len(codec.keys.closed_names))
        ]
        body = b"".join(
            [
                *texts,
                nulls_.to_bytes(header.bitmap_bytes, "little"),
                *slots,
                struct.pack(f"<{len(ends)}I", *ends),
                *closed,
                header.tag.to_bytes(checksum.TAG_BYTES, "little") if header.tag else b"",
            ]
        )
        return checksum.seal(self.key_at(row), body, seed, header.mark)

    def _slot(self, column: Column, number: int, row: int) -> Any:
        if column.type == "bool":
            return b"\x01" if self.frame.places[number] and self.frame.bit(number, row) else b"\x00"
        begin, end = self.frame.of(number, row, row + 1)
        return self.frame.data[begin:end]

    def _verify(self, row: int) -> None:
        """Verify the group of the row."""
        group = row // GROUP
        if group not in self._verified:
            if self.frame.digest(group) != self._digests[group]:
                raise self._damaged(f"damaged rows beside row {row}")
            self._verified[group] = None

    def _damaged(self, what: str) -> Corruption:
        run, number = PLACE.unpack(self.key)
        return Corruption(f"block {number} of run {run} of {self.path} has {what}", path=self.path)

    # -- all rows

    def keys(self) -> pa.BinaryArray:
        if self.width:
            data = self._part(KEYS, self.rows * self.width)
            places = np.arange(self.rows + 1, dtype=np.int32) * np.int32(self.width)
            return ragged.from_offsets(places, data)
        offsets = self._part(KEY_OFFSETS, 4 * (self.rows + 1))
        buffers = [None, offsets, self._values(offsets, KEYS)]
        return pa.BinaryArray.from_buffers(pa.binary(), self.rows, buffers)

    def piece(self, names: Sequence[str]) -> Piece:
        """The rows with the value columns `names`. A column that they lack has its default."""
        size = (self.rows + 7) // 8
        gone = self._part(GONE, size) if self.frame.places[GONE] else None
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
        column = self.layout.codec.schema.column(name)
        valid_at, offsets_at, values_at = self.layout.columns[name]
        valid = self._part(valid_at, (self.rows + 7) // 8) if self.frame.places[valid_at] else None
        if offsets_at is not None:
            offsets = self._part(offsets_at, 4 * (self.rows + 1))
            buffers = [offsets, self._values(offsets, values_at)]
            if not column.nested:
                return pa.Array.from_buffers(column.arrow_type(), self.rows, [valid, *buffers])
            texts = pa.Array.from_buffers(pa.binary(), self.rows, [None, *buffers])
            return self._nested(column, texts, valid)
        size = (self.rows + 7) // 8 if column.type == "bool" else self.rows * Fixed(column).width
        return pa.Array.from_buffers(column.arrow_type(), self.rows, [valid, self._part(values_at, size)])

    def _nested(self, column: Column, texts: pa.BinaryArray, valid: pa.Buffer | None) -> pa.Array:
        null = None
        if valid is not None:
            null = nulls(pa.Array.from_buffers(pa.binary(), self.rows, [valid, *texts.buffers()[1:]]))
        try:
            return nested.from_binary(column, texts, null)
        except ValueError as error:
            raise self._damaged(
                f"values of column {column.name!r} that are not of its type: {error}"
            ) from error

    def _values(self, offsets: pa.Buffer, part: int) -> pa.Buffer:
        return self._part(part, PAIR.unpack_from(offsets, offsets.size - PAIR.size)[1])

    def _part(self, number: int, size: int) -> pa.Buffer:
        at = self.frame.places[number]
        if not size:
            return pa.py_buffer(b"")
        if not HEADER.size < at <= len(self.frame.data) - size:
            raise self._damaged("a part outside of it")
        return pa.py_buffer(bytes(self.frame.data[at : at + size]))
