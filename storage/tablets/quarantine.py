"""The data of deleted and replaced replicas: rows, private logs, and records about them.

    quarantine-meta            a record for each: its tablet, reason and time, its superblock and consensus state
    quarantine/<name>/data     the environment that was data/<tablet>
    quarantine/<name>/wals     the environment that was wals/<tablet>, if there was one

    added      durably, before the replica is a tombstone; if it never became one, a start drops the record
    finished   by two moves (storage/environment.py), repeated until they succeed
    bounded    above `bytes_max` the oldest is purged first; a replica that alone is larger is not kept
    purged     data, log, record, in this order, so that the rest of an interrupted purge is still listed

Only operators need quarantine, so one whose own records are damaged is replaced by an empty one; data without a record
is listed, counted and purged like the rest. storage/tablets/restore.py writes data to files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from ebla.storage.directories.records import RecordStore
from ebla.storage.environment import QUARANTINE, Disk, Environment
from ebla.storage.errors import Corruption, Damaged, InvalidArgument, StorageError
from ebla.storage.logs import private_log
from ebla.storage.tablets import restore, tablet_store
from ebla.storage.tablets.restore import Quarantined, Restored, data_of, wals_of

PATH = "quarantine-meta"
RECORDS = "records"


class Held(msgspec.Struct, frozen=True):
    """An item in quarantine and its size. If the record is damaged or lost, only the name is known."""

    record: Quarantined
    bytes: int


class Quarantine:
    """`busy`: the names that are being moved, restored or purged, with the action; other calls leave them alone."""

    def __init__(self, disk: Disk, environment: Environment, bytes_max: int) -> None:
        self.disk = disk
        self.bytes_max = bytes_max
        self._records = RecordStore(environment, RECORDS, Quarantined)
        self._busy: dict[str, str] = {}

    @staticmethod
    async def open(disk: Disk, bytes_max: int) -> Quarantine:
        try:
            environment = await disk.open_environment(PATH, [RECORDS], create=True, map_bytes=1 << 22)
        except Damaged:
            await disk.remove(PATH)
            environment = await disk.open_environment(PATH, [RECORDS], create=True, map_bytes=1 << 22)
        return Quarantine(disk, environment, bytes_max)

    # -- for deletions

    async def add(self, record: Quarantined) -> None:
        """Record a replica durably, before anything is moved. Its name is new, and a plain part of a path."""
        self._busy[record.name] = "being moved"
        try:
            await self._records.save(record.name, record)
        except BaseException:
            del self._busy[record.name]
            raise

    async def finish(self, name: str, tablet: str) -> None:
        """Move the tablet's environments, durably. A second call, at a start or after an error, finishes the first."""
        self._busy[name] = "being moved"
        for path, to in (
            (tablet_store.path_of(tablet), data_of(name)),
            (private_log.path_of(tablet), wals_of(name)),
        ):
            if self.disk.exists(path) or self.disk.exists(to):
                await self.disk.move(path, to)
        del self._busy[name]
        await self._keep_within_bounds()

    def give_up(self, name: str) -> None:
        """Stop moving, because the data is gone. Moved data stays, and may be purged."""
        self._busy.pop(name, None)

    async def keep_only(self, names: Collection[str]) -> None:
        """Drop the records of other names without data: their deletions were never carried out."""
        for name in self._records.names():
            if name not in names and not self._environments(name):
                await self._forget(name)

    # -- for operators

    def list(self) -> list[Held]:
        """All items, the oldest first."""
        names = {*self._records.names(), *self.disk.directories(QUARANTINE)}
        held = [Held(self._record(name), self._bytes(name)) for name in sorted(names)]
        return sorted(held, key=lambda each: each.record.at_us)

    async def purge(self, names: Sequence[str] = ()) -> None:
        """Delete these, or all, for good. An absent name is no error: it was purged before."""
        for name in names:
            self._refuse_busy(name)
        for name in names or [held.record.name for held in self.list()]:
            if name not in self._busy:
                await self._purge(name)

    async def restore(self, name: str, directory: str) -> Restored:
        """Write rows, log and record into an absolute `directory`, new or empty. The item stays in quarantine."""
        self._refuse_busy(name)
        record = self._record(name)
        if not self._environments(name) and self._records.environment.get(RECORDS, name.encode()) is None:
            raise InvalidArgument(f"there is no {name!r} in quarantine; list the quarantine for its names")
        self._busy[name] = "being restored"
        try:
            return await restore.restore(self.disk, self._records.environment, record, directory)
        finally:
            del self._busy[name]

    async def close(self) -> None:
        await self._records.environment.close()

    def _record(self, name: str) -> Quarantined:
        try:
            found = self._records.get(name)
        except Corruption:
            return Quarantined(name, reason="its record is damaged")
        return found or Quarantined(name, reason="its record is lost")

    def _environments(self, name: str) -> Sequence[str]:
        return [path for path in (data_of(name), wals_of(name)) if self.disk.exists(path)]

    def _bytes(self, name: str) -> int:
        return sum(map(self.disk.size_bytes, self._environments(name)))

    def _refuse_busy(self, name: str) -> None:
        if name in self._busy:
            raise StorageError(f"{name} is {self._busy[name]}; wait until that has ended")

    async def _keep_within_bounds(self) -> None:
        """Purge the oldest while the total is over the limit. Busy items count and stay; items being purged do not count."""
        while True:
            held = [each for each in self.list() if self._busy.get(each.record.name) != "being purged"]
            idle = [each.record.name for each in held if each.record.name not in self._busy]
            if not idle or sum(each.bytes for each in held) <= self.bytes_max:
                return
            await self._purge(idle[0])

    async def _purge(self, name: str) -> None:
        self._busy[name] = "being purged"
        try:
            for path in self._environments(name):
                await self.disk.remove(path)
            await self._forget(name)
        finally:
            del self._busy[name]

    async def _forget(self, name: str) -> None:
        await self._records.environment.commit([self._records.delete(name)])
