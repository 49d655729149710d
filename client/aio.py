"""ebla's API for code that awaits. The blocking API (`ebla.connect`) runs it in a thread of its own.

    async with await ebla.aio.connect() as db:
        flights = await db.table("flights")
        await flights.upsert({"carrier": "UA", "flight": 1545, ...})
        row = await flights.get({"carrier": "UA", "flight": 1545})
        table = await flights.scan(columns=["origin"], where=ebla.col("origin") == "JFK").to_arrow()

Calls of many tasks in one process are coalesced into few calls per server. Every method takes `deadline_s` (60 s by
default): for one row, for each batch of a call with many rows, for each block of a scan. Then it raises TimedOut.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import msgspec
import pyarrow as pa

from ebla.actors import messages as m
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT
from ebla.arguments import (
    check_choice,
    check_deadline,
    check_int,
    check_names,
    check_properties,
    check_reserve,
    check_text,
    check_write_id,
)
from ebla.coordination.awaited import Coordination
from ebla.coordination.awaited import Session as CoordinationSession
from ebla.coordination.changes import SESSION_S
from ebla.options import WAIT_S, Written
from ebla.partitions import PartitionBy, resolve
from ebla.read.reader import Reader
from ebla.read.scan import Row as Row
from ebla.read.scan import Scan as Scan
from ebla.storage.predicates import expressions
from ebla.storage.rows import python_values
from ebla.storage.schema import TableSchema
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import TableRoutes
from ebla.write.alter import Alteration
from ebla.write.writer import Writer, check_rows

WriteIdLike = tuple[bytes, int]
Reply = TypeVar("Reply")


class Database:
    """A connection to one deployment, from `ebla.aio.connect` or `local`. An async context manager."""

    def __init__(self, client: DeploymentClient, on_close: Callable[[], None] | None = None) -> None:
        self._client = client
        self._on_close = on_close

    async def create_table(
        self,
        name: str,
        *,
        schema: pa.Schema,
        primary_key: Sequence[str],
        partition_by: PartitionBy | None = None,
        replicas: int = 3,
        replication: str = "raft",
        properties: Mapping[str, str] | None = None,
        wait_s: float = WAIT_S,
    ) -> Table:
        """Create a table, and wait up to `wait_s` until all of its tablets accept writes (0: do not wait).

        Raises AlreadyPresent if a table has that name, InvalidArgument if the schema or the partitioning is invalid,
        Unavailable if fewer hosts than `replicas` are up.
        """
        check_text("name", name)
        key = check_names("primary_key", primary_key)
        made = TableSchema.from_arrow(schema, key)
        made = TableSchema.from_arrow(schema, key, resolve(partition_by, made))
        count = check_int("replicas", replicas, 1)
        request = m.CreateTableRequest(
            self._client.new_request_id(), name, made, count, replication, check_properties(properties)
        )
        deadline_s = check_deadline(wait_s or None, "wait_s")
        info = await self._client.ask_master("create_table", request, m.TableInfo, deadline_s=deadline_s)
        routes = self._client.adopt(info)
        if wait_s:
            await self._client.running(routes, deadline_s)
        return Table(self._client, routes)

    async def table(self, name: str, *, deadline_s: float | None = None) -> Table:
        """An existing table; raises NotFound."""
        limit_s = check_deadline(deadline_s)
        return Table(self._client, await self._client.table(check_text("name", name), limit_s))

    async def tables(
        self, prefix: str = "", *, deleted: bool = False, deadline_s: float | None = None
    ) -> list[m.TableSummary]:
        """The tables, sorted by name. `deleted`: instead the dropped tables that can be recalled."""
        request = m.ListTablesRequest(check_text("prefix", prefix), bool(deleted))
        reply = await self._ask("list_tables", request, m.ListTablesReply, deadline_s)
        return list(reply.tables)

    async def drop_table(
        self, name: str, *, reserve_s: float | None = None, deadline_s: float | None = None
    ) -> None:
        """Drop the table and its rows. The name is free when this returns. Raises NotFound.

        For `reserve_s` seconds `recall_table` brings the table back; meanwhile it keeps its space on disk. 0: the table is
        deleted at once and for good. None: the master's option `reserve_s` (0 unless set). With the id of a dropped table
        and `reserve_s=0`, that table is deleted now.
        """
        reserve = check_reserve(reserve_s)
        request = m.DropTableRequest(self._client.new_request_id(), check_text("name", name), reserve)
        await self._ask("drop_table", request, m.Empty, deadline_s)
        self._client.forget(name)

    async def recall_table(
        self, table: str, name: str | None = None, *, deadline_s: float | None = None
    ) -> Table:
        """Bring back a dropped table that is still kept, with all its rows. `table`: its former name, or its id (see
        `tables(deleted=True)`). `name`: a new name. Raises NotFound, AlreadyPresent if the name is taken."""
        renamed = "" if name is None else check_text("name", name)
        request = m.RecallTableRequest(self._client.new_request_id(), check_text("table", table), renamed)
        info = await self._ask("recall_table", request, m.TableInfo, deadline_s)
        return Table(self._client, self._client.adopt(info))

    async def servers(self, *, deadline_s: float | None = None) -> list[m.ServerStatus]:
        """The tablet servers as the master sees them."""
        reply = await self._ask("list_servers", m.Empty(), m.ListServersReply, deadline_s)
        return list(reply.servers)

    async def status(self, *, deadline_s: float | None = None) -> m.MasterStatus:
        return await self._ask("status", m.Empty(), m.MasterStatus, deadline_s)

    @property
    def coordination(self) -> Coordination:
        """Read access to nodes and sessions. To change nodes, open a `session`."""
        return Coordination(self._client)

    async def session(
        self, timeout_s: float = SESSION_S, *, name: str = "", deadline_s: float | None = None
    ) -> CoordinationSession:
        """A session for ephemeral nodes, locks, and all else in coordination/awaited.py. It ends when it is closed, or when no
        heartbeat of this process arrives for `timeout_s`."""
        return await self.coordination.session(timeout_s, name=name, deadline_s=deadline_s)

    async def _ask(
        self, method: str, message: msgspec.Struct, reply: type[Reply], deadline_s: float | None
    ) -> Reply:
        return await self._client.ask_master(method, message, reply, deadline_s=check_deadline(deadline_s))

    async def close(self) -> None:
        """Operations under way raise ConnectionClosed. Closing twice is no error."""
        self._client.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            await asyncio.to_thread(on_close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<ebla.aio.Database {self._client.name!r}>"


class Table:
    """A table. Handles are cheap, and tasks may share them; all writes of a connection are coalesced."""

    def __init__(self, client: DeploymentClient, routes: TableRoutes) -> None:
        self._client = client
        self._routes = routes
        self._writer = Writer(client, routes)
        self._reader = Reader(client, routes)

    # -- description

    @property
    def name(self) -> str:
        return self._routes.name

    @property
    def schema(self) -> pa.Schema:
        return self._routes.arrow

    @property
    def primary_key(self) -> tuple[str, ...]:
        return self._routes.schema.key

    async def info(self, *, deadline_s: float | None = None) -> m.TableInfo:
        """The table and where its tablets are, as the master sees it now."""
        request = m.TableName(self.name, self._routes.info.table)
        info = await self._client.ask_master(
            "get_table", request, m.TableInfo, deadline_s=check_deadline(deadline_s)
        )
        self._routes.update(info)
        return info

    def alter(self) -> Alteration:
        """Changes of the table that are made together: see write/alter.py."""
        return Alteration(self._client, self._routes)

    # -- writes

    async def upsert(
        self, rows: Any, *, deadline_s: float | None = None, write_id: WriteIdLike | None = None
    ) -> Written:
        """Insert rows or replace them. `rows`: one dict, a list of dicts, a table, record batch or frame
        (pyarrow, pandas, Polars, NumPy records), or a stream of record batches (docs/data.md).

        If a key occurs twice in one call, the later row wins. `write_id` makes the call repeatable (see WriteId).
        """
        return await self._write(UPSERT, rows, False, deadline_s, write_id)

    async def insert(
        self,
        rows: Any,
        *,
        if_present: str = "error",
        deadline_s: float | None = None,
        write_id: WriteIdLike | None = None,
    ) -> Written:
        """Insert new rows. Rows whose key exists change nothing and are listed in AlreadyPresent, or in the result with
        `if_present="ignore"`."""
        strict = check_choice("if_present", if_present, ("error", "ignore")) == "error"
        return await self._write(INSERT, rows, strict, deadline_s, write_id)

    async def update(
        self,
        rows: Any,
        *,
        if_absent: str = "error",
        deadline_s: float | None = None,
        write_id: WriteIdLike | None = None,
    ) -> Written:
        """Set the given columns of existing rows and keep the other columns; `if_absent` as in `delete`."""
        strict = check_choice("if_absent", if_absent, ("error", "ignore")) == "error"
        return await self._write(UPDATE, rows, strict, deadline_s, write_id)

    async def delete(
        self,
        keys: Any,
        *,
        if_absent: str = "error",
        deadline_s: float | None = None,
        write_id: WriteIdLike | None = None,
    ) -> Written:
        """Delete rows by their keys; other columns in `keys` are ignored. Keys without a row are listed in NotFound, or in
        the result with `if_absent="ignore"`."""
        strict = check_choice("if_absent", if_absent, ("error", "ignore")) == "error"
        return await self._write(DELETE, keys, strict, deadline_s, write_id)

    async def _write(
        self, kind: int, rows: Any, strict: bool, deadline_s: float | None, write_id: WriteIdLike | None
    ) -> Written:
        limit_s = check_deadline(deadline_s)
        if not self._routes.all_running:
            await self._client.running(self._routes, limit_s)
        if isinstance(rows, dict) and write_id is None:
            written = await self._writer.one(kind, rows, limit_s)
        else:
            written = await self._writer.many(kind, rows, check_write_id(write_id), limit_s)
        return check_rows(kind, self.name, written, strict) if written.rejected else written

    # -- reads

    async def get(self, key: Mapping[str, Any], *, deadline_s: float | None = None) -> Row | None:
        """The row with this key, or None. Sees every write that was acknowledged before the call."""
        limit_s = check_deadline(deadline_s)
        if not self._routes.all_running:
            await self._client.running(self._routes, limit_s)
        return await self._reader.get(key, limit_s)

    async def get_many(self, keys: Any, *, as_arrow: bool = False, deadline_s: float | None = None) -> Any:
        """One entry per key, in order: the row or None. With `as_arrow` a RecordBatch of the existing rows, in the order of
        their keys."""
        limit_s = check_deadline(deadline_s)
        if not self._routes.all_running:
            await self._client.running(self._routes, limit_s)
        found, places = await self._reader.get_many(keys, limit_s)
        if as_arrow:
            return found.take(pa.array(places[places >= 0]))
        rows = python_values.rows(found)
        return [None if place < 0 else rows[place] for place in places.tolist()]

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: expressions.Expression | None = None,
        limit: int | None = None,
        *,
        deadline_s: float | None = None,
    ) -> Scan:
        """Rows as of one moment per tablet. Nothing is read before a result is asked for."""
        return Scan(self._client, self._routes, columns, where, limit, check_deadline(deadline_s))

    def __aiter__(self) -> AsyncGenerator[Row, None]:
        return self.scan().__aiter__()

    async def flush(self, *, deadline_s: float | None = None) -> dict[str, int]:
        """Write every tablet's applied rows from the leader's memory into its table on disk (the log already has them
        durably). Returns per tablet the log index up to which the disk has the rows."""
        limit_s = check_deadline(deadline_s)
        await self._client.running(self._routes, limit_s)
        ask = self._client.router.ask
        replies = await asyncio.gather(
            *(
                ask(r, "flush", m.FlushRequest(r.tablet), m.FlushReply, what="flush", deadline_s=limit_s)
                for r in self._routes.routes
            )
        )
        return {tablet: index for _, reply in replies for tablet, index in reply.flushed.items()}

    def __repr__(self) -> str:
        return f"<ebla.aio.Table {describe(self._routes)}>"


def describe(routes: TableRoutes) -> str:
    info = routes.info
    tablets = f"{len(routes.routes)} tablet" + ("s" if len(routes.routes) != 1 else "")
    return (
        f"{info.name!r}: {len(routes.schema.columns)} columns, key ({', '.join(routes.schema.key)}), {tablets}, "
        f"{info.replicas} x {info.replication}"
    )


async def connect(name: str = "ebla", address: str | None = None) -> Database:
    """As `ebla.connect`. The connection stays on the calling event loop."""
    from ebla.deployment import open_client

    return Database(await open_client(name, address))


async def local(
    hosts: int = 3,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    name: str = "ebla",
    settings: Mapping[str, Any] | None = None,
    dashboard: bool = False,
) -> Database:
    """As `ebla.local`."""
    from ebla.deployment import make_client, start_local

    _, end = await asyncio.to_thread(start_local, hosts, data_dir, name, settings, dashboard)
    return Database(make_client(name), end)
