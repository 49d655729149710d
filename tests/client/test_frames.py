"""Results of scans as frames of pandas and Polars, and relations of DuckDB."""

from __future__ import annotations

import sys
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pytest

import ebla
from ebla.errors import InvalidArgument
from ebla.read import frames
from ebla.storage.arrow_types import column_of
from ebla.storage.rows.convert import to_array
from tests.client.loopback import Loopback
from tests.client.tables import rich_rows


def test_results_for_polars_and_duckdb_have_the_scans_types(rich: ebla.Table) -> None:
    rich.upsert(rich_rows(10))
    scan = rich.scan(["id", "tags"], ebla.col("id") < 4)
    frame = scan.to_polars().sort("id")
    assert frame["tags"].to_list() == [None, ["a"], ["a", None], ["a", None, "3"]]
    assert sorted(scan.to_duckdb().fetchall())[1] == (1, ["a"])
    connection = duckdb.connect()
    found = scan.to_duckdb(connection)
    connection.register("found", found)
    assert connection.sql("select sum(id) from found").fetchall() == [(6,)]


def test_a_connection_that_is_none_of_duckdb_is_refused(table: ebla.Table) -> None:
    with pytest.raises(InvalidArgument, match=r"connection is 'x.db'; give duckdb.connect\('x.db'\)"):
        table.scan().to_duckdb("x.db")


@pytest.mark.parametrize("package", ["polars", "duckdb"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    table: ebla.Table, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(frames.MissingPackage, match=f"pip install {package}$") as raised:
        getattr(table.scan(), f"to_{package}")()
    assert isinstance(raised.value, ImportError) and raised.value.module == package


@pytest.mark.parametrize(("unit", "value"), [("ns", 1001), ("s", 1 << 62), ("ms", 1 << 62)])
def test_a_duration_that_duckdb_would_change_is_refused(unit: str, value: int) -> None:
    kind = pa.duration(unit)
    for values, of in (([value], kind), ([[value]], pa.list_(kind))):
        with pytest.raises(InvalidArgument, match=r"'took' .* holds a value that DuckDB cannot express"):
            frames.relation(pa.table({"took": pa.array(values, of)}), duckdb.connect())
    found = frames.relation(pa.table({"took": pa.array([1000], kind)}), duckdb.connect())
    assert (
        found.to_arrow_table()["took"][0].as_py().nanoseconds
        == {"ns": 1, "s": 10**9, "ms": 10**6}[unit] * 1000
    )


TIME = pandas.Timestamp(2020, 1, 1, 12, nanosecond=1)
SPAN = pandas.Timedelta(5, unit="ns")
ZONED = TIME.tz_localize("Europe/Zurich")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.struct([("t", pa.timestamp("ns"))]), [{"t": TIME}, None, {"t": None}]),
        (
            pa.struct([("d", pa.duration("ns")), ("n", pa.int8())]),
            [{"d": SPAN, "n": None}, {"d": None, "n": 1}],
        ),
        (pa.map_(pa.string(), pa.timestamp("ns", "Europe/Zurich")), [[("a", ZONED), ("b", None)], []]),
        (pa.map_(pa.duration("ns"), pa.int64()), [[(SPAN, None)]]),
        (pa.list_(pa.struct([("s", pa.struct([("t", pa.timestamp("ns"))]))])), [[{"s": {"t": TIME}}, None]]),
    ],
)
def test_times_in_nanoseconds_in_structs_and_maps_are_times_in_pandas(
    kind: pa.DataType, values: list[Any]
) -> None:
    frame = frames.pandas_frame(pa.table({"id": range(len(values)), "v": pa.array(values, kind)}))
    assert frame["v"].tolist() == values
    assert to_array(column_of(pa.field("v", kind)), frame["v"]).to_pylist() == values


@pytest.mark.parametrize(
    "kind", [pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.duration("us"), pa.duration("ns")]
)
def test_the_least_time_of_64_bits_is_refused_where_pandas_would_take_it_for_null(kind: pa.DataType) -> None:
    least = pa.array([1 - (1 << 63), None, -1 << 63]).view(kind)
    inside = pa.StructArray.from_arrays([least], ["x"])
    listed = pa.ListArray.from_arrays([0, 1, 2, 3], least)
    for array in (least, inside, listed):
        with pytest.raises(InvalidArgument, match=r"'v' .* holds a value that pandas cannot express"):
            frames.pandas_frame(pa.table({"v": array}))
    assert frames.pandas_frame(pa.table({"v": least.slice(1, 1)}))["v"].isna().all()


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")])
def test_the_least_time_in_nanoseconds_is_refused_as_a_value_of_python(
    loopback: Loopback, kind: pa.DataType
) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", kind), ("l", pa.list_(kind))])
    table = loopback.db.create_table("least", schema=schema, primary_key=["k"])
    least = pa.array([-1 << 63]).view(kind)
    table.upsert(pa.table({"k": [1], "v": least}))
    table.upsert(pa.table({"k": [2], "l": pa.ListArray.from_arrays([0, 1], least)}))
    for key, column in ((1, "v"), (2, "l")):
        for read in (
            lambda key: table.get({"k": key}),
            lambda key: list(table.scan(where=ebla.col("k") == key)),
        ):
            with pytest.raises(InvalidArgument, match="read it as Arrow") as raised:
                read(key)
            assert raised.value.column == column
    assert table.scan().to_arrow().sort_by("k")["v"][0].equals(least[0])
