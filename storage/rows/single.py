"""One row at a time, in plain Python: the same bytes as storage/rows/rows.py makes of batches, without Arrow's start-up
cost (tens of microseconds a call).

Everything that depends only on the schema is computed once: a row then costs one loop over its columns, one struct call
for the header and one checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise
from typing import Any, NamedTuple, NoReturn

import msgspec

from ebla.storage.errors import Corruption, InvalidArgument, did_you_mean, invalid_column
from ebla.storage.rows import checksum, convert, nested
from ebla.storage.rows.header import Header
from ebla.storage.rows.keys import KeyCodec, check_key
from ebla.storage.rows.scalars import Convert, Scalar, scalar
from ebla.storage.schema import ROW_BYTES_MAX, Column

PLANS_MAX = 64  # cached sets of columns; when full, the cache is cleared


class Step(NamedTuple):
    """The reading of one value column from the unpacked header: field `place`, and for texts the field before it (0: the
    first text, which begins at 0)."""

    name: str
    bit: int
    text: bool
    place: int
    before: int
    from_slot: Convert


class Plan(NamedTuple):
    """The steps of decode_row for one choice of columns: of the key (by place) and of the value."""

    names: tuple[str, ...]
    keys: list[tuple[int, str]]
    steps: list[Step]


class SingleRows:
    """Encodes and decodes rows of `columns`, in that order, one by one."""

    def __init__(self, columns: Sequence[Column], keys: KeyCodec, header: Header) -> None:
        self.columns, self.keys, self.header = list(columns), keys, header
        self.scalars = {
            column.name: nested_scalar(column) if column.nested else scalar(column)
            for column in header.columns
        }
        self.names = tuple(column.name for column in columns)
        self.known = frozenset(self.names)
        self.required = sum(1 << header.bit[c.name] for c in header.columns if not c.nullable)
        self.slots = [
            (name, 1 << header.bit[name], _into_slot(each), b"" if each.format == "16s" else 0)
            for name, each in ((name, self.scalars[name]) for name in header.fixed)
        ]
        self.texts = [(name, 1 << header.bit[name], self.scalars[name].to_raw) for name in header.variable]
        self.closed = [place for place, closed in enumerate(keys.closed) if closed]
        self.defaulted = [column for column in header.columns if column.default is not None]
        self.everything = self._plan(self.names)
        self.plans: dict[tuple[str, ...], Plan] = {}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        return {column.name: convert.defaults(column, 1)[0].as_py() for column in self.defaulted}

    def encode_key(self, row: Mapping[str, Any]) -> bytes:
        try:
            key = self.keys.encode_row(row)
        except InvalidArgument:
            self._refuse_misspelt(row)
            raise
        check_key(key, self.keys.columns, row)
        return key

    def _refuse_misspelt(self, row: Any) -> None:
        """Refuse an unknown column with a name like a known one: the key lacks a value because of it."""
        for name in row if isinstance(row, Mapping) else ():
            if name not in self.known and did_you_mean(str(name), self.known):
                refuse_absent(name, self.names)

    def encode_row(self, row: Mapping[str, Any], seed: int) -> tuple[bytes, bytes]:
        """Key and value of one row. Missing nullable columns are null; invalid rows are refused as in `RowCodec.arrow`."""
        if not self.known.issuperset(row):
            self._refuse_unknown(row)
        if self.defaulted:
            row = {**self.defaults, **row}
        parts = self.keys.encode_parts(row)
        key = b"".join(parts)
        check_key(key, self.keys.columns, row)
        get, null_bits, end = row.get, 0, 0
        pieces: list[bytes] = []
        fields: list[Any] = [None]
        for name, bit, into_slot, zero in self.slots:
            given = get(name)
            if given is None:
                null_bits |= bit
                fields.append(zero)
            else:
                fields.append(into_slot(given))
        for name, bit, to_raw in self.texts:
            given = get(name)
            if given is None:
                null_bits |= bit
            else:
                piece = to_raw(given)
                pieces.append(piece)
                end += len(piece)
            fields.append(end)
        if null_bits & self.required:
            self._refuse_missing(null_bits & self.required)
        for place in self.closed:
            fields.append(len(parts[place]))
        if self.header.tag:
            fields.append(self.header.tag)
        fields[0] = null_bits.to_bytes(self.header.bitmap_bytes, "little")
        row_bytes = len(key) + end + self.header.tail_bytes
        if row_bytes > ROW_BYTES_MAX:
            ends = fields[self.header.first_end : self.header.first_closed]
            sizes = (stop - start for start, stop in pairwise((0, *ends)))
            refuse_row(row_bytes, dict(zip(self.header.variable, sizes, strict=True)), None)
        try:
            pieces.append(self.header.packed.pack(*fields))
        except (struct.error, OverflowError) as error:
            self._explain(row)
            raise AssertionError(f"row {row!r} was refused without a reason") from error
        return key, checksum.seal(key, b"".join(pieces), seed, self.header.mark)

    def decode_row(
        self, key: bytes, value: bytes, columns: Sequence[str] | None, path: str | None
    ) -> dict[str, Any]:
        plan = self.everything if columns is None else self._chosen(tuple(columns))
        found: dict[str, Any] = dict.fromkeys(plan.names)
        header = self.header
        try:
            fields = header.packed.unpack_from(value, len(value) - header.tail_bytes)
            if len(value) - header.tail_bytes != (fields[header.last_end] if header.last_end else 0):
                raise ValueError("its parts do not add up")
            null_bits = int.from_bytes(fields[0], "little")
            if plan.keys:
                values = self.keys.decode_row(key, fields[header.first_closed : header.first_tag])
                for place, name in plan.keys:
                    found[name] = values[place]
            for name, bit, text, place, before, from_slot in plan.steps:
                if null_bits & bit:
                    continue
                if text:
                    found[name] = from_slot(value[fields[before] if before else 0 : fields[place]])
                else:
                    found[name] = from_slot(fields[place])
        except InvalidArgument:
            raise
        except (struct.error, ValueError, IndexError) as error:
            where = f" of {path}" if path else ""
            raise Corruption(
                f"the row with key {key.hex()}{where} is not a row of this schema: {error}", path=path
            ) from error
        return found

    def _chosen(self, names: tuple[str, ...]) -> Plan:
        plan = self.plans.get(names)
        if plan is None:
            if len(self.plans) >= PLANS_MAX:
                self.plans.clear()
            plan = self.plans[names] = self._plan(names)
        return plan

    def _plan(self, names: tuple[str, ...]) -> Plan:
        header = self.header
        key_places = {column.name: place for place, column in enumerate(self.keys.columns)}
        keys, steps = [], []
        for name in names:
            if name in key_places:
                keys.append((key_places[name], name))
                continue
            if name not in header.bit:
                refuse_absent(name, self.names)
            text = name in header.variable
            place = header.field(name)
            before = place - 1 if text and place > header.first_end else 0
            each = self.scalars[name]
            steps.append(Step(name, 1 << header.bit[name], text, place, before, _from_slot(each)))
        return Plan(names, keys, steps)

    def _refuse_unknown(self, row: Mapping[str, Any]) -> None:
        name = next(name for name in row if name not in self.known)
        refuse_absent(name, self.names)

    def _refuse_missing(self, missing: int) -> None:
        name = next(
            column.name for column in self.header.columns if missing >> self.header.bit[column.name] & 1
        )
        raise invalid_column(name, "may not be null, but the row has no value for it")

    def _explain(self, row: Mapping[str, Any]) -> None:
        for column in self.header.columns:
            if row.get(column.name) is not None:
                convert.raw(column, row[column.name])


class Level:
    """One level of a nested column (storage/rows/nested.py has the bytes), for one row in plain Python. Values of exactly the
    expected types are handled; others raise one of MISFITS."""

    def __init__(self, column: Column) -> None:
        self.type, self.nullable = column.type, column.nullable
        self.fields = [Level(field) for field in column.fields]
        self.names = dict.fromkeys(field.name for field in column.fields)
        self.scalar = None if column.nested else scalar(column)

    def write(self, values: Sequence[Any], pieces: list[bytes]) -> None:
        if self.nullable:
            valid = [value for value in values if value is not None]
            if len(valid) == len(values):
                pieces.append(b"\0")
            else:
                bitmap = bytearray((len(values) + 7) // 8)
                for place, value in enumerate(values):
                    if value is None:
                        bitmap[place >> 3] |= 1 << (place & 7)
                pieces += (b"\1", bytes(bitmap))
                values = valid
        if self.scalar is not None:
            self._write_plain(self.scalar, values, pieces)
        elif self.type == "struct":
            if not all(type(value) is dict and value.keys() <= self.names.keys() for value in values):
                raise TypeError
            for name, field in zip(self.names, self.fields, strict=True):
                field.write([value.get(name) for value in values], pieces)
        else:
            self._write_runs(values, pieces)

    def _write_plain(self, each: Scalar, values: Sequence[Any], pieces: list[bytes]) -> None:
        raws = list(map(each.to_raw, values))
        if not each.format:
            pieces += (struct.pack(f"<{len(raws)}I", *map(len, raws)), *raws)
        elif each.to_slot is not None:
            pieces += map(each.to_slot, raws)
        else:
            pieces.append(struct.pack(f"<{len(raws)}{each.format}", *raws))

    def _write_runs(self, values: Sequence[Any], pieces: list[bytes]) -> None:
        if self.type == "map":
            values = [tuple(value.items()) if type(value) is dict else value for value in values]
        if not {type(value) for value in values} <= {list, tuple}:
            raise TypeError
        pieces.append(struct.pack(f"<{len(values)}I", *map(len, values)))
        flat = list(chain.from_iterable(values))
        if self.type == "list":
            self.fields[0].write(flat, pieces)
            return
        if not {(type(pair), len(pair)) for pair in flat} <= {(tuple, 2), (list, 2)}:
            raise TypeError
        for place, field in enumerate(self.fields):
            field.write([pair[place] for pair in flat], pieces)

    def read(self, data: bytes, place: int, count: int) -> tuple[list[Any], int]:
        """`count` values from `place` on, and the place after them."""
        if count > nested.ELEMENTS_PER_BYTE_MAX * (len(data) - place):
            raise ValueError("a nested value has more elements than bytes")
        if not self.nullable:
            return self._read(data, place, count)
        flag, place = data[place], place + 1
        if not flag:
            return self._read(data, place, count)
        bitmap = data[place : place + (count + 7) // 8]
        null = [bitmap[at >> 3] >> (at & 7) & 1 for at in range(count)]
        if flag > 1 or not any(null):
            raise ValueError("a nested value has a bitmap without nulls")
        valid, place = self._read(data, place + len(bitmap), count - sum(null))
        following = iter(valid)
        return [None if absent else next(following) for absent in null], place

    def _read(self, data: bytes, place: int, count: int) -> tuple[list[Any], int]:
        each = self.scalar
        if each is not None and each.format:
            if each.from_slot is not None:
                stop = place + 16 * count
                slots = [each.from_slot(data[at : at + 16]) for at in range(place, stop, 16)]
                if stop > len(data):
                    raise ValueError("a nested value ends too early")
                return list(map(each.from_raw, slots)), stop
            form = f"<{count}{each.format}"
            return list(map(each.from_raw, struct.unpack_from(form, data, place))), place + struct.calcsize(
                form
            )
        if self.type == "struct":
            parts = []
            for field in self.fields:
                values, place = field.read(data, place, count)
                parts.append(values)
            return [dict(zip(self.names, row, strict=True)) for row in zip(*parts, strict=True)], place
        lengths = struct.unpack_from(f"<{count}I", data, place)
        place += 4 * count
        if each is not None:
            ends = list(accumulate(lengths, initial=place))
            if ends[-1] > len(data):
                raise ValueError("a nested value ends too early")
            return [each.from_raw(data[start:stop]) for start, stop in pairwise(ends)], ends[-1]
        total, parts = sum(lengths), []
        for field in self.fields:
            values, place = field.read(data, place, total)
            parts.append(values)
        items = iter(parts[0] if self.type == "list" else zip(*parts, strict=True))
        return [list(islice(items, length)) for length in lengths], place


# Of a value that goes through Arrow instead, which takes more forms of values and explains refusals.
MISFITS = (struct.error, TypeError, ValueError, OverflowError, AttributeError)


def nested_scalar(column: Column) -> Scalar:
    """The conversions of one value of a nested column: a fraction of the time that Arrow takes for one value."""
    by_arrow = scalar(column)
    level = Level(msgspec.structs.replace(column, nullable=False))

    def to_raw(value: Any) -> Any:
        pieces: list[bytes] = []
        try:
            level.write([value], pieces)
        except MISFITS:
            return by_arrow.to_raw(value)
        return b"".join(pieces)

    def from_raw(raw: bytes) -> Any:
        try:
            (value,), place = level.read(raw, 0, 1)
        except InvalidArgument:  # a value that Python cannot express
            return by_arrow.from_raw(raw)
        if place != len(raw):
            raise ValueError("a nested value has bytes after its end")
        return value

    return Scalar(to_raw, from_raw, "")


def refuse_absent(name: str, names: Sequence[str]) -> None:
    hint = did_you_mean(str(name), names) or f"; the columns are {', '.join(names)}"
    raise InvalidArgument(f"there is no column {name!r} here{hint}", column=str(name))


def refuse_row(row_bytes: int, variable: Mapping[str, int], row: int | None) -> NoReturn:
    """Refuse a row that is too large; `variable`: the sizes of its texts and nested values."""
    where = "the row" if row is None else f"row {row}"
    longest = max(variable, key=lambda name: variable[name])
    raise InvalidArgument(
        f"{where} takes {row_bytes} bytes, over the limit of {ROW_BYTES_MAX}, and {variable[longest]} of them are in column "
        f"{longest!r}; keep large values in files or in Ray's object store, and their names in the table",
        column=longest,
        row=row,
    )


def _into_slot(each: Scalar) -> Callable[[Any], Any]:
    to_raw, to_slot = each.to_raw, each.to_slot
    return to_raw if to_slot is None else (lambda given: to_slot(to_raw(given)))


def _from_slot(each: Scalar) -> Callable[[Any], Any]:
    from_raw, from_slot = each.from_raw, each.from_slot
    return from_raw if from_slot is None else (lambda slot: from_raw(from_slot(slot)))
