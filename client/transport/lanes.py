"""Calls to one server: work that queues during a call is sent together as the next call.

An idle lane sends at the next turn of the event loop; a busy lane lets work queue. Small work waits for the call under way,
unless that is overdue; bulk work does not wait. A lane has at most `calls_max` calls in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ebla.actors.asking.retries import retriable
from ebla.actors.errors import ErrorFrame, Internal, from_frame
from ebla.actors.messages import ReadReply, ReadRequest, TabletKeys, TabletWrite, WriteReply, WriteRequest
from ebla.actors.world import CallerWorld
from ebla.options import (
    ATTEMPT_BYTES_PER_S,
    ATTEMPT_GRACE_S,
    ATTEMPT_PROBE_DOUBLINGS_MAX,
    ATTEMPT_PROBE_S,
    ATTEMPT_S,
    CALL_LARGE_BYTES,
    CALL_LARGE_MIN_BYTES,
    CALL_SMALL_BYTES,
    LARGE_CALLS_MAX,
    PATIENCE_S,
    SMALL_CALLS_MAX,
    SUSPECT_S,
)
from ebla.storage.errors import EblaError
from ebla.transport.batches import Ids, build_ops
from ebla.transport.routes import BULK, KINDS, READ, Route, Unit

Outcome = tuple[Any, EblaError | None]


class Owner(Protocol):
    """The part of the router that lanes use."""

    world: CallerWorld
    ids: Ids
    closed: EblaError | None

    def note(self, server: Server, error: EblaError) -> None: ...

    def reroute(self, route: Route, kind: int, address: str, error: EblaError) -> None: ...


class Server:
    """One address: its recent silences, and its lanes."""

    def __init__(self, router: Owner, address: str) -> None:
        self.address = address
        self.suspect_until = float("-inf")
        self.silences = 0  # in a row
        self.lanes = tuple(Lane(router, self, kind) for kind in KINDS)

    def answered(self) -> None:
        self.silences = 0
        self.suspect_until = float("-inf")

    def silent(self, now: float) -> None:
        """Calls of several lanes and tablets that fail while the server is suspected belong to one silence: otherwise the next
        attempts would be long at once, and a new leader would be found late."""
        if now >= self.suspect_until:
            self.silences += 1
            self.suspect_until = now + SUSPECT_S

    def attempt_s(self, size: int) -> float:
        """The time of one attempt: see ATTEMPT_S; longer for large bodies."""
        base_s = ATTEMPT_S
        if self.silences:
            base_s = ATTEMPT_PROBE_S * (1 << min(self.silences - 1, ATTEMPT_PROBE_DOUBLINGS_MAX))
        return base_s + size / ATTEMPT_BYTES_PER_S


class Lane:
    """Calls of one kind to one server."""

    def __init__(self, router: Owner, server: Server, kind: int) -> None:
        self.router = router
        self.server = server
        self.kind = kind
        self.calls_max = LARGE_CALLS_MAX if kind == BULK else SMALL_CALLS_MAX
        self.waiting: dict[Route, None] = {}
        self.flying: dict[int, list[Unit]] = {}
        self._patience_s = 0.0 if kind == BULK else PATIENCE_S
        self._calls = 0
        self._sent = 0
        self._sent_at = float("-inf")
        self._starting = False

    def add(self, route: Route) -> None:
        self.waiting[route] = None
        self.start_call()

    def start_call(self) -> None:
        """Start another call if there is work, and no call under way for which the work should wait."""
        if not self.waiting or self._starting or self._calls >= self.calls_max:
            return
        if not self._calls or self._overdue():
            self._start()

    def _overdue(self) -> bool:
        """Whether other work should no longer wait for the last call."""
        return self.router.world.clock.monotonic() >= self._sent_at + self._patience_s

    def remove(self, route: Route) -> None:
        self.waiting.pop(route, None)

    def _start(self) -> None:
        self._starting = True
        self._calls += 1
        self.router.world.spawn(self._pump(), f"lane {self.server.address}")

    async def _pump(self) -> None:
        self._starting = False
        while units := self._take():
            self._sent_at = self.router.world.clock.monotonic()
            self.start_call()
            await self._send(units)
            # Callers that were just answered have a turn to queue more before the next call.
            await self.router.world.clock.sleep(0)
            if self._calls > 1 and not self._overdue():
                break  # the next of the other calls takes the waiting work
        self._calls -= 1

    # -- packing

    def _take(self) -> list[Unit]:
        """All waiting units, within the limits of one call."""
        if self.router.closed is not None:
            return []
        now = self.router.world.clock.monotonic()
        limit = self._limit()
        taken: list[Unit] = []
        size = 0
        for route in list(self.waiting):
            if taken and self.kind == READ and route.version != taken[0].route.version:
                continue  # a read call has one schema version
            while (unit := self._next(route, now)) is not None:
                if taken and size + unit.size > limit:
                    self.waiting[route] = self.waiting.pop(route)  # the other routes come first next time
                    return taken
                route.queues[self.kind].popleft()
                taken.append(unit)
                size += unit.size
            del self.waiting[route]
        return taken

    def _limit(self) -> int:
        if self.kind == READ:
            return CALL_SMALL_BYTES
        waiting = sum(unit.size for route in self.waiting for unit in route.queues[self.kind])
        return CALL_LARGE_BYTES if waiting >= CALL_LARGE_MIN_BYTES else CALL_SMALL_BYTES

    def _next(self, route: Route, now: float) -> Unit | None:
        """The first unit of the route whose caller still waits. It stays in its queue."""
        queue = route.queues[self.kind]
        while queue:
            if not queue[0].expire(now):
                return queue[0]
            queue.popleft()
        if self.kind in (READ, BULK):
            return None
        unit = build_ops(route, self.router.ids)
        if unit is not None:
            queue.append(unit)
        return unit

    # -- sending

    async def _send(self, units: list[Unit]) -> None:
        size = sum(unit.size for unit in units)
        attempt_s = self.server.attempt_s(size)
        self._sent += 1
        call = self._sent
        self.flying[call] = units
        try:
            if self.kind == READ:
                outcomes = await self._read(units, attempt_s)
            else:
                outcomes = await self._write(units, attempt_s)
        except EblaError as error:
            self.router.note(self.server, error)
            outcomes = [(None, error)] * len(units)
        else:
            self.server.answered()
        finally:
            del self.flying[call]
        self._settle(units, outcomes)

    async def _write(self, units: list[Unit], attempt_s: float) -> list[Outcome]:
        writes = tuple(TabletWrite(unit.route.tablet, unit.batch) for unit in units)  # type: ignore[attr-defined]
        reply = await self.router.world.network.call(
            self.server.address,
            "write",
            WriteRequest(writes, attempt_s),
            WriteReply,
            attempt_s + ATTEMPT_GRACE_S,
        )
        return _outcomes(reply.results, reply.errors, len(units))

    async def _read(self, units: list[Unit], attempt_s: float) -> list[Outcome]:
        """One entry per tablet; each unit gets its own part of the tablet's values back."""
        keys: dict[Route, list[bytes]] = {}
        spans: list[tuple[Route, int, int]] = []
        for unit in units:
            of_tablet = keys.setdefault(unit.route, [])
            start = len(of_tablet)
            of_tablet.extend(unit.keys)  # type: ignore[attr-defined]
            spans.append((unit.route, start, len(of_tablet)))
        reads = tuple(TabletKeys(route.tablet, of_tablet) for route, of_tablet in keys.items())
        request = ReadRequest(units[0].route.version, reads)
        reply = await self.router.world.network.call(
            self.server.address, "read", request, ReadReply, attempt_s + ATTEMPT_GRACE_S
        )
        outcomes = dict(zip(keys, _outcomes(reply.values, reply.errors, len(reads)), strict=True))
        found: list[Outcome] = []
        for route, start, stop in spans:
            values, error = outcomes[route]
            found.append((None if values is None else values[start:stop], error))
        return found

    def _settle(self, units: list[Unit], outcomes: Sequence[Outcome]) -> None:
        """Pass results and final errors to their callers. Units to be repeated go back to their routes, in their order."""
        refused: dict[Route, tuple[EblaError, list[Unit]]] = {}
        for unit, (result, error) in zip(units, outcomes, strict=True):
            if error is None:
                unit.route.failures = 0
                unit.succeed(result)
            elif retriable(error):
                unit.again(error)
                refused.setdefault(unit.route, (error, []))[1].append(unit)
            else:
                unit.fail(error)
        for route, (error, again) in refused.items():
            route.queues[self.kind].extendleft(reversed(again))
            self.router.reroute(route, self.kind, self.server.address, error)


def _outcomes(results: Sequence[Any], errors: Sequence[Any], wanted: int) -> list[Outcome]:
    if len(results) != wanted or len(errors) != wanted:
        raise Internal(f"the server answered {len(results)} of {wanted} parts of a call")
    return [
        (result, None if error is None else from_frame(ErrorFrame(*error)))
        for result, error in zip(results, errors, strict=True)
    ]
