"""Runs the awaited API for callers that do not await: one event loop in a thread of its own.

A call costs one change of thread each way. Calls that arrive together wake the loop once, so single-row operations of many
threads are coalesced like those of many tasks. A call may end early in three ways:

    interrupted   KeyboardInterrupt in a waiting caller cancels its operation; the outcome of a write is then unknown. A lock,
                  session or writer that the operation has opened nevertheless is closed
    closed        waiting callers, and later ones, get ConnectionClosed
    forked        a child process has no copy of the thread; its calls get ConnectionClosed at once

An error of ebla leaves a call without the frames inside of ebla, which say nothing to a caller whose row or column is wrong:
the last frame is the call itself. `error.full_traceback` keeps them all. Defects (Internal, and errors that are not of ebla)
leave with all frames.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import uvloop

from ebla.actors.deadlines import count_cancellations
from ebla.errors import ConnectionClosed, EblaError, Internal
from ebla.transport.opening import Opening

T = TypeVar("T")
P = ParamSpec("P")

STOP_S_MAX = 5.0
WAIT_S = 0.5  # of a caller, until Python looks for a signal


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The awaited method for objects that have the awaited object as `_awaited`, and run coroutines with `_run`."""

    @short
    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> T:
        return self._run(method(self._awaited, *arguments, **named))  # type: ignore[no-any-return]

    return call


def short(function: Callable[P, T]) -> Callable[P, T]:
    """Let errors of ebla leave the function without the frames inside of ebla. Notebooks and pytest also leave out this frame
    if it is not the last one: it has `__tracebackhide__`."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return function(*arguments, **named)
        except EblaError as error:
            raise shortened(error) from error.__cause__

    return call


def shortened(error: EblaError) -> EblaError:
    """The error without its traceback, which `full_traceback` keeps."""
    if isinstance(error, Internal):
        return error
    error.full_traceback = error.full_traceback or error.__traceback__
    return error.with_traceback(None)


def like(
    awaited: Callable[Concatenate[Any, P], Any],
) -> Callable[[Callable[Concatenate[Any, P], T]], Callable[Concatenate[Any, P], T]]:
    """For a method that runs the awaited one in a way of its own: give it that docstring, and short errors. Its type tells the
    docstring to editors, which do not run this."""

    def document(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
        method.__doc__ = awaited.__doc__
        return short(method)

    return document


def described_as(awaited: object) -> Callable[[T], T]:
    """Give a function, whose type stays, the docstring of the awaited property or method that it runs."""

    def document(function: T) -> T:
        function.__doc__ = awaited.__doc__
        return function

    return document


def reading(awaited: Any) -> Any:
    """The awaited property, for objects that have the awaited object as `_awaited`."""

    @functools.wraps(awaited.fget)
    def get(self: Any) -> Any:
        return awaited.fget(self._awaited)

    return property(get)


class Waiter(Generic[T]):
    """One call under way. Releasing the lock is the cheapest way to wake the one thread that waits."""

    __slots__ = ("coroutine", "ended", "error", "lock", "result", "task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.coroutine = coroutine
        self.lock = threading.Lock()
        self.lock.acquire()
        self.ended = False
        self.result: T | None = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None

    async def drive(self) -> None:
        """Runs as the task. Wakes the caller in the same step in which the operation ends."""
        try:
            self.result = await self.coroutine
        except BaseException as error:
            self.error = error
        finally:
            self.end()

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self.lock.release()

    def ended_unstarted(self, error: ConnectionClosed) -> None:
        """End the call of a task that was cancelled before its first step."""
        if not self.ended:
            self.coroutine.close()
            self.error = error
            self.end()


class Bridge:
    """The thread and its loop. `run` may be called from any thread but its own."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._name = name
        self._inbox: deque[Waiter[Any]] = deque()
        self._turn = 0  # of `_drain`; written by the loop thread only
        self._woken = -1  # the turn for which a caller has woken the loop
        self._closed = False
        self._waiters: dict[asyncio.Task[None], Waiter[Any]] = {}  # loop thread only
        self.loop = uvloop.new_event_loop()
        count_cancellations(self.loop)
        self._thread = threading.Thread(target=self._main, name=f"ebla client {name}", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the loop and wait for its outcome."""
        waiter = Waiter(coroutine)
        try:
            self._submit(waiter)
            while not waiter.lock.acquire(
                timeout=WAIT_S
            ):  # a signal that came before the wait did not end it
                pass
            if waiter.error is None:
                return waiter.result  # type: ignore[return-value]
        except ConnectionClosed:
            coroutine.close()
            raise
        except BaseException:  # KeyboardInterrupt: the caller no longer waits
            self._call(self._cancel, waiter)
            raise
        if isinstance(waiter.error, asyncio.CancelledError):
            raise self._closed_error()
        raise shortened(waiter.error) if isinstance(waiter.error, EblaError) else waiter.error

    def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the coroutine, which ends an iterator. The loop's own thread, in which Python may collect an iterator, does not
        wait."""
        if threading.current_thread() is not self._thread:
            self.run(coroutine)
            return
        self._start(Waiter(coroutine))

    def close(self) -> None:
        """End the loop. Waiting callers get ConnectionClosed. Closing twice, or in a forked child, is no error."""
        if self._pid != os.getpid():
            return
        if self._closed:
            return
        self._call(self.loop.stop)  # first: an interrupted close can be repeated
        self._closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S_MAX)

    @property
    def closed(self) -> bool:
        """Also while the interpreter ends: the loop's thread stands then, and would let its callers wait for ever."""
        return self._closed or self._pid != os.getpid() or sys.is_finalizing()

    def check_open(self) -> None:
        """Raise ConnectionClosed if the bridge is closed, or belongs to the parent process."""
        if self._pid != os.getpid():
            raise ConnectionClosed(
                f"this connection was opened in process {self._pid} and does not survive a fork; call ebla.connect() "
                "in this process"
            )
        if self._closed or sys.is_finalizing():
            raise self._closed_error()

    # -- callers' side

    def _submit(self, waiter: Waiter[Any]) -> None:
        """Hold no lock: a garbage collection or a signal handler may begin another call in the middle of this one. Note the
        turn after its `_drain` is scheduled: after an interrupt at any point, a later call wakes the loop. The turn is read
        after the append, so the drain that ends this turn takes the waiter."""
        self.check_open()
        self._inbox.append(waiter)
        turn = self._turn
        if self._woken != turn:
            if not self._call(self._drain):
                raise self._closed_error()
            self._woken = turn

    def _call(self, act: Any, *arguments: Any) -> bool:
        """Whether the loop has not ended. `_end` answers the callers whose `act` it no longer runs."""
        try:
            self.loop.call_soon_threadsafe(act, *arguments)
        except RuntimeError:
            return False
        return True

    # -- the loop's side

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._end()

    def _drain(self) -> None:
        self._turn += 1  # before the look at the inbox: a caller that is not seen here wakes the loop again
        for _ in range(len(self._inbox)):
            waiter = self._inbox.popleft()
            if self._closed:
                waiter.ended_unstarted(self._closed_error())
                continue
            self._start(waiter)

    def _start(self, waiter: Waiter[Any]) -> None:
        waiter.task = self.loop.create_task(waiter.drive())
        self._waiters[waiter.task] = waiter
        waiter.task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._waiters.pop(task).ended_unstarted(self._closed_error())

    def _cancel(self, waiter: Waiter[Any]) -> None:
        self._drain()  # the interrupt may have come before this was scheduled
        if waiter.task is None:
            waiter.coroutine.close()
            return
        waiter.task.cancel()
        if isinstance(waiter.coroutine, Opening):
            waiter.task.add_done_callback(lambda _: self._close_opened(waiter))

    def _close_opened(self, waiter: Waiter[Any]) -> None:
        """The operation had ended when its caller was interrupted, who does not get what it has opened."""
        opened: Any = waiter.result
        if waiter.error is None and not self._closed:
            self._start(Waiter(opened.__aexit__(KeyboardInterrupt, KeyboardInterrupt(), None)))

    def _end(self) -> None:
        """Cancel the tasks, let them clean up, then answer callers whose task did not end or was not started."""
        self._closed = True
        self._drain()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=STOP_S_MAX))
        for waiter in self._waiters.values():  # tasks that did not end in time
            waiter.error = self._closed_error()
            waiter.end()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self._drain()  # callers that arrived meanwhile; later ones cannot wake the closed loop, and are refused

    def _closed_error(self) -> ConnectionClosed:
        return ConnectionClosed(
            f"this connection to deployment {self._name!r} is closed; open another with ebla.connect()"
        )
