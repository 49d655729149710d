"""Lists, structs and maps as bytes, column by column: a value is one variable-width text of its row.

Equal values have equal bytes, whatever the layout of their arrays. A value is written level by level, from the outside to
the inside; the value itself is the first level, with one element. A level is

    nullable             one byte: 0, or 1 and then a bitmap with one bit per element (1: null). A null writes nothing else
    fixed width          the slots of storage/rows/fixed.py
    string, binary       a u32 length per element, then the bytes
    list                 a u32 length per element, then a level with the items of all lists
    map                  a u32 length per element, then a level with the keys, and one with the values
    struct               a level for each field

with the numbers in little endian. The level around a level gives the number of its elements, so nothing is written twice.
Levels of all rows are written and read together: there is no Python code per row. Stored values have this form, so it
never changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ebla.storage.columns import Column
from ebla.storage.rows import ragged
from ebla.storage.rows.fixed import Fixed, nulls
from ebla.storage.rows.ragged import Array

LENGTH = np.dtype("<u4")
ELEMENTS_PER_BYTE_MAX = 8  # a null takes one bit


def to_binary(column: Column, array: pa.Array) -> pa.BinaryArray:
    """The array of any variable-width column as binary without nulls, which become empty values."""
    if not column.nested:
        return ragged.binary(array)
    null = nulls(array) if array.null_count else None
    valid = array if null is None else array.drop_null()
    made = ragged.join(_values(column, valid, np.ones(len(valid), np.int64)))
    if null is None:
        return made
    sizes = np.zeros(len(array), np.int64)
    sizes[~null] = ragged.lengths(made)
    return ragged.from_offsets(_borders(sizes).astype(np.int32), ragged.content(made))


def from_binary(column: Column, values: pa.BinaryArray, null: Array | None) -> pa.Array:
    """The inverse of `to_binary`; `null` marks the nulls (None: there are none). Raises ValueError for bytes that are not
    nested values of this type."""
    if column.nested:
        valid = values if null is None else values.filter(pa.array(~null))
        reader = _Reader(valid)
        made = reader.values(column, np.ones(len(valid), np.int64))
        reader.finish()
        return made if null is None else spread(made, null)
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(column.arrow_type(), len(values), [validity, *values.buffers()[1:]])


def spread(valid: pa.Array, null: Array) -> pa.Array:
    """The array with the values of `valid`, which has no nulls, in order, where `null` is false.

    Under a null struct are blank values: Arrow refuses to cast a null in a field that takes none, or to write it as parquet.
    """
    assert not valid.null_count
    places = np.cumsum(~null) - 1
    if not pa.types.is_struct(valid.type):
        return valid.take(pa.array(places, pa.int64(), mask=null))
    places[null] = len(valid)
    whole = pa.concat_arrays([valid, _blank(valid.type)]).take(pa.array(places, pa.int64()))
    parts = [whole.field(place) for place in range(valid.type.num_fields)]
    return pa.StructArray.from_arrays(parts, fields=list(valid.type), mask=pa.array(null))


def absent(kind: pa.DataType, count: int) -> pa.Array:
    """An array of nulls, as `spread` makes them."""
    if not pa.types.is_struct(kind):
        return pa.nulls(count, kind)
    return spread(pa.array([], kind), np.ones(count, np.bool_))


def _blank(kind: pa.DataType) -> pa.Array:
    """One value: a struct with null in each field that takes it; else empty, or zero."""
    if pa.types.is_struct(kind):
        parts = [absent(field.type, 1) if field.nullable else _blank(field.type) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return pa.array([[]], kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.array([""], pa.string()).view(kind)
    width = max(1, kind.bit_width // 8)
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(width))])


def items(array: pa.Array) -> tuple[Array, list[pa.Array]]:
    """Of lists or maps (of any of Arrow's layouts): the length of each, 0 for nulls, and the arrays of all items together,
    or of all keys and all values."""
    if not pa.types.is_map(array.type):
        return np.diff(_list_offsets(array)), [array.flatten()]
    offsets = (
        np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4) if len(array) else [0]
    )
    lengths = np.diff(offsets).astype(np.int64)
    whole = slice(int(offsets[0]), int(offsets[-1]))
    parts = [array.keys[whole], array.items[whole]]
    if array.null_count:
        null = nulls(array)
        if lengths[null].any():  # entries under a null
            kept = pa.array(np.repeat(~null, lengths))
            parts = [part.filter(kept) for part in parts]
            lengths[null] = 0
    return lengths, parts


def _list_offsets(array: pa.Array) -> Array:
    lengths = pa.compute.fill_null(pa.compute.list_value_length(array), 0)
    return _borders(lengths.to_numpy(zero_copy_only=False).astype(np.int64))


def _borders(counts: Array) -> Array:
    """The n + 1 places at which n runs of these lengths begin and end."""
    places = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=places[1:])
    return places


def _sums(values: Array, counts: Array) -> Array:
    """The sum of each run of `counts` values."""
    sums, borders = _borders(values), _borders(counts)
    totals: Array = sums[borders[1:]] - sums[borders[:-1]]
    return totals


# -- to bytes ------------------------------------------------------------------------------------------------
# `counts` are the elements of each row in a level; the array has the elements of all rows, one row after the other.


def _level(column: Column, array: pa.Array, counts: Array) -> list[pa.BinaryArray]:
    if not column.nullable:
        return _values(column, array, counts)
    if not array.null_count:
        return [_runs(np.zeros(len(counts), np.uint8), np.ones_like(counts)), *_values(column, array, counts)]
    null = nulls(array)
    lacking = _sums(null, counts)
    flagged = lacking > 0
    sizes = 1 + np.where(flagged, (counts + 7) // 8, 0)
    starts = _borders(sizes)
    bitmaps = np.zeros(int(starts[-1]), np.uint8)
    bitmaps[starts[:-1]] = flagged
    at = _within(counts)[null]
    np.bitwise_or.at(
        bitmaps, np.repeat(starts[:-1] + 1, counts)[null] + at // 8, (1 << (at % 8)).astype(np.uint8)
    )
    return [_runs(bitmaps, sizes), *_values(column, array.drop_null(), counts - lacking)]


def _values(column: Column, array: pa.Array, counts: Array) -> list[pa.BinaryArray]:
    """The pieces of each row, of an array without nulls."""
    if column.type == "struct":
        parts = zip(column.fields, array.flatten(), strict=True)
        return [piece for field, each in parts for piece in _level(field, each, counts)]
    if column.nested:
        lengths, each = items(array)
        within = _sums(lengths, counts)
        inner = [_level(field, part, within) for field, part in zip(column.fields, each, strict=True)]
        return [_runs(lengths.astype(LENGTH), counts), *(piece for pieces in inner for piece in pieces)]
    if column.variable:
        text = ragged.binary(array)
        lengths = ragged.lengths(text).astype(np.int64)
        return [
            _runs(lengths.astype(LENGTH), counts),
            _runs(ragged.content(text), _sums(lengths, counts)),
        ]
    return [_runs(Fixed(column).values(array), counts)]


def _runs(flat: Array, counts: Array) -> pa.BinaryArray:
    """One value per row: the next `counts` items of `flat`."""
    ragged.check_total(flat.nbytes)
    borders = _borders(counts) * flat.itemsize
    return ragged.from_offsets(borders.astype(np.int32), np.ascontiguousarray(flat).view(np.uint8))


def _within(counts: Array) -> Array:
    """The place of each element in its row."""
    borders = _borders(counts)
    places: Array = np.arange(borders[-1]) - np.repeat(borders[:-1], counts)
    return places


# -- from bytes ----------------------------------------------------------------------------------------------


class _Reader:
    """Reads the levels of all rows, from the start of each to its end. Counts are checked against the bytes that are left
    before memory is taken for them."""

    def __init__(self, rows: pa.BinaryArray) -> None:
        offsets = ragged.offsets(rows).astype(np.int64)
        self.data = rows.buffers()[2] if len(rows) else None
        self.octets = np.frombuffer(self.data, np.uint8) if self.data else np.zeros(0, np.uint8)
        self.place, self.stop = offsets[:-1], offsets[1:]

    def finish(self) -> None:
        if (self.place != self.stop).any():
            raise ValueError("a nested value has bytes after its end")

    def _take(self, sizes: Array) -> Array:
        """The starts of the next `sizes` bytes of each row."""
        start, self.place = self.place, self.place + sizes
        if (self.place > self.stop).any():
            raise ValueError("a nested value ends too early")
        return start

    def _bytes(self, sizes: Array) -> Array:
        starts = self._take(sizes)
        if not len(starts) or self.data is None:
            return np.zeros(0, np.uint8)
        return ragged.content(ragged.cut(self.data, starts, starts + sizes))

    def _lengths(self, counts: Array) -> Array:
        return self._bytes(counts * LENGTH.itemsize).view(LENGTH).astype(np.int64)

    def level(self, column: Column, counts: Array) -> pa.Array:
        if (counts > ELEMENTS_PER_BYTE_MAX * (self.stop - self.place)).any():
            raise ValueError("a nested value has more elements than bytes")
        if not column.nullable:
            return self.values(column, counts)
        flags = self._bytes(np.ones(len(counts), np.int64))
        if not flags.any():
            return self.values(column, counts)
        starts = self._take(np.where(flags, (counts + 7) // 8, 0))
        within = _within(counts)
        places = np.repeat(starts, counts) + within // 8
        null = np.zeros(len(within), np.bool_)
        has = np.repeat(flags, counts).astype(np.bool_)
        null[has] = self.octets[places[has]] >> (within[has] % 8).astype(np.uint8) & 1
        lacking = _sums(null, counts)
        if ((lacking > 0) != flags).any() or flags.max() > 1:
            raise ValueError("a nested value has a bitmap without nulls")
        return spread(self.values(column, counts - lacking), null)

    def values(self, column: Column, counts: Array) -> pa.Array:
        kind = column.arrow_type()
        if column.type == "struct":
            parts = [self.level(field, counts) for field in column.fields]
            return pa.StructArray.from_arrays(parts, fields=list(kind))
        if column.nested:
            lengths = self._lengths(counts)
            parts = [self.level(field, _sums(lengths, counts)) for field in column.fields]
            return assembled(kind, lengths, parts)
        if column.variable:
            lengths = self._lengths(counts)
            content = self._bytes(_sums(lengths, counts))
            text = ragged.from_offsets(_borders(lengths).astype(np.int32), content)
            return pa.Array.from_buffers(kind, len(lengths), text.buffers())
        fixed = Fixed(column)
        return fixed.array(self._bytes(counts * fixed.width).view(fixed.slot), None)


def assembled(
    kind: pa.DataType, lengths: Array, parts: Sequence[pa.Array], null: Array | None = None
) -> pa.Array:
    """Lists or maps of these lengths, from the arrays of `items`."""
    borders = _borders(lengths)
    ragged.check_total(int(borders[-1]))
    offsets = pa.array(borders, pa.int32())
    mask = None if null is None else pa.array(null)
    made = pa.MapArray if pa.types.is_map(kind) else pa.ListArray
    return made.from_arrays(offsets, *parts, type=kind, mask=mask)
