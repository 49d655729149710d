"""What the columns of a block hold: whether there are nulls, whether there are values, and their least and greatest one.

    u8   NULLS, VALUES, BOUNDS, added up
    u8   the size of the least value, and its first bytes       with BOUNDS
    u8   the size of the greatest value, and its first bytes    with BOUNDS

for each value column of the layout. A value is written as in a key (storage/rows/keys.py), so that bytes have its order; of long
ones there are PREFIX bytes, which are compared with as many bytes of the other value.

`may_match` judges a condition by them. It errs on one side only: a block without a match may be read, the reverse never happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.columns import UNORDERED
from ebla.storage.predicates.conditions import And, Comparison, Membership, Node, Not, Null, Or
from ebla.storage.predicates.expressions import raw_of
from ebla.storage.rows import keys, nested
from ebla.storage.rows.fixed import Fixed, nulls
from ebla.storage.rows.ragged import Array
from ebla.storage.schema import Column, TableSchema

PREFIX = 16
NULLS, VALUES, BOUNDS = 1, 2, 4


class Span(NamedTuple):
    """The values of a column in a block. Without bounds nothing is known of them."""

    nulls: bool
    values: bool
    low: bytes | None = None
    high: bytes | None = None


# -- writing


class Statistics:
    """Of one column of all rows that are written; blocks have slices of them."""

    def __init__(self, column: Column, array: pa.Array) -> None:
        self._null = nulls(array) if array.null_count else None
        self._texts: pa.BinaryArray | None = None
        self._keys: Array | None = None
        self._nan: Any = None  # above all numbers, but not greater than they are
        if column.variable:
            if column.type not in UNORDERED:
                self._texts = nested.to_binary(column, array)
        elif column.type != "decimal":
            fixed = Fixed(column)
            self._part, self._keys = fixed.part, fixed.to_key(fixed.values(array))
            if column.type in ("float", "double"):
                self._nan = fixed.to_key(np.full(1, np.nan, fixed.slot))[0]

    def of(self, start: int, stop: int) -> bytes:
        """The statistics of these rows, encoded."""
        there = None if self._null is None else np.flatnonzero(~self._null[start:stop])
        if there is not None and len(there) == stop - start:
            there = None
            some_null = False
        else:
            some_null = there is not None
        flags = NULLS * some_null + VALUES * (there is None or len(there) > 0)
        bounds = self._bounds(start, stop, there) if flags & VALUES else None
        if bounds is None:
            return bytes([flags])
        low, high = (each[:PREFIX] for each in bounds)
        return bytes([flags | BOUNDS, len(low)]) + low + bytes([len(high)]) + high

    def _bounds(self, start: int, stop: int, there: Array | None) -> tuple[bytes, bytes] | None:
        if self._texts is not None:
            texts = self._texts[start:stop]
            found = pc.min_max(texts if there is None else texts.take(pa.array(there)))
            return found["min"].as_py(), found["max"].as_py()
        if self._keys is None:
            return None
        values = self._keys[start:stop] if there is None else self._keys[start:stop][there]
        if self._nan is not None and values.max() == self._nan:
            return None
        low, high = (np.array([each]).astype(self._part).tobytes() for each in (values.min(), values.max()))
        return low, high


# -- reading


def spans(data: bytes, names: list[str]) -> dict[str, Span]:
    """The inverse of `of`, of all columns one after the other. Raises IndexError for bytes that are none."""
    found, at = {}, 0
    for name in names:
        flags = data[at]
        at += 1
        bounds = []
        if flags & BOUNDS:
            for _ in range(2):
                size = data[at]
                bounds.append(data[at + 1 : at + 1 + size])
                at += 1 + size
        found[name] = Span(bool(flags & NULLS), bool(flags & VALUES), *bounds)
    return found


class Outcome(NamedTuple):
    """Whether a condition may be true for some row, and whether it may be false."""

    true: bool
    false: bool


ANY = Outcome(True, True)
OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def may_match(node: Node, schema: TableSchema, found: Mapping[str, Span]) -> bool:
    """Whether a bound condition may be true for a row of a block."""
    return _outcome(node, schema, found).true


def _outcome(node: Node, schema: TableSchema, found: Mapping[str, Span]) -> Outcome:
    match node:
        case And(parts):
            each = [_outcome(part, schema, found) for part in parts]
            return Outcome(all(one.true for one in each), any(one.false for one in each))
        case Or(parts):
            each = [_outcome(part, schema, found) for part in parts]
            return Outcome(any(one.true for one in each), all(one.false for one in each))
        case Not(part):
            inside = _outcome(part, schema, found)
            return Outcome(inside.false, inside.true)
    span = found.get(node.column)
    if span is None:
        return ANY  # a key column, or one that the rows of this layout lack
    match node:
        case Null():
            return Outcome(span.nulls, span.values)
        case Comparison(_, relation, value):
            if value.data != value.data:
                return ANY  # a NaN, which only differs
            (raw,) = _encoded(schema, node)
            return Outcome(_may(relation, span, raw), _may(OPPOSITE[relation], span, raw))
        case Membership():
            return Outcome(any(_may("==", span, raw) for raw in _encoded(schema, node)), span.values)
    raise AssertionError(f"a condition of another kind: {node!r}")


def _encoded(schema: TableSchema, node: Comparison | Membership) -> Iterator[bytes]:
    column = schema.column(node.column)
    part = keys.part(column, False)
    for value in (node.value,) if isinstance(node, Comparison) else node.values:
        yield part(raw_of(column, value))[:PREFIX]


def _may(relation: str, span: Span, value: bytes) -> bool:
    """Whether `relation` to the value may hold for some value of the span."""
    if not span.values:
        return False
    if span.low is None or span.high is None:
        return True
    match relation:
        case "==":
            return span.low <= value <= span.high
        case "<" if len(span.low) < PREFIX:
            return span.low < value
        case "<" | "<=":
            return span.low <= value
        case ">" if len(span.high) < PREFIX:
            return span.high > value
        case ">" | ">=":
            return span.high >= value
    return True
