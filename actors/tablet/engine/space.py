"""The space on the disks of a tablet server: measured all the time, twice a second where little is left, reported to masters
and operators, kept in reserve.

    writes        refused (DiskFull) if less than the reserve is left on the disk of the log, or on that of
                  the tablet's rows. Such a write is in no log, so it is surely not applied
    new replicas  refused likewise; masters learn that this server takes none
    others        continue: reads, votes, flushes and deletions use the reserve

A commit meets a full disk only if the disk fills faster than it is measured, or others fill it
(rounds.py): a write that waits in the log then may still be applied.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ebla.actors.tablet.engine.waits import Signal
from ebla.actors.world import World
from ebla.storage.errors import DiskFull
from ebla.storage.logs import shared_log
from ebla.storage.space import DiskSpace
from ebla.storage.tablets import tablet_store

log = logging.getLogger(__name__)

MEASURE_S_MIN, MEASURE_S_MAX = 0.5, 2.0
FILL_BYTES_PER_S = 1 << 30  # a disk that fills faster may be found full late
USED_S = 10.0  # between two walks over all files for the space that they use
USED_SHARE = 5000  # a walk takes no more than this part of the time


class Usage(NamedTuple):
    """The part of a heartbeat about disks."""

    used_bytes: int
    disks: tuple[DiskSpace, ...]
    takes_data: bool


class Space:
    def __init__(self, world: World, reserve_bytes: int, changed: Signal) -> None:
        """`changed`: sent when the server begins, or ceases, to take replicas."""
        self.world = world
        self.reserve_bytes = reserve_bytes
        self.changed = changed
        self.disks: Sequence[DiskSpace] = ()
        self._low: dict[str, DiskSpace] = {}  # the disks with less than the reserve, by directory
        self.used_bytes = 0

    async def start(self) -> None:
        await self._measure()
        await self._measure_used()
        self.world.spawn(self._watch(), "disk space")

    async def _watch(self) -> None:
        due = self.world.now() + USED_S
        while True:
            await self.world.clock.sleep(self._pause_s())
            before = self.takes_data
            await self._measure()
            if self.takes_data != before:
                self.changed.send()
            began = self.world.now()
            if began >= due:
                await self._measure_used()
                ended = self.world.now()
                due = ended + max(USED_S, USED_SHARE * (ended - began))

    def _pause_s(self) -> float:
        """Until the next measurement: no longer than a disk could need to fill up to the reserve."""
        least = min((disk.free_bytes for disk in self.disks), default=0) - self.reserve_bytes
        return min(MEASURE_S_MAX, max(MEASURE_S_MIN, least / FILL_BYTES_PER_S))

    async def _measure(self) -> None:
        self.disks = await self.world.disk.space()
        self._low = {disk.path: disk for disk in self.disks if disk.free_bytes < self.reserve_bytes}

    async def _measure_used(self) -> None:
        self.used_bytes = await self.world.disk.used_bytes()

    def usage(self) -> Usage:
        return Usage(self.used_bytes, tuple(self.disks), self.takes_data)

    @property
    def takes_data(self) -> bool:
        """Whether there is a disk with space for a further replica."""
        return self.world.disk.takes_data() and self._short_of_tablets() is None

    @property
    def full(self) -> bool:
        """Whether all writes are refused."""
        return self._low_at(shared_log.PATH) is not None

    def full_disks(self, *, met: bool) -> tuple[str, ...]:
        """The directories of the full disks. `met`: a commit to the log has just met a full disk."""
        found = dict.fromkeys(self._low)
        if met:
            found[self.world.disk.place_of(shared_log.PATH)] = None
        return tuple(found)

    def require_for_write(self, tablet: str) -> None:
        """Raise DiskFull if there is no space for a write to this tablet."""
        disk = self._low_at(shared_log.PATH) or self._low_at(tablet_store.path_of(tablet))
        if disk is not None:
            raise self._refusal(disk, "the write was not applied", "send the write again")

    def require_for_tablet(self) -> None:
        """Raise DiskFull if there is no space for a new replica."""
        disk = self._short_of_tablets()
        if disk is not None:
            raise self._refusal(disk, "no further replica can be made there", "try again")

    def _refusal(self, disk: DiskSpace, what: str, then: str) -> DiskFull:
        return DiskFull(
            f"{self.world.address} has {disk.free_bytes >> 20} MiB left under {disk.path}, and keeps "
            f"{self.reserve_bytes >> 20} MiB in reserve: {what}. Free space there, then {then}",
            path=disk.path,
        )

    def _low_at(self, path: str) -> DiskSpace | None:
        return self._low.get(self.world.disk.place_of(path)) if self._low else None

    def _short_of_tablets(self) -> DiskSpace | None:
        """The disk that prevents a new tablet: that of the logs, or, if all data directories are
        short of space, one of these."""
        data = self.disks[1:]
        full = data and all(disk.path in self._low for disk in data)
        return self._low_at(shared_log.PATH) or (data[0] if full else None)


@contextlib.contextmanager
def postponed() -> Iterator[None]:
    """Log a full disk in the work within, which is postponed to the next start, or until a
    tombstone is finished (lifecycle/deletion.py). Reads do not wait for that work."""
    try:
        yield
    except DiskFull as error:
        log.warning("postponed: %s", error)
