"""Repeating a request: which refusals may pass, how long to wait, and an equal error for another caller."""

from __future__ import annotations

from ebla.actors.errors import TimedOut, WrongServer
from ebla.actors.world import Random
from ebla.storage.errors import DiskFull, EblaError, StorageError, add_note

BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 0.2


def retriable(error: EblaError) -> bool:
    """Whether the same request may succeed while its caller waits. A full disk needs an operator."""
    if isinstance(error, DiskFull):
        return False
    return error.retriable or isinstance(error, (WrongServer, TimedOut, StorageError))


def backoff_s(failures: int, random: Random) -> float:
    """Doubling from BACKOFF_FIRST_S to BACKOFF_MAX_S, with jitter so that callers do not move in step."""
    grown = BACKOFF_FIRST_S * (1 << min(failures - 1, 16))
    return min(grown, BACKOFF_MAX_S) * random.uniform(0.5, 1.5)


def same(error: EblaError) -> EblaError:
    """An equal error for another caller: a raised error has the traceback of its own caller."""
    equal = type(error)(error.message, **error.values())
    equal.possibly_applied = error.possibly_applied
    for note in getattr(error, "__notes__", ()):
        add_note(equal, note)
    return equal
