"""Calls that wait for a change, in memory only: a repeated call names the revision that its client has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ebla.actors.errors import Throttled
from ebla.actors.world import Clock

RETRY_AFTER_S = 0.5


class Watchers:
    def __init__(self, clock: Clock, polls_max: int) -> None:
        self.waiting = 0
        self._clock = clock
        self._polls_max = polls_max
        self._futures: dict[str, dict[asyncio.Future[None], None]] = {}
        self._closed = False

    async def wait(self, path: str, until: Callable[[], bool], poll_s: float) -> None:
        """Wait for `until()`, which is called again at each change of `path`; at most `poll_s`, and until `close`."""
        if until() or self._closed:
            return
        if self.waiting >= self._polls_max:
            raise Throttled(
                f"{self.waiting} calls wait for changes", limit="polls_max", retry_after_s=RETRY_AFTER_S
            )
        self.waiting += 1
        try:
            async with self._clock.timeout(poll_s):
                while not until() and not self._closed:
                    await self._changed(path)
        except TimeoutError:
            return
        finally:
            self.waiting -= 1

    async def _changed(self, path: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._futures.setdefault(path, {})
        waiting[future] = None
        try:
            await future
        finally:
            waiting.pop(future, None)
            if not waiting and self._futures.get(path) is waiting:
                del self._futures[path]

    def notify(self, path: str) -> None:
        for future in self._futures.pop(path, ()):
            if not future.done():
                future.set_result(None)

    def close(self) -> None:
        self._closed = True
        for path in list(self._futures):
            self.notify(path)
