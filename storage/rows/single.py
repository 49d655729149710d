"""One row at a time, in plain Python: the same bytes as storage/rows/rows.py makes of batches, without Arrow's start-up
cost (tens of microseconds a call).

Everything that depends only on the schema is computed once: a row then costs one loop over its columns, one struct call
for the header and one checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ebla.storage.errors import Corruption, InvalidArgument
from ebla.storage.rows import checksum, convert
from ebla.storage.rows.header import Header
from ebla.storage.rows.keys import KeyCodec, check_key
from ebla.storage.rows.scalars import Convert, Scalar
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
        self.known = frozenset(column.name for column in columns)
        self.required = sum(1 << header.bit[c.name] for c in header.columns if not c.nullable)
        self.slots = [
            (name, 1 << header.bit[name], _into_slot(each), b"" if each.format == "16s" else 0)
            for name, each in ((name, header.scalars[name]) for name in header.fixed)
        ]
        self.texts = [(name, 1 << header.bit[name], header.scalars[name].to_raw) for name in header.variable]
        self.closed = [place for place, closed in enumerate(keys.closed) if closed]
        self.defaulted = [column for column in header.columns if column.default is not None]
        self.everything = self._plan(tuple(column.name for column in columns))
        self.plans: dict[tuple[str, ...], Plan] = {}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        return {column.name: convert.defaults(column, 1)[0].as_py() for column in self.defaulted}

    def encode_key(self, row: Mapping[str, Any]) -> bytes:
        key = self.keys.encode_row(row)
        check_key(key, self.keys.columns, row)
        return key

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
            refuse_row(row_bytes, None)
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
                refuse_absent(name, self.known)
            text = name in header.variable
            place = header.field(name)
            before = place - 1 if text and place > header.first_end else 0
            each = header.scalars[name]
            steps.append(Step(name, 1 << header.bit[name], text, place, before, _from_slot(each)))
        return Plan(names, keys, steps)

    def _refuse_unknown(self, row: Mapping[str, Any]) -> None:
        name = next(name for name in row if name not in self.known)
        refuse_absent(name, self.known)

    def _refuse_missing(self, missing: int) -> None:
        name = next(
            column.name for column in self.header.columns if missing >> self.header.bit[column.name] & 1
        )
        raise InvalidArgument(
            f"column {name!r} may not be null, but the row has no value for it", column=name
        )

    def _explain(self, row: Mapping[str, Any]) -> None:
        for column in self.header.columns:
            if row.get(column.name) is not None:
                convert.raw(column, row[column.name])


def refuse_absent(name: str, known: frozenset[str]) -> None:
    raise InvalidArgument(
        f"there is no column {name!r} here; the columns are {', '.join(sorted(known))}", column=str(name)
    )


def refuse_row(row_bytes: int, row: int | None) -> None:
    where = "the row" if row is None else f"row {row}"
    raise InvalidArgument(
        f"{where} takes {row_bytes} bytes, over the limit of {ROW_BYTES_MAX}; keep large values in files or in "
        "Ray's object store, and their names in the table",
        row=row,
    )


def _into_slot(each: Scalar) -> Callable[[Any], Any]:
    to_raw, to_slot = each.to_raw, each.to_slot
    return to_raw if to_slot is None else (lambda given: to_slot(to_raw(given)))


def _from_slot(each: Scalar) -> Callable[[Any], Any]:
    from_raw, from_slot = each.from_raw, each.from_slot
    return from_raw if from_slot is None else (lambda slot: from_raw(from_slot(slot)))
