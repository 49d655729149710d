"""Predicates: `ebla.col("origin") == "JFK"`, joined with & | ~, as immutable values that travel to the servers.

    client   bind        checks columns and types against the schema, converts values to the columns' types
             key_bounds  the part of the key space, and with storage/rows/partition.py the tablets, to scan
             encode      bytes for the scan request
    server   decode      the same expression
             mask        the rows of a batch that match

Logic is that of SQL: a comparison with null is neither true nor false, and only rows for which the whole is true are
kept. Floats compare by IEEE 754: NaN equals nothing. As in writes, a double for a float column is rounded to float, and an int
that a float would change is refused. Key bounds may include rows that the mask then drops, never the reverse (a property test
checks it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.columns import TIMED, UNORDERED
from ebla.storage.errors import InvalidArgument, invalid_column
from ebla.storage.predicates.conditions import (
    ISIN_MAX,
    And,
    Comparison,
    Expression,
    Membership,
    Node,
    Not,
    Null,
    Or,
    Prefix,
    Reference,
    Value,
    check_depth,
    col,
    condition,
    inner,
    python_value,
)
from ebla.storage.rows import convert, python_values
from ebla.storage.rows.keys import ZERO, KeyCodec, successor
from ebla.storage.rows.partition import NOWHERE, KeyBounds
from ebla.storage.rows.scalars import scalar
from ebla.storage.schema import KEY_BYTES_MAX, Column, TableSchema

__all__ = [
    "ISIN_MAX",
    "Expression",
    "KeyBounds",
    "Reference",
    "bind",
    "col",
    "columns",
    "decode",
    "encode",
    "key_bounds",
    "mask",
    "raw_of",
]

ENCODED_BYTES_MAX = 4 << 20  # of a condition, which is sent to every scanned tablet

_decoder = msgspec.msgpack.Decoder(Node)

_RELATIONS = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_BOUND = {kind: "timestamp" if kind == "timestamp" else "units" for kind in TIMED}
_PREFIXED = ("string", "binary", *UNORDERED)  # UNORDERED: refused as in any comparison
_KINDS = {"float": "float", "double": "float", "bool": "bool", "string": "str", "binary": "bytes"}


def encode(expression: Expression) -> bytes:
    try:
        data = msgspec.msgpack.encode(condition(expression))
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidArgument(f"the condition cannot be sent: {error}; change its values") from error
    _check_size(data)
    return data


def decode(data: bytes) -> Expression:
    _check_size(data)
    try:
        node: Node = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArgument(f"malformed predicate: {error}") from error
    check_depth(node)
    return node


def _check_size(data: bytes) -> None:
    if len(data) > ENCODED_BYTES_MAX:
        raise InvalidArgument(
            f"the condition takes {len(data)} bytes, over the limit of {ENCODED_BYTES_MAX}; divide the scan, or get the "
            "rows by key"
        )


def columns(expression: Expression) -> list[str]:
    """The columns in the expression, each once, in order of appearance."""
    return list(dict.fromkeys(_columns(condition(expression))))


def _columns(node: Node) -> Iterator[str]:
    if isinstance(node, (Comparison, Membership, Null)):
        yield node.column
    for part in inner(node):
        yield from _columns(part)


def bind(expression: Expression, schema: TableSchema) -> Expression:
    """The same condition with every value in its column's type. Binding again changes nothing.

    Raises InvalidArgument with the column for unknown columns and for values that the column cannot have.
    """
    node = condition(expression)
    check_depth(node)
    return _bind(node, schema)


def _bind(node: Node, schema: TableSchema) -> Node:
    match node:
        case Comparison(column, relation, value):
            return Comparison(column, relation, _bound(schema.column(column), (value,))[0])
        case Membership(column, values):
            return Membership(column, _bound(schema.column(column), values))
        case Prefix((Comparison(name), *_)) if (kept := schema.column(name)).type not in _PREFIXED:
            raise invalid_column(
                name,
                f"is {kept.arrow_type()}, and starts_with is for string and binary columns: compare it with ==, < and the like; "
                f"{python_values.remedy(kept)}",
            )
        case And(parts):
            return And(tuple(_bind(part, schema) for part in parts))
        case Or(parts):
            return Or(tuple(_bind(part, schema) for part in parts))
        case Not(part):
            return Not(_bind(part, schema))
    schema.column(node.column)
    return node


def _bound(column: Column, values: Sequence[Value]) -> tuple[Value, ...]:
    if column.type in UNORDERED:
        raise invalid_column(
            column.name,
            f"is a {column.type}, which cannot be compared, only asked for null with is_null() or "
            "is_not_null(); put the value to compare into a column of its own, or filter the rows after the scan",
        )
    own = _BOUND.get(column.type)
    if own and all(value.kind == own for value in values):
        return tuple(values)
    given: list[Any] = []
    last = len(values) - 1
    try:
        given += map(_unbound, values)
        array = convert.to_array(column, given)
    except (InvalidArgument, *_MALFORMED) as error:
        row = getattr(error, "row", None)
        culprit = given[row] if row is not None and row < len(given) else values[min(len(given), last)].data
        raise invalid_column(
            column.name,
            f"cannot be compared with {python_values.shown(culprit)}: it takes "
            f"{python_values.expected(column)}; {python_values.remedy(column)}",
        ) from error
    if own:
        return tuple(Value(own, raw) for raw in python_values.raws(column, array))
    kind = _KINDS.get(column.type, column.type if column.type in ("date", "decimal") else "int")
    return tuple(Value(kind, _data(column, raw)) for raw in python_values.raws(column, array))


_MALFORMED = (ValueError, TypeError, ArithmeticError)


def _unbound(value: Value) -> Any:
    if value.kind in _BOUND.values():
        raise ValueError("bound to a column of another type")
    return python_value(value)


def _data(column: Column, raw: Any) -> Any:
    """A raw value (storage/rows/scalars.py) as the data of a Value."""
    if column.type in ("bool", "string"):
        return scalar(column).from_raw(raw)
    return str(scalar(column).from_raw(raw)) if column.type == "decimal" else raw


def raw_of(column: Column, value: Value) -> Any:
    """The inverse of _data, of a bound value."""
    if column.type in ("bool", "string", "decimal"):
        return scalar(column).to_raw(python_value(value))
    return value.data


def mask(expression: Expression, batch: pa.RecordBatch) -> pa.BooleanArray:
    """True for the rows to keep; null counts as false. The expression is bound, the batch has its columns."""
    try:
        kept = _evaluate(condition(expression), batch)
    except (pa.ArrowException, KeyError, *_MALFORMED) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise InvalidArgument(
            f"the predicate does not fit the rows: {error}; bind it to the table's schema"
        ) from error
    return pc.fill_null(kept, False) if kept.null_count else kept


def _evaluate(node: Node, batch: pa.RecordBatch) -> pa.BooleanArray:
    match node:
        case Comparison(column, relation, value):
            array = batch.column(column)
            return _RELATIONS[relation](array, pa.scalar(_for_arrow(value), array.type))
        case Membership(column, values):
            return _is_in(batch.column(column), values)
        case Null(column):
            return batch.column(column).is_null()
        case And(parts):
            return reduce(pc.and_kleene, [_evaluate(part, batch) for part in parts])
        case Or(parts):
            return reduce(pc.or_kleene, [_evaluate(part, batch) for part in parts])
    return pc.invert(_evaluate(node.part, batch))


def _is_in(array: pa.Array, values: Sequence[Value]) -> pa.BooleanArray:
    """SQL's IN: `==` with each value, joined with `or`."""
    wanted = pa.array([_for_arrow(value) for value in values], array.type)
    if pa.types.is_floating(array.type):
        # Arrow's is_in compares bits: there -0.0 is not 0.0, and NaN is NaN.
        zero = pa.scalar(0.0, array.type)
        wanted = pc.add(wanted.filter(pc.invert(pc.is_nan(wanted))), zero)
        array = pc.add(array, zero)
    found = pc.is_in(array, value_set=wanted)
    return pc.if_else(array.is_valid(), found, pa.scalar(None, pa.bool_())) if array.null_count else found


def _for_arrow(value: Value) -> Any:
    return value.data if value.kind == "date" else python_value(value)


def key_bounds(expression: Expression | None, schema: TableSchema) -> KeyBounds:
    """Bounds of the keys of all matching rows: the values of a key prefix, then a range on the next column."""
    if expression is None:
        return KeyBounds()
    terms = _terms(bind(expression, schema))
    keys = schema.key_columns()
    opened, closed = KeyCodec(keys), KeyCodec(keys, open_end=False)
    equal: list[tuple[str, tuple[bytes, ...]]] = []
    prefix: bytes | None = b""
    bounds = KeyBounds()
    for place, column in enumerate(keys):
        choices = _choices(terms, column)
        if choices is not None:
            if not choices:
                return NOWHERE
            equal.append((column.name, tuple(closed.encode_raw(place, raw) for raw in choices)))
        if prefix is None:
            continue
        if choices is not None and len(choices) == 1:
            prefix += opened.encode_raw(place, choices[0])
            bounds = KeyBounds(prefix, successor(prefix))
        else:
            bounds, prefix = _narrowed(prefix, place, column, opened, terms, choices), None
    if prefix is not None:
        bounds = KeyBounds(prefix, prefix + ZERO)
    return _clipped(bounds, tuple(equal))


def _terms(node: Any) -> list[Node]:
    """Conditions that all must hold."""
    return [term for part in node.parts for term in _terms(part)] if isinstance(node, And) else [node]


def _choices(terms: Sequence[Node], column: Column) -> list[Any] | None:
    """The raw values that the column can have, or None if the terms do not limit them."""
    found: dict[Any, None] | None = None
    for term in terms:
        values = _allowed(term, column.name)
        if values is not None:
            raws = dict.fromkeys(raw_of(column, value) for value in values)
            found = raws if found is None else {raw: None for raw in found if raw in raws}
    return None if found is None else list(found)


def _allowed(term: Node, name: str) -> list[Value] | None:
    match term:
        case Comparison(column, "==", value) if column == name:
            return [value]
        case Membership(column, values) if column == name:
            return list(values)
        case Or(parts):
            each = [_allowed(part, name) for part in parts]
            return None if None in each else [value for values in each for value in values or ()]
    return None


def _narrowed(
    prefix: bytes,
    place: int,
    column: Column,
    codec: KeyCodec,
    terms: Sequence[Node],
    choices: list[Any] | None,
) -> KeyBounds:
    """Bounds of keys that begin with `prefix` and whose next column matches the terms."""
    limits = [
        (term.relation, codec.encode_raw(place, raw_of(column, term.value)))
        for term in terms
        if isinstance(term, Comparison) and term.column == column.name
    ]
    if choices:
        parts = sorted(codec.encode_raw(place, raw) for raw in choices)
        limits += [(">=", parts[0]), ("<=", parts[-1])]
    open_end = codec.ends_open and place == len(codec.columns) - 1
    start, stop = prefix, successor(prefix)
    for relation, part in limits:
        first = prefix + part
        above = first + ZERO if open_end else successor(first)  # the least key after the rows equal to `part`
        if relation == ">" and above is None:
            return NOWHERE
        if relation in (">", ">="):
            start = max(start, first if relation == ">=" or above is None else above)
        elif relation in ("<", "<="):
            least = first if relation == "<" else above
            stop = least if stop is None else min(stop, least or stop)
    return KeyBounds(start, stop)


def _clipped(bounds: KeyBounds, equal: tuple[tuple[str, tuple[bytes, ...]], ...]) -> KeyBounds:
    """Cut the bounds outwards to KEY_BYTES_MAX, the longest key, because LMDB takes no longer one."""
    start, stop = bounds.start[:KEY_BYTES_MAX], bounds.stop
    if stop is not None and len(stop) > KEY_BYTES_MAX:
        stop = successor(stop[:KEY_BYTES_MAX])
    return KeyBounds(start, stop, equal)
