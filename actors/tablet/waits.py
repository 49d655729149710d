"""Those who wait until a replica's log is durable, or applied, up to an index of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Waits:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def until(self, index: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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


def release(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
