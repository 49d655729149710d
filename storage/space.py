"""Free space on a file system, and two protections against running out of it.

allocated   a file that is written through a map gets all its blocks before it is mapped: writing a page without a block
            on a full file system ends the process (SIGBUS)
ballast     a file that is deleted when no other space is left, so that a role can start and vote until an operator
            makes room. It is made again when there is plenty
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

LOW_BYTES = 64 << 20  # no new work starts below it: the rest is for votes, flushes and deletions
BALLAST_BYTES = 4 << 20
BALLAST = "ballast"
PLENTY = 4  # times the ballast must be free before it is made again


class DiskSpace(msgspec.Struct, frozen=True):
    """The space of a file system.

    Attributes:
        path: A directory on it.
        free_bytes: The bytes that may still be written.
        total_bytes: Its size in bytes.
    """

    path: str
    free_bytes: int
    total_bytes: int


def space_of(path: Path) -> DiskSpace:
    """The space that this user may still write. Raises OSError."""
    found = os.statvfs(path)
    return DiskSpace(str(path), found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def extend(path: Path, size: int) -> None:
    """Make the file at least `size` bytes long, with zeros written at its end. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        end = os.fstat(file).st_size
        while end < size:
            end += os.pwrite(file, bytes(size - end), end)
    finally:
        os.close(file)


class Ballast:
    """The ballast of one directory; size 0 disables it."""

    def __init__(self, directory: Path, size: int) -> None:
        self._file = directory / BALLAST
        self._size = size

    def trim(self) -> None:
        """Delete the ballast when less than its size is free, make it when there is plenty. An OSError is ignored: the
        role then works without ballast."""
        if not self._size:
            return
        with contextlib.suppress(OSError):
            free_bytes = space_of(self._file.parent).free_bytes
            if free_bytes < self._size:
                self._file.unlink(missing_ok=True)
            elif free_bytes > PLENTY * self._size:
                with open(self._file, "ab") as file:
                    os.posix_fallocate(file.fileno(), 0, self._size)
