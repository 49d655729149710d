"""Heartbeats to the masters, with the server's identity and its changed replicas.

Each master has its own map of changes: a report has the changes since the last acknowledged report, and replicas that
change during a call are sent again. Changes of leadership and state are sent at once. A standby gets only the server's
identity until it requests more, and every fourth heartbeat while another master answers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.actors.errors import NotActive
from ebla.actors.messages import (
    DELETED,
    HeartbeatReply,
    HeartbeatRequest,
    Registration,
    TabletReport,
)
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.space import Space
from ebla.actors.tablet.lifecycle.failed import Broken
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.serving.admission import Load
from ebla.actors.world import World
from ebla.storage.errors import EblaError

CALL_TIMEOUT_S = 5.0
FULL_EVERY = 600  # every 600th heartbeat looks at all replicas, in case an event went unnoticed; the others at those with events
GROWN_BYTES = 1 << 18
GROWN_SHARE = 8
STANDBY_RESTS = 4  # heartbeat's times between two heartbeats to a standby


@dataclass(eq=False)
class Active:
    """The master that has answered a heartbeat last, and when; shared by the reporters of a server."""

    master: str = ""
    at: float = float("-inf")

    def failed(self, master: str) -> None:
        if master == self.master:
            self.at = float("-inf")


@dataclass(eq=False)
class Reporter:
    """The heartbeats to one master."""

    world: World
    options: TabletServerOptions
    identity: Identity
    lifecycle: Lifecycle
    master: str
    load: Load
    space: Space
    active: Active

    def __post_init__(self) -> None:
        self._register = True
        self._full = True
        self._brief = False  # the master is a standby, as far as is known
        self._sequence = 0
        self._changed: dict[str, int] = {}  # tablet: the sequence at the time of the change
        self._seen: dict[str, tuple[object, ...]] = {}
        self._grown: dict[str, None] = {}  # the tablets that may have
        self._sizes: dict[str, int] = {}  # in bytes, as of the last report of each replica
        self._counted: dict[str, tuple[bool, bool]] = {}  # whether each is a replica, and a leader
        self._counts = [0, 0]  # of replicas and leaders in `_counted`
        self._uncounted: dict[str, None] = {}  # those that have changed since
        self._took_data = True
        self._wake = asyncio.Event()

    def start(self) -> None:
        self.world.spawn(self._run(), f"heartbeats to {self.master}")

    def changed(self, tablet: str) -> None:
        """Report at once that the replica's state, leader or configuration changed, or that it is gone."""
        self._changed[tablet] = self._sequence
        self._uncounted[tablet] = None
        self._wake.set()

    def note_events(self, replicas: Mapping[str, Replica]) -> None:
        """Take the replicas that had events, and a change of free space, which placement needs at once."""
        if self.space.takes_data != self._took_data:
            self._took_data = self.space.takes_data
            self._wake.set()
        self._grown.update(dict.fromkeys(replicas))
        self._find_changes(replicas)

    def _find_changes(self, held: Mapping[str, Replica | Broken | Tombstone]) -> None:
        """Find those of these replicas whose reportable facts have changed."""
        for tablet, replica in held.items():
            facts = replica.facts()
            if self._seen.get(tablet) != facts:
                self._seen[tablet] = facts
                self.changed(tablet)

    def _find_sizes(self) -> None:
        """Find replicas whose size is no longer about as reported: by an eighth and by 256 KiB. The next heartbeat has it."""
        grown, self._grown = self._grown, {}
        for tablet in grown:
            replica = self.lifecycle.get(tablet)
            if replica is None:
                continue
            size, reported = replica.size_bytes, self._sizes.get(tablet, 0)
            if abs(size - reported) > max(GROWN_BYTES, reported // GROWN_SHARE):
                self._changed[tablet] = self._sequence

    def _count(self) -> tuple[int, int]:
        """How many replicas and leaders there are. While thousands elect, counting all for every heartbeat would delay them."""
        for tablet in self._uncounted:
            each = self.lifecycle.get(tablet)
            counted = (each.state != DELETED, each.leads) if each is not None else (False, False)
            before = self._counted.get(tablet, (False, False))
            for place in (0, 1):
                self._counts[place] += counted[place] - before[place]
            self._counted[tablet] = counted
            if each is None:
                del self._counted[tablet]
        self._uncounted = {}
        replicas, leaders = self._counts
        return replicas, leaders

    async def _run(self) -> None:
        for number in itertools.count():
            if number % FULL_EVERY == 0:
                held = self.lifecycle.all()
                self._uncounted = dict.fromkeys((*self._counted, *held))
                self._find_changes(held)
            self._wake.clear()
            try:
                again = await self._beat()
            except EblaError as error:
                self.identity.failed(error)
                self._brief = isinstance(error, NotActive)
                # The master does not answer, or refused; the next heartbeat repeats everything.
                self.world.faults.reached("tablet.heartbeat.failed")
                self.active.failed(self.master)
                await self._rest()
                continue
            if again:
                continue
            try:
                async with self.world.clock.timeout(self.options.heartbeat_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _rest(self) -> None:
        """A standby, or a master that is gone, gets few heartbeats as long as another one answers."""
        for _ in range(STANDBY_RESTS):
            await self.world.clock.sleep(self.options.heartbeat_s)
            if self.world.now() - self.active.at > 2 * self.options.heartbeat_s:
                return

    async def _beat(self) -> bool:
        """Send one heartbeat. Return True if the master needs another at once (registration or full report)."""
        full, brief = self._full, self._brief
        sequence = self._sequence
        self._find_sizes()
        report = None if brief else self._report(full, sequence)
        self._sequence += 1
        (replicas, leaders), usage = self._count(), self.space.usage()
        registration = Registration(self.world.address, self.options.host, self.options.version)
        request = HeartbeatRequest(
            instance=self.identity.instance,
            registration=registration if self._register and not brief else None,
            report=report,
            replicas=replicas,
            leaders=leaders,
            disk_bytes=usage.used_bytes,
            memory_bytes=self.load.memtable_bytes,
            takes_data=usage.takes_data,
            disks=usage.disks,
            seen=self.identity.catalog.version,
        )
        reply = await self.world.network.call(
            self.master, "heartbeat", request, HeartbeatReply, CALL_TIMEOUT_S
        )
        self.identity.heartbeat_answered(reply)
        self.active.master, self.active.at = self.master, self.world.now()
        if brief:
            self._brief = False
            return True
        for tablet in [t for t, changed in self._changed.items() if changed <= sequence]:
            del self._changed[tablet]
        wanted = (reply.needs_register and not self._register) or (reply.needs_full_report and not full)
        self._register = reply.needs_register
        self._full = reply.needs_full_report
        return wanted

    def _report(self, full: bool, sequence: int) -> TabletReport:
        names = self.lifecycle.all() if full else self._changed
        held = {name: self.lifecycle.get(name) for name in names}
        updated = [each.report() for each in held.values() if each is not None]
        removed = tuple(name for name, each in held.items() if each is None)
        self._sizes.update((each.tablet, each.rows_bytes) for each in updated)
        return TabletReport(sequence, not full, tuple(updated), removed)
