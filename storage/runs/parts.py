"""The parts of a block, and the bytes of some of its rows in each of them.

A block has a digest for each GROUP of rows, so that a read of one row verifies some kilobytes, not the whole block.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

from ebla.storage.rows.checksum import crc
from ebla.storage.rows.fixed import Fixed
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column

GROUP = 256  # rows; a multiple of eight, so that groups begin at whole bytes of bitmaps
PAIR = struct.Struct("<ii")


class Kind(Enum):
    bits = "bits"  # one for each row
    fixed = "fixed"  # `width` bytes for each row
    offsets = "offsets"  # one more than rows, into the part that follows
    values = "values"  # where the offsets before say


class Part(NamedTuple):
    kind: Kind
    width: int = 0


BITS, OFFSETS, VALUES = Part(Kind.bits), Part(Kind.offsets), Part(Kind.values)
KEY_OFFSETS, KEYS, GONE, CLOSED = range(4)  # numbers of parts; CLOSED is the first of several


class Layout:
    """The parts of blocks of rows as `codec` writes them. `columns`: for each value column its parts for validity, offsets and
    values; without offsets the second is None."""

    def __init__(self, codec: RowCodec) -> None:
        self.codec = codec
        closed = len(codec.keys.closed_names)
        self.parts = [OFFSETS, VALUES, BITS, *[Part(Kind.fixed, 2)] * closed]
        self.columns: dict[str, tuple[int, int | None, int]] = {}
        for column in codec.header.columns:
            begin = len(self.parts)
            self.parts += [BITS, *_parts(column)]
            offsets = begin + 1 if column.variable else None
            self.columns[column.name] = begin, offsets, len(self.parts) - 1


def _parts(column: Column) -> list[Part]:
    if column.variable:
        return [OFFSETS, VALUES]
    return [BITS] if column.type == "bool" else [Part(Kind.fixed, Fixed(column).width)]


class Frame(NamedTuple):
    """A block's parts in a buffer. `places`: where each part begins; 0: it is absent. `width`: of keys of one size, or 0."""

    data: Any
    rows: int
    width: int
    parts: Sequence[Part]
    places: Sequence[int]

    def of(self, number: int, start: int, stop: int) -> tuple[int, int]:
        """The bytes of the rows from `start` to `stop` in a part that is there: where they begin and end."""
        kind, width = self.parts[number]
        place = self.places[number]
        if number == KEYS and self.width:
            return place + start * self.width, place + stop * self.width
        if kind is Kind.fixed:
            return place + start * width, place + stop * width
        if kind is Kind.bits:
            return place + (start >> 3), place + (stop + 7 >> 3)
        if kind is Kind.offsets:
            return place + 4 * start, place + 4 * (stop + 1)
        offsets = self.places[number - 1]
        first = PAIR.unpack_from(self.data, offsets + 4 * start)[0] if start else 0
        last = PAIR.unpack_from(self.data, offsets + 4 * (stop - 1))[1]
        return place + first, place + last

    def bit(self, number: int, row: int) -> bool:
        return bool(self.data[self.places[number] + (row >> 3)] >> (row & 7) & 1)

    def digest(self, group: int) -> int:
        """Of all bytes of the rows of a group."""
        start = group * GROUP
        stop = min(start + GROUP, self.rows)
        found = group
        for number, place in enumerate(self.places):
            if place:
                begin, end = self.of(number, start, stop)
                found = crc(self.data[begin:end], found)
        return found


def groups(rows: int) -> int:
    return -(-rows // GROUP)
