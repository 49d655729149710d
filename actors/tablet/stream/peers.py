"""A leader's knowledge of its peers in one term, and the next messages to them.

A Peers object begins with a leadership and is dropped when the role ends, so no knowledge of one
term leaks into a later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ebla.actors.replication.configuration import PRE_VOTER, Configuration
from ebla.actors.replication.health import NOT_RUNNING
from ebla.actors.tablet.engine.core import NEVER
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.quiescence import AWAKE, Contacts, Stance
from ebla.actors.tablet.stream.limits import StreamLimits
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.actors.tablet.stream.progress import LAGGING, PROBE, REPLICATE, Progress


@dataclass(frozen=True)
class Transfer:
    """A graceful step-down under way: no new proposals until it succeeds or `deadline` passes. `late`: because our own disk is."""

    successor: str
    deadline: float
    late: bool = False


class Peers:
    def __init__(
        self,
        me: str,
        term: int,
        configuration: Configuration,
        log: LogIndex,
        limits: StreamLimits,
        now: float,
        *,
        next_index: int,
    ) -> None:
        self.me = me
        self.term = term
        self.transfer: Transfer | None = None
        self.peers: dict[str, Progress] = {}  # all but ourselves, in the configuration's order
        self._log = log
        self._stream = limits
        self._voters: tuple[str, ...] = ()
        self._joining: tuple[str, ...] = ()  # pre-voters: an answer of theirs may make them voters
        self._staying: tuple[str, ...] = ()  # the voters without the replace flag
        self._unsafe = 0
        self._quiescent = False
        self._watching_since = now  # without a pause of this process
        # The last write, and when it was new: older ones may be sent later, to a peer that has returned. An entry that begins the
        # term is no write: after an election the group is quiescent as soon as all of its members have that entry.
        self._newest, self._busy_at = next_index, NEVER
        self.reconfigure(configuration, now, next_index)

    def reconfigure(self, configuration: Configuration, now: float, next_index: int) -> None:
        """Follow a change of members. Knowledge of remaining peers is kept."""
        known, before = self.peers, self._unsafe
        others = [peer.uuid for peer in configuration.peers if peer.uuid != self.me]
        self.peers = {uuid: known.get(uuid) or Progress(next_index, now) for uuid in others}
        self._voters = tuple(peer.uuid for peer in configuration.voters())
        self._staying = tuple(peer.uuid for peer in configuration.voters() if not peer.replace)
        self._joining = tuple(peer.uuid for peer in configuration.peers if peer.kind == PRE_VOTER)
        self._unsafe = configuration.unsafe
        assert self.me in self._voters, ("a leader is a voter", self.me, configuration)
        assert self.me not in self.peers, ("a leader is no peer of its own", self.me)
        assert configuration.unsafe >= before, (
            "a forced epoch never goes back",
            configuration.unsafe,
            before,
        )

    def held_by_all(self, own_durable: int) -> int:
        return min([own_durable, *[peer.match for peer in self.peers.values()]])

    # -- messages

    def plans(
        self, now: float, commit_index: int, own_durable: int, number: Callable[[], int]
    ) -> list[AppendPlan]:
        """The messages to send now, at most one to each peer."""
        made: list[AppendPlan] = []
        if self._quiescent:
            return made
        log, limits, log_last = self._log, self._stream, self._log.last_index
        if log_last > self._newest:
            self._newest, self._busy_at = log_last, now
        idle = self._may_quiesce(now, commit_index, own_durable)
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
                quiesce=idle and last < first and peer.holds_all(log_last),
            )
            if last >= first:
                peer.sent_entries(now, plan, log.size_bytes(first, last))
            else:
                peer.sent_status(now, plan)
            made.append(plan)
        return made

    def silent(self, now: float) -> bool:
        """Whether `plans` would be empty; takes less time than `plans`."""
        if self._quiescent:
            return True
        limits, last, dropped = self._stream, self._log.last_index, self._log.dropped_index
        for peer in self.peers.values():
            if (
                peer.next <= dropped
                or peer.may_send_entries(last, limits)
                or now >= peer.status_due_at(limits)
            ):
                return False
        return True

    def sends_at(self, now: float) -> float:
        """The time of the next message; `now` if one is due."""
        limits, last = self._stream, self._log.last_index
        due = [float("inf")]
        if self._quiescent:
            return due[0]
        for peer in self.peers.values():
            if peer.may_send_entries(last, limits):
                return now
            due.append(peer.status_due_at(limits))
        return max(now, min(due))

    def validate(self, last_index: int, known: object) -> None:
        """Raise AssertionError if an invariant is broken; `known` is for the message."""
        for uuid, peer in self.peers.items():
            seen = (uuid, peer.state, peer.match, peer.next, known)
            assert peer.match < peer.next, ("the next entry is behind those held", seen)
            assert peer.next <= last_index + 1, ("only entries of the log are sent", seen)
            assert not peer.inflight or peer.streams, ("entries flow to a peer that agrees", seen)
            size = sum(peer.inflight.values())
            assert peer.inflight_bytes == size, ("each message is counted once", seen, size)

    def _check_dropped(self, peer: Progress) -> None:
        """Mark a peer that needs a dropped entry as lagging: only a copy can help it."""
        if peer.state in (PROBE, REPLICATE) and peer.next <= self._log.dropped_index:
            peer.lag()

    # -- quiescence: see engine/quiescence.py

    def stance(self, now: float, commit_index: int, own_durable: int) -> Stance:
        """The group's stance after an event. Nothing but `wake`, or a peer that is in doubt, ends the quiescence."""
        relying = tuple(uuid for uuid, peer in self.peers.items() if peer.asked_to_quiesce is not None)
        agreed = bool(relying) and all(
            peer.quiescent_since is not None if uuid in relying else self._is_absent(peer, now)
            for uuid, peer in self.peers.items()
        )
        self._quiescent = agreed and self._may_quiesce(now, commit_index, own_durable)
        if not relying:
            return AWAKE
        absent = tuple(uuid for uuid in self.peers if uuid not in relying) if self._quiescent else ()
        return Stance(self._quiescent, None, relying, absent)

    def wake(self) -> None:
        """Rely on no quiescent peer. Without entries to send, the next messages ask the peers to be quiescent again: when a
        server returns, thousands of groups have one message for each peer, and not some seconds of heartbeats."""
        self._quiescent = False
        for peer in self.peers.values():
            peer.wake()

    def leave_silent(self, now: float) -> None:
        """Rely no longer on the quiescence of peers whose servers are silent."""
        for peer in self.peers.values():
            if peer.asked_to_quiesce is not None and self._is_absent(peer, now):
                peer.wake()

    def note_contacts(self, contacts: Contacts) -> None:
        """Take the contacts between servers as messages of the quiescent peers."""
        self._watching_since = max(self._watching_since, contacts.paused_until)
        for uuid, peer in self.peers.items():
            peer.note_contacts(contacts, uuid)

    def paused(self, now: float) -> None:
        """Give each peer its full time again: this process was paused, and could not take answers."""
        self._watching_since = now

    def _may_quiesce(self, now: float, commit_index: int, own_durable: int) -> bool:
        """Whether there have been no writes for long, and each peer that answers holds all of the log, which is committed."""
        last = self._log.last_index
        return (
            now - self._busy_at > self._stream.quiesce_after_s
            and commit_index == own_durable == last
            and self.transfer is None
            and all(
                self._is_absent(peer, now) or (peer.holds_all(last) and uuid not in self._joining)
                for uuid, peer in self.peers.items()
            )
        )

    def _is_absent(self, peer: Progress, now: float) -> bool:
        """Whether the group may be quiescent without the peer: its server is silent, or is starting. Leaders of thousands of
        groups that kept asking a starting server would delay its start, and each other."""
        silent_s = now - max(peer.contact_at, self._watching_since)
        return peer.refusal == NOT_RUNNING or silent_s > self._stream.absent_s

    # -- a successor

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
