"""Space on a file system: how much is left, and what must not depend on it.

allocated   a file that is written through a map has all of its blocks before it is mapped: a page that has none when the
            file system is full ends the process (SIGBUS)
ballast     a file that is deleted when there is no other space, so that a role can start and vote until somebody has
            made room. It is made again when there is plenty
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

LOW_BYTES = 64 << 20  # less than this is kept for votes, flushes and deletions: nothing new is begun
BALLAST_BYTES = 4 << 20
BALLAST = "ballast"
PLENTY = 4  # times the ballast must be free before it is made again


class DiskSpace(msgspec.Struct, frozen=True):
    """Of the file system that `path` is on."""

    path: str
    free_bytes: int
    total_bytes: int


def space_of(path: Path) -> DiskSpace:
    """What this user may still write there. Raises OSError."""
    found = os.statvfs(path)
    return DiskSpace(str(path), found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def extend(path: Path, size: int) -> None:
    """Have a file of at least `size` bytes, with zeros written where it ended before. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = os.fstat(file).st_size
        while end < size:
            end += os.pwrite(file, bytes(size - end), end)
    finally:
        os.close(file)


class Ballast:
    """Of one directory; 0 bytes: there is none."""

    def __init__(self, directory: Path, size: int) -> None:
        self._file = directory / BALLAST
        self._size = size

    def trim(self) -> None:
        """Drop it where there is no more space than it has, make it where there is plenty. A file system that lets neither
        be done goes on without."""
        if not self._size:
            return
        with contextlib.suppress(OSError):
            free_bytes = space_of(self._file.parent).free_bytes
            if free_bytes < self._size:
                self._file.unlink(missing_ok=True)
            elif free_bytes > PLENTY * self._size:
                with open(self._file, "ab") as file:
                    os.posix_fallocate(file.fileno(), 0, self._size)
