"""Log every write, sync and change of names that this process makes under one directory.

Python code uses `os` and `open`, which are wrapped; LMDB uses the slots of its extension module (slots.py). A file is identified
by its inode, so any path, descriptor or link to it is covered. Two kinds of writes are not seen: through a memory map (LMDB's lock
file, whose content is not needed after a power cut) and by other processes. Therefore the recorder compares, at the end, the
result of the log with the disk (chaos/powercut/recorder.py): a missed write is found.

Changes are logged under a lock, together with the real call, so the order of the log is the order of the disk. A sync is not under
the lock: it promises the state when it began, and only once it has returned.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import importlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from ebla.chaos.powercut.recording import calls
from ebla.chaos.powercut.recording.events import (
    DIRECTORY,
    FILE,
    LINK,
    Event,
    Made,
    Removed,
    Renamed,
    RoleEvent,
    Sync,
    Truncate,
    Write,
    WriteThrough,
)
from ebla.chaos.powercut.recording.slots import CannotRecord, Slots

NEEDED = ("open", "pwrite", "writev", "fdatasync")  # an LMDB that does not call these is not supported
_WRITE_THROUGH = os.O_DSYNC | os.O_SYNC

Identity = tuple[int, int]  # device and inode


class Watch:
    """From `begin` on, `events` grows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[Event] = []
        self.defect: BaseException | None = None  # an error that prevented logging: the recording is void
        self._lock = threading.RLock()
        self._nodes: dict[Identity, int] = {_identity(os.stat(root)): 0}
        self._made = 0
        self._real = {name: getattr(os, name) for name in _WRAPPED}
        self._real_open = builtins.open
        self._callbacks: list[Any] = []

    def begin(self) -> int:
        """Log the present state, as durable, and all changes from now on. Returns the number of the first new event."""
        self._take_over(self.root, 0)
        self.events += [Sync(node, len(self.events)) for node in range(self._made + 1)]
        for name in _WRAPPED:
            setattr(os, name, getattr(self, f"_{name}"))
        builtins.open = io.open = self._open_file
        self._watch_lmdb()
        return len(self.events)

    def end(self) -> None:
        """Restore Python's functions. LMDB's slots stay replaced, so the process should end soon."""
        for name, function in self._real.items():
            setattr(os, name, function)
        builtins.open = io.open = self._real_open

    def say(self, said: RoleEvent) -> None:
        self._log(said)

    def _log(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)

    # -- nodes

    def _take_over(self, directory: Path, node: int) -> None:
        for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
            if entry.is_symlink():
                made = self._make(node, entry.name, LINK, os.readlink(entry.path))
            elif entry.is_dir():
                made = self._make(node, entry.name, DIRECTORY)
                self._nodes[_identity(entry.stat())] = made
                self._take_over(Path(entry.path), made)
            else:
                made = self._make(node, entry.name, FILE)
                self._nodes[_identity(entry.stat())] = made
                self.events.append(Write(made, 0, Path(entry.path).read_bytes()))

    def _make(self, directory: int, name: str, kind: str, target: str = "") -> int:
        self._made += 1
        self.events.append(Made(directory, name, self._made, kind, target))
        return self._made

    def _of(self, fd: int) -> int | None:
        return self._nodes.get(_identity(os.fstat(fd)))

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[int | None, str]:
        """(the directory's node, the name in it); the node is None outside of the root. Called under the lock: another thread may
        have made the directory just now."""
        if isinstance(path, int):
            return None, ""
        head, name = os.path.split(os.fsdecode(path))
        try:
            found = os.stat(head or ".", dir_fd=dir_fd)
        except OSError:
            return None, name
        return self._nodes.get(_identity(found)), name

    @contextmanager
    def _doing(self, event: Event | None) -> Iterator[None]:
        """Log the event around the real call; drop it if the call fails."""
        with self._lock:
            logged = len(self.events)
            if event is not None:
                self.events.append(event)
            try:
                yield
            except BaseException:
                del self.events[logged:]
                raise

    # -- calls of Python code

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return self.opened(
            path, flags, dir_fd, lambda: int(self._real["open"](path, flags, mode, dir_fd=dir_fd))
        )

    def opened(self, path: Any, flags: int, dir_fd: int | None, call: Callable[[], int]) -> int:
        with self._lock:
            directory, name = self._place(path, dir_fd)
            if directory is None:
                return call()
            there = True
            if flags & os.O_CREAT:
                there = _exists(path, dir_fd)
            fd = call()
            if fd < 0:
                return fd
            if not there:
                self._nodes[_identity(os.fstat(fd))] = self._make(directory, name, FILE)
            elif flags & os.O_TRUNC and (node := self._of(fd)) is not None:
                self.events.append(Truncate(node, 0))
            return fd

    def _open_file(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+") or self._place(file)[0] is None:
            return self._real_open(file, mode, *arguments, **options)
        unusual = [value for value in (*arguments, *options.values()) if value not in (-1, None)]
        if mode != "wb" or unusual:
            raise CannotRecord(f"{file} is opened in a way that is not recorded: {mode} {unusual}")
        return io.BufferedWriter(_LoggedFile(self, file))

    def written(self, fd: int, offset: int, data: bytes, call: Callable[[], int]) -> int:
        """Let `call` write, and log as much of the data as it reports written."""
        node = self._of(fd)
        if node is None:
            return call()
        through = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & _WRITE_THROUGH)
        with self._doing(Write(node, offset, data)):
            number = len(self.events) - 1
            count = call()
            if count < len(data):
                self.events[number] = Write(node, offset, data[: max(count, 0)])
            if through and count > 0:
                self.events.append(WriteThrough(number))
            return count

    def _write(self, fd: int, data: Any) -> int:
        copy = bytes(data)
        if self._of(fd) is None:
            return int(self._real["write"](fd, data))
        offset = os.lseek(fd, 0, os.SEEK_CUR)
        return self.written(fd, offset, copy, lambda: int(self._real["write"](fd, data)))

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        return self.written(fd, offset, bytes(data), lambda: int(self._real["pwrite"](fd, data, offset)))

    def synced(self, fd: int, call: Callable[[], int | None]) -> int | None:
        node = self._of(fd)
        with self._lock:  # a write that is under way now is not covered
            covers = len(self.events)
        outcome = call()
        if node is not None and not outcome:
            self._log(Sync(node, covers))
        return outcome

    def _fsync(self, fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        self.synced(number, lambda: self._real["fsync"](number))

    def _fdatasync(self, fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        self.synced(number, lambda: self._real["fdatasync"](number))

    def truncated(self, fd: int, size: int, call: Callable[[], int | None]) -> int | None:
        node = self._of(fd)
        with self._doing(None if node is None else Truncate(node, size)):
            return call()

    def _ftruncate(self, fd: int, size: int) -> None:
        self.truncated(fd, size, lambda: self._real["ftruncate"](fd, size))

    def _truncate(self, path: Any, size: int) -> None:
        node = self._nodes.get(_identity(os.stat(path)))
        with self._doing(None if node is None else Truncate(node, size)):
            self._real["truncate"](path, size)

    def _rename(self, source: Any, target: Any, **where: Any) -> None:
        with self._lock:
            (old, name), (new, to) = self._place(source), self._place(target)
            event = Renamed(old, name, new, to) if old is not None and new is not None else None
            if where or (old is None) != (new is None):
                raise CannotRecord(f"{source} is renamed to {target}, out of or into the recorded directory")
            with self._doing(event):
                self._real["rename"](source, target)

    _replace = _rename

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._gone("unlink", path, dir_fd)

    _remove = _unlink

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._gone("rmdir", path, dir_fd)

    def _gone(self, verb: str, path: Any, dir_fd: int | None) -> None:
        with self._lock:
            directory, name = self._place(path, dir_fd)
            with self._doing(None if directory is None else Removed(directory, name)):
                self._real[verb](path, dir_fd=dir_fd)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self.made_directory(path, mode, dir_fd)

    def made_directory(self, path: Any, mode: int, dir_fd: int | None = None) -> None:
        with self._lock:
            directory, name = self._place(path, dir_fd)
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            if directory is not None:
                node = self._make(directory, name, DIRECTORY)
                self._nodes[_identity(os.stat(path, dir_fd=dir_fd))] = node

    def _symlink(self, target: Any, path: Any, *_: Any, dir_fd: int | None = None) -> None:
        with self._lock:
            directory, name = self._place(path, dir_fd)
            self._real["symlink"](target, path, dir_fd=dir_fd)
            if directory is not None:
                self._make(directory, name, LINK, os.fsdecode(target))

    # -- calls of LMDB

    def _watch_lmdb(self) -> None:
        try:
            slots = Slots(Path(importlib.import_module("lmdb.cpython").__file__ or ""))
        except ImportError as error:
            raise CannotRecord(f"lmdb {lmdb.__version__} is no C extension here: {error}") from error
        replaced = []
        for name, (prototype, make) in calls.CALLS.items():
            function = prototype(self._guarded(make(self)))
            self._callbacks.append(function)
            if slots.replace(name, function):
                replaced.append(name)
        if missing := sorted(set(NEEDED) - set(replaced)):
            raise CannotRecord(
                f"lmdb {lmdb.__version__} does not call {', '.join(missing)} here; its writes cannot be seen"
            )

    def _guarded(self, function: Callable[..., int]) -> Callable[..., int]:
        """Return an error if the function raises: ctypes would print the exception and return 0, a success."""

        def guarded(*arguments: Any) -> int:
            try:
                return function(*arguments)
            except BaseException as defect:
                self.defect = self.defect or defect
                ctypes.set_errno(errno.EIO)
                return -1

        return guarded


class _LoggedFile(io.FileIO):
    def __init__(self, watch: Watch, file: Any) -> None:
        super().__init__(file, "wb", opener=lambda path, flags: watch._open(path, flags, 0o666))
        self._watch = watch

    def write(self, data: Any) -> int:
        copy = bytes(data)
        return self._watch.written(
            self.fileno(), self.tell(), copy, lambda: super(_LoggedFile, self).write(copy)
        )


_WRAPPED = (
    *("open", "write", "pwrite", "fsync", "fdatasync", "ftruncate", "truncate"),
    *("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "symlink"),
)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _exists(path: Any, dir_fd: int | None) -> bool:
    try:
        os.lstat(path, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True
