"""The tablet server: the role that keeps replicas of tablets, and serves those that it leads.

The parts are in the rooms beside it: each room's first page says which. Read engine/replica.py and
engine/rounds.py next.

Promises, each checked by a test of that name:

    an acknowledged write is on the synced logs of a majority, and applied where it was answered
    a retry gets the first answer, from any leader
    a read at the leader sees every write acknowledged before it began
    a replica's data is deleted only on evidence: its table was dropped, its tablet replaced, or its group
    excludes it
    a damaged replica stops alone; the server and its other replicas continue
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

from ebla.actors import catalog_versions, errors, incarnations
from ebla.actors import messages as m
from ebla.actors.catalog_versions import SeenCatalog
from ebla.actors.detector.lease import Lease
from ebla.actors.figures import Figure
from ebla.actors.incarnations import Incarnations
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.job import Job
from ebla.actors.tablet.copy.log_retention import LogRetention
from ebla.actors.tablet.copy.recovery import Recovery
from ebla.actors.tablet.copy.sources import CopySources
from ebla.actors.tablet.copy.verbs import CopyVerbs
from ebla.actors.tablet.engine.batches import check_readable
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.liveness import Liveness
from ebla.actors.tablet.engine.records import ConsensusState, Superblock
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.engine.space import Space
from ebla.actors.tablet.engine.waits import within
from ebla.actors.tablet.lifecycle import bootstrap
from ebla.actors.tablet.lifecycle.deletion import Deletion
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.starting import Starting
from ebla.actors.tablet.measures import Census, measure
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.pacifica.leasing import Leasing
from ebla.actors.tablet.pacifica.orders import Orders, OrderVerbs
from ebla.actors.tablet.protocols import Protocols
from ebla.actors.tablet.serving.admission import Admission, Load
from ebla.actors.tablet.serving.alterations import alter
from ebla.actors.tablet.serving.checksums import Checksums
from ebla.actors.tablet.serving.client_verbs import ClientVerbs
from ebla.actors.tablet.serving.handing_over import hand_over, hand_over_all
from ebla.actors.tablet.serving.member_verbs import MemberVerbs
from ebla.actors.tablet.serving.peer_verbs import PeerVerbs
from ebla.actors.tablet.serving.scans import Scans
from ebla.actors.tablet.upkeep.compactor import Compactor, runs_of
from ebla.actors.tablet.upkeep.maintenance import Maintenance
from ebla.actors.tablet.upkeep.reporter import Active, Reporter
from ebla.actors.tablet.upkeep.scrubber import Scrubber
from ebla.actors.world import Role, World, encode, new_id, rpc, settle
from ebla.storage.directories.records import RecordStore
from ebla.storage.environment import Environment, Instance
from ebla.storage.errors import DiskFull, EblaError, TooManyFiles
from ebla.storage.logs import shared_log
from ebla.storage.logs.entries import CHECKPOINT
from ebla.storage.logs.shared_log import SharedLog
from ebla.storage.tablets.quarantine import Quarantine

RECORDS = "records"
STORIES_MAX = 4
LOAD_S = 1.0  # of a start, which returns earlier if all replicas are loaded


class TabletServer(ClientVerbs, PeerVerbs, CopyVerbs, MemberVerbs, OrderVerbs, Role):
    def __init__(self, world: World, options: TabletServerOptions) -> None:
        options.validate()
        self.world = world
        self.options = options
        self.replicas: dict[str, Replica] = {}
        self.census = Census()
        self.load = Load(options.memtable_bytes)
        self.serving = self.running = False
        self.stopping = False

    # -- life

    async def start(self) -> None:
        disk = self.world.disk
        instance = await disk.open_instance(new_id(self.world.random))
        create = instance.created or not disk.exists(shared_log.PATH)
        records = await disk.open_environment("tablet-meta", [RECORDS], create=create)
        superblocks = RecordStore(records, RECORDS, Superblock)
        if create:
            bootstrap.require_unused(disk, superblocks)
        consensus = await disk.open_environment(
            "consensus-meta", [RECORDS, incarnations.DATABASE, catalog_versions.DATABASE], create=create
        )
        self.shared = await SharedLog.open(disk, create=create)
        self.consensus = RecordStore(consensus, RECORDS, ConsensusState)
        self.identity = self._identify(instance, consensus)
        quarantine = await Quarantine.open(disk, self.options.quarantine_bytes_max)
        self._compose(superblocks, quarantine)
        await self.space.start()
        await self.starting.read()
        self.serving = True
        self.world.neighbours.show(encode(self.instance))
        for part in (self.identity, self.rounds, self.maintenance):
            part.start()
        self.world.spawn(self._tick(), "ticks")
        loaded = asyncio.get_running_loop().create_future()
        self.world.spawn(self._load(loaded), "load")
        with contextlib.suppress(TimeoutError):
            async with self.world.clock.timeout(LOAD_S):
                await loaded

    async def _load(self, loaded: asyncio.Future[None]) -> None:
        """Load all replicas, then start what concerns all of them. An error fails the start, or the role once it has started."""
        try:
            await self.starting.load()
        except EblaError as error:
            if loaded.done():  # the start waits no longer
                raise
            settle(loaded, error)
            return
        if not self.serving:
            return  # it stops
        self.running = True
        settle(loaded, None)
        parts: list[Any] = [self.scrubber, self.deletion, self.copy_sources, self.recovery, *self.reporters]
        for part in (*parts, self.leasing, self.orders):
            part.start()

    def _compose(self, superblocks: RecordStore[Superblock], quarantine: Quarantine) -> None:
        """Make the parts of the server; none of them runs yet."""
        self.checksums = Checksums(self.world)
        live, on_checkpoint = self._liveness(), self.checksums.applied
        self.rounds = Rounds(
            self.world,
            self.identity,
            self.shared,
            self.consensus,
            on_checkpoint,
            live,
            self.options.unflushed_bytes_max,
        )
        self.space = Space(self.world, self.options.disk_reserve_bytes, self.rounds.changed)
        self.scans = Scans(self.world, self.options)
        self.admission = Admission(self.world, self.options, self.rounds, self.load, self.space)
        me, lease = self.instance.uuid, Lease(self.options.detector)
        self.protocols = Protocols(self.world, me, self.options, lease, live.contacts)
        self.lifecycle = Lifecycle(
            self.world, me, self.protocols, self.replicas, superblocks, self.rounds, quarantine
        )
        self.starting = Starting(self.world, self.lifecycle)
        self.leasing = self._leasing(lease)
        self.orders = Orders(
            self.world, self.options, self.identity, self.rounds, self.lifecycle, self._changed
        )
        self.retention = LogRetention(self.options)
        self.compactor = Compactor(self.world, self.rounds, self._replica_changed)
        self.scrubber = Scrubber(self.world, self.options, self._replica_changed)
        self.maintenance = Maintenance(
            self.world,
            self.options,
            self.lifecycle,
            self.retention,
            self.scans,
            self.load,
            self.compactor,
            self.scrubber,
            self._replica_changed,
        )
        self.copy_sources = CopySources(
            self.world,
            self.options,
            self.retention,
            self.maintenance.flush,
            self._replica_changed,
            self.scrubber.doubt,
        )
        jobs: dict[str, Job] = {}
        self.deletion = Deletion(self.lifecycle, jobs, self._closing)
        self.copies = Copies(self.world, self.options, self.lifecycle, self.deletion, jobs, self._changed)
        self.recovery = Recovery(self.world, self.options, self.replicas, self.rounds)
        active = Active()
        self.reporters = [self._reporter(master, active) for master in self.options.masters]

    def _liveness(self) -> Liveness:
        options = self.options
        beat_s, silent_s = options.leader_heartbeat_s, options.election_s_min
        refused_s = options.follower_failed_s / 4
        return Liveness(
            self.world,
            self.identity,
            beat_s,
            options.lease_s,
            silent_s,
            refused_s,
            lambda: self.serving,
            lambda: not self.running,
        )

    def _leasing(self, lease: Lease) -> Leasing:
        return Leasing(
            self.world,
            self.options,
            self.identity,
            self.rounds,
            self.lifecycle.appointed,
            self.lifecycle.tombstones,
            lease,
            lambda: self.running,
            self._changed,
        )

    def _reporter(self, master: str, active: Active) -> Reporter:
        return Reporter(
            self.world, self.options, self.identity, self.lifecycle, master, self.load, self.space, active
        )

    def _identify(self, instance: Instance, environment: Environment) -> Identity:
        known = RecordStore(environment, incarnations.DATABASE, m.ServerInstance)
        shown = m.ServerInstance(instance.uuid, instance.seqno, new_id(self.world.random))
        others, seen = Incarnations(self.world, "tablet", known), SeenCatalog(self.world, environment)
        return Identity(self.world, shown, others, seen, self.options.seqno_s)

    async def stop(self) -> None:
        """Hand leadership over and flush, so that the next start is quick. Durability does not
        depend on it."""
        if not self.serving:
            return
        self.stopping = self.orders.closing = True
        replicas = list(self.replicas.values())
        await hand_over_all(self.world, self.rounds, replicas, self.options.poll_s, self.leasing.holds)
        self.serving = self.running = False  # from here on it neither serves nor leads: see _tick
        await self.copies.close()
        by_disk: dict[str, list[Replica]] = {}
        for replica in self.replicas.values():
            place = self.world.disk.place_of(replica.store.environment.path)
            by_disk.setdefault(place, []).append(replica)
        await asyncio.gather(*map(self._flush_disk, by_disk.values()))

    async def _flush_disk(self, replicas: list[Replica]) -> None:
        """Flush these replicas, which share a disk, until it is full."""
        with contextlib.suppress(DiskFull, TooManyFiles):
            for replica in replicas:
                await self.maintenance.flush_if_running(replica)

    def measure(self) -> Iterable[Figure]:
        self._require_serving()
        return measure(self)

    async def _tick(self) -> None:
        """Let time pass for the replicas, until the server stops serving: without heartbeats its followers elect
        leaders that serve, and it does not campaign."""
        while True:
            if not self.rounds.ticking and not self.rounds.stirred:
                await self.rounds.changed.wait(self.world.clock)
            await self.world.clock.sleep(self.options.leader_heartbeat_s / 3)
            if not self.serving:
                return
            self._pass_time()

    def _pass_time(self) -> None:
        self.rounds.tick(self.world.now())
        stirred = {tablet: self.replicas[tablet] for tablet in self.rounds.stirred if tablet in self.replicas}
        self.rounds.stirred.clear()
        self.leasing.note_events(stirred)
        for reporter in self.reporters:
            reporter.note_events(stirred)

    async def perform(self, method: str, request: Any) -> Any:
        """Carry out a verb. An internal error of it carries the last events of the request's tablets."""
        try:
            return await getattr(self, method)(request)
        except Exception as error:
            for tablet in _tablets(request)[:STORIES_MAX]:
                if tablet in self.replicas:
                    self.replicas[tablet].explain(error)
            raise

    # -- a process on this host that scans its replicas

    @rpc
    async def local_snapshot(self, request: m.LocalSnapshotRequest) -> m.LocalSnapshot:
        """Flush so that a process on this host may read the rows from the disk, at least as of `index`."""
        replica = self._running(request.tablet)
        late = errors.Unavailable(f"tablet {request.tablet} is behind index {request.index} here")
        await within(self.world.clock, replica.applied(request.index), request.timeout_s, late)
        check_readable(replica.rows.schema, request.schema_version)
        flushed = await self.maintenance.flush(replica)
        directory = replica.store.environment.directory
        return m.LocalSnapshot(request.tablet, directory, self.options.host, flushed.index)

    # -- the master

    @rpc
    async def create_tablet(self, request: m.CreateTabletRequest) -> m.Empty:
        self._require(request.dest_uuid)
        if self.lifecycle.state_of(request.tablet) == m.DOES_NOT_EXIST:
            self.space.require_for_tablet()
        await self.lifecycle.create(request)
        self._changed(request.tablet)
        return m.Empty()

    @rpc
    async def alter_tablet(self, request: m.AlterTabletRequest) -> m.Empty:
        self._require(request.dest_uuid)
        await alter(self.world, self.rounds, self._replica(request.tablet), request)
        return m.Empty()

    @rpc
    async def delete_tablet(self, request: m.DeleteTabletRequest) -> m.Empty:
        self._require(request.dest_uuid)
        await self.deletion.delete(request)
        self._changed(request.tablet)
        return m.Empty()

    # -- operators

    @rpc
    async def status(self, request: m.Empty) -> m.ServerState:
        self._require_running()
        aside = self.world.disk.set_aside()
        return m.ServerState(
            instance=self.instance,
            address=self.world.address,
            host=self.options.host,
            replicas=self._reports(),
            memtable_bytes=self.load.memtable_bytes,
            shared_log_bytes=self.shared.bytes,
            disk_bytes=self.space.used_bytes,
            disks=tuple(self.space.disks),
            full_disks=self.space.full_disks(met=self.rounds.disk_full),
            hung_disks=self.hung_disks(),
            disk_reserve_bytes=self.space.reserve_bytes,
            lost_disks=self.world.disk.lost_data_dirs(),
            set_aside="" if aside is None else f"{aside.path} of server {aside.uuid}: {aside.reason}",
            pending=self.lifecycle.pending(),
            lease_left_s=self.leasing.left_s(),
            lease_refused=self.leasing.refusal(),
        )

    def hung_disks(self) -> tuple[str, ...]:
        """The directories of the disks that hang: a commit there has been waiting for `disk_hung_s`. A full disk answers, and
        what waits for space does not count."""
        now, found = self.world.now(), self.maintenance.hung()
        if max(self.rounds.stalled_s(now), self.identity.stalled_s(now)) > self.options.disk_hung_s:
            found[self.world.disk.place_of(shared_log.PATH)] = None
        full = self.space.full_disks(met=self.rounds.disk_full)
        return tuple(place for place in found if place not in full)

    @rpc
    async def flush(self, request: m.FlushRequest) -> m.FlushReply:
        self._require_running()
        if request.tablet:
            position = await self.maintenance.flush(self._replica(request.tablet))
            return m.FlushReply({request.tablet: position.index})
        flushed: dict[str, int] = {}
        for replica in list(self.replicas.values()):
            done = await self.maintenance.flush_if_running(replica)
            if done is not None:
                flushed[replica.tablet] = done.index
        return m.FlushReply(flushed)

    @rpc
    async def compact(self, request: m.CompactRequest) -> m.CompactReply:
        replica = self._running(request.tablet)
        runs = runs_of(replica)
        upto = (await self.maintenance.flush(replica)).index if request.upto is None else request.upto
        runs.wanted = max(runs.wanted, upto)
        return m.CompactReply(upto, runs.scattered(), runs.directory.size_bytes)

    @rpc
    async def step_down(self, request: m.StepDownRequest) -> m.StepDownReply:
        replica = self._running(request.tablet)
        await hand_over(self.world, self.rounds, replica, request, self.options.poll_s)
        late = f"no successor for tablet {request.tablet} caught up within {request.timeout_s:g} s"
        if replica.core.handing_over:
            raise errors.OutcomeUnknown(f"{late}, and one may yet; check again")
        if replica.leads:
            raise errors.Unavailable(f"{late}; it still leads here")
        return m.StepDownReply(replica.leader_address(), replica.core.term)

    @rpc
    async def checksum_start(self, request: m.ChecksumStart) -> m.ChecksumStarted:
        self._require_serving()
        return self.checksums.begin(request, self._leading, self._checkpoint)

    def _leading(self, tablet: str) -> Replica:
        replica = self._running(tablet)
        if not replica.leads:
            raise replica.not_leader()
        return replica

    def _checkpoint(self, replica: Replica) -> int:
        return self.rounds.step(replica, replica.propose, self.world.now(), CHECKPOINT, b"").index

    @rpc
    async def checksum(self, query: m.ChecksumQuery) -> m.ChecksumReply:
        self._require_serving()
        return await self.checksums.answer(query, self._replica)

    # -- helpers

    def _replica_changed(self, replica: Replica) -> None:
        self._changed(replica.tablet)

    def _changed(self, tablet: str) -> None:
        """Note a change of this tablet, for the next report to the masters."""
        for reporter in self.reporters:
            reporter.changed(tablet)

    def _closing(self, tablet: str) -> None:
        """End the scans and copy sessions of a tablet whose files are about to be closed."""
        self.scans.close_tablet(tablet)
        self.copy_sources.close_tablet(tablet)

    def _reports(self) -> tuple[m.ReplicaReport, ...]:
        return tuple(held.report() for held in self.lifecycle.all().values())


def _tablets(request: Any) -> list[str]:
    """The tablets that a request names: one, or some; those of its writes or reads; those of an envelope."""
    parts = getattr(request, "writes", ()) or getattr(request, "reads", ())
    named = [part.tablet for part in parts] or [tablet for tablet, _ in getattr(request, "requests", ())]
    return (
        named or [request.tablet]
        if hasattr(request, "tablet")
        else [*named, *getattr(request, "tablets", ())]
    )
