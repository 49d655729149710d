"""Nulls of structs with fields that take no null: other programs take the arrays that ebla returns."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ebla.storage.arrow_types import column_of
from ebla.storage.rows.alteration import AddColumn
from ebla.storage.rows.altered import altered
from ebla.storage.rows.convert import to_array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import TableSchema
from tests.storage.test_rows import SEED, joined


def strict(**kinds: pa.DataType) -> pa.DataType:
    """A struct whose fields take no null."""
    return pa.struct([pa.field(name, kind, False) for name, kind in kinds.items()])


PLAIN = strict(n=pa.int64(), yes=pa.bool_(), text=pa.string(), day=pa.date32(), price=pa.decimal128(5, 2))
CASES = [
    (PLAIN, [None, None]),
    (strict(n=pa.int64()), [{"n": 1}, None, {"n": 2}]),
    (pa.struct([("a", strict(n=pa.int64())), ("b", pa.string())]), [None, {"a": None, "b": "x"}]),
    (strict(a=strict(n=pa.binary())), [None, {"a": {"n": b"x"}}]),
    (strict(a=pa.list_(pa.field("item", pa.int8(), False)), b=pa.map_(pa.string(), pa.int8())), [None, None]),
    (pa.list_(strict(n=pa.int64())), [[{"n": 1}, None], None]),
    (pa.map_(pa.string(), strict(text=pa.string())), [[("a", None), ("b", {"text": "s"})], None]),
]


def check(array: pa.Array | pa.ChunkedArray) -> None:
    """Arrow casts the array, and writes it as parquet."""
    array.validate(full=True)
    array.cast(array.type)
    pq.write_table(pa.table({"v": array}), io.BytesIO())


@pytest.mark.parametrize(("kind", "values"), CASES)
def test_a_null_struct_has_no_nulls_in_the_fields_that_take_none(
    kind: pa.DataType, values: list[Any]
) -> None:
    codec = RowCodec(TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("v", kind)]), ["k"]))
    batch = codec.arrow([{"k": place, "v": value} for place, value in enumerate(values)])
    stored = joined(codec, batch)
    found = codec.decode(stored, SEED)
    given = pa.table({"k": batch.column("k"), "v": pa.array(values, kind)})
    for rows in (
        batch,
        codec.arrow(given),
        found,
        found.filter(pa.array([True] * len(values))),
        found.slice(1),
    ):
        check(rows.column("v"))
    assert found.to_pylist() == batch.to_pylist()
    assert joined(codec, found) == stored


def test_an_added_column_without_a_default_has_no_nulls_in_the_fields_that_take_none() -> None:
    schema = TableSchema.from_arrow(pa.schema([("k", pa.int64())]), ["k"])
    stored = joined(RowCodec(schema), RowCodec(schema).arrow([{"k": 1}]))
    newer = RowCodec(altered(schema, [AddColumn(column_of(pa.field("v", PLAIN)))]))
    for rows in (newer.decode(stored, SEED), newer.arrow([{"k": 1}])):
        assert rows.column("v").to_pylist() == [None]
        check(rows.column("v"))


def test_nulls_without_a_type_become_a_struct_with_no_nulls_in_the_fields_that_take_none() -> None:
    column = column_of(pa.field("v", PLAIN))
    check(to_array(column, pa.nulls(2)))
