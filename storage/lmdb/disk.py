"""A role's directory on a real disk: LMDB environments that are made, found, moved and removed durably.

    <root>/instance  lock  FAILED       owner and trust (storage/directories/instance.py)
    <root>/<path>/data.mdb  lock.mdb    an environment
    <root>/data/<name> -> <data dir>    a link, when several data directories share the tablets

A new environment under `data/` goes to the data directory that has the fewest; the link records it. A data directory
may be lost alone (storage/lmdb/data_dirs.py); a failure elsewhere is the end of the whole disk. The lifetime of an
environment consists of single renames: it is made beside its name (`.new`) and committed with an identity record before
it gets its name, and renamed (`.removed`) before it is deleted; a start finishes or undoes an interrupted step.

Only this module and its neighbours have threads: a writer for each environment in `hot`; and for each disk, so that a
disk that hangs delays no other, two for the other environments, two for `run`, one for measures. These threads share
the interpreter with the event loop, so the disk shortens the interpreter's switch interval: a writer that returns from
a sync waits that long for a busy event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from ebla.storage.directories.instance import (
    BESIDE,
    FAILED,
    INSTANCE,
    LOCK,
    REMOVED,
    InstanceDirectory,
)
from ebla.storage.environment import QUARANTINE, Instance, SetAside
from ebla.storage.errors import DiskFailed, DiskFull, InvalidArgument, StorageError
from ebla.storage.lmdb import pages
from ebla.storage.lmdb.commit import for_want_of_space
from ebla.storage.lmdb.data_dirs import DataDisks
from ebla.storage.lmdb.environment import LmdbEnvironment
from ebla.storage.lmdb.files import EnvironmentFiles, directory_bytes
from ebla.storage.lmdb.stream import LmdbReceiver
from ebla.storage.space import Ballast, DiskSpace, space_of

T = TypeVar("T")

HOT = ("wals/shared", "ledgers")
GROWTH_GRACE_S = 5.0
MARK_S_MAX = 5.0  # longest wait for the mark of a failed disk
SWITCH_INTERVAL_S = 0.0005  # Python's 5 ms made a 0.2 ms commit take 10 ms beside a busy loop
MEASURE_S_MAX = 1.0  # a disk that takes longer is reported with its last value


class Threads:
    """The thread pools of one disk. A thread is started when it is first needed."""

    def __init__(self) -> None:
        self.commits = ThreadPoolExecutor(2, "ebla-commit")
        self.work = ThreadPoolExecutor(2, "ebla-work")
        self.measures = ThreadPoolExecutor(1, "ebla-measure")

    def end(self) -> None:
        for each in (self.commits, self.work, self.measures):
            each.shutdown()


class HostFiles:
    """Implements `Outside`."""

    def make(self, directory: str) -> list[str]:
        Path(directory).mkdir(parents=True, exist_ok=True)
        return sorted(os.listdir(directory))

    def create(self, path: str) -> IO[bytes]:
        return open(path, "wb")

    def remove(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)


class LmdbDisk:
    """See the module. Belongs to the event loop that runs when `open_instance` is called."""

    def __init__(
        self,
        root: Path,
        data_dirs: Sequence[Path] = (),
        *,
        hot: Collection[str] = HOT,
        growth_grace_s: float = GROWTH_GRACE_S,
        on_failed: Callable[[DiskFailed], None] | None = None,
        sets_aside: bool = False,
        ballast_bytes: int = 0,
    ) -> None:
        """`sets_aside`: replace a given-up directory by a new one at the start (storage/directories/instance.py).
        `ballast_bytes`: reserved for a start on a full disk (storage/space.py)."""
        self.root = Path(root).absolute()
        self.outside = HostFiles()
        self.growth_grace_s = growth_grace_s
        places = [Path(path).absolute() for path in data_dirs]
        self._directory = InstanceDirectory(self.root, places, sets_aside=sets_aside)
        self._hot = frozenset(hot)
        self._on_failed = on_failed
        self._instance: Instance | None = None
        self.failed: DiskFailed | None = None
        self._marked = threading.Event()  # the mark of `failed` was written, or the disk refused it
        self._environments: dict[str, LmdbEnvironment] = {}
        self._opening: dict[str, None] = {}
        self._receivers: dict[str, LmdbReceiver] = {}
        self._ballast = Ballast(self.root, ballast_bytes)
        self._threads: dict[str, Threads] = {}  # by the directory of their disk
        self._measuring: dict[tuple[str, str], asyncio.Future[Any]] = {}  # by kind and disk
        self._measured: dict[tuple[str, str], Any] = {}

    async def open_instance(self, new_uuid: str) -> Instance:
        assert self._instance is None, "an instance is opened once"
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        pages.keep_small_allocations()
        _allow_many_files()
        self._loop = asyncio.get_running_loop()
        self._instance = await self.beside(self._open_directory, new_uuid)
        self._data_disks = DataDisks(self, self._directory)
        self._files = EnvironmentFiles(self.root, self._data_disks, self._instance.uuid)
        return self._instance

    def _open_directory(self, new_uuid: str) -> Instance:
        if (self.root / INSTANCE).exists():
            self._ballast.trim()
        instance = self._directory.open(new_uuid)
        self._ballast.trim()
        return instance

    async def raise_seqno(self, by: int) -> int:
        self.check()
        return await self.beside(self._directory.raise_seqno, by)

    async def give_up(self, reason: str) -> bool:
        self.check()
        return await self.beside(self._directory.give_up, reason)

    async def open_environment(
        self, path: str, databases: Sequence[str], *, create: bool, map_bytes: int = 1 << 30
    ) -> LmdbEnvironment:
        self._check_free(path)
        threads = self._threads_at(self._files.target_place(path))
        self._opening[path] = None
        try:
            opened, handles, roots = await self.beside(
                partial(self._files.open, path, tuple(databases), create=create, map_bytes=map_bytes),
                thread=threads.commits,
            )
        finally:
            del self._opening[path]
        environment = self._environments[path] = LmdbEnvironment(
            path,
            opened,
            handles,
            roots,
            self._data_disks.of(self.root / path) or self,
            own_thread=path in self._hot,
            commits=threads.commits,
            work=threads.work,
        )
        return environment

    async def receive(self, path: str, sealed: Mapping[str, int] | None = None) -> LmdbReceiver:
        self._check_free(path)
        if self._files.exists(path):
            raise StorageError(f"environment {path} exists; remove it before it is received", path=path)
        receiver = self._receivers[path] = LmdbReceiver(path, sealed or {}, self._files, self)
        await receiver.begin()
        return receiver

    def exists(self, path: str) -> bool:
        self.check()
        check_path(path)
        return self._files.exists(path)

    def directories(self, path: str) -> list[str]:
        self.check()
        check_path(path)
        return self._files.directories(path)

    def list(self, path: str) -> list[str]:
        self.check()
        check_path(path)
        return self._files.list(path)

    async def remove(self, path: str) -> None:
        self.check()
        check_path(path)
        self._check_closed(path, "removing")
        await self.beside(self._files.remove, path, thread=self._threads_of(path).commits)

    async def move(self, path: str, to: str) -> None:
        self.check()
        check_move(path, to)
        for each in (path, to):
            self._check_closed(each, "moving")
        await self.beside(self._files.move, path, to, thread=self._threads_of(path).commits)

    def size_bytes(self, path: str = "") -> int:
        self.check()
        if path:
            check_path(path)
            return self._files.size_bytes(path)
        return sum(map(directory_bytes, self._directories()))

    def place_of(self, path: str) -> str:
        self.check()
        return str(self._files.place(path))

    async def space(self) -> tuple[DiskSpace, ...]:
        def measure(place: Path) -> DiskSpace:
            if place == self.root:
                self._ballast.trim()
            self._retry_removals(place)
            return space_of(place)

        found = await self._measure("space", measure)
        for each in found:
            self._files.free_bytes[each.path] = each.free_bytes
        return found

    def _retry_removals(self, place: Path) -> None:
        try:
            self._files.retry_removals(place)
        except OSError as error:
            if not for_want_of_space(error.errno, place):
                self.poison(DiskFailed(f"cannot use {place}: {error}", path=str(place)))

    async def used_bytes(self) -> int:
        return sum(await self._measure("used", directory_bytes))

    async def _measure(self, what: str, measure: Callable[[Path], T]) -> tuple[T, ...]:
        """Measure every working disk beside the loop. A disk that does not answer gets no second request meanwhile, and
        counts with its last value."""
        self.check()
        keys = [(what, str(place)) for place in self._directories()]
        for key, place in zip(keys, self._directories(), strict=True):
            if key not in self._measuring:
                thread = self._threads_at(place).measures
                self._measuring[key] = self._loop.run_in_executor(thread, measure, place)
        await asyncio.wait([self._measuring[key] for key in keys], timeout=MEASURE_S_MAX)
        for key in keys:
            future = self._measuring.get(key)
            if future is not None and future.done():
                del self._measuring[key]
                if future.exception() is None:
                    self._measured[key] = future.result()
        return tuple(self._measured[key] for key in keys if key in self._measured)

    def _directories(self) -> tuple[Path, ...]:
        """The role's directory and the data directories that are not lost."""
        lost = self._directory.lost
        return (self.root, *(each for each in self._directory.known_data_dirs() if each not in lost))

    def set_aside(self) -> SetAside | None:
        return self._directory.set_aside()

    def lost_data_dirs(self) -> dict[str, str]:
        return {str(path): why for path, why in self._directory.lost.items()}

    def takes_data(self) -> bool:
        return not self._data_disks.all_lost

    async def close(self) -> None:
        """Close everything, even on a failed disk: acknowledged data stays, nothing else is written."""
        for environment in list(self._environments.values()):
            await environment.close()
        for receiver in list(self._receivers.values()):
            await receiver.abort()
        self._instance = None
        for threads in self._threads.values():
            await asyncio.get_running_loop().run_in_executor(None, threads.end)
        self._directory.close()

    def check(self) -> None:
        if self.failed is not None:  # a caller may then end the process, so first the mark must be on disk
            self._marked.wait(MARK_S_MAX)
            raise DiskFailed(self.failed.message, path=self.failed.path)
        if self._instance is None:
            raise StorageError(f"{self.root} is not open: call open_instance first, and not after close")

    def poison(self, error: DiskFailed) -> DiskFailed:
        """From any thread: stop trusting this disk. The first reason is kept."""
        if self.failed is not None:
            self._marked.wait(MARK_S_MAX)
        else:
            self.failed = error
            try:
                self._directory.mark_failed(error.message)
            finally:
                self._marked.set()
            if self._on_failed is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_failed, error)
        return error

    def _check_free(self, path: str) -> None:
        self.check()
        check_path(path)
        if path in self._environments or path in self._opening or path in self._receivers:
            raise StorageError(f"environment {path} is open already", path=path)

    def _check_closed(self, path: str, act: str) -> None:
        if path in self._environments or path in self._opening or path in self._receivers:
            raise StorageError(f"environment {path} is open; close it before {act} it", path=path)

    def forget_receiver(self, receiver: LmdbReceiver) -> None:
        self._receivers.pop(receiver.path, None)

    def forget(self, path: str) -> None:
        self._environments.pop(path, None)

    async def beside(self, work: Callable[..., T], *arguments: object, thread: Executor | None = None) -> T:
        """Do file work on a thread. An OSError becomes DiskFull or DiskFailed."""
        try:
            executor = thread or self._threads_at(self.root).commits
            return await self._loop.run_in_executor(executor, work, *arguments)
        except DiskFailed as error:
            if self._instance is not None:
                self.poison(error)
            raise
        except OSError as error:
            if for_want_of_space(error.errno, self.root):
                raise DiskFull(f"no space left under {self.root}: {error}; free space") from error
            failed = DiskFailed(f"cannot use {self.root}: {error}", path=str(self.root))
            if self._instance is not None:
                self.poison(failed)
            raise failed from error

    def _threads_of(self, path: str) -> Threads:
        return self._threads_at(self._files.place(path))

    def _threads_at(self, place: Path) -> Threads:
        return self._threads.setdefault(str(place), Threads())


def _allow_many_files() -> None:
    """Let this process open as many files as the system permits: each environment in use has four."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def check_path(path: str) -> None:
    parts = path.split("/")
    if (
        any(part in ("", ".", "..") or part.endswith((BESIDE, REMOVED)) for part in parts)
        or parts[0] in (INSTANCE, LOCK, FAILED)
        or os.sep != "/"
    ):
        raise InvalidArgument(f"{path!r} does not name an environment: use plain parts divided by /")


def check_move(path: str, to: str) -> None:
    """Raise InvalidArgument unless `to` is in quarantine, where an environment may differ from its identity's path."""
    check_path(path)
    check_path(to)
    if not to.startswith(f"{QUARANTINE}/") or path.startswith(f"{QUARANTINE}/"):
        raise InvalidArgument(f"{path} cannot become {to}: environments are moved to {QUARANTINE}/ only")
