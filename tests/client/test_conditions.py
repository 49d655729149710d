"""The operators of `ebla.col`: prefixes, lists and nulls, evaluated where the rows are."""

from __future__ import annotations

import copy
import enum
import sys
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from http import HTTPStatus
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ebla
from ebla import aio
from ebla.storage.predicates import expressions
from ebla.storage.predicates.expressions import bind, key_bounds, mask
from ebla.storage.schema import TableSchema
from tests.client.tables import on_table, rows
from tests.client.toy import Bench

SCHEMA = pa.schema([("name", pa.string()), ("data", pa.binary()), ("n", pa.int32())])
TABLE = TableSchema.from_arrow(SCHEMA, ["name", "data"])
HIGHEST = chr(sys.maxunicode)
# Characters beside every edge of the order of texts, among them the gap of the surrogates.
TEXTS = st.text(
    st.sampled_from(["a", "b", "\x00", "\ud7ff", "\ue000", "\uffff", "\U00010000", HIGHEST]), max_size=4
)
BYTES = st.binary(max_size=3) | st.sampled_from([b"\xff", b"\xff\xff", b"a\xff"])


def matches(
    condition: ebla.Expression, column: str, values: list[str | None] | list[bytes | None]
) -> list[bool]:
    """The rows that match. The condition is sent as bytes before it is evaluated."""
    sent = expressions.decode(expressions.encode(bind(condition, TABLE)))
    batch = pa.RecordBatch.from_pydict({column: pa.array(values, SCHEMA.field(column).type)})
    found: list[bool] = mask(sent, batch).to_pylist()
    return found


@given(TEXTS, st.lists(TEXTS, max_size=8))
def test_starts_with_is_pythons_startswith_for_texts(prefix: str, texts: list[str]) -> None:
    values = [*texts, *(prefix + text for text in texts), None]
    expected = [value is not None and value.startswith(prefix) for value in values]
    assert matches(ebla.col("name").starts_with(prefix), "name", values) == expected


@given(BYTES, st.lists(BYTES, max_size=8))
def test_starts_with_is_pythons_startswith_for_bytes(prefix: bytes, texts: list[bytes]) -> None:
    values = [*texts, *(prefix + text for text in texts), None]
    expected = [value is not None and value.startswith(prefix) for value in values]
    assert matches(ebla.col("data").starts_with(prefix), "data", values) == expected


def test_a_prefix_of_the_key_bounds_the_scan() -> None:
    bounds = key_bounds(ebla.col("name").starts_with("JF"), TABLE)
    assert (bounds.start, bounds.stop) == (b"JF\0\0", b"JG\0\0")
    above = key_bounds(ebla.col("name").starts_with(HIGHEST), TABLE)
    assert (above.start, above.stop) == (HIGHEST.encode() + b"\0\0", None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ebla.col("name").starts_with(5), "starts_with takes a str, or bytes"),
        (lambda: ebla.col("name").starts_with(None), "starts_with takes a str, or bytes"),
        (lambda: ebla.col("n").starts_with(1), "columns of other types are compared, with ==, <"),
        (
            lambda: bind(ebla.col("n").starts_with("1"), TABLE),
            "'n' is int32, and starts_with is for string and binary",
        ),
        (lambda: bind(ebla.col("name").starts_with(b"1"), TABLE), "'name' cannot be compared"),
        (lambda: bind(ebla.col("name").starts_with("\ud800"), TABLE), "'name' cannot be compared"),
        (lambda: ebla.col("name").is_in("abc"), "is_in takes a list"),
    ],
)
def test_an_operator_refuses_values_that_do_not_fit(make: object, words: str) -> None:
    with pytest.raises(ebla.InvalidArgument, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("other", "hint"),
    [
        ("isin", r"use is_in\("),
        ("isnull", r"use is_null\("),
        ("isna", r"use is_null\("),
        ("is_none", r"use is_null\("),
        ("notnull", r"use is_not_null\("),
        ("notna", r"use is_not_null\("),
        ("not_null", r"use is_not_null\("),
        ("startswith", r"use starts_with\("),
        (
            "between",
            r'only is_in, starts_with, is_null, is_not_null, and .*\(col\("a"\) >= 1\) & \(col\("a"\) < 5\)',
        ),
    ],
)
def test_another_librarys_name_of_an_operator_is_refused_with_eblas(other: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"a column has no '{other}'.*{hint}"):
        getattr(ebla.col("name"), other)
    assert copy.deepcopy(ebla.col("name")).name == "name"


class Color(str, enum.Enum):
    RED = "red"


class Price(Decimal, enum.Enum):
    LOW = "1.5"


class Ratio(float, enum.Enum):
    HALF = 0.5


class Mark(bytes, enum.Enum):
    FIRST = b"\x01"


class Day(date, enum.Enum):
    FIRST = (2020, 1, 2)


class Opening(time, enum.Enum):
    EARLY = (5, 30)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (HTTPStatus.OK, 200),
        (Color.RED, "red"),
        (Price.LOW, Decimal("1.5")),
        (Ratio.HALF, 0.5),
        (Mark.FIRST, b"\x01"),
        (Day.FIRST, date(2020, 1, 2)),
        (Opening.EARLY, time(5, 30)),
    ],
)
def test_a_member_of_an_enum_in_a_condition_is_its_value(given: Any, plain: Any) -> None:
    column = ebla.col("x")
    assert repr(column == given) == repr(column == plain)
    assert repr(column != given) == repr(column != plain)
    assert repr(column.is_in([given])) == repr(column.is_in([plain]))
    if isinstance(plain, (str, bytes)):
        assert repr(column.starts_with(given)) == repr(column.starts_with(plain))


def test_a_member_of_an_enum_names_the_column_that_is_its_value() -> None:
    made = ebla.col(Color.RED) == "a"
    assert repr(made) == "col('red') == 'a'"
    schema = TableSchema.from_arrow(pa.schema([("red", pa.string())]), ["red"])
    assert bind(made, schema) == bind(ebla.col("red") == "a", schema)


@pytest.mark.parametrize(
    "given",
    [
        pa.scalar(1, pa.time64("ns")),
        pa.array([1], pa.time64("ns")).dictionary_encode()[0],
        pa.scalar(86_400_001, pa.date64()),
        pa.scalar(2**62, pa.timestamp("us")),
        pa.scalar(2**62, pa.timestamp("us", "UTC")),
        pa.scalar(2**62, pa.duration("s")),
        pa.scalar(2**31 - 1, pa.date32()),
    ],
)
def test_an_arrow_scalar_for_which_python_has_no_value_is_refused_with_its_column(given: pa.Scalar) -> None:
    with pytest.raises(ebla.InvalidArgument, match=r"'at' cannot be compared with the .* no exact value"):
        ebla.col("at") == given  # noqa: B015  the comparison itself is refused
    with pytest.raises(ebla.InvalidArgument, match="no exact value"):
        ebla.col("at").is_in([given])


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (pa.scalar(1000, pa.time64("ns")), time(0, 0, 0, 1)),
        (pa.scalar(86_400_000, pa.date64()), date(1970, 1, 2)),
        (pa.scalar(1, pa.timestamp("s", "UTC")), datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)),
        (pa.scalar(1, pa.duration("s")), timedelta(seconds=1)),
        (pa.scalar("a", pa.dictionary(pa.int8(), pa.string())), "a"),
    ],
)
def test_an_arrow_scalar_in_a_condition_is_its_python_value(given: pa.Scalar, plain: Any) -> None:
    assert repr(ebla.col("at") == given) == repr(ebla.col("at") == plain)


@on_table(1)
async def test_servers_evaluate_prefixes_lists_and_nulls(bench: Bench, table: aio.Table) -> None:
    await table.upsert([*rows(*range(20)), {"id": 20}])
    col = ebla.col
    for where, expected in (
        (col("v").starts_with("v1"), [1, *range(10, 20)]),
        (col("id").is_in([3, 20, 99]), [3, 20]),
        (col("id").is_in(pa.array([3, 20])) & (col("id") > pa.scalar(3)), [20]),
        (col("v").is_null(), [20]),
        (col("v").is_not_null() & (col("id") > 17), [18, 19]),
        (~col("v").starts_with("v"), []),
    ):
        bench.toy.calls.clear()
        found = await table.scan(["id"], where).to_arrow()
        assert found["id"].to_pylist() == expected, where
        (request,) = bench.toy.requests("scan")
        assert request.predicate is not None
        assert await table.count(where) == len(expected)
