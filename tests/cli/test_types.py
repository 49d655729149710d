"""Columns of nested and timed types on the command line: declared, described, altered, filtered and shown."""

from __future__ import annotations

import json
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import pytest

from ebla.cli.frame.problems import Usage
from ebla.cli.frame.values import from_text
from ebla.cli.tables.schemas import parse_column
from ebla.storage.rows.convert import to_array
from tests.cli.stage import Cli, Stage

RICH = pa.schema(
    [
        pa.field("k", pa.int64(), False),
        ("clock", pa.time64("us")),
        ("took", pa.duration("ms")),
        ("exact", pa.duration("ns")),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.float64())])),
        ("m", pa.map_(pa.string(), pa.int8())),
        ("note", pa.json_()),
    ]
)
ROW = {
    "k": 1,
    "clock": time(5, 30),
    "took": timedelta(minutes=90),
    "exact": pd.Timedelta(1, unit="ns"),
    "tags": ["a", 'b"'],
    "point": {"x": 0.5},
    "m": [("a", 1)],
    "note": '{"n": 1}',
}


async def rich(stage: Stage) -> None:
    table = await stage.db.create_table("rich", schema=RICH, primary_key=["k"])
    await table.upsert([ROW, {"k": 2}])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("time[us]", "05:30:00.25", time(5, 30, 0, 250000)),
        ("duration[ms]", "1h30m", timedelta(minutes=90)),
        ("duration[ms]", "-2d 0.5s", -timedelta(days=2, milliseconds=500)),
        ("duration[ms]", "PT90S", timedelta(seconds=90)),
        ("duration[ns]", "5ns", pd.Timedelta(5, unit="ns")),
        ("duration[ns]", "-PT0.000000001S", pd.Timedelta(-1, unit="ns")),
        ("duration[s]", "P1W", timedelta(days=7)),
        ("timestamp[ns]", "2023-11-14T22:13:20.000000001", pd.Timestamp(1_700_000_000_000_000_001)),
        (
            "list<timestamp[ns]>",
            '["2023-11-14 22:13:20.000000001"]',
            [pd.Timestamp(1_700_000_000_000_000_001)],
        ),
        (
            "timestamp[ns, America/New_York]",
            "2023-11-14T17:13:20.000000001",
            pd.Timestamp(1_700_000_000_000_000_001, tz="America/New_York"),
        ),
        ("timestamp[us]", "2023-11-14T22:13:20.0000010000", datetime(2023, 11, 14, 22, 13, 20, 1)),  # noqa: DTZ001
        ("timestamp[us]", "2023-11-14 22:13:20,5", datetime(2023, 11, 14, 22, 13, 20, 500_000)),  # noqa: DTZ001
        ("timestamp[us,UTC]", "2023-11-14T22:13Z", datetime(2023, 11, 14, 22, 13, tzinfo=timezone.utc)),
        (
            "timestamp[us,UTC]",
            "2023-11-14T22:13:20.5+01",
            datetime(2023, 11, 14, 21, 13, 20, 500_000, timezone.utc),
        ),
        (
            "timestamp[us,UTC]",
            "2023-11-14T22:13:20-0130",
            datetime(2023, 11, 14, 23, 43, 20, 0, timezone.utc),
        ),
        ("time[us]", "05:30:00.2500000", time(5, 30, 0, 250000)),
        ("double", "9007199254740992", 2.0**53),
        ("uint64", "18446744073709551615", (1 << 64) - 1),
        ("json", '{"a": 1}', '{"a": 1}'),
        ("list<date>", '["2024-05-17", null]', None),
        ("list<decimal(5,2)>", "[1.25, 2]", [Decimal("1.25"), Decimal("2.00")]),
        ("struct<x: double, t: time[s]>", '{"x": 0.5, "t": "05:30"}', {"x": 0.5, "t": time(5, 30)}),
        ("map<int8, duration[s]>", '{"7": "1m"}', [(7, timedelta(minutes=1))]),
        ("map<string, list<int8>>", '[["a", [1]]]', [("a", [1])]),
    ],
)
def test_a_value_in_text_form_is_one_of_the_column(kind: str, text: str, value: Any) -> None:
    column = parse_column(f"c:{kind}")
    read = from_text(column, text)
    stored = to_array(column, [read]).to_pylist()[0]
    assert value is None or stored == value


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("time[us]", "25:00", "write for example 05:30"),
        ("duration[ms]", "90", "write for example 1h30m"),
        ("duration[ms]", "1h x", "write for example 1h30m"),
        ("duration[ms]", "P1X", "write for example 1h30m"),
        ("list<int8>", "[1,", r"of type list<int8>; write for example \[12\]"),
        ("list<date>", '["x"]', "'x' is not a value for column 'item' of type date"),
        ("list<int8>", "[" * 100_000, "is not a value for column 'c'"),
        ("timestamp[us]", "2023-11-14T22:13:20.0000001", "after the microseconds; write fewer digits"),
        ("timestamp[us]", "2023-11-14T22:13:20,0000001Z", "has digits after the microseconds"),
        ("timestamp[ns]", "2023-11-14T22:13:20.0000000001", "has digits after the nanoseconds"),
        ("timestamp[ns]", "1023-11-14T22:13:20.000000001", "write for example 2013-01-31T05:00"),
        ("time[ns]", "05:30:00.000000001", "has digits after the microseconds"),
        ("duration[ns]", "0.5ns", "write for example 1h30m"),
        ("duration[ns]", "PT0.0000000001S", "write for example 1h30m"),
        ("double", "9007199254740993", "write for example 0.5"),
        ("float", "16777217", "write for example 0.5"),
        ("list<double>", "[9007199254740993]", "write for example 0.5"),
    ],
)
def test_a_wrong_value_in_text_form_gets_an_example(kind: str, text: str, words: str) -> None:
    with pytest.raises(Usage, match=words):
        from_text(parse_column(f"c:{kind}"), text)


TYPES = {
    "clock": "time[us]",
    "took": "duration[ms]",
    "exact": "duration[ns]",
    "tags": "list<string>",
    "point": "struct<x: double>",
    "m": "map<string, int8>",
    "note": "json",
}


def test_a_table_of_every_type_is_created_from_flags(ebla: Cli) -> None:
    flags = [word for name, kind in TYPES.items() for word in ("--column", f"{name}:{kind}:null")]

    async def schema(stage: Stage) -> pa.Schema:
        return (await stage.db.table("new")).schema

    created = ebla("table create new --column k:int64 --key k", *flags, after=schema)
    assert (created.status, created.seen) == (0, RICH), created.err


def test_a_table_of_every_type_is_described_and_altered(ebla: Cli) -> None:
    document = ebla("table describe rich --json", prepare=rich).json
    assert {c["name"]: c["type"] for c in document["columns"] if c["name"] != "k"} == TYPES
    assert "map<string, int8>" in ebla("table describe rich", prepare=rich).out

    async def row(stage: Stage) -> Any:
        return await (await stage.db.table("rich")).get({"k": 1})

    added = ebla("table alter rich --add", 'more:list<string>:null=["x", "=y"]', prepare=rich, after=row)
    assert (added.status, added.seen) == (0, {**ROW, "more": ["x", "=y"]}), added.err


def test_rows_of_every_type_are_shown_in_every_format(ebla: Cli, tmp_path: Path) -> None:
    table = ebla("table scan rich", prepare=rich)
    assert table.status == 0 and "05:30:00" in table.out
    lines = ebla("table scan rich -f json -w", "k == 1", prepare=rich)
    expected = {
        "k": 1,
        "clock": "05:30:00",
        "took": "PT5400S",
        "exact": "P0DT0H0M0.000000001S",
        "tags": ["a", 'b"'],
        "point": {"x": 0.5},
        "m": [["a", 1]],
        "note": '{"n": 1}',
    }
    assert json.loads(lines.lines[0]) == expected
    document = ebla("table scan rich --json -w", "took == '1h30m'", prepare=rich).json
    assert document["rows"] == [expected]
    for ending in ("csv", "parquet"):
        path = tmp_path / f"rows.{ending}"
        assert ebla("table export rich", str(path), prepare=rich).status == 0
    stored = parquet.read_table(tmp_path / "rows.parquet").sort_by("k")
    assert stored.schema.field("tags").type == RICH.field("tags").type
    assert stored["took"].to_pylist() == [timedelta(minutes=90), None]
    rows = csv.read_csv(tmp_path / "rows.csv").sort_by("k").to_pylist()
    assert rows[0]["tags"] == '["a","b\\""]' and json.loads(rows[0]["m"]) == [["a", 1]]
    assert (rows[0]["took"], rows[0]["note"]) == ("PT5400S", '{"n": 1}')


@pytest.mark.parametrize(
    ("condition", "rows"),
    [("clock < '06:00'", 1), ("took > '1h' and took <= 'PT90M'", 1), ("tags is null", 1), ("clock in ['05:30']", 1)],
)  # fmt: skip
def test_conditions_take_times_and_durations_in_quotes(ebla: Cli, condition: str, rows: int) -> None:
    assert ebla("table count rich -w", condition, prepare=rich).lines == [str(rows)]


@pytest.mark.parametrize("condition", ["tags == 'a'", "point == 1", "note == '{}'"])
def test_a_condition_on_a_type_without_order_shows_its_place_and_the_remedy(
    ebla: Cli, condition: str
) -> None:
    outcome = ebla("table scan rich -w", condition, prepare=rich)
    outcome.require(2, "cannot be compared")
    assert "^" in outcome.err


async def moments(stage: Stage) -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("ns"), False), ("v", pa.int64())])
    table = await stage.db.create_table("moments", schema=schema, primary_key=["at"])
    await table.upsert([{"at": pd.Timestamp(1_700_000_000_000_000_000 + n), "v": n} for n in (0, 1)])


MOMENT = "2023-11-14T22:13:20.000000001"


def test_a_row_is_found_and_deleted_by_its_nanoseconds(ebla: Cli) -> None:
    async def left(stage: Stage) -> list[int]:
        return (await (await stage.db.table("moments")).scan().to_arrow())["v"].to_pylist()

    assert ebla(f"table get moments at={MOMENT} --json", prepare=moments).json["row"]["v"] == 1
    deleted = ebla(f"table delete moments at={MOMENT} -y", prepare=moments, after=left)
    assert (deleted.status, deleted.seen) == (0, [0]), deleted.err


@pytest.mark.parametrize(("relation", "rows"), [("==", 1), (">=", 1), ("<", 1), ("<=", 2)])
def test_conditions_compare_nanoseconds(ebla: Cli, relation: str, rows: int) -> None:
    found = ebla("table count moments -w", f"at {relation} '{MOMENT}'", prepare=moments)
    assert found.lines == [str(rows)], found.err
