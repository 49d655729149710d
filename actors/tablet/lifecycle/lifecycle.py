"""Creation of replicas, and their parts. Start is in starting.py, deletion in deletion.py, copies are in copy/copies.py.

create   consensus state, then empty data, then the superblock: from that commit on the replica exists
load     what the disk has of it, checked part against part: for a start, and after a copy

A failure half-way (a full disk) leaves no file open: the same request completes the work later.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import msgspec

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.pacifica import BallotRecord
from ebla.actors.replication.configuration import Configuration, with_shared_peers
from ebla.actors.tablet.engine.apply import Rows
from ebla.actors.tablet.engine.core import Replication, Voter
from ebla.actors.tablet.engine.log import TabletLog
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.records import ConsensusState, Superblock
from ebla.actors.tablet.engine.replica import FAILED, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.lifecycle import bootstrap
from ebla.actors.tablet.lifecycle.bootstrap import Unloaded
from ebla.actors.tablet.lifecycle.failed import Broken
from ebla.actors.tablet.lifecycle.tombstones import RECEIVING, SET_ASIDE, Tombstone
from ebla.actors.world import World
from ebla.storage.directories.records import RecordStore
from ebla.storage.errors import Corruption, Damaged, InvalidArgument
from ebla.storage.logs import private_log
from ebla.storage.logs.entries import START, Position
from ebla.storage.rows import checksum
from ebla.storage.rows.codecs import codec_of, shared
from ebla.storage.schema import TableSchema
from ebla.storage.tablets import tablet_store
from ebla.storage.tablets.positions import altered
from ebla.storage.tablets.quarantine import Quarantine
from ebla.storage.tablets.tablet_store import TabletStore

REMOVED_MAX = 100_000  # ids of tablets that were deleted for good, since the start


@dataclass(frozen=True)
class Parts:
    """The parts of a replica."""

    rows: Rows
    log: TabletLog
    index: LogIndex


@dataclass(eq=False)
class Lifecycle:
    world: World
    me: str
    protocols: Replication
    replicas: dict[str, Replica]
    superblocks: RecordStore[Superblock]
    rounds: Rounds
    quarantine: Quarantine

    def __post_init__(self) -> None:
        self.consensus = self.rounds.consensus
        self.shared = self.rounds.shared
        self.appointed: dict[str, Replica] = {}  # those of `replicas` whose leader the master appoints
        self.broken: dict[str, Broken] = {}
        self.tombstones: dict[str, Tombstone] = {}
        self.unloaded: dict[str, Unloaded] = {}  # replicas that the start of the server has not loaded yet
        self._removed: dict[str, None] = {}
        self._transitions: dict[str, asyncio.Lock] = {}

    # -- views

    def all(self) -> dict[str, Replica | Broken | Tombstone]:
        """What this server holds; it may be thousands of tablets, so `get` looks for one."""
        return {**self.tombstones, **self.broken, **self.replicas}

    def get(self, tablet: str) -> Replica | Broken | Tombstone | None:
        return self.replicas.get(tablet) or self.broken.get(tablet) or self.tombstones.get(tablet)

    def state_of(self, tablet: str) -> str:
        held = self.get(tablet)
        return m.DOES_NOT_EXIST if held is None else held.state

    def pending(self) -> dict[str, Configuration]:
        """By tablet, the configurations in force that are not known to be committed."""
        cores = [replica.core for replica in self.replicas.values()]
        return {
            core.tablet: core.configuration
            for core in cores
            if core.configuration != core.committed_configuration
        }

    def was_removed(self, tablet: str) -> bool:
        return tablet in self._removed

    def note_removed(self, tablet: str) -> None:
        self._removed[tablet] = None
        if len(self._removed) > REMOVED_MAX:
            del self._removed[next(iter(self._removed))]

    def consensus_of(self, tablet: str) -> ConsensusState | None:
        """The consensus state; None if there is none, or if it is damaged: then the votes are forgotten."""
        try:
            return self.consensus.get(tablet)
        except Corruption:
            return None

    def superblock(self, tablet: str) -> Superblock | None:
        """The superblock, to change its state; a damaged one is replaced by one with the tablet's id only."""
        try:
            return self.superblocks.get(tablet)
        except Corruption:
            return Superblock(tablet, "", "", TableSchema((), ()), 0)

    # -- parts

    async def put_together(
        self,
        superblock: Superblock,
        private: private_log.PrivateLog | None,
        tail: bootstrap.Tail,
    ) -> Parts:
        """Load rows and log, and check them against each other. Raises Corruption, Damaged,
        InvalidArgument; then the rows are closed."""
        store = await TabletStore.open(
            self.world.disk, superblock.tablet, create=False, schema=superblock.schema
        )
        try:
            make_log = partial(self._log, superblock.tablet, private)
            log, index = bootstrap.rebuild(make_log, tail, store.flushed)
            return Parts(_rows(superblock, store), log, index)
        except BaseException:
            await store.close()
            raise

    def _log(self, tablet: str, private: private_log.PrivateLog | None, dropped: Position) -> TabletLog:
        disk, faults = self.world.disk, self.world.faults
        return TabletLog(tablet, disk, self.shared, private, dropped, self._note_private_log, faults)

    async def _note_private_log(self, made: TabletLog) -> None:
        """Record the private log durably: from now on a missing private log is damage. Called after
        the log is created, before its first entry. The record is in the superblock, since the disk
        of the rows may hang. Raises AlreadyInProgress if the superblock is about to change."""
        tablet = made.tablet
        replica = self.replicas.get(tablet)
        if replica is None or replica.log is not made:
            return  # the replica goes into quarantine, and no promise depends on this log
        if self.in_transition(tablet):
            raise errors.AlreadyInProgress(f"tablet {tablet} is being copied or deleted", tablet=tablet)
        noted = msgspec.structs.replace(replica.superblock, private_log=True)
        await self.superblocks.save(tablet, noted)
        replica.superblock = noted

    # -- create

    async def create(self, request: m.CreateTabletRequest) -> Replica:
        """Create a replica; idempotent. Durable when it returns: the replica exists, with term,
        vote and configuration."""
        tablet = request.tablet
        request.schema.validate()
        codec_of(request.schema)
        if request.configuration.peer(self.me) is None:
            raise InvalidArgument(f"server {self.me} is not in the configuration of tablet {tablet}")
        async with self.transition(tablet):
            existing = self.replicas.get(tablet)
            if existing is not None:
                return existing
            if tablet in self.broken:
                raise self.broken[tablet].refusal()
            if tablet in self.tombstones:
                raise errors.IllegalState(
                    f"tablet {tablet} was here before and is a tombstone; its leader copies it",
                    tablet=tablet,
                    state=self.tombstones[tablet].state,
                )
            assert self.get(tablet) is None, ("a tablet has one replica here", tablet)
            consensus = ConsensusState(
                self.protocols.first_hard_state(request.configuration), request.configuration
            )
            superblock = Superblock.of(request, self.shared.next_seq)
            if self.superblock(tablet) is not None:
                await self.remove(tablet)  # finish a deletion that a full disk has delayed
            await self.world.faults.here("tablet.create.before_consensus")
            await self.consensus.save(tablet, consensus)
            await self.world.faults.here("tablet.create.before_data")
            store = await TabletStore.open(self.world.disk, tablet, create=True, schema=superblock.schema)
            try:
                if store.flushed != START:
                    raise Damaged(
                        f"tablet {tablet} has data here but no superblock", path=store.environment.path
                    )
                await self.world.faults.here("tablet.create.before_superblock")
                await self.superblocks.save(tablet, superblock)
            except BaseException:
                await store.close()
                raise
            await self.world.faults.here("tablet.create.after_superblock")
            parts = Parts(_rows(superblock, store), self._log(tablet, None, START), LogIndex(0, 0))
            replica = self.replica(superblock, consensus, parts)
            self.add(replica)
            return replica

    # -- failure

    async def abandon(self, below_seq: int) -> None:
        """Mark failed replicas that may need entries of the shared log below this, durably when it
        returns: they stay failed. Their entries must not fill the disk, and a voter that returned
        without acknowledged entries could help to lose them."""
        for replica in list(self.replicas.values()):
            needed_seq = replica.log.oldest_shared_seq()
            if replica.state == FAILED and needed_seq is not None and needed_seq < below_seq:
                await self._abandon(replica.tablet, replica.error or "")
        for broken in list(self.broken.values()):
            await self._abandon(broken.tablet, broken.error)

    async def _abandon(self, tablet: str, reason: str) -> None:
        if self._as_ready(tablet) is None:  # do not wait for a deletion that hangs with its disk
            return
        async with self.transition(tablet):
            superblock = self._as_ready(tablet)
            if superblock is not None:
                marked = msgspec.structs.replace(superblock, state="failed", reason=reason)
                await self.world.faults.here("tablet.abandon.before_mark")
                await self.superblocks.save(tablet, marked)
                await self.world.faults.here("tablet.abandon.after_mark")

    def _as_ready(self, tablet: str) -> Superblock | None:
        """The superblock, if a start would bring the replica up."""
        try:
            superblock = self.superblocks.get(tablet)
        except Corruption:
            return None
        return superblock if superblock is not None and superblock.state == "ready" else None

    # -- completion of interrupted transitions

    async def remove(self, tablet: str) -> None:
        """Do everything that the state "deleting" requires."""
        assert tablet not in self.replicas, ("only a stopped replica is removed", tablet)
        disk = self.world.disk
        await disk.remove(tablet_store.path_of(tablet))
        await self.world.faults.here("tablet.delete.after_data")
        await disk.remove(private_log.path_of(tablet))
        await self.world.faults.here("tablet.delete.after_log")
        await self.consensus.environment.commit([self.consensus.delete(tablet)])
        await self.world.faults.here("tablet.delete.after_consensus")
        await self.superblocks.environment.commit([self.superblocks.delete(tablet)])
        await self.world.faults.here("tablet.delete.after_superblock")

    async def finish(self, tombstone: Tombstone) -> None:
        """Set aside the data of a tombstone, or remove the data of an unfinished copy. A no-op if
        that is done."""
        tablet, quarantine = tombstone.tablet, tombstone.superblock.quarantine
        assert tablet not in self.replicas, ("only a stopped replica's data is set aside", tablet)
        if quarantine:
            await self.quarantine.finish(quarantine, tablet)
        else:
            await self.world.disk.remove(tablet_store.path_of(tablet))
            await self.world.disk.remove(private_log.path_of(tablet))
        tombstone.move(SET_ASIDE)
        await self.world.faults.here("tablet.entomb.after_data")

    # -- helpers

    def transition(self, tablet: str) -> asyncio.Lock:
        """The lock that is held while the replica is created, copied or deleted."""
        return self._transitions.setdefault(tablet, asyncio.Lock())

    def in_transition(self, tablet: str) -> bool:
        lock = self._transitions.get(tablet)
        return lock is not None and lock.locked()

    def forget_transition(self, tablet: str) -> None:
        if not self.in_transition(tablet):
            self._transitions.pop(tablet, None)

    def tombstone(
        self, superblock: Superblock, consensus: ConsensusState | None, durable: ConsensusState | None
    ) -> Tombstone:
        """Make a tombstone. `durable`: the part of `consensus` that is on disk. A replica without a
        record never voted; its protocol is not known before a copy (see Replication.copied)."""
        unknown = Configuration(())
        none = ConsensusState(self.protocols.first_hard_state(unknown), unknown)
        state, saved = consensus or none, durable or none
        voter = self._voter(superblock, state, saved)
        return Tombstone(superblock, state.configuration, voter, self.world.faults)

    def receive(self, tombstone: Tombstone, superblock: Superblock, state: ConsensusState) -> None:
        """Note that a copy is under way. Replaces the in-memory state; the disk is already up to date."""
        assert tombstone.tablet == superblock.tablet, ("a tombstone is of one tablet", tombstone.tablet)
        kept = state.hard_state.term >= tombstone.hard_state.term
        assert kept, ("terms never go back", tombstone.tablet, state.hard_state, tombstone.hard_state)
        tombstone.move(RECEIVING)
        tombstone.superblock, tombstone.configuration = superblock, state.configuration
        tombstone.voter, tombstone.error = self._voter(superblock, state, state), None

    def _voter(self, superblock: Superblock, state: ConsensusState, durable: ConsensusState) -> Voter:
        last = (superblock.last.index, superblock.last.term) if superblock.last else None
        forced_epoch = max(state.configuration.unsafe, superblock.unsafe)
        parts = self.protocols.of(state.hard_state)
        return parts.voter(state.hard_state, durable.hard_state, last, forced_epoch)

    def replica(self, superblock: Superblock, consensus: ConsensusState, parts: Parts) -> Replica:
        superblock = msgspec.structs.replace(superblock, schema=shared(superblock.schema))
        state, flushed = consensus.hard_state, parts.rows.store.flushed
        configuration = with_shared_peers(consensus.configuration)
        made = self.protocols.of(state)
        core = made.core(superblock.tablet, state, configuration, parts.index, flushed.index)
        rounds, now = self.rounds, self.world.now
        return Replica(superblock, core, configuration.index, parts.log, parts.rows, rounds, now)

    def add(self, replica: Replica) -> None:
        known = self.get(replica.tablet)
        assert known is None, ("a tablet has one replica here", replica.tablet, known)
        self.replicas[replica.tablet] = replica
        if isinstance(replica.core.hard_state, BallotRecord):
            self.appointed[replica.tablet] = replica
        self.rounds.step(replica, replica.require_running)

    def take_out(self, tablet: str) -> None:
        """Let a replica that is about to stop be none of this server's."""
        self.replicas.pop(tablet, None)
        self.appointed.pop(tablet, None)


def _rows(superblock: Superblock, store: TabletStore) -> Rows:
    """The rows, with the schema of the flushed rows. Raises InvalidArgument, Corruption."""
    seed = checksum.seed(superblock.tablet)
    if store.alteration is None:
        return Rows(store, codec_of(superblock.schema), seed)
    found = altered(store.alteration, store.environment.path)
    return Rows(store, codec_of(found.schema), seed, found.dropped)
