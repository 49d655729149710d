"""Merges the runs of replicas whose rows are columns (storage/runs): reads stay short, and overwritten rows go.

One compaction at a time on each disk, with as much rest as work, unless flushes make runs faster than it merges them. Each step
is a transaction that a flush may have to wait for: some tenths of a second. A crash at any point leaves a whole set of runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from ebla.actors import errors
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.engine.tally import DATA
from ebla.actors.world import World
from ebla.storage.errors import Corruption, Damaged, DiskFailed, DiskFull, StorageError
from ebla.storage.runs.writing import TIERS_MAX, Merge
from ebla.storage.tablets.run_tree import RunTree

REST_S_MAX = 1.0
DISK_FULL_PAUSE_S = 5.0


@dataclass(eq=False)
class Compactor:
    world: World
    rounds: Rounds
    changed: Callable[[Replica], None]

    def __post_init__(self) -> None:
        self.steps = 0  # completed ones
        self._busy: dict[str, None] = {}  # disks

    def look(self, replicas: Iterable[Replica]) -> None:
        """Begin a compaction on each disk that has none, if one of these replicas needs it."""
        for replica in replicas:
            if replica.state != RUNNING or (runs := replica.store.runs) is None:
                continue
            place = self.world.disk.place_of(replica.store.environment.path)
            if place not in self._busy and (due := runs.due()) is not None:
                self._busy[place] = None
                self.world.spawn(self._compact(replica, runs, due, place), f"compaction of {replica.tablet}")

    async def _compact(self, replica: Replica, runs: RunTree, due: Merge, place: str) -> None:
        try:
            await self._steps(replica, runs, due)
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
            return  # the replica was deleted or failed meanwhile
        finally:
            del self._busy[place]

    async def _steps(self, replica: Replica, runs: RunTree, due: Merge) -> None:
        """Merge range by range, then remove the blocks that no longer count."""
        clock, faults = self.world.clock, self.world.faults
        after: bytes | None = None
        while True:
            began = clock.monotonic()
            done = await runs.merge(due, after)
            async with replica.upkeep:
                replica.require_running()
                await faults.here("tablet.compaction.before_commit")
                await self._stored(runs.store(done))
                await faults.here("tablet.compaction.after_commit")
            self.steps += 1
            if done.upto is None:
                break
            after = done.upto
            if len(runs.directory.tiers) < TIERS_MAX:
                await clock.sleep(min(REST_S_MAX, clock.monotonic() - began))
        async with replica.upkeep:
            replica.require_running()
            await self._stored(runs.clean())

    async def _stored(self, change: Awaitable[None]) -> None:
        began = self.world.now()
        await change
        self.rounds.tally.syncs[DATA].add(self.world.now() - began)
