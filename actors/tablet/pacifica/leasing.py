"""The beacons of a tablet server, and its leases: see actors/detector.

Every `beacon_s` one small call goes to each master, if this server has a replica of a PacificA tablet. Only the active one acknowledges; the refusal of a standby is no trouble.
A beacon never waits for another, nor for a report. A server whose log writer has been waiting for its disk for half a lease
sends none: its lease ends, and others take over. When a lease is over, the replicas that lead in it are ticked at once.

A primary that does not lead waits for another ballot. It is reported with every beacon, because the master may have taken the first
report for older than its own order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ebla.actors.detector.detector import DECIDED
from ebla.actors.detector.lease import Lease
from ebla.actors.errors import NotActive
from ebla.actors.messages.appointments import Beacon, BeaconReply
from ebla.actors.messages.pacifica import BallotRecord
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.world import World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

AGAIN_S = 0.05


@dataclass(eq=False)
class Leasing:
    """`replicas`: those of PacificA tablets. `serving`: whether the server serves; one that does not asks for no lease. `report`:
    reports a tablet to the masters."""

    world: World
    options: TabletServerOptions
    identity: Identity
    rounds: Rounds
    replicas: Mapping[str, Replica]
    tombstones: Mapping[str, Tombstone]
    lease: Lease
    serving: Callable[[], bool]
    report: Callable[[str], None]

    def __post_init__(self) -> None:
        self.limits = self.options.detector
        self._again: dict[str, None] = {}  # masters that get a beacon out of turn
        self._refusals: dict[str, str] = {}  # by master: why it did not acknowledge the last beacon
        self._waiting: dict[str, Replica] = {}  # those that wait for another ballot, or did lately
        self._ended = 0  # the number of the last lease whose end was noticed

    def holds(self) -> bool:
        """Whether this server has a lease: a master has acknowledged a beacon lately."""
        return self.lease.holds(self.world.now(), self.lease.number)

    def left_s(self) -> float:
        """For how long the present lease is in force; 0 if it is over, or has not begun."""
        return self.lease.until - self.world.now() if self.holds() else 0.0

    def refusal(self) -> str:
        """Why a master refused the last beacon; "" if none did."""
        return next(filter(None, self._refusals.values()), "")

    def start(self) -> None:
        self.world.spawn(self._run(), "beacons")

    def note_events(self, replicas: Mapping[str, Replica]) -> None:
        """Take the replicas that had events, and remember those that wait for another ballot. A server may have thousands of
        idle ones."""
        for tablet, replica in replicas.items():
            if _awaits_ballot(replica):
                self._waiting[tablet] = replica

    async def _run(self) -> None:
        due = self.world.now()
        while True:
            now = self.world.now()
            self._notice_end(now)
            if now >= due:
                self._send(now)
                self._report_waiting()
                due = now + self.limits.beacon_s
            ends = self.lease.until
            await self.world.clock.sleep(min(due, ends if ends > now else due) - now)

    def _notice_end(self, now: float) -> None:
        """Tick the replicas that lead in a lease that is over, once: none begins to lead in it."""
        if not self.lease.is_over(now) or self._ended == self.lease.number:
            return
        self._ended = self.lease.number
        for replica in list(self.replicas.values()):
            if replica.leads:
                self.rounds.step(replica, replica.core.tick, now)

    def _report_waiting(self) -> None:
        for tablet, replica in list(self._waiting.items()):
            if self.replicas.get(tablet) is replica and _awaits_ballot(replica):
                self.report(tablet)
            else:
                del self._waiting[tablet]

    def _send(self, now: float) -> None:
        number = self._number(now)
        if number is None:
            return
        for master in self.options.masters:
            self.world.spawn(self._beat(master, number), f"beacon to {master}")

    async def _beat_again(self, master: str) -> None:
        """Send a beacon out of turn: the master records an edit about this server, which is durable soon."""
        await self.world.clock.sleep(AGAIN_S)
        del self._again[master]
        now = self.world.now()
        self._notice_end(now)
        number = self._number(now)
        if number is not None:
            await self._beat(master, number)

    def _number(self, now: float) -> int | None:
        """The number of the lease that a beacon sent now names; None: this server asks for no lease."""
        if not self.serving() or self.identity.refused is not None or not self._needed():
            return None
        stalled = self.rounds.stalled_s(now) > self.limits.lease_s / 2
        if stalled:
            self.world.faults.reached("tablet.beacon.withheld")
        return self.lease.beacon(now, log_stalled=stalled)

    def _needed(self) -> bool:
        """Whether a PacificA tablet is, or was, on this server: the master may appoint it."""
        return bool(self.replicas) or any(
            isinstance(each.hard_state, BallotRecord) for each in self.tombstones.values()
        )

    async def _beat(self, master: str, number: int) -> None:
        """Send one beacon. An answer after lease_s would be worth nothing, so the calls under way are few."""
        seen, sent_at = self.identity.catalog.version, self.world.now()
        beacon = Beacon(self.identity.instance, number, self.limits.lease_s, seen)
        try:
            reply = await self.world.network.call(master, "beacon", beacon, BeaconReply, self.limits.lease_s)
        except NotActive:
            return
        except EblaError as error:
            self.identity.failed(error)
            return
        if reply.refused != self._refusals.get(master, ""):
            self._refusals[master] = reply.refused
            log.info("%s answers to beacons: %s", master, reply.refused or "acknowledged")
        if reply.refused == DECIDED and master not in self._again:
            self._again[master] = None
            self.world.spawn(self._beat_again(master), f"next beacon to {master}")
        if not reply.refused:
            self.lease.acknowledged(self.world.now(), number, sent_at)


def _awaits_ballot(replica: Replica) -> bool:
    return isinstance(replica.core, PacificaCore) and replica.core.awaits_ballot
