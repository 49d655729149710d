"""The state of a PacificA core, what is seen of it, when it commits, and the steps from one role to another.

The events that call these steps are in core.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from ebla.actors.detector.lease import Lease
from ebla.actors.messages import ServerInstance
from ebla.actors.messages.pacifica import BallotRecord, PacificaView
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import FOLLOWER, LEADER, Send
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.quiescence import AWAKE, NO_CONTACTS, Contacts
from ebla.actors.tablet.pacifica.limits import PacificaLimits
from ebla.actors.tablet.pacifica.older_copy import OlderCopy
from ebla.actors.tablet.pacifica.primary import Primary
from ebla.actors.tablet.stream.member import MemberState

PRIMARY, SECONDARY, LEARNER, INACTIVE = "primary", "secondary", "learner", "inactive"  # as reports show them


class PacificaState(MemberState[BallotRecord, Primary]):
    """`asked`: the configuration of the next ballot that this replica has requested from the master. The request is
    repeated until a configuration of a later ballot than ours comes, from the master or from its primary. `successor`: the
    process for which this replica has stepped down, and which held everything."""

    def __init__(
        self,
        tablet: str,
        me: str,
        hard_state: BallotRecord,
        configuration: Configuration,
        log: LogIndex,
        limits: PacificaLimits,
        leases: Lease,
        now: float,
        *,
        commit_index: int = 0,
        contacts: Contacts = NO_CONTACTS,
    ) -> None:
        super().__init__(
            tablet, me, hard_state, configuration, log, now, commit_index=commit_index, contacts=contacts
        )
        if self.term < log.last_term:
            # Entries may reach the disk before the record of their ballot. This replica may have led it.
            self._enter(log.last_term, None)
        self.limits = limits
        self._leases = leases
        self._lease = 0  # the number of the lease in which this replica leads
        self.successor: ServerInstance | None = None
        self._older_copy = OlderCopy(hard_state.lacks)
        self._declined: Configuration | None = None  # it would have led by this one, and is an older copy
        # When messages could leave last: they wait for hard states, of other tablets as well.
        self._posted_at = now

    # -- views

    @property
    def shown_role(self) -> str:
        return self.role

    @property
    def standing(self) -> str:
        """PRIMARY, SECONDARY, LEARNER or INACTIVE."""
        if self._lead:
            return PRIMARY
        if self.leader is None:
            return INACTIVE
        return SECONDARY if self._is_voter() else LEARNER

    @property
    def awaits_successor(self) -> bool:
        return self._lead is None and self.asked is not None

    @property
    def awaits_ballot(self) -> bool:
        """Whether this replica was appointed to lead its ballot and does not: the master must appoint it, or another, again."""
        return self._lead is None and self.asked is None and self.hard_state.vote == self.me

    @property
    def apart(self) -> str | None:
        declined = self._declined
        if declined is None or declined.unsafe < self.forced_epoch:
            return None
        why = self._why_older(declined)
        return f"its log {why}: its directory is an older copy" if why else None

    def health(self, now: float, failed_s: float) -> dict[str, str]:
        if self._lead is None:
            return {}
        self._lead.note_contacts(self._contacts)
        return self._lead.health(now, failed_s)

    def next_wake(self, now: float) -> float:
        lead = self._lead
        if self._unsaved:
            return now
        if lead is None or self.stance.quiescent:
            return float("inf")  # a server that is silent, and the end of the lease, are events
        due = [lead.sends_at(now), self._leases.until]
        if lead.transfer:
            due.append(lead.transfer.deadline)
        if self.asked is None:
            due += [lead.next_failure(now), self._gives_way_at(lead)]
        return max(now, min(due))

    def view(self) -> PacificaView:
        lease, first = (self._lease, self._reads_from(self._lead)) if self._lead else (0, 0)
        ends = self.last_index, self.commit_index
        state = self.verified, self.awaits_successor
        return PacificaView(self.standing, self.term, self.leader, *ends, lease, first, *state)

    def validate(self) -> None:
        super().validate()
        known = (self.tablet, self.term, self.role, self.commit_index, self.durable_index, self.asked)
        assert (self._lead is not None) == (self.role == LEADER), ("a primary has a leadership", known)
        if self.asked is not None:
            assert self.asked.index == self.term + 1, ("the next ballot is asked for", known)
        if self._lead is not None:
            assert self.configuration.index == self.term, (
                "a primary leads by its ballot's configuration",
                known,
            )
            assert self.configuration.primary == self.me, ("the master appointed the primary", known)
            assert self._lead.inherited <= self.last_index, ("inherited entries are kept", known)
            held = self._lead.replicated_index(self.durable_index, self._needed(self._lead))
            assert self._lead.joining or held <= self.commit_index or not self._may_commit(), (
                "what all hold is committed",
                held,
                known,
            )

    def _sends(self) -> tuple[Send, ...]:
        self._posted_at = self._now
        return super()._sends()

    # -- commits

    def _needed(self, lead: Primary) -> list[str]:
        """The replicas that must hold an entry before it is committed: the voters, those that shall become voters by
        the request that the master may have granted already, and learners that are joining."""
        coming = self.asked.voters() if self.asked else ()
        voters = [peer.uuid for peer in (*self.configuration.voters(), *coming)]
        return list(dict.fromkeys([*voters, *lead.joining]))

    def _reads_from(self, lead: Primary) -> int:
        """The index that must be committed before reads: that of the last inherited entry. It is the next index, of the first entry
        of this leadership, while a voter may refuse that entry, and if that entry gives up acknowledged ones."""
        forced = self.forced_epoch > self.committed_forced_epoch
        return lead.inherited + (forced or lead.may_be_refused(self._now))

    def _gives_way_at(self, lead: Primary) -> float:
        """When this replica hands over because of its disk. If its vote has to stay, its disk would delay the next primary as well."""
        spare = len(self.configuration.voters()) > self.configuration.min_members
        return lead.gives_way_at(self._now) if spare else float("inf")

    def _may_commit(self) -> bool:
        return len(self.configuration.voters()) >= self.configuration.min_members

    def _advance_commit(self) -> None:
        lead = self._lead
        if lead is None:
            return
        index = lead.replicated_index(self.durable_index, self._needed(lead))
        if index > self.commit_index and self._may_commit():
            self._commit_to(index)
        self.verified = self.verified or self.commit_index > lead.inherited
        lead.note_durable(self._now, self.durable_index)

    # -- older copies

    def _why_older(self, configuration: Configuration) -> str:
        """Why this log, a voter's, lacks what the voters of `configuration` held; "" if it does not."""
        return self._older_copy.why(self.configuration.index, configuration)

    def _keep_what_it_lacks(self) -> None:
        """In the durable record."""
        if self._older_copy.lacks != self.hard_state.lacks:
            self.hard_state = replace(self.hard_state, lacks=self._older_copy.lacks)
            self._unsaved = True

    # -- roles

    def _step_down(self, why: str) -> None:
        """Stop to lead, in the same ballot. A request that is under way may be granted still, but not to us: only an
        order in a later ballot makes this replica lead again."""
        assert self._lead is not None, "only a primary steps down"
        self._follow(why)

    def _become_follower(self, why: str, ballot: int, primary: str | None) -> None:
        """Enter a later ballot, which another replica leads."""
        self._enter(ballot, primary)
        self._follow(why)

    def _follow(self, why: str) -> None:
        self.leader = self.asked = self._lead = None
        self.stance = AWAKE
        self._set_role(FOLLOWER, why)

    def _enter(self, ballot: int, primary: str | None) -> None:
        known = self.hard_state
        assert ballot > known.term or (ballot == known.term and known.vote is None), (
            "ballots ascend",
            ballot,
            known,
        )
        made = BallotRecord(ballot, primary, known.lacks)
        self.hard_state, self.term, self._unsaved = made, ballot, True

    def _require_lead(self, what: str) -> Primary:
        if self._lead is None:
            raise self._not_leader(what, leader=self.leader)
        return self._lead
