"""Ends appends whose deadline has passed. One task looks at all of them: an append has no timer of its own."""

from __future__ import annotations

import asyncio

from ebla.actors.errors import ConnectionClosed, TimedOut
from ebla.actors.world import CallerWorld, settle
from ebla.options import SWEEP_S


class Deadlines:
    """Of the appends to log `name`."""

    def __init__(self, world: CallerWorld, name: str) -> None:
        self._world = world
        self._name = name
        self._pending: dict[asyncio.Future[int], tuple[float, float]] = {}  # when it ends, and its limit
        self._sweeping = False

    async def within(self, limit_s: float, future: asyncio.Future[int]) -> int:
        """The result of a future for which nobody else waits. Raises TimedOut."""
        self._pending[future] = self._world.now() + limit_s, limit_s
        if not self._sweeping:
            self._sweeping = True
            self._world.spawn(self._sweep(), f"sweep deadlines of log {self._name}")
        try:
            return await future
        finally:
            self._pending.pop(future, None)

    async def _sweep(self) -> None:
        """Look until nothing is under way. This task is cancelled when the connection closes."""
        try:
            while self._pending:
                await self._world.clock.sleep(SWEEP_S)
                now = self._world.now()
                for future, (until, limit_s) in list(self._pending.items()):
                    if now >= until:
                        late = f"a record of log {self._name!r} was not acknowledged within {limit_s:g} s; it may be in the log, or get there yet"
                        settle(future, TimedOut(late, deadline_s=limit_s))
        finally:
            self._sweeping = False
            for future in self._pending:
                settle(
                    future, ConnectionClosed(f"the connection of this writer of log {self._name!r} is closed")
                )
