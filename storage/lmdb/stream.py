"""The transfer of an environment to another disk: all of its items at one end, a new environment at the other.

One process walks, another builds (copier.py); servers only pass their bytes on. A walk of all pages inside the owner
would block an aborted commit and the growth of the map for its whole time, and a damaged tree could break the owner's
memory. To the owner the walking process is one more reader of its lock file. The new environment is made beside its
name, adopted (files.py) and renamed at the end.

Rows are verified where they arrive; other records are not checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import crc32c
import lmdb
import msgspec

from ebla.storage.directories.instance import remove_tree
from ebla.storage.errors import Damaged, SnapshotExpired, StorageError
from ebla.storage.lmdb import copier as lmdb_copier
from ebla.storage.lmdb import pages
from ebla.storage.lmdb.commit import for_want_of_space
from ebla.storage.lmdb.files import DATABASES_MAX, EnvironmentFiles, create_error
from ebla.storage.rows.checksum import MARKED, RESIDUE

T = TypeVar("T")

PIPE_BYTES = 1 << 20
TEXT_MAX = 300  # characters of a copier's error


class LmdbStream:
    """One walk. `check` raises once the environment is closed; `forget` is called when the copier has ended."""

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
        self._over = False
        self._thread = ThreadPoolExecutor(1, f"ebla-stream-{path}")

    async def begin(self) -> None:
        """Start the walk. Its snapshot exists when this returns."""
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
        try:
            self._copier = start("send", self._directory, {}, subprocess.DEVNULL, subprocess.PIPE)
        except OSError as error:
            raise StorageError(f"cannot start the copier of {self.path}: {error}", path=self.path) from error
        assert self._copier.stdout is not None
        _widen(self._copier.stdout)
        size = self._copier.stdout.read(lmdb_copier.SIZE_BYTES)
        self._require_open()
        if len(size) < lmdb_copier.SIZE_BYTES:
            raise self._broken()
        self.size_bytes = int.from_bytes(size, "big")

    def _read(self, size: int) -> bytes:
        assert self._copier is not None and self._copier.stdout is not None
        if self._over:
            return b""
        data = self._copier.stdout.read(size)
        self._require_open()
        self._over = len(data) < size
        if self._over and self._copier.wait():
            raise self._broken()
        return data

    def _broken(self) -> StorageError:
        """The error of a copier that was killed, or met damage, which may have ended it."""
        assert self._copier is not None
        self._copier.kill()
        return StorageError(f"{self.path} cannot be copied: {last_error(self._copier)[1]}", path=self.path)

    def _end(self) -> None:
        if self._copier is not None:
            self._copier.kill()
            with self._copier:  # waits, and closes the pipes
                pass
        self._forget(self)


def start(
    verb: str, directory: str, sealed: Mapping[str, int], stdin: int, stdout: int
) -> subprocess.Popen[bytes]:
    work = lmdb_copier.Work(verb, directory, DATABASES_MAX, dict(sealed), [RESIDUE, MARKED])
    packages = dict.fromkeys(str(Path(str(each.__file__)).parent.parent) for each in (lmdb, msgspec, crc32c))
    program = [sys.executable, "-I", "-S", lmdb_copier.__file__]
    return subprocess.Popen(
        [*program, msgspec.json.encode(work), *packages],
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=pages.environment(),
    )


def last_error(copier: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The error number and text that an ended copier printed last."""
    assert copier.stderr is not None
    lines = copier.stderr.read().decode(errors="replace").strip().splitlines()
    code, _, text = (lines[-1] if lines else "").partition(" ")
    if code.isdecimal():
        return int(code), text[:TEXT_MAX]
    text = f"its copier ended with status {copier.wait()} {' '.join(lines)[-TEXT_MAX:]}"
    return lmdb_copier.DAMAGE, text.strip()


def _widen(pipe: Any) -> None:
    with contextlib.suppress(OSError):  # the system limits the larger pipes of one user
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


class Owner(Protocol):
    """The disk, as a receiver needs it."""

    def check(self) -> None: ...

    async def beside(self, work: Callable[..., T], *arguments: Any, thread: Executor | None = None) -> T: ...

    def forget_receiver(self, receiver: LmdbReceiver) -> None: ...


class LmdbReceiver:
    def __init__(self, path: str, sealed: Mapping[str, int], files: EnvironmentFiles, owner: Owner) -> None:
        self.path = path
        self._sealed = sealed
        self._files = files
        self._owner = owner
        self._beside: Path | None = None
        self._copier: subprocess.Popen[bytes] | None = None
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
        """Remove the written data. If the disk refuses, the next start removes it."""
        if not self._over:
            self._over = True
            if self._copier is not None:
                self._copier.kill()
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
            self._copier = start(
                "receive", str(self._beside), self._sealed, subprocess.PIPE, subprocess.DEVNULL
            )
        _widen(self._copier.stdin)

    def _write(self, data: bytes) -> None:
        assert self._copier is not None and self._copier.stdin is not None
        try:
            self._copier.stdin.write(data)
        except BrokenPipeError:
            raise self._failed() from None

    def _finish(self, databases: tuple[str, ...]) -> None:
        assert self._beside is not None and self._copier is not None and self._copier.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its status says so
            self._copier.stdin.close()
        if self._copier.wait():
            raise self._failed()
        try:
            self._files.adopt(self.path, self._beside, databases)
            self._files.finish(self.path, self._beside)
        except lmdb.Error as error:
            raise create_error(self.path, self._beside, error) from error

    def _failed(self) -> StorageError:
        """The error of damaged data. Errors of the disk are raised."""
        assert self._beside is not None and self._copier is not None
        code, text = last_error(self._copier)
        if code != lmdb_copier.DAMAGE:
            full = for_want_of_space(code, self._beside)
            with self._files.disks.touching(self._beside):
                raise OSError(errno.ENOSPC if full else code, text)
        return Damaged(f"environment {self.path} arrived unreadable: {text}", path=self.path)

    def _clear(self) -> None:
        if self._copier is not None:
            with contextlib.suppress(BrokenPipeError), self._copier:  # waits, and closes the pipes
                pass
        if self._beside is not None and os.path.lexists(self._beside):
            with self._files.disks.touching(self._beside):
                remove_tree(self._beside)
