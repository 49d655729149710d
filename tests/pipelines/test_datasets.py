"""The flights dataset, and the format of a file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebla.pipelines import datasets, frames
from ebla.pipelines.sources import files
from ebla.storage.errors import InvalidArgument
from ebla.storage.schema import TableSchema

FLIGHTS = datasets.DATASETS["flights"]


def test_the_flights_are_complete_and_have_their_types() -> None:
    table = FLIGHTS.load()
    assert table.num_rows == FLIGHTS.rows == 336_776
    assert table.schema == FLIGHTS.schema
    assert {name: table[name].null_count for name in ("dep_time", "arr_delay", "tailnum", "distance")} == {
        "dep_time": 8255,
        "arr_delay": 9430,
        "tailnum": 2512,
        "distance": 0,
    }


def test_the_flights_have_a_minimal_unique_key() -> None:
    table = FLIGHTS.load()

    def distinct(names: list[str]) -> int:
        return int(table.select(names).group_by(names).aggregate([]).num_rows)

    assert distinct(list(FLIGHTS.primary_key)) == table.num_rows
    for name in FLIGHTS.primary_key:
        assert distinct([key for key in FLIGHTS.primary_key if key != name]) < table.num_rows


def test_the_flights_fit_a_table() -> None:
    schema = TableSchema.from_arrow(FLIGHTS.schema, FLIGHTS.primary_key)
    assert schema.key == FLIGHTS.primary_key
    assert set(FLIGHTS.hash_by) <= set(schema.key)


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_partitions_have_the_rows_in_order_for_any_number_of_partitions(partitions: int) -> None:
    part = frames.DatasetPart("flights", partitions)
    read = [
        batch
        for number in range(partitions)
        for batch in part([pa.RecordBatch.from_pydict({"id": [number]})])
    ]
    assert pa.Table.from_batches(read).equals(FLIGHTS.load())


CSV = b"id,name"


@pytest.mark.parametrize(
    ("path", "head", "format"),
    [
        ("a.csv", CSV, "csv"),
        ("a.CSV.gz", CSV, "csv"),
        ("table.txt", CSV, "csv"),
        ("nameless", CSV, "csv"),
        ("nameless", b'\n {"id": 1}', "json"),
        ("a.csv", b"{5},1", "csv"),
        ("a.jsonl", b"anything", "json"),
        ("nameless", b"PAR1", "parquet"),
        ("a.csv", b"ARROW1", "arrow"),
        ("nameless", b"\xff\xff\xff\xff", "arrow"),
        ("nameless", b"ORC", "orc"),
    ],
)
def test_a_format_is_recognised_by_content_and_ending(path: str, head: bytes, format: str) -> None:
    assert files.format_of(path, head) == format


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"'avro'.*csv, json, parquet, arrow, orc"):
        files.Place("/tmp").find("avro")
