"""The orders to the servers of primaries: one call per server at a time, for all of its tablets that wait.

An order says what is durable in the catalog, and may be repeated. It is repeated until the primary reports that it leads;
a server without a lease, or without a heartbeat to this master, is not called: a master on an older copy of its catalog
ends at a server's first heartbeat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ebla.actors.detector.detector import Detector
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.pacifica.planner import Planner
from ebla.actors.messages.appointments import Appointed, Appointments, AppointReply, AppointRequest
from ebla.actors.world import World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

TABLETS_MAX = 2000  # per call


class _Refusals(NamedTuple):
    """How often, and since when, a tablet has refused, one after the other, the order of this ballot. No order before `until`."""

    ballot: int
    times: int
    until: float
    since: float


@dataclass(eq=False)
class Orders:
    """`sent`: the calls to servers so far. `wake`: lets the appointer decide again, because a server has declined an order."""

    _world: World
    _options: MasterOptions
    _servers: Servers
    _detector: Detector
    _planner: Planner
    _wake: Callable[[], None]

    def __post_init__(self) -> None:
        self.sent = 0
        self._under_way: dict[str, None] = {}  # servers
        self._failures: dict[str, _Refusals] = {}  # of calls, by server
        self._refusals: dict[str, _Refusals] = {}  # by tablet

    def send(self) -> None:
        """Send all orders that are due, each call in its own task."""
        now = self._world.now()
        for uuid, tablets in self._planner.orders().items():
            if uuid in self._under_way or not self._reachable(uuid, now):
                continue
            due = [tablet for tablet in tablets if not self._pauses(tablet, now)][:TABLETS_MAX]
            if due:
                self._under_way[uuid] = None
                self._world.spawn(self._order(uuid, due), f"orders to {uuid}")

    def _reachable(self, uuid: str, now: float) -> bool:
        server, stamp, failed = self._servers.get(uuid), self._detector.lease(uuid), self._failures.get(uuid)
        if server is None or stamp is None or stamp.start != server.instance.start:
            return False
        return self._servers.answers(uuid, now) and (failed is None or now >= failed.until)

    def _pauses(self, tablet: str, now: float) -> bool:
        refused, known = self._refusals.get(tablet), self._planner.stored(tablet)
        return (
            refused is not None
            and known is not None
            and refused.ballot == known.index
            and now < refused.until
        )

    async def _order(self, uuid: str, tablets: list[str]) -> None:
        try:
            await self._world.faults.here("master.appoint.before_rpc")
            await self._call(uuid, tablets)
        finally:
            del self._under_way[uuid]
        self.send()

    async def _call(self, uuid: str, tablets: list[str]) -> None:
        """Send what the catalog has now for the tablets that this server still leads."""
        server, stamp = self._servers.get(uuid), self._detector.lease(uuid)
        known = [(tablet, self._planner.awaits_order(tablet)) for tablet in tablets]
        ordered = tuple(
            Appointed(tablet, each) for tablet, each in known if each is not None and each.primary == uuid
        )
        if server is None or stamp is None or stamp.start != server.instance.start or not ordered:
            return
        request = AppointRequest(uuid, Appointments(stamp.start, stamp.number, ordered))
        timeout_s = self._options.detector.lease_s / 2
        self.sent += 1
        try:
            reply = await self._world.network.call(
                server.address, "appoint", request, AppointReply, timeout_s
            )
        except EblaError as error:
            self._note_failure(uuid, ordered)
            first = self._failures[uuid].times == 1
            log.log(logging.WARNING if first else logging.DEBUG, "no order to %s: %r", server.address, error)
            return
        self._failures.pop(uuid, None)
        present = self._detector.lease(uuid)
        if present is None or present.start != stamp.start:
            return  # the process that answered has ended
        for each in ordered:
            ballot = each.configuration.index
            self._take(each.tablet, ballot, reply.refused.get(each.tablet))
            if each.tablet in reply.declined:
                self._planner.declined(each.tablet, stamp, ballot)
        if reply.declined:
            self._wake()

    def _take(self, tablet: str, ballot: int, refusal: str | None) -> None:
        if refusal is None:
            self._refusals.pop(tablet, None)
            self._planner.follows(tablet, ballot)
            return
        refused = self._refusals[tablet] = self._again(self._refusals.get(tablet), ballot)
        level = logging.INFO if refused.times == 1 else logging.DEBUG
        log.log(level, "tablet %s does not follow the order of ballot %d: %s", tablet, ballot, refusal)

    def _again(self, before: _Refusals | None, ballot: int) -> _Refusals:
        now = self._world.now()
        count, since = 1, now
        if before is not None and before.ballot == ballot:
            count, since = before.times + 1, before.since
        longest = self._options.rpc_backoff_max_s
        wait_s = min(longest, self._options.rpc_backoff_s * 2.0 ** min(count - 1, 30))
        return _Refusals(ballot, count, now + wait_s * self._world.random.uniform(0.5, 1.0), since)

    def reaches(self, uuid: str) -> bool:
        """Whether a server has sent heartbeats of late, and no call to it has failed for the grace. If not, it must lose its lease, so that
        another voter leads: orders would never arrive."""
        now, failed = self._world.now(), self._failures.get(uuid)
        fails = failed is not None and now - failed.since > self._options.detector.grace_s
        return self._servers.is_alive(uuid, now) and not fails

    def _note_failure(self, uuid: str, ordered: Sequence[Appointed]) -> None:
        """Note that a call failed. If a tablet waits no longer, its order has arrived, and only the answer was late or lost."""
        arrived = any(self._planner.awaits_order(each.tablet) is None for each in ordered)
        self._failures[uuid] = self._again(None if arrived else self._failures.get(uuid), 0)

    def forget(self) -> None:
        """Drop the pauses, and the failures, of tablets and servers that wait for no order."""
        waiting = self._planner.orders() if self._failures else {}
        for tablet in [tablet for tablet in self._refusals if tablet not in self._planner.unled]:
            del self._refusals[tablet]
        for uuid in [uuid for uuid in self._failures if uuid not in waiting]:
            del self._failures[uuid]
