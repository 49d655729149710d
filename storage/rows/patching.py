"""Patches of single rows in plain Python: the same bytes as storage/rows/rows.py makes of batches, without the fixed cost
of Arrow and NumPy calls (hundreds of microseconds). Most updates are of one or a few rows.

Only the ordinary case is handled here. For a row that fails its checksum, does not fit, is of another layout or becomes
too large, `patch` returns None, and the batch path handles it or raises the error.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ebla.storage.rows import checksum
from ebla.storage.rows.header import Header
from ebla.storage.rows.keys import KeyCodec
from ebla.storage.schema import ROW_BYTES_MAX

FEW_ROWS = 8  # with more rows a batch is faster


class Opened(NamedTuple):
    """A verified row: its header up to the checksum, the start of its value, and the end of each text in the value."""

    row: bytes
    header: bytes
    split: int
    ends: tuple[int, ...]

    def text(self, place: int) -> bytes:
        before = self.ends[place - 1] if place else 0
        return self.row[self.split + before : self.split + self.ends[place]]


class Opener:
    """Splits rows of one layout, with the same checks as rows.py."""

    def __init__(self, keys: KeyCodec, header: Header) -> None:
        self.header = header
        self.residue = checksum.MARKED if header.tag else checksum.RESIDUE
        self.fixed_bytes = keys.fixed_bytes
        self.ends_open = keys.ends_open
        self.texts = len(header.variable)
        self.places_at = self.place("ends")[0]
        self.places = struct.Struct(f"<{self.texts}I{len(keys.closed_names)}H")

    def place(self, field: str) -> tuple[int, int]:
        """The start and end of a field in the header."""
        dtype, begin = self.header.dtype.fields[field][:2]  # type: ignore[index]
        return begin, begin + dtype.itemsize

    def open(self, row: bytes, seed: int) -> Opened | None:
        if checksum.crc(row, seed) != self.residue:
            return None
        if self.header.tag and checksum.layout_of(row) != self.header.tag:
            return None
        begin = len(row) - self.header.tail_bytes
        if begin < self.fixed_bytes:
            return None
        header = row[begin : -checksum.CRC_BYTES]
        places = self.places.unpack_from(header, self.places_at)
        ends, closed = places[: self.texts], places[self.texts :]
        split = begin - (ends[-1] if ends else 0)
        spare = split - self.fixed_bytes - sum(closed)
        if spare < 0 or (spare and not self.ends_open) or (closed and min(closed) < 2):
            return None
        if self.texts > 1 and list(ends) != sorted(ends):
            return None
        return Opened(row, header, split, ends)


class Patching:
    """Patches of one choice of columns, applied to rows of one layout."""

    def __init__(self, rows: Opener, patches: Opener) -> None:
        self.rows, self.patches = rows, patches
        into, of = rows.header, patches.header
        both = [name for name in of.bit if name in into.bit]  # the others were dropped
        self._bits = [(1 << into.bit[name], 1 << of.bit[name]) for name in both]
        self._slots = [
            (slice(*rows.place(into.slot(name))), slice(*patches.place(of.slot(name))))
            for name in both
            if name in into.fixed
        ]
        self._texts = [
            (True, of.variable.index(name)) if name in both else (False, place)
            for place, name in enumerate(into.variable)
        ]
        self._ends = struct.Struct(f"<{len(into.variable)}I")

    def patch(self, old_row: bytes, key: bytes, patch: bytes, seed: int) -> bytes | None:
        """The new value of the row, or None: see the module."""
        old, new = self.rows.open(old_row, seed), self.patches.open(key + patch, seed)
        if old is None or new is None:
            return None
        into, of = self.rows.header, self.patches.header
        header = bytearray(old.header)
        null_bits = int.from_bytes(header[: into.bitmap_bytes], "little")
        new_bits = int.from_bytes(new.header[: of.bitmap_bytes], "little")
        for bit, new_bit in self._bits:
            null_bits = null_bits | bit if new_bits & new_bit else null_bits & ~bit
        header[: into.bitmap_bytes] = null_bits.to_bytes(into.bitmap_bytes, "little")
        for slot, new_slot in self._slots:
            header[slot] = new.header[new_slot]
        texts: list[bytes] = []
        ends: list[int] = []
        end = 0
        for patched, place in self._texts:
            text = (new if patched else old).text(place)
            texts.append(text)
            end += len(text)
            ends.append(end)
        if len(key) + end + into.tail_bytes > ROW_BYTES_MAX:
            return None
        self._ends.pack_into(header, self.rows.places_at, *ends)
        return checksum.seal(key, b"".join((*texts, header)), seed, into.mark)
