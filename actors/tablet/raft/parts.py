"""The factory of Raft's parts for the tablet server: cores, voters, and changes of members."""

from __future__ import annotations

from ebla.actors import messages as m
from ebla.actors.messages import protocols
from ebla.actors.messages.raft import HardState
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.identity import Identity
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.quiescence import Contacts
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.raft import members
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.actors.tablet.raft.tombstone import TombstoneVoter
from ebla.actors.world import World


class Raft:
    def __init__(self, world: World, me: str, options: TabletServerOptions, contacts: Contacts) -> None:
        self.world = world
        self.me = me
        self.contacts = contacts
        self.limits = RaftLimits(
            heartbeat_s=options.leader_heartbeat_s,
            election_s_min=options.election_s_min,
            lease_s=options.lease_s,
            append_bytes_max=options.append_bytes_max,
            quiesce_after_s=options.quiesce_after_s,
        )

    async def change(
        self, rounds: Rounds, replica: Replica, request: m.ChangeMembersRequest
    ) -> m.MembersReply:
        return await members.change(self.world, rounds, replica, request)

    async def force(
        self, rounds: Rounds, identity: Identity, replica: Replica, request: m.UnsafeChangeRequest
    ) -> m.MembersReply:
        return await members.force(self.world, rounds, identity, replica, request)

    def first_hard_state(self) -> HardState:
        return HardState()

    def core(
        self,
        tablet: str,
        hard_state: protocols.HardState,
        configuration: Configuration,
        log: LogIndex,
        commit_index: int,
    ) -> RaftCore:
        return RaftCore(
            tablet,
            self.me,
            _raft(hard_state),
            configuration,
            log,
            self.limits,
            self.world.random,
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
    ) -> TombstoneVoter:
        return TombstoneVoter(
            _raft(hard_state),
            last,
            self.limits.election_s_min,
            self.world.now(),
            durable=_raft(durable),
            forced_epoch=forced_epoch,
        )

    def copied(self, own: protocols.HardState, source: str, term: int, *, knows_end: bool) -> HardState:
        """The hard state with the higher term; our vote ends only with its term (seed 000). A
        replica that does not know where its log ended may have voted for the leader of this
        term."""
        merged = HardState(term) if term > own.term else _raft(own)
        assert merged.term == max(own.term, term), ("terms never go back", merged, own, term)
        return merged if knows_end or merged != HardState(term) else HardState(term, source)


def _raft(state: protocols.HardState) -> HardState:
    assert isinstance(state, HardState), ("a Raft tablet has Raft's record", state)
    return state
