"""Predicates: `ebla.col("origin") == "JFK"`, joined with & | ~, as immutable values that travel to the servers.

    client   bind        checks columns and types against the schema, turns literals into the columns' types
             key_bounds  which part of the key space, and with storage/partition.py which tablets, to ask
             encode      bytes for the scan request
    server   decode      the same expression
             mask        which rows of a batch it keeps

Logic is SQL's: a comparison with null is neither true nor false, and only rows for which the whole is true are kept.
Floats compare as IEEE has it: NaN equals nothing, and a literal for a float column is rounded to float. Key bounds
may admit rows that the mask then drops, never the reverse (a property test holds it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import reduce
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage import convert, python_values
from ebla.storage.errors import InvalidArgument
from ebla.storage.keys import ZERO, KeyCodec, successor
from ebla.storage.partition import NOWHERE, KeyBounds
from ebla.storage.schema import KEY_BYTES_MAX, Column, TableSchema

ISIN_MAX = 10_000
DEPTH_MAX = 100  # of nested & | ~; a chain of one operator counts once
_EPOCH = date(1970, 1, 1)
_INT64 = range(-(1 << 63), 1 << 63)


class Literal(msgspec.Struct, frozen=True, array_like=True):
    """A typed value. `kind`: bool, int, bigint (as text), float, str, bytes, decimal (as text), date (days since
    1970), datetime (ISO 8601), instant_ns and local_ns (nanoseconds since 1970, with and without a zone), or
    timestamp (bound: the column's own units since 1970)."""

    kind: str
    data: bool | int | float | str | bytes


class Expression(msgspec.Struct, frozen=True, tag_field="is"):
    """A condition on a row."""

    def __and__(self, other: Expression) -> And:
        return And(_parts(And, self) + _parts(And, _condition(other)))

    def __or__(self, other: Expression) -> Or:
        return Or(_parts(Or, self) + _parts(Or, _condition(other)))

    def __invert__(self) -> Not:
        return Not(_condition(self))

    def __rand__(self, other: Any) -> NoReturn:
        _refuse_operand(other)

    __ror__ = __rand__

    def __bool__(self) -> NoReturn:
        raise InvalidArgument(
            "a condition on rows is neither true nor false by itself: join conditions with & | ~ (not and, or, not), "
            'each in parentheses, and write ranges as two: (col("x") > 1) & (col("x") < 5)'
        )


class Comparison(Expression, frozen=True, tag="comparison"):
    column: str
    relation: str
    value: Literal


class Membership(Expression, frozen=True, tag="isin"):
    column: str
    values: tuple[Literal, ...]


class Null(Expression, frozen=True, tag="null"):
    column: str


class And(Expression, frozen=True, tag="and"):
    parts: tuple[Node, ...]


class Or(Expression, frozen=True, tag="or"):
    parts: tuple[Node, ...]


class Not(Expression, frozen=True, tag="not"):
    part: Node


Node = Comparison | Membership | Null | And | Or | Not


class Reference:
    """A column, by name: comparing it makes a condition."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidArgument(f"a column is named by a str, not {name!r}")
        self.name = name

    def __eq__(self, value: object) -> Comparison:  # type: ignore[override]
        return self._compare("==", value)

    def __ne__(self, value: object) -> Comparison:  # type: ignore[override]
        return self._compare("!=", value)

    def __lt__(self, value: object) -> Comparison:
        return self._compare("<", value)

    def __le__(self, value: object) -> Comparison:
        return self._compare("<=", value)

    def __gt__(self, value: object) -> Comparison:
        return self._compare(">", value)

    def __ge__(self, value: object) -> Comparison:
        return self._compare(">=", value)

    def isin(self, values: Iterable[Any]) -> Membership:
        if isinstance(values, (str, bytes)):
            raise InvalidArgument(f"isin takes a list of values, not {values!r}", column=self.name)
        literals = tuple(_literal(value, self.name) for value in values)
        if len(literals) > ISIN_MAX:
            raise InvalidArgument(
                f"isin takes up to {ISIN_MAX} values, not {len(literals)}; scan in several goes, or get the rows by key",
                column=self.name,
            )
        return Membership(self.name, literals)

    def is_null(self) -> Null:
        return Null(self.name)

    def is_not_null(self) -> Not:
        return Not(Null(self.name))

    def _compare(self, relation: str, value: object) -> Comparison:
        return Comparison(self.name, relation, _literal(value, self.name))

    def _refuse(self, *_: Any) -> NoReturn:
        raise InvalidArgument(
            f"column {self.name!r} alone is no condition: compare it, and put comparisons into parentheses, as in "
            f'(col("{self.name}") == 1) & (col("b") == 2)',
            column=self.name,
        )

    __bool__ = __and__ = __rand__ = __or__ = __ror__ = __invert__ = _refuse

    def __repr__(self) -> str:
        return f"col({self.name!r})"


def col(name: str) -> Reference:
    """The column `name`, to be compared: `col("origin") == "JFK"`."""
    return Reference(name)


_decoder = msgspec.msgpack.Decoder(Node)


def encode(expression: Expression) -> bytes:
    return msgspec.msgpack.encode(_condition(expression))


def decode(data: bytes) -> Expression:
    try:
        expression: Expression = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"malformed predicate: {error}") from error
    _check_depth(expression)
    return expression


def columns(expression: Expression) -> list[str]:
    """The columns it names, each once, in order of appearance."""
    return list(dict.fromkeys(_columns(expression)))


def bind(expression: Expression, schema: TableSchema) -> Node:
    """The same condition with every literal in its column's type. Binding again changes nothing.

    Raises InvalidArgument, naming the column, for unknown columns and for values that the column cannot hold.
    """
    node = _condition(expression)
    _check_depth(node)
    return _bind(node, schema)


def mask(expression: Expression, batch: pa.RecordBatch) -> pa.BooleanArray:
    """True for the rows to keep; null counts as false. The expression is bound to the batch's schema."""
    kept = _evaluate(_condition(expression), batch)
    return pc.fill_null(kept, False) if kept.null_count else kept


# -- literals ------------------------------------------------------------------------------------------------


def _literal(value: Any, column: str) -> Literal:
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        value = value.item()
    if isinstance(value, (bool, float, str)):
        return Literal(type(value).__name__, value) if type(value) in (bool, float, str) else _plain(value)
    if isinstance(value, int):
        return Literal("int", int(value)) if value in _INT64 else Literal("bigint", str(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Literal("bytes", bytes(value))
    if isinstance(value, Decimal):
        return Literal("decimal", str(value))
    if isinstance(value, datetime) and type(value).__name__ != "NaTType":
        if getattr(value, "nanosecond", 0):  # pandas: finer than ISO 8601 as Python reads it
            return Literal("local_ns" if value.tzinfo is None else "instant_ns", value.value)  # type: ignore[attr-defined]
        return Literal("datetime", value.isoformat())
    if isinstance(value, date) and not isinstance(value, datetime):
        return Literal("date", (value - _EPOCH).days)
    if value is None:
        raise InvalidArgument(
            f"nothing equals null: ask col({column!r}).is_null() or .is_not_null()", column=column
        )
    if isinstance(value, Reference):
        raise InvalidArgument(
            f"columns {column!r} and {value.name!r} cannot be compared with each other, only with values", column=column
        )
    raise InvalidArgument(
        f"column {column!r} cannot be compared with {value!r} ({type(value).__name__}); give a bool, int, float, str, "
        "bytes, date, datetime or Decimal",
        column=column,
    )


def _plain(value: float | str) -> Literal:
    """Of a subclass of float or str."""
    return Literal("float", float(value)) if isinstance(value, float) else Literal("str", str(value))


def _python(literal: Literal) -> Any:
    data: Any = literal.data
    match literal.kind:
        case "bigint":
            return int(data)
        case "decimal":
            return Decimal(data)
        case "date":
            return _EPOCH + timedelta(days=data)
        case "datetime":
            return datetime.fromisoformat(data)
        case "instant_ns" | "local_ns":
            import pandas  # slow to import, and only nanoseconds need it

            return pandas.Timestamp(data, unit="ns", tz="UTC" if literal.kind == "instant_ns" else None)
    return data


# -- binding -------------------------------------------------------------------------------------------------


def _bind(node: Node, schema: TableSchema) -> Node:
    match node:
        case Comparison(column, relation, value):
            return Comparison(column, relation, _bound(schema.column(column), (value,))[0])
        case Membership(column, values):
            return Membership(column, _bound(schema.column(column), values))
        case Null(column):
            schema.column(column)
            return node
        case And(parts):
            return And(tuple(_bind(part, schema) for part in parts))
        case Or(parts):
            return Or(tuple(_bind(part, schema) for part in parts))
        case Not(part):
            return Not(_bind(part, schema))
