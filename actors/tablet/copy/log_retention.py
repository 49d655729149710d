"""The log entries that a source keeps for a replica that was copied from it, until the replica
follows the log.

A copy contains the log as it was when the copy began. Only the source's log holds the entries
written since. If the source dropped those entries at the end of the copy, a replica of a busy
tablet would be copied again and again. So the source keeps the log from the end of the sent
entries, and then behind the entries that the replica has acknowledged:

    until       the replica has caught up, is no member any more, or its copy failed
    for         `copy_idle_s` without progress; copying is progress
    as long as  the log does not exceed its limits (`log_retained_*`) `CATCHING_UP` times. While the copy is
                sent the factor is `SENDING`, which leaves room to catch up. After a copy that ended this way
                the next copy to the same server may keep twice as much, up to `GRANTED_MAX` times

If more than that is written during one copy, the copy is in vain: raise the bandwidth of copies, or
the limits of the log. A leader that is elected meanwhile keeps no entries for the copy: it copies
again if its log is too short.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ebla.actors import messages as m
from ebla.actors.replication.health import TABLET_COPYING
from ebla.actors.tablet.engine.log import TabletLog
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.options import TabletServerOptions
from ebla.storage.environment import Stream
from ebla.storage.logs.entries import Position

SENDING, CATCHING_UP = 2, 4
GRANTED_MAX = 4
CAUGHT_UP, OUTGROWN, GONE = "caught up", "outgrown", "gone"


@dataclass(eq=False)
class CopySource:
    """A copy session at its source. It sends `stream` to its end, then the log behind `index`."""

    id: str
    requestor: str
    replica: Replica
    stream: Stream | None
    flushed: Position
    last: Position
    used_at: float
    index: int
    number: int = 0
    ended: bool = False
    kept: dict[int, m.Chunk] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)  # the time when each of them may leave
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def anchor(self) -> int:
        """The log keeps everything behind this index."""
        return min(self.index, self.last.index)


@dataclass(eq=False)
class Retained:
    """The entries kept for a peer after its copy was sent."""

    session: str
    replica: Replica
    peer: str
    index: int
    moved_at: float

    @property
    def anchor(self) -> int:
        """The log keeps everything behind this index."""
        progress = self.replica.core.progress.get(self.peer)
        if progress is None or not progress.streams:
            return self.index
        return max(self.index, progress.match)

    def why_over(self, now: float, options: TabletServerOptions, granted: int) -> str | None:
        replica, progress = self.replica, self.replica.core.progress.get(self.peer)
        if replica.state != RUNNING or (replica.leads and progress is None):
            return GONE
        if progress is not None and progress.caught_up(replica.core.commit_index):
            return CAUGHT_UP
        if progress is not None and progress.refusal == TABLET_COPYING:
            self.moved_at = max(self.moved_at, progress.contact_at)
        assert self.anchor >= self.index, ("the retained entries only move on", self.anchor, self.index)
        if self.anchor > self.index:
            self.index, self.moved_at = self.anchor, now
        if outgrown(replica.log, options, CATCHING_UP * granted):
            return OUTGROWN
        return GONE if now - self.moved_at > options.copy_idle_s else None


class LogRetention:
    """The log entries that this server keeps for copies. `sources`: its open copy sessions, by id."""

    def __init__(self, options: TabletServerOptions) -> None:
        self.options = options
        self.sources: dict[str, CopySource] = {}
        self._retained: dict[tuple[str, str], Retained] = {}  # tablet, peer
        self._granted: dict[tuple[str, str], int] = {}  # of peers whose last copy was in vain

    def __len__(self) -> int:
        return len(self._retained)

    def anchor(self, tablet: str) -> int | None:
        """The index behind which this tablet's log keeps everything; None if no copy needs any of it."""
        if not self.sources and not self._retained:
            return None
        sent = [source.anchor for source in self.sources.values() if source.replica.tablet == tablet]
        kept = [retained.anchor for key, retained in self._retained.items() if key[0] == tablet]
        return min([*sent, *kept], default=None)

    def add(self, retained: Retained) -> None:
        """Retain entries, instead of those retained after a former copy to the same peer."""
        self._retained[retained.replica.tablet, retained.peer] = retained

    def release(self, session: str) -> None:
        self._retained = {key: each for key, each in self._retained.items() if each.session != session}

    def close_tablet(self, tablet: str) -> None:
        self._retained = {key: each for key, each in self._retained.items() if key[0] != tablet}
        self._granted = {key: times for key, times in self._granted.items() if key[0] != tablet}

    def granted(self, tablet: str, peer: str) -> int:
        return self._granted.get((tablet, peer), 1)

    def grant_more(self, tablet: str, peer: str) -> None:
        """Double the factor for the next copy to this peer, after a copy in vain."""
        granted = min(2 * self.granted(tablet, peer), GRANTED_MAX)
        assert granted > 1, ("a copy in vain is granted more", tablet, peer)
        self._granted[tablet, peer] = granted

    def end_over(self, now: float) -> None:
        for key, retained in list(self._retained.items()):
            why = retained.why_over(now, self.options, self.granted(*key))
            if why is not None:
                del self._retained[key]
            if why == OUTGROWN:
                self.grant_more(*key)
            elif why == CAUGHT_UP:
                self._granted.pop(key, None)


def outgrown(log: TabletLog, options: TabletServerOptions, times: int) -> bool:
    assert times > 0, ("a log may always be as long as its limits", times)
    return (
        log.last_index - log.dropped.index > times * options.log_retained_entries_max
        or log.size_bytes > times * options.log_retained_bytes_max
    )
