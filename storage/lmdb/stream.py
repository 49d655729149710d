"""The transfer of an environment to another disk: all of its items at one end, a new environment at the other.

One process walks, another builds, and both are forks of one origin (copier.py); servers only pass their bytes on. A walk of
all pages inside the owner would block an aborted commit and the growth of the map for its whole time, and a damaged tree
could break the owner's memory. To the owner the walking process is one more reader of its lock file. The new environment is
made beside its name, adopted (files.py) and renamed at the end.

Rows are verified where they arrive; other records are not checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

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
ANSWER_S = 10.0  # for a fork, and for the start before the first one


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
        self._copier: Copier | None = None
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
        self._copier = start(self.path, "send", self._directory, {})
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
        if self._over and not self._copier.wait():
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
            self._copier.close()
        self._forget(self)


class Copier:
    """The owner's side of a process that walks or builds. `stdin`: of one that builds; `stdout`: of one that walks."""

    def __init__(
        self, pid: int, stdin: BinaryIO | None, stdout: BinaryIO | None, stderr: BinaryIO, end: BinaryIO
    ) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = pid, stdin, stdout, stderr
        self.done: bool | None = None  # whether it did its work; None while it runs
        self._end = end

    def wait(self) -> bool:
        """Wait until the process has ended. Returns whether it did its work."""
        if self.done is None:
            self.done = self._end.read() == lmdb_copier.DONE
        return self.done

    def kill(self) -> None:
        if self.done is None:
            _origin.kill(self.pid)

    def close(self) -> None:
        """Close the pipes, and wait."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self.wait()
        self._end.close()


class Origin:
    """The process that copiers are forks of: it is started with the first one, and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of those that wait for an answer
        self._sending = threading.Lock()  # for a moment: also event loops kill
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self, work: bytes, files: Sequence[int]) -> int:
        """The number of a process that does the work. Raises OSError."""
        with self._lock:
            if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
                self._start()
            assert self._control is not None and self._process is not None
            try:
                self._send(work, files)
                answer = self._control.recv(lmdb_copier.LENGTH_BYTES, socket.MSG_WAITALL)
                if len(answer) < lmdb_copier.LENGTH_BYTES:
                    raise ConnectionError("the process that copiers are forks of has ended; try again")
            except OSError:
                self._process.kill()  # a late answer would be taken for that to the next request
                self._process = None
                raise
        pid = int.from_bytes(answer, "big")
        if not pid:
            raise OSError(errno.EAGAIN, "no process can be made; see the limits of this user, then try again")
        return pid

    def kill(self, pid: int) -> None:
        """Let the process be killed if it runs. If its origin has ended, it ends when its pipes do."""
        with contextlib.suppress(OSError):
            self._send(str(pid).encode(), [])

    def _start(self) -> None:
        former, (ours, theirs) = self._control, socket.socketpair()
        ours.settimeout(ANSWER_S)
        with self._sending:
            self._control = ours
        if former is not None:
            former.close()
        with theirs:
            packages = dict.fromkeys(
                str(Path(str(each.__file__)).parent.parent) for each in (lmdb, msgspec, crc32c)
            )
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", lmdb_copier.__file__, str(theirs.fileno()), *packages],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=pages.environment(),
            )
        self._owner = os.getpid()

    def _send(self, body: bytes, files: Sequence[int]) -> None:
        assert self._control is not None
        head = len(body).to_bytes(lmdb_copier.LENGTH_BYTES, "big")
        with self._sending:
            if files:
                socket.send_fds(self._control, [head], list(files))
            else:
                self._control.sendall(head)
            self._control.sendall(body)


_origin = Origin()


def start(path: str, verb: str, directory: str, sealed: Mapping[str, int]) -> Copier:
    """`path`: the environment's, for errors. Raises StorageError if there can be no process."""
    try:
        return _start(verb, directory, sealed)
    except OSError as error:
        raise StorageError(f"cannot start the copier of {path}: {error}", path=path) from error


def _start(verb: str, directory: str, sealed: Mapping[str, int]) -> Copier:
    work = lmdb_copier.Work(verb, directory, DATABASES_MAX, dict(sealed), [RESIDUE, MARKED])
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as failed:

        def pipe(*, ours_reads: bool) -> tuple[BinaryIO, int]:
            reads, writes = os.pipe()
            mine, other = (reads, writes) if ours_reads else (writes, reads)
            theirs.callback(os.close, other)
            return failed.enter_context(os.fdopen(mine, "rb" if ours_reads else "wb")), other

        nothing = os.open(os.devnull, os.O_RDWR)
        theirs.callback(os.close, nothing)
        data, other = pipe(ours_reads=verb == "send")
        errors, their_errors = pipe(ours_reads=True)
        end, their_end = pipe(ours_reads=True)
        standard = (nothing, other) if verb == "send" else (other, nothing)
        pid = _origin.fork(msgspec.json.encode(work), [*standard, their_errors, their_end])
        failed.pop_all()
    stdin, stdout = (None, data) if verb == "send" else (data, None)
    return Copier(pid, stdin, stdout, errors, end)


def last_error(copier: Copier) -> tuple[int, str]:
    """The error number and text that an ended copier printed last."""
    lines = copier.stderr.read().decode(errors="replace").strip().splitlines()
    code, _, text = (lines[-1] if lines else "").partition(" ")
    if code.isdecimal():
        return int(code), text[:TEXT_MAX]
    text = f"its copier was killed, or crashed {' '.join(lines)[-TEXT_MAX:]}"
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
        self._copier: Copier | None = None
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
        self._copier = start(self.path, "receive", str(self._beside), self._sealed)
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
        if not self._copier.wait():
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
            self._copier.close()
        if self._beside is not None and os.path.lexists(self._beside):
            with self._files.disks.touching(self._beside):
                remove_tree(self._beside)
