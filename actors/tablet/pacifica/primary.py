"""A primary's knowledge in one ballot: who must hold an entry, and who does not keep up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ebla.actors.replication.configuration import PRE_VOTER, Configuration
from ebla.actors.tablet.engine.core import NEVER
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.pacifica.limits import PacificaLimits
from ebla.actors.tablet.stream.peers import Peers
from ebla.actors.tablet.stream.progress import LAGGING


@dataclass(frozen=True)
class Stall:
    """A delay of a voter's disk: since `since` our disk holds entry `index`, and its disk does not. For our own disk: those of all
    other voters hold it."""

    index: int
    since: float


@dataclass(frozen=True)
class Strike:
    """How often in a row a member has lost its vote, and until when it does not get it back."""

    count: int
    until: float


class Primary(Peers):
    """`inherited`: the last entry of the log when this replica became primary. The primary before may have committed, and shown, any
    of it. `joining`: learners that hold almost
    everything. They count for commits already, so that nothing is committed without them when they become voters."""

    def __init__(
        self,
        me: str,
        ballot: int,
        configuration: Configuration,
        log: LogIndex,
        limits: PacificaLimits,
        now: float,
        *,
        inherited: int,
    ) -> None:
        self.inherited = inherited
        self.changing = False  # a request to the master is under way
        self.joining: dict[str, None] = {}
        self._limits = limits
        self._leads_since = now
        self._stalls: dict[str, Stall] = {}
        self._own_stall: Stall | None = None
        self._strikes: dict[str, Strike] = {}
        self._ended: dict[str, float] = {}  # when the processes of peers were reported to have ended
        super().__init__(me, ballot, configuration, log, limits, now, next_index=log.last_index)

    def reconfigure(self, configuration: Configuration, now: float, next_index: int) -> None:
        super().reconfigure(configuration, now, next_index)
        if self.transfer is not None and not self.may_succeed(self.transfer.successor):
            self.transfer = None  # the successor has lost its vote meanwhile
        self._stalls = {uuid: stall for uuid, stall in self._stalls.items() if uuid in self.peers}
        self._ended = {uuid: at for uuid, at in self._ended.items() if uuid in self.peers}
        self.joining = {
            uuid: None
            for uuid in self.joining
            if any(peer.uuid == uuid and peer.kind == PRE_VOTER for peer in configuration.peers)
        }

    def renew(self, ballot: int) -> None:
        """Continue in a new ballot, with what is known of the peers. No other replica led in between, so their logs
        still hold what they acknowledged; answers to messages of the ballot before do not count."""
        assert ballot > self.term, ("ballots ascend", ballot, self.term)
        self.term, self.changing = ballot, False
        for peer in self.peers.values():
            peer.begin_term()

    # -- who must hold an entry

    def replicated_index(self, own_durable: int, needed: Iterable[str]) -> int:
        """The greatest index that all replicas of `needed` hold durably."""
        return min(own_durable if uuid == self.me else self.held_by(uuid) for uuid in needed)

    def may_be_refused(self, now: float) -> bool:
        """Whether a voter has not taken the first entry of this leadership, and keeps up, or had no time yet to show that it does not. It
        refuses that entry if it has committed what is not here."""
        stalled_s = self._limits.stalled_s
        others = (uuid for uuid in self._voters if uuid != self.me)
        return now - self._leads_since < stalled_s and any(
            self.held_by(uuid) <= self.inherited and self.fails_at(uuid, stalled_s) > now for uuid in others
        )

    def held_by(self, uuid: str) -> int:
        """The index up to which the peer holds our log. A lagging peer may have lost what it acknowledged."""
        peer = self.peers[uuid]
        return 0 if peer.state == LAGGING else peer.match

    # -- who does not keep up

    def paused(self, now: float) -> None:
        super().paused(now)
        if self._own_stall is not None:
            self._own_stall = Stall(self._own_stall.index, now)

    def mute(self, now: float) -> None:
        """Give each peer its full time again: our messages have been waiting for our own disk, which is as late as it was."""
        super().paused(now)

    def note_durable(self, now: float, own_durable: int) -> None:
        """Update the stalls after a change of what we, or a peer, hold."""
        held = self._held_by_others()
        if self._own_stall is None or own_durable >= self._own_stall.index:
            self._own_stall = Stall(held, now) if own_durable < held else None
        for uuid, peer in self.peers.items():
            stall = self._stalls.get(uuid)
            if stall is not None and peer.match >= stall.index:
                del self._stalls[uuid]
                stall = None
            if stall is None and peer.match < own_durable:
                self._stalls[uuid] = Stall(own_durable, now)

    def fails_at(self, uuid: str, stalled_s: float) -> float:
        """The time from which the peer does not keep up, unless it answers, or writes, before."""
        peer = self.peers[uuid]
        if peer.state == LAGGING:
            return NEVER
        silent = max(peer.healthy_at, self._watching_since) + self._limits.silent_s
        stall = self._stalls.get(uuid)
        return silent if stall is None else min(silent, max(stall.since, self._watching_since) + stalled_s)

    def failing(self, now: float) -> list[str]:
        """The secondaries that do not keep up; the one that has not for longest comes first."""
        at = {uuid: self.fails_at(uuid, self._limits.stalled_s) for uuid in self._voters if uuid != self.me}
        return sorted(
            (uuid for uuid in at if at[uuid] <= now or self._waits_for_dead(uuid)),
            key=lambda uuid: (self.peers[uuid].healthy_at, uuid),
        )

    def note_end(self, now: float, uuid: str) -> None:
        self._ended[uuid] = now

    def _waits_for_dead(self, uuid: str) -> bool:
        """Whether an entry waits for the peer, whose process has ended since it last answered."""
        return uuid in self._stalls and self.peers[uuid].healthy_at < self._ended.get(uuid, NEVER)

    def next_failure(self, now: float) -> float:
        """The time when one more secondary does not keep up, or a learner must leave. One that must leave already is due
        now; a secondary that does not keep up may have to stay."""
        at = [self.fails_at(uuid, self._limits.stalled_s) for uuid in self._voters if uuid != self.me]
        at = [time for time in at if time > now] + [self._leaves_at(uuid) for uuid in self.joining]
        return min(at, default=float("inf"))

    def gives_way_at(self, now: float) -> float:
        """The time from which another voter must lead, because our disk, which hangs or is full, delays every write. The one that would
        follow has answered a moment ago."""
        stall = self._own_stall
        if stall is None or self.transfer is not None or self._held_by_others() < stall.index:
            return float("inf")
        successor = self.choose_successor()
        if successor is None or now - self.peers[successor].healthy_at > self._limits.patience_s:
            return float("inf")
        return stall.since + self._limits.stalled_s

    def _held_by_others(self) -> int:
        """The greatest index that all other voters hold durably; 0 if there are none."""
        return min((self.held_by(uuid) for uuid in self._voters if uuid != self.me), default=0)

    # -- quiescence

    def _may_quiesce(self, now: float, commit_index: int, own_durable: int) -> bool:
        idle = not self.joining and not self.changing
        return idle and super()._may_quiesce(now, commit_index, own_durable)

    # -- learners

    def strike(self, now: float, uuid: str) -> None:
        """Note that a member loses its vote. A strike is forgotten some time after the last one."""
        limits, before = self._limits, self._strikes.get(uuid)
        count = before.count + 1 if before and now < before.until + limits.rejoin_s_max else 1
        pause_s = min(limits.rejoin_s * 2.0 ** min(count - 1, 32), limits.rejoin_s_max)
        self._strikes[uuid] = Strike(count, now + pause_s)

    def joins(self, now: float, uuid: str, sent_at: float, committed: int) -> None:
        """Let a learner count if it holds what was `committed` when the message left that it answered now, not long
        ago; under load the commit index is always a little ahead of it. It also holds what we inherited: all of
        that may be committed, without our knowing."""
        peer, strike = self.peers[uuid], self._strikes.get(uuid)
        if strike is not None and now < strike.until:
            return
        if peer.caught_up(max(committed, self.inherited)) and now - sent_at <= self._limits.silent_s:
            self.joining[uuid] = None

    def leave(self, now: float) -> bool:
        """Let learners that do not keep up count no longer; whether there were any. They get less time than
        secondaries: writers wait for them."""
        left = [uuid for uuid in self.joining if self._leaves_at(uuid) <= now]
        for uuid in left:
            del self.joining[uuid]
        return bool(left)

    def _leaves_at(self, uuid: str) -> float:
        return self.fails_at(uuid, self._limits.silent_s) if self.peers[uuid].streams else NEVER

    def health(self, now: float, failed_s: float) -> dict[str, str]:
        """The health of each peer: healthy, unknown, silent, unhealthy (for longer than `failed_s`) or lost."""
        return {uuid: peer.health(now, failed_s, self._limits.silent_s) for uuid, peer in self.peers.items()}
