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
_c_ftruncate = _function("ftruncate64", _int, _int, _offset)
_c_mkdir = _function("mkdir", _int, ctypes.c_char_p, ctypes.c_uint)


def _joined(pieces: int, count: int) -> bytes:
    found = (_Piece * count).from_address(pieces)
    return b"".join(ctypes.string_at(piece.base, piece.length) for piece in found)


def _make_open(watch: Watcher) -> Function:
    return lambda path, flags, mode: watch.opened(path, flags, None, lambda: int(_c_open(path, flags, mode)))


def _make_write(name: str, copied: Callable[[int, int], bytes], *arguments: Any) -> Make:
    """`copied`: the bytes of the call's second and third argument. A call without an offset writes at the file's own."""
    call = _function(name, ctypes.c_ssize_t, _int, _pointer, *arguments)

    def make(watch: Watcher) -> Function:
        def write(fd: int, data: int, count: int, *offset: int) -> int:
            at = offset[0] if offset else os.lseek(fd, 0, os.SEEK_CUR)
            return watch.written(fd, at, copied(data, count), lambda: int(call(fd, data, count, *offset)))

        return write

    return make


def _make_sync(name: str) -> Make:
    call = _function(name, _int, _int)
    return lambda watch: lambda fd: int(watch.synced(fd, lambda: int(call(fd))) or 0)


def _make_ftruncate(watch: Watcher) -> Function:
    return lambda fd, size: int(watch.truncated(fd, size, lambda: int(_c_ftruncate(fd, size))) or 0)


def _make_mkdir(watch: Watcher) -> Function:
    def mkdir(path: bytes, mode: int) -> int:
        if os.path.lexists(path):
            return int(_c_mkdir(path, mode))  # sets errno
        watch.made_directory(path, mode)
        return 0

    return mkdir


def _type(result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments, use_errno=True)


_written = ctypes.c_ssize_t
_bytes: Callable[[int, int], bytes] = ctypes.string_at
CALLS: dict[str, tuple[Any, Make]] = {
    "open": (_type(_int, ctypes.c_char_p, _int, _int), _make_open),
    "write": (_type(_written, _int, _pointer, _size), _make_write("write", _bytes, _size)),
    "pwrite": (
        _type(_written, _int, _pointer, _size, _offset),
        _make_write("pwrite64", _bytes, _size, _offset),
    ),
    "writev": (_type(_written, _int, _pointer, _int), _make_write("writev", _joined, _int)),
    "pwritev": (
        _type(_written, _int, _pointer, _int, _offset),
        _make_write("pwritev64", _joined, _int, _offset),
    ),
    "ftruncate": (_type(_int, _int, _offset), _make_ftruncate),
    "fsync": (_type(_int, _int), _make_sync("fsync")),
    "fdatasync": (_type(_int, _int), _make_sync("fdatasync")),
    "mkdir": (_type(_int, ctypes.c_char_p, ctypes.c_uint), _make_mkdir),
}
CALLS |= {f"{name}64": CALLS[name] for name in ("open", "pwrite", "pwritev", "ftruncate")}
