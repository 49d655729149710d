"""One connection to a deployment: its request ids, its router, and its routes to tables.

It runs on one event loop and reaches the outside through a ClientWorld, so the same code serves an application on Ray and a
client in simulation. The blocking API runs it in a thread of its own (bridge.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec

from ebla.actors.errors import (
    Internal,
    NetworkError,
    NotActive,
    NotFound,
    NotRunning,
    TableDropped,
    TimedOut,
    Unavailable,
)
from ebla.actors.messages import TableInfo, TableName
from ebla.actors.world import encode, new_id
from ebla.errors import ConnectionClosed
from ebla.options import MASTER, MASTER_ATTEMPT_OF_SEVERAL_S, MASTER_ATTEMPT_S, ClientWorld
from ebla.show.progress import Display, seen_rows, watching
from ebla.storage.errors import EblaError, InvalidArgument
from ebla.transport.certainty import Tries
from ebla.transport.router import Router
from ebla.transport.routes import TableRoutes, backoff_s, retriable, same

Reply = TypeVar("Reply")

# While a cluster is starting, or a master has just taken over and waits for heartbeats; later Unavailable is final.
UNAVAILABLE_GRACE_S = 3.0
REQUEST_ID = "request_id"  # of messages that change something


class DeploymentClient:
    """`name` is the deployment's, for messages only. `masters` are the addresses of all masters, `master` is the one to ask now.
    `on_close` ends the tasks that the world has spawned. `on_refusal` is called for each failed attempt of a request to the
    masters that is repeated: with the error, the passed and the allowed seconds. `display` shows the progress of long calls."""

    def __init__(
        self,
        world: ClientWorld,
        name: str = "ebla",
        masters: tuple[str, ...] = (MASTER,),
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.masters = masters
        self.master = masters[0]
        self.router = Router(world, self.refresh)
        self._tables: dict[str, TableRoutes] = {}
        self._refreshing: dict[TableRoutes, asyncio.Future[None]] = {}
        self.on_refusal: Callable[[EblaError, float, float], None] | None = None
        self._on_close = on_close
        self._closed: EblaError | None = None
        self.display: Display | None = None

    def watching(
        self, title: str, rows: Callable[[], int], total: int | None = None
    ) -> AbstractContextManager[None]:
        """Show a call until the block ends; `rows` returns the number of its finished rows, of `total` if that is known."""
        return watching(self.display, title, lambda: seen_rows(rows(), total))

    # -- tables

    async def table(self, name: str, deadline_s: float) -> TableRoutes:
        """The table's routes, from the master: the name may belong to another table by now."""
        info = await self.ask_master("get_table", TableName(name), TableInfo, deadline_s=deadline_s)
        return self.adopt(info)

    def adopt(self, info: TableInfo) -> TableRoutes:
        """The routes of this table; all handles of a connection share them."""
        known = self._tables.get(info.name)
        if known is not None and known.info.table == info.table:
            known.update(info)
            return known
        fresh = self._tables[info.name] = TableRoutes(info)
        return fresh

    def forget(self, name: str) -> None:
        self._tables.pop(name, None)

    async def refresh(self, table: TableRoutes) -> None:
        """Ask the master about the table once; callers at the same time share the answer.

        Raises NotFound if the table was dropped.
        """
        under_way = self._refreshing.get(table)
        if under_way is None:
            under_way = self._refreshing[table] = asyncio.get_running_loop().create_future()
            self.world.spawn(self._refresh(table, under_way), f"refresh {table.name}")
        await asyncio.shield(under_way)

    async def _refresh(self, table: TableRoutes, done: asyncio.Future[None]) -> None:
        try:
            wanted = TableName(table.name, table.info.table)
            table.update(await self._ask("get_table", wanted, TableInfo, MASTER_ATTEMPT_S))
        except EblaError as error:
            deleted = isinstance(error, NotFound) and not isinstance(error, TableDropped)
            done.set_exception(table.dropped() if deleted else error)
            done.exception()  # the callers may have been cancelled
        else:
            done.set_result(None)
        finally:
            del self._refreshing[table]
            if not done.done():
                done.set_exception(self._closed or Internal("the refresh was cancelled"))
                done.exception()

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

    # -- the master

    def new_request_id(self) -> str:
        return new_id(self.world.random)

    async def ask_master(
        self,
        method: str,
        message: msgspec.Struct,
        reply: type[Reply],
        *,
        deadline_s: float,
        patience_s: float = 0.0,
        tries: Tries | None = None,
    ) -> Reply:
        """Repeat the same message until a master answers. `patience_s`: the time for which the message asks the master to wait
        before it answers. `tries`: the earlier attempts of a request without a request id."""
        self.check_open()
        _check_sendable(method, message)
        clock = self.world.clock
        began = clock.monotonic()
        failures = 0
        unavailable_since: float | None = None
        if tries is None and REQUEST_ID in message.__struct_fields__:
            tries = Tries()
        while True:
            left_s = began + deadline_s - clock.monotonic()
            try:
                return await self._ask(method, message, reply, min(left_s, MASTER_ATTEMPT_S), patience_s)
            except EblaError as error:
                outcome = error if tries is None else tries.outcome(error)
                if tries is not None:
                    tries.failed(error)
                if not retriable(error):
                    raise outcome from error.__cause__
                now = clock.monotonic()
                passed_s = now - began
                if not isinstance(error, Unavailable):
                    unavailable_since = None
                elif unavailable_since is None:
                    unavailable_since = now
                elif now - unavailable_since >= UNAVAILABLE_GRACE_S:
                    raise outcome from error.__cause__
                failures += 1
                pause_s = backoff_s(failures, self.world.random)
                if passed_s + pause_s >= deadline_s:
                    if isinstance(error, Unavailable):
                        raise outcome from error.__cause__
                    raise self._no_answer(method, deadline_s, error) from error
                if self.on_refusal is not None:
                    self.on_refusal(error, passed_s, deadline_s)
            await clock.sleep(pause_s)
            self.check_open()

    async def _ask(
        self,
        method: str,
        message: msgspec.Struct,
        reply: type[Reply],
        timeout_s: float,
        patience_s: float = 0.0,
    ) -> Reply:
        """One attempt. If the master is not active, or silent, the next attempt goes to another."""
        master = self.master
        if len(self.masters) > 1:
            timeout_s = min(timeout_s, MASTER_ATTEMPT_OF_SEVERAL_S)
        try:
            return await self.world.network.call(
                master, method, message, reply, max(0.01, timeout_s) + patience_s
            )
        except (NetworkError, NotActive, NotRunning) as error:
            if master == self.master:  # no other request has changed it meanwhile
                self.master = self._next_to(master, error)
            raise

    def _next_to(self, master: str, error: EblaError) -> str:
        if isinstance(error, NotActive) and error.active in self.masters:
            return error.active
        return self.masters[(self.masters.index(master) + 1) % len(self.masters)]

    def _no_answer(self, method: str, deadline_s: float, error: EblaError) -> TimedOut:
        return TimedOut(
            f"{self.master} of deployment {self.name!r} gave no answer to {method} within {deadline_s:g} s; last: "
            f"{type(error).__name__}: {error}"
            + ("; see `ebla status`" if isinstance(error, NetworkError) else ""),
            deadline_s=deadline_s,
        )

    # -- ends

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def check_open(self) -> None:
        if self._closed is not None:
            raise same(self._closed)

    def close(self, error: EblaError | None = None) -> None:
        """Operations under way raise ConnectionClosed (or `error`); nothing is sent any more."""
        if self._closed is not None:
            return
        self._closed = error or ConnectionClosed(
            f"this connection to deployment {self.name!r} is closed; open another with ebla.connect()"
        )
        self.router.close(self._closed)
        if self._on_close is not None:
            self._on_close()

    def failed(self, what: str, error: BaseException) -> None:
        """A background task failed by a defect: close, so that no caller waits for its work."""
        self.close(Internal(f"the connection to deployment {self.name!r} failed in {what}: {error!r}"))


def _check_sendable(method: str, message: msgspec.Struct) -> None:
    """Refuse a message that cannot be encoded or decoded: it ends this call only."""
    try:
        msgspec.msgpack.decode(encode(message), type=type(message))
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"this {method} cannot be sent: {error}; change its arguments") from error
