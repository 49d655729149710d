"""Spark feeds, reads and verifies tables of a real deployment, and is interrupted.

All tests use one Spark session and run in this order on one table, `everything`.
"""

from __future__ import annotations

import datetime
import inspect
import os
import runpy
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import ebla
from ebla import local_scan
from ebla.errors import SourceUnreadable
from ebla.pipelines import logs, raydp_app, session, tasks
from ebla.pipelines.arrow.feed import feed as arrow_feed
from ebla.pipelines.arrow.verify import verify as arrow_verify
from ebla.pipelines.executors import executors_alive, hosts_of_executors
from ebla.pipelines.feed import _Run, feed, table_for
from ebla.pipelines.frames import frame
from ebla.pipelines.logs import read_log, write_log
from ebla.pipelines.outcomes import FeedProgress
from ebla.pipelines.read import preferred_hosts, read_table
from ebla.pipelines.session import spark
from ebla.pipelines.verify import verify
from ebla.placement.config import DeploymentConfig
from ebla.placement.local.cluster import LocalCluster
from ebla.table import Database, Table
from tests.cluster.conftest import SPARK_EXAMPLE, eventually

pytestmark = pytest.mark.cluster

ROWS = 4_000
PARTITIONS = 2  # of the source: a task costs more than its rows
BATCH = 150  # rows: a partition has several batches
CONFIGS = {"sql.execution.arrow.maxRecordsPerBatch": BATCH, "sql.files.minPartitionNum": PARTITIONS}
TABLETS = 2
ALLOWED = {"host-1", "host-2"}
PLACE = pa.struct([("x", pa.int32()), ("seen", pa.timestamp("us", "UTC"))])


def everything(rows: int = ROWS) -> pa.Table:
    """Rows with every common type of Spark and tables, with nulls and NaN among the values."""
    start = datetime.datetime(2013, 1, 1, tzinfo=datetime.timezone.utc)
    at = [start + datetime.timedelta(seconds=n) for n in range(rows)]
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "name": pa.array([f"n{n % 97}" for n in range(rows)], pa.string()),
            "tiny": pa.array([None if n % 5 == 0 else n % 128 - 64 for n in range(rows)], pa.int8()),
            "short": pa.array([n % 30_000 for n in range(rows)], pa.int16()),
            "int": pa.array([-n for n in range(rows)], pa.int32()),
            "float": pa.array([float("nan") if n % 7 == 0 else n / 2 for n in range(rows)], pa.float32()),
            "double": pa.array([None if n % 3 == 0 else n // 3 / 3 for n in range(rows)], pa.float64()),
            "flag": pa.array([None if n % 11 == 0 else n % 2 == 0 for n in range(rows)], pa.bool_()),
            "text": pa.array([None if n % 4 == 0 else "ü" * (n % 20) for n in range(rows)], pa.string()),
            "raw": pa.array([bytes([n % 256]) * (n % 9) for n in range(rows)], pa.binary()),
            "day": pa.array([a.date() for a in at], pa.date32()),
            "at": pa.array(at, pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal(n).scaleb(-2) for n in range(rows)], pa.decimal128(12, 2)),
            "tags": pa.array(
                [[None, f"t{n}"] if n % 2 else None for n in range(rows)], pa.list_(pa.string())
            ),
            "place": pa.array([{"x": n, "seen": a} for n, a in enumerate(at)], PLACE),
            "counts": pa.array(
                [[("a", n), ("b", None)] for n in range(rows)], pa.map_(pa.string(), pa.int64())
            ),
        }
    )


class Stage(NamedTuple):
    cluster: LocalCluster
    db: Database
    session: SparkSession
    data_dir: Path
    source: DataFrame
    end_spark: Any

    @property
    def spark_directory(self) -> Path:
        return Path(self.session.conf.get(raydp_app.DIRECTORY))

    def java_processes(self) -> list[psutil.Process]:
        """List the Java processes of this process and of the cluster. Raises NoSuchProcess if one ends meanwhile."""
        own = [psutil.Process(), *(p for n in self.cluster.state.nodes for p in self.cluster.processes(n))]
        children = [child for process in own for child in [process, *process.children(recursive=True)]]
        return [child for child in dict.fromkeys(children) if "java" in child.name()]


@pytest.fixture(scope="module")
def stage(
    cluster: LocalCluster, common: DeploymentConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    root = tmp_path_factory.mktemp("pipelines")
    pq.write_table(everything(), root / "source.parquet", row_group_size=ROWS // PARTITIONS)
    with ExitStack() as ending:
        db = ending.enter_context(ebla.connect())
        application = ExitStack()
        ending.enter_context(application)
        started = application.enter_context(
            spark(
                "tests",
                executors=1,
                cores=2,
                avoid_slots=["host-3", "host-4"],
                quick=True,
                configs={f"spark.{name}": str(count) for name, count in CONFIGS.items()},
            )
        )
        source = frame(started, str(root / "source.parquet"))
        yield Stage(cluster, db, started, Path(common.data_dir), source, application.close)


@pytest.fixture
def table(stage: Stage) -> Table:
    parted = ebla.hash("id", buckets=TABLETS)
    options: Any = {"primary_key": ["id", "name"], "partition_by": parted, "storage": "columns"}
    return table_for(stage.db, "everything", stage.source, **options)


def test_spark_uses_allowed_nodes_only(stage: Stage) -> None:
    slot_of = {node["NodeID"]: node["Labels"]["ebla.slot"] for node in ray.nodes()}
    groups = ray.util.placement_group_table().values()
    used = {
        slot_of[node]
        for group in groups
        if not group["name"] and group["state"] != "REMOVED"
        for node in group["bundles_to_node_id"].values()
    }
    assert used <= ALLOWED
    alive = ray._private.state.actors(actor_state_name="ALIVE").values()
    spark_actors = {
        kind: [actor for actor in alive if kind in actor["ActorClassName"]]
        for kind in ("RayDPExecutor", "RayAppMaster")
    }
    assert [len(found) for found in spark_actors.values()] == [1, 1]
    for (actor,) in spark_actors.values():
        assert slot_of[actor["Address"]["NodeID"]] in ALLOWED
        assert slot_of[actor["OwnerAddress"]["NodeID"]] in ALLOWED, "an actor ends with the node of its owner"
    assert executors_alive(stage.session) == 1
    assert len(hosts_of_executors(stage.session)) == 1


def test_workers_are_forked_with_what_their_tasks_import(stage: Stage) -> None:
    one = stage.session.sparkContext.parallelize([0], 1)
    shown = one.map(lambda _: (os.getppid(), "ebla.pipelines.feed" in sys.modules)).first()
    assert shown[1] and "ebla.pipelines.executors" in psutil.Process(shown[0]).cmdline()


def test_libraries_that_java_unpacks_are_in_temporary_directories_of_the_session_or_of_ray(
    stage: Stage,
) -> None:
    assert stage.session.range(1000).repartition(3).count() == 1000, (
        "a shuffle compresses with an unpacked library"
    )
    mapped = {
        Path(region.path)
        for process in stage.java_processes()
        for region in process.memory_maps()
        if Path(region.path).name.startswith(("liblz4", "libcore_worker_library_java"))
    }
    kept = {path for path in mapped if path.exists()}
    assert any(path.is_relative_to(stage.spark_directory) for path in kept)
    in_ray = {path for path in kept if any(part.startswith("session_") for part in path.parts)}
    assert [path for path in kept - in_ray if not path.is_relative_to(stage.spark_directory)] == []


def test_a_process_has_one_spark(stage: Stage) -> None:
    with pytest.raises(ebla.InvalidArgument, match="has a Spark session already"), spark():
        pass


def test_a_source_that_cannot_be_read_is_named(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "broken.parquet").write_bytes(b"this is not parquet")
    for path in (tmp_path / "nothing.csv", tmp_path / "broken.parquet"):
        with pytest.raises(SourceUnreadable, match=path.name) as caught:
            frame(stage.session, str(path))
        assert caught.value.source == str(path)


def test_a_fed_table_is_verified_equal(stage: Stage, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Run, "_stages", lambda run: (0, 0))  # Spark counts tasks a moment late
    seen: list[FeedProgress] = []
    report = feed(stage.session, stage.source, table, on_progress=seen.append)
    assert (report.rows, report.rejected, report.retries, seen[-1].rows) == (ROWS, 0, 0, ROWS)
    assert seen[-1].tasks_done == seen[-1].tasks == report.partitions
    checked = verify(stage.session, stage.source, table)
    assert (checked.ok, checked.source_rows, checked.table_rows, checked.duplicates) == (True, ROWS, ROWS, 0)
    assert len(checked.tablets) == TABLETS
    assert all(len(tablet.replicas) == 3 for tablet in checked.tablets)


def test_pyarrow_feeds_a_pacifica_table_and_both_verify_its_rows(stage: Stage, tmp_path: Path) -> None:
    rows = everything().drop_columns(["raw", "tags", "place", "counts"])  # CSV has no form for these
    rows.to_pandas().to_csv(tmp_path / "rows.csv", index=False)
    target = table_for(stage.db, "from-csv", rows.schema, primary_key=["id", "name"], replication="pacifica")
    report = arrow_feed(str(tmp_path / "rows.csv"), target, mode="insert")
    assert (report.rows, report.rejected, report.repeated) == (ROWS, 0, 0)
    checked = arrow_verify(str(tmp_path / "rows.csv"), target)
    assert (checked.ok, checked.replicas_equal, target.info().replication) == (True, True, "pacifica")
    spread = verify(stage.session, tmp_path / "rows.csv", target, replicas=False)
    assert (spread.ok, spread.source_rows) == (True, ROWS)


def test_spark_reads_the_rows_that_it_wrote(stage: Stage, table: Table) -> None:
    for local in (True, False):
        rows = read_table(stage.session, table, local=local)
        assert rows.rdd.getNumPartitions() == TABLETS
        assert _comparable(rows).exceptAll(_comparable(stage.source)).count() == 0
        assert rows.count() == ROWS


def _comparable(rows: DataFrame) -> DataFrame:
    """Spark subtracts no rows that hold a map: its entries stand for the map."""
    return rows.withColumn("counts", F.map_entries("counts"))


def test_spark_reads_chosen_columns_and_rows(stage: Stage, table: Table) -> None:
    rows = read_table(stage.session, table, ["price", "id"], ebla.col("id") < 10).orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(Decimal(n).scaleb(-2), n) for n in range(10)]
    one = ebla.col("id") == 7
    assert len(local_scan.buckets(table, one)) <= TABLETS
    assert [row.id for row in read_table(stage.session, table, ["id"], one).collect()] == [7]


def test_tablets_are_read_on_hosts_with_a_replica_and_an_executor(stage: Stage, table: Table) -> None:
    assert (
        preferred_hosts(stage.session, table, range(TABLETS)) == hosts_of_executors(stage.session) * TABLETS
    )


def test_a_local_scan_reads_the_disk_and_sees_the_latest_write(stage: Stage, table: Table) -> None:
    rows = 0
    for bucket in local_scan.buckets(table):
        read = local_scan.scan_tablet(table, bucket, ["id"])
        rows += sum(batch.num_rows for batch in read)
        assert read.path is not None and stage.data_dir in read.path.parents
    assert rows == ROWS
    table.upsert({"id": -1, "name": "latest", "int": 1})
    latest = ebla.col("name") == "latest"
    assert [batch["int"].to_pylist() for batch in local_scan.scan(table, ["int"], latest)] == [[1]]
    table.upsert({"id": -1, "name": "latest", "int": 2})
    assert [batch["int"].to_pylist() for batch in local_scan.scan(table, ["int"], latest)] == [[2]]
    table.delete({"id": -1, "name": "latest"})
    assert list(local_scan.scan(table, ["int"], latest)) == []


def test_without_a_local_replica_a_tablet_is_read_from_its_leader(table: Table) -> None:
    read = local_scan.scan_tablet(table, 0, ["id"], slots_here=lambda: ("elsewhere",))
    through = sum(batch.num_rows for batch in read)
    assert read.path is None
    assert through == sum(batch.num_rows for batch in local_scan.scan_tablet(table, 0, ["id"]))


class Dying:
    """In the first attempt at each partition, the task's process dies after some answered calls."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        dies = context is not None and context.attemptNumber() == 0
        given = (os._exit(1) if dies and at == 3 else batch for at, batch in enumerate(batches))
        return super().__call__(given)  # type: ignore[misc, no-any-return]


class DyingFeed(Dying, tasks.WriteTask): ...


class DyingWriter(Dying, logs.WriteTask): ...


def test_repeated_tasks_write_no_row_twice(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated calls get their first answers; otherwise an insert would refuse the rows as present."""
    monkeypatch.setattr(tasks, "WriteTask", DyingFeed)
    target = table_for(stage.db, "repeated", stage.source, primary_key=["id"])
    report = feed(stage.session, stage.source, target, mode="insert", call_rows=BATCH)
    assert report.retries > 0 and (report.rows, report.rejected) == (ROWS, 0)
    assert verify(stage.session, stage.source, target, replicas=False).ok


def test_a_feed_can_be_repeated_under_its_job(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    target = table_for(stage.db, "again", stage.source, primary_key=["id"])
    reports = [feed(stage.session, stage.source, target, mode="insert", job="nightly") for _ in range(2)]
    assert [(report.rows, report.rejected) for report in reports] == [(ROWS, 0), (ROWS, 0)]
    other = feed(stage.session, stage.source, target, mode="insert", job="another")
    assert (other.rows, other.rejected) == (0, ROWS)
    with pytest.raises(ebla.InvalidArgument, match=r"'nightly' has written partition .* before"):
        feed(stage.session, stage.source.withColumn("int", F.lit(1)), target, mode="insert", job="nightly")


def stamped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Names with the stamp of this run of the task: another run gives other rows."""
    stamp = os.urandom(8).hex()
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"data": [f"{name}/{stamp}" for name in batch["name"].to_pylist()]})


def test_a_frame_is_appended_to_a_log_once_by_a_task_that_dies_and_read_by_several(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stage.db.create_log("spark", roll_bytes=50_000)
    monkeypatch.setattr(logs, "WriteTask", DyingWriter)
    given = stage.source.mapInArrow(stamped, "data string")
    assert write_log(given, log, job="nightly") == ROWS
    (producer,) = log._run(log._awaited._ledgers.log("spark")).producers
    assert producer.sequence == 3 * BATCH, "of the writer that died, as the next one found them"
    assert write_log(given, log, job="nightly") == ROWS, "a repetition"
    records = list(log.read())
    names, stamps = zip(*(entry.data.decode().split("/") for entry in records), strict=True)
    assert names == tuple(f"n{number % 97}" for number in range(ROWS))
    assert len(set(stamps)) == given.rdd.getNumPartitions() > 1, "all rows of one run"
    read = read_log(stage.session, log, 10, ROWS - 10)
    assert read.rdd.getNumPartitions() > 1
    assert [(row.position, bytes(row.data)) for row in read.collect()] == records[10:-10]


def test_a_log_keeps_frames_as_tables_and_refuses_rows_that_are_no_records(stage: Stage) -> None:
    log = stage.db.create_log("frames")
    assert read_log(stage.session, log).count() == 0
    assert write_log(stage.source, log, tables=True) == 1
    again = read_log(stage.session, log, tables=True)
    assert again.count() == ROWS
    assert again.drop("counts").exceptAll(stage.source.drop("counts")).count() == 0
    with pytest.raises(ebla.InvalidArgument, match="there is no column 'data'"):
        write_log(stage.source, log)
    with pytest.raises(ebla.InvalidArgument, match="it has int64"):
        write_log(stage.source.select(F.col("id").alias("data")), log)
    with pytest.raises(ebla.FeedFailed, match=r"broken.*job='nightly': those that are in the log"):
        write_log(stage.source.select(F.raise_error(F.lit("broken")).alias("data")), log, job="nightly")


@pytest.mark.deep
def test_spark_feeds_and_reads_an_altered_table(stage: Stage) -> None:
    """Rows of both layouts are on the disks; old rows show the default of the new column."""
    source = stage.source.select("id", "name", "int")
    grown = table_for(stage.db, "grown", source, primary_key=["id"], partition_by=ebla.hash("id", buckets=2))
    assert feed(stage.session, source.where(f"id < {ROWS // 2}"), grown).rows == ROWS // 2
    change = grown.alter().add_column("grade", pa.int32(), default=5)
    change.rename_column("int", "number").drop_column("name").apply()
    added = F.when(F.col("id") < ROWS // 2, 5).otherwise(F.col("id") % 97).cast("int")
    expected = stage.source.select("id", F.col("int").alias("number"), added.alias("grade"))
    assert feed(stage.session, expected.where(f"id >= {ROWS // 2}"), grown).rows == ROWS - ROWS // 2
    for local in (True, False):
        rows = read_table(stage.session, grown, local=local)
        assert rows.columns == ["id", "number", "grade"]
        assert (rows.exceptAll(expected).count(), rows.count()) == (0, ROWS)
    assert verify(stage.session, expected, grown).ok
    lacking = verify(stage.session, expected.drop("grade"), grown, replicas=False)
    assert lacking.different == expected.where("grade != 5").count()


def test_the_example_with_spark_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the session of these tests: the start of another one takes twenty seconds."""

    @contextmanager
    def in_this_session(*arguments: Any, **options: Any) -> Iterator[SparkSession]:
        inspect.signature(spark).bind(*arguments, **options)
        yield stage.session

    monkeypatch.setattr(session, "spark", in_this_session)
    runpy.run_path(str(SPARK_EXAMPLE), run_name="__main__")
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        [city, "10,000"] for city in ("Aleppo", "Ebla", "Mari")
    ]


def test_a_value_that_does_not_fit_names_its_column(stage: Stage, table: Table) -> None:
    wrong = stage.source.withColumn("tiny", F.col("id") + 1000)
    with pytest.raises(ebla.InvalidArgument, match="column 'tiny'") as caught:
        feed(stage.session, wrong, table)
    assert caught.value.column == "tiny"
    assert verify(stage.session, stage.source, table, replicas=False).ok


def test_verify_finds_missing_extra_and_different_rows(stage: Stage, table: Table) -> None:
    table.delete({"id": 11, "name": "n11"})
    table.upsert({"id": -5, "name": "extra"})
    table.update({"id": 12, "name": "n12", "text": "changed", "double": None})
    table.update({"id": 13, "name": "n13", "double": 13 // 3 / 3})  # the old value
    table.update({"id": 1, "name": "n1", "double": -0.0})
    table.update({"id": 15, "name": "n15", "tags": ["t15", None]})  # the null is elsewhere
    report = verify(stage.session, stage.source, table)
    assert (report.ok, report.replicas_equal) == (False, True)
    assert (report.missing, report.extra, report.different) == (1, 1, 3)
    by_kind = {sample.kind: sample for sample in report.samples}
    assert by_kind["missing"].key == {"id": "11", "name": "n11"}
    assert by_kind["extra"].key == {"id": "-5", "name": "extra"}
    different = {sample.key["id"]: sample for sample in report.samples if sample.kind == "different"}
    names = {key: set(sample.columns) for key, sample in different.items()}
    assert names == {"1": {"double"}, "12": {"text"}, "15": {"tags"}}
    assert different["12"].table == {"text": "changed"}
    feed(stage.session, stage.source, table)
    table.delete({"id": -5, "name": "extra"})
    assert verify(stage.session, stage.source, table, replicas=False).ok


def test_rows_with_the_same_key_are_counted_as_duplicates(stage: Stage, table: Table) -> None:
    twice = stage.source.unionByName(stage.source.where("id < 3").withColumn("int", F.lit(99)))
    report = verify(stage.session, twice, table, replicas=False)
    assert (report.ok, report.duplicates) == (True, 3)


def test_an_interrupted_feed_ends_its_job_and_spark_continues(stage: Stage, table: Table) -> None:
    def interrupt(progress: FeedProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        feed(stage.session, stage.source, table, on_progress=interrupt)
    tracker = stage.session.sparkContext.statusTracker()
    eventually(lambda: not tracker.getActiveJobsIds(), "no job of the feed is active")
    assert stage.session.range(10).count() == 10


def test_the_end_of_the_session_leaves_no_process_and_no_file(stage: Stage) -> None:
    """The last test with Spark."""
    directory = stage.spark_directory
    assert directory.is_dir()
    stage.end_spark()

    def gone() -> bool:
        try:
            return not stage.java_processes()
        except psutil.NoSuchProcess:
            return False  # one ended meanwhile: poll again

    eventually(gone, "no Java process is left")
    named = ray.util.list_named_actors(all_namespaces=True)
    assert [actor for actor in named if "spark" in actor["name"].lower() or "raydp" in actor["name"]] == []
    assert sum(node["Alive"] for node in ray.nodes()) == len(stage.cluster.state.nodes), (
        "no node ended with Spark"
    )
    assert not directory.exists()
