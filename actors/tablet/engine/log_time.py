"""The time of a tablet's log, by which stored answers expire. Every entry carries it, so all
replicas expire alike.

    moved by         the monotonic clock of the leader, from entry to entry of its own term; no wall clock
    never goes back  an entry's time is counted from the entry before it, even if another leader wrote that
    too slow, safely time between two leaders does not count, and between two entries at most STEP_US_MAX:
                     with one entry, a clock that jumps, or a process that was paused, expires no answer

The time of the last entry is part of its Position (storage/logs/entries.py), so it outlives the
log: it is flushed and copied with the rows.
"""

from __future__ import annotations

from collections.abc import Callable

from ebla.storage.logs.entries import Position

# The retention is an hour (actors/tablet/options.py), and a client gives up after a minute. A
# tablet with fewer entries keeps few answers.
STEP_US_MAX = 60_000_000


class LogTime:
    """The log time of one replica, while it leads."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._term = -1
        self._counted_to = 0.0

    def next_us(self, term: int, previous: Position) -> int:
        """The time of the entry that this leader of `term` writes after `previous`."""
        now = self._monotonic()
        if term != self._term:
            self._term, self._counted_to = term, now  # the time before this leadership does not count
        passed_us = int((now - self._counted_to) * 1e6)
        step_us = min(passed_us, STEP_US_MAX)
        # A rounded-off rest counts with the next entry; time above the bound never counts.
        self._counted_to = now if step_us < passed_us else self._counted_to + step_us / 1e6
        assert step_us >= 0, ("log time never goes back", term, previous, now)
        return previous.time_us + step_us
