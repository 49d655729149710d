"""Release of mapped pages of a data file, and limits of the allocator.

Pages read through a map count as memory of the process until the kernel is short of it. A dashboard or an out-of-memory
killer then takes a server with much data for one that needs much memory. Released pages stay in the kernel's cache.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAPS = Path("/proc/self/maps")
DONT_NEED = 4  # of madvise(2); for a shared, read-only map of a file it changes nothing but the accounting

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt(3)
LARGE_BYTES = 2_000_000
KEPT_BYTES = 16_000_000
LISTS_BYTES = 1 << 20  # of the smaller of the two lists of pages that LMDB makes when it opens an environment
UNTRIMMED_MAX = 8  # environments; each leaves small pieces all over the heap


def release(file: str) -> int:
    """Release every mapped page of `file` (an absolute path). Return the bytes of address space covered; 0 if the system
    does not list its maps. The caller keeps the file mapped meanwhile."""
    released = 0
    for start, stop in _ranges(file):
        if _libc.madvise(start, stop - start, DONT_NEED) == 0:
            released += stop - start
    return released


def trim() -> None:
    """Return freed memory to the system, if the C library can (glibc's malloc_trim)."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


class Unmapped:
    """Counts environments whose memory went back to the C library, and returns that of some to the system at once. A trim
    walks over all free memory."""

    def __init__(self) -> None:
        self._waiting = 0

    def add(self) -> None:
        self._waiting += 1
        if self._waiting >= UNTRIMMED_MAX:
            self._waiting = 0
            trim()


unmapped = Unmapped()  # the allocator is the process's


def keep_small_allocations() -> None:
    """Allocate pieces smaller than LARGE_BYTES from the heap, which keeps KEPT_BYTES when free, and larger ones from the
    system, which zeroes a page when it is first touched.

    Otherwise glibc moves the limit to the size freed last. Above the limit, a piece of 1 MB costs 250 page faults, twenty
    times its copying; below it glibc writes the zeros, and every open environment has 2 MiB of them.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        _libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


@contextmanager
def lists_from_the_system() -> Iterator[None]:
    """While LMDB opens an environment, allocate its lists of pages from the system. It hardly uses them, so they take no memory; in
    the heap, where freed pieces were, they take 0.7 MB. If two threads open environments at once, the first that is done ends this for
    both, which costs memory and nothing else."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(M_MMAP_THRESHOLD, LISTS_BYTES)
    try:
        yield
    finally:
        if hasattr(_libc, "mallopt"):
            _libc.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def environment() -> dict[str, str]:
    """The environment variables that give a new process the same limits from its start."""
    limits = {"MALLOC_MMAP_THRESHOLD_": LARGE_BYTES, "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES}
    return {**os.environ, **{name: str(value) for name, value in limits.items()}}


def _ranges(file: str) -> Iterator[tuple[int, int]]:
    """The address ranges at which the file is mapped readable and shared, but not writable."""
    try:
        lines = MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1] == "r--s" and fields[5] == file:
            start, _, stop = fields[0].partition("-")
            yield int(start, 16), int(stop, 16)
