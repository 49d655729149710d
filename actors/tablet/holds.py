"""What a log keeps for replicas that were copied from here, until they follow it.

A copy brings the log as it was when the copy began. What was written since is in the source's log alone, as far as the new replica
is concerned: if that let go of it when the copy ended, a replica of a busy tablet would be copied again and again. So the log is held
from the end of what was sent, and then behind what the replica has acknowledged,

    until       it has caught up with the commits; or it is no member any more, or its copy failed
    for         `copy_idle_s` without progress; copying is progress
    as long as  the log does not outgrow its limits (`log_retained_*`) `CATCHING_UP` times; while the copy is being sent it is
                `SENDING` times, which leaves room to catch up

Who writes more than that during one copy copies in vain: copies need more bandwidth there, or the log larger limits. A leader that
is elected meanwhile holds nothing: it copies anew if its log is too short.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebla.actors.tablet.log import TabletLog
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.raft.progress import REPLICATE, TABLET_COPYING
from ebla.actors.tablet.replica import RUNNING, Replica

SENDING, CATCHING_UP = 2, 4


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
        if progress is None or progress.state != REPLICATE:
            return self.index
        return max(self.index, progress.match)

    def over(self, now: float, options: TabletServerOptions) -> bool:
        replica, progress = self.replica, self.replica.core.progress.get(self.peer)
        if replica.state != RUNNING or (replica.leads and progress is None):
            return True
        if progress is not None and progress.caught_up(replica.core.commit_index):
            return True
        if progress is not None and progress.refusal == TABLET_COPYING:
            self.moved_at = max(self.moved_at, progress.contact_at)
        if self.anchor > self.index:
            self.index, self.moved_at = self.anchor, now
        return now - self.moved_at > options.copy_idle_s or outgrown(replica.log, options, CATCHING_UP)


class Holds:
    def __init__(self, options: TabletServerOptions) -> None:
        self.options = options
        self._holds: dict[tuple[str, str], Hold] = {}  # tablet, peer

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, hold: Hold) -> None:
        """In place of one that a former copy left."""
        self._holds[hold.replica.tablet, hold.peer] = hold

    def release(self, session: str) -> None:
        self._holds = {key: hold for key, hold in self._holds.items() if hold.session != session}

    def close_tablet(self, tablet: str) -> None:
        self._holds = {key: hold for key, hold in self._holds.items() if key[0] != tablet}

    def look(self, now: float) -> None:
        over = [key for key, hold in self._holds.items() if hold.over(now, self.options)]
        for key in over:
            del self._holds[key]

    def anchors(self, tablet: str) -> list[int]:
        return [hold.anchor for key, hold in self._holds.items() if key[0] == tablet]


def outgrown(log: TabletLog, options: TabletServerOptions, times: int) -> bool:
    return (
        log.last_index - log.dropped.index > times * options.log_retained_entries_max
        or log.size_bytes > times * options.log_retained_bytes_max
    )
