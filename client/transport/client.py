"""One connection to a deployment: its master client, its router, and its routes to tables.

It runs on one event loop and reaches the outside through a CallerWorld, so the same code serves an application on Ray and a
client in simulation. The blocking API runs it in a thread of its own (bridge.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from ebla.actors.asking.master_client import MasterClient
from ebla.actors.asking.retries import backoff_s, retriable, same
from ebla.actors.errors import ConnectionClosed, Internal, NotFound, TableDropped, TimedOut
from ebla.actors.messages import TableInfo, TableName
from ebla.actors.world import CallerWorld
from ebla.options import MASTER
from ebla.show.progress import Display, counting, seen_rows, watching
from ebla.storage.errors import EblaError
from ebla.transport.router import Router
from ebla.transport.routes import TableRoutes

DROPPED_MAX = 1000  # tables whose routes are kept after they were dropped


class DeploymentClient:
    """`name` is the deployment's, for messages only. `masters` are the addresses of all masters; `master` asks the active one.
    `on_close` ends the tasks that the world has spawned. `display` shows the progress of long calls."""

    def __init__(
        self,
        world: CallerWorld,
        name: str = "ebla",
        masters: tuple[str, ...] = (MASTER,),
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.master = MasterClient(world, masters, name)
        self.router = Router(world, self.refresh)
        self._tables: dict[str, TableRoutes] = {}  # by id: a name may pass to another table
        self._without_name: dict[str, None] = {}  # ids of those that were dropped, the earliest first
        self._refreshing: dict[TableRoutes, asyncio.Future[EblaError | None]] = {}
        self._on_close = on_close
        self.display: Display | None = None
        self.start_logs: Callable[[], None] | None = (
            None  # starts the ledger stores of a deployment without any; blocks
        )

    def watching(
        self, title: str, rows: Callable[[], int], total: int | None = None
    ) -> AbstractContextManager[None]:
        """Show a call until the block ends; `rows` returns the number of its finished rows, of `total` if that is known."""
        return watching(self.display, title, counting(rows, total))

    def waiting(self, title: str, rows: Callable[[], int]) -> AbstractContextManager[None]:
        """Show a wait for more rows until the block ends; `rows` returns the number of those that have arrived."""
        return watching(self.display, title, lambda: seen_rows(rows()))

    # -- tables

    async def table(self, name: str, deadline_s: float) -> TableRoutes:
        """The table's routes, from the master: the name may belong to another table by now."""
        info = await self.master.ask("get_table", TableName(name), TableInfo, deadline_s=deadline_s)
        return self.adopt(info)

    def adopt(self, info: TableInfo) -> TableRoutes:
        """The routes of this table. All handles of a connection share them, also across renames and recalls: each TableRoutes
        counts the outstanding requests, and a second one would pass those of the first as answered."""
        known = self._tables.get(info.table)
        if known is None:
            self.lost_name(info.name)
            known = self._tables[info.table] = TableRoutes(info)
        else:
            known.update(info)
        self._without_name.pop(info.table, None)
        return known

    def lost_name(self, name: str) -> None:
        """The known tables of this name were dropped, or renamed. The last of them are kept for a recall."""
        for table, routes in self._tables.items():
            if routes.name == name:
                self._without_name.setdefault(table)
        while len(self._without_name) > DROPPED_MAX:
            earliest = next(iter(self._without_name))
            del self._without_name[earliest], self._tables[earliest]

    async def refresh(self, table: TableRoutes) -> None:
        """Ask the master about the table once; callers at the same time share the answer.

        Raises NotFound if the table was dropped.
        """
        under_way = self._refreshing.get(table)
        if under_way is None:
            under_way = self._refreshing[table] = asyncio.get_running_loop().create_future()
            self.world.spawn(self._refresh(table, under_way), f"refresh {table.name}")
        error = await asyncio.shield(under_way)
        if error is not None:
            raise same(error)

    async def _refresh(self, table: TableRoutes, done: asyncio.Future[EblaError | None]) -> None:
        try:
            wanted = TableName(table.name, table.info.table)
            table.update(await self.master.ask_once("get_table", wanted, TableInfo))
        except EblaError as error:
            deleted = isinstance(error, NotFound) and not isinstance(error, TableDropped)
            done.set_result(table.dropped() if deleted else error)
        else:
            done.set_result(None)
        finally:
            del self._refreshing[table]
            if not done.done():
                done.set_result(self.master.closed or Internal("the refresh was cancelled"))

    async def running(self, table: TableRoutes, deadline_s: float) -> None:
        """Wait until every tablet of the table accepts writes."""
        if table.all_running:
            return
        deadline = self.world.clock.monotonic() + deadline_s
        tries = 0
        while True:
            try:
                await self.refresh(table)
            except NotFound:
                raise
            except EblaError as error:
                if not retriable(error):
                    raise
            if all(route.running for route in table.routes):
                return
            if self.world.clock.monotonic() >= deadline:
                waiting = sum(not route.running for route in table.routes)
                raise TimedOut(
                    f"table {table.name!r} exists, but {waiting} of its {len(table.routes)} tablets did not come up "
                    f"within {deadline_s:g} s; see `ebla check`",
                    deadline_s=deadline_s,
                )
            tries += 1
            await self.world.clock.sleep(backoff_s(tries, self.world.random))

    async def altered(self, table: TableRoutes, version: int, deadline_s: float) -> None:
        """Wait until every tablet has this version of the schema."""
        deadline = self.world.clock.monotonic() + deadline_s
        tries = 0
        while table.info.applied_version < version:
            if self.world.clock.monotonic() >= deadline:
                raise TimedOut(
                    f"table {table.name!r} was altered, but not all of its tablets have the new schema within {deadline_s:g} s; "
                    "they will get it when they can; see `ebla check`",
                    deadline_s=deadline_s,
                )
            tries += 1
            await self.world.clock.sleep(backoff_s(tries, self.world.random))
            try:
                await self.refresh(table)
            except EblaError as error:
                if not retriable(error):
                    raise

    # -- ends

    @property
    def closed(self) -> bool:
        return self.master.closed is not None

    def close(self, error: EblaError | None = None) -> None:
        """Operations under way raise ConnectionClosed (or `error`); nothing is sent any more."""
        if self.closed:
            return
        why = error or ConnectionClosed(
            f"this connection to deployment {self.name!r} is closed; open another with ebla.connect()"
        )
        self.master.close(why)
        self.router.close(why)
        if self._on_close is not None:
            self._on_close()

    def failed(self, what: str, error: BaseException) -> None:
        """A background task failed by a defect: close, so that no caller waits for its work."""
        self.close(Internal(f"the connection to deployment {self.name!r} failed in {what}: {error!r}"))
