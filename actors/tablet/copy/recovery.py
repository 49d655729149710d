"""The leader's view of its peers' health, and its requests for copies if the log cannot help.

    tablet_not_found    the server has no such replica          it copies the tablet
    tablet_deleted      it has a tombstone                      the copy replaces the tombstone
    replica_failed      its replica is damaged                  the copy replaces it; the damaged data is set
                                                                aside
    votes_forgotten     its record of votes is damaged, too     the same, once it is no voter (copies.py says
                                                                why)
    lagging             it needs entries that are dropped here  the same
    tablet_copying      a copy is under way                     no request
    copy_stalled        and makes no progress                   no request; soon the peer is unhealthy
                                                                (stream/progress.py)

So a new member's replica need not be created by others, and a replica that the log cannot help is
repaired in place (seed 000). Requests are idempotent: each names the state that it assumes, and the
server refuses it in any other state.

`CALLS_MAX` requests are under way at a time, `PEER_CALLS_MAX` of them to one server; the peer that
has been due for longest is first. Only a peer that answered a moment ago gets a request: the last
answer of a silent peer may be outdated, and the call would stay under way until its timeout. After
each request, and its copy, the next one to the same peer waits twice as long as before, until the
peer follows again: a copy that cannot succeed costs one call in half a minute. The peer counts as
unhealthy by then (stream/progress.py), unless its server has asked to wait because others are copied
first.

Sources: seed 000; Kudu's peer health and tablet copy trigger (kudu.md A4, A10).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import FIRST_BALLOT, Peer
from ebla.actors.replication.health import (
    HEALTHY,
    LOST,
    REPLICA_FAILED,
    TABLET_COPYING,
    TABLET_DELETED,
    TABLET_NOT_FOUND,
    VOTES_FORGOTTEN,
)
from ebla.actors.tablet.engine.core import NEVER, GroupCore
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.engine.waits import IDLE_S
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.world import World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

CALLS_MAX = 4
PEER_CALLS_MAX = 2  # a server that hangs leaves calls for the others
CALL_TIMEOUT_S = 15.0  # the peer first sets its data aside and begins a session at the source
OpId = tuple[int, int]  # index and term of an entry

RETRY_S_MIN, RETRY_S_MAX = 0.5, 30.0
CREATE_GRACE_S = 10.0  # the members of a new tablet are created one after the other


@dataclass(eq=False)
class Attempt:
    """Requests to one peer about one tablet, since it last followed."""

    asked: int = 0
    ended_at: float = NEVER  # when the last of them, and its copy, ended
    wait_s: float = 0.0
    under_way: bool = False

    @property
    def not_before(self) -> float:
        return self.ended_at + self.wait_s


class Recovery:
    def __init__(
        self, world: World, options: TabletServerOptions, replicas: Mapping[str, Replica], rounds: Rounds
    ) -> None:
        self.world = world
        self.options = options
        self.replicas = replicas
        self.rounds = rounds
        self.calls = 0
        self._calls_to: dict[str, int] = {}  # by the peer's uuid: calls under way
        self._attempts: dict[str, dict[str, Attempt]] = {}  # by tablet and peer; of peers that are not well

    def start(self) -> None:
        self.world.spawn(self._run(), "recovery")

    async def _run(self) -> None:
        doubtful_at = self.world.now()
        while True:
            if not self.rounds.unchecked and not self.rounds.ticking:
                await self.rounds.changed.wait(self.world.clock)
            await self.world.clock.sleep(self.options.leader_heartbeat_s)
            now = self.world.now()
            if doubtful := now >= doubtful_at:
                doubtful_at = now + IDLE_S
            self._check(now, doubtful=doubtful)

    def _check(self, now: float, *, doubtful: bool) -> None:
        """Decide which requests to send, without waiting."""
        looked = {**self.rounds.unchecked, **self.rounds.ticking}
        self.rounds.unchecked.clear()
        if doubtful:
            looked.update(self._doubtful(now))
        due: list[tuple[Replica, Peer, Attempt, str, OpId | None]] = []
        for tablet, replica in looked.items():
            core, known = replica.core, self._attempts.pop(tablet, {})
            attempts: dict[str, Attempt] = {}
            for uuid in self._unwell(replica, now):
                attempt = attempts[uuid] = known.get(uuid) or Attempt()
                self._note_copying(core, uuid, attempt, now)
                peer, wanted = core.configuration.peer(uuid), self._wanted(core, uuid, now)
                if peer is None or wanted is None or attempt.under_way or now < attempt.not_before:
                    continue
                due.append((replica, peer, attempt, *wanted))
            if attempts:
                self._attempts[tablet] = attempts
        for replica, peer, attempt, state, last in sorted(due, key=lambda each: each[2].not_before):
            if self.calls < CALLS_MAX and self._calls_to.get(peer.uuid, 0) < PEER_CALLS_MAX:
                self._send(replica, peer, attempt, state, last)

    def _doubtful(self, now: float) -> dict[str, Replica]:
        """The quiescent leaders whose view of their peers may have changed without an event: those with a peer that was not well,
        and those whose peers' servers have not answered lately. All others find their peers healthy, as when they were checked last."""
        self._attempts = {
            tablet: peers for tablet, peers in self._attempts.items() if tablet in self.replicas
        }
        unwell = {tablet: self.replicas[tablet] for tablet in self._attempts}
        return {**unwell, **self.rounds.liveness.doubted(now - self.options.election_s_min)}

    def _unwell(self, replica: Replica, now: float) -> list[str]:
        """Update the health of the replica's peers. Return those that a copy may help."""
        if not replica.leads:
            replica.health = {}
            return []
        health = replica.core.health(now, self.options.follower_failed_s)
        if health != replica.health:
            replica.health = health
            self.rounds.stir(replica)
        return [uuid for uuid, state in health.items() if state not in (HEALTHY, LOST)]

    def _note_copying(self, core: GroupCore, uuid: str, attempt: Attempt, now: float) -> None:
        """Let the pause after a copy begin at the end of the copy, for any duration; also after a
        copy that a former leader requested."""
        progress = core.progress.get(uuid)
        if progress is not None and progress.refusal == TABLET_COPYING:
            attempt.ended_at = now
            attempt.wait_s = max(attempt.wait_s, RETRY_S_MIN)

    def _wanted(self, core: GroupCore, uuid: str, now: float) -> tuple[str, OpId | None] | None:
        progress = core.progress.get(uuid)
        if progress is None or now - progress.contact_at > 2 * self.options.election_s_min:
            return None
        return needed(core, uuid, now)

    def _send(self, replica: Replica, peer: Peer, attempt: Attempt, state: str, last: OpId | None) -> None:
        core = replica.core
        own = core.configuration.peer(core.me)
        assert own is not None, ("a leader is a member", replica.tablet, core.configuration)
        assert peer.uuid != own.uuid, ("a leader copies to others", replica.tablet, peer)
        assert not attempt.under_way, ("a peer is asked once at a time", replica.tablet, peer)
        request = m.StartCopyRequest(
            peer.uuid, replica.tablet, own, core.term, state, last, core.forced_epoch
        )
        self._count(peer, 1)
        attempt.under_way = True
        self.world.spawn(self._ask(replica, peer, attempt, request), f"copy to {peer.address}")

    async def _ask(self, replica: Replica, peer: Peer, attempt: Attempt, request: m.StartCopyRequest) -> None:
        wait_s = 0.0
        try:
            if replica.leads and replica.core.term == request.term:
                wait_s = await self._call(peer, request)
        finally:
            self._count(peer, -1)
            attempt.under_way = False
        if wait_s and (progress := replica.core.progress.get(peer.uuid)):
            progress.waits(self.world.now())
        if wait_s == 0.0:
            attempt.asked += 1
            wait_s = min(RETRY_S_MIN * 2.0 ** min(attempt.asked - 1, 16), RETRY_S_MAX)
        attempt.ended_at = self.world.now()
        attempt.wait_s = wait_s * self.world.random.uniform(1.0, 1.5)

    def _count(self, peer: Peer, change: int) -> None:
        self.calls += change
        self._calls_to[peer.uuid] = self._calls_to.get(peer.uuid, 0) + change
        assert 0 <= self._calls_to[peer.uuid] <= self.calls <= CALLS_MAX, (
            "each call has a place",
            self.calls,
        )
        if not self._calls_to[peer.uuid]:
            del self._calls_to[peer.uuid]

    async def _call(self, peer: Peer, request: m.StartCopyRequest) -> float:
        """Send a request, and return how long the peer asks us to wait; 0 if it does not."""
        try:
            await self.world.network.call(peer.address, "start_copy", request, m.Empty, CALL_TIMEOUT_S)
        except errors.AlreadyInProgress:
            return 0.0
        except errors.Throttled as throttled:
            return max(throttled.retry_after_s or 0.0, RETRY_S_MIN)
        except EblaError as error:
            log.info("no copy of tablet %s to %s yet: %s", request.tablet, peer.address, error)
            return 0.0
        log.info("tablet %s is being copied to %s, which was %s", request.tablet, peer.address, request.state)
        return 0.0


def needed(core: GroupCore, uuid: str, now: float) -> tuple[str, OpId | None] | None:
    """The state that the peer reported, and the last entry of a running replica, if it needs a copy."""
    peer = core.progress.get(uuid)
    if peer is None:
        return None
    if peer.refusal == TABLET_NOT_FOUND:
        # Members of a new tablet may not be created yet. A member that was added later is created
        # by this copy only. A PacificA configuration in force is durable at the master; it may not be
        # committed before the copy has helped.
        known = core.committed_configuration
        first = known.index < 0 if known.primary is None else core.configuration.index <= FIRST_BALLOT
        new = first and now - peer.refused_since < CREATE_GRACE_S
        return None if new else (m.DOES_NOT_EXIST, None)
    if peer.refusal == TABLET_DELETED:
        return m.DELETED, None
    if peer.refusal in (REPLICA_FAILED, VOTES_FORGOTTEN):
        return m.FAILED, None
    if peer.refusal is None and core.needs_copy(uuid) and peer.healthy_at > NEVER:
        return m.RUNNING, peer.last
    return None
