"""The C functions that LMDB calls instead of the C library's: each does the same and notifies a Watch.

They run on LMDB's threads, without Python's lock, which ctypes takes for them. LMDB finds the C library's errno.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Protocol


class Watcher(Protocol):
    """The notifications of a Watch."""

    def opened(self, path: Any, flags: int, dir_fd: int | None, call: Callable[[], int]) -> int: ...
    def written(self, fd: int, offset: int, data: bytes, call: Callable[[], int]) -> int: ...
    def synced(self, fd: int, call: Callable[[], int | None]) -> int | None: ...
    def truncated(self, fd: int, size: int, call: Callable[[], int | None]) -> int | None: ...
    def made_directory(self, path: Any, mode: int, dir_fd: int | None = None) -> None: ...


Function = Callable[..., int]
Make = Callable[[Watcher], Function]

_libc = ctypes.CDLL(None, use_errno=True)
_int, _size, _offset, _pointer = ctypes.c_int, ctypes.c_size_t, ctypes.c_int64, ctypes.c_void_p


class _Piece(ctypes.Structure):
    _fields_ = [("base", _pointer), ("length", _size)]


def _function(name: str, result: Any, *arguments: Any) -> Any:
    found = getattr(_libc, name)
    found.restype, found.argtypes = result, list(arguments)
    return found


_c_open = _function("open", _int, ctypes.c_char_p, _int, _int)
_c_write = _function("write", ctypes.c_ssize_t, _int, _pointer, _size)
_c_pwrite = _function("pwrite64", ctypes.c_ssize_t, _int, _pointer, _size, _offset)
_c_writev = _function("writev", ctypes.c_ssize_t, _int, _pointer, _int)
_c_pwritev = _function("pwritev64", ctypes.c_ssize_t, _int, _pointer, _int, _offset)
_c_ftruncate = _function("ftruncate64", _int, _int, _offset)
_c_mkdir = _function("mkdir", _int, ctypes.c_char_p, ctypes.c_uint)
_c_sync = {name: _function(name, _int, _int) for name in ("fsync", "fdatasync")}


def _joined(pieces: int, count: int) -> bytes:
    found = (_Piece * count).from_address(pieces)
    return b"".join(ctypes.string_at(piece.base, piece.length) for piece in found)


def _at(fd: int) -> int:
    return os.lseek(fd, 0, os.SEEK_CUR)


def _make_open(watch: Watcher) -> Function:
    return lambda path, flags, mode: watch.opened(path, flags, None, lambda: int(_c_open(path, flags, mode)))


def _make_write(watch: Watcher) -> Function:
    def write(fd: int, data: int, count: int) -> int:
        return watch.written(
            fd, _at(fd), ctypes.string_at(data, count), lambda: int(_c_write(fd, data, count))
        )

    return write


def _make_pwrite(watch: Watcher) -> Function:
    def pwrite(fd: int, data: int, count: int, offset: int) -> int:
        copy = ctypes.string_at(data, count)
        return watch.written(fd, offset, copy, lambda: int(_c_pwrite(fd, data, count, offset)))

    return pwrite


def _make_writev(watch: Watcher) -> Function:
    def writev(fd: int, pieces: int, count: int) -> int:
        return watch.written(fd, _at(fd), _joined(pieces, count), lambda: int(_c_writev(fd, pieces, count)))

    return writev


def _make_pwritev(watch: Watcher) -> Function:
    def pwritev(fd: int, pieces: int, count: int, offset: int) -> int:
        copy = _joined(pieces, count)
        return watch.written(fd, offset, copy, lambda: int(_c_pwritev(fd, pieces, count, offset)))

    return pwritev


def _make_sync(name: str) -> Make:
    return lambda watch: lambda fd: int(watch.synced(fd, lambda: int(_c_sync[name](fd))) or 0)


def _make_ftruncate(watch: Watcher) -> Function:
    return lambda fd, size: int(watch.truncated(fd, size, lambda: int(_c_ftruncate(fd, size))) or 0)


def _make_mkdir(watch: Watcher) -> Function:
    def mkdir(path: bytes, mode: int) -> int:
        if os.path.lexists(path):
            return int(_c_mkdir(path, mode))  # sets errno
        watch.made_directory(path, mode)
        return 0

    return mkdir


_open_type = ctypes.CFUNCTYPE(_int, ctypes.c_char_p, _int, _int, use_errno=True)
_pwrite_type = ctypes.CFUNCTYPE(ctypes.c_ssize_t, _int, _pointer, _size, _offset, use_errno=True)
_pwritev_type = ctypes.CFUNCTYPE(ctypes.c_ssize_t, _int, _pointer, _int, _offset, use_errno=True)
_ftruncate_type = ctypes.CFUNCTYPE(_int, _int, _offset, use_errno=True)
_sync_type = ctypes.CFUNCTYPE(_int, _int, use_errno=True)
CALLS: dict[str, tuple[Any, Make]] = {
    "open": (_open_type, _make_open),
    "open64": (_open_type, _make_open),
    "write": (ctypes.CFUNCTYPE(ctypes.c_ssize_t, _int, _pointer, _size, use_errno=True), _make_write),
    "pwrite": (_pwrite_type, _make_pwrite),
    "pwrite64": (_pwrite_type, _make_pwrite),
    "writev": (
        ctypes.CFUNCTYPE(ctypes.c_ssize_t, _int, _pointer, _int, use_errno=True),
        _make_writev,
    ),
    "pwritev": (_pwritev_type, _make_pwritev),
    "pwritev64": (_pwritev_type, _make_pwritev),
    "ftruncate": (_ftruncate_type, _make_ftruncate),
    "ftruncate64": (_ftruncate_type, _make_ftruncate),
    "fsync": (_sync_type, _make_sync("fsync")),
    "fdatasync": (_sync_type, _make_sync("fdatasync")),
    "mkdir": (ctypes.CFUNCTYPE(_int, ctypes.c_char_p, ctypes.c_uint, use_errno=True), _make_mkdir),
}
