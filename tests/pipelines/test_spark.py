"""What Spark gets, without Spark running: the types of columns, nodes, options; and the wording of its errors."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from ebla.actors.errors import Unavailable
from ebla.pipelines import feed as feeding
from ebla.pipelines import raydp_app, session, verify
from ebla.pipelines.feed import arrow_schema, spark_cause
from ebla.pipelines.outcomes import FeedProgress
from ebla.pipelines.read import in_spark_types, spark_schema
from ebla.placement.deploy.slots import Host, Survey
from ebla.placement.extras import MissingPackage
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.altered import altered
from ebla.storage.schema import TableSchema
from ebla.write.alter import Changes


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


@pytest.mark.parametrize("kind", [t.NullType(), t.StructType([]), t.ArrayType(t.NullType())])
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


def test_the_cause_of_a_failed_job_is_the_python_line_in_the_java_stack_or_the_innermost_java_cause() -> None:
    stack = (
        "An error occurred while calling o42.collectToPython.\n: org.apache.spark.SparkException: Job aborted\n"
        "  File \"worker.py\", line 1, in main\nebla.actors.errors.TimedOut: upsert on table 't': no answer\n"
        "\n\tat org.apache.spark.api.python.BasePythonRunner\n"
    )
    assert spark_cause(RuntimeError(stack)) == "ebla.actors.errors.TimedOut: upsert on table 't': no answer"
    assert spark_cause(ValueError("ModuleNotFoundError: No module named 'ebla'")).startswith("ModuleNotFound")
    java = "An error occurred.\n: org.apache.spark.SparkException: aborted\nCaused by: java.io.IOException: full\n\tat x"
    assert spark_cause(RuntimeError(java)) == "java.io.IOException: full"
    assert spark_cause(RuntimeError("")) == "RuntimeError"


def test_progress_has_a_speed_from_the_first_moment() -> None:
    assert FeedProgress(0, None, 0, 0, 0.0).rows_per_s == 0.0
    assert FeedProgress(100, 200, 1, 2, 4.0).rows_per_s == 25.0


# -- from a table to Spark -----------------------------------------------------------------------------------


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
        "point": {"x": None, "at": datetime(2024, 5, 17, tzinfo=timezone.utc)},
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


def test_a_verification_takes_the_defaults_of_columns_that_the_source_lacks() -> None:
    values = {
        "small": 255,
        "large": (1 << 64) - 1,
        "took": timedelta(milliseconds=-5),
        "note": "{}",
        "tags": [None, 1],
        "point": {"x": -0.0, "at": datetime(2024, 5, 17, tzinfo=timezone.utc)},
        "m": [("a", 1), ("b", None)],
    }
    changes = Changes("t").add_column("plain", pa.string())
    for name, value in values.items():
        changes.add_column(name, NEWER.field(name).type, nullable=False, default=value)
    schema = altered(TableSchema.from_arrow(pa.schema([("k", pa.int16())]), ["k"]), changes.changes)
    kinds, found = verify._defaults(schema, ["k", "small"])
    assert kinds == spark_schema(NEWER, list(values)[1:])
    assert found == (*list(values.values())[1:-1], {"a": 1, "b": None})
    assert verify._defaults(schema, ["k", *values]) == (t.StructType([]), ())


# -- nodes and options ---------------------------------------------------------------------------------------


LASTING = Survey(tuple(Host(f"host-{n}", f"id{n}", f"10.0.0.{n}") for n in (1, 2, 3)))
MIXED = Survey((*LASTING.hosts, Host("id4", "id4", "10.0.0.4", lasting=False)))


def test_by_default_spark_uses_every_node() -> None:
    assert session._allowed(LASTING, [], []) is None


def test_nodes_are_chosen_by_their_labels() -> None:
    assert session._allowed(LASTING, ["host-2"], []) == {"ebla.slot": "in(host-2)"}
    assert session._allowed(LASTING, [], ["host-2"]) == {"ebla.slot": "in(host-1,host-3)"}
    assert session._allowed(LASTING, ["host-1", "host-2"], ["host-2"]) == {"ebla.slot": "in(host-1)"}


def test_nodes_without_a_label_are_chosen_by_their_id() -> None:
    assert session._allowed(MIXED, [], ["host-1"]) == {"ray.io/node-id": "in(id2,id3,id4)"}


def test_a_wanted_slot_must_exist_and_an_avoided_one_need_not() -> None:
    assert session._allowed(LASTING, [], ["gone"]) == {"ebla.slot": "in(host-1,host-2,host-3)"}
    with pytest.raises(InvalidArgument, match="no alive node has the slot 'gone'; the slots are host-1"):
        session._allowed(LASTING, ["gone"], [])


def test_spark_needs_a_node() -> None:
    with pytest.raises(InvalidArgument, match="no node is left for Spark"):
        session._allowed(LASTING, ["host-1"], ["host-1"])


def test_nothing_is_started_without_a_ray_cluster() -> None:
    with pytest.raises(Unavailable, match="not connected to a Ray cluster"), session.spark():
        pass


def test_an_interruption_before_the_application_removes_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    removed: list[object] = []
    for module, name in ((session, "_check"), (raydp_app, "check_versions"), (raydp_app, "check_free")):
        monkeypatch.setattr(module, name, lambda *arguments: None)
    monkeypatch.setattr(session.java, "java_home", lambda: None)
    monkeypatch.setattr(session.ray, "nodes", list)
    monkeypatch.setattr(session, "_places", lambda *arguments: "group")
    monkeypatch.setattr(session, "remove_placement_group", removed.append)
    monkeypatch.setattr(raydp_app, "place_of_master", interrupted)
    with pytest.raises(KeyboardInterrupt), session.spark():
        pass
    assert removed == ["group"]


def test_a_feed_that_cannot_begin_starts_no_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = TableSchema.from_arrow(pa.schema([("k", pa.int16())]), ["k"])
    routes = SimpleNamespace(schema=schema)
    table: Any = SimpleNamespace(name="t", primary_key=["k"], _awaited=SimpleNamespace(_routes=routes))
    table.connection = lambda: None  # cannot be pickled
    source: Any = SimpleNamespace(schema=spark_schema(schema.arrow()))
    started: list[str] = []
    monkeypatch.setattr(feeding, "_start_counter", started.append)
    with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
        feeding.feed(cast(Any, None), source, table)
    assert started == []


@pytest.mark.parametrize("kind", ["driver", "executor"])
def test_every_jvm_opens_the_packages_that_arrow_needs(kind: str) -> None:
    for quick in (True, False):
        options = raydp_app.java_options(quick, Path("/tmp/own"))
        assert "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED" in options[f"spark.{kind}.extraJavaOptions"]
        assert (
            "--add-opens=java.base/java.nio=ALL-UNNAMED"
            in options["spark.ray.raydp_app_master.extraJavaOptions"]
        )
    assert (
        "TieredStopAtLevel"
        not in raydp_app.java_options(False, Path("/tmp/own"))["spark.executor.extraJavaOptions"]
    )


def test_nodes_without_the_packages_of_spark_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    retrieved: list[object] = []

    def get(answer: object, timeout: float) -> object:
        retrieved.append(answer)
        return answer

    monkeypatch.setattr(session.ray, "get", get)
    session._require_packages({"a" * 28: cast(Any, None)}, {})
    with pytest.raises(
        MissingPackage, match=r'bbbbbbbb cannot run Spark.*pyspark.*"ebla\[spark\]"'
    ) as caught:
        session._require_packages(cast(Any, {"a" * 28: None, "b" * 28: "pyspark"}), cast(Any, {"b": "error"}))
    assert (caught.value.extra, caught.value.module) == ("spark", "pyspark")
    assert retrieved[-1] == "error"
