"""The other side of the master's protocol, scripted: it keeps and reports replicas, and stores no rows.

Heartbeats follow the protocol of the real tablet server: register when asked, a full report when asked,
otherwise what changed since the last report that was acknowledged. Elections are a fairy tale: once a
majority of a tablet's members exist somewhere, the first of them leads (`Fairy` is shared by all servers of a
test and sees everything).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ebla.actors import messages as m
from ebla.actors.errors import Internal, NetworkError, NotRunning, Throttled, WrongServer
from ebla.actors.tablet.raft.messages import Configuration
from ebla.actors.world import Role, World, new_id, rpc
from ebla.storage.environment import Delete, Put
from ebla.storage.errors import EblaError

BEAT_S = 0.2


class Replica(msgspec.Struct, frozen=True):
    request: m.CreateTabletRequest
    state: str = "running"
    version: int = 0


@dataclass
class Fairy:
    """Sees every replica of the test: who leads, in which term, under which configuration."""

    existing: dict[str, dict[str, None]] = field(default_factory=dict)
    configurations: dict[str, Configuration] = field(default_factory=dict)
    leaders: dict[str, str] = field(default_factory=dict)
    terms: dict[str, int] = field(default_factory=dict)
    elects: bool = True

    def leader(self, tablet: str, configuration: Configuration) -> str | None:
        here = [peer.uuid for peer in configuration.peers if peer.uuid in self.existing.get(tablet, {})]
        if not self.elects or len(here) < configuration.majority:
            return None
        if self.leaders.get(tablet) not in here:
            self.elect(tablet, here[0])
        return self.leaders[tablet]

    def elect(self, tablet: str, uuid: str) -> None:
        self.leaders[tablet] = uuid
        self.terms[tablet] = self.terms.get(tablet, 0) + 1


@dataclass
class Script:
    """What a test makes one server do; outlives the server's crashes, and remembers what it was asked."""

    host: str
    fairy: Fairy
    silent: bool = False
    refuses: EblaError | None = None
    never_confirms: bool = False
    creates: list[str] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)
    alters: list[int] = field(default_factory=list)
    deaf: bool = False
    beats: list[m.HeartbeatRequest] = field(default_factory=list)
    replies: list[m.HeartbeatReply] = field(default_factory=list)


class ToyTabletServer(Role):
    def __init__(self, world: World, script: Script) -> None:
        self.world = world
        self.script = script
        self.fairy = script.fairy
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
        """Through the leader to all members at once; `deaf` leaders say that they did, and did not."""
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
        self.script.deletes.append(request.tablet)
        await self.environment.commit([Delete("replicas", [request.tablet.encode()])])
        self.replicas.pop(request.tablet, None)
        self.fairy.existing.get(request.tablet, {}).pop(self.uuid, None)
        if self.script.never_confirms:
            raise Internal("done, but it cannot say so")
        return m.Empty()

    async def put(self, replica: Replica) -> None:
        tablet = replica.request.tablet
        data = msgspec.msgpack.encode(replica)
        await self.environment.commit([Put("replicas", [(tablet.encode(), data)])])
        self.replicas[tablet] = replica
        self.fairy.existing.setdefault(tablet, {})[self.uuid] = None

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
                except (NetworkError, NotRunning, Throttled):
                    pass
            if not (register or full) or self.script.silent:
                await self.world.clock.sleep(BEAT_S)
            else:
                await self.world.clock.sleep(BEAT_S / 10)

    async def _send(self, request: m.HeartbeatRequest) -> m.HeartbeatReply:
        self.script.beats.append(request)
        reply = await self.world.network.call("master/m", "heartbeat", request, m.HeartbeatReply, 1.0)
        self.script.replies.append(reply)
        return reply

    def _describe(self, replica: Replica) -> m.ReplicaReport:
        tablet = replica.request.tablet
        configuration = self.fairy.configurations.get(tablet, replica.request.configuration)
        leader = self.fairy.leader(tablet, configuration)
        return m.ReplicaReport(
            tablet=tablet,
            state=replica.state,
            role="leader" if leader == self.uuid else "follower",
            term=self.fairy.terms.get(tablet, 0),
            leader=leader,
            configuration=configuration,
            schema_version=replica.version,
            last_index=1,
            commit_index=1,
            applied_index=1,
            flushed_index=0,
            rows_bytes=100,
        )
