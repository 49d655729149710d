"""A writable LMDB environment: group commit by one writer, a map that grows, and no belief in a failed disk.

Who calls `commit` waits on the event loop; the transaction runs on a writer thread, and whatever is queued when
the writer becomes free goes into one transaction with one sync, in the order of the calls. A group's answers
reach the loop in one call. A caller that is cancelled while it waits has committed nevertheless, or will.

The map doubles when a group does not fit. That needs every transaction of this process ended: snapshots get
`growth_grace_s` to be closed and then expire.

Memory: LMDB keeps a page in memory for every page that its largest commit changed, and counts what it has mapped. So
the environment is closed and opened again after a large commit, as soon as no snapshot is open, and mapped pages are
let go of as commits go by.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import lmdb

from ebla.storage.environment import Batch, Put
from ebla.storage.errors import DiskFailed, EblaError, StorageError
from ebla.storage.lmdb import pages
from ebla.storage.lmdb.commit import MapFull, batch_bytes, commit_group
from ebla.storage.lmdb.files import DATA_FILE, map_environment
from ebla.storage.lmdb.keeper import Keeper
from ebla.storage.lmdb.reads import Database, LmdbMapping
from ebla.storage.lmdb.roots import Roots
from ebla.storage.lmdb.stream import LmdbStream

T = TypeVar("T")

GROUP_MAX = 4096  # batches in one transaction
GROWTHS_MAX = 40  # doublings: from a page to more than any disk
# Written between two releases of mapped pages; each may have changed a page of its own.
RELEASE_ITEMS = 16_384
# LMDB keeps the pages of an environment's largest commit until that is closed: after one of so many items, it is.
RENEW_ITEMS = 4096
_MIB = 1 << 20


class Job(NamedTuple):
    """A batch and who waits for it; without a batch: the end, or room for so many bytes."""

    batch: Batch | None
    done: asyncio.Future[None]
    room_bytes: int | None = None


class LmdbEnvironment(LmdbMapping):
    """See the module. `own_thread` gives the environment a writer of its own, else it shares `commits`."""

    def __init__(
        self,
        path: str,
        environment: lmdb.Environment,
        databases: dict[str, Database],
        roots: Roots,
        keeper: Keeper,
        *,
        own_thread: bool,
        commits: Executor,
        work: Executor,
    ) -> None:
        super().__init__(path, environment, databases)
        self._roots = roots
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._commits = commits
        self._work = work
        self._closing = False
        self._streams: dict[LmdbStream, None] = {}
        self._scheduled = False
        self._scheduling = threading.Lock()
        self._unreleased = 0
        self._swollen = False  # LMDB holds the pages of a large commit
        self._thread: threading.Thread | None = None
        if own_thread:
            self._thread = threading.Thread(
                target=self._write_for_ever, name=f"ebla-write-{path}", daemon=True
            )
            self._thread.start()

    async def commit(self, batch: Batch) -> None:
        self._check_open()
        await self._submit(batch)

    async def stream(self) -> LmdbStream:
        self._check_open()
        stream = LmdbStream(self.path, self.directory, self._check_open, self._streamed)
        self._streams[stream] = None
        await stream.begin()
        return stream

    async def reserve(self, bytes_wanted: int) -> None:
        """The map has room for twice as much: pages are rarely full."""
        self._check_open()
        await self._submit(None, 2 * bytes_wanted)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        self.check()
        return await self._loop.run_in_executor(self._work, work, *arguments)

    def size_bytes(self) -> int:
        """Bytes in use by pages up to the last one ever used (the file is as large)."""
        return self._inside(self._used_bytes)

    async def close(self) -> None:
        if not self._closing:
            self._closing = True
            for stream in list(self._streams):
                stream.close()
            await self._submit(None)
            self._keeper.forget(self.path)

    def check(self) -> None:
        if self._keeper.failed is not None:
            self._keeper.check()
        super().check()

    def _check_open(self) -> None:
        self.check()
        if self._closing:
            raise StorageError(f"environment {self.path} is closing", path=self.path)

    def _streamed(self, stream: LmdbStream) -> None:
        """On the stream's thread: its copier has ended. One that was killed has left its snapshot in the lock file."""
        self._streams.pop(stream, None)
        with contextlib.suppress(StorageError):
            self._inside(lambda: self.lmdb.reader_check())

    def _used_bytes(self) -> int:
        return (self.lmdb.info()["last_pgno"] + 1) * self.lmdb.stat()["psize"]

    def _submit(self, batch: Batch | None, room_bytes: int | None = None) -> asyncio.Future[None]:
        done = self._loop.create_future()
        self._jobs.put(Job(batch, done, room_bytes))
        if self._thread is None:
            with self._scheduling:
                scheduled, self._scheduled = self._scheduled, True
            if not scheduled:
                self._commits.submit(self._write_some)
        return done

    # -- on the writer's thread ------------------------------------------------------------------------------

    def _write_for_ever(self) -> None:
        while not self._closed:
            self._write(self._take(self._jobs.get()))

    def _write_some(self) -> None:
        """One group, then to the end of the queue for a shared thread: nobody waits for a busy neighbour."""
        self._write(self._take(self._jobs.get()))
        with self._scheduling:
            self._scheduled = not self._jobs.empty()
            again = self._scheduled
        if again:
            self._commits.submit(self._write_some)

    def _take(self, first: Job) -> list[Job]:
        """Batches, up to a job without one."""
        group = [first]
        try:
            while len(group) < GROUP_MAX and group[-1].batch is not None:
                group.append(self._jobs.get_nowait())
        except queue.Empty:
            pass
        return group

    def _write(self, group: list[Job]) -> None:
        batches = [job.batch for job in group if job.batch is not None]
        last = group[-1]
        errors: list[EblaError | None] = []
        try:
            errors = self._commit(batches) if batches else []
            self._release(sum(len(change.items) for b in batches for change in b if isinstance(change, Put)))
            if last.room_bytes is not None:
                errors.append(self._reserve(last.room_bytes))
            elif last.batch is None:
                self._shut()
        except BaseException as defect:
            broken = DiskFailed(f"the writer of {self.path} broke off: {defect!r}", path=self.path)
            failed = self._keeper.poison(broken)
            errors = [failed] * len(batches)
            raise
        finally:
            self._answer(group, [*errors, *[None] * (len(group) - len(errors))])

    def _answer(self, group: list[Job], outcomes: list[EblaError | None]) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, group, outcomes)
        except RuntimeError:
            assert self._loop.is_closed()  # nobody is left who waits

    def _commit(self, batches: Sequence[Batch]) -> list[EblaError | None]:
        try:
            self._keeper.check()
            errors = self._commit_growing(batches)
            self._keeper.check()  # poisoned from elsewhere meanwhile: what was written there may be gone
        except StorageError as error:
            return [type(error)(error.message, **error.values()) for _ in batches]
        failed = next((error for error in errors if isinstance(error, DiskFailed)), None)
        if failed is not None:
            meant = self._keeper.poison(failed)
            return [meant if isinstance(error, DiskFailed) else error for error in errors]
        return errors

    def _shut(self) -> None:
        super()._shut()
        self._roots.close()

    def _release(self, items: int) -> None:
        """Let go of memory after a commit of so many items, which read and changed about as many pages. On this
        thread, which alone maps and unmaps the file."""
        self._unreleased += items
        self._swollen |= items >= RENEW_ITEMS
        if self._swollen and not self._keeper.failed:
            self._swollen = not self._renew()
        if self._unreleased >= RELEASE_ITEMS:
            self._unreleased = 0
            pages.release(os.path.join(self.directory, DATA_FILE))

    def _renew(self) -> bool:
        """Whether LMDB has let go of what a large commit took. A disk that does not give the environment back is a
        failed one; what was committed before stays committed."""
        try:
            renewed = self.renew(partial(map_environment, Path(self.directory)))
        except (lmdb.Error, OSError) as error:
            self._keeper.poison(DiskFailed(f"cannot open {self.path} again: {error}", path=self.path))
            return False
        if renewed:
            pages.trim()
        return renewed

    def _commit_growing(self, batches: Sequence[Batch]) -> list[EblaError | None]:
        for _ in range(GROWTHS_MAX):
            try:
                return commit_group(self, self._roots, batches)
            except MapFull:
                self._grow(batches)
        raise StorageError(f"{self.path} cannot grow enough for a batch; divide it", path=self.path)

    def _grow(self, batches: Sequence[Batch]) -> None:
        now_bytes = self.lmdb.info()["map_size"]
        self._map(max(2 * now_bytes, now_bytes + 2 * batch_bytes(batches)))

    def _reserve(self, room_bytes: int) -> StorageError | None:
        try:
            self._keeper.check()
            wanted_bytes = self._used_bytes() + room_bytes
            if wanted_bytes > self.lmdb.info()["map_size"]:
                self._map(wanted_bytes)
        except StorageError as error:
            return type(error)(error.message, **error.values())
        return None

    def _map(self, wanted_bytes: int) -> None:
        try:
            self.exchange_map(-(-wanted_bytes // _MIB) * _MIB, self._keeper.growth_grace_s)
        except lmdb.Error as error:
            failed = DiskFailed(f"cannot map {wanted_bytes} bytes of {self.path}: {error}", path=self.path)
            raise self._keeper.poison(failed) from error


def _settle(group: list[Job], outcomes: list[EblaError | None]) -> None:
    """On the loop: tell everybody who still waits."""
    for job, error in zip(group, outcomes, strict=True):
        if not job.done.done():
            if error is None:
                job.done.set_result(None)
            else:
                job.done.set_exception(error)
