"""What a log keeps for replicas that were copied from here, until they follow it.

A copy brings the log as it was when the copy began. What was written since is in the source's log alone, as far as the new replica
is concerned: if that let go of it when the copy ended, a replica of a busy tablet would be copied again and again. So the log is held
from the end of what was sent, and then behind what the replica has acknowledged,

    until       it has caught up with the commits; or it is no member any more, or its copy failed
    for         `copy_idle_s` without progress; copying is progress
    as long as  the log does not outgrow its limits (`log_retained_*`) `CATCHING_UP` times; while the copy is being sent it is
                `SENDING` times, which leaves room to catch up. After a copy that ended so the next to the same server may hold
                twice as much, up to `GRANTED_MAX` times

Who writes more than that during one copy copies in vain: copies need more bandwidth there, or the log larger limits. A leader that
is elected meanwhile holds nothing: it copies anew if its log is too short.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebla.actors.replication.health import TABLET_COPYING
from ebla.actors.tablet.engine.log import TabletLog
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.options import TabletServerOptions

SENDING, CATCHING_UP = 2, 4
GRANTED_MAX = 4
CAUGHT_UP, OUTGROWN, GONE = "caught up", "outgrown", "gone"


@dataclass(eq=False)
class Hold:
    session: str
    replica: Replica
    peer: str
    index: int
    moved_at: float

    @property
    def anchor(self) -> int:
        """The log keeps everything behind it."""
        progress = self.replica.core.progress.get(self.peer)
        if progress is None or not progress.streams:
            return self.index
        return max(self.index, progress.match)

    def over(self, now: float, options: TabletServerOptions, granted: int) -> str | None:
        """Why it ends, if it does."""
        replica, progress = self.replica, self.replica.core.progress.get(self.peer)
        if replica.state != RUNNING or (replica.leads and progress is None):
            return GONE
        if progress is not None and progress.caught_up(replica.core.commit_index):
            return CAUGHT_UP
        if progress is not None and progress.refusal == TABLET_COPYING:
            self.moved_at = max(self.moved_at, progress.contact_at)
        assert self.anchor >= self.index, ("what a log keeps only moves on", self.anchor, self.index)
        if self.anchor > self.index:
            self.index, self.moved_at = self.anchor, now
        if outgrown(replica.log, options, CATCHING_UP * granted):
            return OUTGROWN
        return GONE if now - self.moved_at > options.copy_idle_s else None


class Holds:
    def __init__(self, options: TabletServerOptions) -> None:
        self.options = options
        self._holds: dict[tuple[str, str], Hold] = {}  # tablet, peer
        self._granted: dict[tuple[str, str], int] = {}  # of those whose last copy was in vain

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, hold: Hold) -> None:
        """In place of one that a former copy left."""
        self._holds[hold.replica.tablet, hold.peer] = hold

    def release(self, session: str) -> None:
        self._holds = {key: hold for key, hold in self._holds.items() if hold.session != session}

    def close_tablet(self, tablet: str) -> None:
        self._holds = {key: hold for key, hold in self._holds.items() if key[0] != tablet}
        self._granted = {key: times for key, times in self._granted.items() if key[0] != tablet}

    def granted(self, tablet: str, peer: str) -> int:
        return self._granted.get((tablet, peer), 1)

    def outgrew(self, tablet: str, peer: str) -> None:
        """A copy was in vain: the next one may hold more."""
        granted = min(2 * self.granted(tablet, peer), GRANTED_MAX)
        assert granted > 1, ("a copy in vain is granted more", tablet, peer)
        self._granted[tablet, peer] = granted

    def look(self, now: float) -> None:
        for key, hold in list(self._holds.items()):
            why = hold.over(now, self.options, self.granted(*key))
            if why is not None:
                del self._holds[key]
            if why == OUTGROWN:
                self.outgrew(*key)
            elif why == CAUGHT_UP:
                self._granted.pop(key, None)

    def anchors(self, tablet: str) -> list[int]:
        return [hold.anchor for key, hold in self._holds.items() if key[0] == tablet]


def outgrown(log: TabletLog, options: TabletServerOptions, times: int) -> bool:
    assert times > 0, ("a log may always be as long as its limits", times)
    return (
        log.last_index - log.dropped.index > times * options.log_retained_entries_max
        or log.size_bytes > times * options.log_retained_bytes_max
    )
