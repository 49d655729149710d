"""The active master's part in PacificA tablets: beacons, requests, and one edit for all changes that are due.

The loop wakes for requests, at the times of the detector, and every `bg_s`. Everything that has gathered while the edit
before was being made durable goes into the next one: the end of a server with a thousand tablets, and the requests of many
servers, are one edit. If an edit is refused, the requests get the error, and the ends are decided again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ebla.actors.catalog_versions import CatalogVersion
from ebla.actors.detector.detector import ACKNOWLEDGED, DIED, NEW, SILENT, TOO_LONG, Detector
from ebla.actors.errors import Throttled, Unavailable
from ebla.actors.incarnations import Incarnations, forgotten
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import ConfigurationsAppointed, Edit
from ebla.actors.master.catalog.scribe import RETRY_AFTER_S, Scribe
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Servers, gets_leases
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.pacifica.orders import Orders
from ebla.actors.master.pacifica.planner import Plan, Planner
from ebla.actors.messages import RecordedInstance, ServerInstance, TabletReport
from ebla.actors.messages.appointments import (
    Appointed,
    Appointments,
    Beacon,
    BeaconReply,
    ConfigurationsRequest,
)
from ebla.actors.world import World, rpc, settle
from ebla.storage.errors import DiskFull, EblaError

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Waiting:
    request: ConfigurationsRequest
    answer: asyncio.Future[Appointments]


@dataclass(eq=False)
class Appointer:
    """`require_newest`: ends this master if a server has seen a newer catalog; `require_ballots`: if a server knows a later ballot
    of a tablet than the catalog.

    `ends`: the servers that have ended in this term; `edits`: those that changed configurations, with
    `ballots` in all. `acknowledged`, `refused`: the numbers of beacons.
    """

    _world: World
    _options: MasterOptions
    _catalog: Catalog
    _scribe: Scribe
    _views: Views
    _servers: Servers
    _incarnations: Incarnations
    _require_newest: Callable[[str, CatalogVersion | None], None]
    _require_ballots: Callable[[str, dict[str, int]], None]
    detector: Detector = field(init=False)
    planner: Planner = field(init=False)
    orders: Orders = field(init=False)

    def __post_init__(self) -> None:
        self.ends = self.edits = self.ballots = self.acknowledged = self.refused = 0
        self._wake = asyncio.Event()
        self._waiting: list[_Waiting] = []
        self._plan: Plan = Plan({}, [])
        self._planned_for: list[_Waiting] = []

    def begin(self, settled_from: float) -> None:
        """Begin with the catalog. Every server that may have replicas counts as alive from now on. `settled_from`: when every live
        server should have reported."""
        recorded = self._catalog.incarnations
        restarts = {uuid: each.restarts for uuid, each in recorded.items()}
        self.detector = Detector(
            self._options.detector,
            self._world.now(),
            recorded.items(),
            self._may_have_leases,
            restarts,
            lambda uuid: self.orders.reaches(uuid),
        )
        self.planner = Planner(self._catalog, self.detector, settled_from)
        self.orders = Orders(
            self._world, self._options, self._servers, self.detector, self.planner, self._wake.set
        )
        for tablet in self.planner.unled:
            self._watch(tablet)
        self._world.spawn(self._run(), "appointing primaries")

    @property
    def grace_s(self) -> float:
        return self._options.detector.grace_s

    def _may_have_leases(self, uuid: str) -> bool:
        """Whether no operator withholds leases from the server. A new master knows its address from the catalog, before a heartbeat comes."""
        if not (self._catalog.suspended or self._catalog.allowed):
            return True
        server = self._servers.get(uuid)
        addresses = sorted(self.planner.addresses(uuid)) if server is None else [server.address]
        return all(gets_leases(self._catalog, address) for address in addresses)

    def close(self) -> None:
        """Refuse the requests that wait: the term has ended."""
        self._refuse(Unavailable(f"{self._world.address} has ended its term; ask the active master"))

    # -- calls -----------------------------------------------------------------------------------------------

    @rpc
    async def beacon(self, request: Beacon) -> BeaconReply:
        """Acknowledge a beacon, or say why not. The lease counts only if this answers while the master may lead."""
        instance = request.instance
        self._meet(instance)
        self._require_newest(instance.uuid, request.seen)
        leased = self.planner.is_leased(instance)
        limits, now = self._options.detector, self._world.now()
        suits = limits.outlasts(request.lease_s)
        refused = self.detector.beacon(now, instance, request.lease) if suits else TOO_LONG
        if refused == ACKNOWLEDGED:
            refused = ""
            self.acknowledged += 1
        else:
            self.refused += 1
        if refused or not leased:
            self._wake.set()
        return BeaconReply(refused)

    @rpc
    async def request_configurations(self, request: ConfigurationsRequest) -> Appointments:
        """Grant what the primaries of one server ask for. The answer is what the catalog has then."""
        instance = request.instance
        self._meet(instance)
        server = self._servers.get(instance.uuid)
        if server is None or server.instance.start != instance.start:
            raise Unavailable(
                f"{self._world.address} has no heartbeat of this process of server {instance.uuid} yet; ask again"
            )
        self._require_ballots(
            instance.uuid, {each.tablet: each.configuration.index - 1 for each in request.requested}
        )
        if len(self._waiting) >= self._options.changes_waiting_max:
            raise Throttled(
                f"{len(self._waiting)} requests for configurations are waiting",
                limit="changes_waiting_max",
                retry_after_s=RETRY_AFTER_S,
            )
        answer: asyncio.Future[Appointments] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, answer))
        self._wake.set()
        return await answer

    def _meet(self, instance: ServerInstance) -> None:
        """Raise Forgotten or OldCopy for a server whose messages do not count."""
        if instance.uuid in self._catalog.forgotten:
            raise forgotten(instance.uuid)
        self._incarnations.meet(instance)

    def process_ended(self, process: ServerInstance) -> None:
        """Note that a server's process has ended for certain: another voter leads where it was the primary."""
        if self.detector.process_ended(self._world.now(), process):
            self._world.faults.reached("master.detector.died")
            self._wake.set()

    def take(self, instance: ServerInstance, report: TabletReport) -> None:
        """Take a report of a server's present incarnation, after its edits are in the catalog."""
        if self.planner.take(self._world.now(), instance, report) or not report.incremental:
            self._wake.set()

    def assigned(self, tablets: Sequence[str]) -> None:
        """Note new tablets, whose servers were chosen."""
        for tablet in tablets:
            if self.planner.stored(tablet) is not None:
                self.planner.changed(tablet)
                self._watch(tablet)

    def altered(self, tablets: Sequence[str]) -> None:
        """Note that a table was altered: its tablets may need another number of members."""
        self.planner.altered.update(dict.fromkeys(tablets))
        self._wake.set()

    def _watch(self, tablet: str) -> None:
        known = self.planner.stored(tablet)
        assert known is not None, tablet
        for peer in known.peers:
            self.detector.watch(self._world.now(), peer.uuid, self._catalog.incarnations.get(peer.uuid))

    # -- the loop --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._due()
            self.orders.forget()
            if not self._has_work():
                continue
            try:
                await self._scribe.change("appoint", self._decide, self._conclude, next_one=True)
            except (Throttled, DiskFull) as error:
                log.warning("%s: %s; trying again", self._world.address, error)
                self._refuse(error)
                self.planner.settled()
                await self._world.clock.sleep(self._options.bg_s)
            self.orders.send()

    async def _due(self) -> None:
        """Wait for the next event, or until the detector decides, at most `bg_s`."""
        now = self._world.now()
        wait_s = min(self._options.bg_s, self.detector.next_wake(now) - now)
        if wait_s > 0:
            with suppress(TimeoutError):
                async with self._world.clock.timeout(wait_s):
                    await self._wake.wait()
        self._wake.clear()

    def _has_work(self) -> bool:
        now = self._world.now()
        return (
            bool(self._waiting or self.planner.unled or self.planner.altered)
            or self.detector.next_wake(now) <= now
        )

    def _decide(self) -> Sequence[Edit]:
        self._planned_for, self._waiting = self._waiting, []
        self._plan = self.planner.plan(self._world.now(), [each.request for each in self._planned_for])
        made, recorded = self._plan.configurations, self._catalog.incarnations
        ending = [
            RecordedInstance(end.uuid, end.instance.seqno, end.instance.start, end.restarts)
            for end in self._plan.ends
            if end.instance is not None
        ]
        incarnations = tuple(each for each in ending if recorded.get(each.uuid) != each)
        return [ConfigurationsAppointed(made, incarnations)] if made or incarnations else []

    def _conclude(self) -> None:
        """The plan is in the catalog: end the servers that were decided, answer, and let the primaries be ordered."""
        answered, self._planned_for = self._planned_for, []
        self.planner.settled()
        self.edits += bool(self._plan.configurations)
        self.ballots += len(self._plan.configurations)
        self._end()
        for tablet, configuration in self._plan.configurations.items():
            self._views.appointed(tablet, configuration)
            self.planner.changed(tablet)
            self._watch(tablet)
        for each in answered:
            self._answer(each)

    def _end(self) -> None:
        """End the servers of the plan. A server that is a member of no PacificA tablet sends no beacons: none are expected, and
        nothing is warned of."""
        for end in self._plan.ends:
            self.detector.ended(end)
            if end.reason in (SILENT, DIED) and not self.planner.is_member(end.uuid):
                if self.detector.has_ended(end.uuid):  # not if it has started again since the decision
                    self.detector.leave(end.uuid)
            elif end.reason != NEW:
                self.ends += 1
                log.warning("server %s has ended: %s", end.uuid, end.reason)

    def _answer(self, waiting: _Waiting) -> None:
        if waiting.answer.done():
            return
        request, stamp = waiting.request, self.detector.lease(waiting.request.instance.uuid)
        if stamp is None or stamp.start != request.instance.start:
            waiting.answer.set_exception(
                Unavailable(f"server {request.instance.uuid} has no lease here now; ask again")
            )
            return
        found: list[Appointed] = []
        for each in request.requested:
            known = self.planner.stored(each.tablet)
            if known is None or each.tablet in self.planner.doubts:
                continue
            found.append(Appointed(each.tablet, known))
            asked, mine = each.configuration, request.instance.uuid
            if known.primary == asked.primary == mine and known.index >= asked.index:
                # The answer is the order. One that asked for another primary may be stopping, and then declines.
                self.planner.follows(each.tablet, known.index)
        waiting.answer.set_result(Appointments(stamp.start, stamp.number, tuple(found)))

    def _refuse(self, error: EblaError) -> None:
        refused = [*self._planned_for, *self._waiting]
        self._planned_for, self._waiting = [], []
        for each in refused:
            settle(each.answer, error)
