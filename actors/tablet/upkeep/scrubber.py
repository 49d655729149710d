"""Verifies all rows in the background: see storage/tablets/scrub.py.

Every replica is walked soon after the start, and again every `scrub_s`; one at a time on each disk, so that a disk that
hangs delays no other, and with as much rest as work, so that it takes at most half of a core. A damaged replica fails,
as if a read had found the damage.

A walk reads one snapshot from end to end, because it must count the rows. The snapshot lasts as long as the walk, unless
the environment needs a larger map: then it expires a few seconds later (`GROWTH_GRACE_S` in storage/lmdb/disk.py), and
the walk is repeated after `RETRY_S`. Maps grow ever more rarely.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.world import World
from ebla.storage.errors import Corruption, Damaged, DiskFailed, StorageError

CHECK_S = 1.0
REST_S_MAX = 1.0
RETRY_S = 60.0  # after an interrupted walk


@dataclass(eq=False)
class Scrubber:
    world: World
    options: TabletServerOptions
    replicas: dict[str, Replica]
    changed: Callable[[Replica], None]

    def __post_init__(self) -> None:
        self.walks = 0  # completed ones
        self._due: dict[Replica, float] = {}  # the time of the next walk, by the monotonic clock
        self._doubted: dict[Replica, None] = {}
        self._walking: dict[str, None] = {}  # disks

    def start(self) -> None:
        self.world.spawn(self._run(), "scrubber")

    def doubt(self, replica: Replica) -> None:
        """Walk the replica soon, because of possible damage."""
        self._doubted[replica] = None

    def due_count(self) -> int:
        """Replicas that wait to be walked."""
        now = self.world.now()
        running = [replica for replica in self.replicas.values() if replica.state == RUNNING]
        return sum(self._due.get(replica, -math.inf) <= now for replica in running)

    async def _run(self) -> None:
        clock = self.world.clock
        while True:
            await clock.sleep(CHECK_S)
            present = list(self.replicas.values())
            self._due = {replica: self._due.get(replica, -math.inf) for replica in present}
            for replica in self._doubted:
                self._due[replica] = -math.inf
            self._doubted = {}
            present.sort(key=self._due.__getitem__)
            by_disk: dict[str, list[Replica]] = {}
            for replica in present:
                if replica.state == RUNNING and clock.monotonic() >= self._due[replica]:
                    place = self.world.disk.place_of(replica.store.environment.path)
                    by_disk.setdefault(place, []).append(replica)
            for place, due in by_disk.items():
                if place not in self._walking:
                    self._walking[place] = None
                    self.world.spawn(self._walk(place, due), f"scrubber of {place}")

    async def _walk(self, place: str, due: list[Replica]) -> None:
        clock = self.world.clock
        for replica in due:
            if replica.state == RUNNING:
                whole = await self._scrub(replica)
                self.walks += whole
                self._due[replica] = clock.monotonic() + (self.options.scrub_s if whole else RETRY_S)
        del self._walking[place]

    async def _scrub(self, replica: Replica) -> bool:
        """Walk a replica. Return whether the walk was completed."""
        try:
            await replica.store.scrub(self._resting())
        except (Corruption, Damaged) as error:
            if replica.state == RUNNING:
                replica.fail(error)
                self.changed(replica)
        except DiskFailed:
            raise
        except StorageError:
            return False  # its snapshot expired, or the replica was deleted meanwhile
        return True

    def _resting(self) -> Callable[[], Awaitable[None]]:
        """A pause as long as the time of the last piece."""
        clock = self.world.clock
        resumed = clock.monotonic()

        async def rest() -> None:
            nonlocal resumed
            await clock.sleep(min(REST_S_MAX, clock.monotonic() - resumed))
            resumed = clock.monotonic()

        return rest
