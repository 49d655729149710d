"""The upkeep of a tablet server beside the write path: flush memtables, trim logs, expire answers, end idle scans.

flush   the replica with the largest memtable, when all memtables together exceed memtable_bytes, and each whose memtables
        are full, so that the entries of its log wait; one flush per disk
expire  the leader drops the answers of idle clients by an entry of the log. The log, not the clock or the setting of a
        replica, decides: every replica drops the same answers at the same entry, and a later retry is a new request
trim    a tablet's log drops entries that are flushed here and held by every peer. Entries that a peer still needs move
        from the shared log to the private log before the shared log is trimmed. Both logs are on the server's own disk

A replica that is deleted meanwhile, or is found damaged, is skipped: the others need their flushes. A full disk causes
a pause. A failure of the server's own disk ends the server; a failed data disk fails the replicas on it.

A data disk that hangs (a flush, or a step of a compaction, takes disk_hung_s) delays only the replicas on it. Their
memory does not count against the others. At the limit at which writers are throttled they take no more entries: for a
leader there writers wait; leaders of followers there work without them, and send the missing entries when the disk
answers again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from ebla.actors import errors
from ebla.actors.tablet.copy.log_retention import LogRetention
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.tally import DATA, PRIVATE_LOG
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.serving.admission import Load
from ebla.actors.tablet.serving.scans import Scans
from ebla.actors.tablet.upkeep.compactor import Compactor
from ebla.actors.tablet.upkeep.scrubber import Scrubber
from ebla.actors.world import World
from ebla.storage.environment import Environment
from ebla.storage.errors import Corruption, Damaged, DiskFull, InvalidArgument, TooManyFiles
from ebla.storage.logs.entries import EXPIRE, Position

CHECK_S = 0.05  # between two checks of the replicas that have changed
TURNS_S = 240.0  # in this time, the checks also include each idle replica once, in turn
UNMAPPED_MAX = 50  # environments that are unmapped after one check
UNUSED_S = 10.0  # between two looks at mapped files: those that were not used since the last one are unmapped
DISK_FULL_PAUSE_S = 1.0
# Of one replica; more of its memtables that no longer change are flushed, however small they are.
FROZEN_MAX = 16
# Answers are kept longer by up to this part of their time, so that one entry expires many clients.
EXPIRY_STEPS = 60


class Measured(NamedTuple):
    """A replica's disk, the bytes in its memtables, and the bytes not applied."""

    place: str
    held: int
    unapplied: int


@dataclass(eq=False)
class Maintenance:
    world: World
    options: TabletServerOptions
    lifecycle: Lifecycle
    retention: LogRetention
    scans: Scans
    load: Load
    compactor: Compactor
    scrubber: Scrubber
    on_flushed: Callable[[Replica], None]

    def __post_init__(self) -> None:
        self.replicas = self.lifecycle.replicas
        self.rounds = self.lifecycle.rounds
        self.shared = self.lifecycle.shared
        self._lost_data_dirs: dict[str, str] = {}
        self._measured: dict[str, Measured] = {}  # by tablet
        self._held: dict[str, int] = {}  # the sums, by disk
        self._unapplied = 0
        self._turn: list[str] = []  # tablets whose turn comes
        self._turned_at = self.world.now()  # the time of the last turns
        self._unmap_at = self.world.now() + UNUSED_S
        self._unmapping: list[Environment] = []  # those to look at next
        self._flushing: dict[str, tuple[str, float]] = {}  # tablet: its disk, and the start of the flush
        self._next_flush: dict[str, float] = {}  # disk: earliest next flush; infinite during a flush

    def start(self) -> None:
        self.world.spawn(self._watch(), "maintenance")

    async def flush(self, replica: Replica) -> Position:
        """Flush at least up to the applied position, durably.

        Raises TabletNotFound, ReplicaFailed (also for damage that it finds, or a lost data disk), Unavailable (a disk that
        hangs) or DiskFull; DiskFailed ends the server.
        """
        self._require_answering(replica)
        async with replica.upkeep:
            replica.require_running()
            began, before = self.world.now(), replica.store.flushed
            self._flushing[replica.tablet] = self._place(replica), began
            try:
                await self.world.faults.here("tablet.flush.before_commit")
                flushed = await replica.store.flush()
            except (Corruption, Damaged, InvalidArgument) as error:  # the last: rows that no disk takes
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
        self.rounds.stir(replica)
        if replica.full:
            replica.full = False
            self.rounds.touch(replica)
        self.on_flushed(replica)
        return flushed

    async def flush_if_running(self, replica: Replica) -> Position | None:
        """As `flush`, but return None for a replica that is gone, has failed, or whose disk hangs."""
        try:
            return await self.flush(replica)
        except (errors.TabletNotFound, errors.ReplicaFailed, errors.Unavailable):
            self.world.faults.reached("tablet.flush.replica_gone")
            return None

    def _place(self, replica: Replica) -> str:
        return self.world.disk.place_of(replica.store.environment.path)

    def hung(self) -> dict[str, None]:
        """The disks that hang."""
        since = self.world.now() - self.options.disk_hung_s
        waiting = itertools.chain(self._flushing.values(), self.compactor.committing.values())
        return dict.fromkeys(place for place, began in waiting if began < since)

    def _require_answering(self, replica: Replica) -> None:
        if (hung := self.hung()) and (place := self._place(replica)) in hung:
            raise errors.Unavailable(
                f"the disk of {place} on {self.world.address} has not answered for {self.options.disk_hung_s:g} s; check it, "
                "or remove the replica with `ebla tablet remove-replica`"
            )

    def measure(self, replicas: Iterable[Replica]) -> None:
        """Update the load for admission, for replicas that may have changed."""
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
        while True:
            if not self._is_busy():
                await self.rounds.changed.wait(self.world.clock)
            await self.world.clock.sleep(CHECK_S)
            replicas = self._take_touched()
            self.measure(replicas)
            self._fail_lost()
            self._flush_largest()
            self._flush_due(replicas)
            self.compactor.look(replicas)
            self.scrubber.look(replicas)
            for replica in replicas:
                if replica.state == RUNNING:
                    replica.explained(self._drop, replica)
            try:
                for replica in replicas:
                    self._expire(replica)
                if self.shared.bytes > self.options.shared_log_bytes:
                    await self._trim_shared()
            except DiskFull:
                self.world.faults.reached("tablet.maintenance.disk_full")
                await self.world.clock.sleep(DISK_FULL_PAUSE_S)
            self.scans.expire()
            self._unmap_unused()

    def _is_busy(self) -> bool:
        """Whether a check finds work though no replica changes."""
        under_way = self._flushing or self.compactor.committing or self._unmapping
        too_large = self.load.memtable_bytes > self.options.memtable_bytes
        return bool(self.rounds.touched or under_way) or too_large

    def _unmap_unused(self) -> None:
        """Unmap the environments that were not used since the last look at them, some at a time: other commits to the
        disk wait for that."""
        if not self._unmapping and self.world.now() >= self._unmap_at:
            self._unmap_at = self.world.now() + UNUSED_S
            replicas = self.replicas.values()  # thousands, perhaps
            private = [each.log.private for each in replicas if each.log.private is not None]
            self._unmapping = [each.store.environment for each in replicas if each.store.environment.mapped]
            self._unmapping += [each.environment for each in private if each.environment.mapped]
        some = self._unmapping[-UNMAPPED_MAX:]
        del self._unmapping[-UNMAPPED_MAX:]
        for environment in some:
            if not environment.used:
                environment.unmap()
            environment.used = False

    def _fail_lost(self) -> None:
        """Fail the replicas on a lost data disk, including idle ones."""
        lost = self.world.disk.lost_data_dirs()
        if lost == self._lost_data_dirs:
            return
        self._lost_data_dirs = lost
        for replica in list(self.replicas.values()):
            if replica.state == RUNNING:
                try:
                    replica.store.environment.check()
                except Corruption as error:
                    replica.fail(error)
                    self.on_flushed(replica)

    def _flush_largest(self) -> None:
        """Flush the largest memtable on a disk that is not busy, unless running flushes suffice."""
        answering = (each for each in self._flushing if each in self._measured and each not in self.load.hung)
        under_way = sum(self._measured[tablet].held for tablet in answering)
        if self.load.memtable_bytes - under_way <= self.options.memtable_bytes:
            return
        free = [replica for replica in self.replicas.values() if self._may_flush(replica)]
        largest = max(free, key=lambda replica: replica.store.memory_bytes, default=None)
        if largest is not None and largest.store.memory_bytes:
            self._begin_flush(largest)

    def _flush_due(self, replicas: Iterable[Replica]) -> None:
        """Flush replicas with many frozen memtables (each scan between two writes freezes one, and reads visit all of them), and
        those whose entries wait for it."""
        for replica in replicas:
            if replica.full and replica.state == RUNNING:
                self.rounds.touched[replica.tablet] = replica  # its flush may have to wait, or fail
            if (replica.full or len(replica.store.frozen) > FROZEN_MAX) and self._may_flush(replica):
                self._begin_flush(replica)

    def _may_flush(self, replica: Replica) -> bool:
        measured = self._measured.get(replica.tablet)
        return (
            replica.state == RUNNING
            and measured is not None
            and replica.tablet not in self.load.hung  # its compaction may hang, and then no flush begins
            and self._next_flush.get(measured.place, 0.0) <= self.world.now()
        )

    def _begin_flush(self, replica: Replica) -> None:
        place = self._measured[replica.tablet].place
        self._next_flush[place] = math.inf
        self.world.spawn(self._flush_beside(replica, place), f"flush of {replica.tablet}")

    async def _flush_beside(self, replica: Replica, place: str) -> None:
        pause_s, before = 0.0, replica.store.flushed
        try:
            await self.flush_if_running(replica)
        except (DiskFull, TooManyFiles):
            self.world.faults.reached("tablet.maintenance.disk_full")
            pause_s = DISK_FULL_PAUSE_S
        self._next_flush[place] = self.world.now() + pause_s
        self.measure([replica])
        if replica.store.flushed != before:  # not if its disk hangs, or it is gone
            self._flush_largest()  # waiting for the next check would flush one small memtable each time, and writers wait

    def _take_touched(self) -> list[Replica]:
        """The replicas that have changed since the last check, and some idle ones, whose turn it is: what keeps an idle
        replica's log or answers may have ended elsewhere."""
        touched, self.rounds.touched = self.rounds.touched, {}
        if not self._turn:
            self._turn = list(self.replicas)
        now = self.world.now()
        first = max(0, len(self._turn) - math.ceil(len(self.replicas) * (now - self._turned_at) / TURNS_S))
        for tablet in self._turn[first:]:
            if tablet in self.replicas:
                touched[tablet] = self.replicas[tablet]
        del self._turn[first:]
        self._turned_at = now
        return list(touched.values())

    def _expire(self, replica: Replica) -> None:
        """Expire the answers of idle clients, unless this replica does not lead or an entry for it is under way."""
        retention_us = int(self.options.results_retention_s * 1e6)
        applied, (term, index) = replica.store.applied, replica.expiry_asked
        before_us = applied.time_us - retention_us
        under_way = term == replica.core.term and index > applied.index
        if self.rounds.disk_full or not replica.leads or under_way:
            return
        if not replica.store.results.expired(before_us - retention_us // EXPIRY_STEPS):
            return
        now, body = self.world.now(), msgspec.msgpack.encode(before_us)
        try:
            entry = self.rounds.step(replica, replica.propose, now, EXPIRE, body)
        except errors.NotLeader:
            return  # it hands over
        replica.expiry_asked = entry.term, entry.index

    def _drop(self, replica: Replica) -> None:
        """Drop entries that are flushed here and held everywhere, and under pressure those that are only flushed; but none
        that a copy from here needs, and no configuration that the consensus record does not have yet."""
        options, log = self.options, replica.log
        flushed = replica.store.flushed.index
        index = max(
            min(flushed, replica.core.all_replicated_index),
            log.excess(options.log_retained_entries_max, options.log_retained_bytes_max, flushed),
        )
        anchor = self.retention.anchor(replica.tablet)
        if anchor is not None:
            index = min(index, anchor)
        for at, made in replica.core.log.configurations.items():
            if made.index > replica.configuration_saved:
                index = min(index, at - 1)
        if index > log.dropped.index:
            log.drop_to(index)
            replica.core.log.drop_to(index)
            self.rounds.stir(replica)

    async def _trim_shared(self) -> None:
        """Trim the older half, after needed entries have moved to private logs, durably. Not before all replicas are loaded: only then
        is it known which entries they need."""
        if self.lifecycle.unloaded:
            return
        below = self.shared.first_seq + (self.rounds.synced_seq - self.shared.first_seq) // 2
        for replica in list(self.replicas.values()):
            if replica.state != RUNNING:
                continue  # its disk may hang
            async with replica.moving:
                try:
                    await self._move(replica, below)
                except (errors.AlreadyInProgress, TooManyFiles):
                    pass  # its entries stay in the shared log for now
                except (Corruption, Damaged) as error:
                    replica.fail(error)
        await self.lifecycle.abandon(below)
        await self.world.faults.here("tablet.shared_log.before_trim")
        needed = [
            replica.log.oldest_shared_seq() for replica in self.replicas.values() if replica.state == RUNNING
        ]
        needed += self._needed_by_stopped()
        await self.shared.trim(min([below, *(seq for seq in needed if seq is not None)]))
        await self.world.faults.here("tablet.shared_log.after_trim")

    def _needed_by_stopped(self) -> list[int]:
        """The entries that replicas need which become tombstones: a start brings them back until the tombstone is on disk, which
        waits for the server's own disk only."""
        waiting = [each.needs for each in self.lifecycle.tombstones.values() if not each.durable]
        return [seq for seq in waiting if seq is not None]

    async def _move(self, replica: Replica, below_seq: int) -> None:
        began, before = self.world.now(), replica.log.private_last
        await replica.log.move(below_seq)
        if replica.log.private_last > before:
            self._synced(PRIVATE_LOG, began)
        await self.world.faults.here("tablet.private_log.before_trim")
        await replica.log.trim_private()
        await self.world.faults.here("tablet.private_log.after_trim")

    def _synced(self, environment: str, began: float) -> None:
        self.rounds.tally.syncs[environment].add(self.world.now() - began)
