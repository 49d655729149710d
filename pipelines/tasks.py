"""The tasks in Spark's Python workers: they write a partition into a table, and count its rows.

A worker is a process of its own, reused for many tasks; it connects to Ray and to the deployment once. The requests for a
partition depend only on its rows and its number, so that a repeated or speculative attempt sends the same requests with the
same ids, and the table is the same as after one attempt:

    client      16 bytes digested from the feed's job, and the partition's number
    calls       whole Arrow batches as Spark cuts them, up to a fixed number of rows
    sequence    the position of a call's first row in its partition
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import ray
import ray.exceptions
import xxhash

from ebla.actors.errors import ErrorFrame, RequestReused, StaleRequest, to_frame
from ebla.extras import needs
from ebla.storage.errors import EblaError, InvalidArgument
from ebla.table import Table

with needs("spark"):
    from pyspark import TaskContext

NAMESPACE = "ebla-feeds"
CALL_BYTES = 16_000_000
RESULT = "partition int, attempt int, rows long, rejected long, calls int, error binary"
_RESULT = pa.schema(
    [
        ("partition", pa.int32()),
        ("attempt", pa.int32()),
        ("rows", pa.int64()),
        ("rejected", pa.int64()),
        ("calls", pa.int32()),
        ("error", pa.binary()),
    ]
)


class Call(msgspec.Struct, frozen=True):
    """Rows to write together; the first is at `position` in its partition."""

    position: int
    rows: Any  # pa.Table


def client_id(job: str, partition: int) -> bytes:
    """The client id of the partition, the same in every process."""
    return xxhash.xxh3_128_digest(f"{job}/{partition}".encode())


def calls(batches: Iterable[pa.RecordBatch], rows_max: int, bytes_max: int = CALL_BYTES) -> Iterator[Call]:
    """Joins whole batches, up to `rows_max` rows or `bytes_max`; the cuts depend on the batches alone."""
    held: list[pa.RecordBatch] = []
    position = rows = size = 0
    for batch in batches:
        if held and (rows + batch.num_rows > rows_max or size + batch.nbytes > bytes_max):
            yield Call(position, pa.Table.from_batches(held))
            position, rows, size = position + rows, 0, 0
            held = []
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
    if held:
        yield Call(position, pa.Table.from_batches(held))


@dataclass(frozen=True)
class WriteTask:
    """Writes the partition with which it is called. `table` is a pickled handle, which connects in the worker."""

    table: bytes
    job: str
    counter: str
    mode: str
    call_rows: int
    deadline_s: float | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "runs in a Spark task"
        partition, attempt = context.partitionId(), context.attemptNumber()
        table: Table = pickle.loads(self.table)
        assert table.schema, (
            "the handle connects here, before any other use of Ray, which would start another Ray cluster"
        )
        counter = CounterHandle(self.counter, partition)
        rows = rejected = sent = 0
        error: bytes | None = None
        try:
            for call in calls(batches, self.call_rows):
                count, refused = self._write(table, partition, call)
                rows, rejected, sent = rows + count, rejected + refused, sent + 1
                counter.rows(rows + rejected)
        except EblaError as failure:
            counter.failed(failure)
            if failure.retriable or type(failure).possibly_applied:
                raise  # Spark's next attempt may succeed
            error = msgspec.msgpack.encode(to_frame(failure))
        values: list[Any] = [partition, attempt, rows, rejected, sent, error]
        arrays = [pa.array([value], field.type) for value, field in zip(values, _RESULT, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_RESULT)

    def _write(self, table: Table, partition: int, call: Call) -> tuple[int, int]:
        write_id = client_id(self.job, partition), call.position
        try:
            if self.mode == "insert":
                written = table.insert(
                    call.rows, if_present="ignore", deadline_s=self.deadline_s, write_id=write_id
                )
            else:
                written = table.upsert(call.rows, deadline_s=self.deadline_s, write_id=write_id)
        except InvalidArgument as error:
            where = f"{error.message} (partition {partition}, rows from {call.position} on)"
            raise InvalidArgument(where, column=error.column, row=error.row) from error
        except (RequestReused, StaleRequest) as error:
            raise InvalidArgument(
                f"job {self.job!r} has written partition {partition} before, with other rows or long ago: if the order of the "
                "rows changes at each reading, use sort=True; for a changed source use another job"
            ) from error
        return written.rows, len(written.rejected)


# -- counting ------------------------------------------------------------------------------------------------


class Tally(msgspec.Struct, frozen=True):
    """`rows`: answered so far, of all partitions. `fatal`: an error that every attempt would meet."""

    rows: int
    last: ErrorFrame | None
    fatal: ErrorFrame | None


class Counter:
    """A small Ray actor beside the driver with the progress that workers report. Its loss does not matter."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._last: bytes | None = None
        self._fatal: bytes | None = None

    def rows(self, partition: int, rows: int) -> None:
        self._rows[partition] = max(rows, self._rows.get(partition, 0))

    def failed(self, error: bytes, fatal: bool) -> None:
        self._last = error
        if fatal:
            self._fatal = self._fatal or error

    def read(self) -> tuple[int, bytes | None, bytes | None]:
        return sum(self._rows.values()), self._last, self._fatal


class CounterHandle:
    """A task's side of the counter. The task never waits for it."""

    def __init__(self, counter: str, partition: int) -> None:
        self._partition = partition
        self._counter: Any = None
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            self._counter = ray.get_actor(counter, namespace=NAMESPACE)

    def rows(self, rows: int) -> None:
        if self._counter is not None:
            self._counter.rows.remote(self._partition, rows)

    def failed(self, error: EblaError) -> None:
        if self._counter is not None:
            fatal = not (error.retriable or type(error).possibly_applied)
            self._counter.failed.remote(msgspec.msgpack.encode(to_frame(error)), fatal)
