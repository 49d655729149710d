"""What a tablet server does beside the write path: flush memtables, trim logs, end idle scans.

flush   the replica with the largest memtable, whenever all of them together pass memtable_bytes
trim    a tablet's log drops what is flushed here and held by every peer; what the shared log must let go and a
        peer still needs moves to the private log first

A replica that is deleted meanwhile, or turns out to be damaged, is passed over: the others need their flushes. A
full disk makes a pause. Only the server's own disk ends it when it fails; a data disk fails the replicas on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable

from ebla.actors import errors
from ebla.actors.tablet.admission import Load
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.replica import RUNNING, Replica
from ebla.actors.tablet.rounds import Rounds
from ebla.actors.tablet.scans import Scans
from ebla.actors.tablet.tally import DATA, PRIVATE_LOG
from ebla.actors.world import World
from ebla.storage.entries import Position
from ebla.storage.errors import Corruption, Damaged, DiskFull, InvalidArgument
from ebla.storage.shared_log import SharedLog
from ebla.storage.tablet_store import META

LOOK_S = 0.05  # between two looks at the replicas that something happened to
FULL_EVERY = 20  # one look of so many is at all of them
DISK_FULL_PAUSE_S = 1.0


class Maintenance:
    def __init__(
        self,
        world: World,
        options: TabletServerOptions,
        replicas: dict[str, Replica],
        shared: SharedLog,
        rounds: Rounds,
        scans: Scans,
        load: Load,
        on_flushed: Callable[[Replica], None],
        abandon: Callable[[int], Awaitable[None]],
        anchor: Callable[[str], int | None],
    ) -> None:
        self.world = world
        self.options = options
        self.replicas = replicas
        self.shared = shared
        self.rounds = rounds
        self.scans = scans
        self.load = load
        self.on_flushed = on_flushed
        self.abandon = abandon
        self.anchor = anchor
        self._lost_data_dirs: dict[str, str] = {}
        self._measured: dict[str, tuple[int, int]] = {}  # tablet: bytes in its memtables, bytes not applied
        self._held = self._unapplied = 0  # the sums of both

    def start(self) -> None:
        self.world.spawn(self._watch(), "maintenance")

    async def flush(self, replica: Replica) -> Position:
        """Flush at least up to what is applied now. Durable when it returns.

        Raises TabletNotFound, ReplicaFailed (also for damage that it meets, or a data disk that is lost) or DiskFull;
        DiskFailed is the end.
        """
        async with replica.upkeep:
            replica.require_running()
            await self.world.faults.here("tablet.flush.before_commit")
            began, before = self.world.clock.monotonic(), replica.store.flushed
            try:
                flushed = await replica.store.flush()
            except (Corruption, Damaged, InvalidArgument) as error:  # the last: rows that no disk would take
                replica.fail(error)
                self.on_flushed(replica)
                replica.require_running()
                raise
            if flushed != before:
                self.rounds.tally.flushes += 1
                self._synced(DATA, began)
            await self.world.faults.here("tablet.flush.after_commit")
        self.rounds.touched[replica.tablet] = replica
        self.on_flushed(replica)
        return flushed

    async def flush_if_running(self, replica: Replica) -> Position | None:
        """As `flush`, for a replica that may be gone or failed, before or meanwhile: then None."""
        try:
            return await self.flush(replica)
        except (errors.TabletNotFound, errors.ReplicaFailed):
            self.world.faults.reached("tablet.flush.replica_gone")
            return None

    def measure(self, replicas: Iterable[Replica]) -> None:
        """Bring the load that admission looks at up to date, where it may have changed."""
        for replica in replicas:
            self._forget(replica.tablet)
            if replica.state == RUNNING:
                held, unapplied = replica.store.memory_bytes, replica.unapplied_bytes
                self._measured[replica.tablet] = held, unapplied
                self._held += held
                self._unapplied += unapplied
        if len(self._measured) > len(self.replicas):  # some were deleted
            for tablet in [tablet for tablet in self._measured if tablet not in self.replicas]:
                self._forget(tablet)
        self.load.memtable_bytes = self._held
        self.load.unapplied_bytes = self.rounds.unwritten_bytes + self._unapplied

    def _forget(self, tablet: str) -> None:
        held, unapplied = self._measured.pop(tablet, (0, 0))
        self._held -= held
        self._unapplied -= unapplied

    async def _watch(self) -> None:
        for number in itertools.count():
            await self.world.clock.sleep(LOOK_S)
            replicas = self._take_touched(everything=number % FULL_EVERY == 0)
            self.measure(replicas)
            self._fail_lost()
            try:
                if self.load.memtable_bytes > self.options.memtable_bytes:
                    await self._flush_largest()
                self._trim(replicas)
                if self.shared.bytes > self.options.shared_log_bytes:
                    await self._trim_shared()
            except DiskFull:
                self.world.faults.reached("tablet.maintenance.disk_full")
                await self.world.clock.sleep(DISK_FULL_PAUSE_S)
            self.scans.expire()

    def _fail_lost(self) -> None:
        """Replicas on a data disk that is lost by now, also those that nobody asks for anything."""
        lost = self.world.disk.lost_data_dirs()
        if lost == self._lost_data_dirs:
            return
        self._lost_data_dirs = lost
        for replica in list(self.replicas.values()):
            if replica.state == RUNNING:
                try:
                    replica.store.environment.count(META)
                except Corruption as error:
                    replica.fail(error)
                    self.on_flushed(replica)

    async def _flush_largest(self) -> None:
        running = [replica for replica in self.replicas.values() if replica.state == RUNNING]
        largest = max(running, key=lambda replica: replica.store.memory_bytes, default=None)
        if largest is None:
            return  # the last one failed since it was measured
        await self.flush_if_running(largest)
        self.measure([largest])

    def _take_touched(self, *, everything: bool) -> list[Replica]:
        """Replicas that something happened to since the last look: an idle one costs nothing."""
        touched, self.rounds.touched = self.rounds.touched, {}
        if everything:
            self._measured.clear()  # also of those that are gone
            self._held = self._unapplied = 0
            return list(self.replicas.values())
        return list(touched.values())

    def _trim(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            if replica.state == RUNNING:
                self._drop(replica)

    def _drop(self, replica: Replica) -> None:
        """Forget entries that are flushed here and held everywhere, and under pressure those that are only flushed; none that
        a copy from here is still to get, and no configuration that the record of consensus does not have yet."""
        options, log = self.options, replica.log
        flushed = replica.store.flushed.index
        index = max(
            min(flushed, replica.core.all_replicated_index),
            log.excess(options.log_retained_entries_max, options.log_retained_bytes_max, flushed),
        )
        anchor = self.anchor(replica.tablet)
        if anchor is not None:
            index = min(index, anchor)
        for made in replica.core.log.configurations:
            if made.index > replica.configuration_saved:
                index = min(index, made.index - 1)
        if index > log.dropped.index:
            log.drop_to(index)
            replica.core.log.drop_to(index)

    async def _trim_shared(self) -> None:
        """Let go of the older half. What is still needed of it moves to private logs, durably, first."""
        below = self.shared.first_seq + (self.rounds.synced_seq - self.shared.first_seq) // 2
        for replica in list(self.replicas.values()):
            async with replica.upkeep:
                if replica.state == RUNNING:
                    try:
                        await self._move(replica, below)
                    except (Corruption, Damaged) as error:
                        replica.fail(error)
        await self.abandon(below)
        await self.world.faults.here("tablet.shared_log.before_trim")
        needed = [
            replica.log.oldest_shared_seq() for replica in self.replicas.values() if replica.state == RUNNING
        ]
        await self.shared.trim(min([below, *(seq for seq in needed if seq is not None)]))
        await self.world.faults.here("tablet.shared_log.after_trim")

    async def _move(self, replica: Replica, below_seq: int) -> None:
        began, before = self.world.clock.monotonic(), replica.log.private_last
        await replica.log.move(below_seq)
        if replica.log.private_last > before:
            self._synced(PRIVATE_LOG, began)
        await self.world.faults.here("tablet.private_log.before_trim")
        await replica.log.trim_private()
        await self.world.faults.here("tablet.private_log.after_trim")

    def _synced(self, environment: str, began: float) -> None:
        self.rounds.tally.syncs[environment].add(self.world.clock.monotonic() - began)
