"""The state of a Raft core, and the steps from one role to another.

The events that call these steps are in core.py. Every change of role, term or configuration is made
here, so everything that belongs to a role (leadership, ballot, unsent messages) ends with it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from ebla.actors import errors
from ebla.actors.messages.raft import HardState, RaftView, TimeoutNow, VoteRequest
from ebla.actors.replication.configuration import VOTER, Configuration
from ebla.actors.tablet.engine.core import CANDIDATE, FOLLOWER, LEADER, Effects, Send
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.raft import forced
from ebla.actors.tablet.raft.election import Ballot, ElectionTimer
from ebla.actors.tablet.raft.events import PRE_CANDIDATE, RaftLimits
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.raft.progress import LAGGING, Progress
from ebla.actors.world import Random

STORY_EVENTS_MAX = 50


class RaftState:
    """The state of a core. `configuration`: the committed one; `commit_index`: an index known to be
    committed, such as the flushed one (0 is always correct, but may resend entries if the log must
    back up)."""

    def __init__(
        self,
        tablet: str,
        me: str,
        hard_state: HardState,
        configuration: Configuration,
        log: LogIndex,
        limits: RaftLimits,
        random: Random,
        now: float,
        *,
        commit_index: int = 0,
    ) -> None:
        self.tablet = tablet
        self.me = me
        self.limits = limits
        self.log = log
        self.role = FOLLOWER
        self.leader: str | None = None
        self.durable_index = log.last_index
        self.commit_index = min(max(commit_index, log.dropped_index, configuration.index), log.last_index)
        self.committed_configuration = configuration
        self._learn_committed_configuration()
        self.configuration = self._active_configuration()
        assert hard_state.vote is None or hard_state.term > 0, ("a vote has its term", hard_state)
        self._unsaved = False
        self.hard_state = hard_state
        self.term = hard_state.term
        if hard_state.term < log.last_term:
            # Entries may reach the disk before the hard state of their term, but no answer leaves
            # before both: so no candidate has our vote in that term, and none gets it.
            self._set_hard_state(HardState(log.last_term))
        self.superseded_by = 0  # the greatest forced epoch that others reported as committed: see forced.py
        self._now = now
        self._random = random
        self._story: deque[tuple[float, int, str]] = deque(maxlen=STORY_EVENTS_MAX)
        self._number = 0
        self._lead: Leadership | None = None
        self._ballot: Ballot | None = None
        self._abdication: TimeoutNow | None = None  # until its outcome is known
        self._letters: list[Send] = []  # all messages but appends: vote requests, or an abdication
        self._all_replicated = 0
        self._truncated_from: int | None = None
        self._appended: tuple[int, int] | None = None
        self._noop: tuple[int, int] | None = None
        self._configured: tuple[int, int, bytes] | None = None
        self._became: str | None = None
        self._reconfigured = False
        fresh = hard_state.term == 0 and log.last_index == 0
        alone = [peer.uuid for peer in self.configuration.voters()] == [me]
        self.timer = ElectionTimer(limits, random, now, fresh=fresh, alone=alone)
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

    @property
    def handing_over(self) -> bool:
        return self._lead is not None and self._lead.transfer is not None

    @property
    def awaits_successor(self) -> bool:
        return self._abdication is not None

    @property
    def shown_role(self) -> str:
        return CANDIDATE if self.role == PRE_CANDIDATE else self.role

    @property
    def forced_epoch(self) -> int:
        return max(self.configuration.unsafe, self.superseded_by)

    @property
    def committed_forced_epoch(self) -> int:
        """The highest forced epoch that is known to be committed, here or elsewhere."""
        return max(self.committed_configuration.unsafe, self.superseded_by)

    @property
    def given_up(self) -> bool:
        """Whether a configuration without us was forced, and committed."""
        return self.superseded_by > self.configuration.unsafe

    @property
    def apart(self) -> str | None:
        if self.given_up:
            return forced.GIVEN_UP
        pending = self.configuration.unsafe > self.committed_configuration.unsafe
        return forced.NOT_COMMITTED if pending else None

    def needs_copy(self, peer: str) -> bool:
        return self._lead is not None and peer in self._lead.peers and self._lead.peers[peer].state == LAGGING

    def health(self, now: float, failed_s: float) -> dict[str, str]:
        return self._lead.health(now, failed_s) if self._lead else {}

    def next_wake(self, now: float) -> float:
        if self._letters or self._unsaved:
            return now
        if self._lead:
            return self._lead.next_wake(now)
        wake = self.timer.deadline
        if self._ballot:
            wake = min([wake, *self._ballot.ask_again.values()])
        return max(now, wake)

    def view(self) -> RaftView:
        return RaftView(self.shown_role, self.term, self.leader, self.last_index, self.commit_index)

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
        assert (self._lead is not None) == (self.role == LEADER), ("a leader has a leadership", known)
        assert self._abdication is None or self.role == FOLLOWER, ("a follower awaits its successor", known)
        campaigns = self.role in (PRE_CANDIDATE, CANDIDATE)
        assert (self._ballot is not None) == campaigns, ("a candidate has a ballot", known)
        if self._lead is not None:
            assert self._lead.term == self.term, ("a leadership ends with its term", known)
            assert self.leader == self.me, ("a leader follows no other", known, self.leader)
            assert self._is_voter(), ("a leader is a voter", known, self.configuration)
            self._lead.validate(log.last_index, known)

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
        return not self._letters and (self._lead is None or self._lead.silent(self._now))

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
        sends, self._letters = self._letters, []
        if self._lead:
            plans = self._lead.plans(self._now, self.commit_index, self.durable_index, self._next_number)
            sends.extend([Send(plan.peer, plan) for plan in plans])
        return tuple(sends)

    # -- roles

    def _become_follower(self, why: str, term: int | None = None) -> None:
        """Become a follower without a leader yet; in a newer term, if one is given."""
        led = self._lead is not None
        assert term is None or term >= self.term, ("terms never go back", term, self.term)
        if term is not None and term > self.term:
            self._set_hard_state(HardState(term))
            self.leader = None
        if led:
            self.leader = None
            self.timer.reset(self._now)
        self._lead = self._ballot = None
        self._letters.clear()
        self._set_role(FOLLOWER, why)

    def _become_candidate(self, *, pre_vote: bool, ordered: bool) -> Ballot:
        """Open a ballot that includes our own vote. Only a real election uses up a term, not a pre-vote."""
        assert self._lead is None, "a leader does not campaign"
        if not pre_vote:
            self._set_hard_state(HardState(self.term + 1, self.me))
        self.leader = self._abdication = None
        self._letters.clear()
        self._set_role(PRE_CANDIDATE if pre_vote else CANDIDATE, "ordered to" if ordered else "no leader")
        request = VoteRequest(
            term=self.term + 1 if pre_vote else self.term,
            candidate=self.me,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            pre_vote=pre_vote,
            ignore_live_leader=ordered,
            unsafe=self.configuration.unsafe,
        )
        self._ballot = Ballot(request, tuple(peer.uuid for peer in self.configuration.voters()))
        self.timer.reset(self._now)
        return self._ballot

    def _become_leader(self, forced: Configuration | None = None) -> None:
        """Become the leader. The first entry of the term is empty: entries of older terms are
        committed only by an entry of this term (paper, 5.4.2). In a forced leadership the
        configuration replaces the empty entry."""
        elected = self._ballot is not None and self._ballot.won and not self._ballot.request.pre_vote
        assert elected or forced is not None, "a majority elects a leader"
        assert self.hard_state == HardState(self.term, self.me), (
            "a leader voted for itself",
            self.hard_state,
        )
        self._ballot = None
        self._letters.clear()
        self.leader, self._abdication = self.me, None
        self.timer.failures = 0
        assert self._noop is None and self._configured is None, "take() is called between two leaderships"
        if forced is None:
            self._noop = self.log.append(self.term, 0), self.term
        else:
            self._append_configuration(forced)
        self._lead = Leadership(self.me, self.term, self.configuration, self.log, self.limits, self._now)
        self._set_role(LEADER, f"{'forced' if forced else 'elected'}, begins at {self.log.last_index}")

    def _set_role(self, role: str, why: str) -> None:
        if role != self.role:
            self.role = self._became = role
            self._note(f"{role}: {why}")

    def _set_hard_state(self, state: HardState) -> None:
        known = self.hard_state
        assert state.term >= known.term, ("terms never go back", state, known)
        kept = known.vote is None or known.vote == state.vote
        assert state.term > known.term or kept, ("a replica votes once a term", state, known)
        self.hard_state, self.term, self._unsaved = state, state.term, True

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
        or not (thesis, 4.1)."""
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
        payload = msgspec.msgpack.encode(configuration)
        self._configured = self.log.append(self.term, len(payload), payload), self.term, payload
        self._adopt_configuration()

    def _may_campaign(self) -> bool:
        """Whether this replica may campaign: not while entries wait for its disk. If that hangs,
        the replica could neither apply nor answer, and would hand over at once."""
        return self._is_voter() and not self.given_up and self.durable_index == self.log.last_index

    def _is_voter(self) -> bool:
        own = self.configuration.peer(self.me)
        return own is not None and own.member == VOTER

    # -- helpers

    def _pass_time(self, now: float) -> None:
        if now > self._now:
            self._now = now

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
