"""Conversion between columns of a table and Spark's types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from ebla.pipelines.read import in_spark_types, spark_schema
from ebla.storage.errors import InvalidArgument

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int16(), nullable=False),
        ("at", pa.timestamp("s", "Europe/Rome")),
        ("wall", pa.timestamp("ns")),
        ("price", pa.decimal128(20, 3)),
        ("raw", pa.binary()),
    ]
)


def test_every_column_has_a_type_in_spark_and_timestamps_are_in_microseconds() -> None:
    assert spark_schema(SCHEMA).simpleString() == (
        "struct<k:smallint,at:timestamp,wall:timestamp_ntz,price:decimal(20,3),raw:binary>"
    )
    assert spark_schema(SCHEMA, ["raw", "k"]).names == ["raw", "k"]
    assert not spark_schema(SCHEMA)["k"].nullable


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(InvalidArgument, match="no column 'x'"):
        spark_schema(SCHEMA, ["x"])


def test_conversion_keeps_instants() -> None:
    rows = pa.record_batch(
        [[1], pa.array([5], pa.timestamp("s", "Europe/Rome")), pa.array([7_000], pa.timestamp("ns"))],
        names=["k", "at", "wall"],
    ).cast(pa.schema([SCHEMA.field(n) for n in ("k", "at", "wall")]))
    wanted = to_arrow_schema(spark_schema(SCHEMA, ["at", "wall"]))
    found = in_spark_types(rows, wanted)
    assert found.schema == wanted
    assert found["at"].cast(pa.int64()).to_pylist() == [5_000_000]
    assert found["wall"].cast(pa.int64()).to_pylist() == [7]


def test_a_time_that_spark_cannot_hold_is_refused_and_never_rounded() -> None:
    rows = pa.record_batch([pa.array([7_001], pa.timestamp("ns"))], names=["wall"])
    with pytest.raises(InvalidArgument, match=r"column 'wall'.*leave the column out") as caught:
        in_spark_types(rows, to_arrow_schema(spark_schema(SCHEMA, ["wall"])))
    assert caught.value.column == "wall"


NEWER = pa.schema(
    [
        ("small", pa.uint8()),
        ("large", pa.uint64()),
        ("took", pa.duration("ms")),
        ("note", pa.json_()),
        ("tags", pa.list_(pa.uint32())),
        ("point", pa.struct([("x", pa.float64()), ("at", pa.timestamp("s", "UTC"))])),
        ("m", pa.map_(pa.string(), pa.uint64())),
    ]
)


def test_newer_types_have_the_nearest_type_of_spark_and_keep_their_values() -> None:
    made = spark_schema(NEWER)
    assert made.simpleString() == (
        "struct<small:smallint,large:decimal(20,0),took:interval day to second,note:string,tags:array<bigint>,"
        "point:struct<x:double,at:timestamp>,m:map<string,decimal(20,0)>>"
    )
    row = {
        "small": 255,
        "large": (1 << 64) - 1,
        "took": timedelta(milliseconds=-5),
        "note": "{}",
        "tags": [None, (1 << 32) - 1],
        "point": {"x": None, "at": datetime(2024, 5, 17, tzinfo=UTC)},
        "m": [("a", (1 << 64) - 1), ("b", None)],
    }
    found = in_spark_types(pa.RecordBatch.from_pylist([row, {}], schema=NEWER), to_arrow_schema(made))
    assert found.to_pylist()[0] == row
    assert found.to_pylist()[1] == dict.fromkeys(row)


def test_a_column_of_times_of_day_is_refused_by_name() -> None:
    for kind in (pa.time32("s"), pa.list_(pa.time64("us"))):
        schema = SCHEMA.append(pa.field("clock", kind))
        with pytest.raises(
            InvalidArgument, match=r"'clock' has times of day.*leave the column out"
        ) as caught:
            spark_schema(schema)
        assert caught.value.column == "clock"
        assert spark_schema(schema, ["k"]).names == ["k"]
