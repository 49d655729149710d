"""The common part of all cores: a log, configurations, a commit index, effects, and a story for errors.

A protocol's state derives from MemberState and adds its roles. Every change of the log, of the
commit index or of the configuration is made here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

import msgspec

from ebla.actors import errors
from ebla.actors.messages.protocols import HardState
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication.configuration import VOTER, Configuration
from ebla.actors.tablet.engine.core import FOLLOWER, Effects, Offer, Pending, Send
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.quiescence import AWAKE, Contacts, Stance
from ebla.actors.tablet.stream.matching import Agreement, Disagreement, compare
from ebla.actors.tablet.stream.peers import Peers
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.actors.tablet.stream.progress import LAGGING, Progress
from ebla.storage.logs.entries import CONFIG

STORY_EVENTS_MAX = 50

Record = TypeVar("Record", bound=HardState)
Lead = TypeVar("Lead", bound=Peers)


class MemberState(ABC, Generic[Record, Lead]):
    """`configuration`: the committed one; `commit_index`: an index known to be committed, such as
    the flushed one (0 is always correct, but may resend entries if the log must back up). `asked`: what this replica has
    requested from the master; None in a protocol without one. `verified`: see PacificaView; False in a protocol whose leaders no
    master appoints."""

    def __init__(
        self,
        tablet: str,
        me: str,
        hard_state: Record,
        configuration: Configuration,
        log: LogIndex,
        now: float,
        *,
        commit_index: int,
        contacts: Contacts,
    ) -> None:
        self.tablet = tablet
        self.me = me
        self.log = log
        self.role = FOLLOWER
        self.leader: str | None = None
        self.verified = False
        self.durable_index = log.last_index
        self.commit_index = min(max(commit_index, log.dropped_index), log.last_index)
        self.committed_configuration = configuration
        self._learn_committed_configuration()
        self.configuration = self._active_configuration()
        self.asked: Configuration | None = None
        self.stance = AWAKE
        self._contacts = contacts
        self.hard_state = hard_state
        self.term = hard_state.term
        self._unsaved = False
        self._now = now
        self._story: deque[tuple[float, int, str]] = deque(maxlen=STORY_EVENTS_MAX)
        self._number = 0
        self._lead: Lead | None = None
        self._all_replicated = 0
        self._truncated_from: int | None = None
        self._appended: tuple[int, int] | None = None
        self._noop: tuple[int, int] | None = None
        self._configured: tuple[int, int, bytes] | None = None
        self._became: str | None = None
        self._reconfigured = False
        self._note(
            f"started with last {self.log.last_index}@{self.log.last_term}, commit {self.commit_index}"
        )

    # -- views

    @property
    def last_index(self) -> int:
        return self.log.last_index

    @property
    def progress(self) -> dict[str, Progress]:
        return dict(self._lead.peers) if self._lead else {}

    @property
    def all_replicated_index(self) -> int:
        if self._lead:
            return min(self.commit_index, self._lead.held_by_all(self.durable_index))
        return self._all_replicated

    def may_elect(self, now: float) -> bool:
        return False

    @property
    def lacking(self) -> str | None:
        return None

    @property
    def handing_over(self) -> bool:
        return self._lead is not None and self._lead.transfer is not None

    @property
    def forced_epoch(self) -> int:
        return self.configuration.unsafe

    @property
    def committed_forced_epoch(self) -> int:
        """The highest forced epoch that is known to be committed."""
        return self.committed_configuration.unsafe

    def needs_copy(self, peer: str) -> bool:
        return self._lead is not None and peer in self._lead.peers and self._lead.peers[peer].state == LAGGING

    def story(self) -> str:
        return "\n".join(f"{at:.3f} term {term}: {what}" for at, term, what in self._story)

    def validate(self) -> None:
        log, known = self.log, (self.tablet, self.term, self.role, self.commit_index, self.durable_index)
        assert self.term == self.hard_state.term, ("the term is the one to persist", known, self.hard_state)
        assert self.term >= log.last_term, ("no entry is of a later term", known, log.last_term)
        assert log.dropped_index <= self.commit_index, ("only committed entries are dropped", known)
        assert self.commit_index <= log.last_index, ("committed entries are in the log", known)
        assert log.dropped_index <= self.durable_index, ("only durable entries are dropped", known)
        assert self.durable_index <= log.last_index, ("durable entries are in the log", known)
        committed = self.committed_configuration.order
        assert committed <= self.configuration.order, (
            "the newest configuration is in force",
            known,
            committed,
        )
        if self._lead is not None:
            assert self._lead.term == self.term, ("a leadership ends with its term", known)
            assert self.leader == self.me, ("a leader follows no other", known, self.leader)
            assert self._is_voter(), ("a leader is a voter", known, self.configuration)
            self._lead.validate(log.last_index, known)
        if self.stance.quiescent:
            ends = {self.commit_index, self.durable_index, log.last_index}
            assert len(ends) == 1, ("nothing is left to do in a quiescent group", known, ends)
            follows = self.leader if self._lead is None else None
            assert self.stance.follows == follows, ("a quiescent follower has a leader", known, self.stance)

    # -- a leader's messages

    def offered(self, request: object) -> Offer | None:
        """The entries of an append, unless its sender does not know of a forced configuration."""
        if not isinstance(request, AppendRequest) or request.unsafe < self.forced_epoch:
            return None
        return Offer(request.previous_index, request.previous_term, request.entries)

    def _match(self, request: AppendRequest) -> Pending | AppendReply:
        """Take the entries of the leader that this replica follows."""
        assert self._appended is None, "take() is called between two append requests"
        self._all_replicated = request.all_replicated
        outcome = compare(self.log, self.commit_index, request)
        if isinstance(outcome, Disagreement):
            self._note(f"has not {request.previous_index}@{request.previous_term}, hints {outcome.hint}")
            return self._refuse_append(outcome.hint)
        if outcome.first_new is not None:
            self._take_entries(request, outcome, outcome.first_new)
        self._commit_to(max(self.commit_index, min(request.commit_index, outcome.until)))
        # A heartbeat's answer does not wait for the disk: it reports what is durable already.
        until = outcome.until if request.entries else min(outcome.until, self.durable_index)
        return Pending(self.term, until)

    def _take_entries(self, request: AppendRequest, outcome: Agreement, first_new: int) -> None:
        if outcome.truncate_from is not None:
            self._truncate(outcome.truncate_from)
        for entry in request.entries[first_new - request.previous_index - 1 :]:
            self.log.append(entry.term, len(entry.payload), entry.payload if entry.kind == CONFIG else None)
        self._appended = first_new, self.log.last_index
        until = self.log.last_index
        assert until == outcome.until, ("the log ends with the leader's message", until, outcome)
        assert self.log.last_term <= self.term, ("no entry is of a later term", self.log.last_term, self.term)
        self._adopt_configuration()

    def answer(self, pending: Pending) -> AppendReply:
        """The answer to an append, once the log is durable; a refusal, if a newer term has begun."""
        if pending.term != self.term:
            return self._refuse_append(hint=0)
        held = self.durable_index
        assert pending.until <= held, ("an acknowledged entry is durable", pending, held)
        return self._append_reply(True, pending.until, pending.until)

    def _refuse_append(self, hint: int) -> AppendReply:
        return self._append_reply(False, 0, hint)

    def _append_reply(
        self, success: bool, match: int, hint: int, reason: str = "", unsafe: int = 0
    ) -> AppendReply:
        last = self.durable_index
        quiescent = success and self.stance.quiescent
        return AppendReply(
            self.term, success, match, hint, last, self.log.term_at(last), reason, unsafe, quiescent
        )

    def durable(self, index: int, term: int, log_epoch: int | None = None) -> None:
        """Note that the caller's log is on disk up to `index`, whose entry has `term`.

        Ignores a notice about truncated entries. Term and index identify an entry, unless it was
        truncated and appended again while its first write was under way: then `log_epoch` differs.
        """
        if log_epoch is not None and log_epoch != self.log.epoch:
            return
        if not self.durable_index < index <= self.log.last_index or self.log.term_at(index) != term:
            return
        self.durable_index = index
        self._advance_commit()

    @abstractmethod
    def _advance_commit(self) -> None:
        """Advance the commit index of a leader."""

    def _unanswered(
        self, lead: Lead, peer: str, plan: AppendPlan, delivered: bool | None, refusal: str | None
    ) -> None:
        """Note that a peer has not answered this leader's append, or (`refusal`) cannot for its replica."""
        progress = lead.peers[peer]
        if refusal is not None:
            if refusal != progress.refusal:
                self._note(f"{peer} answers {refusal}")
            progress.refused(self._now, refusal)
        if progress.failed(plan) and refusal is None:
            self._note(f"message {plan.number} to {peer} failed (delivered: {delivered})")

    # -- effects

    @property
    def quiet(self) -> bool:
        return not (
            self._unsaved
            or self._reconfigured
            or self._truncated_from is not None
            or self._appended is not None
            or self._noop is not None
            or self._configured is not None
            or self._became is not None
        )

    @property
    def mute(self) -> bool:
        return self._lead is None or self._lead.silent(self._now)

    def take(self, *, sends: bool = True) -> Effects:
        """Return the effects since the last call. With `sends=False` messages are left for a later
        call, so that many proposals make one message."""
        effects = Effects(
            hard_state=self.hard_state if self._unsaved else None,
            sends=self._sends() if sends else (),
            truncate_from=self._truncated_from,
            appended=self._appended,
            noop=self._noop,
            configured=self._configured,
            commit_index=self.commit_index,
            became=self._became,
            configuration=self.configuration if self._reconfigured else None,
            log_epoch=self.log.epoch,
        )
        self._unsaved = self._reconfigured = False
        self._truncated_from = self._appended = self._noop = self._configured = self._became = None
        return effects

    def _sends(self) -> tuple[Send, ...]:
        if self._lead is None:
            return ()
        plans = self._lead.plans(self._now, self.commit_index, self.durable_index, self._next_number)
        if any(plan.quiesce for plan in plans):
            self._settle()
        return tuple(Send(plan.peer, plan) for plan in plans)

    # -- roles

    def _set_role(self, role: str, why: str) -> None:
        if role != self.role:
            self.role = self._became = role
            self._note(f"{role}: {why}")

    # -- quiescence: see engine/quiescence.py

    def wake(self, now: float) -> None:
        """Be quiescent no longer: see GroupCore."""
        self._pass_time(now)
        self._wake()

    def note_silence(self, now: float) -> None:
        """Be quiescent no longer, to find out whether that peer keeps up: see GroupCore."""
        self.wake(now)

    def note_refusal(self, now: float, peer: str, refusal: str) -> None:
        """Be quiescent no longer if it relied on the peer, to have the peer removed in time: see GroupCore."""
        self._pass_time(now)
        if self._lead is not None and peer in self._lead.peers:
            if peer in self.stance.relying:
                self._wake()
            self._lead.peers[peer].refused(now, refusal)
            self._settle()

    def _wake(self) -> None:
        """Be quiescent no longer; as a leader, rely on no peer that is."""
        if self.stance is not AWAKE:
            self.stance = AWAKE
            if self._lead is not None:
                self._lead.wake()

    def _settle(self) -> None:
        """Update a leader's stance after a change of what it knows of its peers."""
        if self._lead is not None:
            stance = self._lead.stance(self._now, self.commit_index, self.durable_index)
            self.stance = self.stance if stance == self.stance else stance

    def _consider_quiescence(self, request: AppendRequest, answer: Pending | AppendReply) -> None:
        """Become a quiescent follower if the leader asks for it and nothing is left to do; otherwise be awake."""
        last = self.log.last_index
        agrees = request.quiesce and isinstance(answer, Pending) and request.previous_index == last
        if not agrees or not self.commit_index == self.durable_index == last:
            self._wake()
        elif not self.stance.quiescent:
            self.stance = Stance(quiescent=True, follows=self.leader)

    # -- log and configuration

    def _truncate(self, start: int) -> None:
        assert start > self.commit_index, ("committed entries never change", start, self.commit_index)
        assert self._lead is None, ("a leader never replaces its own entries", start)
        self._note(f"replaces {start}..{self.log.last_index}")
        self.log.truncate(start)
        self.durable_index = min(self.durable_index, start - 1)
        self._truncated_from = min(start, self._truncated_from or start)
        if self._noop and self._noop[0] >= start:
            self._noop = None  # the caller has not created the entry yet
        if self._configured and self._configured[0] >= start:
            self._configured = None

    def _commit_to(self, index: int) -> None:
        assert index >= self.commit_index, ("the commit index never goes back", index, self.commit_index)
        assert index <= self.log.last_index, ("committed entries are in the log", index, self.log.last_index)
        self.commit_index = index
        self._learn_committed_configuration()

    def _learn_committed_configuration(self) -> None:
        newest, known = self.log.latest_configuration(self.commit_index), self.committed_configuration
        if newest is not None and newest.index > known.index:
            assert newest.unsafe >= known.unsafe, ("a forced epoch never goes back", newest, known)
            self.committed_configuration = newest

    def _active_configuration(self) -> Configuration:
        """The configuration in force: the newest in the log, as soon as it is appended, committed
        or not (Raft thesis, 4.1)."""
        newest = self.log.latest_configuration(self.log.last_index)
        if newest is not None and newest.index > self.committed_configuration.index:
            return newest
        return self.committed_configuration

    def _adopt_configuration(self) -> None:
        """Follow a change of the log: a new configuration is in force, or the former one again."""
        active = self._active_configuration()
        if active == self.configuration:
            return
        self.configuration, self._reconfigured = active, True
        marked = f" (forced, {active.unsafe} so far)" if active.unsafe else ""
        self._note(
            f"configuration {active.index}{marked}: {', '.join(f'{p.uuid} {p.kind}' for p in active.peers)}"
        )
        if self._lead:
            self._lead.reconfigure(active, self._now, next_index=self.log.last_index)

    def _append_configuration(self, configuration: Configuration) -> None:
        """Append a configuration as an entry of the core's own, which the caller creates."""
        assert self._configured is None, "take() is called between two configurations"
        self._wake()
        payload = msgspec.msgpack.encode(configuration)
        self._configured = self.log.append(self.term, len(payload), payload), self.term, payload
        self._adopt_configuration()

    def _is_voter(self) -> bool:
        own = self.configuration.peer(self.me)
        return own is not None and own.member == VOTER

    # -- helpers

    def _pass_time(self, now: float) -> None:
        if now > self._now:
            self._now = now
        if self._lead is not None and self.stance.quiescent:
            self._lead.note_contacts(self._contacts)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _note(self, what: str) -> None:
        """Record an event for the story. A repeated event is recorded once, so that it does not
        displace the others."""
        if not self._story or self._story[-1][1:] != (self.term, what):
            self._story.append((self._now, self.term, what))

    def _name(self) -> str:
        return f"replica {self.me} of tablet {self.tablet}"

    def _not_leader(self, what: str, *, leader: str | None = None) -> errors.NotLeader:
        known = self.configuration.peer(leader) if leader else None
        address = known.address if known else None
        hint = f"{address} leads" if address else "no leader is known, try again"
        return errors.NotLeader(
            f"{self._name()} {what}; {hint}", tablet=self.tablet, leader=address, term=self.term
        )
