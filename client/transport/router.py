"""Sends units of work to the leaders of their tablets, through leader changes, silences and refusals.

    enqueue    a unit waits at its route; the lane of the route's target sends it with all other work for the server
    reroute    a refusal moves the whole route once, even if several units are refused; `react` chooses the target
    pause      a throttled kind of work waits; the other kinds of the same tablet continue
    sweep      one task ends operations past their deadlines: operations have no timers of their own

A moving route holds its work back, so that a tablet without a leader costs one attempt at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from ebla.actors.asking.retries import retriable, same
from ebla.actors.errors import NetworkError, NotFound, SchemaMismatch, TableDropped, Throttled
from ebla.actors.world import CallerWorld
from ebla.options import ASK_ATTEMPT_S, SWEEP_S
from ebla.storage.errors import EblaError
from ebla.transport.batches import Ids, expire_op
from ebla.transport.lanes import Server
from ebla.transport.routes import (
    BEFORE,
    DURING,
    KINDS,
    READ,
    WRITE,
    Move,
    Route,
    TableRoutes,
    Unit,
    WriteOp,
    react,
    throttle_s,
)

Reply = TypeVar("Reply")


class Router:
    """`refresh` asks the master about a table once and updates its routes."""

    def __init__(self, world: CallerWorld, refresh: Callable[[TableRoutes], Awaitable[None]]) -> None:
        self.world = world
        self.ids = Ids(world.random)
        self.closed: EblaError | None = None
        self._refresh = refresh
        self._servers: dict[str, Server] = {}
        self._active: dict[Route, None] = {}  # routes that may have work queued
        self._moving: dict[Route, None] = {}
        self._sweeping = False

    # -- work

    def enqueue(self, kind: int, unit: Unit) -> None:
        unit.route.queues[kind].append(unit)
        self._ready(unit.route, kind)

    def enqueue_op(self, route: Route, op: WriteOp) -> None:
        route.ops.append(op)
        self._ready(route, WRITE)

    async def ask(
        self,
        route: Route,
        method: str,
        message: msgspec.Struct,
        reply: type[Reply],
        *,
        what: str,
        deadline_s: float,
    ) -> tuple[str, Reply]:
        """A call to the tablet's leader that is not batched. Returns the address of the server and its answer. Raises
        SchemaMismatch if the table was altered since `message` was made; the new schema is known by then."""
        clock = self.world.clock
        deadline = clock.monotonic() + deadline_s
        while True:
            while route.moved is not None:
                fatal = await asyncio.shield(route.moved)
                if fatal is not None:
                    raise same(fatal)
            left_s = deadline - clock.monotonic()
            if self.closed is not None:
                raise same(self.closed)
            if left_s <= 0:
                raise route.timed_out(what, deadline_s)
            server = self.server(route.target)
            attempt_s = min(left_s, ASK_ATTEMPT_S)
            try:
                answer = await self.world.network.call(server.address, method, message, reply, attempt_s)
            except EblaError as error:
                self.note(server, error)
                if not retriable(error):
                    raise
                if isinstance(error, SchemaMismatch) and (error.found or 0) > (error.wanted or 0):
                    await self._learn(route)
                    raise  # the caller must make a new message
                await self._refused(route, server.address, error)
            else:
                server.answered()
                route.failures = 0
                return server.address, answer

    async def _learn(self, route: Route) -> None:
        """Fetch the newer schema that the tablet has. Raises NotFound if the table was dropped."""
        try:
            await self._refresh(route.table)
        except NotFound:
            raise
        except EblaError as error:
            route.last = f"the master: {type(error).__name__}: {error}"

    def close(self, error: EblaError) -> None:
        """End all work under way in `error`."""
        self.closed = error
        for server in self._servers.values():
            for lane in server.lanes:
                for units in list(lane.flying.values()):
                    for unit in units:
                        unit.fail(error)
        for route in self._active:
            self._fail(route, error)
        for moving in self._moving:
            _release(moving)

    # -- moving to another server

    def server(self, address: str) -> Server:
        known = self._servers.get(address)
        if known is None:
            known = self._servers[address] = Server(self, address)
        return known

    def suspect(self, address: str) -> bool:
        known = self._servers.get(address)
        return known is not None and known.suspect_until > self.world.clock.monotonic()

    def note(self, server: Server, error: EblaError) -> None:
        """Remember a silent server, so that others are asked first for a while."""
        if isinstance(error, NetworkError):
            server.silent(self.world.clock.monotonic())
        else:
            server.answered()

    def reroute(self, route: Route, kind: int, address: str, error: EblaError) -> None:
        """`address` refused work of the route. If the route has moved already, the work follows it."""
        route.last = f"{address}: {type(error).__name__}: {error}"
        if self.closed is not None:
            self._fail(route, self.closed)
        elif isinstance(error, Throttled):
            self._pause(route, kind, throttle_s(error, self.world.random))
        elif route.moved is None and route.target == address:
            self._start_move(route, address, error)
        elif route.moved is None:
            self._turn(route, route.target)

    async def _refused(self, route: Route, address: str, error: EblaError) -> None:
        """As `reroute`, for a call that is not batched."""
        if isinstance(error, Throttled):
            route.last = f"{address}: {error}"
            await self.world.clock.sleep(throttle_s(error, self.world.random))
        else:
            self.reroute(route, WRITE, address, error)

    def _start_move(self, route: Route, address: str, error: EblaError) -> None:
        route.failures += 1
        move = react(route, address, error, self.suspect, self.world.random)
        if move.delay_s > 0 or move.master == BEFORE:
            self._detach(route)
            route.moved = asyncio.get_running_loop().create_future()
            self._moving[route] = None
            self.world.spawn(self._move(route, address, move), f"move {route.tablet}")
        else:
            self._turn(route, move.target)

    async def _move(self, route: Route, refused: str, move: Move) -> None:
        """Wait, ask the master if the move says so, then continue with the target, or with the leader that the master names."""
        target = move.target
        if move.master == DURING:
            self.world.spawn(self._refresh_during(route), f"locate {route.tablet}")
        await self.world.clock.sleep(move.delay_s)
        fatal: EblaError | None = None
        if move.master == BEFORE:
            try:
                await self._refresh(route.table)
                target = route.target if route.target != refused else target
            except NotFound as error:
                fatal = error
            except EblaError as error:
                route.last = f"the master: {type(error).__name__}: {error}"
        del self._moving[route]
        _release(route, fatal)
        if fatal is not None:
            self._fail(route, fatal)
        if fatal is None or isinstance(fatal, TableDropped):
            self._turn(route, target)

    def _pause(self, route: Route, kind: int, delay_s: float) -> None:
        if kind not in route.paused:
            route.paused[kind] = None
            self.server(route.target).lanes[kind].remove(route)
            self.world.spawn(self._resume(route, kind, delay_s), f"pause {route.tablet}")

    async def _resume(self, route: Route, kind: int, delay_s: float) -> None:
        await self.world.clock.sleep(delay_s)
        del route.paused[kind]
        if route.busy(kind):
            self._ready(route, kind)

    async def _refresh_during(self, route: Route) -> None:
        try:
            await self._refresh(route.table)
        except NotFound as error:
            self._fail(route, error)
        except EblaError as error:
            route.last = f"the master: {type(error).__name__}: {error}"
        else:
            if route.moved is None:
                self._turn(route, route.target)

    def _turn(self, route: Route, target: str) -> None:
        self._detach(route)
        route.target = target
        for kind in KINDS:
            if route.busy(kind):
                self._ready(route, kind)

    def _detach(self, route: Route) -> None:
        """Remove the route from every lane. Its work stays queued."""
        for server in self._servers.values():
            for lane in server.lanes:
                lane.remove(route)

    def _ready(self, route: Route, kind: int) -> None:
        self._active[route] = None
        if route.moved is None and kind not in route.paused:
            self.server(route.target).lanes[kind].add(route)
        if not self._sweeping:
            self._sweeping = True
            self.world.spawn(self._sweep(), "sweep deadlines")

    # -- ends

    def _fail(self, route: Route, error: EblaError) -> None:
        """End the route's work in `error`. A dropped table that can be recalled ends reads only: an earlier attempt of a write may
        still arrive, and be applied after a recall. The tablet remembers its own refusal by the id of the write, so only that
        is final."""
        if isinstance(error, TableDropped):
            route.last = f"the master: {type(error).__name__}: {error}"
            while route.queues[READ]:
                route.queues[READ].popleft().fail(error)
            return
        for queue in route.queues:
            while queue:
                queue.popleft().fail(error)
        while route.ops:
            op = route.ops.popleft()
            if not op.future.done():
                op.future.set_exception(same(error))

    async def _sweep(self) -> None:
        """Check deadlines until nothing is under way."""
        busy = True
        while busy and self.closed is None:
            await self.world.clock.sleep(SWEEP_S)
            now = self.world.clock.monotonic()
            busy = self._sweep_flying(now) | self._sweep_queued(now)
        self._sweeping = False

    def _sweep_flying(self, now: float) -> bool:
        busy = False
        for server in self._servers.values():
            for lane in server.lanes:
                lane.start_call()
                for units in lane.flying.values():
                    busy = True
                    for unit in units:
                        unit.expire(now)
        return busy

    def _sweep_queued(self, now: float) -> bool:
        for route in list(self._active):
            for queue in route.queues:
                for unit in queue:
                    unit.expire(now)
            for op in route.ops:
                expire_op(op, route, now)
            if route.moved is None and not any(route.busy(kind) for kind in KINDS):
                del self._active[route]
        return bool(self._active)


def _release(route: Route, fatal: EblaError | None = None) -> None:
    """The route has arrived, or ends in `fatal`."""
    moved, route.moved = route.moved, None
    assert moved is not None
    if not moved.done():
        moved.set_result(fatal)
