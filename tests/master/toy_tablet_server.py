"""A scripted tablet server for tests of the master: it keeps and reports replicas, and stores no rows.

Heartbeats follow the protocol of the real tablet server: register when asked, a full report when asked,
otherwise the changes since the last acknowledged report. Elections are simplified: once a majority of a
tablet's members exists, the first of them leads (`ToyRaft` is shared by all servers of a test and sees
everything). So are copies: with each heartbeat a leader gives one more live member a replica, and promotes
one that has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ebla.actors import messages as m
from ebla.actors.errors import (
    ConfigurationMoved,
    Internal,
    NetworkError,
    NotActive,
    NotLeader,
    NotRunning,
    TabletNotFound,
    Throttled,
    Unavailable,
    WrongServer,
)
from ebla.actors.messages.raft import RaftView
from ebla.actors.messages.repair import REMOVE
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.actors.replication.health import (
    HEALTHY,
    UNKNOWN,
)
from ebla.actors.tablet.raft.membership import check_change
from ebla.actors.world import Role, World, new_id, rpc
from ebla.storage.environment import Delete, Put
from ebla.storage.errors import EblaError

BEAT_S = 0.2


class Replica(msgspec.Struct, frozen=True):
    request: m.CreateTabletRequest
    state: str = "running"
    version: int = 0


@dataclass
class ToyRaft:
    """Every tablet of the test: leader, term, configuration and replicas."""

    existing: dict[str, dict[str, None]] = field(default_factory=dict)
    configurations: dict[str, Configuration] = field(default_factory=dict)
    leaders: dict[str, str] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    elects: bool = True
    servers: dict[str, ToyTabletServer] = field(default_factory=dict)
    unhealthy: dict[str, str] = field(default_factory=dict)  # in leaders' reports: the health of servers
    copies: bool = True

    def leader(self, tablet: str, configuration: Configuration) -> str | None:
        here = [
            peer.uuid
            for peer in configuration.voters()
            if peer.uuid in self.existing.get(tablet, {}) and peer.uuid not in self.unhealthy
        ]
        if not self.elects or len(here) < configuration.majority:
            return None
        if self.leaders.get(tablet) not in here:
            self.elect(tablet, here[0])
        return self.leaders[tablet]

    def health(self, tablet: str, configuration: Configuration) -> dict[str, str]:
        """Health of all members, in the leader's report."""
        here = self.existing.get(tablet, {})
        return {
            peer.uuid: self.unhealthy.get(peer.uuid, HEALTHY if peer.uuid in here else UNKNOWN)
            for peer in configuration.peers
        }

    def change(self, tablet: str, peers: list[Peer], before: Configuration) -> Configuration:
        check_change(before, Configuration(tuple(peers), before.index), self.leaders[tablet])
        changed = self.configurations[tablet] = Configuration(tuple(peers), before.index + 1)
        return changed

    def elect(self, tablet: str, uuid: str) -> None:
        self.leaders[tablet] = uuid
        self.terms[tablet] = self.terms.get(tablet, 0) + 1


@dataclass
class Script:
    """Behaviour of one server, and the requests that it got; both outlive its crashes."""

    host: str
    raft: ToyRaft
    silent: bool = False
    refuses: EblaError | None = None
    never_confirms: bool = False
    creates: list[str] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    alters: list[int] = field(default_factory=list)
    changes: list[m.ChangeMembersRequest] = field(default_factory=list)
    tombstones: list[m.DeleteTabletRequest] = field(default_factory=list)
    deaf: bool = False


class ToyTabletServer(Role):
    def __init__(self, world: World, script: Script) -> None:
        self.world = world
        self.script = script
        self.raft = script.raft
        self.replicas: dict[str, Replica] = {}
        self.uuid = ""
        self.running = False

    async def start(self) -> None:
        instance = await self.world.disk.open_instance(new_id(self.world.random))
        self.uuid = instance.uuid
        self.instance = m.ServerInstance(instance.uuid, instance.seqno, new_id(self.world.random))
        self.environment = await self.world.disk.open_environment("replicas", ("replicas",), create=True)
        for key, value in self.environment.items("replicas"):
            self.replicas[key.decode()] = msgspec.msgpack.decode(value, type=Replica)
            if self.replicas[key.decode()].state == "running":
                self.raft.existing.setdefault(key.decode(), {})[self.uuid] = None
        self.raft.servers[self.uuid] = self
        self.running = True
        self.world.spawn(self._beat(), "beat")

    @rpc
    async def create_tablet(self, request: m.CreateTabletRequest) -> m.Empty:
        self._check(request.dest_uuid)
        self.script.creates.append(request.tablet)
        if self.script.refuses is not None:
            raise self.script.refuses
        if request.tablet not in self.replicas:
            await self.put(Replica(request))
        return m.Empty()

    @rpc
    async def alter_tablet(self, request: m.AlterTabletRequest) -> m.Empty:
        """The leader alters all members at once; a `deaf` leader answers but alters nothing."""
        self._check(request.dest_uuid)
        self.script.alters.append(request.alteration.schema.version)
        if self.script.deaf:
            return m.Empty()
        replica = self.replicas[request.tablet]
        if request.alteration.schema.version > replica.version:
            await self.put(msgspec.structs.replace(replica, version=request.alteration.schema.version))
        return m.Empty()

    @rpc
    async def delete_tablet(self, request: m.DeleteTabletRequest) -> m.Empty:
        self._check(request.dest_uuid)
        if request.tombstone:
            return await self._bury(request)
        self.script.deletes.append(request.tablet)
        await self.environment.commit([Delete("replicas", [request.tablet.encode()])])
        self.replicas.pop(request.tablet, None)
        self.raft.existing.get(request.tablet, {}).pop(self.uuid, None)
        if self.script.never_confirms:
            raise Internal("done, but it cannot say so")
        return m.Empty()

    async def _bury(self, request: m.DeleteTabletRequest) -> m.Empty:
        self.script.tombstones.append(request)
        replica = self.replicas.get(request.tablet)
        if replica is None:
            raise TabletNotFound("nothing here", tablet=request.tablet)
        committed = self.raft.configurations.get(request.tablet, replica.request.configuration)
        if replica.state == "running" and committed.peer(self.uuid) is not None:
            raise ConfigurationMoved("the server is a member", found=committed.index)
        await self.put(msgspec.structs.replace(replica, state="deleted"))
        self.raft.existing.get(request.tablet, {}).pop(self.uuid, None)
        return m.Empty()

    @rpc
    async def change_members(self, request: m.ChangeMembersRequest) -> m.MembersReply:
        self._check(request.dest_uuid)
        self.script.changes.append(request)
        if self.script.refuses is not None:
            raise self.script.refuses
        before = self._led(request.tablet)
        peers = {peer.uuid: peer for peer in before.peers}
        for change in request.changes:
            if change.kind == REMOVE:
                peers.pop(change.peer.uuid, None)
            else:
                peers[change.peer.uuid] = change.peer
        if list(peers.values()) == list(before.peers):
            return m.MembersReply(request.tablet, before)
        if request.configuration_index not in (None, before.index):
            raise ConfigurationMoved("another one", tablet=request.tablet, found=before.index)
        return m.MembersReply(request.tablet, self.raft.change(request.tablet, list(peers.values()), before))

    @rpc
    async def step_down(self, request: m.StepDownRequest) -> m.StepDownReply:
        configuration = self._led(request.tablet)
        here = self.raft.existing[request.tablet]
        others = [
            peer.uuid
            for peer in configuration.voters()
            if peer.uuid in here and peer.uuid not in (self.uuid, *self.raft.unhealthy)
        ]
        if not others:
            raise Unavailable("nobody to hand over to")
        self.raft.elect(request.tablet, others[-1])
        return m.StepDownReply(None, self.raft.terms[request.tablet])

    def _led(self, tablet: str) -> Configuration:
        replica = self.replicas[tablet]
        configuration = self.raft.configurations.get(tablet, replica.request.configuration)
        if self.raft.leader(tablet, configuration) != self.uuid:
            raise NotLeader("not the leader", tablet=tablet)
        return configuration

    async def _bring_up(self, replica: Replica) -> None:
        """If this server leads the tablet: one copy, or one promotion."""
        tablet = replica.request.tablet
        configuration = self.raft.configurations.get(tablet, replica.request.configuration)
        if not self.raft.copies or self.raft.leader(tablet, configuration) != self.uuid:
            return
        for peer in configuration.peers:
            there = self.raft.servers.get(peer.uuid)
            if peer.uuid in self.raft.unhealthy or there is None or configuration.index < 0:
                continue
            if peer.uuid not in self.raft.existing[tablet]:
                await there.put(replica)
                return
            if peer.promote:
                voter = Peer(peer.uuid, peer.address)
                peers = [voter if each is peer else each for each in configuration.peers]
                self.raft.change(tablet, peers, configuration)
                return

    async def put(self, replica: Replica) -> None:
        tablet = replica.request.tablet
        data = msgspec.msgpack.encode(replica)
        await self.environment.commit([Put("replicas", [(tablet.encode(), data)])])
        self.replicas[tablet] = replica
        if replica.state == "running":
            self.raft.existing.setdefault(tablet, {})[self.uuid] = None

    def _check(self, dest_uuid: str) -> None:
        if not self.running:
            raise NotRunning("starting", state="starting")
        if dest_uuid != self.uuid:
            raise WrongServer("another server", wanted=dest_uuid, found=self.uuid)

    async def _beat(self) -> None:
        acknowledged: dict[str, m.ReplicaReport] = {}
        sequence, register, full = 0, True, True
        while True:
            sequence += 1
            for replica in list(self.replicas.values()):
                if replica.state == "running":
                    await self._bring_up(replica)
            now = {tablet: self._describe(replica) for tablet, replica in self.replicas.items()}
            changed = [r for t, r in now.items() if full or acknowledged.get(t) != r]
            removed = () if full else tuple(t for t in acknowledged if t not in now)
            request = m.HeartbeatRequest(
                self.instance,
                m.Registration(self.world.address, self.script.host, "toy") if register else None,
                m.TabletReport(sequence, not full, tuple(changed), removed),
                replicas=len(now),
            )
            if not self.script.silent:
                try:
                    reply = await self._send(request)
                    acknowledged = now
                    register, full = reply.needs_register, reply.needs_full_report
                except (NetworkError, NotActive, NotRunning, Throttled):
                    pass
            if not (register or full) or self.script.silent:
                await self.world.clock.sleep(BEAT_S)
            else:
                await self.world.clock.sleep(BEAT_S / 10)

    async def _send(self, request: m.HeartbeatRequest) -> m.HeartbeatReply:
        return await self.world.network.call("master/m", "heartbeat", request, m.HeartbeatReply, 1.0)

    def _describe(self, replica: Replica) -> m.ReplicaReport:
        tablet = replica.request.tablet
        configuration = self.raft.configurations.get(tablet, replica.request.configuration)
        leader = self.raft.leader(tablet, configuration)
        return m.ReplicaReport(
            tablet=tablet,
            state=replica.state,
            view=RaftView(
                "leader" if leader == self.uuid else "follower",
                self.raft.terms.get(tablet, 0),
                leader,
                last_index=1,
                commit_index=1,
            ),
            configuration=configuration,
            schema_version=replica.version,
            applied_index=1,
            flushed_index=0,
            rows_bytes=100,
            health=self.raft.health(tablet, configuration) if leader == self.uuid else {},
        )
