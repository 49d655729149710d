"""Primary keys as bytes whose order is the key's order, column by column, and back.

    fixed-width columns      mapped by storage/rows/fixed.py: big endian, order-preserving
    string, binary           unchanged (UTF-8) at the end of the key; elsewhere closed: 0x00 becomes 0x00 0x01, and
                             0x00 0x00 ends the value, so that no value's bytes are a prefix of another's

A KeyCodec with `open_end=False` closes its last column too: this form is concatenated for hashing and compared with
range splits. Keys are stored and hashed, so the encoding never changes.

Batches are encoded and decoded with numpy and Arrow; single rows in plain Python, to the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.errors import InvalidArgument
from ebla.storage.rows import convert, ragged
from ebla.storage.rows.fixed import Fixed
from ebla.storage.rows.python_values import shown
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.scalars import scalar
from ebla.storage.schema import KEY_BYTES_MAX, Column

ZERO, ESCAPED, END = b"\x00", b"\x00\x01", b"\x00\x00"

Part = Callable[[Any], bytes]


class KeyCodec:
    """Encodes and decodes the key columns `columns`, in order."""

    def __init__(self, columns: Sequence[Column], *, open_end: bool = True) -> None:
        assert columns
        self.columns = list(columns)
        self.fixed = [None if column.variable else Fixed(column) for column in columns]
        self.closed = [column.variable for column in columns]
        if open_end:
            self.closed[-1] = False
        self.closed_names = [c.name for c, closed in zip(columns, self.closed, strict=True) if closed]
        self.fixed_bytes = sum(fixed.width for fixed in self.fixed if fixed)
        self.ends_open = open_end and columns[-1].variable
        self._parts = [part(c, closed) for c, closed in zip(columns, self.closed, strict=True)]
        scalars = [scalar(column) for column in columns]
        self._encoders = [
            (column.name, each.to_raw, made)
            for column, each, made in zip(columns, scalars, self._parts, strict=True)
        ]
        self._readers = [
            (fixed.width if fixed else 0, closed, _reader(column), each.from_raw)
            for column, fixed, closed, each in zip(columns, self.fixed, self.closed, scalars, strict=True)
        ]

    # -- batches ---------------------------------------------------------------------------------------------

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The keys of `rows`, which have at least the key columns, in the columns' types."""
        arrays = [rows.column(column.name) for column in self.columns]
        for column, array in zip(self.columns, arrays, strict=True):
            assert array.type == column.arrow_type(), (column.name, array.type)
            convert.refuse_nulls(column, array)
        parts: list[pa.BinaryArray] = []
        run: list[Array] = []
        for fixed, closed, array in zip(self.fixed, self.closed, arrays, strict=True):
            if fixed:
                run.append(fixed.to_key(fixed.values(array)).astype(fixed.part, copy=False))
                continue
            if run:
                parts.append(_packed(run))
                run = []
            parts.append(_closed(array) if closed else ragged.binary(array))
        if run:
            parts.append(_packed(run))
        return ragged.join(parts)

    def closed_lengths(self, rows: pa.RecordBatch) -> list[Array]:
        """For each closed column the encoded length in each row's key, which the header keeps to split keys."""
        found = []
        for name in self.closed_names:
            array = rows.column(name)
            sizes = ragged.lengths(array) + len(END)
            if ragged.holds_zero(array):
                sizes = sizes + pc.count_substring(ragged.binary(array), ZERO).to_numpy()
            found.append(sizes)
        return found

    def decode(
        self, data: Any, starts: Array, stops: Array, sizes: Sequence[Array], wanted: Sequence[str]
    ) -> dict[str, pa.Array]:
        """The `wanted` columns of the keys at starts[i]..stops[i] of `data`; `sizes` as from closed_lengths. Every key must
        be long enough for its fixed-width columns and `sizes`."""
        found: dict[str, pa.Array] = {}
        octets = np.frombuffer(data, np.uint8)
        place, closed_seen = starts, 0
        for column, fixed, closed in zip(self.columns, self.fixed, self.closed, strict=True):
            if fixed:
                if column.name in wanted:
                    parts = ragged.window(octets, fixed.width)[place].view(fixed.part)
                    found[column.name] = fixed.array(fixed.from_key(parts), None)
                place = place + fixed.width
                continue
            stop = place + sizes[closed_seen] if closed else stops
            closed_seen += closed
            if column.name in wanted:
                values = ragged.cut(data, place, stop - len(END) if closed else stop)
                if closed and ragged.holds_zero(values):
                    values = pc.replace_substring(values, ESCAPED, ZERO)
                found[column.name] = values.view(column.arrow_type())
            place = stop
        return found

    def decode_fixed(self, data: Any, wanted: Sequence[str]) -> dict[str, pa.Array]:
        """The `wanted` columns of keys that have no column of variable width and lie one after the other in `data`. A step from key
        to key finds them, where `decode` gathers."""
        found: dict[str, pa.Array] = {}
        place, count = 0, len(data) // self.fixed_bytes
        for column, fixed in zip(self.columns, self.fixed, strict=True):
            assert fixed is not None, ("of fixed width", column.name)
            if column.name in wanted:
                parts: Array = np.ndarray((count,), fixed.part, data, place, (self.fixed_bytes,))
                found[column.name] = fixed.array(fixed.from_key(parts), None)
            place += fixed.width
        return found

    # -- single rows -----------------------------------------------------------------------------------------

    def encode_row(self, row: Mapping[str, Any]) -> bytes:
        return b"".join(self.encode_parts(row))

    def encode_parts(self, row: Mapping[str, Any]) -> list[bytes]:
        """The key of one row, a part per column."""
        try:
            get = row.get  # row[name] would make the value of a defaultdict or a Counter
            return [part(to_raw(get(name))) for name, to_raw, part in self._encoders]
        except InvalidArgument:
            self._refuse_nulls(row)
            raise
        except (AttributeError, LookupError, struct.error, TypeError, ValueError, OverflowError) as error:
            self._explain(row)
            raise AssertionError(f"key {row!r} was refused without a reason") from error

    def encode_raw(self, place: int, raw: Any) -> bytes:
        """The part of the column at `place`, from a raw value."""
        return self._parts[place](raw)

    def decode_row(self, key: bytes, sizes: Sequence[int]) -> list[Any]:
        """The Python values of a key; `sizes` are the encoded lengths of its closed columns."""
        found, place, closed_seen = [], 0, 0
        for width, closed, read, from_raw in self._readers:
            if width:
                stop = place + width
                raw = read(key[place:stop])
            elif closed:
                stop = place + sizes[closed_seen]
                closed_seen += 1
                raw = key[place : stop - 2]  # without END
                if ZERO in raw:
                    raw = raw.replace(ESCAPED, ZERO)
            else:
                stop, raw = len(key), key[place:]
            found.append(from_raw(raw))
            place = stop
        return found

    def _explain(self, row: Any) -> None:
        if not isinstance(row, Mapping):
            names = ", ".join(f"{column.name!r}: ..." for column in self.columns)
            raise InvalidArgument(f"a key is a dict of column to value, {{{names}}}, not {shown(row)}")
        self._refuse_nulls(row)
        for column in self.columns:
            convert.raw(column, row[column.name])

    def _refuse_nulls(self, row: Mapping[str, Any]) -> None:
        for column in self.columns:
            if row.get(column.name) is None:
                raise InvalidArgument(
                    f"key column {column.name!r} needs a value, and row 0 has none; give it one",
                    column=column.name,
                    row=0,
                ) from None


def check_keys(keys: pa.BinaryArray, columns: Sequence[Column], rows: pa.RecordBatch) -> None:
    """Refuse keys that are empty or over KEY_BYTES_MAX, with the row and its longest variable column."""
    sizes = ragged.lengths(keys)
    if not len(sizes) or (sizes.min() > 0 and sizes.max() <= KEY_BYTES_MAX):
        return
    row = int(np.argmax((sizes == 0) | (sizes > KEY_BYTES_MAX)))
    variable = {c.name: len(rows.column(c.name)[row].as_buffer()) for c in columns if c.variable}
    _refuse_size(int(sizes[row]), variable, row)


def check_key(key: bytes, columns: Sequence[Column], row: Mapping[str, Any]) -> None:
    if not 0 < len(key) <= KEY_BYTES_MAX:
        _refuse_size(len(key), {c.name: len(row[c.name]) for c in columns if c.variable}, None)


def successor(prefix: bytes) -> bytes | None:
    """The least bytes above all bytes that begin with `prefix`; None if there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def part(column: Column, closed: bool) -> Part:
    """The encoding of a raw value of the column in a key."""
    if column.variable:
        return (lambda raw: raw.replace(ZERO, ESCAPED) + END) if closed else (lambda raw: raw)
    kind, width = column.type, Fixed(column).width
    if kind == "decimal":
        return lambda raw: (raw + (1 << 127)).to_bytes(16, "big")
    if kind == "bool":
        return lambda raw: b"\x01" if raw else b"\x00"
    if kind in ("float", "double"):
        return _float_part(width)
    pack = struct.Struct({1: ">B", 2: ">H", 4: ">I", 8: ">Q"}[width]).pack
    if column.unsigned:
        return pack
    bias = 1 << (8 * width - 1)
    return lambda raw: pack(raw + bias)


def _float_part(width: int) -> Part:
    packed = struct.Struct(">f" if width == 4 else ">d")
    sign = 1 << (8 * width - 1)
    everything = (sign << 1) - 1
    nan = int.from_bytes(packed.pack(float("nan")), "big") & ~sign

    def make(raw: float) -> bytes:
        bits = int.from_bytes(packed.pack(raw), "big")
        if raw != raw:
            bits = nan
        elif bits == sign:  # -0.0
            bits = 0
        return (bits ^ everything if bits & sign else bits | sign).to_bytes(width, "big")

    return make


def _reader(column: Column) -> Callable[[bytes], Any]:
    """The inverse of `part` for a fixed-width column."""
    if column.variable:
        return bytes
    kind, width = column.type, Fixed(column).width
    bias = 1 << (8 * width - 1)
    if kind == "bool":
        return lambda data: data[0]
    if column.unsigned:
        return lambda data: int.from_bytes(data, "big")
    if kind not in ("float", "double"):
        return lambda data: int.from_bytes(data, "big") - bias
    unpack = struct.Struct(">f" if width == 4 else ">d").unpack
    everything = (bias << 1) - 1

    def read(data: bytes) -> Any:
        bits = int.from_bytes(data, "big")
        return unpack((bits ^ bias if bits & bias else bits ^ everything).to_bytes(width, "big"))[0]

    return read


def _packed(run: list[Array]) -> pa.BinaryArray:
    """Adjacent fixed-width parts as one value per row."""
    if len(run) == 1:
        return ragged.constant(run[0])
    packed = np.empty(len(run[0]), [(f"p{place}", each.dtype) for place, each in enumerate(run)])
    for place, each in enumerate(run):
        packed[f"p{place}"] = each
    return ragged.constant(packed)


def _closed(array: pa.Array) -> pa.BinaryArray:
    values = ragged.binary(array)
    if ragged.holds_zero(values):
        values = pc.replace_substring(values, ZERO, ESCAPED)
    return pc.binary_join_element_wise(values, pa.scalar(END, pa.binary()), pa.scalar(b"", pa.binary()))


def _refuse_size(key_bytes: int, variable: dict[str, int], row: int | None) -> None:
    longest = max(variable, key=lambda name: variable[name]) if variable else None
    where = f"row {row}: " if row is not None else ""
    if key_bytes == 0:
        message = f"{where}the key is empty; its only column {longest!r} needs at least one byte"
    else:
        message = (
            f"{where}the key takes {key_bytes} bytes, over the limit of {KEY_BYTES_MAX}; "
            f"shorten column {longest!r} or move data out of the key"
        )
    raise InvalidArgument(message, column=longest, row=row)
