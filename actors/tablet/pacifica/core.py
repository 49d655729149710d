"""PacificA for one tablet, as a state machine without clock, disk, network or waiting (see engine/core.py for the
caller's duties, and this room's opening for the promises)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors.messages.protocols import Answer, Request
from ebla.actors.messages.stream import LACKING, STRANDED, AppendReply, AppendRequest
from ebla.actors.replication.appointments import appointed, next_members, require_members
from ebla.actors.replication.configuration import FIRST_BALLOT, PRE_VOTER, VOTER, Configuration, Peer
from ebla.actors.tablet.engine.core import LEADER, Pending, Sent
from ebla.actors.tablet.engine.quiescence import AWAKE
from ebla.actors.tablet.pacifica.primary import Primary
from ebla.actors.tablet.pacifica.state import PacificaState
from ebla.actors.tablet.stream.matching import contradicts, lacks_committed
from ebla.actors.tablet.stream.peers import Transfer
from ebla.actors.tablet.stream.plan import AppendPlan
from ebla.storage.errors import InvalidArgument
from ebla.storage.logs.entries import CONFIG


class PacificaCore(PacificaState):
    """The events, in the order of a replica's life."""

    # -- time

    def _pass_time(self, now: float) -> None:
        watched_at = self._contacts.watched_at if self.stance.quiescent else self._now
        if self._lead is not None and now - watched_at > self.limits.pause_s:
            self._lead.paused(now)
        super()._pass_time(now)
        if (
            self._lead is not None
            and not self.stance.quiescent
            and now - self._posted_at > self.limits.pause_s
        ):
            self._lead.mute(now)

    def tick(self, now: float) -> None:
        """Do the work that is due. Feed messages that have arrived first."""
        self._pass_time(now)
        lead = self._lead
        if lead is None:
            return
        if not self._leases.holds(now, self._lease):
            self._step_down(f"its server's lease {self._lease} is over")
            return
        if lead.transfer and lead.transfer.deadline <= now:
            self._note(f"{lead.transfer.successor} did not catch up; this replica still leads")
            lead.transfer = None
        if self.asked is None and self._gives_way_at(lead) <= self._now:
            successor = lead.choose_successor()
            assert successor is not None, "another voter has shown that our disk is late"
            self._hand_over(lead, successor, late=True)
        self._consider(lead)

    # -- the master's orders

    def appoint(self, now: float, configuration: Configuration, lease: int) -> None:
        """Take a configuration that is durable in the catalog; `lease`: the lease of this server that the master's order, or the
        answer to our request, belongs to.

        Raises Unavailable if that lease is not in force, or this replica has led this ballot, or may
        have: the master must appoint it again, in the lease or the ballot that follows. Raises IllegalState if
        this log ends before a ballot that all voters held: the directory is an old copy, and another voter must lead.
        """
        self._pass_time(now)
        ballot, mine = configuration.index, configuration.primary == self.me
        if ballot < self.term or (ballot == self.term and (self._lead is not None or not mine)):
            return  # an old order, or a repeated one
        if not mine:
            self._become_follower(f"{configuration.primary} is the primary", ballot, configuration.primary)
            return
        self.require_no_older_copy(configuration)
        if ballot == self.term:
            raise errors.Unavailable(
                f"{self._name()} leads no ballot twice; appoint it in a ballot after {ballot}"
            )
        if not self._leases.holds(now, lease):
            raise errors.Unavailable(f"the lease {lease} of {self._name()} is over; appoint it in the next")
        if self._lead is not None and lease != self._lease:
            # Another may have led since. What this leadership knows of its peers is worth nothing.
            self._step_down(f"its lease {self._lease} is over")
            raise errors.Unavailable(f"the lease of {self._name()} was over; appoint it again")
        self._lead_ballot(configuration, lease)

    def require_no_older_copy(self, configuration: Configuration) -> None:
        """Raise IllegalState if this log, a voter's, lacks what the voters of `configuration` held."""
        why = self._why_older(configuration)
        self._declined = configuration if why else None
        if why:
            raise errors.IllegalState(
                f"{self._name()} {why}: its directory is an older copy; appoint another voter",
                tablet=self.tablet,
                state=self.standing,
            )

    def decline(self, now: float, ballot: int) -> None:
        """Enter a ballot that this server has declined to lead, so that reports show that another ballot is needed."""
        self._pass_time(now)
        if ballot > self.term:
            self._become_follower("its server has declined to lead", ballot, self.me)

    def _lead_ballot(self, configuration: Configuration, lease: int) -> None:
        """Become the primary, or stay it with another configuration. The first entry of a ballot is its configuration."""
        ballot, known = configuration.index, self._lead
        inherited = self.last_index
        self._enter(ballot, self.me)
        self.leader, self.asked, self._lease = self.me, None, lease
        if known is not None:
            known.renew(ballot)
        self._append_configuration(configuration)
        if known is None:
            self._lead = Primary(
                self.me, ballot, configuration, self.log, self.limits, self._now, inherited=inherited
            )
        assert self.configuration == configuration, ("the newest configuration is in force", configuration)
        self._set_role(LEADER, f"appointed in lease {lease}, begins at {self.last_index}")
        self._advance_commit()

    # -- the primary's verbs

    def propose(self, now: float, kind: int, payload_bytes: int) -> tuple[int, int]:
        self._pass_time(now)
        assert kind != CONFIG, "configurations come from the master"
        lead = self._require_lead("takes no proposals")
        if lead.transfer is not None:
            raise self._not_leader(f"is handing over to {lead.transfer.successor}")
        if not self._may_commit():
            voters, least = len(self.configuration.voters()), self.configuration.min_members
            raise errors.Unavailable(
                f"tablet {self.tablet} has {voters} members and takes writes with {least}; try again when a learner "
                "has caught up"
            )
        self._wake()
        return self.log.append(self.term, payload_bytes), self.term

    def read_index(self, now: float) -> int:
        self._pass_time(now)
        lead = self._require_lead("serves no linearizable reads")
        if not self._leases.holds(now, self._lease):
            raise errors.Unavailable(f"{self._name()} has no lease: no master answered lately; try again")
        if self.commit_index <= lead.inherited and self.commit_index < (first := self._reads_from(lead)):
            raise errors.Unavailable(
                f"{self._name()} has not yet committed what it began with, up to {first}; try again"
            )
        return self.commit_index

    def request_members(self, now: float, peers: Sequence[Peer]) -> Configuration:
        """Ask the master for these members, who may not have more votes than now. Return the configuration asked for. Raises
        NotLeader, AlreadyInProgress, InvalidArgument."""
        self._pass_time(now)
        lead = self._require_lead("changes no members")
        if self.asked is not None or lead.transfer is not None:
            raise errors.AlreadyInProgress(
                f"{self._name()} is changing its configuration in ballot {self.term}; try again later",
                tablet=self.tablet,
            )
        require_members(self.configuration, peers, self.me)
        made = replace(self.configuration, peers=tuple(peers))
        return self._ask(appointed(made, self.me))

    def step_down(self, now: float, successor: str | None) -> str:
        self._pass_time(now)
        lead = self._require_lead("has no leadership to hand over")
        chosen = successor or lead.choose_successor()
        if chosen is None:
            raise errors.Unavailable(f"{self._name()} has no secondary to hand over to")
        if not lead.may_succeed(chosen):
            others = [peer.uuid for peer in self.configuration.voters() if peer.uuid != self.me]
            raise InvalidArgument(f"{chosen} is no secondary of tablet {self.tablet}; name one of {others}")
        self._hand_over(lead, chosen, late=False)
        return chosen

    # -- messages

    def asks_to_lead(self, request: Request) -> bool:
        return False

    def receive(
        self, now: float, sender: str, request: Request, *, knows_us: bool = True
    ) -> Pending | Answer:
        self._pass_time(now)
        assert isinstance(request, AppendRequest), ("a PacificA group has no votes", request)
        if request.term < self.term or request.unsafe < self.forced_epoch:
            return self._refuse_append(hint=0)
        assert request.term > self.term or self._lead is None, ("a ballot has one primary", sender)
        if request.term > self.term:
            self._become_follower(f"{request.leader} leads", request.term, request.leader)
        if self.leader is None:
            self.leader = request.leader
            self._note(f"follows {request.leader}")
        if self.hard_state.vote is None:
            self._enter(self.term, request.leader)
        known = self.leader, self.hard_state.vote
        assert known == (request.leader, request.leader), ("a ballot has one primary", known, request.leader)
        crossing = request.unsafe > self.configuration.unsafe
        if crossing and contradicts(self.log, self.last_index, request):
            # A former voter does not know of each of its entries whether it was acknowledged. All of them are kept:
            # the copy that replaces this replica puts its data into quarantine.
            self._note(f"has entries that {request.leader} has given up, or may have")
            self._wake()
            return self._append_reply(False, 0, 0, STRANDED)
        if lacks_committed(self.log, self.commit_index, request):
            self._note(f"has committed entries up to {self.commit_index} that {request.leader} lacks")
            self._wake()
            return self._append_reply(False, 0, self.commit_index, LACKING)
        answer = self._match(request)
        self._consider_quiescence(request, answer)
        if request.commit_index > self.last_index:
            self._older_copy.ends_before(request.unsafe, request.commit_index)
        elif isinstance(answer, Pending):
            self._older_copy.agrees(answer.until, min(request.commit_index, self.durable_index))
            if self._declined is not None and not self._why_older(self._declined):
                self._declined = None
            self.verified = self.verified or (knows_us and self._shows_all(request, answer.until))
        self._keep_what_it_lacks()
        return answer

    def _shows_all(self, request: AppendRequest, until: int) -> bool:
        """Whether this log, which is that of its primary up to `until`, has all that is committed: the primary has committed an entry
        of its own ballot, so no voter refused what it began with."""
        index = request.commit_index
        return self.log.dropped_index <= index <= until and self.log.term_at(index) == request.term

    def replied(self, now: float, peer: str, sent: Sent, answer: Answer) -> None:
        self._pass_time(now)
        plan, lead = sent.request, self._lead
        assert isinstance(answer, AppendReply), ("members answer appends", answer)
        if answer.term > self.term:
            self._become_follower(f"{peer} is in ballot {answer.term}", answer.term, None)
            return
        if lead is None or not isinstance(plan, AppendPlan) or not plan.term == answer.term == self.term:
            return  # the answer belongs to a ballot that is over
        progress = lead.peers.get(peer)
        if progress is None:
            return
        if answer.reason == LACKING:
            self._older_copy.differs(self.forced_epoch, answer.hint)
            self.verified = False
            self._keep_what_it_lacks()
            self._step_down(f"{peer} has committed entries up to {answer.hint} that are not here")
            return
        progress.answered(now, sent.at, plan, answer)
        member = self.configuration.peer(peer)
        if member is not None and member.kind == PRE_VOTER and self.asked is None:
            lead.joins(now, peer, sent.at, plan.commit_index)
        if plan.quiesce and answer.quiescent:
            progress.quiesces(now, plan, self.last_index)
        self._advance_commit()
        if lead.transfer is not None and peer == lead.transfer.successor:
            self._continue_transfer(lead, lead.transfer, sent, answer)
        self._consider(lead)
        if self.stance is not AWAKE:
            self._settle()

    def failed(
        self, now: float, peer: str, sent: Sent, delivered: bool | None, refusal: str | None = None
    ) -> None:
        """Note that no answer came, or (`refusal`) why the server cannot answer for the replica."""
        self._pass_time(now)
        plan, lead = sent.request, self._lead
        if (
            lead is None
            or not isinstance(plan, AppendPlan)
            or plan.term != self.term
            or peer not in lead.peers
        ):
            return
        self._unanswered(lead, peer, plan, delivered, refusal)
        self._consider(lead)
        if self.stance is not AWAKE:
            self._settle()

    def note_end(self, now: float, peer: str, wait_s: float) -> None:
        """Ask for other members at once if an entry waits for that peer. Where the peer led, the master appoints another."""
        self._pass_time(now)
        if self._lead is not None and peer in self._lead.peers:
            self._lead.note_end(now, peer)
            self._consider(self._lead)

    # -- changes

    def _consider(self, lead: Primary) -> None:
        """Let learners leave that do not keep up. Ask for the members that are wanted now, if they differ from those in
        force. Every answer, and every failure, leads here: under load an event may come before each tick."""
        if lead.leave(self._now):
            self._advance_commit()
        if self.asked is not None or lead.transfer is not None:
            return
        held = max(self.commit_index, lead.inherited)
        ready = [uuid for uuid in lead.joining if lead.held_by(uuid) >= held]
        members = next_members(self.configuration, ready, lead.failing(self._now))
        if members != self.configuration.peers:
            for before, after in zip(self.configuration.peers, members, strict=True):
                if before.member == VOTER != after.member:
                    lead.strike(self._now, before.uuid)
            self._ask(appointed(replace(self.configuration, peers=members), self.me))

    def _ask(self, configuration: Configuration) -> Configuration:
        assert self.asked is None, ("one request at a time", self.asked)
        self._wake()
        if self._lead is not None:
            self._lead.changing = True
        held = self.committed_configuration.index if self.commit_index else FIRST_BALLOT
        settled = max(self.configuration.settled, held)
        self.asked = configuration = replace(configuration, settled=settled)
        self._note(
            f"asks for ballot {configuration.index}: {configuration.primary} leads "
            + ", ".join(f"{peer.uuid} {peer.kind}" for peer in configuration.peers)
        )
        return configuration

    def _hand_over(self, lead: Primary, successor: str, *, late: bool) -> None:
        """Begin to hand over. `late`: because this disk delays entries that all others hold, so that it shall not vote."""
        self._wake()
        lead.transfer = Transfer(successor, self._now + self.limits.handover_s, late)
        lead.peers[successor].urgent = True  # it has to answer a message that leaves from now on
        self._note(f"hands over to {successor}" + (", because its own disk is late" if late else ""))

    def _continue_transfer(self, lead: Primary, transfer: Transfer, sent: Sent, answer: AppendReply) -> None:
        """Once the successor's answer shows that its process holds everything, step down, and only then ask for this process: nothing
        here reads from the moment when the master may appoint another. An answer counts if its message left after the beginning:
        abdication in favour of a dead peer would be an outage."""
        holds_all = answer.success and answer.match == self.last_index
        if self.asked is not None or not holds_all or sent.at < transfer.deadline - self.limits.handover_s:
            return
        members = next_members(self.configuration, (), [self.me] if transfer.late else [])
        wanted = appointed(replace(self.configuration, peers=members), transfer.successor)
        self._step_down(f"hands over to {wanted.primary}")
        self._ask(wanted)
        self.successor = sent.process
