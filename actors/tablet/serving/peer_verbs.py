"""Answers to an envelope of a peer, which has a message to each of many replicas.

The answer is from local state: of a replica, after its changes are durable; of a tombstone's vote, after that is
durable; otherwise the reason why there is no answer. The leader acts on the reasons (copy/recovery.py).
"""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.appointments import ProcessEnded
from ebla.actors.messages.protocols import Answer, Request
from ebla.actors.replication.health import (
    DAMAGED,
    HELD_BACK,
    NOT_RUNNING,
    REPLICA_FAILED,
    TABLET_NOT_FOUND,
    VOTES_FORGOTTEN,
)
from ebla.actors.tablet.engine.core import Pending
from ebla.actors.tablet.engine.links import CALL_TIMEOUT_S
from ebla.actors.tablet.engine.liveness import AT_ONCE_MAX, successor
from ebla.actors.tablet.engine.quiescence import AWAKE
from ebla.actors.tablet.engine.records import ConsensusState
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.actors.tablet.lifecycle.verbs import Verbs
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.serving.admission import Load
from ebla.actors.world import rpc
from ebla.storage.directories.records import RecordStore
from ebla.storage.errors import Corruption

# How many heartbeats' time replicas wait for the one that is to lead after a leader whose process has ended.
SECOND = (0.6, 1.2)


class PeerVerbs(Verbs):
    rounds: Rounds
    consensus: RecordStore[ConsensusState]
    load: Load
    options: TabletServerOptions
    stopping: bool

    @rpc
    async def replicate(self, envelope: peers.Envelope) -> peers.EnvelopeReply:
        """Answer an envelope. For the changes that must be durable before see engine/replica.py."""
        self._require_addressed(envelope.dest.uuid)
        self.identity.receive(envelope)
        now, sender = self.world.now(), envelope.source.uuid
        knows_us = envelope.dest.start == self.identity.instance.start
        outcomes: list[tuple[Replica, Pending | Answer] | tuple[Tombstone, Request] | str] = []
        for tablet, request in envelope.requests:
            replica = self.replicas.get(tablet)
            if replica is None or replica.state != RUNNING:
                outcomes.append(self._absent(tablet, request))
                continue
            if _brings_entries(replica, request) and self.load.holds_back(tablet):
                outcomes.append(HELD_BACK)
                continue
            if self.stopping and replica.core.asks_to_lead(request):
                outcomes.append(NOT_RUNNING)  # a new leadership would end at once
                continue
            try:
                answer = self.rounds.step(replica, replica.receive, now, sender, request, knows_us)
                outcomes.append((replica, answer))
            except Corruption:
                outcomes.append(DAMAGED)
        answers: list[Answer | None] = []
        refusals: list[str | None] = []
        try:
            async with self.world.clock.timeout(CALL_TIMEOUT_S):
                for outcome in outcomes:
                    settled, refusal = await self._outcome(outcome)
                    answers.append(settled)
                    refusals.append(refusal)
        except TimeoutError:
            # The caller has timed out; without this, calls would accumulate while the disk hangs.
            raise errors.Unavailable(f"the disk of {self.world.address} takes too long; try again") from None
        self.identity.require_believed()
        return peers.EnvelopeReply(self.identity.instance, tuple(answers), tuple(refusals))

    @rpc
    async def liveness(self, request: peers.LivenessRequest) -> peers.LivenessReply:
        """Answer for all quiescent followers of the sender's leaders: see engine/liveness.py."""
        self._require_addressed(request.dest.uuid)
        self.identity.receive(request)
        return self.rounds.liveness.receive(request)

    @rpc
    async def process_ended(self, request: ProcessEnded) -> m.Empty:
        """Note that the process of another server has ended for certain. Replicas here take the place of its leaders, and primaries need
        not wait for its replicas.

        A hash chooses the successor of each leader. Others follow soon if it does not lead, unless so many replicas are concerned that
        it may only be waiting for its turn. Quiescent followers wake in waves."""
        self._require_serving()
        ended = request.process
        if self.stopping or self.identity.others.known(ended.uuid).start != ended.start:
            return m.Empty()  # this server takes no leadership over, or the other one has another process
        self.rounds.liveness.note_end(ended.uuid, self.world.now())
        concerned = [each for each in self.replicas.values() if _is_concerned(each, ended.uuid)]
        few = len(concerned) <= AT_ONCE_MAX
        for number, replica in enumerate(concerned, 1):
            first = successor(replica.core.configuration, replica.tablet, ended.uuid) == self.identity.uuid
            wait_s = 0.0 if first else self.world.random.uniform(*SECOND) * self.options.leader_heartbeat_s
            if replica.state == RUNNING and (first or few or replica.leads):
                self.world.faults.reached("tablet.peer_ended")
                self.rounds.step(replica, replica.core.note_end, self.world.now(), ended.uuid, wait_s)
            if number % AT_ONCE_MAX == 0:
                await self.world.clock.sleep(0)
                if self.identity.others.known(ended.uuid).start != ended.start:
                    break
        return m.Empty()

    def _absent(self, tablet: str, request: Request) -> tuple[Tombstone, Request] | str:
        """The tombstone that answers instead of a running replica, or the reason why nothing does."""
        tombstone = self.lifecycle.tombstones.get(tablet)
        if tombstone is not None:
            return tombstone, request
        if tablet in self.lifecycle.unloaded:
            return NOT_RUNNING
        if self.lifecycle.state_of(tablet) == m.DOES_NOT_EXIST:
            return TABLET_NOT_FOUND
        broken = self.lifecycle.broken.get(tablet)
        return VOTES_FORGOTTEN if broken is not None and broken.forgetful else REPLICA_FAILED

    async def _outcome(
        self, outcome: tuple[Replica, Pending | Answer] | tuple[Tombstone, Request] | str
    ) -> tuple[Answer | None, str | None]:
        """The answer, or the reason why there is none."""
        if isinstance(outcome, str):
            return None, outcome
        if isinstance(outcome[0], Tombstone):
            tombstone, request = outcome
            answer = await tombstone.receive(self.world.now(), request, self.consensus)
            return answer, None if answer else tombstone.refusal(self.world.now())
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
        # Check again after the waits: a newer term makes the answer a refusal.
        return replica.core.answer(outcome) if isinstance(outcome, Pending) else outcome


def _brings_entries(replica: Replica, request: Request) -> bool:
    offer = replica.core.offered(request)
    return offer is not None and bool(offer.entries)


def _is_concerned(replica: Replica, uuid: str) -> bool:
    """Whether an awake replica here follows a leader on this server, or leads a member there."""
    core = replica.core
    return core.stance is AWAKE and uuid in (core.leader, *core.progress)
