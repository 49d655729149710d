"""An asyncio event loop in virtual time: no real waiting, and each seed has one history.

When no callback is ready, time jumps to the next timer. Callbacks run in the order in which they became ready,
timers of the same moment in the order in which they were set. Threads, executors, sockets and signals are refused: they
would make a run depend on the real world. A run that cannot continue, does not end or loses an error fails: see Deadlock, Livelock
and NeverRetrieved.

The tasks of a *domain* (a simulated node) die and pause together. Every task that is started inside a domain belongs to it.
Tasks of a dead domain never take another step: as after SIGKILL, and unlike after cancellation, none of their `except` and
`finally` blocks runs. Tasks of a paused domain take no step until it resumes, as after SIGSTOP; callbacks that became due in
between then run.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import contextvars
import functools
import gc
import hashlib
import heapq
import random
import sys
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any, NoReturn, TypeVar

from ebla.actors.deadlines import Task
from ebla.storage.errors import add_note

T = TypeVar("T")

STEPS_MAX = 20_000_000
STORY_MAX = 2_000
ALL_TASKS = "_scheduled_tasks" if sys.version_info >= (3, 12) else "_all_tasks"  # asyncio's own set of them
DIGEST_LINES = 500  # digested at a time: a call per line costs more than the digest


class Deadlock(RuntimeError):
    """Nothing is scheduled, and the main coroutine is not done."""


class Livelock(RuntimeError):
    """The run did not end within `steps_max` steps."""


class NeverRetrieved(AssertionError):
    """A task or future failed, and was dropped before its error was retrieved."""


class NotSimulated(RuntimeError):
    """The code under test used the real world; it must use its `World`."""


class Domain:
    """The tasks of one node. `tasks` counts all that were ever started: their names contain the count."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks = 0
        self.context = contextvars.copy_context()
        self.context.run(_domain.set, self)
        self.unfinished: dict[_Mortal[Any], None] = {}
        self.slow = False  # a step must check the fields below
        self._paused = False
        self._held: list[asyncio.Future[None]] = []
        self._steps_left = 0
        self._at_last: Callable[[], None] | None = None

    @property
    def paused(self) -> bool:
        return self._paused

    def pause(self) -> None:
        self._paused = self.slow = True

    def call_after(self, steps: int, act: Callable[[], None] | None) -> None:
        """Call `act` once, instead of the step after this many; None: cancel."""
        self._steps_left, self._at_last = steps, act
        self.slow = self._paused or act is not None

    def count(self) -> None:
        act = self._at_last
        if act is not None and self._steps_left == 0:
            self.call_after(0, None)
            act()
        self._steps_left -= 1

    def resume(self) -> None:
        """Take the delayed steps, in the order in which they were delayed."""
        self._paused = False
        self.slow = self._at_last is not None
        held, self._held = self._held, []
        for waiting in held:
            if not waiting.done():
                waiting.set_result(None)

    def hold(self, until: asyncio.Future[None]) -> None:
        self._held.append(until)

    def spawned(self) -> list[asyncio.Task[Any]]:
        """The tasks of the node's role that have not ended."""
        return [each.task for each in self.unfinished if each.spawned and each.task is not None]

    def bury(self) -> None:
        """After the run, close the coroutines. Their clean-up code, and tasks that it starts, affects no other node."""
        self.alive = False
        while self.unfinished:
            mortal = next(iter(self.unfinished))
            del self.unfinished[mortal]
            with contextlib.suppress(BaseException):
                mortal.coroutine.close()


_domain: contextvars.ContextVar[Domain | None] = contextvars.ContextVar("domain", default=None)


class _Mortal(Coroutine[Any, Any, T]):
    """A coroutine that takes no step after its domain has died. The domain keeps a reference, so that no clean-up code runs
    then. `task` drives it. `failed`, if set, is called with the task soon after the coroutine ended in an error."""

    __slots__ = ("_domain", "_loop", "_next", "coroutine", "failed", "spawned", "task")

    def __init__(self, coroutine: Coroutine[Any, Any, T], domain: Domain, loop: SimulatedLoop) -> None:
        self.coroutine = coroutine
        self.task: asyncio.Task[T] | None = None
        self.failed: Callable[[Any], None] | None = None
        self.spawned = False  # by the node's role itself
        self._domain = domain
        self._loop = loop
        self._next: tuple[Callable[[Any], Any], Any] | None = None  # the step that a pause delays
        domain.unfinished[self] = None

    def send(self, value: Any) -> Any:
        domain = self._domain
        if self._next is not None or domain.slow or not domain.alive:
            held, self._next = self._next, None
            return self._step(*(held or (self.coroutine.send, value)))
        try:
            waits_for = self.coroutine.send(value)
        except BaseException as error:
            self._end(error)
            raise
        return waits_for if domain.alive else self._never()

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        self._next = None  # cancelled while it was delayed: the awaited result is not delivered any more
        return self._step(self.coroutine.throw, kind if value is None else value)

    def close(self) -> None:
        if self._domain.alive:
            self.coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise AssertionError("a mortal coroutine is driven by its task only")

    def _step(self, resume: Callable[[Any], Any], argument: Any) -> Any:
        if self._domain.paused and self._domain.alive:
            self._next = resume, argument
            until = self._loop.create_future()
            self._domain.hold(until)
            until._asyncio_future_blocking = True
            return until
        if self._domain.slow and self._domain.alive:
            self._domain.count()
        if self._domain.alive:
            try:
                waits_for = resume(argument)
            except BaseException as error:
                self._end(error)
                raise
            if self._domain.alive:
                return waits_for
        return self._never()

    def _never(self) -> asyncio.Future[None]:
        never = self._loop.create_future()
        never._asyncio_future_blocking = True
        return never

    def _end(self, error: BaseException) -> None:
        """`error` is StopIteration if the coroutine returned."""
        self._domain.unfinished.pop(self, None)
        task, self.task = self.task, None
        if self.failed is not None and not isinstance(error, (StopIteration, asyncio.CancelledError)):
            self._loop.call_soon(self.failed, task)


class _Nowhere:
    """The selector that asyncio requires. There is nothing to select from."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class _Handle(list[Any]):
    """A callback, its arguments and its context: as cheap as possible, because a run makes a hundred thousand."""

    __slots__ = ()

    def cancel(self) -> None:
        """Mark the handle: the loop skips it."""
        self[:2] = None, ()

    def cancelled(self) -> bool:
        return self[0] is None


class Alarm:
    """The future that a sleeping task awaits: time makes it ready, and it wakes its task by one callback instead of two. The
    coroutine that makes it must yield it at once."""

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_handle", "_loop", "_when")

    def __init__(self, loop: SimulatedLoop, when: float) -> None:
        self._asyncio_future_blocking = True
        self._cancelled = False
        self._loop = loop
        self._when = when

    def add_done_callback(self, callback: Any, *, context: contextvars.Context) -> None:
        self._handle = self._loop.call_at(self._when, callback, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        """Called when the task is cancelled: wake it soon; `result` then raises."""
        if self._cancelled:
            return False
        callback, arguments, context = self._handle
        self._handle.cancel()
        self._cancelled = True
        self._loop.call_soon(callback, *arguments, context=context)
        return True

    def result(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. `derive` gives generators of random numbers that depend on the seed. `now` is the time."""

    # Attributes of BaseEventLoop that its stubs lack; stable from Python 3.10 to 3.13.
    _ready: collections.deque[Any]
    _asyncgens: Any
    _stopping: bool
    get_debug: Any = staticmethod(bool)  # false, and cheap: every future calls it

    def __init__(self, seed: int = 0, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self.seed = seed
        self.random = random.Random(seed)
        self.steps = 0
        self.steps_max = steps_max
        self.domains: list[Domain] = []
        # The tasks without a domain. asyncio's own set of all tasks is not maintained: it would cost 2 % of a run.
        self.outside: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self.ending = self.over = False
        self.now = 0.0
        self._timers: list[tuple[float, int, Any]] = []  # a heap; of one moment the first set comes first
        self._timers_set = 0
        self._abort: BaseException | None = None
        self._digest = hashlib.blake2b(digest_size=16)
        self._undigested: list[str] = []
        self.story: collections.deque[str] = collections.deque(maxlen=STORY_MAX)
        self._selector = _Nowhere()
        self.create_future = functools.partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    def derive(self, *names: object) -> random.Random:
        """A separate generator for one part of the run, so that a change there does not affect other parts."""
        return random.Random(f"{self.seed}:{':'.join(map(str, names))}")

    def domain(self, name: str) -> Domain:
        domain = Domain(name)
        self.domains.append(domain)
        return domain

    def abort(self, error: BaseException) -> None:
        """End the run with this error before the next callback."""
        self._abort = self._abort or error

    def trace(self, *facts: object) -> None:
        """Note an event. Facts are plain values: no object whose repr contains a memory address or a hash order."""
        self.note(" ".join(map(str, facts)))

    def note(self, fact: str) -> None:
        """`trace` for a fact that is a text already."""
        line = f"{self.now:.9f} {fact}"
        self._undigested.append(line)
        self.story.append(line)
        if len(self._undigested) == DIGEST_LINES:
            self._digest_lines()

    def digest(self) -> str:
        """One value for the whole history: equal seeds give equal digests, in any process."""
        self._digest_lines()
        return self._digest.hexdigest()

    def _digest_lines(self) -> None:
        self._digest.update("".join(self._undigested).encode())
        self._undigested.clear()

    def raise_aborted(self) -> None:
        if self._abort is not None:
            raise self._abort

    def reset(self) -> None:
        """After the run, forget the abort and the limit of steps, so that the remaining tasks can be cancelled."""
        self.ending = True
        self._abort, self.steps_max = None, self.steps + STEPS_MAX

    def time(self) -> float:
        return self.now

    def create_task(self, coroutine: Any, *, name: str | None = None) -> asyncio.Task[Any]:  # type: ignore[override]
        """Tie every task to its domain, also those that asyncio itself makes (gather, wait_for)."""
        domain = _domain.get()
        if domain is None:
            task = Task(coroutine, loop=self, name=name)
            self.outside.add(task)
            return task
        domain.tasks += 1
        mortal = _Mortal(coroutine, domain, self)
        name = f"{domain.name}#{domain.tasks}" if name is None else f"{domain.name}#{domain.tasks} {name}"
        task = mortal.task = Task(mortal, loop=self, name=name)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        return task

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """asyncio's, without its checks for debugging."""
        handle = _Handle((callback, args, contextvars.copy_context() if context is None else context))
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = _Handle((callback, args, contextvars.copy_context() if context is None else context))
        self._timers_set += 1
        heapq.heappush(self._timers, (self.now + delay, self._timers_set, handle))
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        handle = _Handle((callback, args, contextvars.copy_context() if context is None else context))
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def _run_once(self) -> None:
        """Run callbacks until the loop is stopped; asyncio calls this again only to see whether it was. If no callback is ready,
        time first jumps to the next timer."""
        ready, timers = self._ready, self._timers
        while not self._stopping:
            if self._abort is not None:
                raise self._abort
            if not ready:
                while timers and timers[0][2][0] is None:
                    heapq.heappop(timers)  # cancelled: time does not stop for it
                if not timers:
                    raise Deadlock("nothing is scheduled and the main coroutine still waits")
                self.now = max(self.now, timers[0][0])
            while timers and timers[0][0] <= self.now:
                ready.append(heapq.heappop(timers)[2])
            count = len(ready)
            self.steps += count
            if self.steps > self.steps_max:
                raise Livelock(f"no end after {self.steps_max} steps, at {self.now:.3f} s of virtual time")
            for _ in range(count):
                callback, arguments, context = ready.popleft()
                if callback is None:
                    continue
                try:
                    context.run(callback, *arguments)
                except Exception as error:
                    self._callback_failed(error)

    def _callback_failed(self, error: Exception) -> None:
        """Abort the run: the callback was left half-way. After the run, callbacks only cancel the remaining tasks."""
        self.call_exception_handler({"message": "a callback failed", "exception": error})
        if not self.ending:
            self.abort(error)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Abort the run if a dropped future has an error that was never retrieved. After the run such futures are ignored."""
        if not context["message"].endswith("exception was never retrieved"):
            super().call_exception_handler(context)
        elif not self.ending:
            lost, error = context["future"], context["exception"]
            name = lost.get_name() if isinstance(lost, asyncio.Task) else "a future"
            self.abort(NeverRetrieved(f"{name} failed, and its error was never retrieved: {error!r}"))

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _asyncgen_finalizer_hook(self, generator: Any) -> None:
        """Close an unfinished generator soon, as asyncio does, but not after the run."""
        self._asyncgens.discard(generator)
        if not self.over:
            self.call_soon(self.create_task, generator.aclose())

    def call_soon_threadsafe(self, *arguments: Any, **options: Any) -> NoReturn:  # type: ignore[override]
        raise NotSimulated("call_soon_threadsafe: there are no threads in a simulation")

    def run_in_executor(self, *arguments: Any) -> NoReturn:  # type: ignore[override]
        raise NotSimulated("run_in_executor: there are no threads in a simulation; use environment.run")


def run(main: Coroutine[Any, Any, T], seed: int = 0, *, steps_max: int = STEPS_MAX) -> T:
    """Run `main` to its end in a new loop; a note with the seed is added to errors."""
    loop = SimulatedLoop(seed, steps_max)
    collected = gc.isenabled()
    gc.disable()  # the time of a collection depends on the whole process; finalizers must not
    registered: Any = getattr(asyncio.tasks, ALL_TASKS)
    registered.add = id  # does nothing: see SimulatedLoop.outside
    try:
        asyncio.set_event_loop(loop)
        result = loop.run_until_complete(main)
        gc.collect(0)  # the run's objects are young; futures that are dropped only now may have failed, too
        loop.raise_aborted()
        return result
    except BaseException as error:
        add_note(error, f"simulation: seed {seed}, {loop.time():.6f} s of virtual time, {loop.steps} steps")
        raise
    finally:
        _end(loop)
        del registered.add
        if collected:
            gc.enable()


def _end(loop: SimulatedLoop) -> None:
    """Close the loop. Tasks without a domain are cancelled, as asyncio.run does; tasks of nodes just end."""
    for domain in loop.domains:
        domain.alive = False
    left = sorted((task for task in loop.outside if not task.done()), key=asyncio.Task.get_name)
    for task in left:
        task.cancel()
    with contextlib.suppress(Deadlock, Livelock):
        loop.reset()
        loop.run_until_complete(_settle(left))
    loop.over = True
    for domain in loop.domains:
        domain.bury()
    asyncio.set_event_loop(None)
    loop.close()


async def _settle(left: list[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*left, return_exceptions=True)
