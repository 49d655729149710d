"""Merges the runs of replicas whose rows are columns (storage/runs): reads stay short, and overwritten rows go.

One step at a time on each disk, of the replica with the most tiers; with as much rest as work, unless one has TIERS_MAX of them.
Each step is a transaction that a flush may have to wait for: some tenths of a second. A crash at any point leaves a whole set of
runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ebla.actors import errors
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.engine.tally import DATA
from ebla.actors.world import World
from ebla.storage.errors import Corruption, Damaged, DiskFailed, DiskFull, InvalidArgument, StorageError
from ebla.storage.runs.writing import TIERS_MAX
from ebla.storage.tablets.run_tree import RunTree

REST_S_MAX = 1.0
DISK_FULL_PAUSE_S = 5.0


@dataclass(eq=False)
class Compactor:
    """`committing`: the commits that have not ended; Maintenance finds disks that hang by them."""

    world: World
    rounds: Rounds
    changed: Callable[[Replica], None]

    def __post_init__(self) -> None:
        self.steps = 0  # completed ones
        self.committing: dict[str, tuple[str, float]] = {}  # tablet: its disk, and the start of the commit
        self._due: dict[str, dict[str, Replica]] = {}  # replicas that need one, by disk with a compaction

    def look(self, replicas: Iterable[Replica]) -> None:
        """Begin a compaction on each disk that has none, if one of these replicas needs it."""
        for replica in replicas:
            if _needs(replica):
                place = self.world.disk.place_of(replica.store.environment.path)
                if place not in self._due:
                    self._due[place] = {}
                    self.world.spawn(self._compact(place), f"compactions of {place}")
                self._due[place][replica.tablet] = replica

    async def _compact(self, place: str) -> None:
        """Merge range by range, each time of the replica with the most tiers, until none needs it."""
        due, clock = self._due[place], self.world.clock
        try:
            while True:
                for tablet in [tablet for tablet, replica in due.items() if not _needs(replica)]:
                    del due[tablet]
                if not due:
                    return
                began = clock.monotonic()
                await self._advance(max(due.values(), key=_tiers), place)
                if max(map(_tiers, due.values()), default=0) < TIERS_MAX:
                    await clock.sleep(min(REST_S_MAX, clock.monotonic() - began))
        finally:
            del self._due[place]

    async def _advance(self, replica: Replica, place: str) -> None:
        try:
            await self._step(replica, place)
        except (Corruption, Damaged) as error:
            if replica.state == RUNNING:
                replica.fail(error)
                self.changed(replica)
        except DiskFull:
            self.world.faults.reached("tablet.compaction.disk_full")
            await self.world.clock.sleep(DISK_FULL_PAUSE_S)
        except DiskFailed:
            raise
        except (StorageError, errors.TabletNotFound, errors.ReplicaFailed):
            self._due[place].pop(replica.tablet, None)  # it was deleted or failed meanwhile

    async def _step(self, replica: Replica, place: str) -> None:
        """Merge the next range; at the end remove the blocks that no longer count."""
        runs, faults = replica.store.runs, self.world.faults
        ongoing = None if runs is None else runs.due()
        if runs is None or ongoing is None:
            return
        done = await runs.merge(ongoing)
        async with replica.upkeep:
            replica.require_running()
            await faults.here("tablet.compaction.before_commit")
            await self._committed(replica, place, runs.store(ongoing, done))
            await faults.here("tablet.compaction.after_commit")
        self.steps += 1
        if done.upto is None:
            async with replica.upkeep:
                replica.require_running()
                await self._committed(replica, place, runs.clean())

    async def _committed(self, replica: Replica, place: str, change: Awaitable[None]) -> None:
        began = self.world.now()
        self.committing[replica.tablet] = place, began
        try:
            await change
        finally:
            del self.committing[replica.tablet]
        self.rounds.tally.syncs[DATA].add(self.world.now() - began)
        self.rounds.stir(replica)


def runs_of(replica: Replica) -> RunTree:
    """The replica's runs. Raises InvalidArgument if its rows are not columns."""
    runs = replica.store.runs
    if runs is None:
        raise InvalidArgument(
            f"tablet {replica.tablet} stores its rows one by one: only a table with storage 'columns' has runs to merge"
        )
    return runs


def _needs(replica: Replica) -> bool:
    runs = replica.store.runs if replica.state == RUNNING else None
    return runs is not None and runs.due() is not None


def _tiers(replica: Replica) -> int:
    runs = replica.store.runs
    return len(runs.directory.tiers) if runs is not None else 0
