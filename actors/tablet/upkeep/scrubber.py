"""Verifies all rows in the background: see storage/tablets/scrub.py.

Every replica is walked soon after the start, and again every `scrub_s`, when Maintenance comes to it (within four minutes);
one at a time on each disk, so that a disk that hangs delays no other, and with as much rest as work, so that it takes at
most half of a core. A damaged replica fails, as if a read had found the damage.

A walk reads one snapshot from end to end, because it must count the rows. The snapshot lasts as long as the walk, unless
the environment needs a larger map: then it expires a few seconds later (`GROWTH_GRACE_S` in storage/lmdb/disk.py), and
the walk is repeated after `RETRY_S`. Maps grow ever more rarely.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ebla.actors.tablet.engine.core import NEVER
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.waits import Bell
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
    changed: Callable[[Replica], None]

    def __post_init__(self) -> None:
        self.walks = 0  # completed ones
        self._due: dict[str, dict[Replica, None]] = {}  # by disk: those that wait for a walk, or are walked
        self._walking: dict[str, None] = {}  # disks
        self._wanted = Bell()

    def start(self) -> None:
        self.world.spawn(self._run(), "scrubber")

    def look(self, replicas: Iterable[Replica]) -> None:
        """Let those of these replicas be walked whose time has come."""
        now = self.world.now()
        for replica in replicas:
            if replica.state == RUNNING and now >= replica.scrub_at:
                self.doubt(replica)

    def doubt(self, replica: Replica) -> None:
        """Walk the replica soon, because of possible damage, or because its time has come."""
        replica.scrub_at = NEVER
        place = self.world.disk.place_of(replica.store.environment.path)
        self._due.setdefault(place, {})[replica] = None
        self._wanted.ring()

    def due_count(self) -> int:
        """Replicas that wait to be walked."""
        return sum(replica.state == RUNNING for due in self._due.values() for replica in due)

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            await self.world.clock.sleep(CHECK_S)
            for place, due in self._due.items():
                if due and place not in self._walking:
                    self._walking[place] = None
                    self.world.spawn(self._walk(place, list(due)), f"scrubber of {place}")

    async def _walk(self, place: str, replicas: list[Replica]) -> None:
        for replica in replicas:
            if replica.state == RUNNING:
                whole = await self._scrub(replica)
                self.walks += whole
                replica.scrub_at = self.world.now() + (self.options.scrub_s if whole else RETRY_S)
            del self._due[place][replica]
        del self._walking[place]
        self._wanted.ring()

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
