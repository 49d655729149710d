"""The state of a Raft core, and the steps from one role to another.

The events that call these steps are in core.py. Every change of role, term or configuration is made
here, so everything that belongs to a role (leadership, poll, unsent messages) ends with it.
"""

from __future__ import annotations

from ebla.actors.messages.raft import HardState, RaftView, TimeoutNow, VoteRequest
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import CANDIDATE, FOLLOWER, LEADER, Send
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.quiescence import AWAKE, NO_CONTACTS, Contacts
from ebla.actors.tablet.raft import forced
from ebla.actors.tablet.raft.election import ElectionTimer, Poll
from ebla.actors.tablet.raft.events import PRE_CANDIDATE, RaftLimits
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.stream.member import MemberState
from ebla.actors.world import Random


class RaftState(MemberState[HardState, Leadership]):
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
        contacts: Contacts = NO_CONTACTS,
    ) -> None:
        # The committed configuration says nothing about this log: it may have got to the disk before the entries with
        # which it came, and others may be in their place.
        super().__init__(
            tablet, me, hard_state, configuration, log, now, commit_index=commit_index, contacts=contacts
        )
        assert hard_state.vote is None or hard_state.term > 0, ("a vote has its term", hard_state)
        if hard_state.term < log.last_term:
            # Entries may reach the disk before the hard state of their term, but no answer leaves
            # before both: so no candidate has our vote in that term, and none gets it.
            self._set_hard_state(HardState(log.last_term))
        self.limits = limits
        self.superseded_by = 0  # the greatest forced epoch that others reported as committed: see forced.py
        self._random = random
        self._poll: Poll | None = None
        self._abdication: TimeoutNow | None = None  # until its outcome is known
        self._ended_in = -1  # the term whose leader's process has ended for certain
        self._letters: list[Send] = []  # all messages but appends: vote requests, or an abdication
        fresh = hard_state.term == 0 and log.last_index == 0
        alone = [peer.uuid for peer in self.configuration.voters()] == [me]
        self.timer = ElectionTimer(limits, random, now, fresh=fresh, alone=alone)

    # -- views

    @property
    def awaits_successor(self) -> bool:
        return self._abdication is not None

    def may_elect(self, now: float) -> bool:
        idle = self._lead is None and not self._letters and not self._unsaved
        return idle and (self._poll is None or self.timer.deadline <= now)

    @property
    def lacking(self) -> str | None:
        return None if self._poll is None else self._poll.lacking

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

    def health(self, now: float, failed_s: float) -> dict[str, str]:
        if self._lead is None:
            return {}
        self._lead.note_contacts(self._contacts)
        return self._lead.health(now, failed_s)

    def next_wake(self, now: float) -> float:
        if self._letters or self._unsaved:
            return now
        if self._lead:
            self._lead.note_contacts(self._contacts)
            return self._lead.next_wake(now)
        if self.stance.quiescent:
            return float("inf")
        wake = self.timer.deadline
        if self._poll:
            wake = min([wake, *self._poll.ask_again.values()])
        return max(now, wake)

    def view(self) -> RaftView:
        return RaftView(self.shown_role, self.term, self.leader, self.last_index, self.commit_index)

    def validate(self) -> None:
        super().validate()
        known = (self.tablet, self.term, self.role, self.commit_index, self.durable_index)
        assert (self._lead is not None) == (self.role == LEADER), ("a leader has a leadership", known)
        assert self._abdication is None or self.role == FOLLOWER, ("a follower awaits its successor", known)
        campaigns = self.role in (PRE_CANDIDATE, CANDIDATE)
        assert (self._poll is not None) == campaigns, ("a candidate has a poll", known)

    # -- effects

    @property
    def mute(self) -> bool:
        return not self._letters and super().mute

    def _sends(self) -> tuple[Send, ...]:
        sends, self._letters = self._letters, []
        return (*sends, *super()._sends())

    # -- quiescence

    def _pass_time(self, now: float) -> None:
        if self._lead is not None and now - self._contacts.watched_at > self.limits.election_s_min:
            self._lead.paused(now)
        super()._pass_time(now)
        if self.stance.follows is not None:
            self.timer.note_server(self._contacts.received.get(self.stance.follows, now))

    def _wake(self) -> None:
        """A follower watches for itself again; its patience counts from the last message of its leader, or of its server."""
        if self.stance.follows is not None:
            self.timer.resume()
        super()._wake()

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
        self._wake()
        self._lead = self._poll = None
        self._letters.clear()
        self._set_role(FOLLOWER, why)

    def _become_candidate(self, *, pre_vote: bool, ordered: bool) -> Poll:
        """Open a poll that includes our own vote. Only a real election uses up a term, not a pre-vote."""
        assert self._lead is None, "a leader does not campaign"
        if not pre_vote:
            self._set_hard_state(HardState(self.term + 1, self.me))
        self.leader = self._abdication = None
        self.stance = AWAKE
        self._letters.clear()
        self._set_role(
            PRE_CANDIDATE if pre_vote else CANDIDATE,
            "its leader has ended or stepped down" if ordered else "no leader",
        )
        request = VoteRequest(
            term=self.term + 1 if pre_vote else self.term,
            candidate=self.me,
            last_index=self.log.last_index,
            last_term=self.log.last_term,
            pre_vote=pre_vote,
            ignore_live_leader=ordered,
            unsafe=self.configuration.unsafe,
        )
        self._poll = Poll(request, tuple(peer.uuid for peer in self.configuration.voters()))
        self.timer.reset(self._now)
        return self._poll

    def _become_leader(self, forced: Configuration | None = None) -> None:
        """Become the leader. The first entry of the term is empty: entries of older terms are
        committed only by an entry of this term (paper, 5.4.2). In a forced leadership the
        configuration replaces the empty entry."""
        elected = self._poll is not None and self._poll.won and not self._poll.request.pre_vote
        assert elected or forced is not None, "a majority elects a leader"
        assert self.hard_state == HardState(self.term, self.me), (
            "a leader voted for itself",
            self.hard_state,
        )
        self._poll = None
        self.stance = AWAKE
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

    def _set_hard_state(self, state: HardState) -> None:
        known = self.hard_state
        assert state.term >= known.term, ("terms never go back", state, known)
        kept = known.vote is None or known.vote == state.vote
        assert state.term > known.term or kept, ("a replica votes once a term", state, known)
        self.hard_state, self.term, self._unsaved = state, state.term, True

    def _leader_has_ended(self) -> bool:
        """Whether the process of this term's leader has ended: no lease depends on a promise of voters to it."""
        return self._ended_in == self.term

    def _may_campaign(self) -> bool:
        """Whether this replica may campaign: not while entries wait for its disk. If that hangs,
        the replica could neither apply nor answer, and would hand over at once."""
        return self._is_voter() and not self.given_up and self.durable_index == self.log.last_index
