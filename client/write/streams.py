"""Rows that arrive batch by batch, so that a call may have more of them than fit in memory.

A source is anything with Arrow's stream interface (Polars, DuckDB relations, pyarrow readers, ebla's scans), or an iterable of
record batches or frames. A source may wait or compute, so a thread of its own reads it, one batch at a time, and closes it. Neither
a cancelled call nor the end of the program waits for the source.

The rows are written in windows of WINDOW_BYTES of encoded rows: the rows of a window are all checked before one is sent, and
the next window is read when the last is answered. The borders of windows depend on the rows alone, as write ids require.

An error of the source reaches the caller as it is; one that would end the caller's task or thread instead, such as
CancelledError, as the cause of SourceUnreadable.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import queue
import sys
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ebla.errors import SourceUnreadable
from ebla.storage.errors import InvalidArgument, invalid_column
from ebla.storage.rows.python_values import shown
from ebla.storage.rows.ragged import Array

WINDOW_BYTES = 32_000_000
_END = object()
T = TypeVar("T")
_WHOLE = (
    pa.RecordBatch,
    pa.Table,
    Mapping,
    str,
    bytes,
    bytearray,
    memoryview,
    np.ndarray,
    np.void,
    set,
    frozenset,
)


@dataclass
class Slice:
    """Rows of the call from position `start` on, checked, with their encoded keys, and the encoded size of each row."""

    start: int
    batch: pa.RecordBatch
    keys: pa.BinaryArray
    sizes: Array

    def divided(self, rows: int) -> tuple[Slice, Slice]:
        """The first `rows` rows, and the others."""
        return (
            Slice(self.start, self.batch[:rows], self.keys[:rows], self.sizes[:rows]),
            Slice(self.start + rows, self.batch[rows:], self.keys[rows:], self.sizes[rows:]),
        )


async def windows(slices: AsyncIterator[Slice]) -> AsyncGenerator[list[Slice], None]:
    """The slices in windows of WINDOW_BYTES; the last one is smaller."""
    held: list[Slice] = []
    size = 0
    async for part in slices:
        rest = part
        while len(rest.sizes):
            ends = size + np.cumsum(rest.sizes)
            if ends[-1] < WINDOW_BYTES:
                held.append(rest)
                size = int(ends[-1])
                break
            full, rest = rest.divided(int(np.searchsorted(ends, WINDOW_BYTES)) + 1)
            window, held, size = [*held, full], [], 0  # the caller frees slices by taking them out
            yield window
    if held:
        yield held


def is_stream(rows: Any) -> bool:
    """Whether the rows come batch by batch: not a table, a frame of pandas, or rows as dicts."""
    if isinstance(rows, _WHOLE) or is_frame(rows):
        return False
    if isinstance(rows, Sequence):
        return len(rows) > 0 and _is_batch(rows[0])
    if hasattr(rows, "__arrow_c_stream__"):
        return True
    return isinstance(rows, Iterable) and not hasattr(rows, "__arrow_c_array__")


def is_frame(rows: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(rows, pandas.DataFrame)


def _is_batch(item: Any) -> bool:
    return is_frame(item) or hasattr(item, "__arrow_c_array__") or hasattr(item, "__arrow_c_stream__")


class Stream:
    """Record batches and frames of pandas, from a source, from `opened`. `names`: the columns of every batch; None if there is no
    batch."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] | None = None
        self._batches: Iterator[Any] = iter(())
        self._source = ExitStack()
        self._steps: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run_steps, name="ebla source", daemon=True).start()

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The batches, each with the columns `names`."""
        while (batch := await self._step(lambda: next(self._batches, _END))) is not _END:
            names = names_of(batch)
            if set(names) != set(self.names or ()):
                raise InvalidArgument(
                    f"a batch has the columns {', '.join(map(str, names))} and the first "
                    f"{', '.join(map(str, self.names or ()))}; the batches of one call have the same columns"
                )
            yield batch

    def _open(self, rows: Any, needed: Collection[str] | None) -> None:
        if hasattr(rows, "__arrow_c_stream__"):
            self._batches = reader = self._source.enter_context(closing(_reader(rows, needed)))
            self.names = tuple(reader.schema.names)
            return
        source = self._source.enter_context(closing(_all_batches(iter(rows), needed)))
        first = next(source, _END)
        if first is not _END:
            self.names = names_of(first)
            self._batches = chain([first], source)

    # -- the thread

    def _run_steps(self) -> None:
        while (step := self._steps.get()) is not None:
            step()
            del step  # and its batch

    def _step(self, act: Callable[[], T]) -> asyncio.Future[T]:
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        outcome.set_running_or_notify_cancel()  # a cancelled caller leaves the step to the thread
        context = contextvars.copy_context()

        def step() -> None:
            try:
                outcome.set_result(context.run(_of_source, act))
            except BaseException as error:
                outcome.set_exception(error)

        self._steps.put(step)
        return asyncio.wrap_future(outcome)

    def _end(self) -> asyncio.Future[None]:
        closed = self._step(self._source.close)
        self._steps.put(None)
        return closed


@asynccontextmanager
async def opened(rows: Any, needed: Collection[str] | None = None) -> AsyncGenerator[Stream, None]:
    """Raises InvalidArgument if the rows are neither a stream of record batches nor an iterable of them. `needed`: the columns
    that the call reads, None for all. The source is closed at the end."""
    stream, waits = Stream(), True
    try:
        await stream._step(lambda: stream._open(rows, needed))
        yield stream
    except asyncio.CancelledError:
        waits = False
        raise
    finally:
        closed = stream._end()
        if waits:
            await closed
        else:  # the thread closes it all the same
            closed.cancel()


def _of_source(read: Callable[[], T]) -> T:
    """Run a step of the source. asyncio takes these errors for the end of the task that waits for the step."""
    try:
        return read()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(
            error, (concurrent.futures.CancelledError, StopIteration)
        ):
            raise
        raise SourceUnreadable(
            f"the source of the rows raised {shown(error)}; mend the source, or let it end when it has no more rows"
        ) from error


def _all_batches(source: Iterator[Any], needed: Collection[str] | None) -> Generator[Any, None, None]:
    try:
        for place, item in enumerate(source):
            if isinstance(item, pa.RecordBatch) or is_frame(item):
                yield item
            elif hasattr(item, "__arrow_c_stream__"):
                yield from _reader(item, needed)
            elif hasattr(item, "__arrow_c_array__"):
                yield batch_of(item)
            else:
                raise InvalidArgument(
                    f"item {place} of the rows is {shown(item)}; an iterable gives record batches or frames: for rows as "
                    "dicts give a list"
                )
    finally:
        if hasattr(source, "close"):  # that of a generator
            source.close()


def _reader(rows: Any, needed: Collection[str] | None) -> pa.RecordBatchReader:
    _refuse_objects(rows, needed)
    try:
        return pa.RecordBatchReader.from_stream(rows)
    except pa.ArrowInvalid as error:
        raise _unreadable(rows, error) from error


def _refuse_objects(rows: Any, needed: Collection[str] | None) -> None:
    """Polars passes Python objects on as their addresses in memory, in the form of binary values."""
    polars = sys.modules.get("polars")
    if polars is None or not isinstance(rows, polars.DataFrame):
        return
    for name, kind in rows.schema.items():
        if kind == polars.Object and (needed is None or name in needed):
            raise invalid_column(
                name,
                "is of the type Object of Polars, whose values Arrow cannot take; cast it first, such as with "
                f"rows.with_columns(polars.col({name!r}).map_elements(str, return_dtype=polars.String))",
            )


def batch_of(rows: Any) -> pa.RecordBatch:
    """The record batch of an object with Arrow's array interface."""
    try:
        return pa.record_batch(rows)
    except (pa.ArrowInvalid, TypeError) as error:
        raise _unreadable(rows, error) from error


def _unreadable(rows: Any, error: Exception) -> InvalidArgument:
    if "unsupported format string" in str(error):
        return InvalidArgument(
            f"rows are {type(rows).__name__}, which has a type that Arrow cannot take ({error}); cast that column, such as to "
            "Int64 or Decimal(38, 0)"
        )
    return InvalidArgument(
        f"rows are {type(rows).__name__}, which has no named columns ({error}); give a table or a frame"
    )


def names_of(batch: Any) -> tuple[str, ...]:
    return tuple(batch.schema.names) if isinstance(batch, pa.RecordBatch) else tuple(batch.columns)
