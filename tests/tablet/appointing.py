"""Groups of PacificA replicas on tablet servers, with a toy of the active master: the real rules and the real detector, and a
catalog in memory that outlives the toy."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.detector.detector import ACKNOWLEDGED, DECIDED, NEW, SILENT, Detector, End
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.messages.appointments import (
    Appointed,
    Appointments,
    AppointReply,
    AppointRequest,
    Beacon,
    BeaconReply,
    ConfigurationsRequest,
)
from ebla.actors.replication.appointments import after_end, appointed, grant
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.world import Role, World, rpc
from ebla.storage.errors import EblaError
from tests.tablet.copies import until
from tests.tablet.harness import OTHER, TABLET, Group, address, is_readable, simulated

MASTER = "master/0"
LIMITS = DetectorLimits()
DECIDE_S = 0.1
EDIT_S = 0.01
AGAIN_S = 1.0  # a report from before the last order or edit, or from soon after, may not know of it


@dataclass
class Catalog:
    """The durable part of the toy. `history`: every configuration that was ever durable, by tablet and ballot. `recorded`: the
    last incarnation of each server that was acknowledged."""

    stored: dict[str, Configuration] = field(default_factory=dict)
    history: dict[tuple[str, int], Configuration] = field(default_factory=dict)
    recorded: dict[str, m.ServerInstance] = field(default_factory=dict)

    def put(self, tablet: str, made: Configuration) -> None:
        known = self.stored.get(tablet)
        assert (tablet, made.index) not in self.history, ("a ballot is used once", made)
        assert known is None or made.index == known.index + 1, (known, made)
        self.stored[tablet] = self.history[tablet, made.index] = made


class ToyMaster(Role):
    def __init__(self, world: World, catalog: Catalog) -> None:
        self.world = world
        self.catalog = catalog
        self.reports: dict[tuple[str, str], tuple[float, m.ServerInstance, m.ReplicaReport]] = {}
        self.registered: dict[str, str] = {}
        self.acted: dict[str, float] = {}
        self.beacons: list[tuple[float, str]] = []
        self.refusals: list[str] = []
        self.editing = asyncio.Lock()

    async def start(self) -> None:
        stored = self.catalog.stored.values()
        servers = dict.fromkeys(peer.uuid for made in stored for peer in made.peers)
        self.wake = asyncio.Event()
        known = [(uuid, self.catalog.recorded.get(uuid)) for uuid in servers]
        self.detector = Detector(LIMITS, self.now(), known)
        self.world.spawn(self._decide(), "decisions")

    def now(self) -> float:
        return self.world.clock.monotonic()

    # -- calls of servers

    @rpc
    async def heartbeat(self, request: m.HeartbeatRequest) -> m.HeartbeatReply:
        uuid = request.instance.uuid
        for report in request.report.updated if request.report else ():
            self.reports[uuid, report.tablet] = self.now(), request.instance, report
        known = self.registered.get(uuid) == request.instance.start
        self.registered[uuid] = request.instance.start
        own = m.ServerInstance("master", 1, "start")
        return m.HeartbeatReply(own, needs_register=not known, needs_full_report=not known)

    @rpc
    async def beacon(self, request: Beacon) -> BeaconReply:
        self.beacons.append((self.now(), request.instance.uuid))
        answer = self.detector.beacon(self.now(), request.instance, request.lease)
        if answer == DECIDED:
            self.wake.set()
        return BeaconReply("" if answer == ACKNOWLEDGED else answer)

    @rpc
    async def request_configurations(self, request: ConfigurationsRequest) -> Appointments:
        uuid = request.instance.uuid
        for each in request.requested:
            async with self.editing:
                granted = grant(self.catalog.stored[each.tablet], each.configuration, uuid)
                if granted is not None:
                    await self._edit(each.tablet, granted)
            if granted is not None and granted.primary != uuid:
                await self._order(each.tablet)
        stamp = self.detector.lease(uuid)
        if stamp is None or stamp.start != request.instance.start:
            raise errors.Unavailable(f"server {uuid} has no lease; ask again")
        stored = self.catalog.stored
        made = tuple(Appointed(each.tablet, stored[each.tablet]) for each in request.requested)
        return Appointments(stamp.start, stamp.number, made)

    # -- decisions

    async def _decide(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with self.world.clock.timeout(DECIDE_S):
                    await self.wake.wait()
            self.wake.clear()
            for end in self.detector.decide(self.now()):
                await self._end(end)
            for tablet, stored in list(self.catalog.stored.items()):
                if stored.primary and self.detector.has_ended(stored.primary):
                    await self._replace(tablet, stored.primary, silent=True)
                await self._lead(tablet)

    async def _end(self, end: End) -> None:
        for tablet in list(self.catalog.stored) if end.reason != NEW else ():
            await self._replace(tablet, end.uuid, silent=end.reason == SILENT)
        await self.world.clock.sleep(EDIT_S)
        if end.instance is not None:
            self.catalog.recorded[end.uuid] = end.instance
        self.detector.ended(end)

    async def _replace(self, tablet: str, uuid: str, *, silent: bool) -> None:
        async with self.editing:
            made = after_end(
                self.catalog.stored[tablet],
                uuid,
                silent=silent,
                gone=self.detector.has_ended,
                alive=lambda other: self.detector.lease(other) is not None,
                primaries=lambda other: sum(each.primary == other for each in self.catalog.stored.values()),
            )
            if made is not None:
                await self._edit(tablet, made)
        if made is not None:
            await self._order(tablet)

    async def _lead(self, tablet: str) -> None:
        """Order the primary to lead, give it another ballot if it does not lead in this one, or appoint another if it cannot."""
        if self.now() - self.acted.get(tablet, 0.0) < AGAIN_S:
            return
        stored = self.catalog.stored[tablet]
        assert stored.primary is not None
        at, instance, report = self.reports.get((stored.primary, tablet), (0.0, None, None))
        stamp = self.detector.lease(stored.primary)
        current = stamp is not None and instance is not None and instance.start == stamp.start
        if current and report is not None and report.state != m.RUNNING:
            await self._replace(tablet, stored.primary, silent=True)
        elif report is None or not current or report.term < stored.index:
            await self._order(tablet)
        elif report.term == stored.index and not report.leads and at > self.acted.get(tablet, 0.0):
            async with self.editing:
                if self.catalog.stored[tablet] is stored:
                    await self._edit(tablet, appointed(stored, stored.primary))
            await self._order(tablet)

    async def _edit(self, tablet: str, made: Configuration) -> None:
        assert self.editing.locked()
        await self.world.clock.sleep(EDIT_S)
        self.catalog.put(tablet, made)

    async def _order(self, tablet: str) -> None:
        self.acted[tablet] = self.now()
        stored = self.catalog.stored[tablet]
        own = stored.peer(stored.primary or "")
        stamp = self.detector.lease(own.uuid) if own else None
        if own is None or stamp is None:
            return
        order = Appointments(stamp.start, stamp.number, (Appointed(tablet, stored),))
        self.world.spawn(self._send(own, order), "order")

    async def _send(self, to: Peer, order: Appointments) -> None:
        try:
            request = AppointRequest(to.uuid, order)
            reply = await self.world.network.call(to.address, "appoint", request, AppointReply, 2.0)
            self.refusals += reply.refused.values()
        except EblaError as error:
            self.refusals.append(str(error))


@dataclass
class PacificaGroup(Group):
    catalog: Catalog = field(default_factory=Catalog)
    min_members: int = 2
    served_by: list[str] = field(default_factory=list)  # without repetition: who could be read

    async def boot(self) -> None:
        await self.start_master()
        self.watching = asyncio.ensure_future(self._watch())
        await super().boot()

    async def start_master(self) -> None:
        await self.cluster.start(MASTER, lambda world: ToyMaster(world, self.catalog))

    def stop_master(self) -> None:
        self.cluster.crash(MASTER)

    @property
    def master(self) -> ToyMaster:
        return self.cluster.role(MASTER)

    def creation(self, host: str, tablet: str = OTHER) -> m.CreateTabletRequest:
        made = super().creation(host, tablet)
        if tablet not in self.catalog.stored:
            peers, primary = made.configuration.peers, self.uuid(self.hosts[0])
            first = Configuration(peers, 1, primary=primary, min_members=self.min_members)
            self.catalog.put(tablet, first)
        return replace(made, configuration=self.catalog.history[tablet, 1])

    def core(self, host: str, tablet: str = TABLET) -> PacificaCore:
        core = self.replica(host, tablet).core
        assert isinstance(core, PacificaCore)
        return core

    @property
    def stored(self) -> Configuration:
        return self.catalog.stored[TABLET]

    def kinds(self) -> dict[str, str]:
        """By host: the kind of each member, as the catalog has it."""
        return {peer.address.rpartition("/")[2]: peer.kind for peer in self.stored.peers}

    async def _watch(self) -> None:
        """At any time at most one server serves reads of the tablet, for as long as the test runs."""
        while True:
            await asyncio.sleep(0.01)
            serving = [host for host in self.known_hosts() if self._serves(host)]
            assert len(serving) <= 1, ("one replica serves", serving)
            if serving and self.served_by[-1:] != serving:
                self.served_by += serving

    def known_hosts(self) -> list[str]:
        return [host for host in (*self.hosts, "host-d") if self.cluster.known(address(host))]

    def _serves(self, host: str) -> bool:
        if not self.alive(host) or not self.server(host).running:
            return False
        replica = self.server(host).replicas.get(TABLET)
        return replica is not None and replica.leads and is_readable(self.server(host), replica)


def pacifica(**options: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Turn a scenario into a test that runs it against a new group of PacificA replicas."""

    def decorate(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(scenario)
        async def watched(group: PacificaGroup, **given: Any) -> None:
            await scenario(group, **given)
            if group.watching.done():
                group.watching.result()

        return simulated(kind=PacificaGroup, **options)(watched)

    return decorate


async def voting(group: PacificaGroup, *hosts: str) -> None:
    """Wait until exactly these hosts vote."""
    wanted = sorted(hosts)
    what = f"{wanted} vote"
    await until(group, lambda: sorted(h for h, k in group.kinds().items() if k == "voter") == wanted, what)
