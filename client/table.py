"""ebla's API for code that does not await. Every method does the same as the method of its name in aio.py.

    with ebla.connect() as db:
        flights = db.table("flights")
        flights.upsert(rows)
        flights.scan(where=ebla.col("origin") == "JFK").to_pandas()

Handles may be shared by threads. Databases and tables can be pickled, into a Ray task for instance: the copy connects
there, once per process. Closing a copy ends that copy only, with its sessions; other copies keep the connection.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import pyarrow as pa
from typing_extensions import Self

from ebla import aio
from ebla.actors.asking.certainty import Tries
from ebla.actors.messages import TableInfo
from ebla.arguments import check_deadline, check_key
from ebla.coordination import awaited as coordination
from ebla.coordination.awaited import SESSION_S
from ebla.coordination.blocking import Coordination, Session
from ebla.errors import ConnectionClosed, EblaError
from ebla.link import Link
from ebla.log.awaited import Log as AwaitedLog
from ebla.log.blocking import Ledger, LedgerWriter, Log
from ebla.options import WAIT_S, Written
from ebla.read import frames
from ebla.show.handles import database_html, describe, table_html
from ebla.storage.rows import python_values
from ebla.transport.batches import Ids
from ebla.transport.bridge import blocking, described_as, like, reading
from ebla.transport.fast_path import MISS, FastGets, FastUpserts
from ebla.transport.routes import Route
from ebla.write.alter import Changes
from ebla.write.writer import send_again

if TYPE_CHECKING:
    import duckdb

    from ebla.options import Row, Rows, WriteIdLike
    from ebla.read.scan_run import ScanPlan
    from ebla.storage.predicates.expressions import Expression

T = TypeVar("T")
P = ParamSpec("P")


def _opening(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, aio.Table]],
) -> Callable[Concatenate[Any, P], Table]:
    """As `blocking`, for methods of a database that return a table."""
    run = blocking(method)

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> Table:
        __tracebackhide__ = True
        made = run(self, *arguments, **named)
        return Table(self, made.name, made)

    return call


def _opening_log(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, AwaitedLog]],
) -> Callable[Concatenate[Any, P], Log]:
    """As `blocking`, for methods of a database that return a log."""
    run = blocking(method)

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> Log:
        __tracebackhide__ = True
        made = run(self, *arguments, **named)
        return Log(self, made.name, made)

    return call


class Database:
    """A connection to one deployment, from `ebla.connect` or `ebla.local`; `help(ebla.Database)` says more."""

    __doc__ = aio.Database.__doc__

    def __init__(
        self,
        reconnect: tuple[str, str | None],
        link: Link | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """`reconnect`: the name and address to which a pickled copy connects, at its first use."""
        self._reconnect = reconnect
        self._link = link
        self._is_copy = link is None  # it shares the link with the other copies in this process
        self._copy_closed = False
        self._sessions: dict[coordination.Session, None] = {}  # of a copy
        self._on_close = on_close

    @property
    def _awaited(self) -> aio.Database:
        return self._connected().awaited

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            bridge = self._connected().bridge
        except EblaError:
            coroutine.close()
            raise
        return bridge.run(coroutine)

    def _connected(self) -> Link:
        """A pickled copy connects here, not while it is unpickled: unpickling must not wait for anything."""
        if self._copy_closed:
            raise ConnectionClosed(
                f"this copy of a connection to deployment {self.name!r} is closed; open another with ebla.connect()"
            )
        if self._link is None:
            from ebla.link import shared

            self._link = shared(*self._reconnect)
        return self._link

    @property
    @described_as(aio.Database.name)
    def name(self) -> str:
        return self._reconnect[0]

    create_table = _opening(aio.Database.create_table)
    table = _opening(aio.Database.table)
    recall_table = _opening(aio.Database.recall_table)
    tables = blocking(aio.Database.tables)
    drop_table = blocking(aio.Database.drop_table)
    servers = blocking(aio.Database.servers)
    status = blocking(aio.Database.status)

    @property
    @described_as(aio.Database.coordination)
    def coordination(self) -> Coordination:
        return Coordination(self._run, self._awaited.coordination)

    @like(aio.Database.session)
    def session(
        self, timeout_s: float = SESSION_S, *, name: str = "", deadline_s: float | None = None
    ) -> Session:
        made = self._run(self._awaited.session(timeout_s, name=name, deadline_s=deadline_s))
        if self._is_copy:
            self._sessions[made] = None
            for ended in [each for each in list(self._sessions) if each.expired]:
                self._sessions.pop(ended, None)
        return Session(self._run, made)

    create_log = _opening_log(aio.Database.create_log)
    log = _opening_log(aio.Database.log)
    logs = blocking(aio.Database.logs)
    drop_log = blocking(aio.Database.drop_log)

    @like(aio.Database.create_ledger)
    def create_ledger(
        self,
        *,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
    ) -> LedgerWriter:
        made = self._awaited.create_ledger(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
        )
        return LedgerWriter(self._run, self._run(made))

    @like(aio.Database.open_ledger)
    def open_ledger(self, ledger: int, *, recover: bool = True) -> Ledger:
        return Ledger(self, self._run(self._awaited.open_ledger(ledger, recover=recover)))

    ledgers = blocking(aio.Database.ledgers)
    delete_ledger = blocking(aio.Database.delete_ledger)

    def _pull(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        """One call to the loop's thread per item. A loop over the items that is left early ends the source."""
        try:
            while True:
                try:
                    item = self._run(_next(source))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if self._link is not None and not self._link.bridge.closed:  # that of a closed copy stays
                self._link.bridge.finish(source.aclose())

    @property
    @described_as(aio.Database.closed)
    def closed(self) -> bool:
        return self._copy_closed or (self._link is not None and self._link.bridge.closed)

    @like(aio.Database.close)
    def close(self) -> None:
        if self._is_copy:
            if self._sessions and not self.closed:  # else their heartbeats would go on
                self._run(_close_all(list(self._sessions)))
            self._copy_closed = True
        elif self._link is not None and not self.closed:
            self._run(self._awaited.close())
            self._link.bridge.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Database, (self._reconnect,)

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<ebla.Database {self.name!r}{closed}>"

    def _repr_html_(self) -> str:
        return database_html(self.name, self.closed)


class Table:
    """A table, from `Database.table` or `create_table`; `help(ebla.Table)` says what its writes promise."""

    __doc__ = aio.Table.__doc__

    def __init__(self, database: Database, name: str, made: aio.Table | None = None) -> None:
        self._database = database
        self._name = name
        self._made = made
        self._run = database._run
        self._fast: tuple[FastGets, FastUpserts] | None = None

    @property
    def _awaited(self) -> aio.Table:
        if self._made is None:
            self._made = self._run(self._database._awaited.table(self._name))
        return self._made

    # -- description

    @property
    @described_as(aio.Table.name)
    def name(self) -> str:
        return self._name if self._made is None else self._made.name

    schema: pa.Schema = reading(aio.Table.schema)
    primary_key: tuple[str, ...] = reading(aio.Table.primary_key)

    info = blocking(aio.Table.info)

    @like(aio.Table.alter)
    def alter(self) -> Alteration:
        return Alteration(self)

    # -- writes

    @like(aio.Table.upsert)
    def upsert(
        self, rows: Rows, *, deadline_s: float | None = None, write_id: WriteIdLike | None = None
    ) -> Written:
        if type(rows) is dict and write_id is None:
            limit_s = check_deadline(deadline_s)
            written = self._fast_path()[1].upsert(rows, limit_s)
            if written is not MISS:
                return written  # type: ignore[no-any-return]
        return self._run(self._awaited.upsert(rows, deadline_s=deadline_s, write_id=write_id))

    insert = blocking(aio.Table.insert)
    update = blocking(aio.Table.update)
    delete = blocking(aio.Table.delete)

    # -- reads

    @like(aio.Table.get)
    def get(self, key: Mapping[str, Any], *, deadline_s: float | None = None) -> Row | None:
        limit_s = check_deadline(deadline_s)
        check_key(key, self._awaited.primary_key)
        found, left_s = self._fast_path()[0].get(key, limit_s)
        return self._run(self._awaited.get(key, deadline_s=left_s)) if found is MISS else found

    def _fast_path(self) -> tuple[FastGets, FastUpserts]:
        if self._fast is None:
            awaited, world = self._awaited, self._awaited._client.world

            def resend(route: Route, batch: bytes, deadline_s: float, tries: Tries) -> Written:
                return self._run(send_again(awaited._client, route, batch, deadline_s, tries))

            self._fast = (
                FastGets(world.network, awaited._routes),
                FastUpserts(world.network, awaited._routes, Ids(world.random), resend),
            )
        self._database._connected().bridge.check_open()
        return self._fast

    @overload
    def get_many(
        self, keys: Rows, *, as_arrow: Literal[False] = False, deadline_s: float | None = None
    ) -> list[Row | None]: ...

    @overload
    def get_many(
        self, keys: Rows, *, as_arrow: Literal[True], deadline_s: float | None = None
    ) -> pa.RecordBatch: ...

    @described_as(aio.Table.get_many)
    def get_many(self, keys: Rows, *, as_arrow: bool = False, deadline_s: float | None = None) -> Any:
        return self._run(self._awaited.get_many(keys, as_arrow=as_arrow, deadline_s=deadline_s))  # type: ignore[call-overload]

    @like(aio.Table.scan)
    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Expression | None = None,
        limit: int | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Scan:
        return Scan(self._database, self._awaited.scan(columns, where, limit, deadline_s=deadline_s))

    count = blocking(aio.Table.count)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.scan())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All rows as a stream of Arrow's C interface, as of `scan()`: `duckdb.sql("select ... from people")`."""
        return self.scan().__arrow_c_stream__(requested_schema)

    flush = blocking(aio.Table.flush)

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self._database, self.name)

    def __repr__(self) -> str:
        return (
            f"<ebla.Table {self._name!r}>"
            if self._made is None
            else f"<ebla.Table {describe(self._made._routes.info)}>"
        )

    def _repr_html_(self) -> str:
        return table_html(self._awaited._routes.info)


class Alteration(Changes):
    """Changes of one table, carried out by `apply`."""

    __doc__ = aio.Alteration.__doc__

    def __init__(self, table: Table) -> None:
        super().__init__(table.name)
        self._table = table

    @like(aio.Alteration.apply)
    def apply(self, *, wait_s: float = WAIT_S) -> TableInfo:
        awaited = self._table._awaited.alter()
        awaited.changes, awaited.name, awaited.least = list(self.changes), self.name, self.least
        return self._table._run(awaited.apply(wait_s=wait_s))


class Scan:
    """Columns and rows to read, from `Table.scan`; each result runs the scan again."""

    __doc__ = aio.Scan.__doc__

    def __init__(self, database: Database, awaited: aio.Scan) -> None:
        self._database = database
        self._awaited = awaited
        self._run = database._run

    schema: pa.Schema = reading(aio.Scan.schema)
    indexes: dict[str, int] = reading(aio.Scan.indexes)

    to_arrow = blocking(aio.Scan.to_arrow)
    to_pandas = blocking(aio.Scan.to_pandas)
    to_polars = blocking(aio.Scan.to_polars)
    count = blocking(aio.Scan.count)

    @like(aio.Scan.to_duckdb)
    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        frames.duckdb()
        return frames.relation(self.to_arrow(), connection)

    @like(aio.Scan.batches)
    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._database._pull(self._awaited.batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as a stream of Arrow's C interface, read in batches while they are used: `pa.table(scan)`,
        `polars.DataFrame(scan)`, `duckdb.sql("select ... from scan")`. Each use runs the scan again; as `batches`, it may end
        early if a tablet's snapshot is lost."""
        plan = self._awaited._plan
        reader = pa.RecordBatchReader.from_batches(plan.arrow, self._shown_batches(plan))
        return reader.__arrow_c_stream__(requested_schema)

    def _shown_batches(self, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
        rows = 0
        awaited = self._awaited
        with awaited._client.watching(f"scan {awaited._routes.name}", lambda: rows):
            for batch in self._database._pull(awaited._stream(plan)):
                yield batch
                rows += batch.num_rows

    def __iter__(self) -> Iterator[Row]:
        for batch in self.batches():
            yield from python_values.rows(batch)

    def __repr__(self) -> str:
        return repr(self._awaited).replace("ebla.aio.Scan", "ebla.Scan")

    def _repr_html_(self) -> str:
        return self._awaited._repr_html_()


def _next(source: AsyncGenerator[T, None]) -> Coroutine[Any, Any, T]:
    async def step() -> T:
        return await anext(source)

    return step()


async def _close_all(sessions: Sequence[coordination.Session]) -> None:
    await asyncio.gather(*(session.close() for session in sessions))
