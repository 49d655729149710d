"""Keys as bytes: order, equality, and the encoding that must never change."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.errors import InvalidArgument
from ebla.storage.rows import ragged
from ebla.storage.rows.keys import KeyCodec, successor
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import KEY_BYTES_MAX, Column, TableSchema
from tests.storage.tables import plain, tables


def codec(*columns: Column) -> RowCodec:
    return RowCodec(TableSchema(columns, tuple(column.name for column in columns if not column.nullable)))


def key_columns(rows: RowCodec, batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch]).select(list(rows.schema.key))


def bits(array: pa.Array) -> bytes:
    """Its values: a NaN equals itself."""
    found: bytes = array.buffers()[1].to_pybytes()
    return found


@given(tables(rows_max=12, values_max=0))
@settings(max_examples=80, deadline=None)
def test_byte_order_is_the_order_in_which_arrow_sorts_the_key_columns(table: Any) -> None:
    rows, batch = table
    keys = rows.encode_keys(batch)
    order = pc.sort_indices(
        key_columns(rows, batch), sort_keys=[(name, "ascending") for name in rows.schema.key]
    )
    ordered = keys.take(order).to_pylist()
    assert all(a <= b for a, b in pairwise(ordered))


@given(tables(rows_max=12, values_max=0))
@settings(max_examples=40, deadline=None)
def test_keys_are_equal_bytes_exactly_when_they_are_equal_values(table: Any) -> None:
    rows, batch = table
    keys = rows.encode_keys(batch).to_pylist()
    values = [tuple(row.values()) for row in plain(key_columns(rows, batch).to_pylist())]  # -0.0 == 0.0 there
    assert len(set(keys)) == len(set(values))


@given(tables(values_max=0))
@settings(max_examples=40, deadline=None)
def test_one_row_and_a_batch_are_encoded_to_the_same_key(table: Any) -> None:
    rows, batch = table
    assert [rows.encode_key(row) for row in batch.to_pylist()] == rows.encode_keys(batch).to_pylist()


@given(tables(rows_min=1, values_max=0))
@settings(max_examples=80, deadline=None)
def test_keys_of_fixed_width_are_decoded_alike_with_and_without_a_gather(table: Any) -> None:
    rows, batch = table
    names = [column.name for column in rows.schema.key_columns() if not column.variable]
    keys = KeyCodec([rows.schema.column(name) for name in names] or [Column("k", "int16")])
    made = keys.encode(batch if names else pa.record_batch({"k": pa.array([-1, 0, 1], pa.int16())}))
    data, places = ragged.content(made).tobytes(), ragged.offsets(made)
    wanted = [column.name for column in keys.columns]
    gathered = keys.decode(data, places[:-1], places[1:], [], wanted)
    assert keys.decode_fixed(data, wanted).keys() == gathered.keys() == set(wanted)
    for name, array in keys.decode_fixed(data, wanted).items():
        array.validate(full=True)
        assert (array.type, len(array)) == (gathered[name].type, len(batch) if names else 3)
        assert bits(array) == bits(gathered[name]) == bits(keys.decode_fixed(data, [name])[name])


@given(tables(rows_min=1, values_max=0))
@settings(max_examples=40, deadline=None)
def test_a_closed_key_is_no_prefix_of_another(table: Any) -> None:
    rows, batch = table
    closed = KeyCodec(rows.schema.key_columns(), open_end=False)
    made = sorted(set(closed.encode(batch).to_pylist()))
    assert not any(b.startswith(a) for a, b in pairwise(made))
    assert [closed.encode_row(row) for row in batch.to_pylist()] == closed.encode(batch).to_pylist()


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_the_successor_is_above_every_key_with_the_prefix(prefix: bytes, rest: bytes) -> None:
    above = successor(prefix)
    if above is None:
        assert set(prefix) <= {0xFF}
    else:
        assert prefix + rest < above
        # and every key between them begins with the prefix
        assert above[:-1] + bytes([above[-1] - 1]) == prefix[: len(above)]


@pytest.mark.filterwarnings("error")
def test_there_is_one_zero_and_one_nan_and_nan_sorts_last() -> None:
    rows = codec(Column("x", "double", False))
    weird_nan = pa.array([0xFFF0_0000_0000_0001], pa.uint64()).view(pa.float64())  # negative, signalling
    values = pa.concat_arrays([pa.array([-0.0, 0.0, float("inf"), float("nan")]), weird_nan])
    keys = rows.encode_keys(pa.record_batch([values], ["x"])).to_pylist()
    assert keys[0] == keys[1]
    assert keys[3] == keys[4] == max(keys)
    assert keys[2] < keys[3]
    assert keys == [rows.encode_key({"x": value}) for value in values.to_pylist()]


GOLDEN: list[tuple[Column, Any, str]] = [
    (Column("k", "int8"), -2, "7e"),
    (Column("k", "int16"), 1, "8001"),
    (Column("k", "int32"), -1, "7fffffff"),
    (Column("k", "int64"), 258, "8000000000000102"),
    (Column("k", "float"), 1.5, "bfc00000"),
    (Column("k", "double"), -1.5, "4007ffffffffffff"),
    (Column("k", "double"), -0.0, "8000000000000000"),
    (Column("k", "double"), float("nan"), "fff8000000000000"),
    (Column("k", "bool"), True, "01"),
    (Column("k", "date"), date(1969, 12, 31), "7fffffff"),
    (
        Column("k", "timestamp", unit="ms", zone="UTC"),
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc),
        "80000000000003e8",
    ),
    (Column("k", "decimal", precision=10, scale=2), Decimal("-0.01"), "7f" + "ff" * 15),
    (Column("k", "string"), "a\x00é", "61 0001 c3a9 0000"),
    (Column("k", "binary"), b"\x00\x01", "0001 01 0000"),
]


@pytest.mark.parametrize(("column", "value", "expected"), GOLDEN)
def test_the_closed_form_of_every_type_never_changes(column: Column, value: Any, expected: str) -> None:
    closed = KeyCodec([column], open_end=False)
    assert closed.encode_row({"k": value}) == bytes.fromhex(expected)
    batch = pa.record_batch([pa.array([value], column.arrow_type())], ["k"])
    assert closed.encode(batch).to_pylist() == [bytes.fromhex(expected)]


def test_the_last_text_of_a_key_is_stored_unescaped() -> None:
    rows = codec(Column("a", "string", False), Column("b", "string", False))
    assert rows.encode_key({"a": "x\0", "b": "y\0"}) == b"x\x00\x01\x00\x00y\x00"


def test_a_null_in_a_key_column_is_refused_with_its_row() -> None:
    rows = codec(Column("a", "int32", False), Column("b", "string", False))
    batch = pa.record_batch({"a": pa.array([1, 2], pa.int32()), "b": ["x", None]})
    with pytest.raises(InvalidArgument, match="row 1") as raised:
        rows.encode_keys(batch)
    assert (raised.value.column, raised.value.row) == ("b", 1)
    for row in ({"a": 1}, {"a": 1, "b": None}):
        with pytest.raises(InvalidArgument, match="'b'") as raised:
            rows.encode_key(row)
        assert raised.value.column == "b"


def test_a_key_over_the_limit_is_refused_with_its_row_and_longest_column() -> None:
    rows = codec(Column("a", "string", False), Column("b", "int32", False), Column("c", "binary", False))
    fits = {"a": "x" * (KEY_BYTES_MAX - 7), "b": 1, "c": b"y"}
    over = {**fits, "c": b"yy"}
    assert len(rows.encode_key(fits)) == KEY_BYTES_MAX
    with pytest.raises(InvalidArgument, match="481") as raised:
        rows.encode_keys(rows.arrow([fits, over, over]))
    assert (raised.value.column, raised.value.row) == ("a", 1)
    with pytest.raises(InvalidArgument, match="481") as raised:
        rows.encode_key(over)
    assert raised.value.column == "a"


def test_escaped_zeros_in_texts_count_for_the_limit() -> None:
    rows = codec(Column("a", "string", False), Column("b", "int8", False))
    with pytest.raises(InvalidArgument, match="limit"):
        rows.encode_keys(rows.arrow([{"a": "\0" * 240, "b": 1}]))
    assert len(rows.encode_key({"a": "\0" * 238, "b": 1})) == 479


def test_an_empty_key_is_refused() -> None:
    rows = codec(Column("a", "string", False))
    with pytest.raises(InvalidArgument, match="empty") as raised:
        rows.encode_keys(rows.arrow({"a": ["x", ""]}))
    assert (raised.value.column, raised.value.row) == ("a", 1)
    with pytest.raises(InvalidArgument, match="empty"):
        rows.encode_key({"a": ""})


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (Column("k", "int8", False), 128),
        (Column("k", "int64", False), 1 << 63),
        (Column("k", "int64", False), "1"),
        (Column("k", "int64", False), True),
        (Column("k", "string", False), b"x"),
        (Column("k", "binary", False), "x"),
        (Column("k", "date", False), datetime(2020, 1, 1)),  # noqa: DTZ001
        (Column("k", "timestamp", False, unit="us", zone="UTC"), datetime(2020, 1, 1)),  # noqa: DTZ001
        (Column("k", "timestamp", False, unit="ns", zone="UTC"), datetime(2900, 1, 1, tzinfo=timezone.utc)),
        (Column("k", "decimal", False, precision=3, scale=2), Decimal("1.234")),
    ],
)
def test_a_value_that_does_not_fit_its_key_column_is_refused_by_name(column: Column, value: Any) -> None:
    rows = codec(column)
    with pytest.raises(InvalidArgument) as raised:
        rows.encode_key({"k": value})
    assert raised.value.column == "k"
    with pytest.raises(InvalidArgument) as raised:
        rows.arrow({"k": [value]})
    assert (raised.value.column, raised.value.row) == ("k", 0)


def test_more_bytes_than_32_bit_offsets_hold_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="smaller batches"):
        ragged.check_total(1 << 31)


@pytest.mark.parametrize("row", [defaultdict(int, v=5), Counter(v=5), {"v": 5}, {"k": None, "v": 5}])
def test_a_row_without_its_key_is_refused_in_every_class_of_dict(row: Any) -> None:
    rows = codec(Column("k", "int64", False), Column("v", "int64"))
    for attempt in (lambda: rows.encode_row(row, 0), lambda: rows.encode_key(row), lambda: rows.arrow([row])):
        with pytest.raises(InvalidArgument, match="'k'") as raised:
            attempt()
        assert raised.value.column == "k"
    assert list(row)[-1] == "v", "the row is not changed"
