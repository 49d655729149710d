"""Ray Data reads and writes tables and logs of a real deployment; the tests run in this order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray.data
from ray.data.block import Block
from ray.data.datasource import ReadTask

import ebla
from ebla import ray_data
from ebla.log import blocks
from ebla.placement.config import DeploymentConfig
from ebla.ray_data import (
    TableDatasink,
    TabletsDatasource,
    _by_host,
    read_log,
    read_table,
    write_log,
    write_table,
)
from ebla.table import Database
from tests.cluster.conftest import THREE_HOSTS

pytestmark = pytest.mark.cluster

ROWS = 20_000
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


@pytest.fixture(scope="module")
def db(common: DeploymentConfig) -> Iterator[Database]:
    ray.data.DataContext.get_current().enable_progress_bars = False
    with ebla.connect() as found:
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


def test_a_read_fails_if_a_worker_dies_for_a_second_snapshot_would_not_fit_the_first(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = tmp_path / "died"

    def die_once(task: ReadTask) -> Iterator[Block]:
        if not died.exists():
            died.touch()
            os._exit(1)
        yield from task()

    class Dying(TabletsDatasource):
        def get_read_tasks(self, *arguments: Any, **named: Any) -> list[ReadTask]:
            tasks = super().get_read_tasks(*arguments, **named)
            return [ReadTask(partial(die_once, task), task.metadata, task.schema) for task in tasks]

    monkeypatch.setattr(ray_data, "TabletsDatasource", Dying)
    with pytest.raises(ray.exceptions.RayError):
        arrow(read_table(db.table("source")))
    assert died.exists()


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


def test_what_is_no_table_or_no_dataset_is_refused_before_anything_is_read(db: Database) -> None:
    with pytest.raises(ebla.InvalidArgument, match="table is a table"):
        write_table(ray.data.range(3), "copies")  # type: ignore[arg-type]
    with pytest.raises(ebla.InvalidArgument, match="a Dataset of Ray Data"):
        write_table([{"id": 1}], db.table("copies"))  # type: ignore[arg-type]


def test_rows_that_do_not_fit_are_refused_with_their_column(db: Database) -> None:
    wrong = ray.data.from_arrow(pa.table({"id": ["a"], "name": ["b"], "score": [1.0]}))
    with pytest.raises(ebla.InvalidArgument, match="id"):
        write_table(wrong, db.table("copies"))


# -- logs ----------------------------------------------------------------------------------------------------

RECORDS = 3_000


def record(number: int) -> bytes:
    return b"record %d" % number


def test_a_log_is_read_with_one_task_per_ledger_and_blocks_are_in_order(db: Database) -> None:
    log = db.create_log("written")
    assert read_log(log).count() == 0
    for first in range(0, RECORDS, 500):
        with log.writer() as writer:  # each writer has a ledger of its own
            writer.append_many([record(number) for number in range(first, first + 500)])
    found = ray.get(read_log(log).to_arrow_refs())
    assert len(found) == len(blocks.parts_of(log, None, None)) == RECORDS / 500
    for block in found:
        positions = block.column("position").to_pylist()
        assert positions == list(range(positions[0], positions[-1] + 1))
        assert block.column("data").to_pylist() == list(map(record, positions))
    assert sum(block.num_rows for block in found) == RECORDS
    some = arrow(read_log(log, 700, 1_200)).sort_by("position")
    assert some.schema == blocks.SCHEMA
    assert some.column("position").to_pylist() == list(range(700, 1_200))
    with pytest.raises(ebla.InvalidArgument, match="ends at position 3000"):
        read_log(log, 0, RECORDS + 1)


class DyingMap:
    """Its process dies once at position 0, so that the first rows are the last ones to be ready."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __call__(self, rows: pa.Table) -> pa.Table:
        if 0 in rows.column("position").to_pylist() and not self._marker.exists():
            self._marker.touch()
            os._exit(1)
        return rows


@ray.remote(num_cpus=0, max_retries=1)
def copy_dying(log: ebla.Log, copy: ebla.Log, directory: Path) -> int:
    """Dies when two blocks have been acknowledged, and is run again by Ray."""
    append_once = ebla.LogWriter.append_once

    def dying(writer: ebla.LogWriter, records: list[bytes], sequence: int) -> int:
        added = append_once(writer, records, sequence)
        if sequence and not (directory / "writer").exists():
            (directory / "writer").touch()
            os._exit(1)
        return added

    ebla.LogWriter.append_once = dying  # type: ignore[method-assign, assignment]
    dataset = read_log(log).map_batches(DyingMap(directory / "map"), batch_format="pyarrow", batch_size=None)
    return write_log(dataset, copy, job="copy")


@pytest.mark.deep
def test_tasks_and_a_writer_that_die_append_nothing_twice(db: Database, tmp_path: Path) -> None:
    log, copy = db.log("written"), db.create_log("copy")
    assert ray.get(copy_dying.remote(log, copy, tmp_path)) == RECORDS
    assert {each.name for each in tmp_path.iterdir()} == {"map", "writer"}, "both have died"
    assert [entry.data for entry in copy.read()] == list(map(record, range(RECORDS)))
    assert write_log(read_log(log), copy, job="copy") == RECORDS, "a repetition"
    assert copy.info().end == RECORDS
    with pytest.raises(
        ebla.InvalidArgument, match=r"'copy' has appended 3000 records .* and there are 500 now"
    ):
        write_log(read_log(log, 0, 500), copy, job="copy")
    with pytest.raises(ebla.InvalidArgument, match="there is no column 'data'"):
        write_log(ray.data.range(3), copy)
    log.trim(500)
    with pytest.raises(ebla.RecordsTrimmed):
        read_log(log, 499)


def test_rows_are_kept_in_a_log_as_tables(db: Database) -> None:
    log = db.create_log("tables")
    assert write_log(ray.data.from_arrow(rows()).repartition(3), log, tables=True) == ROWS / 10_000
    assert [table.num_rows for table in log.read_tables()] == [10_000, 10_000]
    assert by_id(arrow(read_log(log, tables=True))) == by_id(rows())
    with log.writer() as writer:
        writer.append_table(pa.table({"other": [1]}))
    with pytest.raises(Exception, match="the table at position 2 of log 'tables' has other columns"):
        read_log(log, tables=True).materialize()
    assert read_log(log, 2, tables=True).take_all() == [{"other": 1}]
