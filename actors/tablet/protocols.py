"""The replication protocols of a tablet server, as one: the engine's `Replication`, and the changes of members.

A replica's protocol is that of its hard state; of a new replica, that of its configuration: PacificA's has a primary.
"""

from __future__ import annotations

from ebla.actors import messages as m
from ebla.actors.messages.pacifica import BallotRecord
from ebla.actors.messages.protocols import HardState
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import GroupCore, Voter
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.pacifica.core import Leases
from ebla.actors.tablet.pacifica.parts import Pacifica
from ebla.actors.tablet.raft.parts import Raft
from ebla.actors.world import World


class Protocols:
    """`leases`: of this server, for its PacificA replicas."""

    def __init__(self, world: World, me: str, options: TabletServerOptions, leases: Leases) -> None:
        self.raft = Raft(world, me, options)
        self.pacifica = Pacifica(world, me, options, leases)

    def _of(self, hard_state: HardState) -> Raft | Pacifica:
        return self.pacifica if isinstance(hard_state, BallotRecord) else self.raft

    # -- replicas

    def first_hard_state(self, configuration: Configuration) -> HardState:
        if configuration.primary is None:
            return self.raft.first_hard_state()
        return self.pacifica.first_hard_state(configuration)

    def core(
        self,
        tablet: str,
        hard_state: HardState,
        configuration: Configuration,
        log: LogIndex,
        commit_index: int,
    ) -> GroupCore:
        return self._of(hard_state).core(tablet, hard_state, configuration, log, commit_index)

    def voter(
        self, hard_state: HardState, durable: HardState, last: tuple[int, int] | None, forced_epoch: int
    ) -> Voter:
        return self._of(hard_state).voter(hard_state, durable, last, forced_epoch)

    def copied(
        self, own: HardState, source: str, term: int, configuration: Configuration, *, knows_end: bool
    ) -> HardState:
        if configuration.primary is None:
            return self.raft.copied(own, source, term, knows_end=knows_end)
        return self.pacifica.copied(own, source, term)

    # -- members

    async def change(
        self, rounds: Rounds, replica: Replica, request: m.ChangeMembersRequest
    ) -> m.MembersReply:
        return await self._of(replica.core.hard_state).change(rounds, replica, request)

    async def force(
        self, rounds: Rounds, identity: Identity, replica: Replica, request: m.UnsafeChangeRequest
    ) -> m.MembersReply:
        return await self._of(replica.core.hard_state).force(rounds, identity, replica, request)
