"""Deadlines: asyncio's `timeout`, on Python 3.10 as well.

    async with timeout(2.0):    raises TimeoutError in the block's task after two seconds
        ...

A deadline cancels its task. It must not take another cancellation of the same moment for its own: a role that is being stopped
would go on. So a task counts the requests to cancel it. Tasks of asyncio do so since Python 3.11; on 3.10 `Task` does, in the
loops of ebla:

    run                  asyncio.run, for main programs
    count_cancellations  for another loop, before its first task with a deadline

In a loop of the user's on 3.10 (ebla.aio) tasks do not count. If a deadline there ends in the same step of the loop in which the
user cancels the task, the block raises TimeoutError, and that cancellation is lost.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Task", "Timeout", "count_cancellations", "run", "timeout"]

T = TypeVar("T")

if sys.version_info >= (3, 11):
    from asyncio import Task, Timeout, run, timeout

    def count_cancellations(loop: asyncio.AbstractEventLoop) -> None:
        """Tasks of every loop count already."""

else:

    class Task(asyncio.Task[T]):
        """Counts the requests to cancel it, as asyncio's tasks do since 3.11."""

        _requests = 0

        def cancel(self, msg: Any = None) -> bool:
            if not self.done():
                self._requests += 1
            return super().cancel(msg)

        def cancelling(self) -> int:
            """The number of requests, less those that were withdrawn."""
            return self._requests

        def uncancel(self) -> int:
            """Withdraw one request. Returns the number of the others."""
            self._requests = max(0, self._requests - 1)
            return self._requests

    class Timeout:
        """What asyncio's Timeout is since 3.11, without its methods to move the deadline."""

        def __init__(self, when: float) -> None:
            self._when = when
            self._expired = False

        async def __aenter__(self) -> None:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None, "a deadline is for a task"
            self._task, self._before = task, task.cancelling() if isinstance(task, Task) else 0
            if self._when <= loop.time():
                self._timer: asyncio.Handle = loop.call_soon(self._expire)
            else:
                self._timer = loop.call_at(self._when, self._expire)

        async def __aexit__(self, kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
            self._timer.cancel()
            if self._expired:
                others = self._task.uncancel() if isinstance(self._task, Task) else 0
                if others <= self._before and kind is asyncio.CancelledError:
                    raise TimeoutError from error

        def _expire(self) -> None:
            self._task.cancel()
            self._expired = True

    def timeout(delay: float) -> Timeout:
        """A block that must end within `delay` seconds. Raises TimeoutError, Python's own and not asyncio's."""
        return Timeout(asyncio.get_running_loop().time() + delay)

    def count_cancellations(loop: asyncio.AbstractEventLoop) -> None:
        """Make all further tasks of the loop count."""
        loop.set_task_factory(lambda loop, work: Task(work, loop=loop))

    def run(main: Coroutine[Any, Any, T]) -> T:
        """asyncio.run, with tasks that count."""

        async def counted() -> T:
            loop = asyncio.get_running_loop()
            count_cancellations(loop)
            return await loop.create_task(main)

        return asyncio.run(counted())
