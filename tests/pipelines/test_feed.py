"""Refusals before a feed begins, and the wording of Spark's errors."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from ebla.pipelines.feed import _spark_cause, arrow_schema
from ebla.pipelines.outcomes import FeedProgress
from ebla.pipelines.target import check_columns
from ebla.storage.errors import InvalidArgument

WANTED = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string()), ("w", pa.float64())])


def test_the_columns_of_a_dataframe_become_those_of_a_table() -> None:
    schema = t.StructType(
        [
            t.StructField("k", t.ShortType(), False),
            t.StructField("at", t.TimestampType()),
            t.StructField("wall", t.TimestampNTZType()),
            t.StructField("day", t.DateType()),
            t.StructField("price", t.DecimalType(12, 2)),
            t.StructField("raw", t.BinaryType()),
        ]
    )
    assert arrow_schema(schema) == pa.schema(
        [
            pa.field("k", pa.int16(), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
            ("wall", pa.timestamp("us")),
            ("day", pa.date32()),
            ("price", pa.decimal128(12, 2)),
            ("raw", pa.binary()),
        ]
    )


@pytest.mark.parametrize(
    "kind",
    [
        t.NullType(),
        t.StructType([]),
        t.ArrayType(t.NullType()),
    ],
)
def test_a_type_that_no_table_holds_is_refused_with_its_column(kind: t.DataType) -> None:
    with pytest.raises(InvalidArgument, match=r"column 'odd(\[\])?' .* ebla does not store") as caught:
        arrow_schema(t.StructType([t.StructField("odd", kind)]))
    assert caught.value.column == "odd"


def test_nested_types_and_durations_of_spark_are_those_of_a_table() -> None:
    made = arrow_schema(
        t.StructType(
            [
                t.StructField("tags", t.ArrayType(t.IntegerType())),
                t.StructField("counts", t.MapType(t.StringType(), t.LongType())),
                t.StructField("place", t.StructType([t.StructField("x", t.DoubleType())])),
                t.StructField("lasted", t.DayTimeIntervalType()),
            ]
        )
    )
    assert made.types == [
        pa.list_(pa.field("element", pa.int32())),
        pa.map_(pa.string(), pa.int64()),
        pa.struct([("x", pa.float64())]),
        pa.duration("us"),
    ]


def test_a_column_that_the_table_lacks_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"no column 'x'.*drop it.*k, v, w") as caught:
        check_columns(pa.schema([("k", pa.int64()), ("x", pa.int8())]), "t", WANTED)
    assert caught.value.column == "x"


def test_a_missing_column_matters_only_if_it_may_not_be_null() -> None:
    check_columns(pa.schema([("k", pa.int64())]), "t", WANTED)
    with pytest.raises(InvalidArgument, match=r"no column 'k'.*needs") as caught:
        check_columns(pa.schema([("v", pa.string())]), "t", WANTED)
    assert caught.value.column == "k"


def test_the_cause_of_a_failed_job_is_the_python_line_in_the_java_stack() -> None:
    stack = (
        "An error occurred while calling o42.collectToPython.\n: org.apache.spark.SparkException: Job aborted\n"
        "  File \"worker.py\", line 1, in main\nebla.actors.errors.TimedOut: upsert on table 't': no answer\n"
        "\n\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    assert _spark_cause(RuntimeError(stack)) == "ebla.actors.errors.TimedOut: upsert on table 't': no answer"
    assert _spark_cause(ValueError("ModuleNotFoundError: No module named 'ebla'")).startswith(
        "ModuleNotFound"
    )
    assert _spark_cause(RuntimeError("")) == "RuntimeError"


def test_progress_has_a_speed_from_the_first_moment() -> None:
    assert FeedProgress(0, None, 0, 0, 0.0).rows_per_s == 0.0
    assert FeedProgress(100, 200, 1, 2, 4.0).rows_per_s == 25.0
