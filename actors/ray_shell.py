"""The driver of a role inside its process: start, answers, graceful stop, and the ways to end.

It does not use Ray (actors/ray_world.py wraps it into an actor), so its promises are tested without Ray:

    quick        the constructor returns at once; until the role has started, RPCs answer NotRunning
    one writer   the start waits for an older incarnation that holds the directory, then ends, and Ray tries again
    no crash loop   with a disk that failed, is damaged or an old copy the role stays up and answers every RPC with that
                 error, unless its directory may be set aside, once, and the role starts as a new one
    watched      the role's figures are exported every few seconds; a defect there is logged once, and ends nothing
    loud         a background task that fails, `world.fail`, a poisoned disk: traceback to stderr, and the process
                 ends with its own status, so that Ray starts the role again from its disk

A defect in one handler ends only that call (Internal, with the traceback on stderr): one malformed request must not
end the role on every replica in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import msgspec

from ebla.actors.deadlines import Timeout, timeout
from ebla.actors.errors import ErrorFrame, NotRunning, OutcomeUnknown, to_frame
from ebla.actors.figures import Figure, Sheet, gauge
from ebla.actors.world import STOP_S, Clock, Dispatcher, Role, World, encode, encode_error
from ebla.storage.environment import Disk
from ebla.storage.errors import DirectoryLocked, DiskFailed, DiskFull, EblaError, InvalidArgument, OldCopy
from ebla.storage.space import BALLAST_BYTES

START_RETRY_S = 0.25
START_TRIES_MAX = 60  # 15 s: an old incarnation outlives its raylet by 1 to 2 s
EXPORT_S = 5.0
DISK = "ebla.storage.lmdb.disk:LmdbDisk"


class Exit(enum.IntEnum):
    """The statuses with which a role's process ends on purpose; Ray shows them as the worker's exit code."""

    DEFECT = 70  # a background task or the start raised an unexpected error
    FAILED = 71  # world.fail with an EblaError
    DISK_FAILED = 72  # a sync failed: the disk is no longer trusted
    LOCKED = 73  # another incarnation holds the directory, longer than the shell waits
    DISK_FULL = 74  # no space to start in, longer than the shell waits
    OLD_COPY = 75  # the directory is an older copy of itself


class Assignment(msgspec.Struct, frozen=True):
    """The launch configuration of an actor. `role`, `options_type` and `disk` are dotted names (`package.module:Class`),
    imported where the actor runs; `options` is MessagePack. `sets_aside`: a directory that was given up is replaced by a
    new one, which peers fill."""

    address: str
    slot: str
    namespace: str
    role: str
    options_type: str
    options: bytes
    root: str
    data_dirs: tuple[str, ...] = ()
    disk: str = DISK
    sets_aside: bool = False


class Pong(msgspec.Struct, frozen=True):
    """`state`: starting, running, failed (with `error`, which the role stays up to report) or stopping. `root`: the role's
    directory."""

    address: str
    slot: str
    state: str
    pid: int
    node_id: str
    restarted: bool
    started_us: int
    error: ErrorFrame | None = None
    root: str = ""


STARTING, RUNNING, FAILED, STOPPING = "starting", "running", "failed", "stopping"

End = Callable[[Exit], None]
MakeWorld = Callable[[Disk, "Tasks", Callable[[BaseException], None]], World]
Export = Callable[[Iterable[Figure]], None]

# uvloop counts from a whole millisecond, and for a whole number of them, so its timers end up to 1.5 ms early. Loops that wait for a
# moment would wait again, some of them many times.
ROUNDING_S = 0.0015

# Reported by the shell, which runs even if the role could not start.
SHELL: Sheet[bool] = Sheet((), gauge("role_running", "0/1", "the role serves", bool))


def end_process(status: Exit) -> None:
    """End at once, without handlers or finally. Acknowledged data is on disk."""
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(status)


class MachineClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds + ROUNDING_S if seconds > 0 else 0.0)

    def timeout(self, seconds: float) -> Timeout:
        return timeout(seconds)


class Tasks:
    """The background tasks of one role: referenced until they end, and reported when they fail."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(task.get_name(), error)


class Shell:
    """See the module. It must be made inside the event loop that the role runs on."""

    def __init__(
        self,
        assignment: Assignment,
        make_world: MakeWorld,
        clock: Clock,
        end: End = end_process,
        export: Export | None = None,
    ) -> None:
        self.assignment = assignment
        self.state = STARTING
        self.why: EblaError | None = None  # the error of the last start
        self._make_world = make_world
        self._clock = clock
        self._end = end
        self._role: Role | None = None
        self._disk: Disk | None = None
        self._dispatcher: Dispatcher | None = None
        self._answering: dict[asyncio.Task[Any], None] = {}
        self._tasks = Tasks(self._task_failed)
        self._own = Tasks(self._task_failed)
        self._starting = self._own.spawn(self._start(), "start")
        self._stopping: asyncio.Task[None] | None = None
        if export is not None:
            self._own.spawn(self._export(export), "export of figures")

    async def answer(self, method: str, data: bytes) -> bytes:
        if self._dispatcher is None:
            return encode_error(self._refusal())
        task = asyncio.current_task()
        assert task is not None
        self._answering[task] = None
        try:
            return await self._dispatcher.answer(method, data)
        except asyncio.CancelledError:
            if self._stopping is None:
                raise
            address = self.assignment.address
            return encode_error(
                OutcomeUnknown(f"{address} stopped before {method} was done", address=address)
            )
        finally:
            del self._answering[task]

    def _refusal(self) -> EblaError:
        if self.state == FAILED:
            assert self.why is not None
            return self.why
        reason = f": {self.why}" if self.why is not None else ""
        return NotRunning(f"{self.assignment.address} is {self.state}{reason}", state=self.state)

    def pong(self, node_id: str, restarted: bool, started_us: int) -> bytes:
        frame = to_frame(self.why) if self.why is not None else None
        where = self.assignment
        return encode(
            Pong(
                address=where.address,
                slot=where.slot,
                state=self.state,
                pid=os.getpid(),
                node_id=node_id,
                restarted=restarted,
                started_us=started_us,
                error=frame,
                root=where.root,
            )
        )

    async def _export(self, export: Export) -> None:
        logged = False
        while self.state != STOPPING:
            try:
                export(self._measure())
            except Exception as error:
                if not logged:
                    self._log("its figures cannot be exported", error)
                logged = True
            await self._clock.sleep(EXPORT_S)

    def _measure(self) -> list[Figure]:
        running = self.state == RUNNING and self._role is not None
        figures = list(SHELL.read(running))
        if running:
            assert self._role is not None
            figures += self._role.measure()
        return figures

    async def _start(self) -> None:
        for attempt in range(START_TRIES_MAX):
            try:
                await self._start_once()
            except (DirectoryLocked, DiskFull) as error:
                self.why = error
                if attempt == 0:
                    self._log(f"waits: {error}")
                await self._clock.sleep(START_RETRY_S)
            except EblaError as error:
                # Damaged, DiskFailed, OldCopy, invalid options: another start would fail in the same way.
                self.why, self.state = error, FAILED
                self._log(f"cannot start, and answers with the reason: {type(error).__name__}: {error}")
                return
            else:
                self.why, self.state = None, RUNNING
                return
        assert self.why is not None
        self._log(f"gives up: {self.why}")
        self._end(Exit.LOCKED if isinstance(self.why, DirectoryLocked) else Exit.DISK_FULL)

    async def _start_once(self) -> None:
        self._tasks = Tasks(self._task_failed)
        self._disk = make_disk(self.assignment, self._fail)
        try:
            world = self._make_world(self._disk, self._tasks, self._fail)
            role = make_role(self.assignment, world)
            dispatcher = Dispatcher(role, self._defect)
            await role.start()
        except EblaError:
            self._tasks.cancel()
            with contextlib.suppress(EblaError):
                await self._disk.close()
            raise
        self._role, self._dispatcher = role, dispatcher

    async def stop(self) -> None:
        """Stop gracefully: the role stops, its tasks end, its disk is closed. Safe to repeat, and in any state."""
        if self._stopping is None:
            self.state = STOPPING
            self._starting.cancel()
            self._stopping = self._own.spawn(self._stop(), "stop")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        if self._role is not None:
            try:
                async with timeout(STOP_S):
                    await self._role.stop()  # it still answers: a hand-over may need peers
            except (EblaError, TimeoutError) as error:
                self._log(f"its graceful stop was cut short: {error!r}")
        self._dispatcher = None
        for task in list(self._answering):
            task.cancel()  # a call that waits would keep the process alive
        self._tasks.cancel()
        if self._disk is not None:
            with contextlib.suppress(EblaError):
                await self._disk.close()

    def _fail(self, error: BaseException) -> None:
        """`world.fail`, also called by the disk."""
        self._log(f"fails: {type(error).__name__}: {error}", error)
        if isinstance(error, DiskFailed):
            self._end(Exit.DISK_FAILED)
        elif isinstance(error, OldCopy):
            self._end(Exit.OLD_COPY)
        else:
            self._end(Exit.FAILED if isinstance(error, EblaError) else Exit.DEFECT)

    def _task_failed(self, name: str, error: BaseException) -> None:
        self._log(f"task {name!r} failed")
        self._fail(error)

    def _defect(self, method: str, error: BaseException) -> None:
        self._log(f"{method} failed", error)

    def _log(self, message: str, error: BaseException | None = None) -> None:
        print(f"{self.assignment.address}: {message}", file=sys.stderr, flush=True)
        if error is not None:
            if error.__traceback__ is None:  # it was not raised: show its reporter
                print("Traceback of the report:\n", *traceback.format_stack()[:-2], sep="", file=sys.stderr)
            traceback.print_exception(error, file=sys.stderr)
            sys.stderr.flush()


# -- the classes in an assignment ----------------------------------------------------------------------------


def dotted(kind: type[Any]) -> str:
    """`package.module:Class`, for `load` in another process."""
    return f"{kind.__module__}:{kind.__qualname__}"


def load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(
            f"{name} cannot be imported here ({error}); every node needs the same version of ebla"
        ) from error


def make_disk(assignment: Assignment, on_failed: Callable[[BaseException], None]) -> Disk:
    kind = load(assignment.disk)
    disk: Disk = kind(
        Path(assignment.root),
        [Path(path) for path in assignment.data_dirs],
        on_failed=on_failed,
        sets_aside=assignment.sets_aside,
        ballast_bytes=BALLAST_BYTES,
    )
    return disk


def make_role(assignment: Assignment, world: World) -> Role:
    options = msgspec.msgpack.decode(assignment.options, type=load(assignment.options_type))
    role: Role = load(assignment.role)(world, options)
    return role
