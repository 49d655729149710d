"""Rows as text: nanoseconds have the form that pandas gives them, without pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from ebla.pipelines.arrow.feed import feed
from ebla.pipelines.arrow.verify import verify
from ebla.pipelines.sources.check import check
from ebla.pipelines.sources.source import infer, open_source
from ebla.pipelines.sources.texts import row_texts
from ebla.pipelines.target import table_for
from ebla.show.values import texts
from ebla.storage.schema import TableSchema
from tests.client.loopback import Loopback

VALUES = [
    0,
    1,
    -1,
    None,
    1_000,
    123_456_789,
    -86_400_000_000_001,
    1_704_067_200_123_456_789,
    -2_000_000_000_000_000_001,
]
INSTANT, SPAN, CLOCK = pa.timestamp("ns"), pa.duration("ns"), pa.time64("ns")


def array(kind: pa.DataType) -> pa.Array:
    return pa.array(VALUES, pa.int64()).cast(kind)


@pytest.mark.parametrize(
    "kind", [INSTANT, pa.timestamp("ns", "UTC"), pa.timestamp("ns", "Europe/Berlin"), SPAN], ids=str
)
def test_nanoseconds_are_shown_as_a_scan_shows_them(kind: pa.DataType) -> None:
    batch = pa.record_batch({"x": array(kind)})
    assert row_texts(batch) == [texts(row) for row in batch.to_pylist()]


def test_times_of_day_keep_their_nanoseconds() -> None:
    batch = pa.record_batch({"x": pa.array([1, 1_000, 3_600_000_000_000, None], pa.int64()).cast(CLOCK)})
    shown = ["00:00:00.000000001", "00:00:00.000001", "01:00:00", None]
    assert [row["x"] for row in row_texts(batch)] == shown


def test_nested_values_are_shown_as_a_scan_shows_them() -> None:
    day = pd.Timestamp("2024-01-01T00:00:00.123456789")
    rows = [
        {"x": {"a": [day, None], "m": [("k", day)]}, "y": [1, 2], "z": b"\x01"},
        {"x": None, "y": [], "z": None},
        {"x": {"a": None, "m": []}, "y": None, "z": b""},
    ]
    inner = pa.struct([("a", pa.list_(INSTANT)), ("m", pa.map_(pa.string(), INSTANT))])
    schema = pa.schema([("x", inner), ("y", pa.list_(pa.int64())), ("z", pa.binary())])
    batch = pa.RecordBatch.from_pylist(rows, schema)
    assert row_texts(batch) == [texts(row) for row in batch.to_pylist()]
    assert (
        row_texts(batch)[0]["x"]
        == '{"a":["2024-01-01T00:00:00.123456789",null],"m":[["k","2024-01-01T00:00:00.123456789"]]}'
    )


def write_instants(path: Path) -> Path:
    rows = "1,2024-01-01 00:00:00.123456789\n2,2024-01-02\n2,2024-01-02 00:00:00.000000001\n"
    path.write_text("id,t\n" + rows)
    return path


def test_a_source_with_nanoseconds_is_checked_without_pandas(tmp_path: Path) -> None:
    write_instants(tmp_path / "a.csv")
    pa.parquet.write_table(
        pa.table({"id": array(SPAN), "t": array(INSTANT), "n": pa.array([[day] for day in array(INSTANT)])}),
        tmp_path / "a.parquet",
    )
    program = (
        "import sys\n"
        "from ebla.cli.data.sources import open_checked\n"
        "for path, key in zip(sys.argv[1::2], sys.argv[2::2]):\n"
        "    opened = open_checked(path, None, None)\n"
        "    from ebla.pipelines.sources.check import check\n"
        "    from ebla.pipelines.sources.source import infer\n"
        "    from ebla.storage.schema import TableSchema\n"
        "    found, types = infer(opened)\n"
        "    print(check(found, TableSchema.from_arrow(types, [key])).sample[0]['t'])\n"
        "assert 'pandas' not in sys.modules\n"
    )
    words = [str(tmp_path / "a.csv"), "t", str(tmp_path / "a.parquet"), "id"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], check=True, timeout=600, capture_output=True
    )
    assert done.stdout.decode().split() == ["2024-01-01T00:00:00.123456789", "1970-01-01T00:00:00"]


def test_repeated_keys_and_misfits_in_nanoseconds_are_shown(tmp_path: Path) -> None:
    day = pa.array([1_704_067_200_123_456_789] * 2, INSTANT)
    pa.parquet.write_table(pa.table({"t": day}), tmp_path / "a.parquet")
    source, types = infer(open_source(str(tmp_path / "a.parquet")))
    (again,) = check(source, TableSchema.from_arrow(types, ["t"])).repeated_rows
    assert again.key == {"t": "2024-01-01T00:00:00.123456789"}
    coarse = TableSchema.from_arrow(pa.schema([("t", pa.timestamp("us"))]), ["t"])
    assert "2024-01-01T00:00:00.123456789" in check(source, coarse).unfit_rows[0].problem


def test_a_comparison_shows_nanoseconds(loopback: Loopback, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("t", INSTANT)])
    table = table_for(loopback.db, "t", schema, primary_key=["id"])
    path = tmp_path / "a.csv"
    path.write_text("id,t\n1,2024-01-01T00:00:00.123456789\n")
    feed(str(path), table)
    path.write_text("id,t\n1,2024-01-01T00:00:00.123456788\n")
    (sample,) = verify(str(path), table, replicas=False).samples
    assert (sample.source, sample.table) == (
        {"t": "2024-01-01T00:00:00.123456788"},
        {"t": "2024-01-01T00:00:00.123456789"},
    )
