"""A batch of rows column by column, as a client sends it and every log keeps it (storage/runs/columns.py).

    u32        the number of rows, which are in the caller's order: of equal keys the last one counts
    u32        the size of each key in bytes; 0: keys have offsets
    u32 each   the place of each part; 0: there is no such part
    parts
    u32        CRC-32C of all, bound to the tablet

The layout is that of the schema version which the request names.
"""

from __future__ import annotations

import struct
from functools import cached_property

import numpy as np
import pyarrow as pa

from ebla.storage.errors import Corruption, InvalidArgument
from ebla.storage.rows import checksum, ragged
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.columns import Columns, Writer, layout_of, put_parts
from ebla.storage.runs.parts import KEYS, Frame, Kind, slots_of
from ebla.storage.runs.pieces import Piece
from ebla.storage.schema import KEY_BYTES_MAX, ROW_BYTES_MAX, Column

HEADER = struct.Struct("<II")


def encode(piece: Piece, codec: RowCodec, seed: int) -> bytes:
    """At least one row, none deleted, with all value columns of the codec."""
    writer = Writer(piece, codec)
    width, parts = writer.parts(0, len(piece))
    whole = bytearray(HEADER.size + 4 * len(parts))
    places = put_parts(whole, parts)
    HEADER.pack_into(whole, 0, len(piece), width)
    struct.pack_into(f"<{len(places)}I", whole, HEADER.size, *places)
    whole += int(checksum.crc(whole, seed)).to_bytes(checksum.CRC_BYTES, "little")
    return bytes(whole)


class Batch(Columns):
    """A batch of rows in `layout`, for a tablet whose present schema has the codec `present`. With `seed` None the checksum is not
    verified. Pieces share the memory of `data`.

    Raises Corruption, here and in its methods.
    """

    def __init__(self, data: bytes, present: RowCodec, layout: int, seed: int | None) -> None:
        self.data = data
        if seed is not None and checksum.crc(data, seed) != checksum.RESIDUE:
            raise self.damaged("a wrong checksum, or is for another tablet")
        found = layout_of(present.of_layout(layout, None))
        parts = len(found.parts)
        begin = HEADER.size + 4 * parts
        if len(data) < begin + checksum.CRC_BYTES:
            raise self.damaged("no header")
        rows, width = HEADER.unpack_from(data)
        if not rows:
            raise self.damaged("no rows")
        places = struct.unpack_from(f"<{parts}I", data, HEADER.size)
        super().__init__(found, present, rows, width, places)
        self._begin, self._buffer = begin, pa.py_buffer(data)

    @cached_property
    def frame(self) -> Frame:
        return Frame(memoryview(self.data), self.rows, slots_of(self.layout.parts, self.places, self.width))

    def damaged(self, what: str) -> Corruption:
        return Corruption(f"a batch of {len(self.data)} bytes has {what}")

    def buffer(self, number: int, size: int) -> pa.Buffer | None:
        at = self.places[number]
        return self._buffer.slice(at, size) if self._begin <= at <= len(self.data) - size else None

    def under(self, present: RowCodec) -> Batch:
        """The same rows for a later schema."""
        if present is self.present:
            return self
        return Batch(self.data, present, self.layout.codec.layout, None)

    def only(self, places: list[int]) -> Batch:
        """The rows at these places, which are not none."""
        codec = self.layout.codec
        data = encode(self.own().take(np.array(places)), codec, 0)
        return Batch(data, self.present, codec.layout, None)

    def own(self) -> Piece:
        """All columns of its layout."""
        return self.piece(list(self.layout.codec.header.bit))

    def check(self) -> None:
        """Refuse what cannot be rows of the layout: offsets beyond the data, values that are not of their type. Raises Corruption,
        and InvalidArgument for a row or a key that is too large, or a null that may not be."""
        self._check_parts()
        codec = self.layout.codec
        try:
            piece = self.own()
            for array in (piece.keys, *piece.columns.values()):
                array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise self.damaged(f"values that are not of their type: {error}") from error
        if piece.gone is not None:
            raise self.damaged("deleted rows")
        sizes = np.full(self.rows, codec.header.tail_bytes, np.int64)
        for column in codec.header.columns:
            if not column.nullable and piece.columns[column.name].null_count:
                raise InvalidArgument(f"column {column.name!r} may not be null", column=column.name)
            if column.variable:
                sizes += self._lengths(column.name)
        keys = ragged.lengths(piece.keys)
        if not keys.min() or keys.max() > KEY_BYTES_MAX:
            raise InvalidArgument(
                f"a key is 1 to {KEY_BYTES_MAX} bytes, these are {keys.min()} to {keys.max()}"
            )
        if (sizes := sizes + keys).max() > ROW_BYTES_MAX:
            raise InvalidArgument(f"a row is at most {ROW_BYTES_MAX} bytes, one of these is {sizes.max()}")
        closed = sum(
            (array.to_numpy().astype(np.int64) for array in piece.closed), np.zeros(len(keys), np.int64)
        )
        spare = keys - codec.keys.fixed_bytes - closed
        misfit = spare < 0 if codec.keys.ends_open else spare != 0
        for array in piece.closed:
            misfit |= array.to_numpy() < 2
        if misfit.any():
            raise self.damaged("keys that are not of this schema")

    def _check_parts(self) -> None:
        """Parts that do not overlap, and offsets that ascend from 0, also under nulls: Arrow relies on them before it validates
        anything, and single rows are read where they say."""
        sizes: dict[int, int] = {}
        end = self._begin
        for at, (part, place) in enumerate(zip(self.layout.parts, self.places, strict=True)):
            if not place:
                continue
            if part.kind is Kind.offsets:
                found = np.frombuffer(self._part(at, 4 * (self.rows + 1)), np.int32)
                if found[0] or (np.diff(found) < 0).any():
                    raise self.damaged("offsets that do not ascend from 0")
                sizes[at], sizes[at + 1] = 4 * len(found), int(found[-1])
            elif part.kind is Kind.bits:
                sizes[at] = (self.rows + 7) // 8
            elif part.kind is Kind.fixed:
                sizes[at] = part.width * self.rows
            elif at == KEYS and self.width:
                sizes[at] = self.width * self.rows
            if place < end:
                raise self.damaged("parts that overlap")
            end = place + sizes.get(at, 0)
        for column in self.layout.codec.header.columns:
            self._check_nulls(column)

    def _check_nulls(self, column: Column) -> None:
        held = self.layout.columns[column.name]
        if held.offsets is not None and self.places[held.valid]:
            octets = np.frombuffer(self._part(held.valid, (self.rows + 7) // 8), np.uint8)
            null = np.unpackbits(octets, bitorder="little")[: self.rows] == 0
            if self._lengths(column.name)[null].any():
                raise self.damaged(f"values of column {column.name!r} under nulls")

    def _lengths(self, name: str) -> Array:
        """Of the values of a variable-width column, as they are stored."""
        offsets = self.layout.columns[name].offsets
        assert offsets is not None
        return np.diff(np.frombuffer(self._part(offsets, 4 * (self.rows + 1)), np.int32))
