"""How a replica comes to be on this server, comes back at start, and goes.

create   consensus state, then empty data, then the superblock: from that commit on the replica exists
load     superblocks say what there is; each replica comes up on its own, a damaged one comes up failed, and so
         does one whose schema this version cannot use
delete   superblock "deleting" first, then data, private log, consensus state, superblock; a crash between any
         two steps is finished at the next start. Only the master's evidence starts it (the table was dropped,
         or the tablet replaced), never ignorance.

Whatever fails half-way (a full disk) leaves nothing open: the same request, sent again, is carried out.
"""

from __future__ import annotations

import asyncio

import msgspec

from ebla.actors.messages import CreateTabletRequest
from ebla.actors.tablet import bootstrap
from ebla.actors.tablet.apply import Rows, codec_of
from ebla.actors.tablet.broken import Broken
from ebla.actors.tablet.log import TabletLog
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.tablet.raft.log_index import LogIndex
from ebla.actors.tablet.raft.messages import HardState
from ebla.actors.tablet.replica import FAILED, ConsensusState, Replica, Superblock
from ebla.actors.tablet.rounds import Rounds
from ebla.actors.world import World
from ebla.storage import alteration, checksum, private_log, tablet_store
from ebla.storage.entries import START
from ebla.storage.errors import Corruption, Damaged, EblaError, InvalidArgument
from ebla.storage.records import RecordStore
from ebla.storage.schema import TableSchema
from ebla.storage.shared_log import SharedLog
from ebla.storage.tablet_store import TabletStore


class Lifecycle:
    def __init__(
        self,
        world: World,
        options: TabletServerOptions,
        me: str,
        replicas: dict[str, Replica],
        superblocks: RecordStore[Superblock],
        consensus: RecordStore[ConsensusState],
        shared: SharedLog,
        rounds: Rounds,
    ) -> None:
        self.world = world
        self.options = options
        self.me = me
        self.replicas = replicas
        self.superblocks = superblocks
        self.consensus = consensus
        self.shared = shared
        self.rounds = rounds
        self._transitions: dict[str, asyncio.Lock] = {}
        self.broken: dict[str, Broken] = {}

    # -- start

    async def load(self) -> None:
        ready: list[Superblock] = []
        for name, superblock in self.superblocks.all():
            if isinstance(superblock, Corruption):
                self._break(name, superblock)
            elif superblock.state == "deleting":
                await self._remove(name)
            elif superblock.state == "failed":
                self._break(name, Damaged(superblock.reason))
            else:
                ready.append(superblock)
        tails: dict[str, bootstrap.Tail] = {}
        privates: dict[str, private_log.PrivateLog | None] = {}
        for superblock in ready:
            tablet = superblock.tablet
            try:
                privates[tablet], tails[tablet] = await bootstrap.open_private(self.world.disk, tablet)
            except (Corruption, Damaged) as error:
                self._break(tablet, error)
        bootstrap.gather(self.shared.recover(), tails)
        for superblock in ready:
            tablet = superblock.tablet
            if tablet in self.broken:
                continue
            private = privates[tablet]
            try:
                self._add(await self._load(superblock, private, tails.pop(tablet)))
            except (Corruption, Damaged, InvalidArgument) as error:
                if private is not None:
                    await private.environment.close()
                self._break(tablet, error)

    def _break(self, tablet: str, error: EblaError) -> None:
        try:
            consensus = self.consensus.get(tablet)
        except Corruption:
            consensus = None
        self.broken[tablet] = Broken(tablet, str(error), consensus.configuration if consensus else None)

    async def _load(
        self, superblock: Superblock, private: private_log.PrivateLog | None, tail: bootstrap.Tail
    ) -> Replica:
        tablet = superblock.tablet
        consensus = self.consensus.get(tablet)
        if consensus is None:
            raise Damaged(f"the consensus metadata of tablet {tablet} is missing: its votes are forgotten")
        store = await self._open_store(tablet, create=False)
        try:
            log, index, time_us = bootstrap.rebuild(
                tablet, self.world.disk, self.shared, private, tail, store.flushed
            )
            rows = _rows(superblock, store)
            return self._replica(superblock, consensus, rows, log, index, time_us)
        except BaseException:
            await store.close()
            raise

    # -- create

    async def create(self, request: CreateTabletRequest) -> Replica:
        """Idempotent. Durable when it returns: the replica exists, with term, vote and configuration."""
        tablet = request.tablet
        request.schema.validate()
        codec_of(request.schema)
        if request.configuration.peer(self.me) is None:
            raise InvalidArgument(f"server {self.me} is not in the configuration of tablet {tablet}")
        async with self._transition(tablet):
            existing = self.replicas.get(tablet)
            if existing is not None:
                return existing
            if tablet in self.broken:
                raise self.broken[tablet].refusal()
            consensus = ConsensusState(HardState(), request.configuration)
            superblock = Superblock.of(request)
            if self._superblock(tablet) is not None:
                await self._remove(tablet)  # a deletion that a full disk held up
            await self.world.faults.here("tablet.create.before_consensus")
            await self.consensus.save(tablet, consensus)
            await self.world.faults.here("tablet.create.before_data")
            store = await self._open_store(tablet, create=True)
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
            log = TabletLog(tablet, self.world.disk, self.shared)
            replica = self._replica(superblock, consensus, _rows(superblock, store), log, LogIndex(0, 0), 0)
            self._add(replica)
            return replica

    # -- delete

    async def delete(self, tablet: str) -> None:
        """Durable when it returns. Absent is ok. Until the mark is durable the replica serves as before."""
        async with self._transition(tablet):
            replica = self.replicas.get(tablet)
            superblock = replica.superblock if replica else self._superblock(tablet)
            if superblock is None:
                return
            marked = msgspec.structs.replace(superblock, state="deleting")
            await self.world.faults.here("tablet.delete.before_mark")
            await self.superblocks.save(tablet, marked)
            await self.world.faults.here("tablet.delete.after_mark")
            if replica is not None:
                del self.replicas[tablet]
                replica.close()
                async with replica.upkeep:  # a flush or a move under way
                    await replica.store.close()
                    if replica.log.private is not None:
                        await replica.log.private.environment.close()
            await self._remove(tablet)
            self.broken.pop(tablet, None)
        self._transitions.pop(tablet, None)

    # -- failure

    async def abandon(self, below_seq: int) -> None:
        """Durable when it returns: whoever is failed and may need entries of the shared log below this stays failed.
        Their entries would help to understand them, but must not fill the disk; and a voter that came back without
        what it acknowledged could help to lose it."""
        for replica in list(self.replicas.values()):
            needed_seq = replica.log.oldest_shared_seq()
            if replica.state == FAILED and needed_seq is not None and needed_seq < below_seq:
                await self._abandon(replica.tablet, replica.error or "")
        for broken in list(self.broken.values()):
            await self._abandon(broken.tablet, broken.error)

    async def _abandon(self, tablet: str, reason: str) -> None:
        async with self._transition(tablet):
            try:
                superblock = self.superblocks.get(tablet)
            except Corruption:
                return  # it cannot come back
            if superblock is not None and superblock.state == "ready":
                marked = msgspec.structs.replace(superblock, state="failed", reason=reason)
                await self.world.faults.here("tablet.abandon.before_mark")
                await self.superblocks.save(tablet, marked)
                await self.world.faults.here("tablet.abandon.after_mark")

    def _superblock(self, tablet: str) -> Superblock | None:
        """What to mark as being deleted; a damaged superblock is replaced by one that says only that."""
        try:
            return self.superblocks.get(tablet)
        except Corruption:
            return Superblock(tablet, "", "", TableSchema((), ()), 0)

    async def _remove(self, tablet: str) -> None:
        disk = self.world.disk
        await disk.remove(tablet_store.path_of(tablet))
        await self.world.faults.here("tablet.delete.after_data")
        await disk.remove(private_log.path_of(tablet))
        await self.world.faults.here("tablet.delete.after_log")
        await self.consensus.environment.commit([self.consensus.delete(tablet)])
        await self.world.faults.here("tablet.delete.after_consensus")
        await self.superblocks.environment.commit([self.superblocks.delete(tablet)])
        await self.world.faults.here("tablet.delete.after_superblock")

    # -- helpers

    def _transition(self, tablet: str) -> asyncio.Lock:
        return self._transitions.setdefault(tablet, asyncio.Lock())

    async def _open_store(self, tablet: str, *, create: bool) -> TabletStore:
        retention_us = int(self.options.results_retention_s * 1_000_000)
        return await TabletStore.open(self.world.disk, tablet, create=create, retention_us=retention_us)

    def _replica(
        self,
        superblock: Superblock,
        consensus: ConsensusState,
        rows: Rows,
        log: TabletLog,
        index: LogIndex,
        time_us: int,
    ) -> Replica:
        options = self.options
        limits = RaftLimits(
            heartbeat_s=options.raft_heartbeat_s,
            election_s_min=options.election_s_min,
            lease_s=options.lease_s,
            append_bytes_max=options.append_bytes_max,
        )
        core = RaftCore(
            superblock.tablet,
            self.me,
            consensus.hard_state,
            consensus.configuration,
            index,
            limits,
            self.world.random,
            self.world.clock.monotonic(),
            commit_index=rows.store.flushed.index,
        )
        log.faults = self.world.faults
        rounds, wall_us = self.rounds, self.world.clock.wall_us
        return Replica(superblock, core, log, rows, rounds.write, wall_us, rounds.tally, time_us)

    def _add(self, replica: Replica) -> None:
        self.replicas[replica.tablet] = replica
        replica.absorb()
        self.rounds.touch(replica)


def _rows(superblock: Superblock, store: TabletStore) -> Rows:
    """With the schema that the flushed rows are of. Raises InvalidArgument, Corruption."""
    seed = checksum.seed(superblock.tablet)
    if store.alteration is None:
        return Rows(store, codec_of(superblock.schema), seed)
    try:
        altered = alteration.decode(store.alteration)
    except msgspec.MsgspecError as error:
        path = store.environment.path
        raise Corruption(f"the alteration in {path} cannot be read: {error}", path=path) from error
    return Rows(store, codec_of(altered.schema), seed, altered.dropped)
