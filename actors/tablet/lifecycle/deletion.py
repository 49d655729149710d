"""Deletion of a replica: to a tombstone, which remembers and votes, or for good.

    tombstone   its server left the configuration, or a copy is about to replace it. The seed's six steps: 1
                the replica stops, and votes and is reported as a tombstone at once; 2, 3 the quarantine gets
                its superblock; 4 the superblock says deleted, where the log ended, and where the data goes:
                from here on it is a tombstone; 5 the quarantine gets term and vote; 6 log and rows move
                there. After a crash that interrupts a step after 4, a start finishes the rest
    for good    its table was dropped, or its tablet replaced: superblock "deleting" first, then rows, log,
                term and vote, superblock; after a crash, a start finishes the rest. Only the master's
                evidence starts it

A failure half-way (a full disk) leaves no file open: the same request completes the deletion later.
A tombstone needs no request: the rest is tried again every RETRY_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.records import ConsensusState
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.waits import within
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.tombstones import ENDED, MARKED, Tombstone
from ebla.storage.errors import DiskFailed, StorageError
from ebla.storage.logs.entries import Position
from ebla.storage.tablets.restore import Quarantined

log = logging.getLogger(__name__)

RETRY_S = 5.0
WAITS_S = 5.0  # shorter than the timeouts of callers


class RunningCopy(Protocol):
    """A copy of a tablet to this server, as its deletion sees it."""

    done: asyncio.Event

    def cancel(self) -> None: ...


class Deletion:
    """Deletes replicas. `copies`: the copies to this server, by tablet. `on_closing` is called
    before a replica's files are closed."""

    def __init__(
        self, lifecycle: Lifecycle, copies: Mapping[str, RunningCopy], on_closing: Callable[[str], None]
    ) -> None:
        self.lifecycle = lifecycle
        self.copies = copies
        self.on_closing = on_closing
        self.world = lifecycle.world

    def start(self) -> None:
        self.world.spawn(self._finish_all(), "unfinished tombstones")

    async def _finish_all(self) -> None:
        while True:
            await self.world.clock.sleep(RETRY_S)
            for tombstone in list(self.lifecycle.tombstones.values()):
                if not (tombstone.durable and tombstone.finished) and not self.lifecycle.in_transition(
                    tombstone.tablet
                ):
                    await self._finish(tombstone)

    async def _finish(self, tombstone: Tombstone) -> None:
        """Try again to set the data aside. No one else retries: the replica is already reported as
        a tombstone."""
        async with self.lifecycle.transition(tombstone.tablet):
            if self.lifecycle.tombstones.get(tombstone.tablet) is not tombstone:
                return
            try:
                await self.entomb(tombstone.tablet, tombstone.superblock.reason)
            except DiskFailed:
                raise
            except StorageError as error:
                if str(error) != tombstone.trouble:  # logged once, not every RETRY_S
                    log.warning("tablet %s is not set aside yet: %s", tombstone.tablet, error)
                tombstone.trouble = str(error)

    # -- requests of the master

    async def delete(self, request: m.DeleteTabletRequest) -> None:
        """Delete a replica, durably when it returns. A no-op if the replica is absent or already
        deleted in this way.

        A replica that is deleted for good serves until its superblock says so durably. A replica
        that becomes a tombstone stops first, because the superblock records its last position; from
        then on it votes as a tombstone, and a start before that commit brings the replica back with
        these votes. A tombstone stays one, for any configuration in the request.
        """
        lifecycle, tablet = self.lifecycle, request.tablet
        async with self._turn(tablet):
            if not request.tombstone:
                await self._end_copy(tablet)
                await self._for_good(tablet)
            elif lifecycle.superblock(tablet) is not None:
                self._require_excluded(request)
                await self._end_copy(tablet)
                self._require_excluded(request)
                await self.entomb(tablet, request.reason, request.configuration_unsafe)
        if lifecycle.get(tablet) is None:
            lifecycle.forget_transition(tablet)

    @contextlib.asynccontextmanager
    async def _turn(self, tablet: str) -> AsyncIterator[None]:
        """Hold the transition, and wait a limited time for it. A transition may hang for days, and
        the caller repeats its call, so no call may leave a waiter behind."""
        lock = self.lifecycle.transition(tablet)
        await self._in_time(lock.acquire(), f"tablet {tablet} is being made, copied or deleted")
        try:
            yield
        finally:
            lock.release()

    async def _end_copy(self, tablet: str) -> None:
        """End the copy within a limited time. If its disk hangs, the copy ends when the disk answers."""
        await self._in_time(self.cancel_copy(tablet), f"the copy of tablet {tablet} is to end")

    async def cancel_copy(self, tablet: str) -> None:
        """End the copy, if there is one, and wait until a tombstone, or a replica that was ready
        already, is left."""
        copy = self.copies.get(tablet)
        if copy is not None:
            copy.cancel()
            await copy.done.wait()

    async def _in_time(self, act: Awaitable[object], what: str) -> None:
        late = errors.Unavailable(f"{what} on {self.world.address}, and waits for its disk; ask again")
        await within(self.world.clock, act, WAITS_S, late)

    def _require_excluded(self, request: m.DeleteTabletRequest) -> None:
        """Require the evidence: a configuration at least as new as ours, without us. A tombstone
        needs none."""
        tablet, index, unsafe = request.tablet, request.configuration_index, request.configuration_unsafe
        if self.lifecycle.state_of(tablet) == m.DELETED:
            return
        known, order = self._configuration(request), (unsafe, -2 if index is None else index)
        if known.order > order or (known.order == order and known.peer(self.lifecycle.me)):
            raise errors.ConfigurationMoved(
                f"tablet {tablet} has configuration {known.index} here; the request is based on {index}",
                tablet=tablet,
                found=known.index,
            )

    def _configuration(self, request: m.DeleteTabletRequest) -> Configuration:
        """The committed configuration; or the uncommitted one, if that includes us, unless a leader
        of a later term is not adding us: then that leader's log lacks it, and it can never be
        committed."""
        replica = self.lifecycle.replicas.get(request.tablet)
        if replica is None:
            state = self.lifecycle.consensus_of(request.tablet)
            return Configuration(()) if state is None else state.configuration
        core = replica.core
        committed, active = core.committed_configuration, core.configuration
        if active == committed or active.peer(self.lifecycle.me) is None:
            return committed
        appended = max(at for at, made in core.log.configurations.items() if made == active)
        return committed if core.log.term_at(appended) < request.term else active

    # -- tombstones

    async def entomb(self, tablet: str, reason: str, unsafe: int = 0) -> Tombstone:
        """Make the replica a tombstone; the caller holds the transition. Durable when it returns,
        with the data in quarantine. `unsafe`: the forced epoch that the caller knows."""
        assert self.lifecycle.in_transition(tablet), ("a replica is deleted in a transition", tablet)
        tombstone = self.lifecycle.tombstones.get(tablet)
        if tombstone is None:
            tombstone = self._stop(tablet, reason, unsafe)
        elif unsafe > tombstone.superblock.unsafe:
            await self._supersede(tombstone, unsafe)
        if not tombstone.durable:
            await self._mark(tombstone, reason)
        await self._close_former(tombstone, keep=True)
        if not tombstone.finished:
            await self.lifecycle.finish(tombstone)
        assert tombstone.durable and tombstone.finished, (
            "a tombstone is on disk, and its data set aside",
            tablet,
        )
        assert tablet not in self.lifecycle.replicas, ("a tombstone has no replica", tablet)
        return tombstone

    async def _supersede(self, tombstone: Tombstone, unsafe: int) -> None:
        """Record the forced epoch durably: a tombstone cannot ask again."""
        assert unsafe > tombstone.superblock.unsafe, (
            "a forced epoch never goes back",
            tombstone.tablet,
            unsafe,
        )
        tombstone.superseded(unsafe)
        noted = msgspec.structs.replace(tombstone.superblock, unsafe=unsafe)
        if tombstone.durable:
            await self.lifecycle.superblocks.save(tombstone.tablet, noted)
        tombstone.superblock = noted

    def _stop(self, tablet: str, reason: str, unsafe: int) -> Tombstone:
        """Do step 1. Every acknowledged entry is in the log; the end of the log of a replica that
        did not come up is unknown. Nothing here waits for a disk that may hang: until the superblock is on disk, a start
        brings the replica back, and needs its entries."""
        lifecycle = self.lifecycle
        replica = lifecycle.replicas.get(tablet)
        superblock = lifecycle.superblock(tablet)
        assert superblock is not None, ("a replica has a superblock", tablet)
        last: Position | None = replica.log.last if replica else None
        durable = lifecycle.consensus_of(tablet)  # None if damaged: the tombstone does not vote
        consensus = replica.consensus() if replica else durable
        name = f"{tablet}-{self.world.clock.wall_us()}"
        mark = max(superblock.unsafe, unsafe, replica.core.committed_forced_epoch if replica else 0)
        marked = msgspec.structs.replace(
            superblock, state=m.DELETED, last=last, quarantine=name, reason=reason, unsafe=mark
        )
        tombstone = lifecycle.tombstones[tablet] = lifecycle.tombstone(marked, consensus, durable)
        lifecycle.take_out(tablet)
        if replica is not None:
            tombstone.former, tombstone.former_ran = replica, replica.state == RUNNING
            tombstone.needs = replica.log.oldest_shared_seq()
            self._end_service(replica)
        elif tablet in lifecycle.broken:
            tombstone.needs = 0  # it is not known which of its entries are in the shared log
        lifecycle.broken.pop(tablet, None)
        return tombstone

    def _end_service(self, replica: Replica) -> None:
        replica.close()
        self.on_closing(replica.tablet)

    async def _close_former(self, tombstone: Tombstone, *, keep: bool) -> None:
        """Close the files of the replica that was there before."""
        if tombstone.former is not None:
            await self._close(tombstone.former, keep=keep and tombstone.former_ran)
            tombstone.former = None

    async def _close(self, replica: Replica, *, keep: bool) -> None:
        """Close the files of a replica that has stopped. With `keep`, flush and move its entries if
        possible: no promise depends on this."""
        assert replica.tablet not in self.lifecycle.replicas, (
            "a closed replica does not serve",
            replica.tablet,
        )
        async with replica.upkeep, replica.moving:  # a flush or a move under way
            if keep:
                try:
                    await replica.store.flush()
                    await replica.log.move(self.lifecycle.rounds.synced_seq)
                except DiskFailed:
                    raise
                except StorageError as error:
                    log.warning("the unflushed end of tablet %s is not kept: %s", replica.tablet, error)
            await replica.store.close()
            if replica.log.private is not None:
                await replica.log.private.environment.close()

    async def _mark(self, tombstone: Tombstone, reason: str) -> None:
        """Do steps 2 to 4. A start drops quarantined data that no superblock names."""
        lifecycle, superblock = self.lifecycle, tombstone.superblock
        assert superblock.quarantine, ("a tombstone's data has a place", tombstone.tablet)
        await self.world.faults.here("tablet.entomb.before_mark")
        consensus = ConsensusState(tombstone.hard_state, tombstone.configuration)
        record = Quarantined(
            superblock.quarantine,
            superblock.tablet,
            superblock.table_name,
            reason,
            self.world.clock.wall_us(),
            superblock.last.index if superblock.last else 0,
            msgspec.msgpack.encode(superblock),
            msgspec.msgpack.encode(consensus),
        )
        await lifecycle.quarantine.add(record)
        await self.world.faults.here("tablet.entomb.after_quarantine")
        await lifecycle.superblocks.save(tombstone.tablet, superblock)
        tombstone.move(MARKED)
        await self.world.faults.here("tablet.entomb.after_mark")

    # -- for good

    async def _for_good(self, tablet: str) -> None:
        lifecycle = self.lifecycle
        replica = lifecycle.replicas.get(tablet)
        superblock = replica.superblock if replica else lifecycle.superblock(tablet)
        if superblock is None:
            return
        assert lifecycle.in_transition(tablet), ("a replica is deleted in a transition", tablet)
        marked = msgspec.structs.replace(superblock, state="deleting")
        await self.world.faults.here("tablet.delete.before_mark")
        await lifecycle.superblocks.save(tablet, marked)
        await self.world.faults.here("tablet.delete.after_mark")
        lifecycle.note_removed(tablet)
        tombstone = lifecycle.tombstones.pop(tablet, None)
        if tombstone is not None:
            unfinished = not tombstone.finished
            async with tombstone.turn:  # a vote under way must not write the record again
                tombstone.move(ENDED)
            await self._close_former(tombstone, keep=False)
        if replica is not None:
            lifecycle.take_out(tablet)
            self._end_service(replica)
            await self._close(replica, keep=False)
        await lifecycle.remove(tablet)
        lifecycle.broken.pop(tablet, None)
        if tombstone is not None and unfinished:
            lifecycle.quarantine.give_up(tombstone.superblock.quarantine)
