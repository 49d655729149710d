"""The fixed-size end of every value, which makes a row readable from its end.

    bytes of the variable-width value columns, one after the other
    header   null bitmap, one bit per value column (1: null), in bytes
             fixed-width value columns, little endian (null slots are zero)
             u32 per variable-width value column: the end of its bytes, from the start of the value
             u16 per closed key column (storage/rows/keys.py): the encoded length of its part of the key
             u16 the layout, unless it is the first one (storage/rows/altered.py)
    CRC-32C  over the key and all of the above (storage/rows/checksum.py)

The schema determines the header's size. So the end of `key + value` gives the header, the value's length, the key's
length, and every column, by arithmetic on whole batches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ebla.storage.rows.checksum import CRC_BYTES, MARK
from ebla.storage.rows.fixed import Fixed
from ebla.storage.rows.scalars import scalar
from ebla.storage.schema import Column


class Header:
    """The layout for value columns `columns` and a key with `closed` closed columns. `tag`: the number of the layout."""

    def __init__(self, columns: Sequence[Column], closed: int, tag: int = 0) -> None:
        self.columns = list(columns)
        self.tag = tag
        self.mark = MARK if tag else 0
        self.bit = {column.name: place for place, column in enumerate(columns)}
        self.fixed = {column.name: Fixed(column) for column in columns if not column.variable}
        self.variable = [column.name for column in columns if column.variable]
        self.bitmap_bytes = (len(columns) + 7) // 8

        fields = [(f"c{self.bit[name]}", fixed.slot) for name, fixed in self.fixed.items()]
        self.dtype = np.dtype(
            [
                ("nulls", np.uint8, (self.bitmap_bytes,)),
                *fields,
                ("ends", "<u4", (len(self.variable),)),
                ("closed", "<u2", (closed,)),
                *([("tag", "<u2")] if tag else []),
                ("crc", "<u4"),
            ]
        )
        # Places in the unpacked tuple, of which 0 is the bitmap. A `last_end` of 0: there are no ends.
        self.first_end = 1 + len(self.fixed)
        self.last_end = len(self.fixed) + len(self.variable) if self.variable else 0
        self.first_closed = self.first_end + len(self.variable)
        self.first_tag = self.first_closed + closed
        slots = "".join(scalar(column).format for column in columns if not column.variable)
        self.packed = struct.Struct(
            f"<{self.bitmap_bytes}s{slots}{len(self.variable)}I{closed}H{'H' if tag else ''}"
        )
        self.tail_bytes = self.packed.size + CRC_BYTES
        assert self.dtype.itemsize == self.tail_bytes

    def slot(self, name: str) -> str:
        """The field of a fixed-width column in the dtype."""
        return f"c{self.bit[name]}"

    def field(self, name: str) -> int:
        """The place in the unpacked tuple of a fixed-width column's slot, or of a variable one's end."""
        if name in self.fixed:
            return 1 + list(self.fixed).index(name)
        return self.first_end + self.variable.index(name)
