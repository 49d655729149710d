"""Conditions on rows as immutable values, made by `col("origin") == "JFK"` and & | ~.

Only the tree and the user's operators are here; ebla.storage.predicates.expressions binds, evaluates and sends it.
Values keep their type on the wire, so that 1, 1.0, True, "1" and Decimal("1") are different.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from math import isfinite
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from ebla.storage.errors import InvalidArgument, invalid_column
from ebla.storage.rows.keys import successor
from ebla.storage.rows.python_values import UNREADABLE, nanoseconds, shown

ISIN_MAX = 10_000
BITS_MAX = 1024  # of an int: more than a column can have
SHOWN_MAX = 10  # values of a list in a repr
DEPTH_MAX = 100  # of nested & | ~; a chain of one operator counts once
_EPOCH = date(1970, 1, 1)
_SURROGATES = range(0xD800, 0xE000)  # no text has them
_INT64 = range(-(1 << 63), 1 << 63)
_CUT = {pa.time64("ns"): 1000, pa.date64(): 86_400_000}  # what as_py keeps multiples of only

_KINDS: dict[str, type] = {
    "bool": bool,
    "int": int,
    "bigint": str,
    "float": float,
    "str": str,
    "bytes": bytes,
    "decimal": str,
    "date": int,
    "datetime": str,
    "instant_ns": int,
    "local_ns": int,
    "timestamp": int,
    "time": str,
    "duration": str,
    "units": int,
}

Relation = typing.Literal["==", "!=", "<", "<=", ">", ">="]


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A typed value. `kind`: bool, int, bigint (as text), float, str, bytes, decimal (as text), date (days since
    1970), datetime (ISO 8601), instant_ns and local_ns (nanoseconds since 1970, with and without a zone),
    timestamp (bound: the column's own units since 1970), time (ISO 8601), duration (nanoseconds, as text), or units (bound:
    a time or duration in the column's own units)."""

    kind: str
    data: Any

    def __post_init__(self) -> None:
        if type(self.data) is not _KINDS.get(self.kind):
            raise ValueError(f"no value of kind {self.kind!r}: {self.data!r}")


class Expression(msgspec.Struct, frozen=True, tag_field="is"):
    """A condition on a row."""

    def __and__(self, other: Expression) -> And:
        return And(_parts(And, condition(self)) + _parts(And, condition(other)))

    def __or__(self, other: Expression) -> Or:
        return Or(_parts(Or, condition(self)) + _parts(Or, condition(other)))

    def __invert__(self) -> Not:
        return Not(condition(self))

    def __rand__(self, other: Any) -> NoReturn:
        _refuse_operand(other)

    __ror__ = __rand__

    def __repr__(self) -> str:
        return _notation(self)

    def __bool__(self) -> NoReturn:
        raise InvalidArgument(
            "a condition on rows is neither true nor false by itself; join conditions with & | ~ (not and, or, not), "
            'each in parentheses, and write ranges as two: (col("x") > 1) & (col("x") < 5)'
        )


class Comparison(Expression, frozen=True, tag="comparison"):
    column: str
    relation: Relation
    value: Value


class Membership(Expression, frozen=True, tag="isin"):
    column: str
    values: tuple[Value, ...]


class Null(Expression, frozen=True, tag="null"):
    column: str


class And(Expression, frozen=True, tag="and"):
    parts: tuple[Node, ...]


class Prefix(And, frozen=True, tag="and"):
    """What `starts_with` makes: a range of values, of which the first is the prefix. Servers get it as And."""


class Or(Expression, frozen=True, tag="or"):
    parts: tuple[Node, ...]


class Not(Expression, frozen=True, tag="not"):
    part: Node


Node = Comparison | Membership | Null | And | Or | Not


# A column's methods, and other libraries' names of them.
_METHODS = {
    "is_in": ("isin",),
    "starts_with": ("startswith",),
    "is_null": ("isnull", "isna", "is_na", "is_none"),
    "is_not_null": ("notnull", "notna", "not_null", "is_not_na", "is_not_none"),
}


class Reference:
    """A column, by name: comparing it makes a condition."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise InvalidArgument(f"a column is named by a str, not {shown(name)}")
        self.name = str.__str__(name)  # of a member of an enum its value

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

    def is_in(self, values: Iterable[Any]) -> Membership:
        """The column has one of these values, ISIN_MAX at most. False for null."""
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            raise InvalidArgument(
                f"is_in takes a list of values, such as [1, 2], not {shown(values)}", column=self.name
            )
        given = tuple(_value(value, self.name) for value in islice(values, ISIN_MAX + 1))
        if len(given) > ISIN_MAX:
            raise InvalidArgument(
                f"is_in takes up to {ISIN_MAX} values, not more; divide the scan, or get the rows by key",
                column=self.name,
            )
        return Membership(self.name, given)

    def starts_with(self, prefix: str | bytes) -> And:
        """The text of the column begins with `prefix` (a str, or bytes for a binary column); case matters. False for null.

        The condition is a range of values, so a scan reads only that range if the column leads the key.
        """
        if not isinstance(prefix, (str, bytes)):
            raise InvalidArgument(
                f"starts_with takes a str, or bytes for a binary column, not {shown(prefix)}; columns of other types are "
                "compared, with ==, < and the like",
                column=self.name,
            )
        after = _after(prefix) if isinstance(prefix, str) else successor(prefix)
        return Prefix((self >= prefix,) if after is None else (self >= prefix, self < after))

    def is_null(self) -> Null:
        """The column has no value."""
        return Null(self.name)

    def is_not_null(self) -> Not:
        """The column has a value."""
        return Not(Null(self.name))

    if not typing.TYPE_CHECKING:  # a type checker refuses other names by itself

        def __getattr__(self, name: str) -> NoReturn:
            for own, others in _METHODS.items():
                if name in others:
                    raise AttributeError(f"a column has no {name!r}: use {own}(...)")
            raise AttributeError(
                f"a column has no {name!r}, only {', '.join(_METHODS)}, and comparisons, such as "
                '(col("a") >= 1) & (col("a") < 5)'
            )

    def _compare(self, relation: Relation, value: object) -> Comparison:
        return Comparison(self.name, relation, _value(value, self.name))

    def _refuse(self, *_: Any) -> NoReturn:
        raise invalid_column(
            self.name,
            "alone is no condition; compare it, and put comparisons into parentheses, as in "
            f'(col("{self.name}") == 1) & (col("b") == 2)',
        )

    __bool__ = __and__ = __rand__ = __or__ = __ror__ = __invert__ = _refuse

    def __repr__(self) -> str:
        return f"col({self.name!r})"


def col(name: str) -> Reference:
    """The column `name`, to be compared: `col("origin") == "JFK"`."""
    return Reference(name)


def _after(prefix: str) -> str | None:
    """The least text above all texts that begin with `prefix`; None if there are none."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    last = ord(kept[-1]) + 1
    return kept[:-1] + chr(last if last not in _SURROGATES else _SURROGATES.stop)


def _value(given: Any, column: str) -> Value:
    if isinstance(given, (np.bool_, np.integer, np.floating)):
        given = given.item()
    elif isinstance(given, pa.Scalar):
        given = _exactly(given, column)
    if isinstance(given, bool):
        return Value("bool", given)
    # What is a subclass, such as an enum, counts as the plain value that it is.
    if isinstance(given, int):
        given = int(given)  # a range is walked for a subclass
        if given.bit_length() > BITS_MAX:
            raise invalid_column(
                column, f"cannot be compared with {shown(given)}: no column holds so large a number"
            )
        return Value("int", given) if given in _INT64 else Value("bigint", str(given))
    if isinstance(given, float):
        return Value("float", float(given))
    if isinstance(given, str):
        return Value("str", str.__str__(given))
    if isinstance(given, (bytes, bytearray, memoryview)):
        return Value("bytes", bytes(given))
    if isinstance(given, Decimal):
        return Value("decimal", Decimal.__str__(given))
    if isinstance(given, datetime) and type(given).__name__ != "NaTType":
        return _time(given)
    if isinstance(given, date) and not isinstance(given, datetime):
        return Value("date", given.toordinal() - _EPOCH.toordinal())
    if isinstance(given, time):
        return Value("time", given.isoformat())
    if isinstance(given, timedelta) and type(given).__name__ != "NaTType":
        return Value("duration", str(nanoseconds(given)))
    if given is None:
        raise InvalidArgument(
            f"nothing equals null: ask col({column!r}).is_null() or .is_not_null()", column=column
        )
    if isinstance(given, Reference):
        raise InvalidArgument(
            f"columns {column!r} and {given.name!r} cannot be compared with each other, only with values",
            column=column,
        )
    raise invalid_column(
        column,
        f"cannot be compared with {shown(given)} ({type(given).__name__}); give a bool, int, float, "
        "str, bytes, date, datetime, time, timedelta or Decimal",
    )


def _exactly(given: pa.Scalar, column: str) -> Any:
    """The Python value of an Arrow scalar. Raises InvalidArgument if Python has no such value."""
    while isinstance(given, (pa.DictionaryScalar, pa.RunEndEncodedScalar, pa.ExtensionScalar)):
        given = given.value
    try:
        if given.is_valid and given.type in _CUT and given.value % _CUT[given.type]:
            raise ValueError("as_py would cut it")
        return given.as_py()
    except UNREADABLE as error:
        raise invalid_column(
            column,
            f"cannot be compared with the {given.type} {getattr(given, 'value', '')}, for which Python has no exact value; "
            "give a date or datetime from the year 1 to 9999, a time in whole microseconds, a timedelta",
        ) from error


def _time(given: Any) -> Value:
    if getattr(given, "nanosecond", 0):  # a pandas Timestamp, finer than ISO 8601 as Python reads it
        return Value("local_ns" if given.tzinfo is None else "instant_ns", given.value)
    return Value("datetime", given.isoformat())


def python_value(value: Value) -> Any:
    """The user's value; of a bound timestamp, time or duration its int."""
    data: Any = value.data
    match value.kind:
        case "bigint":
            return int(data)
        case "decimal":
            return Decimal(data)
        case "date":
            return _EPOCH + timedelta(days=data)
        case "datetime":
            return datetime.fromisoformat(data)
        case "time":
            return time.fromisoformat(data)
        case "duration":
            micros, nanos = divmod(int(data), 1000)
            if not nanos:
                return timedelta(microseconds=micros)
            import pandas

            return pandas.Timedelta(int(data), unit="ns")
        case "instant_ns" | "local_ns":
            import pandas  # slow to import, and only nanoseconds need it

            return pandas.Timestamp(data, unit="ns", tz="UTC" if value.kind == "instant_ns" else None)
    return data


def _notation(node: Any) -> str:
    """The condition as users write it; of a long list its first values."""
    match node:
        case Comparison(column, relation, value):
            return f"col({column!r}) {relation} {_literal(value)}"
        case Membership(column, values):
            more = ["..."] if len(values) > SHOWN_MAX else []
            return f"col({column!r}).is_in([{', '.join([*map(_literal, values[:SHOWN_MAX]), *more])}])"
        case Null(column):
            return f"col({column!r}).is_null()"
        case Prefix((Comparison(column, _, value), *_)):
            return f"col({column!r}).starts_with({_literal(value)})"
        case Not(Null(column)):
            return f"col({column!r}).is_not_null()"
        case Not(part):
            return f"~{_operand(part)}"
    joined = " & " if isinstance(node, And) else " | "
    return joined.join(map(_operand, node.parts))


def _operand(part: Node) -> str:
    """The part beside & | ~: what they would bind more strongly than it binds has parentheses."""
    alone = isinstance(part, (Membership, Null, Prefix, Not))
    return repr(part) if alone else f"({part!r})"


def _literal(value: Value) -> str:
    given = python_value(value)
    return repr(given) if not isinstance(given, float) or isfinite(given) else f"float({str(given)!r})"


def condition(given: Any) -> Node:
    """Return `given` if it is a condition, else raise InvalidArgument."""
    if isinstance(given, Node):
        return given
    return _refuse_operand(given)


def _parts(kind: type[And] | type[Or], node: Any) -> tuple[Node, ...]:
    """The parts of a node of this operator, so that chains stay flat."""
    return node.parts if type(node) is kind else (node,)


def _refuse_operand(given: Any) -> NoReturn:
    raise InvalidArgument(
        f"{shown(given)} is no condition; make one with col(name), and put comparisons into parentheses around & | ~, as "
        'in (col("a") == 1) & (col("b") == 2)'
    )


def check_depth(node: Node) -> None:
    """Refuse conditions nested beyond DEPTH_MAX (walked without recursion)."""
    level: list[Node] = [node]
    for _ in range(DEPTH_MAX):
        level = [part for each in level for part in inner(each)]
        if not level:
            return
    raise InvalidArgument(
        f"the condition nests deeper than {DEPTH_MAX}; simplify it, or use is_in for long lists"
    )


def inner(node: Node) -> tuple[Node, ...]:
    if isinstance(node, (And, Or)):
        return node.parts
    return (node.part,) if isinstance(node, Not) else ()
