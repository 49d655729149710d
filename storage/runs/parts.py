"""The parts of a block, and the bytes of some of its rows in each of them.

A block has a digest for each GROUP of rows, so that a read of one row verifies some kilobytes, not the whole block.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import pyarrow as pa

from ebla.storage.rows.checksum import crc
from ebla.storage.rows.fixed import Fixed
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column

GROUP = 128  # rows; a multiple of eight, so that groups begin at whole bytes of bitmaps
PAIR = struct.Struct("<ii")
OFFSET_BYTES = 4


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


class Held(NamedTuple):
    """A value column, its type in Arrow, and its parts for validity, offsets and values. Without offsets the second is None."""

    column: Column
    type: pa.DataType
    valid: int
    offsets: int | None
    values: int


class Layout:
    """The parts of blocks of rows as `codec` writes them. `columns`: the value columns by name. `ordered`: their parts in the order of
    the columns, with whether values are bits."""

    def __init__(self, codec: RowCodec) -> None:
        self.codec = codec
        self.parts = [OFFSETS, VALUES, BITS, *[Part(Kind.fixed, 2)] * len(codec.keys.closed_names)]
        self.closed = range(CLOSED, len(self.parts))
        self.columns: dict[str, Held] = {}
        for column in codec.header.columns:
            begin = len(self.parts)
            self.parts += [BITS, *_parts(column)]
            offsets = begin + 1 if column.variable else None
            self.columns[column.name] = Held(column, column.arrow_type(), begin, offsets, len(self.parts) - 1)
        self.ordered = [
            (held.valid, held.offsets, held.values, self.parts[held.values] is BITS)
            for held in self.columns.values()
        ]


def _parts(column: Column) -> list[Part]:
    if column.variable:
        return [OFFSETS, VALUES]
    return [BITS] if column.type == "bool" else [Part(Kind.fixed, Fixed(column).width)]


class Slot(NamedTuple):
    """A part that is there: where it begins, the bits of each row, and the bytes behind those of the rows. `offsets`: of a part of
    values, where the offsets begin that say which bytes are a row's."""

    place: int
    bits: int
    behind: int = 0
    offsets: int | None = None


def slots_of(parts: Sequence[Part], places: Sequence[int], width: int) -> list[Slot | None]:
    """None for a part that is absent, whose place is 0. `width`: of keys of one size, or 0."""
    found: list[Slot | None] = []
    for number, (part, place) in enumerate(zip(parts, places, strict=True)):
        if not place:
            found.append(None)
        elif number == KEYS and width:
            found.append(Slot(place, 8 * width))
        elif part.kind is Kind.values:
            found.append(Slot(place, 0, 0, places[number - 1]))
        elif part.kind is Kind.offsets:
            found.append(Slot(place, 8 * OFFSET_BYTES, OFFSET_BYTES))
        else:
            found.append(Slot(place, 1 if part.kind is Kind.bits else 8 * part.width))
    return found


class Frame(NamedTuple):
    """The parts of some rows in a buffer. `slots`: None for a part that is absent."""

    data: Any
    rows: int
    slots: Sequence[Slot | None]

    def value(self, number: int, row: int) -> Any:
        """The bytes of a row in a part that is there, where they lie."""
        slot = self.slots[number]
        assert slot is not None, ("a part that every block of the layout has", number)
        begin, end = self._of(slot, row, row + 1)
        return self.data[begin:end]

    def bit(self, number: int, row: int) -> bool:
        slot = self.slots[number]
        assert slot is not None
        return bool(self.data[slot.place + (row >> 3)] >> (row & 7) & 1)

    def _of(self, slot: Slot, start: int, stop: int) -> tuple[int, int]:
        """The bytes of the rows from `start` to `stop`: where they begin and end."""
        place, bits, behind, offsets = slot
        if offsets is None:
            return place + (start * bits >> 3), place + (stop * bits + 7 >> 3) + behind
        first = PAIR.unpack_from(self.data, offsets + OFFSET_BYTES * start)[0] if start else 0
        return place + first, place + PAIR.unpack_from(self.data, offsets + OFFSET_BYTES * (stop - 1))[1]

    def digest(self, group: int) -> int:
        """Of all bytes of the rows of a group."""
        start = group * GROUP
        stop = min(start + GROUP, self.rows)
        data, found = self.data, group
        for slot in self.slots:
            if slot is not None:
                begin, end = self._of(slot, start, stop)
                found = crc(data[begin:end], found)
        return found


def groups(rows: int) -> int:
    return -(-rows // GROUP)
