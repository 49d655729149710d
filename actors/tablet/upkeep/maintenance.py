"""What a tablet server does beside the write path: flush memtables, trim logs, end idle scans.

flush   the replica with the largest memtable, whenever all of them together pass memtable_bytes; on each disk one at a time
expire  the leader puts into the log that the answers of idle clients are forgotten
trim    a tablet's log drops what is flushed here and held by every peer; what the shared log must let go and a
        peer still needs moves to the private log first. Both logs are on the server's own disk

A replica that is deleted meanwhile, or turns out to be damaged, is passed over: the others need their flushes. A
full disk makes a pause. Only the server's own disk ends it when it fails; a data disk fails the replicas on it.

A data disk that hangs (a flush takes disk_hung_s) holds up the replicas on it and no others. What they keep in memory does not count
against the others. At the limit at which writers are throttled they take nothing more: where they lead, writers wait; where they
follow, their leaders do without them, and send what they lack when the disk answers again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ebla.actors import errors
from ebla.actors.tablet.copy.log_retention import LogRetention
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.tally import DATA, PRIVATE_LOG
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.serving.admission import Load
from ebla.actors.tablet.serving.scans import Scans
from ebla.actors.tablet.upkeep.expiry import expire
from ebla.actors.world import World
from ebla.storage.errors import Corruption, Damaged, DiskFull, InvalidArgument
from ebla.storage.logs.entries import Position
from ebla.storage.tablets.tablet_store import META

LOOK_S = 0.05  # between two looks at the replicas that something happened to
FULL_EVERY = 20  # one look of so many is at all of them
DISK_FULL_PAUSE_S = 1.0


class Measured(NamedTuple):
    """Of one replica: its disk, bytes in its memtables, bytes not applied."""

    place: str
    held: int
    unapplied: int


class Maintenance:
    def __init__(
        self,
        world: World,
        options: TabletServerOptions,
        lifecycle: Lifecycle,
        retention: LogRetention,
        scans: Scans,
        load: Load,
        on_flushed: Callable[[Replica], None],
    ) -> None:
        self.world = world
        self.options = options
        self.lifecycle = lifecycle
        self.replicas = lifecycle.replicas
        self.rounds = lifecycle.rounds
        self.shared = lifecycle.shared
        self.retention = retention
        self.scans = scans
        self.load = load
        self.on_flushed = on_flushed
        self._lost_data_dirs: dict[str, str] = {}
        self._measured: dict[str, Measured] = {}  # by tablet
        self._held: dict[str, int] = {}  # the sums, by disk
        self._unapplied = 0
        self._flushing: dict[str, tuple[str, float]] = {}  # tablet: its disk, and since when
        self._next_flush: dict[
            str, float
        ] = {}  # disk: not before; infinite while a flush of ours is under way

    def start(self) -> None:
        self.world.spawn(self._watch(), "maintenance")

    async def flush(self, replica: Replica) -> Position:
        """Flush at least up to what is applied now. Durable when it returns.

        Raises TabletNotFound, ReplicaFailed (also for damage that it meets, or a data disk that is lost), Unavailable (a disk
        that hangs) or DiskFull; DiskFailed is the end.
        """
        self._require_answering(replica)
        async with replica.upkeep:
            replica.require_running()
            began, before = self.world.clock.monotonic(), replica.store.flushed
            self._flushing[replica.tablet] = self._place(replica), began
            try:
                await self.world.faults.here("tablet.flush.before_commit")
                flushed = await replica.store.flush()
            except (Corruption, Damaged, InvalidArgument) as error:  # the last: rows that no disk would take
                replica.fail(error)
                self.on_flushed(replica)
                replica.require_running()
                raise
            finally:
                del self._flushing[replica.tablet]
            if flushed != before:
                self.rounds.tally.flushes += 1
                self._synced(DATA, began)
            await self.world.faults.here("tablet.flush.after_commit")
        self.rounds.touched[replica.tablet] = replica
        self.on_flushed(replica)
        return flushed

    async def flush_if_running(self, replica: Replica) -> Position | None:
        """As `flush`, for a replica that may be gone or failed, before or meanwhile, or whose disk hangs: then None."""
        try:
            return await self.flush(replica)
        except (errors.TabletNotFound, errors.ReplicaFailed, errors.Unavailable):
            self.world.faults.reached("tablet.flush.replica_gone")
            return None

    def _place(self, replica: Replica) -> str:
        return self.world.disk.place_of(replica.store.environment.path)

    def hung(self) -> dict[str, None]:
        """The disks that hang."""
        since = self.world.clock.monotonic() - self.options.disk_hung_s
        return dict.fromkeys(place for place, began in self._flushing.values() if began < since)

    def _require_answering(self, replica: Replica) -> None:
        if self._flushing and (place := self._place(replica)) in self.hung():
            raise errors.Unavailable(
                f"the disk of {place} on {self.world.address} has not answered for {self.options.disk_hung_s:g} s; look at it, or take the replica away "
                "with `ebla tablet remove-replica`"
            )

    def measure(self, replicas: Iterable[Replica]) -> None:
        """Bring the load that admission looks at up to date, where it may have changed."""
        for replica in replicas:
            known = self._forget(replica.tablet)
            if replica.state == RUNNING:
                place = self._place(replica) if known is None else known.place
                measured = Measured(place, replica.store.memory_bytes, replica.unapplied_bytes)
                self._measured[replica.tablet] = measured
                self._held[measured.place] = self._held.get(measured.place, 0) + measured.held
                self._unapplied += measured.unapplied
        if len(self._measured) > len(self.replicas):  # some were deleted
            for tablet in [tablet for tablet in self._measured if tablet not in self.replicas]:
                self._forget(tablet)
        hung = self.hung()
        self.load.memtable_bytes = sum(held for place, held in self._held.items() if place not in hung)
        self.load.unapplied_bytes = self.rounds.unwritten_bytes + self._unapplied
        on_hung = {t: each.place for t, each in self._measured.items() if each.place in hung} if hung else {}
        self.load.hung = {tablet: self._held[place] for tablet, place in on_hung.items()}

    def _forget(self, tablet: str) -> Measured | None:
        measured = self._measured.pop(tablet, None)
        if measured is not None:
            self._held[measured.place] -= measured.held
            self._unapplied -= measured.unapplied
        return measured

    async def _watch(self) -> None:
        for number in itertools.count():
            await self.world.clock.sleep(LOOK_S)
            replicas = self._take_touched(everything=number % FULL_EVERY == 0)
            self.measure(replicas)
            self._fail_lost()
            self._flush_largest()
            self._trim(replicas)
            try:
                self._expire(replicas)
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

    def _flush_largest(self) -> None:
        """Of those on disks that are not busy, unless what is being flushed is enough."""
        answering = (each for each in self._flushing if each in self._measured and each not in self.load.hung)
        under_way = sum(self._measured[tablet].held for tablet in answering)
        if self.load.memtable_bytes - under_way <= self.options.memtable_bytes:
            return
        now = self.world.clock.monotonic()
        free = [
            replica
            for replica in self.replicas.values()
            if replica.state == RUNNING
            and replica.tablet in self._measured
            and self._next_flush.get(self._measured[replica.tablet].place, 0.0) <= now
        ]
        largest = max(free, key=lambda replica: replica.store.memory_bytes, default=None)
        if largest is not None and largest.store.memory_bytes:
            place = self._measured[largest.tablet].place
            self._next_flush[place] = math.inf
            self.world.spawn(self._flush_beside(largest, place), f"flush of {largest.tablet}")

    async def _flush_beside(self, replica: Replica, place: str) -> None:
        pause_s = 0.0
        try:
            await self.flush_if_running(replica)
        except DiskFull:
            self.world.faults.reached("tablet.maintenance.disk_full")
            pause_s = DISK_FULL_PAUSE_S
        self._next_flush[place] = self.world.clock.monotonic() + pause_s
        self.measure([replica])

    def _take_touched(self, *, everything: bool) -> list[Replica]:
        """Replicas that something happened to since the last look: an idle one costs nothing."""
        touched, self.rounds.touched = self.rounds.touched, {}
        if everything:
            self._measured.clear()  # also of those that are gone
            self._held, self._unapplied = {}, 0
            return list(self.replicas.values())
        return list(touched.values())

    def _trim(self, replicas: Iterable[Replica]) -> None:
        for replica in replicas:
            if replica.state == RUNNING:
                self._drop(replica)

    def _expire(self, replicas: Iterable[Replica]) -> None:
        """Answers to clients that have not written for long, where this server leads."""
        retention_us = int(self.options.results_retention_s * 1e6)
        for replica in replicas:
            if not self.rounds.disk_full:
                expire(self.rounds, replica, self.world.clock.monotonic(), retention_us)

    def _drop(self, replica: Replica) -> None:
        """Forget entries that are flushed here and held everywhere, and under pressure those that are only flushed; none that
        a copy from here is still to get, and no configuration that the record of consensus does not have yet."""
        options, log = self.options, replica.log
        flushed = replica.store.flushed.index
        index = max(
            min(flushed, replica.core.all_replicated_index),
            log.excess(options.log_retained_entries_max, options.log_retained_bytes_max, flushed),
        )
        anchor = self.retention.anchor(replica.tablet)
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
            if replica.state != RUNNING:
                continue  # also one that is about to go, and whose disk may hang
            async with replica.moving:
                try:
                    await self._move(replica, below)
                except errors.AlreadyInProgress:
                    pass  # its entries stay in the shared log for now
                except (Corruption, Damaged) as error:
                    replica.fail(error)
        await self.lifecycle.abandon(below)
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
