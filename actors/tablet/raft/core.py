"""Raft for one tablet, as a state machine without clock, disk, network or waiting (see
engine/core.py for the caller's duties).

    safe       a leader has every committed entry; committed entries never change; one leader a term
    current    read_index() succeeds at no two replicas at once, if clocks drift less than RaftLimits states
    calm       a replica that cannot win an election does not disturb a leader

Sources: Raft paper and thesis (pre-vote 9.6, transfer 3.10, leases 6.4.1), Kudu's consensus.
"""

from __future__ import annotations

from collections.abc import Sequence

from ebla.actors import errors
from ebla.actors.messages.raft import (
    Answer,
    HardState,
    Request,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
    VoteRequest,
)
from ebla.actors.messages.stream import FORCED, STRANDED, AppendReply, AppendRequest
from ebla.actors.replication.configuration import PRE_VOTER, Configuration
from ebla.actors.tablet.engine.core import FOLLOWER, Pending, Send, Sent
from ebla.actors.tablet.engine.quiescence import AWAKE
from ebla.actors.tablet.raft import election, forced, membership
from ebla.actors.tablet.raft.election import Poll
from ebla.actors.tablet.raft.events import PRE_CANDIDATE
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.raft.state import RaftState
from ebla.actors.tablet.stream.matching import contradicts
from ebla.actors.tablet.stream.peers import Transfer
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.storage.logs.entries import CONFIG


class RaftCore(RaftState):
    """The events, in the order of a replica's life. The state that they change is in state.py."""

    # -- time

    def tick(self, now: float) -> None:
        """Do the work that is due. Feed messages that have arrived first: one of them may be a
        heartbeat in time."""
        self._pass_time(now)
        lead = self._lead
        if lead and lead.quorum_lost_at(now) <= now:
            self._become_follower(f"no majority answered for {2 * self.limits.election_s_min:g} s")
        elif lead and lead.transfer and lead.transfer.deadline <= now:
            self._note(f"{lead.transfer.successor} did not catch up; this replica still leads")
            lead.end_transfer(now)
        elif lead and lead.gives_way_at() <= now:
            self._note("its disk delays entries that the others have committed")
            self._begin_transfer(lead, lead.choose_successor())
        elif not lead and not self.stance.quiescent and self.timer.deadline <= now:
            if self._poll:
                self.timer.election_failed(now, contested=self._poll.contested)
                self._become_follower("the election timed out")
            if self._may_campaign():
                self._campaign(pre_vote=True, ordered=self._leader_has_ended())
            elif self._leader_has_ended() and self._is_voter():
                self.timer.retry(now)  # its disk may just have been late
            else:
                self.timer.reset(now)
        elif self._poll:
            self._ask(self._poll, self._poll.due(now))
        assert self._lead is None or self._poll is None, ("a leader holds no election", self.role)

    def note_silence(self, now: float) -> None:
        """Stay quiescent as long as a majority answers, so that the loss of one server wakes no leader on the others; nor does
        its return: the group is quiescent without it."""
        self.tick(now)
        if self._lead is not None and self.stance.quiescent:
            self._lead.leave_silent(now)
            self._settle()

    def note_refusal(self, now: float, peer: str, refusal: str) -> None:
        """Stay quiescent without the peer, whose server is starting."""
        self._pass_time(now)
        if self._lead is not None and peer in self._lead.peers:
            self._lead.peers[peer].refused(now, refusal)
            self._settle()

    def note_end(self, now: float, peer: str, wait_s: float) -> None:
        self._pass_time(now)
        if self.role == FOLLOWER and self.leader == peer:
            self._note(f"the process of its leader {peer} has ended")
            self._wake()
            self._ended_in = self.term
            self.timer.leader_ended(now, wait_s)

    # -- the leader's verbs

    def propose(self, now: float, kind: int, payload_bytes: int) -> tuple[int, int]:
        self._pass_time(now)
        assert kind != CONFIG, "configurations go through propose_configuration"
        lead = self._accepting_leader()
        self._wake()
        index = self.log.append(self.term, payload_bytes)
        assert index > lead.noop, ("a term begins with the leader's own entry", index, lead.noop)
        return index, self.term

    def propose_configuration(self, now: float, configuration: Configuration) -> tuple[int, int]:
        """Append a CONFIG entry, in force at once; the next take() contains it. Returns (index, term).

        `configuration.index` must be that of the configuration in force, from which this one was
        made. Raises NotLeader, AlreadyInProgress (another change is pending), Unavailable (too
        early in the term), InvalidArgument.
        """
        self._pass_time(now)
        lead = self._accepting_leader()
        if self.commit_index < lead.noop:
            # Otherwise two leaders could each change the configuration, to disjoint majorities.
            raise errors.Unavailable(f"{self._name()} has not yet committed in term {self.term}; try again")
        if self.configuration.index > self.committed_configuration.index:
            raise errors.AlreadyInProgress(
                f"{self._name()} is changing its configuration at index {self.configuration.index}; try again later",
                tablet=self.tablet,
            )
        membership.check_change(self.configuration, configuration, self.me)
        self._append_configuration(configuration)
        made = self.configuration.index
        assert made == self.log.last_index, ("a configuration is in force from its entry on", made)
        return made, self.term

    def force_configuration(
        self, now: float, keep: Sequence[str], reason: str, *, above_term: int = 0
    ) -> None:
        """Lead a new term, far above `above_term` too, with the members `keep` only: the last
        resort when a majority is lost for good.

        Entries that only the others had committed are lost. The forced configuration may replace a
        pending one. Raises Unavailable while a leader lives, InvalidArgument.
        """
        self._pass_time(now)
        if self._lead is not None or self._now < self.timer.withheld_until:
            raise errors.Unavailable(
                f"{self._name()} leads, or had contact with a leader a moment ago; change the members at the leader, or, if "
                "there is none, try again in some seconds"
            )
        made = membership.forced(
            self.committed_configuration, self.configuration, keep, self.me, above=self.superseded_by
        )
        term = forced.forced_term(max(self.term, above_term), self._random)
        self._set_hard_state(HardState(term, self.me))
        self._note(f"an operator forces a configuration: {reason}")
        self._become_leader(forced=made)
        assert self.term > above_term, ("a forced term is above all known ones", self.term, above_term)
        assert self.given_up is False, (
            "a replica that forces a configuration takes part in it",
            self.forced_epoch,
        )

    def read_index(self, now: float) -> int:
        self._pass_time(now)
        lead = self._lead
        if lead is None:
            raise self._not_leader("serves no linearizable reads", leader=self.leader)
        if self.commit_index < lead.noop:
            raise errors.Unavailable(f"{self._name()} has not yet committed in term {self.term}; try again")
        if now >= lead.lease_until(now):
            raise errors.Unavailable(f"{self._name()} has no lease: no majority answered lately; try again")
        assert self.leader == self.me, ("only the leader serves linearizable reads", self.leader)
        return self.commit_index

    def step_down(self, now: float, successor: str | None) -> str:
        self._pass_time(now)
        lead = self._lead
        if lead is None:
            raise self._not_leader("has no leadership to hand over", leader=self.leader)
        chosen = successor or lead.choose_successor()
        if chosen is None:
            raise errors.Unavailable(f"{self._name()} has no other voter to hand over to")
        if not lead.may_succeed(chosen):
            raise errors.InvalidArgument(
                f"{chosen} is not another voter of {self.configuration}; name one that is"
            )
        self._begin_transfer(lead, chosen)
        return chosen

    # -- messages

    def receive(
        self, now: float, sender: str, request: Request, *, knows_us: bool = True
    ) -> Pending | Answer:
        self._pass_time(now)
        assert sender != self.me, ("a replica sends itself no message", sender)
        if request.unsafe < self.forced_epoch:
            return self._refuse_lower_forced_epoch(sender, request)
        if isinstance(request, AppendRequest):
            return self._receive_append(request)
        if isinstance(request, VoteRequest):
            if self._lead is not None or sender == self.leader:
                self._wake()  # a member that asks for votes is not quiescent, and no leader does
            return self._receive_vote(request)
        return self._receive_timeout_now(sender, request)

    def asks_to_lead(self, request: Request) -> bool:
        return isinstance(request, TimeoutNow)

    def replied(self, now: float, peer: str, sent: Sent, answer: Answer) -> None:
        self._pass_time(now)
        granted = isinstance(answer, VoteReply) and answer.granted
        if isinstance(answer, AppendReply | VoteReply) and answer.reason == FORCED:
            self._refused_as_forced(peer, sent, answer)
        elif answer.term > self.term and not granted:
            self._become_follower(f"{peer} is in term {answer.term}", answer.term)
        elif isinstance(answer, VoteReply):
            self._count_vote(peer, sent, answer)
        elif isinstance(answer, AppendReply):
            plan, lead = sent.request, self._lead
            if lead is None or not isinstance(plan, AppendPlan) or not plan.term == answer.term == self.term:
                return  # the notice is of a leadership that has ended
            progress = lead.peers.get(peer)
            if progress is not None:
                progress.answered(now, sent.at, plan, answer)
                if plan.quiesce and answer.quiescent:
                    progress.quiesces(now, plan, self.log.last_index)
                self._advance_commit()
                self._promote(peer, sent.at, plan.commit_index)
                self._continue_transfer()
                if self.stance is not AWAKE:
                    self._settle()

    def failed(
        self, now: float, peer: str, sent: Sent, delivered: bool | None, refusal: str | None = None
    ) -> None:
        """Note that no answer came, or (`refusal`) why the server cannot answer for the replica.
        `delivered` makes no difference: the message is sent again, and a repeat is harmless."""
        self._pass_time(now)
        plan, lead, poll = sent.request, self._lead, self._poll
        if isinstance(plan, AppendPlan):
            if lead is not None and plan.term == self.term and peer in lead.peers:
                self._unanswered(lead, peer, plan, delivered, refusal)
                if self.stance is not AWAKE:
                    self._settle()
        elif poll is not None and plan is poll.request:
            poll.unanswered(peer, now + self.limits.heartbeat_s)
        elif self._abdication is not None and plan is self._abdication:
            self._note(f"{peer} was not reached to take over, or refuses to ({refusal})")
            self._abdication = None

    # -- followers

    def _receive_append(self, request: AppendRequest) -> Pending | AppendReply:
        if request.term < self.term:
            return self._refuse_append(hint=0)
        crossing = request.unsafe > self.configuration.unsafe
        if crossing and request.term == self.term and self.leader not in (None, request.leader):
            # Both sides have a leader of this term. End the term.
            self._become_follower(f"{request.leader} leads after a forced configuration", self.term + 1)
            return self._refuse_append(hint=0)
        assert request.term > self.term or self._lead is None, ("a term has one leader", request.leader)
        if request.term > self.term or self.role != FOLLOWER:
            self._become_follower(f"{request.leader} leads", request.term)
        assert self.leader in (None, request.leader), ("a term has one leader", self.leader, request.leader)
        assert self._poll is None, ("an accepted leader ends the election", request.leader)
        if self.leader is None:
            self.leader, self._abdication = request.leader, None
            self._note(f"follows {request.leader}")
        if self._leader_has_ended():
            self.timer.retry(self._now)  # the message was late
        else:
            self.timer.note_leader(self._now)
        if crossing and contradicts(self.log, self.commit_index, request):
            self._note(f"has committed entries that {request.leader} has given up, or may have")
            self._wake()
            return self._append_reply(False, 0, 0, STRANDED)
        answer = self._match(request)
        if not self._leader_has_ended():
            self._consider_quiescence(request, answer)
        return answer

    # -- the other side of a forced configuration: see forced.py

    def _refuse_lower_forced_epoch(self, sender: str, request: Request) -> Answer:
        assert request.unsafe < self.forced_epoch, (
            "only a lower forced epoch is refused",
            request.unsafe,
            self.forced_epoch,
        )
        self._note(f"{sender} does not know that a configuration was forced")
        if isinstance(request, AppendRequest):
            return self._append_reply(False, 0, 0, FORCED, self.committed_forced_epoch)
        if isinstance(request, VoteRequest):
            return VoteReply(self.term, False, request.pre_vote, FORCED, self.committed_forced_epoch)
        return TimeoutNowReply(request.term)

    def _refused_as_forced(self, peer: str, sent: Sent, answer: AppendReply | VoteReply) -> None:
        """Handle a refusal as FORCED, and ignore the peer's term. An uncommitted forced epoch
        concerns only that peer, so far."""
        if answer.unsafe > self.forced_epoch:
            self.superseded_by, self.leader = answer.unsafe, None
            self._become_follower(f"given up: {peer} knows of a configuration that was forced")
            assert self.given_up, ("a replica that was given up takes no part", self.superseded_by)
        elif isinstance(answer, VoteReply):
            self._count_vote(peer, sent, answer)
        else:
            self.failed(self._now, peer, sent, True, FORCED)

    # -- elections

    def _receive_vote(self, request: VoteRequest) -> VoteReply:
        """Answer a vote request. A candidate outside the configuration may get a vote: our
        configuration may be old."""
        alive = self._lead is not None or self._now < self.timer.withheld_until
        reason = election.judge(request, self.hard_state, self.log, leader_alive=alive)
        if not request.pre_vote and reason != election.LEADER_ALIVE and request.term > self.term:
            self._become_follower(f"{request.candidate} asks for votes", request.term)
        granted = reason == election.GRANTED
        if granted and not request.pre_vote:
            if self.hard_state.vote is None:
                self._set_hard_state(HardState(self.term, request.candidate))
            self.timer.reset(self._now)
            vote = self.hard_state
            assert vote == HardState(request.term, request.candidate), ("a vote is remembered", vote, request)
        kind = "pre-vote" if request.pre_vote else "vote"
        self._note(f"{kind} in term {request.term} for {request.candidate}: {reason}")
        return VoteReply(self.term, granted, request.pre_vote, reason)

    def _receive_timeout_now(self, sender: str, request: TimeoutNow) -> TimeoutNowReply:
        """Campaign, because the leader of `request.term` has abdicated in our favour; ignored in a
        later term. A leader abdicates only in favour of a peer with its configuration."""
        if request.term < self.term or request.unsafe > self.configuration.unsafe or not self._may_campaign():
            return TimeoutNowReply(self.term)
        assert request.term > self.term or self._lead is None, ("a term has one leader", sender)
        self._become_follower(f"{sender} abdicated", request.term)
        self._campaign(pre_vote=False, ordered=True)
        return TimeoutNowReply(self.term)

    def _campaign(self, *, pre_vote: bool, ordered: bool = False) -> None:
        assert self._may_campaign(), ("only a voter with a durable log campaigns", self.durable_index)
        poll = self._become_candidate(pre_vote=pre_vote, ordered=ordered)
        self._ask(poll, [voter for voter in poll.voters if voter != self.me])
        self._conclude(poll)

    def _ask(self, poll: Poll, voters: list[str]) -> None:
        self._letters.extend(Send(voter, poll.request) for voter in voters)

    def _count_vote(self, peer: str, sent: Sent, answer: VoteReply) -> None:
        poll = self._poll
        if poll is None or sent.request is not poll.request:
            return  # the answer belongs to a round that is over
        assert poll.request.pre_vote == (self.role == PRE_CANDIDATE), (
            "the role says which election runs",
            self.role,
        )
        poll.count(peer, answer.granted)
        self._conclude(poll)

    def _conclude(self, poll: Poll) -> None:
        assert not (poll.won and poll.lost), ("an election has one outcome", poll.answers)
        if poll.won and poll.request.pre_vote:
            self._campaign(pre_vote=False, ordered=poll.request.ignore_live_leader)
        elif poll.won:
            self._become_leader()
        elif poll.lost:
            self.timer.election_failed(self._now, contested=poll.contested)
            self._become_follower("the election was lost")

    # -- the leader's progress

    def _advance_commit(self) -> None:
        """Advance the commit index. Count only entries of our own term: an entry of an older term
        can be on a majority and yet be replaced (paper, figure 8); it is committed with the first
        entry of ours after it."""
        if self._lead is None:
            return
        index = self._lead.replicated_index(self.durable_index)
        last = self.log.last_index
        assert index <= last, ("no peer holds more than its leader", index, last)
        if index > self.commit_index and self.log.term_at(index) == self.term:
            self._commit_to(index)
        self._lead.note_durable(self._now, self.commit_index, self.durable_index)

    def _promote(self, peer: str, sent_at: float, committed: int) -> None:
        """Make a pre-voter a voter when it has caught up: when it holds the entries that were
        `committed` when the answered message left, less than an election timeout ago (thesis,
        4.2.1; under load the commit index is always ahead of it). If another change is under way,
        the next answer tries again."""
        lead, member = self._lead, self.configuration.peer(peer)
        if lead is None or lead.transfer is not None or self.commit_index < lead.noop:
            return
        if member is None or member.kind != PRE_VOTER or not lead.peers[peer].caught_up(committed):
            return
        if self._now - sent_at > self.limits.election_s_min:
            return
        if self.configuration.index > self.committed_configuration.index:
            return
        self._note(f"{peer} has caught up")
        self._append_configuration(membership.promoted(self.configuration, peer))
        assert peer in [each.uuid for each in self.configuration.voters()], ("a promoted peer votes", peer)

    def _begin_transfer(self, lead: Leadership, successor: str | None) -> None:
        assert successor is not None, ("a leader hands over to another voter", self.configuration)
        assert lead is self._lead and lead.may_succeed(successor), (
            "a leader hands over to a voter",
            successor,
        )
        self._wake()
        lead.transfer = Transfer(successor, self._now + self.limits.election_s_min)
        self._note(f"handing over to {successor}")
        self._continue_transfer()

    def _continue_transfer(self) -> None:
        """Once the successor holds everything, ask it to campaign, and abdicate in the same step.

        Its vote requests ignore live leaders, and may be delayed for any time. A voter that grants
        one of them breaks the promise that our lease depends on. So from the moment the order may
        leave, nothing here reads under a lease of this term; and as a term is won only once, no
        later lease belongs to it.
        """
        lead = self._lead
        if lead is None or lead.transfer is None or not lead.successor_ready(self._now - self.limits.lease_s):
            return
        successor = lead.transfer.successor
        self._become_follower(f"abdicates in favour of {successor}")
        assert self._lead is None, ("no lease outlives the order to take over", successor)
        self._abdication = TimeoutNow(self.term, self.me, self.configuration.unsafe)
        self._letters.append(Send(successor, self._abdication))

    def _accepting_leader(self) -> Leadership:
        if self._lead is None:
            raise self._not_leader("takes no proposals", leader=self.leader)
        if self._lead.transfer is not None:
            raise self._not_leader(f"is handing over to {self._lead.transfer.successor}")
        assert self._lead.term == self.term, ("a leadership ends with its term", self._lead.term, self.term)
        return self._lead
