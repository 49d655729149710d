"""A writable LMDB environment: group commit by one writer, a map that grows, and no trust in a failed disk.

A caller of `commit` waits on the event loop. A writer thread commits all queued batches in one transaction with one
sync, in the order of the calls, and answers the group in one call to the loop. A batch is committed even if its caller
is cancelled while it waits.

The map doubles when a group does not fit. No transaction of this process may be open then: snapshots get
`growth_grace_s` to be closed and then expire.

Memory: LMDB keeps a page in memory for every page that its largest commit changed, and mapped pages count as memory. So
the environment is unmapped after a large commit, as soon as no snapshot is open, and mapped pages are released from time
to time. The owner also unmaps an environment that it does not use: three descriptors and 60 kB of memory for each.
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
from typing import Any, NamedTuple, TypeVar

import lmdb

from ebla.storage.environment import Batch, Put
from ebla.storage.errors import DiskFailed, EblaError, StorageError
from ebla.storage.lmdb import pages
from ebla.storage.lmdb.commit import MapFull, batch_bytes, commit_group
from ebla.storage.lmdb.data_dirs import Keeper
from ebla.storage.lmdb.files import DATA_FILE, map_environment
from ebla.storage.lmdb.mapping import LmdbMapping
from ebla.storage.lmdb.reads import Database
from ebla.storage.lmdb.roots import Roots
from ebla.storage.lmdb.stream import LmdbStream

T = TypeVar("T")

GROUP_MAX = 4096  # batches in one transaction
GROWTHS_MAX = 40  # doublings: from a page to more than any disk
RELEASE_ITEMS = 16_384  # written between two releases of mapped pages; each may have changed its own page
RENEW_ITEMS = 4096  # a commit of more items makes the environment be opened again
_MIB = 1 << 20


class Job(NamedTuple):
    """A batch and the future of its caller; or, without a batch, an act for the writer's thread."""

    batch: Batch | None
    done: asyncio.Future[None]
    act: Callable[[], StorageError | None] | None = None


class LmdbEnvironment(LmdbMapping):
    """See the module. With `own_thread` the environment has its own writer, else it shares `commits`."""

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
        super().__init__(path, environment, databases, map_environment)
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
        self.used = True
        await self._submit(batch)

    async def stream(self) -> LmdbStream:
        self._check_open()
        stream = LmdbStream(self.path, self.directory, self._check_open, self._streamed)
        self._streams[stream] = None
        await stream.begin()
        return stream

    async def reserve(self, bytes_wanted: int) -> None:
        self._check_open()
        await self._submit(None, partial(self._reserve, 2 * bytes_wanted))  # pages are rarely full

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        self.check()
        return await self._loop.run_in_executor(self._work, work, *arguments)

    def unmap(self) -> None:
        if self.mapped and not self._closing:
            self._submit(None, self._put_away)

    async def close(self) -> None:
        if not self._closing:
            self._closing = True
            for stream in list(self._streams):
                stream.close()
            await self._submit(None, self._shut)
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
        """On the stream's thread, after its copier ended. A killed copier leaves its snapshot in the lock file."""
        self._streams.pop(stream, None)
        with contextlib.suppress(StorageError):
            self._inside(lambda: self.lmdb.reader_check())

    def _submit(
        self, batch: Batch | None, act: Callable[[], StorageError | None] | None = None
    ) -> asyncio.Future[None]:
        done = self._loop.create_future()
        self._jobs.put(Job(batch, done, act))
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
        """Write one group, then queue again for a shared thread, so that a busy environment does not delay others."""
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
            if last.act is not None:
                errors.append(last.act())
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
            assert self._loop.is_closed()  # no caller is left

    def _commit(self, batches: Sequence[Batch]) -> list[EblaError | None]:
        try:
            self._keeper.check()
            errors = self._commit_growing(batches)
            self._keeper.check()  # another environment may have poisoned the disk: this commit may be lost
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
        """Release memory, and the snapshots of dead readers, after a commit of `items`, which used about as many pages. Only this
        thread unmaps the file."""
        self._unreleased += items
        with contextlib.suppress(lmdb.Error):
            if self.mapped:
                self.lmdb.reader_check()  # a killed process with a local scan leaves its snapshot, whose pages nobody could use again
        self._swollen |= items >= RENEW_ITEMS
        if self._swollen and self._unmap():
            self._swollen = False
            pages.trim()
        if self._unreleased >= RELEASE_ITEMS:
            self._unreleased = 0
            pages.release(os.path.join(self.directory, DATA_FILE))

    def _put_away(self) -> None:
        """Close the files until the next use. A copy of the file continues, in its own process."""
        if self._unmap():
            self._roots.close()
            pages.unmapped.add()

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
            wanted_bytes = self.size_bytes() + room_bytes
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
    """On the loop: answer the callers that still wait."""
    for job, error in zip(group, outcomes, strict=True):
        if not job.done.done():
            if error is None:
                job.done.set_result(None)
            else:
                job.done.set_exception(error)
