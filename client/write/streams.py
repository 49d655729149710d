"""Rows that arrive batch by batch, so that a call may have more of them than fit in memory.

A source is anything with Arrow's stream interface (Polars, DuckDB relations, pyarrow readers, ebla's scans), or an iterable of
record batches or frames. A source may wait or compute, so threads read it, one batch at a time, never two at once.

The rows are written in windows of WINDOW_BYTES of encoded rows: the rows of a window are all checked before one is sent, and
the next window is read when the last is answered. The borders of windows depend on the rows alone, as write ids require.

An error of the source reaches the caller as it is; one that would end the caller's task or thread instead, such as
CancelledError, as the cause of SourceUnreadable.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
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
from dataclasses import dataclass
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
    """Record batches and frames of pandas, from a source. `names`: the columns of every batch; None if there is no batch."""

    def __init__(self, source: Any, names: tuple[str, ...] | None) -> None:
        """`source`: an iterator with a method `close`."""
        self.names = names
        self._source = source
        self._reading = threading.Lock()

    async def batches(self) -> AsyncGenerator[Any, None]:
        """The batches, each with the columns `names`. The source is closed at the end, also in a thread: a scan of the same
        connection needs the loop to end."""
        try:
            while True:
                batch = await asyncio.to_thread(_of_source, self._next)
                if batch is _END:
                    return
                names = names_of(batch)
                if set(names) != set(self.names or ()):
                    raise InvalidArgument(
                        f"a batch has the columns {', '.join(map(str, names))} and the first "
                        f"{', '.join(map(str, self.names or ()))}; the batches of one call have the same columns"
                    )
                yield batch
        finally:
            await asyncio.to_thread(_of_source, self._close)

    def _next(self) -> Any:
        with self._reading:
            return next(self._source, _END)

    def _close(self) -> None:
        with self._reading:
            self._source.close()
            self._source = iter(())


async def opened(rows: Any, needed: Collection[str] | None = None) -> Stream:
    """Raises InvalidArgument if the rows are neither a stream of record batches nor an iterable of them. `needed`: the columns
    that the call reads, None for all."""
    return await asyncio.to_thread(_of_source, lambda: _opened(rows, needed))


def _of_source(read: Callable[[], T]) -> T:
    """Run a step of the source. asyncio takes these errors for the end of the task that waits for the step."""
    try:
        return read()
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, concurrent.futures.CancelledError):
            raise
        raise SourceUnreadable(
            f"the source of the rows raised {shown(error)}; mend the source, or let it end when it has no more rows"
        ) from error


def _opened(rows: Any, needed: Collection[str] | None) -> Stream:
    if hasattr(rows, "__arrow_c_stream__"):
        reader = _reader(rows, needed)
        return Stream(reader, tuple(reader.schema.names))
    source = _all_batches(iter(rows), needed)
    first = next(source, _END)
    if first is _END:
        return Stream(source, None)
    return Stream(_resumed(first, source), names_of(first))


def _resumed(first: Any, source: Iterator[Any]) -> Generator[Any, None, None]:
    yield first
    yield from source


def _all_batches(source: Iterator[Any], needed: Collection[str] | None) -> Generator[Any, None, None]:
    for place, item in enumerate(source):
        if isinstance(item, pa.RecordBatch) or is_frame(item):
            yield item
        elif hasattr(item, "__arrow_c_stream__"):
            yield from _reader(item, needed)
        elif hasattr(item, "__arrow_c_array__"):
            yield batch_of(item)
        else:
            raise InvalidArgument(
                f"item {place} of the rows is {shown(item)}; an iterable gives record batches or frames: for rows as dicts "
                "give a list"
            )


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
