"""A log as a Spark DataFrame, and a DataFrame appended to a log.

Read: one task per ledger. Appended: the executors compute all rows and keep them, then one task appends them, partition by
partition, since a log has one writer. Spark runs a task again that fails: it gets the same rows, because they are kept, and the
log, which counts the records of the job, does not get them twice.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from ebla.actors.errors import ErrorFrame, from_frame, to_frame
from ebla.actors.world import new_id
from ebla.errors import FeedFailed
from ebla.log import blocks
from ebla.log.blocking import Log
from ebla.pipelines.feed import spark_cause
from ebla.pipelines.read import in_spark_types, spark_schema
from ebla.placement.extras import needs
from ebla.storage.errors import EblaError

with needs("spark"):
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType


def read_log(
    spark: SparkSession,
    log: Log,
    start: int | None = None,
    end: int | None = None,
    *,
    tables: bool = False,
) -> DataFrame:
    """The records from position `start` to before `end`, with the columns `position` and `data`, the bytes.

    None stands for the first record that is kept, and for the last one that is acknowledged now. `tables`: the records are Arrow
    tables, as `append_table` and `write_log` make them, and the DataFrame has their rows instead. Raises RecordsTrimmed if `start` was
    deleted.
    """
    parts = blocks.parts_of(log, start, end)
    tables_have = blocks.schema_of(log, parts) if tables else None
    schema = spark_schema(tables_have or blocks.SCHEMA)
    work = _ReadTask(pickle.dumps(log), tuple(parts), tables_have, schema.json())
    return spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(work, schema)


@dataclass(frozen=True)
class _ReadTask:
    """Reads the parts with the given places. `schema` is Spark's, as JSON."""

    log: bytes
    parts: tuple[range, ...]
    tables: pa.Schema | None
    schema: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        log: Log = pickle.loads(self.log)
        wanted = to_arrow_schema(StructType.fromJson(json.loads(self.schema)))
        for batch in batches:
            for place in batch.column(0).to_pylist():
                for block in blocks.read_part(log, self.parts[place], self.tables):
                    for rows in block.to_batches():
                        yield in_spark_types(rows, wanted)


def write_log(frame: DataFrame, log: Log, *, job: str | None = None, tables: bool = False) -> int:
    """Append the column `data`, bytes or text, and return how many records these are. `tables`: append the rows as Arrow tables of
    10,000 rows instead.

    The rows are appended in the order of the partitions, once. `job`: a name under which the log counts the records. A write that
    has failed can be made again under the same job, and appends what is not in the log yet; the frame must have the same rows in
    the same order then: a file has an order, a shuffle needs a sort. Raises FeedFailed, which names the job, if Spark gives up.
    """
    if not tables:
        blocks.check_columns(frame.columns)
        frame = frame.select(blocks.DATA)
    job = job or new_id(random.SystemRandom())
    try:
        kept = frame.localCheckpoint()
        (done,) = kept.coalesce(1).mapInArrow(WriteTask(pickle.dumps(log), job, tables), RESULT).collect()
    except (PySparkException, Py4JError, OSError) as error:
        raise FeedFailed(
            f"Spark gave up appending to log {log.name!r}: {spark_cause(error)}. When that is mended, append the same rows again with "
            f"job={job!r}: those that are in the log are passed over",
            job=job,
        ) from error
    if done.error is not None:
        refused = from_frame(msgspec.msgpack.decode(bytes(done.error), type=ErrorFrame))
        refused.possibly_applied = True  # to the records before
        raise refused
    return int(done.records)


RESULT = "records long, error binary"
_RESULT = pa.schema([("records", pa.int64()), ("error", pa.binary())])


@dataclass(frozen=True)
class WriteTask:
    """Appends the one partition with which it is called. `log` is a pickled handle, which connects in the worker."""

    log: bytes
    job: str
    tables: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (pa.Table.from_batches([batch]) for batch in batches)
        count, error = 0, None
        try:
            count = blocks.append(pickle.loads(self.log), rows, self.job, self.tables)
        except EblaError as failure:
            if failure.retriable or type(failure).possibly_applied:
                raise  # Spark's next attempt may succeed
            error = msgspec.msgpack.encode(to_frame(failure))
        yield pa.RecordBatch.from_pydict({"records": [count], "error": [error]}, schema=_RESULT)
