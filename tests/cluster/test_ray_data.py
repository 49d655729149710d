"""Ray Data reads and writes tables of a real deployment; the tests run in this order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray.data
from ray.data.block import Block

import ebla
from ebla.placement import launch
from ebla.placement.config import configure
from ebla.placement.local.cluster import LocalCluster
from ebla.ray_data import TableDatasink, _by_host, read_table, write_table
from ebla.table import Database
from tests.cluster.conftest import THREE_HOSTS

pytestmark = pytest.mark.cluster

ROWS = 20_000
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


@pytest.fixture(scope="module")
def db(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    data_dir = tmp_path_factory.mktemp("ray_data") / "data"
    assert launch.up(configure({"name": "ray", "data_dir": str(data_dir), "slots": THREE_HOSTS})).ready
    ray.data.DataContext.get_current().enable_progress_bars = False
    with ebla.connect("ray") as found:
        for name in ("source", "copies"):
            found.create_table(
                name, schema=SCHEMA, primary_key=["id"], partition_by=ebla.hash("id", buckets=4)
            )
        yield found


def rows() -> pa.Table:
    ids = np.arange(ROWS)
    return pa.table({"id": ids, "name": [f"n{n % 97}" for n in ids], "score": ids / 2}, SCHEMA)


def by_id(table: pa.Table) -> pa.Table:
    return table.cast(SCHEMA).sort_by("id").combine_chunks()


def arrow(dataset: ray.data.Dataset) -> pa.Table:
    return pa.concat_tables(ray.get(dataset.to_arrow_refs()))


def test_a_dataset_is_written_into_a_table(db: Database) -> None:
    assert write_table(ray.data.from_arrow(rows()).repartition(3), db.table("source")) == ROWS
    assert by_id(db.table("source").scan().to_arrow()) == by_id(rows())


def test_a_table_is_read_with_one_task_per_tablet_on_hosts_with_replicas(db: Database) -> None:
    table = db.table("source")
    given = _by_host(table, range(4))
    assert sorted(bucket for buckets in given.values() for bucket in buckets) == [0, 1, 2, 3]
    assert {host.slot for host in given if host is not None} == set(THREE_HOSTS)
    dataset = read_table(table)
    assert dataset.schema().base_schema == table.schema
    assert by_id(arrow(dataset)) == by_id(rows())


def test_chosen_columns_and_rows_are_read(db: Database) -> None:
    table = db.table("source")
    found = arrow(read_table(table, ["name", "id"], ebla.col("id") < 100))
    assert found.schema.names == ["name", "id"]
    assert sorted(found.column("id").to_pylist()) == list(range(100))
    one = read_table(table, where=ebla.col("id") == 7)
    assert arrow(one).to_pylist() == [{"id": 7, "name": "n7", "score": 3.5}]
    nothing = read_table(table, ["id"], ebla.col("id") > ROWS)
    assert nothing.count() == 0
    with pytest.raises(ebla.InvalidArgument, match="nobody"):
        read_table(table, ["nobody"])


def test_a_table_is_changed_and_written_into_another(db: Database) -> None:
    doubled = read_table(db.table("source")).map_batches(
        lambda batch: {**batch, "score": batch["score"] * 2}, batch_size=None
    )
    assert write_table(doubled, db.table("copies")) == ROWS
    found = by_id(db.table("copies").scan().to_arrow())
    assert found.column("score").to_pylist() == [float(n) for n in range(ROWS)]


class DyingOnce(TableDatasink):
    """Its process dies after the rows were written. The second run changes a row first, so that a repeated write would show."""

    def __init__(self, table: Any, marker: Path) -> None:
        super().__init__(table, "dying")
        self._marker = marker

    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        again = self._marker.exists()
        if again:
            self._table.upsert({"id": 5, "name": "later", "score": 0.0})
        written = super().write(blocks, ctx)
        if not again:
            self._marker.touch()
            os._exit(1)
        return written


def test_a_task_that_runs_twice_writes_once(db: Database, tmp_path: Path) -> None:
    table = db.table("copies")
    sink = DyingOnce(table, tmp_path / "died")
    ray.data.from_arrow(rows().slice(0, 10)).write_datasink(sink)
    assert (tmp_path / "died").exists()
    assert sink.rows == 10
    assert table.get({"id": 5}) == {"id": 5, "name": "later", "score": 0.0}
    assert table.get({"id": 4}) == {"id": 4, "name": "n4", "score": 2.0}


class Changing(DyingOnce):
    """Gives other rows when it runs again."""

    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        if self._marker.exists():
            blocks = [rows().slice(20, 10)]
        return super().write(blocks, ctx)


def test_a_task_that_gives_other_rows_when_it_runs_again_is_refused(db: Database, tmp_path: Path) -> None:
    sink = Changing(db.table("copies"), tmp_path / "died")
    sink._job = "changing"
    with pytest.raises(Exception, match=r"materialize\(\) the dataset before it is written"):
        ray.data.from_arrow(rows().slice(0, 10)).write_datasink(sink)


def test_rows_that_do_not_fit_are_refused_with_their_column(db: Database) -> None:
    wrong = ray.data.from_arrow(pa.table({"id": ["a"], "name": ["b"], "score": [1.0]}))
    with pytest.raises(ebla.InvalidArgument, match="id"):
        write_table(wrong, db.table("copies"))
