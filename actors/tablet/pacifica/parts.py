"""The factory of PacificA's parts for the tablet server: cores, records, and changes of members.

The primary asks the master for a change of members, and answers once the master's configuration is in force. A change that is
in force already is answered at once, so a request may be repeated while its outcome is unknown.
"""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.detector.lease import Lease
from ebla.actors.messages import protocols
from ebla.actors.messages.pacifica import BallotRecord, PacificaView
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import Voter
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.quiescence import Contacts
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.tablet.pacifica.limits import PacificaLimits
from ebla.actors.tablet.stream.member_changes import (
    TIMEOUT_S_MAX,
    changed,
    check,
    in_force,
    require_unmoved,
)
from ebla.actors.world import World
from ebla.storage.errors import InvalidArgument


class Pacifica:
    """`leases`: of this server, shared by all its replicas."""

    def __init__(
        self, world: World, me: str, options: TabletServerOptions, leases: Lease, contacts: Contacts
    ) -> None:
        self.world = world
        self.me = me
        self.leases = leases
        self.contacts = contacts
        self.poll_s = options.poll_s
        silent_s = max(options.election_s_min, 4 * options.leader_heartbeat_s)
        self.limits = PacificaLimits(
            heartbeat_s=options.leader_heartbeat_s,
            append_bytes_max=options.append_bytes_max,
            quiesce_after_s=options.quiesce_after_s,
            silent_s=silent_s,
            stalled_s=3 * silent_s,
            handover_s=silent_s,
        )

    async def change(
        self, rounds: Rounds, replica: Replica, request: m.ChangeMembersRequest
    ) -> m.MembersReply:
        """Change the members, compare-and-set on the configuration in force. Raises NotLeader, OutcomeUnknown (not known to
        be in force), ConfigurationMoved, AlreadyInProgress, InvalidArgument.

        The configuration in force counts, committed or not: the master has made it durable. So a group that cannot commit,
        because a member is gone, can still replace that member.
        """
        replica.require_running()
        core, changes = replica.core, request.changes
        assert isinstance(core, PacificaCore), ("a PacificA tablet has PacificA's core", replica.tablet)
        check(changes)
        if not replica.leads:
            raise replica.not_leader()
        known = core.configuration
        if all(in_force(known, each) for each in changes):
            return m.MembersReply(replica.tablet, known)
        require_unmoved(replica.tablet, known, request.configuration_index, request.configuration_unsafe)
        wanted = changed(known, changes)
        now, timeout_s = self.world.now(), min(request.timeout_s, TIMEOUT_S_MAX)
        asked = rounds.step(replica, core.request_members, now, wanted.peers)
        while replica.state == RUNNING and core.asked is asked and self.world.now() < now + timeout_s:
            await self.world.clock.sleep(self.poll_s)
        if replica.leads and core.configuration.index >= asked.index:
            known = core.configuration
            if all(in_force(known, each) for each in changes):
                return m.MembersReply(replica.tablet, known)
        raise errors.OutcomeUnknown(
            f"the members of tablet {replica.tablet} in ballot {asked.index}, which {self.world.address} has asked the master for, "
            "are not in force here: the master does not answer, or has decided otherwise; check again",
            address=self.world.address,
        )

    async def force(
        self, rounds: Rounds, identity: Identity, replica: Replica, request: m.UnsafeChangeRequest
    ) -> m.MembersReply:
        raise InvalidArgument(
            f"the configuration of tablet {replica.tablet} is not forced at a replica, because its table uses PacificA; see `ebla "
            "tablet diagnose`"
        )

    def first_hard_state(self, configuration: Configuration) -> BallotRecord:
        """The record of a new replica. A late order of a ballot before that of `configuration` does not count."""
        return BallotRecord(max(0, configuration.index - 1))

    def core(
        self,
        tablet: str,
        hard_state: protocols.HardState,
        configuration: Configuration,
        log: LogIndex,
        commit_index: int,
    ) -> PacificaCore:
        return PacificaCore(
            tablet,
            self.me,
            _pacifica(hard_state),
            configuration,
            log,
            self.limits,
            self.leases,
            self.world.now(),
            commit_index=commit_index,
            contacts=self.contacts,
        )

    def voter(
        self,
        hard_state: protocols.HardState,
        durable: protocols.HardState,
        last: tuple[int, int] | None,
        forced_epoch: int,
    ) -> Remembered:
        return Remembered(_pacifica(hard_state), last, durable=durable, forced_epoch=forced_epoch)

    def copied(self, own: protocols.HardState, source: str, ballot: int) -> BallotRecord:
        """The record with the higher ballot. The source leads in `ballot`, so no other replica does. A replica whose record
        was lost has a record of another kind here, of ballot 0."""
        if ballot >= own.term:
            return BallotRecord(ballot, source)
        return _pacifica(own)


class Remembered(Voter):
    """The memory of a replica without a log: a tombstone, or a replica that is being copied.

    It answers nothing for its group: nobody votes, and only a log can acknowledge entries. It remembers its ballot, so that the
    replica that a copy makes of it leads no ballot that the former one may have led.
    """

    def view(self) -> PacificaView:
        return PacificaView(term=self.hard_state.term, last_index=self.last[0] if self.last else 0)

    def asks_vote(self, request: protocols.Request) -> bool:
        return False

    def receive(self, now: float, request: protocols.Request) -> None:
        return None


def _pacifica(state: protocols.HardState) -> BallotRecord:
    assert isinstance(state, BallotRecord), ("a PacificA tablet has PacificA's record", state)
    return state
