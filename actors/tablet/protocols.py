"""The replication protocols of a tablet server: the engine's `Replication`.

A replica's protocol is that of its hard state; of a new replica, that of its configuration: PacificA's has a primary.
"""

from __future__ import annotations

from ebla.actors.detector.lease import Lease
from ebla.actors.messages.pacifica import BallotRecord
from ebla.actors.messages.protocols import HardState
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.quiescence import Contacts
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.pacifica.parts import Pacifica
from ebla.actors.tablet.raft.parts import Raft
from ebla.actors.world import World


class Protocols:
    """`leases`: of this server, for its PacificA replicas. `contacts`: with other servers."""

    def __init__(
        self, world: World, me: str, options: TabletServerOptions, leases: Lease, contacts: Contacts
    ) -> None:
        self.raft = Raft(world, me, options, contacts)
        self.pacifica = Pacifica(world, me, options, leases, contacts)

    def of(self, hard_state: HardState) -> Raft | Pacifica:
        return self.pacifica if isinstance(hard_state, BallotRecord) else self.raft

    def first_hard_state(self, configuration: Configuration) -> HardState:
        if configuration.primary is None:
            return self.raft.first_hard_state()
        return self.pacifica.first_hard_state(configuration)

    def copied(
        self, own: HardState, source: str, term: int, configuration: Configuration, *, knows_end: bool
    ) -> HardState:
        if configuration.primary is None:
            return self.raft.copied(own, source, term, knows_end=knows_end)
        return self.pacifica.copied(own, source, term)
