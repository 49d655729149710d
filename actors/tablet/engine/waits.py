"""Waiting for a replica's log to be durable, or applied, up to an index; bells and signals for loops
that wait for work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from ebla.actors.messages import RowBatch
from ebla.actors.world import Clock
from ebla.storage.errors import EblaError
from ebla.storage.tablets.results import Answer


@dataclass(eq=False)
class Waiter:
    """A client that waits for its write."""

    term: int
    bytes: int
    future: asyncio.Future[Answer]
    batch: RowBatch


class Waits:
    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def until(self, index: int) -> asyncio.Future[None]:
        """A future for this index. Removes abandoned waits, because nothing else removes them while
        a disk hangs."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting = [each for each in self._waiting if not each[1].done()]
        self._waiting.append((index, future))
        return future

    def come_to(self, index: int) -> None:
        """Wake those that wait for this index or an earlier one."""
        if not self._waiting:
            return
        waiting = self._waiting
        self._waiting = [(wanted, future) for wanted, future in waiting if wanted > index]
        release(future for wanted, future in waiting if wanted <= index)

    def end(self) -> None:
        """Wake all: the replica has ended, and each waiter checks it again."""
        waiting, self._waiting = self._waiting, []
        release(future for _, future in waiting)


async def within(clock: Clock, waiting: Awaitable[object] | None, timeout_s: float, error: EblaError) -> None:
    """Wait, or raise the error after `timeout_s`. None: there is nothing to wait for."""
    if waiting is None:
        return
    try:
        async with clock.timeout(timeout_s):
            await waiting
    except TimeoutError:
        raise error from None


class Bell:
    """Wakes the one loop that waits for it, once for any number of rings. An asyncio.Event takes
    three times as long, and a server's rounds wait mostly for bells."""

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for a ring. Returns at once if the bell was rung since the last call."""
        if not self._rung:
            assert self._waiter is None, "one loop waits for a bell"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._rung = False


IDLE_S = 2.0  # the longest wait for a signal: then a loop looks at what changes without one


class Signal:
    """Wakes all loops that wait when it is sent. It is not remembered: each loop looks for work before it waits."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def send(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            release(waiters)

    async def wait(self, clock: Clock) -> None:
        """Wait for the next signal, for IDLE_S at most."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with clock.timeout(IDLE_S):
                await waiter
        except TimeoutError:
            if waiter in self._waiters:  # the signal may have come at that moment
                self._waiters.remove(waiter)


def release(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
