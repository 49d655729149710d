"""Logs for code that does not await: every method does the same as the method of its name in awaited.py.

Threads may share all handles. A log can be pickled, into a Ray task for instance: the copy connects anew. Records are read in the
caller's thread: they may come from a log or a scan of the same connection.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from typing_extensions import Self

from ebla.log import awaited as log
from ebla.log import ledgers
from ebla.transport.bridge import blocking, like, reading

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Database(Protocol):
    """The part of a database that a log needs. `_pull`: makes an iterator of an awaited one."""

    @property
    def _awaited(self) -> Any: ...

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    def _pull(self, source: AsyncGenerator[T, None]) -> Iterator[T]: ...


class Log:
    """A log, from `Database.log` or `create_log`; `help(ebla.Log)` says more."""

    __doc__ = log.Log.__doc__

    def __init__(self, database: Database, name: str, made: log.Log | None = None) -> None:
        self._database = database
        self._name = name
        self._made = made
        self._run = database._run
        self._pull = database._pull

    @property
    def _awaited(self) -> log.Log:
        """A pickled copy makes it at its first use."""
        if self._made is None:
            self._made = log.Log(self._database._awaited._logs, self._name)
        return self._made

    @property
    @like(log.Log.name)
    def name(self) -> str:
        return self._name

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

    def __reduce__(self) -> tuple[Any, ...]:
        return Log, (self._database, self._name)

    def __repr__(self) -> str:
        return f"<ebla.Log {self._name!r}>"


class LogWriter:
    """Appends records to a log, from `Log.writer`; a context manager."""

    __doc__ = log.LogWriter.__doc__

    def __init__(self, run: Run, awaited: log.LogWriter) -> None:
        self._run = run
        self._awaited = awaited

    append = blocking(log.LogWriter.append)

    @like(log.LogWriter.append_many)
    def append_many(self, records: Iterable[bytes], *, deadline_s: float | None = None) -> range:
        return self._run(self._awaited.append_many(list(records), deadline_s=deadline_s))  # type: ignore[no-any-return]

    @like(log.LogWriter.append_once)
    def append_once(self, records: Iterable[bytes], sequence: int, *, deadline_s: float | None = None) -> int:
        return self._run(self._awaited.append_once(list(records), sequence, deadline_s=deadline_s))  # type: ignore[no-any-return]

    @like(log.LogWriter.append_table)
    def append_table(self, table: Any, *, deadline_s: float | None = None) -> int:
        return self._run(self._awaited.append_table(pa.table(table), deadline_s=deadline_s))  # type: ignore[no-any-return]

    close = blocking(log.LogWriter.close)
    sequence: int = reading(log.LogWriter.sequence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")


class Ledger:
    __doc__ = ledgers.Ledger.__doc__

    def __init__(self, database: Database, awaited: ledgers.Ledger) -> None:
        self._run = database._run
        self._pull = database._pull
        self._awaited = awaited

    ledger: int = reading(ledgers.Ledger.ledger)
    info = blocking(ledgers.Ledger.info)
    last_confirmed = blocking(ledgers.Ledger.last_confirmed)

    @like(ledgers.Ledger.read)
    def read(self, first: int = 0, last: int | None = None) -> Iterator[ledgers.LedgerEntry]:
        return self._pull(self._awaited.read(first, last))

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")


class LedgerWriter:
    __doc__ = ledgers.LedgerWriter.__doc__

    def __init__(self, run: Run, awaited: ledgers.LedgerWriter) -> None:
        self._run = run
        self._awaited = awaited

    ledger: int = reading(ledgers.LedgerWriter.ledger)
    last_confirmed: int = reading(ledgers.LedgerWriter.last_confirmed)
    add = blocking(ledgers.LedgerWriter.add)

    @like(ledgers.LedgerWriter.add_many)
    def add_many(self, entries: Iterable[bytes], *, deadline_s: float | None = None) -> range:
        return self._run(self._awaited.add_many(list(entries), deadline_s=deadline_s))  # type: ignore[no-any-return]

    close = blocking(ledgers.LedgerWriter.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._run(self._awaited.__aexit__(*exception))

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.", "ebla.")
