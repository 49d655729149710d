"""What a tablet server answers to its peers: one envelope with a message to each of many replicas.

An answer is given of what is here: a replica's, once what it rests on is durable; a vote of a tombstone, once it is; and where
neither is, the word for why not. What the words lead to is the leader's business (recovery.py).
"""

from __future__ import annotations

from ebla.actors import messages as m
from ebla.actors.tablet.identity import Identity
from ebla.actors.tablet.lifecycle import Lifecycle
from ebla.actors.tablet.raft.events import Pending
from ebla.actors.tablet.raft.messages import Answer, Request
from ebla.actors.tablet.raft.progress import DAMAGED, REPLICA_FAILED, TABLET_NOT_FOUND, VOTES_FORGOTTEN
from ebla.actors.tablet.replica import RUNNING, ConsensusState, Replica
from ebla.actors.tablet.rounds import Rounds
from ebla.actors.tablet.stones import Stone
from ebla.actors.world import World, rpc
from ebla.storage.errors import Corruption
from ebla.storage.records import RecordStore


class PeerVerbs:
    world: World
    identity: Identity
    replicas: dict[str, Replica]
    lifecycle: Lifecycle
    rounds: Rounds
    consensus: RecordStore[ConsensusState]

    def _require(self, uuid: str) -> None:
        raise AssertionError("the tablet server has its own")

    @rpc
    async def replicate(self, envelope: m.Envelope) -> m.EnvelopeReply:
        """What must be durable before the answer leaves: see replica.py."""
        self._require(envelope.dest.uuid)
        self.identity.receive(envelope)
        now = self.world.clock.monotonic()
        outcomes: list[tuple[Replica, Pending | Answer] | tuple[Stone, Request] | str] = []
        for tablet, request in envelope.requests:
            replica = self.replicas.get(tablet)
            if replica is None or replica.state != RUNNING:
                outcomes.append(self._absent(tablet, request))
                continue
            try:
                outcomes.append((replica, replica.receive(now, envelope.source.uuid, request)))
            except Corruption:
                outcomes.append(DAMAGED)
            self.rounds.touch(replica)
        answers: list[Answer | None] = []
        refusals: list[str | None] = []
        for outcome in outcomes:
            answer, refusal = await self._outcome(outcome)
            answers.append(answer)
            refusals.append(refusal)
        self.identity.require_believed()
        return m.EnvelopeReply(self.identity.instance, tuple(answers), tuple(refusals))

    def _absent(self, tablet: str, request: Request) -> tuple[Stone, Request] | str:
        """What is here instead of a running replica."""
        stone = self.lifecycle.stones.get(tablet)
        if stone is not None:
            return stone, request
        if self.lifecycle.state_of(tablet) == m.DOES_NOT_EXIST:
            return TABLET_NOT_FOUND
        broken = self.lifecycle.broken.get(tablet)
        return VOTES_FORGOTTEN if broken is not None and broken.forgetful else REPLICA_FAILED

    async def _outcome(
        self, outcome: tuple[Replica, Pending | Answer] | tuple[Stone, Request] | str
    ) -> tuple[Answer | None, str | None]:
        """The answer, or why there is none."""
        if isinstance(outcome, str):
            return None, outcome
        if isinstance(outcome[0], Stone):
            stone, request = outcome
            answer = await stone.receive(self.world.clock.monotonic(), request, self.consensus)
            return answer, None if answer else stone.refusal(self.world.clock.monotonic())
        answer = await self._durable(*outcome)
        return answer, None if answer else REPLICA_FAILED

    async def _durable(self, replica: Replica, outcome: Pending | Answer) -> Answer | None:
        waiting = replica.hard_state_durable()
        if waiting is not None:
            await waiting
        if isinstance(outcome, Pending):
            waiting = replica.entries_durable(outcome.until)
            if waiting is not None:
                await waiting
        if replica.state != RUNNING:
            return None
        # Checked again after the waits: a newer term in the meantime makes it a refusal.
        return replica.core.answer(outcome) if isinstance(outcome, Pending) else outcome
