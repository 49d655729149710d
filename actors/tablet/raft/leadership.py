"""The leader's knowledge of one term: its peers, its lease, a transfer.

A Leadership begins when an election is won and is dropped when the role ends, so a lease, a match
or a transfer of one term cannot leak into a later one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ebla.actors.replication.configuration import Configuration
from ebla.actors.replication.health import LOST, VOTES_FORGOTTEN
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.tablet.stream.peers import Peers
from ebla.actors.tablet.stream.progress import REPLICATE


def majority_least(values: Sequence[float], majority: int) -> float:
    """The greatest value that at least `majority` of the values reach."""
    assert 0 < majority <= len(values), ("a majority is of the voters", majority, len(values))
    return sorted(values, reverse=True)[majority - 1]


@dataclass(frozen=True)
class Lag:
    """A delay of our own disk: since `since` the others have committed `index`, and it is not
    durable here yet."""

    index: int
    since: float


class Leadership(Peers):
    """A leader's knowledge. `noop`: index of the entry that began the term; reads are served once
    it is committed. `lag`: the delay of committed entries by our own disk, if there is one."""

    def __init__(
        self, me: str, term: int, configuration: Configuration, log: LogIndex, limits: RaftLimits, now: float
    ) -> None:
        self.noop = log.last_index
        self.lag: Lag | None = None
        self._limits = limits
        self._majority = 0
        assert log.last_term == term, ("a term begins with the leader's own entry", log.last_term, term)
        super().__init__(me, term, configuration, log, limits, now, next_index=self.noop)

    def reconfigure(self, configuration: Configuration, now: float, next_index: int) -> None:
        super().reconfigure(configuration, now, next_index)
        self._majority = configuration.majority

    def successor_ready(self, since: float) -> bool:
        """Whether the successor has all entries, and has answered a message that left at `since` or later: abdication in
        favour of a dead peer would be an outage."""
        peer = self.peers.get(self.transfer.successor) if self.transfer else None
        return (
            peer is not None
            and peer.state == REPLICATE
            and peer.match == self._log.last_index
            and peer.acked_at >= since
        )

    # -- the majority

    def replicated_index(self, own_durable: int) -> int:
        """The greatest index that a majority of the voters hold durably. Only voters count."""
        held = [own_durable if uuid == self.me else self.peers[uuid].match for uuid in self._voters]
        return int(majority_least(held, self._majority))

    def lease_until(self, now: float) -> float:
        """The time until which no other leader can have been elected: see RaftLimits."""
        acked = [now if uuid == self.me else self.peers[uuid].acked_at for uuid in self._voters]
        return majority_least(acked, self._majority) + self._limits.lease_s

    def quorum_lost_at(self, now: float) -> float:
        """The time from which we must assume that no majority follows us, unless a peer answers before."""
        if self._majority == 1:
            return float("inf")
        contacts = [now if uuid == self.me else self.peers[uuid].last_contact for uuid in self._voters]
        return (
            max(majority_least(contacts, self._majority), self._watching_since)
            + 2 * self._limits.election_s_min
        )

    def health(self, now: float, failed_s: float) -> dict[str, str]:
        """The health of each peer: healthy, unknown, silent, unhealthy (for longer than `failed_s`) or
        lost. A voter that has forgotten its votes is lost: it can return only as a new member."""
        silent_s = 2 * self._limits.election_s_min
        forgetful = [uuid for uuid in self._voters if self._refusal(uuid) == VOTES_FORGOTTEN]
        return {
            uuid: LOST if uuid in forgetful else peer.health(now, failed_s, silent_s)
            for uuid, peer in self.peers.items()
        }

    def _refusal(self, uuid: str) -> str | None:
        return self.peers[uuid].refusal if uuid != self.me else None

    def _may_quiesce(self, now: float, commit_index: int, own_durable: int) -> bool:
        """As for every protocol, with a majority that answers: otherwise it must step down."""
        there = sum(uuid == self.me or not self._is_absent(self.peers[uuid], now) for uuid in self._voters)
        return there >= self._majority and super()._may_quiesce(now, commit_index, own_durable)

    # -- our own disk

    def note_durable(self, now: float, commit_index: int, own_durable: int) -> None:
        """Update `lag` after a change of either index."""
        last = self._log.last_index
        assert max(commit_index, own_durable) <= last, ("the log holds what is committed", commit_index, last)
        if self.lag is None or own_durable >= self.lag.index:
            self.lag = Lag(commit_index, now) if own_durable < commit_index else None

    def gives_way_at(self) -> float:
        """The time when our disk, which hangs or is full, will have delayed one committed entry for
        an election timeout. Committed entries are applied, and answered, only when durable here, so
        another replica must lead."""
        if self.lag is None or self.transfer is not None:
            return float("inf")
        return self.lag.since + self._limits.election_s_min

    def next_wake(self, now: float) -> float:
        lost_at = self.quorum_lost_at(now)
        if self._quiescent and lost_at > now + self._limits.election_s_min:
            return float("inf")  # the server's watch asks again once a server of a majority is silent
        due = [self.sends_at(now), lost_at, self.gives_way_at()]
        if self.transfer:
            due.append(self.transfer.deadline)
        return max(now, min(due))

    # -- transfer

    def end_transfer(self, now: float) -> None:
        """End the transfer without success. Proposals are accepted again, for an election timeout
        at least."""
        assert self.transfer is not None, "only a transfer that began ends"
        self.transfer = None
        self.lag = Lag(self.lag.index, now) if self.lag else None
