"""The last acknowledged entry (LAC) of each ledger, as far as this store knows, and the readers that wait for the next one. A hint
for readers, kept in memory only: after a start it is read from the last entry that is here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ebla.actors.world import World

FENCED_S = 0.5  # longest wait at a fenced ledger: it is closed soon, and the process that closes it may end before its stores are told
POLLED_S = 1.0  # a reader that has got an entry waits for the next one soon


class Confirmed:
    def __init__(self, world: World, stored: Callable[[int], int]) -> None:
        """`stored`: reads the LAC from what is stored of a ledger."""
        self._world = world
        self._stored = stored
        self._lacs: dict[int, int] = {}
        self._closed: dict[int, None] = {}  # ledgers that are closed, as those who closed them have told
        self._polled: dict[int, float] = {}  # when a reader waited last
        self._readers: dict[int, dict[asyncio.Future[None], None]] = {}  # that wait at a ledger

    def lac(self, ledger: int) -> int:
        known = self._lacs.get(ledger)
        if known is None:
            known = self._lacs[ledger] = self._stored(ledger)
        return known

    def learn(self, ledger: int, lac: int, closed: bool = False) -> None:
        """`closed`: nobody waits any more, because the metadata tell the end."""
        if closed:
            self._closed[ledger] = None
        if lac > self.lac(ledger):
            self._lacs[ledger] = lac
            self.wake(ledger)
        elif closed:
            self.wake(ledger)

    def wake(self, *ledgers: int) -> None:
        """Without ledgers: all readers."""
        for ledger in ledgers or list(self._readers):
            for future in self._readers.pop(ledger, {}):
                if not future.done():
                    future.set_result(None)

    def forget(self, ledgers: Iterable[int]) -> None:
        for ledger in ledgers:
            for known in (self._lacs, self._closed, self._polled):
                known.pop(ledger, None)

    def awaited(self, ledger: int) -> bool:
        """Whether a reader waits, or will wait again soon."""
        return self._world.now() - self._polled.get(ledger, -POLLED_S) < POLLED_S

    async def after(self, ledger: int, lac: int, wait_s: float, fenced: bool) -> None:
        """Wait, but no longer than that, until an entry after this one is known to be acknowledged, or the ledger ends."""
        if self.lac(ledger) > lac or ledger in self._closed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._polled[ledger] = self._world.now() + wait_s
        waiting = self._readers.setdefault(ledger, {})
        waiting[future] = None
        try:
            async with self._world.clock.timeout(min(wait_s, FENCED_S) if fenced else wait_s):
                await future
        except TimeoutError:
            return
        finally:
            waiting.pop(future, None)
            self._polled[ledger] = self._world.now()
