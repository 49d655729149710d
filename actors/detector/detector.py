"""The active master's part of the failure detector: when a server's replicas are taken away.

One detector lives as long as one term of the active master. The state of a server:

    state     event                                   then
    alive     a beacon                                acknowledged
    alive     a beacon of a later incarnation         ending: the former process has ended
    alive     its process has ended                   ending: died
    alive     no beacon for grace_s                   ending: silent
    ending    a beacon                                not acknowledged
    ending    the edit of its end is durable          ended
    ended     a beacon                                alive, acknowledged
    ended     a beacon of a later incarnation         ending
    ended     it is a member of no tablet             idle
    idle      a beacon                                alive, acknowledged
    idle      a beacon of a later incarnation         ending
    idle      it gets a replica                       alive
    unknown   its first beacon                        ending: new; alive once that is recorded

`decide` returns the servers that are ending; the master then makes one edit for each, which takes its
replicas away and records its incarnation, and calls `ended` once the edit is durable. If the master's term ends first,
so does the detector, and the next master's detector counts from its own beginning.

So the catalog has every incarnation that was ever acknowledged, before it was. Only therefore a later
incarnation proves that the process which may serve has ended: a new master that hears an old beacon first
would otherwise take the serving process for a later one.

`process_ended` reports that a process has ended: another process of the same host has seen that (actors/asking/ends.py). The decision
is made TOGETHER_S later, because processes that are killed together must not become primaries one after the other, and lose their
votes. No beacon of such a process is acknowledged.

Beacons of an earlier incarnation, of servers that are not allowed, of servers that restart too often, and of servers that the master
cannot call or has no heartbeats of are not acknowledged and do not count, in any state: such a server becomes silent.

The catalog also has how often a server has restarted in a row, so a new master goes on counting. A row of restarts is over once
the server has run for stable_s in this master's term. It is over, too, once the number that the server shows was raised twice
since it was recorded: it has run for a while before this term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.incarnations import RAISED_BY
from ebla.actors.messages import ServerInstance

NEVER = float("-inf")
TOGETHER_S = 0.1  # ends within this time are one decision
REPORT_GRACES = 3.0  # within which a new process has reported its replicas, though heartbeats are lost
ALIVE, ENDING, ENDED, IDLE = "alive", "ending", "ended", "idle"
# For operators: this master presumes the server alive, and has acknowledged no beacon of it.
UNKNOWN = "unknown"

# The answers to a beacon.
ACKNOWLEDGED = "acknowledged"
DECIDED = "its end is being recorded"
EARLIER = "a later incarnation of this server was seen, or this process has ended"
NOT_ALLOWED = (
    "an operator has suspended the server (`ebla nodes suspend --off` ends that), or it is not on the allow list "
    "(`ebla nodes allow-only` changes the list)"
)
TOO_LONG = (
    "its lease is too long for this master's grace: give all roles the same beacon_lease_s and detector"
)
UNSTABLE = "the server restarts too often; it gets a lease once it has run for a while"
UNREACHABLE = "the master cannot call the server, or gets no heartbeats of it"

# Why a server's replicas are taken away.
SILENT, RESTARTED, DIED = "silent", "restarted", "died"
NEW = "new"  # its incarnation is recorded; no process of the server can have served before


class End(msgspec.Struct, frozen=True):
    """A decision: the replicas of server `uuid` are taken away, and its incarnation `instance` is recorded (None: none is known
    yet), and with it the number of its restarts in a row. `reason`: SILENT, RESTARTED, DIED or NEW."""

    uuid: str
    reason: str
    instance: ServerInstance | None
    restarts: int = 0


class Stamp(NamedTuple):
    """The process and the lease that an order is for: the start of an incarnation, and the number of its lease. A restarted
    server counts its leases from 1 again."""

    start: str
    number: int


class Shown(NamedTuple):
    """A server's lease, for operators. `number`, `beacon_age_s`: of the last acknowledged beacon; 0 and None if there was none.
    `left_s`: when it counts as ended, if no beacon comes before."""

    state: str
    number: int
    beacon_age_s: float | None
    left_s: float


@dataclass(slots=True)
class _Watched:
    """`heard_at`: the receipt of the last beacon that counts. `lease`: the number that it named, 0 if there was none.
    `begun_at`: the receipt of the first beacon of this incarnation. `met_at`: of its last one that was acknowledged, or
    would have been if no edit about the server had been under way. `restarts`: how many restarts in a row came within stable_s of the one before.
    `dead_at`: when the end of the process of `instance` was reported."""

    state: str
    instance: ServerInstance | None
    heard_at: float
    begun_at: float
    met_at: float
    lease: int = 0
    restarts: int = 0
    end: str = ""
    dead_at: float | None = None


class Detector:
    """`servers`: those that may hold replicas by the catalog, each with the incarnation that the catalog has recorded, or
    None. They count as alive from `now` on. `allowed`: whether the server with a uuid gets leases. `reachable`: whether the master can
    call it, unless its process has just begun. `restarts`: those that the catalog has recorded."""

    def __init__(
        self,
        limits: DetectorLimits,
        now: float,
        servers: Iterable[tuple[str, ServerInstance | None]],
        allowed: Callable[[str], bool] = lambda uuid: True,
        restarts: Mapping[str, int] = MappingProxyType({}),
        reachable: Callable[[str], bool] = lambda uuid: True,
    ) -> None:
        self.limits = limits
        self._servers = {
            uuid: _Watched(ALIVE, instance, now, now, now, restarts=restarts.get(uuid, 0))
            for uuid, instance in servers
        }
        self.allowed = allowed
        self.reachable = reachable

    def watch(self, now: float, uuid: str, instance: ServerInstance | None) -> None:
        """Watch a server that holds replicas from now on; one that sent no beacon yet counts as alive from `now` on."""
        server = self._servers.setdefault(uuid, _Watched(ALIVE, instance, now, now, now))
        if server.state == IDLE:  # it may have another process by now, which sent no beacons
            server.state, server.heard_at, server.lease, server.dead_at = ALIVE, now, 0, None

    def beacon(self, now: float, shown: ServerInstance, lease: int) -> str:
        """Take a beacon that names `lease`, and return ACKNOWLEDGED or why it is not acknowledged."""
        if not self.allowed(shown.uuid):
            return NOT_ALLOWED
        server = self._servers.setdefault(shown.uuid, _Watched(ENDED, None, now, now, NEVER))
        if not self._meet(server, shown, now):
            return EARLIER
        unstable = (
            server.restarts >= self.limits.restarts_max and now - server.begun_at < self.limits.stable_s
        )
        begins = now - server.begun_at < REPORT_GRACES * self.limits.grace_s
        reachable = begins or self.reachable(shown.uuid)
        if reachable and not unstable:
            server.met_at = now
        if server.state == ENDING:
            return DECIDED
        if unstable or not reachable:
            return UNSTABLE if unstable else UNREACHABLE
        if now - server.begun_at >= self.limits.stable_s:
            server.restarts = 0
        server.state, server.heard_at = ALIVE, now
        server.lease = max(server.lease, lease)
        return ACKNOWLEDGED

    def _meet(self, server: _Watched, shown: ServerInstance, now: float) -> bool:
        """Note the incarnation; False if it is an earlier one, or has ended."""
        known = server.instance
        raised = shown.seqno - known.seqno if known is not None else 0
        if known is not None and known.start == shown.start:
            if server.dead_at is not None:
                return False
            if raised > RAISED_BY:
                server.restarts = 0
            server.instance = max(known, shown, key=lambda each: each.seqno)
            return True
        if known is not None and shown.seqno <= known.seqno:
            return False
        quick = known is not None and now - server.begun_at < self.limits.stable_s and raised <= RAISED_BY + 1
        server.restarts = server.restarts + 1 if quick else 0
        server.instance, server.begun_at, server.dead_at = shown, now, None
        server.heard_at, server.lease = now, 0
        end = "" if server.end == DIED else server.end  # that is over: the server has another process
        server.state, server.end = ENDING, end or (RESTARTED if known else NEW)
        return True

    def process_ended(self, now: float, process: ServerInstance) -> bool:
        """Note that this process has ended, which must be certain. Return whether that is news about the server's present one."""
        server = self._servers.get(process.uuid)
        if server is None or _start(server.instance) != process.start or server.dead_at is not None:
            return False
        server.dead_at = now
        return True

    def decide(self, now: float) -> list[End]:
        """The servers that are ending: those decided now, and those whose edit is not durable yet."""
        for server in self._servers.values():
            if server.state == ALIVE and now >= self._ends_at(server):
                server.state, server.end = ENDING, SILENT if server.dead_at is None else DIED
        ending = ((uuid, each) for uuid, each in self._servers.items() if each.state == ENDING)
        return [End(uuid, server.end, server.instance, server.restarts) for uuid, server in ending]

    def ended(self, end: End) -> None:
        """Note that the edit of this decision is durable. If a later incarnation has come since, another one follows."""
        server = self._servers[end.uuid]
        assert server.state == ENDING, ("an edit follows a decision", end, server)
        if _start(end.instance) == _start(server.instance):
            server.state, server.end = ALIVE if server.end == NEW else ENDED, ""

    def leave(self, uuid: str) -> None:
        """Expect no beacons of a server that has ended and is a member of no tablet. `watch` begins to expect them again."""
        server = self._servers[uuid]
        assert server.state == ENDED, ("only a server that has ended is idle", uuid, server)
        server.state = IDLE

    def lease(self, uuid: str) -> Stamp | None:
        """The process and the lease that an order to this server names; None: the server gets no orders now."""
        server = self._servers.get(uuid)
        if server is None or server.state != ALIVE or server.dead_at is not None:
            return None
        if not server.lease or server.instance is None:
            return None
        return Stamp(server.instance.start, server.lease)

    def shown(self, now: float, uuid: str) -> Shown | None:
        """The lease of a server, or None if the server is not watched."""
        server = self._servers.get(uuid)
        if server is None:
            return None
        age_s = now - server.heard_at
        left_s = max(0.0, self.limits.grace_s - age_s) if server.state == ALIVE else 0.0
        if not server.lease:
            return Shown(UNKNOWN if server.state == ALIVE else server.state, 0, None, left_s)
        return Shown(server.state, server.lease, age_s, left_s)

    def has_ended(self, uuid: str) -> bool:
        """Whether the server's replicas were taken away, and it has not shown that it lives since."""
        server = self._servers.get(uuid)
        return server is not None and server.state == ENDED

    def has_ended_process(self, process: ServerInstance) -> bool | None:
        """Whether this process has ended, as far as this master knows; None if no beacon of it has come yet."""
        server = self._servers.get(process.uuid)
        if server is None or server.instance is None:
            return None if server is None or server.state == ALIVE else True
        if server.instance.start != process.start:
            return None if server.state == ALIVE and process.seqno > server.instance.seqno else True
        return server.dead_at is not None or (server.state != ALIVE and server.end != NEW)

    def was_met(self, now: float, uuid: str) -> bool:
        """Whether a server that may get a lease has sent a beacon within grace_s. A new master counts from its beginning."""
        server = self._servers.get(uuid)
        return server is not None and now - server.met_at < self.limits.grace_s

    def is_new(self, now: float, uuid: str, graces: float = 1.0) -> bool:
        """Whether the server's process, or this master's term, began within `graces` times grace_s; also if that process has ended."""
        server = self._servers.get(uuid)
        if server is None or server.state != ALIVE:
            return True
        return now - server.begun_at < graces * self.limits.grace_s

    def states(self) -> Counter[str]:
        """The number of servers by state, for operators."""
        return Counter(
            UNKNOWN if each.state == ALIVE and not each.lease else each.state
            for each in self._servers.values()
        )

    def next_wake(self, now: float) -> float:
        """When `decide` is needed next; `now` if it is needed already, infinity if there is nothing to wait for."""
        if any(server.state == ENDING for server in self._servers.values()):
            return now
        ends = [self._ends_at(server) for server in self._servers.values() if server.state == ALIVE]
        return max(now, min(ends, default=float("inf")))

    def _ends_at(self, server: _Watched) -> float:
        """When a server that is alive ends, if no beacon comes before."""
        silent_at = server.heard_at + self.limits.grace_s
        return silent_at if server.dead_at is None else min(silent_at, server.dead_at + TOGETHER_S)


def _start(instance: ServerInstance | None) -> str:
    return instance.start if instance is not None else ""
