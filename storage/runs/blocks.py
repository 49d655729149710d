"""A block: some thousand rows of a run in key order, column by column (storage/runs/columns.py).

    u32        CRC-32C of the item's key and of all up to the parts
    u32        the size of the whole item
    u32        the number of rows
    u32        the size of each key in bytes; 0: keys have offsets
    u32        the size of the statistics
    u16        the layout (storage/rows/altered.py)
    u16        the number of parts
    u8         the compression of the parts, by its place in COMPRESSIONS (storage/schema.py)
    u32 each   the place of each part; 0: there is no such part
    u32 each   the size of each part as it is stored; 0: parts are not compressed
    u32 each   the size of each part in memory; 0: parts are not compressed
    u32 each   the digest of each group of rows, for reads of single rows
    statistics of each value column (storage/runs/statistics.py)
    parts
    u32        the checksum of the whole item, as of every row (storage/rows/checksum.py)

A block is an item of the database of rows: both checksums are bound to the tablet, the run and the block's number.

A table may ask for compression; a block that would become hardly smaller is left as it is. Compressed parts are stored one after
the other. Places and digests are those of the parts in memory.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebla.storage.errors import Corruption
from ebla.storage.rows import checksum
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.columns import Columns, Writer, layout_of, put_parts
from ebla.storage.runs.parts import GONE, GROUP, KEYS, Frame, Layout, Slot, groups, slots_of
from ebla.storage.runs.pieces import Piece
from ebla.storage.runs.statistics import Span, Statistics, spans
from ebla.storage.schema import COMPRESSIONS

ROWS, BYTES = 8192, 1 << 20  # of a block, at most; a larger row has its own
HEADER = struct.Struct("<IIIIIHHB")
DIGEST = struct.Struct("<I")
WORTH = 7 / 8  # of its size; a block that compresses to more is left as it is
PLACE = struct.Struct(">QI")  # the key of a block: run, number


class Cut(NamedTuple):
    """Some rows of what was encoded, as the item of a block. `size`: in memory, when it is read."""

    first: bytes
    last: bytes
    rows: int
    size: int
    value: bytes


# -- writing


def encode(piece: Piece, codec: RowCodec, run: int, seed: int) -> list[Cut]:
    """The blocks of a piece with all value columns of the codec, whose layout they have."""
    writer = Writer(piece, codec)
    columns = [Statistics(column, piece.columns[column.name]) for column in codec.header.columns]
    found = []
    for number, (start, stop) in enumerate(_cuts(writer.sizes())):
        width, parts = writer.parts(start, stop)
        statistics = b"".join([column.of(start, stop) for column in columns])
        made = _Made(stop - start, width, writer.layout, parts, statistics)
        value = made.sealed(codec.schema.compression, PLACE.pack(run, number), seed)
        found.append(
            Cut(piece.keys[start].as_py(), piece.keys[stop - 1].as_py(), stop - start, made.size, value)
        )
    return found


def _cuts(sizes: Array) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + BYTES, "right"))
        stop = max(start + 1, min(stop, start + ROWS, len(sizes)))
        yield start, stop
        start = stop


class _Made:
    """The rows of a block in a buffer, behind room for the header."""

    def __init__(
        self, rows: int, width: int, layout: Layout, parts: Sequence[bytes], statistics: bytes
    ) -> None:
        self.rows, self.width, self.layout, self.parts = rows, width, layout, parts
        self.known = len(statistics)
        self.whole = bytearray(HEADER.size + 12 * len(parts) + 4 * groups(rows)) + statistics
        self.begin = len(self.whole)
        self.places = put_parts(self.whole, parts)
        self.size = len(self.whole) + checksum.CRC_BYTES

    def sealed(self, compression: str, key: bytes, seed: int) -> bytes:
        """The item of the block with its checksums."""
        slots = slots_of(self.layout.parts, self.places, self.width)
        frame = Frame(memoryview(self.whole), self.rows, slots)
        digests = [frame.digest(group) for group in range(groups(self.rows))]
        del frame  # a bytearray with a view cannot grow
        whole, how, stored = self.whole, COMPRESSIONS.index(compression), [b""] * len(self.parts)
        if how:
            stored = [_packed(part, compression) if part else b"" for part in self.parts]
            if self.begin + sum(map(len, stored)) < WORTH * len(whole):
                whole = whole[: self.begin] + b"".join(stored)
            else:
                how, stored = 0, [b""] * len(self.parts)
        size, layout = len(whole) + checksum.CRC_BYTES, self.layout.codec.layout
        HEADER.pack_into(whole, 0, 0, size, self.rows, self.width, self.known, layout, len(stored), how)
        sizes = map(len, self.parts) if how else [0] * len(stored)
        numbers = [*self.places, *map(len, stored), *sizes, *digests]
        struct.pack_into(f"<{len(numbers)}I", whole, HEADER.size, *numbers)
        whole[:4] = _header_crc(whole, self.begin, key, seed).to_bytes(4, "little")
        whole += int(checksum.crc(whole, checksum.crc(key, seed))).to_bytes(checksum.CRC_BYTES, "little")
        return bytes(whole)


def _packed(part: bytes, compression: str) -> bytes:
    found: bytes = pa.compress(part, codec=compression, asbytes=True)
    return found


def _header_crc(data: Any, begin: int, key: bytes, seed: int) -> int:
    return int(checksum.crc(data[4:begin], checksum.crc(key, seed)))


# -- reading


class Head(NamedTuple):
    """The verified header of a block. It may be kept: blocks never change. `size`: of the item; `begin`: of the parts in memory;
    `stored`, `sizes`: of compressed parts, on disk and in memory; `known`: the size of the statistics, which end at `begin`;
    `digests`: of the groups of rows, packed. Those beside the rows would also fit if all of the data were another block's."""

    size: int
    rows: int
    width: int
    layout: Layout
    how: int
    begin: int
    places: tuple[int, ...]
    stored: tuple[int, ...]
    sizes: tuple[int, ...]
    slots: Sequence[Slot | None]
    known: int
    digests: bytes


def head_of(data: Any, present: RowCodec, key: bytes, seed: int, path: str) -> Head:
    """Raises Corruption."""
    try:
        crc, size, rows, width, known, number, parts, how = HEADER.unpack_from(data)
        count = 3 * parts + groups(rows)
        begin = HEADER.size + 4 * count + known
        if begin > len(data) or crc != _header_crc(data, begin, key, seed):
            raise _damaged(key, path, "a header that fails its checksum")
        numbers = struct.unpack_from(f"<{3 * parts}I", data, HEADER.size)
    except struct.error as error:
        raise _damaged(key, path, "no header") from error
    layout = layout_of(present.of_layout(number, path))
    if parts != len(layout.parts):
        raise _damaged(key, path, f"{parts} parts, not those of layout {number}")
    places = numbers[:parts]
    return Head(
        size,
        rows,
        width,
        layout,
        how,
        begin,
        places,
        numbers[parts : 2 * parts],
        numbers[2 * parts :],
        slots_of(layout.parts, places, width),
        known,
        bytes(data[begin - known - DIGEST.size * groups(rows) : begin - known]),
    )


def _damaged(key: bytes, path: str, what: str) -> Corruption:
    run, number = PLACE.unpack(key)
    return Corruption(f"block {number} of run {run} of {path} has {what}", path=path)


class Block(Columns):
    """A block with its header. `present`: the codec of the tablet's present schema. Single rows are verified when they are read;
    the caller verifies the whole before it takes a piece. Pieces are copies, so that they outlive the data.

    Raises Corruption, here and in its methods.
    """

    def __init__(self, data: Any, head: Head, present: RowCodec, key: bytes, path: str) -> None:
        if head.size != len(data):
            raise _damaged(key, path, f"{len(data)} bytes, not {head.size}")
        super().__init__(head.layout, present, head.rows, head.width, head.places)
        self.key, self.path = key, path
        self._data, self.head = data, head
        self._verified: dict[int, None] = {}
        self._frame = None if head.how else Frame(data, head.rows, head.slots)

    @property
    def frame(self) -> Frame:
        if self._frame is None:
            whole = bytearray()
            for number, place in enumerate(self.places):
                if place:
                    assert place >= len(whole), "places ascend, as the header's checksum says"
                    whole += bytes(place - len(whole)) + self._unpacked(number).to_pybytes()
            self._frame = Frame(memoryview(bytes(whole)), self.rows, self.head.slots)
        return self._frame

    def _unpacked(self, number: int) -> pa.Buffer:
        """A compressed part."""
        head = self.head
        at = head.begin + sum(head.stored[:number])
        packed, size = self._data[at : at + head.stored[number]], head.sizes[number]
        try:
            found = pa.decompress(packed, size, codec=COMPRESSIONS[head.how])
        except MemoryError:
            raise  # which is an exception of Arrow, and no damage
        except (pa.ArrowException, OSError, LookupError, ValueError) as error:
            raise self.damaged(f"a part that cannot be decompressed: {error}") from error
        if found.size != size:
            raise self.damaged(f"a part of {found.size} bytes, not {size}")
        return found

    def damaged(self, what: str) -> Corruption:
        return _damaged(self.key, self.path, what)

    def buffer(self, number: int, size: int) -> pa.Buffer | None:
        if self.head.how:
            found = self._unpacked(number)
            return found if found.size == size else None
        at = self.places[number]
        if not self.head.begin <= at <= len(self._data) - size:
            return None
        return pa.py_buffer(np.frombuffer(self._data, np.uint8, size, at).copy())

    def statistics(self) -> dict[str, Span]:
        """Of each value column that the rows have. They are verified with the header, so its head may not be a kept one."""
        head = self.head
        try:
            known = bytes(self._data[head.begin - head.known : head.begin])
            return spans(known, list(self.layout.codec.header.bit))
        except IndexError as error:
            raise self.damaged("no statistics") from error

    # -- single rows

    def places_of(self, keys: Sequence[bytes]) -> list[int | None]:
        """The place of each key, None if it is not here. No key may be above the block's last one."""
        return [self._found(key, row) for key, row in zip(keys, self._at_or_above(keys), strict=True)]

    def _at_or_above(self, keys: Sequence[bytes]) -> Sequence[int]:
        """For each key the first row whose key is not below it, of bytes that are not verified."""
        width = self.width
        if width and all(len(key) == width for key in keys):
            # NumPy takes no notice of zeros at the end, so this holds for keys of one size.
            kind = np.dtype((np.bytes_, width))
            stored = np.frombuffer(self.frame.data, kind, self.rows, self.places[KEYS])
            found: list[int] = stored.searchsorted(np.array(keys, kind)).tolist()
            return found
        return [bisect_left(range(self.rows), key, key=self.key_at) for key in keys]

    def _found(self, key: bytes, row: int) -> int | None:
        if row == self.rows:
            raise self.damaged("a last key below its place")
        self._verify(row)
        here = self.key_at(row)
        if here == key:
            return row
        if row:
            self._verify(row - 1)
        if here < key or (row and self.key_at(row - 1) >= key):
            raise self.damaged("keys that do not ascend")
        return None

    def is_gone(self, row: int) -> bool:
        self._verify(row)
        return bool(self.places[GONE]) and self.frame.bit(GONE, row)

    def packed(self, row: int, seed: int) -> bytes:
        self._verify(row)
        return super().packed(row, seed)

    def _verify(self, row: int) -> None:
        """Verify the group of the row."""
        group = row // GROUP
        if group not in self._verified:
            if self.frame.digest(group) != DIGEST.unpack_from(self.head.digests, DIGEST.size * group)[0]:
                raise self.damaged(f"damaged rows beside row {row}")
            self._verified[group] = None


def open_block(data: Any, present: RowCodec, key: bytes, seed: int, path: str) -> Block:
    """Raises Corruption as `Block`, and for a damaged header."""
    return Block(data, head_of(data, present, key, seed, path), present, key, path)
