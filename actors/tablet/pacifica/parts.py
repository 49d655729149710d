"""The factory of PacificA's parts for the tablet server: cores, records, and changes of members."""

from __future__ import annotations

from ebla.actors import messages as m
from ebla.actors.messages import protocols
from ebla.actors.messages.pacifica import BallotRecord
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.pacifica import members
from ebla.actors.tablet.pacifica.core import Leases, PacificaCore
from ebla.actors.tablet.pacifica.limits import PacificaLimits
from ebla.actors.tablet.pacifica.tombstone import Remembered
from ebla.actors.world import World
from ebla.storage.errors import InvalidArgument


class Pacifica:
    """`leases`: of this server, shared by all its replicas."""

    def __init__(self, world: World, me: str, options: TabletServerOptions, leases: Leases) -> None:
        self.world = world
        self.me = me
        self.leases = leases
        self.poll_s = options.poll_s
        silent_s = max(options.election_s_min, 4 * options.leader_heartbeat_s)
        self.limits = PacificaLimits(
            heartbeat_s=options.leader_heartbeat_s,
            append_bytes_max=options.append_bytes_max,
            silent_s=silent_s,
            stalled_s=3 * silent_s,
            handover_s=silent_s,
        )

    async def change(
        self, rounds: Rounds, replica: Replica, request: m.ChangeMembersRequest
    ) -> m.MembersReply:
        return await members.change(self.world, rounds, replica, request, self.poll_s)

    async def force(
        self, rounds: Rounds, identity: Identity, replica: Replica, request: m.UnsafeChangeRequest
    ) -> m.MembersReply:
        raise InvalidArgument(
            f"the configuration of tablet {replica.tablet} cannot be forced, because its table uses PacificA; start one of the "
            "servers that hold a voter of it, each has every acknowledged write"
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
            self.world.clock.monotonic(),
            commit_index=commit_index,
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


def _pacifica(state: protocols.HardState) -> BallotRecord:
    assert isinstance(state, BallotRecord), ("a PacificA tablet has PacificA's record", state)
    return state
