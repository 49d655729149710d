"""The leader's knowledge of one term: its peers, its lease, a transfer.

A Leadership begins when an election is won and is dropped when the role ends, so a lease, a match
or a transfer of one term cannot leak into a later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ebla.actors.replication.configuration import Configuration
from ebla.actors.replication.health import LOST, VOTES_FORGOTTEN
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.raft.events import AppendPlan, RaftLimits
from ebla.actors.tablet.raft.progress import LAGGING, PROBE, REPLICATE, Progress, majority_least


@dataclass(frozen=True)
class Transfer:
    """A graceful step-down under way: no new proposals until it succeeds or `deadline` passes."""

    successor: str
    deadline: float


@dataclass(frozen=True)
class Lag:
    """A delay of our own disk: since `since` the others have committed `index`, and it is not
    durable here yet."""

    index: int
    since: float


class Leadership:
    """A leader's knowledge. `noop`: index of the entry that began the term; reads are served once
    it is committed. `lag`: the delay of committed entries by our own disk, if there is one."""

    def __init__(
        self, me: str, term: int, configuration: Configuration, log: LogIndex, limits: RaftLimits, now: float
    ) -> None:
        self.me = me
        self.term = term
        self.noop = log.last_index
        self.transfer: Transfer | None = None
        self.lag: Lag | None = None
        self.peers: dict[str, Progress] = {}  # all but ourselves, in the configuration's order
        self._log = log
        self._limits = limits
        self._voters: tuple[str, ...] = ()
        self._staying: tuple[str, ...] = ()  # the voters without the replace flag
        self._majority = 0
        self._unsafe = 0
        assert log.last_term == term, ("a term begins with the leader's own entry", log.last_term, term)
        self.reconfigure(configuration, now, next_index=self.noop)

    def reconfigure(self, configuration: Configuration, now: float, next_index: int) -> None:
        """Follow a change of members. Knowledge of remaining peers is kept."""
        known, before = self.peers, self._unsafe
        others = [peer.uuid for peer in configuration.peers if peer.uuid != self.me]
        self.peers = {uuid: known.get(uuid) or Progress(next_index, now) for uuid in others}
        self._voters = tuple(peer.uuid for peer in configuration.voters())
        self._staying = tuple(peer.uuid for peer in configuration.voters() if not peer.replace)
        self._majority = configuration.majority
        self._unsafe = configuration.unsafe
        assert self.me in self._voters, ("a leader is a voter", self.me, configuration)
        assert configuration.unsafe >= before, (
            "a forced epoch never goes back",
            configuration.unsafe,
            before,
        )

    # -- the majority

    def replicated_index(self, own_durable: int) -> int:
        """The greatest index that a majority of the voters hold durably. Only voters count."""
        held = [own_durable if uuid == self.me else self.peers[uuid].match for uuid in self._voters]
        assert self.me not in self.peers, ("a leader is no peer of its own", self.me)
        return int(majority_least(held, self._majority))

    def lease_until(self, now: float) -> float:
        """The time until which no other leader can have been elected: see RaftLimits."""
        acked = [now if uuid == self.me else self.peers[uuid].acked_at for uuid in self._voters]
        return majority_least(acked, self._majority) + self._limits.lease_s

    def quorum_lost_at(self, now: float) -> float:
        """The time from which we must assume that no majority follows us, unless a peer answers before."""
        contacts = [now if uuid == self.me else self.peers[uuid].last_contact for uuid in self._voters]
        return majority_least(contacts, self._majority) + 2 * self._limits.election_s_min

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

    def held_by_all(self, own_durable: int) -> int:
        return min([own_durable, *[peer.match for peer in self.peers.values()]])

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

    # -- messages

    def plans(
        self, now: float, commit_index: int, own_durable: int, number: Callable[[], int]
    ) -> list[AppendPlan]:
        """The messages to send now, at most one to each peer."""
        made: list[AppendPlan] = []
        log, limits, log_last = self._log, self._limits, self._log.last_index
        for uuid, peer in self.peers.items():
            self._check_dropped(peer)
            if peer.may_send_entries(log_last, limits):
                previous, first = peer.next - 1, peer.next
                assert first > log.dropped_index, ("dropped entries are not sent", uuid, first)
                last = log.last_within(first, limits.append_bytes_max)
            elif now >= peer.status_due_at(limits):
                # Only `match` is certain of a replicating peer: messages may overtake each other,
                # and a heartbeat must not be refused for that.
                previous = peer.next - 1 if peer.state == PROBE else max(peer.match, log.dropped_index)
                first, last = previous + 1, previous
            else:
                continue
            plan = AppendPlan(
                peer=uuid,
                term=self.term,
                previous_index=previous,
                previous_term=log.term_at(previous),
                first=first,
                last=last,
                commit_index=commit_index,
                all_replicated=min(commit_index, self.held_by_all(own_durable)),
                number=number(),
                match=peer.match,
                unsafe=self._unsafe,
            )
            if last >= first:
                peer.sent_entries(now, plan, log.size_bytes(first, last))
            else:
                peer.sent_status(now, plan)
            made.append(plan)
        return made

    def validate(self, last_index: int, known: object) -> None:
        """Raise AssertionError if an invariant is broken; `known` is for the message."""
        for uuid, peer in self.peers.items():
            seen = (uuid, peer.state, peer.match, peer.next, known)
            assert peer.match < peer.next, ("the next entry is behind those held", seen)
            assert peer.next <= last_index + 1, ("only entries of the log are sent", seen)
            assert not peer.inflight or peer.streams, ("entries flow to a peer that agrees", seen)
            size = sum(peer.inflight.values())
            assert peer.inflight_bytes == size, ("each message is counted once", seen, size)

    def silent(self, now: float) -> bool:
        """Whether `plans` would be empty; takes less time than `plans`."""
        limits, last, dropped = self._limits, self._log.last_index, self._log.dropped_index
        for peer in self.peers.values():
            if (
                peer.next <= dropped
                or peer.may_send_entries(last, limits)
                or now >= peer.status_due_at(limits)
            ):
                return False
        return True

    def next_wake(self, now: float) -> float:
        limits, last = self._limits, self._log.last_index
        due = []
        for peer in self.peers.values():
            if peer.may_send_entries(last, limits):
                return now
            due.append(peer.status_due_at(limits))
        if due and min(due) <= now:
            return now
        if self.transfer:
            due.append(self.transfer.deadline)
        return max(now, min([self.quorum_lost_at(now), self.gives_way_at(), *due]))

    def _check_dropped(self, peer: Progress) -> None:
        """Mark a peer that needs a dropped entry as lagging: only a copy can help it."""
        if peer.state in (PROBE, REPLICATE) and peer.next <= self._log.dropped_index:
            peer.lag()

    # -- transfer

    def end_transfer(self, now: float) -> None:
        """End the transfer without success. Proposals are accepted again, for an election timeout
        at least."""
        assert self.transfer is not None, "only a transfer that began ends"
        self.transfer = None
        self.lag = Lag(self.lag.index, now) if self.lag else None

    def choose_successor(self) -> str | None:
        """The voter that holds most, then the one with the latest contact; the first of equals. A
        tombstone or a lagging peer comes last, and a voter that is to be replaced leads only if no
        other can."""
        others = [uuid for uuid in self._staying if uuid != self.me]
        others = others or [uuid for uuid in self._voters if uuid != self.me]
        if not others:
            return None

        def fitness(uuid: str) -> tuple[bool, int, float]:
            peer = self.peers[uuid]
            return peer.refusal is None and peer.state != LAGGING, peer.match, peer.last_contact

        chosen = max(others, key=fitness)
        assert self.may_succeed(chosen), ("a leader hands over to another voter", chosen)
        return chosen

    def may_succeed(self, uuid: str) -> bool:
        return uuid != self.me and uuid in self._voters

    def successor_ready(self, now: float) -> bool:
        """Whether the successor has all entries and answered a moment ago: abdication in favour of
        a dead peer would be an outage."""
        if self.transfer is None:
            return False
        peer = self.peers.get(self.transfer.successor)
        return (
            peer is not None
            and peer.state == REPLICATE
            and peer.match == self._log.last_index
            and peer.acked_at + self._limits.lease_s > now
        )
