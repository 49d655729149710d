"""The tasks in Spark's Python workers: they write a partition into a table, and count its rows.

A worker is a process of its own, reused for many tasks; it connects to Ray and to the deployment once. A repeated or
speculative attempt at a partition sends the same requests (target.py).
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

from ebla.actors.errors import ErrorFrame, to_frame
from ebla.pipelines.target import calls, write
from ebla.placement.extras import needs
from ebla.storage.errors import EblaError
from ebla.table import Table

with needs("spark"):
    from pyspark import TaskContext

NAMESPACE = "ebla-feeds"
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
                count, refused = write(
                    table, call, mode=self.mode, job=self.job, partition=partition, deadline_s=self.deadline_s
                )
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


# -- counting ------------------------------------------------------------------------------------------------


class Tally(msgspec.Struct, frozen=True):
    """`rows`: answered so far, of all partitions. `last`: the newest error that no later attempt has overcome. `fatal`: one that
    every attempt would meet."""

    rows: int
    last: ErrorFrame | None
    fatal: ErrorFrame | None


class Counter:
    """A small Ray actor beside the driver with the progress that workers report. Its loss does not matter."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._errors: dict[int, bytes] = {}  # by partition, the newest at the end
        self._fatal: bytes | None = None

    def rows(self, partition: int, rows: int) -> None:
        """The partition goes on, so its last error is overcome; another attempt that meets it reports it again."""
        self._rows[partition] = max(rows, self._rows.get(partition, 0))
        self._errors.pop(partition, None)

    def failed(self, partition: int, error: bytes, fatal: bool) -> None:
        self._errors.pop(partition, None)
        self._errors[partition] = error
        if fatal:
            self._fatal = self._fatal or error

    def read(self) -> tuple[int, bytes | None, bytes | None]:
        return sum(self._rows.values()), next(reversed(self._errors.values()), None), self._fatal


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
            self._counter.failed.remote(self._partition, msgspec.msgpack.encode(to_frame(error)), fatal)
