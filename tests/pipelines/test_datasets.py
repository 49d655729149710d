"""The flights dataset, and the format of a source."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebla.pipelines import datasets
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
    part = datasets._Part("flights", partitions)
    read = [
        batch
        for number in range(partitions)
        for batch in part([pa.RecordBatch.from_pydict({"id": [number]})])
    ]
    assert pa.Table.from_batches(read).equals(FLIGHTS.load())


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("a.csv", "csv"),
        ("a.CSV.gz", "csv"),
        ("s3://bucket/day=1/a.parquet", "parquet"),
        ("dir.parquet/", "parquet"),
        ("a.jsonl", "json"),
        ("a.orc", "orc"),
    ],
)
def test_a_format_is_guessed_from_the_ending_of_the_path(path: str, format: str) -> None:
    assert datasets.guess_format(path) == format


@pytest.mark.parametrize("path", ["flight", "a.txt", "data/", ".gz"])
def test_an_unknown_format_is_refused_with_the_known_ones(path: str) -> None:
    with pytest.raises(InvalidArgument, match=r"flights.*parquet, csv, json, orc"):
        datasets.guess_format(path)
