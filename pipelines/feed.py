"""Feeds a table from Spark: the executors write every row of a DataFrame exactly once.

    report = feed(session, "flights", table)                    a named data set
    report = feed(session, session.read.parquet(path), table)   any DataFrame

A write id is made of the job's name, the partition and the position in it, so Spark's retries and speculative tasks change
nothing, and neither does a repetition of a broken feed with the same `job` (while the table retains answers, one
hour). An upsert may be repeated with any job: the table then equals the source.

All attempts must read a partition's rows in the same order. Files have an order; a shuffle does not, so with `partitions` rows
are sorted by key within each partition; `sort=True` does only that.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ebla.actors.errors import ErrorFrame, from_frame
from ebla.errors import FeedFailed
from ebla.partitions import PartitionBy
from ebla.pipelines import datasets, target, tasks
from ebla.pipelines.executors import executors_alive
from ebla.pipelines.frames import frame as as_frame
from ebla.pipelines.outcomes import FeedProgress, FeedReport
from ebla.pipelines.target import CALL_ROWS, check_arguments, check_columns
from ebla.placement.extras import needs
from ebla.show.progress import working
from ebla.storage.arrow_types import column_of
from ebla.storage.errors import EblaError, InvalidArgument
from ebla.table import Database, Table

with needs("spark"):
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark import InheritableThread
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import DataType, StructType

POLL_S = 0.1
LOST_S_MAX = 60.0  # without an executor
CANCEL_S_MAX = 20.0
_PYTHON_ERROR = re.compile(r"(?!java|org\.|scala|py4j)([a-z_]\w*\.)*[A-Z]\w+: \S")


def feed(
    spark: SparkSession,
    source: DataFrame | str | os.PathLike[str],
    table: Table,
    *,
    mode: str = "upsert",
    job: str | None = None,
    partitions: int | None = None,
    sort: bool = False,
    call_rows: int = CALL_ROWS,
    deadline_s: float | None = None,
    on_progress: Callable[[FeedProgress], None] | None = None,
) -> FeedReport:
    """Write every row of `source`, a DataFrame, a path or the name of a data set, into `table`; with `mode="insert"` rows
    whose key exists are not changed. `on_progress` gets the progress ten times a second; None shows it as `ebla.connect` says.

    Raises InvalidArgument with the column for rows that do not fit the table; FeedFailed if Spark gives up or is lost. Other
    rows may have been written by then. Ctrl-C ends the Spark job.
    """
    check_arguments(mode, call_rows, partitions)
    source = os.fspath(source) if isinstance(source, os.PathLike) else source
    known = datasets.DATASETS.get(source) if isinstance(source, str) else None
    frame = as_frame(spark, source, wanted=table.schema) if isinstance(source, str) else source
    check_columns(arrow_schema(frame.schema), table.name, table._awaited._routes.schema)
    key = list(table.primary_key)
    if partitions is not None:
        frame = frame.repartition(partitions, *key)
    if sort or partitions is not None:
        frame = frame.sortWithinPartitions(*key)
    job = job or os.urandom(8).hex()
    name = f"feed/{job}/{os.urandom(4).hex()}"
    work = tasks.WriteTask(pickle.dumps(table), job, name, mode, call_rows, deadline_s)
    counter = _start_counter(name)
    try:
        run = _Run(spark, frame.mapInArrow(work, tasks.RESULT), job, counter)
        with (
            working(table._awaited._client.display, f"feed {table.name}") as show,
            target.interruption_noted(lambda: run.acknowledged, mode, job),
        ):
            rows = run.follow(on_progress or (lambda now: show(*now.seen)), known.rows if known else None)
    finally:
        ray.kill(counter)
    return _report(rows, table, source if isinstance(source, str) else "DataFrame", job, mode, run.seconds)


def table_for(
    db: Database,
    name: str,
    source: DataFrame | str | pa.Schema,
    *,
    primary_key: Sequence[str] = (),
    partition_by: PartitionBy | None = None,
    replicas: int | None = None,
    replication: str | None = None,
    min_members: int | None = None,
    storage: str | None = None,
) -> Table:
    """Open the table `name` to feed it; create it first, with the columns of `source`, if it does not exist.

    As `ebla.pipelines.target.table_for`, with the same errors. `source` may also be a DataFrame. A column of a type
    that no table has raises InvalidArgument.
    """
    columns = arrow_schema(source.schema) if isinstance(source, DataFrame) else source
    return target.table_for(
        db,
        name,
        columns,
        primary_key=primary_key,
        partition_by=partition_by,
        replicas=replicas,
        replication=replication,
        min_members=min_members,
        storage=storage,
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """A DataFrame's columns as Arrow types. Raises InvalidArgument for a type that no table has."""
    fields = [pa.field(f.name, _arrow_type(f.name, f.dataType), f.nullable) for f in schema.fields]
    for field in fields:
        column_of(field)
    return pa.schema(fields)


def _arrow_type(name: str, kind: DataType) -> pa.DataType:
    try:
        return to_arrow_type(kind)
    except PySparkException as error:
        raise InvalidArgument(
            f"column {name!r} is of Spark's type {kind.simpleString()}, which no table holds; convert it, or drop it",
            column=name,
        ) from error


# -- following a job -----------------------------------------------------------------------------------------


class _Run:
    """A Spark job in a thread of its own, and a thread that watches it. The thread that follows them never calls into the JVM:
    an interrupt during such a call would leave its answer to the next call."""

    def __init__(self, spark: SparkSession, work: DataFrame, job: str, counter: Any) -> None:
        self.seconds = 0.0
        self._spark = spark
        self._work = work
        self._group = f"feed {job}"
        self._job = job
        self._counter = counter
        self._rows: list[Row] = []
        self._error: Exception | None = None
        self._tally = tasks.Tally(0, None, None)
        self._done = self._tasks = 0
        self._alive_s = time.monotonic()
        self._ended = threading.Event()

    def follow(self, show: Callable[[FeedProgress], None], total_rows: int | None) -> list[Row]:
        """The results, one row for each partition."""
        began = time.monotonic()
        collecting = InheritableThread(target=self._collect, name=self._group, daemon=True)
        watching = threading.Thread(target=self._watch, name=f"{self._group} watch", daemon=True)
        collecting.start()
        watching.start()
        try:
            while collecting.is_alive():
                collecting.join(POLL_S)
                self.seconds = time.monotonic() - began
                show(self._progress(total_rows))
                self._raise_lost()
        except BaseException:
            self._cancel(collecting)
            raise
        finally:
            self._ended.set()
        watching.join(CANCEL_S_MAX)
        if self._error is not None:
            raise self._failure(self._error)
        refused = [row.error for row in self._rows if row.error is not None]
        if refused:
            raise _among_others(msgspec.msgpack.decode(bytes(refused[0]), type=ErrorFrame))
        # Spark counts the tasks that have ended a moment after it gives their results.
        self._done = self._tasks = max(self._tasks, len(self._rows))
        show(self._progress(total_rows, sum(row.rows + row.rejected for row in self._rows)))
        return self._rows

    @property
    def acknowledged(self) -> int:
        """The rows that the table has answered, as far as known."""
        return self._tally.rows

    def _raise_lost(self) -> None:
        if self._tally.fatal is not None:
            raise _among_others(self._tally.fatal)
        if time.monotonic() - self._alive_s > LOST_S_MAX:
            raise FeedFailed(
                "Spark has lost all of its executors, probably with the node of its application master; start another "
                "session and feed again: the table then ends equal to the source",
                job=self._job,
                rows=self._tally.rows,
            )

    def _progress(self, total_rows: int | None, rows: int | None = None) -> FeedProgress:
        seen = self._tally.rows if rows is None else rows
        return FeedProgress(seen, total_rows, self._done, self._tasks, self.seconds)

    def _cancel(self, collecting: threading.Thread) -> None:
        asking = threading.Thread(
            target=self._spark.sparkContext.cancelJobGroup, args=(self._group,), daemon=True
        )
        asking.start()
        asking.join(CANCEL_S_MAX)
        collecting.join(CANCEL_S_MAX)

    # -- in the other threads

    def _collect(self) -> None:
        try:
            self._spark.sparkContext.setJobGroup(self._group, f"ebla {self._group}", interruptOnCancel=True)
            self._rows = self._work.collect()
        except Exception as error:
            self._error = error

    def _watch(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(POLL_S)  # and once more at the end
            self._tally = self._read()
            with contextlib.suppress(Exception):  # a JVM that does not answer is not alive
                self._done, self._tasks = self._stages()
                if executors_alive(self._spark):
                    self._alive_s = time.monotonic()

    def _stages(self) -> tuple[int, int]:
        """The number of finished tasks, and of all tasks."""
        tracker = self._spark.sparkContext.statusTracker()
        done = known = 0
        for number in tracker.getJobIdsForGroup(self._group):
            job = tracker.getJobInfo(number)
            for stage in map(tracker.getStageInfo, job.stageIds if job else ()):
                if stage is not None:
                    done, known = done + stage.numCompletedTasks, known + stage.numTasks
        return done, known

    def _read(self) -> tasks.Tally:
        """The workers' reports; the last known ones if the counter does not answer."""
        try:
            rows, last, fatal = ray.get(self._counter.read.remote(), timeout=1.0)
        except ray.exceptions.RayError:
            return self._tally
        return tasks.Tally(rows, _frame(last), _frame(fatal))

    def _failure(self, error: Exception) -> FeedFailed:
        last = self._tally.last
        cause = f"{last.kind}: {last.message}" if last else spark_cause(error)
        return FeedFailed(
            f"Spark gave the feed up after {self._tally.rows} rows: {cause}. Feed again when that is mended: the table "
            "then ends equal to the source",
            job=self._job,
            rows=self._tally.rows,
        )


def _start_counter(name: str) -> Any:
    """Start the counter on the driver's own node, whose loss ends the feed anyway."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options = {"name": name, "namespace": tasks.NAMESPACE, "num_cpus": 0, "scheduling_strategy": here}
    return ray.remote(tasks.Counter).options(**options).remote()


def _among_others(frame: ErrorFrame) -> EblaError:
    """The error of one task. Rows of this and of other tasks may have been written."""
    error = from_frame(frame)
    error.possibly_applied = True
    return error


def _frame(data: bytes | None) -> ErrorFrame | None:
    return None if data is None else msgspec.msgpack.decode(data, type=ErrorFrame)


def spark_cause(error: Exception) -> str:
    """The line of a Java stack that says why: of the Python stack that it wraps, or of its innermost cause."""
    if isinstance(error, OSError | Py4JNetworkError):
        return "the Java process of Spark's driver has ended"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if _PYTHON_ERROR.match(line)]
    java = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (python or java[-1:] or lines or [type(error).__name__])[0]


def _report(
    rows: Sequence[Row], table: Table, source: str, job: str, mode: str, seconds: float
) -> FeedReport:
    written = sum(row.rows for row in rows)
    return FeedReport(
        table=table.name,
        source=source,
        job=job,
        mode=mode,
        rows=written,
        rejected=sum(row.rejected for row in rows),
        partitions=len(rows),
        calls=sum(row.calls for row in rows),
        retries=sum(row.attempt for row in rows),
        seconds=seconds,
        rows_per_s=written / seconds if seconds > 0 else 0.0,
    )
