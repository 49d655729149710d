"""Logs for code that does not await: every method does the same as the method of its name in awaited.py.

Threads may share all handles.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar

import pyarrow as pa

from ebla.log import awaited as log
from ebla.transport.bridge import blocking, like, reading

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
Pull = Callable[[AsyncGenerator[Any, None]], Iterator[Any]]


class Log:
    __doc__ = log.Log.__doc__

    def __init__(self, run: Run, pull: Pull, awaited: log.Log) -> None:
        """`pull`: makes an iterator of an awaited one."""
        self._run = run
        self._pull = pull
        self._awaited = awaited

    name: str = reading(log.Log.name)

    info = blocking(log.Log.info)
    trim = blocking(log.Log.trim)

    @like(log.Log.writer)
    def writer(self, producer: str | None = None, *, deadline_s: float | None = None) -> LogWriter:
        return LogWriter(self._run, self._run(self._awaited.writer(producer, deadline_s=deadline_s)))

    @like(log.Log.read)
    def read(
        self, start: int | None = None, *, follow: bool = False, limit: int | None = None
    ) -> Iterator[log.Entry]:
        for some in self._pull(self._awaited._some(start, follow, limit)):
            yield from some

    @like(log.Log.read_tables)
    def read_tables(self, start: int | None = None, *, follow: bool = False) -> Iterator[pa.Table]:
        return self._pull(self._awaited.read_tables(start, follow=follow))

    def __iter__(self) -> Iterator[log.Entry]:
        return self.read()

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")


class LogWriter:
    __doc__ = log.LogWriter.__doc__

    def __init__(self, run: Run, awaited: log.LogWriter) -> None:
        self._run = run
        self._awaited = awaited

    append = blocking(log.LogWriter.append)
    append_many = blocking(log.LogWriter.append_many)
    append_once = blocking(log.LogWriter.append_once)
    append_table = blocking(log.LogWriter.append_table)
    close = blocking(log.LogWriter.close)
    sequence: int = reading(log.LogWriter.sequence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")
