"""A connection to a deployment, awaited. `ebla.aio` shows its API; `ebla.table` runs it for code that does not await."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from typing_extensions import Self

from ebla.actors import messages as m
from ebla.actors.ledger.shared.records import LastingSession
from ebla.actors.messages import MasterStatus, ServerStatus, TableSummary
from ebla.aio_table import Table
from ebla.arguments import (
    check_deadline,
    check_int,
    check_names,
    check_properties,
    check_reserve,
    check_text,
)
from ebla.coordination.awaited import SESSION_S, Coordination, Session
from ebla.log import directory, ledgers
from ebla.log.awaited import Log, settings_of
from ebla.log.ledgers import Ledger, LedgerInfo, LedgerWriter
from ebla.log.reading import Ledgers
from ebla.options import WAIT_S
from ebla.partitions import PartitionBy, resolve
from ebla.show.handles import Listing, database_html
from ebla.show.progress import working
from ebla.storage.schema import TableSchema
from ebla.transport.client import DeploymentClient
from ebla.transport.opening import Opening

Reply = TypeVar("Reply")


def _schema(
    schema: pa.Schema, key: Sequence[str], partition_by: PartitionBy | None, stored: Mapping[str, str]
) -> TableSchema:
    """The schema of a new table. `stored`: how its replicas keep rows."""
    for name, value in stored.items():
        check_text(name, value)
    return TableSchema.from_arrow(
        schema, key, resolve(partition_by, TableSchema.from_arrow(schema, key)), **stored
    )


class Database:
    """A connection to one deployment, from `connect` or `local`. A context manager, which closes the connection.

    All methods take `deadline_s`, the longest wait in seconds (60 by default). A request without an answer is sent again with
    the same id, and carried out once. After the deadline they raise TimedOut; without a master that serves, Unavailable.
    """

    def __init__(self, client: DeploymentClient, on_close: Callable[[], None] | None = None) -> None:
        self._client = client
        self._ledgers: Ledgers | None = None
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
        min_members: int | None = None,
        storage: str = "rows",
        compression: str = "none",
        properties: Mapping[str, str] | None = None,
        wait_s: float = WAIT_S,
    ) -> Table:
        """Create a table, and wait until all of its tablets accept writes.

        The table is durable when this returns, or raises TimedOut.

        Args:
            name: The table's name.
            schema: Columns and types. A field with `nullable=False`, and each key column, takes no null.
            primary_key: The key columns, in the order in which rows are sorted.
            partition_by: `ebla.hash(...)`, `ebla.range(...)` or their sum: the division into tablets, which servers carry
                independently. None for one tablet.
            replicas: Copies of each tablet, on as many hosts. 3 survive the loss of any 1, 5 of any 2.
            replication: The protocol of the replicas: "raft", or "pacifica" (docs/pacifica.md says which fits).
            min_members: Of a table with "pacifica": with fewer replicas that vote, a tablet takes no writes. None: more than
                half of them.
            storage: How replicas keep rows: as "rows", or as "columns" (docs/storage.md says what each is good for).
            compression: Of a table with "columns": "none", "lz4" or "zstd" (docs/storage.md has what each costs).
            properties: Texts to keep with the table, such as its owner.
            wait_s: Longest wait in seconds for the tablets; 0: do not wait.

        Raises:
            AlreadyPresent: A table has that name.
            InvalidArgument: The schema, the key or the partitioning is invalid.
            Unavailable: Fewer hosts than `replicas` are up.
            Frozen: The level of the cluster (`ebla level`) allows no new tables, or too few servers are live.
            TimedOut: The tablets did not come up within `wait_s`; the table exists.
        """
        check_text("name", name)
        stored = {"storage": storage, "compression": compression}
        made = _schema(schema, check_names("primary_key", primary_key), partition_by, stored)
        least = None if min_members is None else check_int("min_members", min_members, 1)
        request = m.CreateTableRequest(
            self._client.master.new_request_id(),
            name,
            made,
            check_int("replicas", replicas, 1),
            replication,
            check_properties(properties),
            least,
        )
        deadline_s = check_deadline(wait_s or None, "wait_s")
        info = await self._client.master.ask("create_table", request, m.TableInfo, deadline_s=deadline_s)
        routes = self._client.adopt(info)
        if wait_s:
            await self._client.running(routes, deadline_s)
        return Table(self._client, routes)

    async def table(self, name: str, *, deadline_s: float | None = None) -> Table:
        """Open an existing table.

        Raises:
            NotFound: There is no such table.
            TableDropped: The table was dropped, and can be recalled.
        """
        limit_s = check_deadline(deadline_s)
        return Table(self._client, await self._client.table(check_text("name", name), limit_s))

    async def tables(
        self, prefix: str = "", *, deleted: bool = False, deadline_s: float | None = None
    ) -> list[TableSummary]:
        """List the tables whose name begins with `prefix`, sorted by name. `deleted`: instead the dropped tables that can be
        recalled."""
        request = m.ListTablesRequest(check_text("prefix", prefix), bool(deleted))
        reply = await self._ask("list_tables", request, m.ListTablesReply, deadline_s)
        return Listing(reply.tables)

    async def drop_table(
        self, name: str, *, reserve_s: float | None = None, deadline_s: float | None = None
    ) -> None:
        """Drop a table and its rows. The name is free when this returns.

        Args:
            name: The table's name; or the id of a dropped table, with `reserve_s=0`, to delete that table now.
            reserve_s: The seconds during which `recall_table` can bring the table back; it keeps its space on disk until
                then. 0: the table is deleted at once and for good. None: the master's option `reserve_s` (0 unless set).
            deadline_s: Longest wait in seconds.

        Raises:
            NotFound: There is no such table.
        """
        reserve = check_reserve(reserve_s)
        request = m.DropTableRequest(self._client.master.new_request_id(), check_text("name", name), reserve)
        await self._ask("drop_table", request, m.Empty, deadline_s)
        self._client.lost_name(name)

    async def recall_table(
        self, table: str, name: str | None = None, *, deadline_s: float | None = None
    ) -> Table:
        """Bring back a dropped table that is still kept, with all its rows.

        Args:
            table: Its former name, or its id (see `tables(deleted=True)`).
            name: A new name; None for the former one.
            deadline_s: Longest wait in seconds.

        Raises:
            NotFound: No such table is kept.
            AlreadyPresent: The name is taken; give another one.
        """
        renamed = "" if name is None else check_text("name", name)
        request = m.RecallTableRequest(
            self._client.master.new_request_id(), check_text("table", table), renamed
        )
        info = await self._ask("recall_table", request, m.TableInfo, deadline_s)
        return Table(self._client, self._client.adopt(info))

    async def servers(self, *, deadline_s: float | None = None) -> list[ServerStatus]:
        """List the tablet servers as the master sees them."""
        reply = await self._ask("list_servers", m.Empty(), m.ListServersReply, deadline_s)
        return Listing(reply.servers)

    async def status(self, *, deadline_s: float | None = None) -> MasterStatus:
        """Get the state of the active master. `ebla check` asks every role instead."""
        return await self._ask("status", m.Empty(), m.MasterStatus, deadline_s)

    @property
    def coordination(self) -> Coordination:
        """Read access to the nodes and sessions with which processes agree. To change nodes, open a `session`."""
        return Coordination(self._client.master)

    def session(
        self, timeout_s: float = SESSION_S, *, name: str = "", deadline_s: float | None = None
    ) -> Opening[Session]:
        """Open a session for ephemeral nodes, locks and other coordination (docs/coordination.md). A context manager.

        Args:
            timeout_s: The session expires when no heartbeat of this process arrives for this time, in seconds.
            name: A name for operators; `ebla coord sessions` shows it.
            deadline_s: Longest wait in seconds.
        """
        return self.coordination.session(timeout_s, name=name, deadline_s=deadline_s)

    # -- logs

    @property
    def _logs(self) -> Ledgers:
        """Made at its first use: tables need none of it."""
        if self._ledgers is None:
            session = LastingSession(self._client.master, "a client's logs")
            self._ledgers = Ledgers(self._client.world, session, display=self._client.display)
        return self._ledgers

    async def create_log(
        self,
        name: str,
        *,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        retain_s: float | None = None,
        retain_bytes: int | None = None,
        roll_bytes: int | None = None,
        roll_s: float | None = None,
    ) -> Log:
        """Create a log, and return it; a log of this name with the same settings is returned as it is (docs/logs.md).

        A deployment without ledger stores gets one on every host, which takes some seconds.

        Args:
            ensemble: The number of stores over which records are spread (3).
            write_quorum: On how many of them each record is (3).
            ack_quorum: How many must have synced a record before it is acknowledged (2).
            retain_s: Records older than this may be deleted, whole ledgers at a time. None keeps them.
            retain_bytes: The oldest records may be deleted when so many bytes are kept after them. None keeps them.
            roll_bytes: The writer begins another ledger at this size (64 MiB).
            roll_s: The writer begins another ledger at this age (3600).

        Raises AlreadyPresent if there is a log with other settings, InvalidArgument.
        """
        settings = settings_of(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            retain_s=retain_s,
            retain_bytes=retain_bytes,
            roll_bytes=roll_bytes,
            roll_s=roll_s,
        )
        directory.path_of(check_text("name", name))
        await self._require_stores()
        await directory.create(self._logs, name, settings)
        return Log(self._logs, name)

    async def _require_stores(self) -> None:
        """Start ledger stores if there never was one."""
        if not await self._logs.registry.known() and self._client.start_logs is not None:
            with working(self._client.display, "start ledger stores"):
                await asyncio.to_thread(self._client.start_logs)

    async def log(self, name: str) -> Log:
        """Get a log by name. Raises NotFound."""
        directory.path_of(check_text("name", name))
        await self._logs.log(name)
        return Log(self._logs, name)

    async def logs(self) -> list[str]:
        """List the names of all logs, also of one whose deletion is not finished."""
        return await directory.names(self._logs)

    async def drop_log(self, name: str) -> None:
        """Delete a log with all of its records, at once and for good. If that is interrupted, the same call, or `create_log`, finishes
        it. Raises NotFound."""
        await directory.drop(self._logs, check_text("name", name))

    # -- ledgers

    def create_ledger(
        self,
        *,
        ensemble: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
    ) -> Opening[LedgerWriter]:
        """Create a ledger that is part of no log, and get its one writer. A context manager: at its end the ledger is closed.

        The quorums are as of `create_log`. Raises NotEnoughStores, InvalidArgument.
        """

        async def opened() -> LedgerWriter:
            await self._require_stores()
            return await ledgers.create(self._logs, ensemble, write_quorum, ack_quorum)

        return Opening(opened())

    async def open_ledger(self, ledger: int, *, recover: bool = True) -> Ledger:
        """Open a ledger to read it.

        `recover`: end its writer first, and close it, if it is open: then nothing is added to it any more. Otherwise the writer goes
        on, and entries are read up to the last acknowledged one. A ledger of a log is not recovered. Raises NotFound,
        InvalidArgument, RecoveryFailed.
        """
        return await ledgers.open_ledger(self._logs, ledger, bool(recover))

    async def ledgers(self) -> list[LedgerInfo]:
        """List all ledgers, also those of logs."""
        return [ledgers.info_of(each) for each in await self._logs.every()]

    async def delete_ledger(self, ledger: int) -> None:
        """Delete a ledger with all of its entries, at once and for good. Its writer is fenced. Raises NotFound; InvalidArgument for a
        ledger of a log."""
        await ledgers.delete(self._logs, ledger)

    async def _ask(
        self, method: str, message: msgspec.Struct, reply: type[Reply], deadline_s: float | None
    ) -> Reply:
        return await self._client.master.ask(method, message, reply, deadline_s=check_deadline(deadline_s))

    async def close(self) -> None:
        """Close the connection. Operations under way raise ConnectionClosed; a write may have been applied then. Closing twice
        is no error."""
        if self._ledgers is not None and not self.closed:
            await self._ledgers.session.close()
        self._client.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            await asyncio.to_thread(on_close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def name(self) -> str:
        """The deployment's name."""
        return self._client.name

    @property
    def closed(self) -> bool:
        """Whether the connection was closed."""
        return self._client.closed

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<ebla.aio.Database {self.name!r}{closed}>"

    def _repr_html_(self) -> str:
        return database_html(self.name, self.closed)


def connect(name: str = "ebla", address: str | None = None, *, progress: bool = True) -> Opening[Database]:
    """As `ebla.connect`. The connection stays on the calling event loop.

    `await` the result, or use it with `async with`, which closes the connection at its end.
    """
    from ebla.deployment import open_client

    async def opened() -> Database:
        return Database(await open_client(name, address, progress))

    return Opening(opened())


def local(
    hosts: int = 3,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    name: str = "ebla",
    settings: Mapping[str, Any] | None = None,
    dashboard: bool = False,
    masters: int | None = None,
    journals: int | None = None,
    progress: bool = True,
) -> Opening[Database]:
    """As `ebla.local`. The connection stays on the calling event loop; starting blocks a thread, not the loop.

    `await` the result, or use it with `async with`, which ends the cluster.
    """
    from ebla.deployment import make_client, start_local

    async def opened() -> Database:
        counts = {"masters": masters, "journals": journals}
        _, end = await asyncio.to_thread(
            start_local, hosts, data_dir, name, settings, dashboard, counts, progress
        )
        return Database(make_client(name, progress), end)

    return Opening(opened())
