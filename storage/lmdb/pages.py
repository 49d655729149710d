"""Letting go of pages of a data file that this process has mapped, and how it allocates memory of its own.

What a process has read through a map counts as its memory until the kernel is short of it, and whoever looks at
processes by size (a dashboard, an out-of-memory killer) takes a server of much data for one that needs much memory.
The data stays in the kernel's cache; a page that is read again is found there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

MAPS = Path("/proc/self/maps")
DONT_NEED = 4  # of madvise(2); for a shared, read-only map of a file it changes nothing but the accounting

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# Of glibc's mallopt(3). LMDB asks for 2 MiB of zeros for every environment that it opens; what is read, sent and written in
# one piece is smaller.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 2_000_000
KEPT_BYTES = 16_000_000


def release(file: str) -> int:
    """Let go of every mapped page of `file` (an absolute path). Returns the bytes of address space covered; 0 where
    the system does not tell its maps. The caller keeps the file mapped meanwhile."""
    released = 0
    for start, stop in _ranges(file):
        if _libc.madvise(start, stop - start, DONT_NEED) == 0:
            released += stop - start
    return released


def trim() -> None:
    """Give freed memory back to the system, where the C library knows how (glibc's malloc_trim)."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def keep_small_allocations() -> None:
    """From now on this process allocates what is smaller than LARGE_BYTES from memory that it has, of which it keeps KEPT_BYTES
    when it is free, and gets every larger piece from the system, which makes the zeros of a page when that is touched.

    By itself glibc moves the limit to what was freed last. Above it, a piece of 1 MB costs 250 page faults, twenty times its
    copying; below it glibc writes the zeros, and every open environment holds 2 MiB of them.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        _libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def environment() -> dict[str, str]:
    """Of a process that is to be started, for the same from its beginning."""
    limits = {"MALLOC_MMAP_THRESHOLD_": LARGE_BYTES, "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES}
    return {**os.environ, **{name: str(value) for name, value in limits.items()}}


def _ranges(file: str) -> Iterator[tuple[int, int]]:
    """Where the file is mapped readable and shared, but not writable."""
    try:
        lines = MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1] == "r--s" and fields[5] == file:
            start, _, stop = fields[0].partition("-")
            yield int(start, 16), int(stop, 16)
