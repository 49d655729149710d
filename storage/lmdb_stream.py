"""An environment on its way to another disk: LMDB's compacting copy at one end, a new environment at the other.

read      by a process of its own (lmdb_copier.py), through a pipe. Inside the owner the copy would be one call into LMDB that
          lasts for as long as somebody reads: a commit that is taken back waits until no such call is under way, the map
          could not grow, and a damaged tree, which the copy follows without a look, would take the owner's memory with it.
          To the owner this process is one more reader of its lock file
written   beside the name, synced now and then so that no other sync waits for all of it; adopted (lmdb_files.py) and renamed
          at the end

Neither end looks at records, so what is damaged arrives as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import lmdb

from ebla.storage import lmdb_copier
from ebla.storage.errors import SnapshotExpired, StorageError
from ebla.storage.instance import remove_tree
from ebla.storage.lmdb_files import DATA_FILE, DATABASES_MAX, EnvironmentFiles, create_error
from ebla.storage.roots import SEALED_BYTES, TREE, TREES_AT, last_page

T = TypeVar("T")

PIPE_BYTES = 1 << 20
SYNC_BYTES = 8 << 20  # written between two syncs: what others, who sync a record, may have to wait for
TOLD_MAX = 300  # characters of what the copying process said


class LmdbStream:
    """One compacting copy. `check` raises once the environment is closed; `forget` is told that the copier has ended."""

    def __init__(
        self, path: str, directory: str, check: Callable[[], None], forget: Callable[[LmdbStream], None]
    ) -> None:
        self.path = path
        self.size_bytes = 0
        self._directory = directory
        self._check = check
        self._forget = forget
        self._closed = False
        self._copier: subprocess.Popen[bytes] | None = None
        self._first = b""  # what came with the roots
        self._left = 0
        self._thread = ThreadPoolExecutor(1, f"ebla-stream-{path}")

    async def begin(self) -> None:
        """Its snapshot is taken when this returns."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._begin)
        except BaseException:
            self.close()
            raise

    async def read(self, size: int) -> bytes:
        self._require_open()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._read, size)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._copier is not None:
                self._copier.kill()
            self._thread.submit(self._end)
            self._thread.shutdown(wait=False)

    def _require_open(self) -> None:
        self._check()
        if self._closed:
            raise SnapshotExpired(f"this stream of {self.path} was closed; begin a new one", path=self.path)

    # -- on its thread

    def _begin(self) -> None:
        packages = str(Path(lmdb.__file__).parent.parent)
        program = [sys.executable, "-I", "-S", lmdb_copier.__file__]
        try:
            self._copier = subprocess.Popen(
                [*program, packages, self._directory, str(DATABASES_MAX)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise StorageError(f"cannot start the copier of {self.path}: {error}", path=self.path) from error
        assert self._copier.stdout is not None
        with contextlib.suppress(OSError):  # what one user may have of larger pipes is limited
            fcntl.fcntl(self._copier.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._copier.stdout.read(lmdb_copier.NUMBER_BYTES)
        first = self._copier.stdout.read(SEALED_BYTES)
        if len(first) == SEALED_BYTES:
            page_bytes: int = TREE.unpack_from(first, TREES_AT)[0]
            first += self._copier.stdout.read(page_bytes)
            if len(first) == SEALED_BYTES + page_bytes:
                self.size_bytes = self._left = (last_page(first[page_bytes:]) + 1) * page_bytes
        self._require_open()
        if not self.size_bytes:
            raise self._broken()
        self._first = first

    def _read(self, size: int) -> bytes:
        assert self._copier is not None and self._copier.stdout is not None
        wanted = min(size, self._left)
        first, self._first = self._first[:wanted], self._first[wanted:]
        data = self._copier.stdout.read(wanted - len(first))
        data = first + data if first else data
        self._require_open()
        self._left -= len(data)
        if len(data) < wanted or (not self._left and self._copier.stdout.read(1)):
            raise self._broken()
        return data

    def _broken(self) -> StorageError:
        """Somebody has ended the copier, or it has met damage, which may have been the end of it."""
        assert self._copier is not None and self._copier.stderr is not None
        self._copier.kill()
        lines = self._copier.stderr.read().decode(errors="replace").strip().splitlines()
        told = lines[-1][:TOLD_MAX] if lines else "its pages do not lead to all of it"
        return StorageError(f"{self.path} cannot be copied: {told}", path=self.path)

    def _end(self) -> None:
        if self._copier is not None:
            self._copier.kill()
            with self._copier:  # waits, and closes the pipes
                pass
        self._forget(self)


class Owner(Protocol):
    """What a receiver needs of its disk."""

    def check(self) -> None: ...

    async def beside(self, work: Callable[..., T], *arguments: Any, thread: Executor | None = None) -> T: ...

    def forget_receiver(self, receiver: LmdbReceiver) -> None: ...


class LmdbReceiver:
    def __init__(self, path: str, files: EnvironmentFiles, owner: Owner) -> None:
        self.path = path
        self._files = files
        self._owner = owner
        self._beside: Path | None = None
        self._file: int | None = None
        self._unsynced = 0
        self._over = False
        self._thread = ThreadPoolExecutor(1, f"ebla-receive-{path}")

    async def begin(self) -> None:
        try:
            await self._do(self._begin)
        except BaseException:
            await self.abort()
            raise

    async def write(self, data: bytes) -> None:
        self._require_open()
        await self._do(self._write, data)

    async def finish(self, databases: Sequence[str]) -> None:
        self._require_open()
        try:
            await self._do(self._finish, tuple(databases))
        finally:
            await self.abort()

    async def abort(self) -> None:
        """A disk that does not even let go of what was written is cleared at the next start."""
        if not self._over:
            self._over = True
            try:
                with contextlib.suppress(StorageError):
                    await self._do(self._clear)
            finally:
                self._thread.shutdown(wait=False)
                self._owner.forget_receiver(self)

    async def _do(self, work: Callable[..., None], *arguments: Any) -> None:
        await self._owner.beside(work, *arguments, thread=self._thread)

    def _require_open(self) -> None:
        self._owner.check()
        if self._over:
            raise StorageError(f"the receiver of {self.path} is closed", path=self.path)

    # -- on its thread

    def _begin(self) -> None:
        self._beside = self._files.begin(self.path)
        with self._files.disks.touching(self._beside):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.open(self._beside / DATA_FILE, flags, 0o644)

    def _write(self, data: bytes) -> None:
        assert self._beside is not None and self._file is not None
        with self._files.disks.touching(self._beside):
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            self._unsynced += len(data)
            if self._unsynced >= SYNC_BYTES:
                self._unsynced = 0
                os.fdatasync(self._file)

    def _finish(self, databases: tuple[str, ...]) -> None:
        assert self._beside is not None and self._file is not None
        try:
            with self._files.disks.touching(self._beside):
                os.fsync(self._file)
            self._files.adopt(self.path, self._beside, databases)
            self._files.finish(self.path, self._beside)
        except lmdb.Error as error:
            raise create_error(self.path, error) from error

    def _clear(self) -> None:
        """Of what has its name by now, nothing is left beside it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._beside is not None and os.path.lexists(self._beside):
            with self._files.disks.touching(self._beside):
                remove_tree(self._beside)
