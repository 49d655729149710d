"""Fixed-width types, column by column: as Arrow's buffers, as slots of a record's header, and as parts of a key.

A slot is little endian and as wide as the type (bool one byte, decimal sixteen). A key part is big endian and mapped
so that byte order is value order:

    integers, dates, times        the sign bit is flipped
    unsigned integers             unchanged
    decimals                      the unscaled value, 16 bytes, the sign bit flipped
    bool                          0 or 1
    float, double                 IEEE total order, with one zero (-0.0 is stored as 0.0) and one NaN, which sorts last
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ebla.storage.schema import Column

Array = npt.NDArray[Any]

_FORMATS = {
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "float": "f4",
    "double": "f8",
    "bool": "u1",
    "date": "i4",
    "timestamp": "i8",
    "duration": "i8",
    "decimal": "V16",
}


def width_of(column: Column) -> str:
    """The NumPy format of a slot, without the byte order."""
    if column.type == "time":
        return "i4" if column.unit in ("s", "ms") else "i8"
    return _FORMATS[column.type]


class Fixed:
    """The representations of one fixed-width column."""

    def __init__(self, column: Column) -> None:
        self.type = column.arrow_type()
        self.kind = column.type
        self.unsigned = column.unsigned
        self.slot = np.dtype("<" + width_of(column))
        self.width = self.slot.itemsize
        self.part = np.dtype("V16") if self.kind == "decimal" else np.dtype(f">u{self.width}")

    def values(self, array: pa.Array) -> Array:
        """The slots of an array, nulls zeroed. A view of Arrow's buffer if possible."""
        count, offset = len(array), array.offset
        if count == 0:
            return np.zeros(0, self.slot)
        data = array.buffers()[1]
        if self.kind == "bool":
            values: Array = _bits(data, offset, count)
        else:
            values = np.frombuffer(data, self.slot, count, offset * self.width)
        if array.null_count:
            values = values.copy()
            values[nulls(array)] = np.zeros((), self.slot)
        return values

    def array(self, values: Array, null: Array | None) -> pa.Array:
        """The inverse of `values`; `null` marks the nulls (None: there are none)."""
        validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
        if self.kind == "bool":
            data = np.packbits(values, bitorder="little")
        else:
            data = np.ascontiguousarray(values)
        return pa.Array.from_buffers(self.type, len(values), [validity, pa.py_buffer(data.view(np.uint8))])

    def to_key(self, values: Array) -> Array:
        if self.kind == "bool" or self.unsigned:
            return values
        if self.kind == "decimal":
            octets = _octets(values)[:, ::-1].copy()
            octets[:, 0] ^= 0x80
            return _of_octets(octets)
        sign = _sign(self.width)
        raw: Array = values.view(sign.dtype)
        if self.kind not in ("float", "double"):
            return np.bitwise_xor(raw, sign)
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like the others
            values = values + values.dtype.type(0)
        values[np.isnan(values)] = np.nan
        raw = values.view(sign.dtype)
        return np.where(raw & sign, ~raw, raw | sign)

    def from_key(self, parts: Array) -> Array:
        if self.kind == "bool" or self.unsigned:
            return parts.astype(self.slot, copy=False)
        if self.kind == "decimal":
            octets = _octets(parts)[:, ::-1].copy()
            octets[:, 15] ^= 0x80
            return _of_octets(octets)
        sign = _sign(self.width)
        native: Array = parts.astype(sign.dtype)
        flipped: Array = np.bitwise_xor(native, sign)
        if self.kind in ("float", "double"):
            flipped = np.where(native & sign, flipped, ~native)
        return flipped.view(self.slot)


def nulls(array: pa.Array) -> Array:
    """A bool per row: whether it is null."""
    validity = array.buffers()[0]
    if validity is None or not array.null_count:
        return np.zeros(len(array), np.bool_)
    return np.equal(_bits(validity, array.offset, len(array)), 0)


def _bits(data: Any, offset: int, count: int) -> Array:
    first = offset // 8
    octets = np.frombuffer(data, np.uint8, (offset + count + 7) // 8 - first, first)
    return np.unpackbits(octets, bitorder="little")[offset - first * 8 :][:count]


def _octets(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, 16)


def _of_octets(octets: Array) -> Array:
    values: Array = octets.view("V16")[:, 0]
    return values


def _sign(width: int) -> Array:
    """The sign bit, as a number of the unsigned type of that width."""
    return np.array(1 << (8 * width - 1), f"u{width}")
