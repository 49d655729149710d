"""Those who wait until a replica's log is durable, or applied, up to an index of theirs; and loops that wait for work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Waits:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def until(self, index: int) -> asyncio.Future[None]:
        """Those that have given up are let go of here: while a disk hangs nothing else does."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = [each for each in self._waiting if not each[1].done()]
        self._waiting.append((index, future))
        return future

    def come_to(self, index: int) -> None:
        """Wake who waits for an index that has come."""
        if not self._waiting:
            return
        waiting = self._waiting
        self._waiting = [(wanted, future) for wanted, future in waiting if wanted > index]
        release(future for wanted, future in waiting if wanted <= index)

    def end(self) -> None:
        """Wake everybody: the replica has ended, and whoever waits looks at it again."""
        waiting, self._waiting = self._waiting, []
        release(future for _, future in waiting)


class Bell:
    """Rung by anybody, any number of times, and heard once, by the one loop that waits for it. An asyncio.Event, which many
    may wait for, takes three times as long, and a server's rounds wait for little else."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def heard(self) -> None:
        """At once, if it was rung since it was last heard."""
        if not self._rung:
            assert self._waiter is None, "one loop waits for a bell"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._rung = False


def release(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
