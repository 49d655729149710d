"""Predicates: the rows that they keep, the key ranges that they read, and their encoding."""

from __future__ import annotations

import operator
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import reduce
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.columns import UNORDERED
from ebla.storage.errors import InvalidArgument
from ebla.storage.predicates import conditions
from ebla.storage.predicates.conditions import (
    And,
    Comparison,
    Membership,
    Not,
    Null,
    Or,
    python_value,
)
from ebla.storage.predicates.expressions import bind, col, columns, decode, encode, key_bounds, mask
from ebla.storage.rows.partition import NOWHERE, KeyBounds, Partitioner, hash_spec
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import KEY_BYTES_MAX, Column, Partitioning, TableSchema
from tests.storage.tables import raw_values
from tests.storage.test_partition import partitioned_rows

RELATIONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
TABLE = TableSchema(
    (
        Column("host", "string", False),
        Column("n", "int32", False),
        Column("tail", "binary", False),
        Column("at", "timestamp", unit="ms", zone="UTC"),
        Column("local", "timestamp", unit="ns"),
        Column("day", "date"),
        Column("money", "decimal", precision=5, scale=2),
        Column("ratio", "float"),
        Column("flag", "bool"),
    ),
    ("host", "n", "tail"),
)
FIVE = datetime(2020, 1, 1, 0, 0, 5)  # noqa: DTZ001


# -- a second, plain implementation of the logic -------------------------------------------------------------------


def truth(node: Any, row: dict[str, Any]) -> bool | None:
    """Evaluate a condition for one row, in SQL's three values."""
    match node:
        case Comparison(column, relation, value):
            return None if row[column] is None else RELATIONS[relation](row[column], python_value(value))
        case Membership(column, values):
            return (
                None if row[column] is None else any(row[column] == python_value(value) for value in values)
            )
        case Null(column):
            return row[column] is None
        case And(parts):
            each = [truth(part, row) for part in parts]
            return False if False in each else None if None in each else True
        case Or(parts):
            each = [truth(part, row) for part in parts]
            return True if True in each else None if None in each else False
        case Not(part):
            inner = truth(part, row)
            return None if inner is None else not inner
    raise AssertionError(node)


@st.composite
def predicates(draw: st.DrawFn, schema: TableSchema, rows: list[dict[str, Any]], depth: int = 2) -> Any:
    """Conditions whose values are often values of the rows, so that some rows match."""
    if depth and draw(st.booleans()):
        parts = draw(st.lists(predicates(schema, rows, depth - 1), min_size=2, max_size=3))
        match draw(st.sampled_from("&&|~")):
            case "&":
                return reduce(operator.and_, parts)
            case "|":
                return reduce(operator.or_, parts)
            case _:
                return ~parts[0]
    names = list(schema.key) * 3 + [column.name for column in schema.columns]
    column = schema.column(draw(st.sampled_from(names)))
    own = [row[column.name] for row in rows if row[column.name] is not None]
    values = raw_values(column).map(lambda raw: pa.scalar(raw, column.arrow_type()).as_py())
    values = st.one_of(st.sampled_from(own), st.sampled_from(own), values) if own else values
    subject = col(column.name)
    kinds = (
        ["null", "not null"]
        if column.type in UNORDERED
        else ["==", "==", *RELATIONS, "isin", "null", "not null"]
    )
    kind = draw(st.sampled_from(kinds))
    if kind == "isin":
        return subject.is_in(draw(st.lists(values, max_size=3)))
    if kind == "null":
        return subject.is_null()
    if kind == "not null":
        return subject.is_not_null()
    return RELATIONS[kind](subject, draw(values))


@given(partitioned_rows(), st.data())
@settings(max_examples=40, deadline=None)
def test_the_mask_keeps_the_rows_for_which_the_whole_is_true(table: Any, data: st.DataObject) -> None:
    schema, batch = table
    rows = batch.to_pylist()
    predicate = data.draw(predicates(schema, rows))
    bound = decode(encode(bind(predicate, schema)))
    kept = mask(bound, batch)
    assert kept.null_count == 0
    assert kept.to_pylist() == [truth(predicate, row) is True for row in rows]


@given(partitioned_rows(), st.data())
@settings(max_examples=80, deadline=None)
def test_reading_only_within_the_bounds_finds_the_same_rows(table: Any, data: st.DataObject) -> None:
    schema, batch = table
    codec, partitioner = RowCodec(schema), Partitioner(schema)
    predicate = data.draw(predicates(schema, batch.to_pylist()))
    bounds = key_bounds(predicate, schema)
    keys = codec.encode_keys(batch)
    tablets = partitioner.assign(batch, keys).tolist()
    asked = partitioner.prune(bounds)
    kept = mask(bind(predicate, schema), batch).to_pylist()
    for key, tablet, wanted in zip(keys.to_pylist(), tablets, kept, strict=True):
        if wanted:
            assert tablet in asked
            assert bounds.start <= key and (bounds.stop is None or key < bounds.stop)


def test_a_condition_that_is_false_for_every_value_of_a_null_is_false() -> None:
    batch = pa.record_batch({"x": pa.array([None, 1], pa.int64()), "y": [1, 1]})
    x, y = col("x") == 1, col("y") == 1
    assert mask(~(x & ~y), batch).to_pylist() == [True, True]
    assert mask(x | y, batch).to_pylist() == [True, True]
    assert mask(~(x & y), batch).to_pylist() == [False, False]
    assert mask(~x, batch).to_pylist() == [False, False]


# -- bounds ------------------------------------------------------------------------------------------------------


def bounds(predicate: Any) -> tuple[bytes, bytes | None]:
    found = key_bounds(predicate, TABLE)
    return found.start, found.stop


def test_equalities_on_a_prefix_and_a_range_on_the_next_column_bound_the_scan() -> None:
    host = b"a\0\0"
    one, two = b"\x80\0\0\x01", b"\x80\0\0\x02"
    a, n = col("host") == "a", col("n")
    assert bounds(None) == (b"", None)
    assert bounds(a) == (host, b"a\0\x01")
    assert bounds(a & (n == 1)) == (host + one, host + two)
    assert bounds(a & (n == 1) & (col("tail") == b"\0")) == (host + one + b"\0", host + one + b"\0\0")
    assert bounds(a & (n >= 1)) == (host + one, b"a\0\x01")
    assert bounds(a & (n > 1) & (n < 2)) == (host + two, host + two)
    assert bounds((n == 1) & (col("host") > "a")) == (b"a\0\x01", None)
    assert bounds(a & (n == 1) & (col("tail") > b"x") & (col("tail") <= b"y")) == (
        host + one + b"x\0",
        host + one + b"y\0",
    )
    assert bounds(a & n.is_in([2, 1])) == (host + one, host + b"\x80\0\0\x03")
    assert bounds(a | (n == 1)) == bounds(~a) == bounds(col("host") != "a") == (b"", None)
    assert bounds((n == 1) & (n == 2)) == (NOWHERE.start, NOWHERE.stop)
    assert key_bounds(col("host").is_in([]), TABLE).empty
    assert bounds(a & (n > 2**31 - 1)) == (b"a\0\x01", b"a\0\x01")


def test_equalities_determine_the_buckets_to_read() -> None:
    schema = TableSchema(TABLE.columns, TABLE.key, Partitioning(hash_spec("n", "tail", buckets=64)))
    partitioner = Partitioner(schema)

    def asked(predicate: Any) -> int:
        return len(partitioner.prune(key_bounds(predicate, schema)))

    n, tail = col("n"), col("tail")
    assert asked(n == 1) == 64
    assert asked((n == 1) & (tail == b"x")) == 1
    assert 1 < asked((n == 1) & tail.is_in([b"x", b"y", b"z", b"x"])) <= 3
    assert 1 < asked(((n == 1) | (n == 2)) & (tail == b"x")) <= 2
    assert asked(((n == 1) | (tail == b"y")) & (tail == b"x")) == 64
    assert asked((n == 1) & (n == 2) & (tail == b"x")) == 0


def test_bounds_are_never_longer_than_a_key_may_be() -> None:
    long = "x" * 2 * KEY_BYTES_MAX
    found = key_bounds((col("host") >= long) & (col("host") <= long), TABLE)
    assert found == KeyBounds(b"x" * KEY_BYTES_MAX, b"x" * (KEY_BYTES_MAX - 1) + b"y")


# -- binding and the wire ----------------------------------------------------------------------------------------


def test_values_of_every_type_survive_the_wire() -> None:
    values = [
        True, 1, 1.0, "1", b"1", Decimal("1"), Decimal("1.0"), date(1970, 1, 2), FIVE, FIVE.replace(tzinfo=timezone.utc),
        2**80, -(2**63), float("inf"), pd.Timestamp(5), pd.Timestamp(5, tz="Europe/Berlin"),
    ]  # fmt: skip
    sent = [encode(col("x") == value) for value in values]
    assert len(set(sent)) == len(values)
    for value, data in zip(values, sent, strict=True):
        back = decode(data)
        assert back == (col("x") == value)
        received = python_value(back.value)  # type: ignore[attr-defined]
        assert (received, type(received)) == (value, type(value))
        assert str(getattr(received, "tzinfo", None)) in ("UTC", "None")


def test_binding_turns_values_into_the_columns_types_and_is_done_once() -> None:
    predicate = (
        (col("at") > FIVE.replace(tzinfo=timezone.utc))
        & (col("local") == pd.Timestamp(5))
        & (col("day") == date(1970, 1, 2))
        & (col("money") == 5)
        & (col("ratio") == 0.1)
        & col("n").is_in([np.int64(3), 4])
    )
    bound = bind(predicate, TABLE)
    data = [getattr(part, "value", None) or part.values for part in bound.parts]  # type: ignore[attr-defined]
    kinds = [(value.kind, value.data) for value in data[:-1]]
    assert kinds == [
        ("timestamp", 1_577_836_805_000),
        ("timestamp", 5),
        ("date", 1),
        ("decimal", "5.00"),
        ("float", float(np.float32(0.1))),
    ]
    assert bind(bound, TABLE) == bound == bind(decode(encode(bound)), TABLE)
    assert columns(bound) == columns(predicate) == ["at", "local", "day", "money", "ratio", "n"]


def test_a_condition_takes_an_int_for_a_float_column_if_the_column_holds_it_exactly() -> None:
    bound = bind((col("ratio") >= 2**24) & col("ratio").is_in([2**64, 0.1]), TABLE)
    first, second = bound.parts  # type: ignore[attr-defined]
    assert [first.value.data, *(value.data for value in second.values)] == [2.0**24, 2.0**64, np.float32(0.1)]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("nope", 1, "no column 'nope'"),
        ("n", 2**31, "an int of 32 bits"),
        ("n", 2**80, "an int of 32 bits"),
        ("n", 1.5, "an int of 32 bits"),
        ("n", "1", "an int of 32 bits"),
        ("n", True, "an int of 32 bits"),
        ("ratio", 2**24 + 1, "a float, or an int that 32 bits hold exactly"),
        ("ratio", 2**64 - 1, "a float, or an int that 32 bits hold exactly"),
        ("host", 1, "a str"),
        ("host", b"a", "a str"),
        ("tail", "a", "bytes"),
        ("flag", 1, "a bool"),
        ("day", FIVE, "a date"),
        ("at", FIVE, "a datetime with a zone, in whole ms"),
        ("at", FIVE.replace(microsecond=1, tzinfo=timezone.utc), "in whole ms"),
        ("local", FIVE.replace(tzinfo=timezone.utc), "a datetime without a zone"),
        ("money", Decimal("0.001"), "5 digits, 2 of them after the point"),
    ],
)
def test_a_value_that_the_column_cannot_hold_is_refused_by_name(
    column: str, value: Any, message: str
) -> None:
    for predicate in (col(column) == value, ~col(column).is_in([value])):
        with pytest.raises(InvalidArgument, match=message) as raised:
            bind(predicate, TABLE)
        assert raised.value.column == column
        with pytest.raises(InvalidArgument):
            key_bounds(predicate, TABLE)


def test_a_time_bound_to_another_column_type_is_refused() -> None:
    bound = bind(col("at") == FIVE.replace(tzinfo=timezone.utc), TABLE)
    stray = msgspec.structs.replace(bound, column="n")
    with pytest.raises(InvalidArgument, match="'n'"):
        bind(stray, TABLE)


def test_a_predicate_on_rows_that_lack_its_column_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="does not fit the rows"):
        mask(col("n") == 1, pa.record_batch({"m": [1]}))


def test_floats_compare_as_in_ieee_754_in_lists_too() -> None:
    batch = pa.record_batch({"x": [0.0, -0.0, float("nan"), None, 1.0]})
    nan = float("nan")
    assert mask(col("x") == -0.0, batch).to_pylist() == [True, True, False, False, False]
    assert mask(col("x").is_in([-0.0, nan]), batch).to_pylist() == [True, True, False, False, False]
    assert mask(~col("x").is_in([0.0, nan]), batch).to_pylist() == [False, False, True, False, True]
    assert mask(col("x") != nan, batch).to_pylist() == [True, True, True, False, True]


# -- mistakes ------------------------------------------------------------------------------------------------------


def test_python_words_in_place_of_operators_are_refused_with_the_remedy() -> None:
    a, b = col("a") == 1, col("b") == 2
    with pytest.raises(InvalidArgument, match=r"join conditions with & \| ~"):
        a and b  # noqa: B018
    with pytest.raises(InvalidArgument, match=r"join conditions with & \| ~"):
        not a  # noqa: B018
    with pytest.raises(InvalidArgument, match="write ranges as two"):
        1 < col("a") < 5  # noqa: B015


def test_forgotten_parentheses_are_refused_with_the_remedy() -> None:
    for mistake in (
        lambda: (col("a") == 1) & col("b"),
        lambda: col("a") & (col("b") == 1),
        lambda: col("a") == 1 & col("b") == 2,
        lambda: 1 | (col("a") == 1),
        lambda: ~col("a"),
        lambda: bool(col("a")),
        lambda: encode(col("a")),  # type: ignore[arg-type]
        lambda: (col("a") == 1) | None,  # type: ignore[operator]
    ):
        with pytest.raises(InvalidArgument, match="parentheses"):
            mistake()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: col("a") == None, "is_null"),  # noqa: E711
        (lambda: col("a").is_in([1, None]), "is_null"),
        (lambda: col("a") == col("b"), "with each other"),
        (lambda: col("a") == [1], "list"),
        (lambda: col("a") == pd.NaT, "NaTType"),
        (lambda: col("a").is_in("abc"), "list of values"),
        (lambda: col("a").is_in(range(conditions.ISIN_MAX + 1)), "10000"),
        (lambda: col(5), "named by a str"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_cannot_be_compared_is_refused_at_once(mistake: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        mistake()


def test_chains_stay_flat_and_nesting_has_a_limit() -> None:
    chain = reduce(operator.or_, [col("n") == value for value in range(1000)])
    assert isinstance(chain, Or) and len(chain.parts) == 1000
    assert mask(
        bind(chain, TABLE), pa.record_batch({"n": pa.array([999, 1000], pa.int32())})
    ).to_pylist() == [True, False]
    deep: Any = col("n") == 1
    for _ in range(conditions.DEPTH_MAX):
        deep = ~deep
    for refused in (lambda: bind(deep, TABLE), lambda: decode(encode(deep))):
        with pytest.raises(InvalidArgument, match="nests deeper"):
            refused()


def test_malformed_predicate_bytes_are_refused() -> None:
    good = msgspec.msgpack.decode(encode(col("n") == 1))
    for bad in (
        b"",
        b"\xc1",
        msgspec.msgpack.encode({**good, "relation": "~"}),
        msgspec.msgpack.encode({**good, "value": ["int", "1"]}),
        msgspec.msgpack.encode({**good, "value": ["complex", 1]}),
        msgspec.msgpack.encode({**good, "is": "sometimes"}),
        b"\x82\xa2is\xa3not\xa4part" * 5000,
    ):
        with pytest.raises(InvalidArgument, match="malformed predicate"):
            decode(bad)
    liar = msgspec.msgpack.encode({**good, "column": "money", "value": ["decimal", "x"]})
    with pytest.raises(InvalidArgument, match="'money' cannot be compared"):
        bind(decode(liar), TABLE)
