"""The state of a tablet server's disk at start, and how each replica is assembled from it.

    superblock       the replicas of this server; an unfinished deletion is finished
    consensus state  term, vote, committed configuration
    data             rows as of the flushed position
    private log      entries that outlived the shared log
    shared log       everything newer; a later entry at an index replaces the earlier one and all after it

A damaged entry at or before the flushed position is not needed. A damaged or missing one after it
fails that replica, never the server, since acknowledged entries cannot be guessed. If the log is
gone, or so damaged that the tablets of the lost entries are unknown, the server does not start:
that is Damaged, and its directory must be set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ebla.actors.tablet.engine.log import TabletLog
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.records import Superblock
from ebla.storage.directories.records import RecordStore
from ebla.storage.environment import Disk
from ebla.storage.errors import Corruption, Damaged, StorageError
from ebla.storage.logs import shared_log
from ebla.storage.logs.entries import CONFIG, Position, Record
from ebla.storage.logs.private_log import PrivateLog, path_of
from ebla.storage.logs.shared_log import Found
from ebla.storage.tablets import quarantine


def require_unused(disk: Disk, superblocks: RecordStore[Superblock]) -> None:
    """Raise Damaged unless the server is unused. Called if there is no shared log: an interrupted
    first start leaves nothing else; a server with more has lost its log, and with it the entries
    that it acknowledged."""
    if superblocks.names() or disk.list("data") or disk.exists(quarantine.PATH):
        raise Damaged(
            f"the log in {shared_log.PATH} is gone, and with it what this server acknowledged. If it lies on a disk that is not "
            "mounted, mount it; otherwise move the server's directory aside and start again: it comes back as a new server",
            path=shared_log.PATH,
        )


class Tail:
    """The entries of one tablet, gathered from private and shared log in the order in which they
    were written."""

    def __init__(self, tablet: str, since_seq: int = 0) -> None:
        """`since_seq`: earlier entries of the tablet in the shared log are of a former replica."""
        self.tablet = tablet
        self.since_seq = since_seq
        self.indexes: list[int] = []  # ascending
        self.entries: dict[int, tuple[int, Record]] = {}  # index: (seq, 0 if only private; record)
        self.damaged: dict[int, str] = {}
        self.private_last = 0

    def add(self, index: int, seq: int, record: Record | None, damage: Corruption | None) -> None:
        while self.indexes and self.indexes[-1] >= index:
            stale = self.indexes.pop()
            self.entries.pop(stale, None)
            self.damaged.pop(stale, None)
        assert not self.indexes or index > self.indexes[-1], ("indexes ascend", self.tablet, index)
        self.indexes.append(index)
        self.private_last = min(self.private_last, index - 1) if seq else index
        if record is None:
            self.damaged[index] = str(damage)
        else:
            self.entries[index] = (seq, record)

    def last_seq(self) -> int:
        """The newest entry's place in the shared log; 0 if it is not there."""
        newest = self.entries.get(self.indexes[-1]) if self.indexes else None
        return 0 if newest is None else newest[0]

    def suffix(self, flushed: int) -> list[tuple[int, Record]]:
        """The newest entries without a gap; entries before a gap were flushed and dropped here.
        Raises Corruption or Damaged if an entry after `flushed` is missing."""
        found: list[tuple[int, Record]] = []
        wanted = self.indexes[-1] if self.indexes else 0
        for index in reversed(self.indexes):
            if index != wanted or (index in self.damaged and index <= flushed):
                break
            if index in self.damaged:
                raise Corruption(self.damaged[index])
            found.append(self.entries[index])
            wanted -= 1
        found.reverse()
        assert len(found) <= len(self.indexes), ("each entry is found once", self.tablet)
        if not found or found[-1][1].entry.index < flushed:
            return []
        if found[0][1].entry.index > flushed + 1:
            first = found[0][1].entry.index
            raise Damaged(f"the log of tablet {self.tablet} begins at {first}, its rows end at {flushed}")
        return found


@dataclass(frozen=True)
class Unloaded:
    """A replica whose rows are not loaded: its superblock, and its entries in both logs."""

    superblock: Superblock
    private: PrivateLog | None
    tail: Tail


def gather(shared: Iterable[Found], tails: dict[str, Tail]) -> None:
    """Distribute the shared log over the tablets that exist; skip entries of deleted tablets."""
    for found in shared:
        tail = tails.get(found.tablet)
        if tail is not None and found.seq >= tail.since_seq:
            tail.add(found.index, found.seq, found.record, found.damage)


async def open_private(disk: Disk, tail: Tail) -> PrivateLog | None:
    """Open the tablet's private log, and add its entries to `tail`."""
    if not disk.exists(path_of(tail.tablet)):
        return None
    private = await PrivateLog.open(disk, tail.tablet, create=False)
    try:
        for index, outcome in private.recover():
            damage = outcome if isinstance(outcome, Corruption) else None
            tail.add(index, 0, None if damage else outcome, damage)  # type: ignore[arg-type]
    except StorageError:
        await private.environment.close()  # a damaged tablet must still be deletable
        raise
    return private


def rebuild(
    make_log: Callable[[Position], TabletLog], tail: Tail, flushed: Position
) -> tuple[TabletLog, LogIndex]:
    """The replica's log, and its index for the core. `make_log` makes an empty log behind a
    position. Raises Corruption or Damaged if entries after the flushed position are missing, or
    disagree with it."""
    found, tablet = tail.suffix(flushed.index), tail.tablet
    log = make_log(found[0][1].previous if found else flushed)
    index = LogIndex(log.dropped.index, log.dropped.term)
    for seq, record in found:
        entry = record.entry
        if record.previous != log.last:
            raise Corruption(f"entry {entry.index} of tablet {tablet} does not follow the one before it")
        log.append(entry).seq = seq
        index.append(entry.term, len(entry.payload), entry.payload if entry.kind == CONFIG else None)
    log.private_last = min(tail.private_last, log.last_index)
    if log.position(flushed.index) != flushed:
        raise Corruption(f"the log of tablet {tablet} and its rows disagree at index {flushed.index}")
    assert log.last_index == index.last_index, ("log and index have the same entries", tablet)
    log.uncache(flushed.index, flushed.index)
    return log, index
