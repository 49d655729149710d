"""A scripted tablet server with PacificA tablets, on a stage with a real master.

It sends beacons with the real `Lease`, and follows orders by the rules of the real core, without rows: a primary leads a
ballot once, and only in the lease of its order. Other servers learn of a new ballot from its primary at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.detector.lease import Lease
from ebla.actors.errors import NetworkError, NotActive, NotRunning, Throttled
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.pacifica.appointer import Appointer
from ebla.actors.messages.appointments import (
    Appointed,
    Appointments,
    AppointReply,
    AppointRequest,
    Beacon,
    BeaconReply,
    ConfigurationsRequest,
    Requested,
)
from ebla.actors.messages.pacifica import PacificaView
from ebla.actors.replication.appointments import appointed
from ebla.actors.replication.configuration import Configuration
from ebla.actors.replication.health import HEALTHY, UNKNOWN
from ebla.actors.world import World, rpc
from ebla.chaos.simulation import loop
from tests.master.stage import MASTER, Stage
from tests.master.toy_tablet_server import Replica, Script, ToyTabletServer

OPTIONS = MasterOptions(
    bg_s=0.1, unresponsive_s=2.0, assignment_timeout_s=20.0, settle_s=0.5, rpc_backoff_max_s=1.0
)
LIMITS = OPTIONS.detector


@dataclass
class PacificaScript(Script):
    """`ballots`: on the server's disk. `orders`: each order that came, with the time. `withholds`: the server sends no beacons.
    `no_heartbeats`: it sends beacons only. `reported_ballot`: shown instead of the real one. `lacks`: what its replicas report to lack."""

    ballots: dict[str, int] = field(default_factory=dict)
    orders: list[tuple[float, AppointRequest]] = field(default_factory=list)
    withholds: bool = False
    no_heartbeats: bool = False
    reported_ballot: int | None = None
    lacks: str | None = None


class ToyPacificaServer(ToyTabletServer):
    script: PacificaScript

    def __init__(self, world: World, script: PacificaScript) -> None:
        super().__init__(world, script)
        self.lease = Lease(LIMITS)
        self.known: dict[str, Configuration] = {}
        self.leading: dict[str, int] = {}  # tablet -> number of the lease in which it is led

    async def start(self) -> None:
        await super().start()
        self.world.spawn(self._send_beacons(), "beacons")

    async def _send(self, request: m.HeartbeatRequest) -> m.HeartbeatReply:
        if self.script.no_heartbeats:
            raise NotRunning("no heartbeats now", state="starting")
        return await super()._send(request)

    # -- leases

    async def _send_beacons(self) -> None:
        while True:
            now = self.world.clock.monotonic()
            number = self.lease.beacon(now, log_stalled=self.script.withholds or self.script.silent)
            if number is not None:
                self.world.spawn(self._send_beacon(number, now), "beacon")
            withheld = self.script.withholds
            for _ in range(10):
                self._tick()
                await self.world.clock.sleep(LIMITS.beacon_s / 10)
                if self.script.withholds != withheld:
                    break

    async def _send_beacon(self, number: int, sent_at: float) -> None:
        try:
            beacon = Beacon(self.instance, number, LIMITS.lease_s)
            reply = await self.world.network.call(MASTER, "beacon", beacon, BeaconReply, LIMITS.lease_s)
        except (NetworkError, NotActive, NotRunning, Throttled):
            return
        if not reply.refused:
            self.lease.acknowledged(self.world.clock.monotonic(), number, sent_at)

    def _tick(self) -> None:
        now = self.world.clock.monotonic()
        for tablet, number in list(self.leading.items()):
            if not self.lease.holds(now, number):
                del self.leading[tablet]

    def serves(self, tablet: str) -> bool:
        number = self.leading.get(tablet)
        return number is not None and self.lease.holds(self.world.clock.monotonic(), number)

    # -- ballots

    def ballot(self, tablet: str) -> int:
        return self.script.ballots.get(tablet, 0)

    def configuration(self, tablet: str) -> Configuration:
        return self.known.get(tablet) or self.replicas[tablet].request.configuration

    @rpc
    async def appoint(self, request: AppointRequest) -> AppointReply:
        self._check(request.dest_uuid)
        self.script.orders.append((self.world.clock.monotonic(), request))
        if request.appointments.start != self.instance.start:
            return AppointReply({each.tablet: "another process" for each in request.appointments.appointed})
        refused = self.follow(request.appointments)
        return AppointReply(refused, tuple(tablet for tablet in refused if not self._runs(tablet)))

    def follow(self, appointments: Appointments) -> dict[str, str]:
        """Returns the refusals."""
        found = {each.tablet: self._follow(each, appointments.lease) for each in appointments.appointed}
        return {tablet: why for tablet, why in found.items() if why}

    def _follow(self, order: Appointed, lease: int) -> str:
        tablet, made = order.tablet, order.configuration
        if not self._runs(tablet):
            return "there is no such tablet"
        ballot = self.ballot(tablet)
        if made.index < ballot or (made.index == ballot and tablet in self.leading):
            return ""
        if made.primary != self.uuid:
            self.enter(tablet, made)
        elif made.index == ballot:
            return "it leads no ballot twice"
        elif not self.lease.holds(self.world.clock.monotonic(), lease):
            return "that lease is over"
        else:
            self.enter(tablet, made)
            self.leading[tablet] = lease
            for peer in made.peers:
                other = self.raft.servers.get(peer.uuid)
                if other is not None and other is not self and other.running and tablet in other.replicas:
                    other.enter(tablet, made)
        return ""

    def _runs(self, tablet: str) -> bool:
        return tablet in self.replicas and self.replicas[tablet].state == "running"

    def enter(self, tablet: str, made: Configuration) -> None:
        if made.index > self.ballot(tablet):
            self.script.ballots[tablet], self.known[tablet] = made.index, made
            self.leading.pop(tablet, None)

    async def ask(self, *asked: tuple[str, Configuration]) -> Appointments:
        """Request configurations from the master, once, and follow the answer."""
        requested = tuple(Requested(*each, self._process_of(each[1].primary)) for each in asked)
        request = ConfigurationsRequest(self.instance, requested)
        answer = await self.world.network.call(
            MASTER, "request_configurations", request, Appointments, LIMITS.lease_s
        )
        self.follow(answer)
        return answer

    def _process_of(self, uuid: str | None) -> m.ServerInstance | None:
        other = self.raft.servers.get(uuid or "")
        return other.instance if other is not None else None

    @rpc
    async def change_members(self, request: m.ChangeMembersRequest) -> m.MembersReply:
        self._check(request.dest_uuid)
        self.script.changes.append(request)
        before = self.configuration(request.tablet)
        peers = {peer.uuid: peer for peer in before.peers}
        for change in request.changes:
            peers.pop(change.peer.uuid, None)
            if change.kind != m.REMOVE:
                peers[change.peer.uuid] = change.peer
        made = appointed(replace(before, peers=tuple(peers.values())), self.uuid)
        await self.ask((request.tablet, made))
        return m.MembersReply(request.tablet, self.configuration(request.tablet))

    # -- reports

    async def _bring_up(self, replica: Replica) -> None:
        """Learners get a replica, and stay learners."""
        tablet = replica.request.tablet
        if tablet in self.leading:
            for peer in self.configuration(tablet).peers:
                other = self.raft.servers.get(peer.uuid)
                if other is not None and tablet not in other.replicas and peer.promote:
                    await other.put(replica)

    def _describe(self, replica: Replica) -> m.ReplicaReport:
        tablet = replica.request.tablet
        configuration, ballot = self.configuration(tablet), self.ballot(tablet)
        leads = tablet in self.leading
        entered = configuration.index == ballot and (leads or configuration.primary != self.uuid)
        role = "primary" if leads else "secondary" if entered else "inactive"
        shown = ballot if self.script.reported_ballot is None else self.script.reported_ballot
        leader = configuration.primary if entered else None
        return m.ReplicaReport(
            tablet=tablet,
            state=replica.state,
            view=PacificaView(role, shown, leader, 1, 1, verified=configuration.index == ballot),
            configuration=configuration,
            schema_version=replica.version,
            rows_bytes=100,
            error=self.script.lacks,
            health={peer.uuid: self._health(peer.uuid) for peer in configuration.peers} if leads else {},
        )

    def _health(self, uuid: str) -> str:
        other = self.raft.servers.get(uuid)
        return self.raft.unhealthy.get(uuid, HEALTHY if other is not None and other.running else UNKNOWN)


class PacificaStage(Stage):
    async def serve(self, host: str) -> None:
        script = self.scripts[host] = PacificaScript(host, self.raft)
        await self.cluster.start(f"tablet-server/{host}", lambda world: ToyPacificaServer(world, script))

    async def opened(self, hosts: Sequence[str] = "abc", buckets: int = 1, **changes: Any) -> list[str]:
        """A table whose tablets are all led, and of which the master knows it."""
        await self.open(*hosts)
        tablets = await self.tablets(
            buckets=buckets, replication="pacifica", replicas=changes.pop("replicas", 3), **changes
        )
        await self.until(lambda: not self.appointer.planner.unled and not self.master.catalog.unseen)
        return tablets

    @property
    def appointer(self) -> Appointer:
        return self.master.appointer

    def now(self) -> float:
        return self.cluster.loop.time()

    def stored(self, tablet: str) -> Configuration:
        known = self.master.catalog.tablets[tablet].configuration
        assert known is not None
        return known

    def primary(self, tablet: str) -> str:
        """The host of the primary in the catalog."""
        known = self.stored(tablet)
        peer = known.peer(known.primary or "")
        assert peer is not None
        return peer.address.rpartition("/")[2]

    def others(self, tablet: str) -> list[str]:
        """The hosts of all other members."""
        hosts = (peer.address.rpartition("/")[2] for peer in self.stored(tablet).peers)
        return [host for host in hosts if host != self.primary(tablet)]

    def serving(self, tablet: str) -> list[str]:
        """The hosts that serve the tablet now."""
        up = [host for host in self.scripts if self.cluster.alive(f"tablet-server/{host}")]
        return [host for host in up if self.server(host).serves(tablet)]

    def edits(self) -> int:
        """How many edits of this master have changed configurations."""
        return self.appointer.edits

    def voters(self, tablet: str) -> list[str]:
        return sorted(peer.address.rpartition("/")[2] for peer in self.stored(tablet).voters())


def play(
    scenario: Callable[[PacificaStage], Coroutine[Any, Any, None]],
    seed: int = 0,
    options: MasterOptions = OPTIONS,
) -> None:
    async def main() -> None:
        await scenario(PacificaStage(options))

    loop.run(main(), seed)
