"""A tombstone: a replica that was deleted, or is still being copied. It has no rows and no log, but
it remembers and votes.

    memory      term, vote and the position of its last entry are kept for ever: a server that forgot them
                could help to elect a leader that lacks entries which the server acknowledged
    votes       as a replica whose log ends at that position; durable before the answer leaves. A tombstone
                that does not know where its log ended does not vote
    silence     it takes no entries. Its refusals make the leader copy the tablet here, if this server is a
                member, and elsewhere if the copy stalls

Source: seed 000 (DELETED, COPYING); Kudu's tombstoned voting (kudu.md A8).
"""

from __future__ import annotations

import asyncio

from ebla.actors.messages import COPYING, DELETED, ReplicaReport
from ebla.actors.messages.protocols import Answer, HardState, Request
from ebla.actors.replication.configuration import Configuration
from ebla.actors.replication.health import COPY_STALLED, TABLET_COPYING, TABLET_DELETED
from ebla.actors.tablet.engine.core import Voter
from ebla.actors.tablet.engine.records import ConsensusState, Superblock
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.world import Faults
from ebla.storage.directories.records import RecordStore
from ebla.storage.errors import DiskFull

# The phases of a tombstone, from the moment in which its replica stops.
STOPPED = "stopped"  # it votes as a tombstone; its superblock is not on disk yet
MARKED = "marked"  # its superblock is on disk; the data of its replica is not set aside or removed yet
SET_ASIDE = "set aside"  # nothing is left to do
RECEIVING = "receiving"  # a copy of the tablet to this server is under way
UNDOING = "undoing"  # the copy failed, and its data is being removed
ENDED = "ended"  # it is a replica again, or deleted for good

TRANSITIONS = {
    STOPPED: (MARKED, SET_ASIDE, ENDED),  # SET_ASIDE at once if there was no replica before
    MARKED: (SET_ASIDE, ENDED),
    SET_ASIDE: (RECEIVING, ENDED),
    RECEIVING: (UNDOING, ENDED),
    UNDOING: (SET_ASIDE, MARKED),  # MARKED if the removal failed: it is tried again
    ENDED: (),
}


class Tombstone:
    """A deleted or copying replica. `phase`: see TRANSITIONS. `stalls_at`: the time from which its
    copy counts as stalled, without progress until then. `trouble`: why the last try to set its data
    aside failed. `needs`: until the superblock is on disk, the first entry of the shared log that a
    start would need. `former`: the replica whose files are still open; `former_ran`: whether it was
    running. `turn`: held while a vote is saved, and while the tombstone becomes a replica."""

    leads = False
    size_bytes = 0

    def __init__(
        self, superblock: Superblock, configuration: Configuration, voter: Voter, faults: Faults
    ) -> None:
        self.superblock = superblock
        self.configuration = configuration
        self.voter = voter
        self.faults = faults
        self.phase = STOPPED
        self.stalls_at = float("inf")
        self.error: str | None = None
        self.trouble = ""
        self.needs: int | None = None
        self.former: Replica | None = None
        self.former_ran = False
        self.turn = asyncio.Lock()

    @property
    def tablet(self) -> str:
        return self.superblock.tablet

    @property
    def state(self) -> str:
        return self.superblock.state

    def move(self, phase: str) -> None:
        allowed = TRANSITIONS[self.phase]
        assert phase in allowed, ("a tombstone goes through its phases", self.tablet, self.phase, phase)
        self.phase = phase

    @property
    def durable(self) -> bool:
        """Whether its superblock is on disk."""
        return self.phase != STOPPED

    @property
    def finished(self) -> bool:
        """Whether all data of the former replica is set aside."""
        return self.phase not in (STOPPED, MARKED)

    @property
    def ended(self) -> bool:
        return self.phase == ENDED

    def refusal(self, now: float) -> str:
        assert self.state in (COPYING, DELETED), ("a tombstone is deleted or being copied", self.state)
        if self.state == DELETED:
            return TABLET_DELETED
        return COPY_STALLED if now > self.stalls_at else TABLET_COPYING

    async def receive(
        self, now: float, request: Request, consensus: RecordStore[ConsensusState]
    ) -> Answer | None:
        """Answer a request when term and vote are durable. Returns None, at once, if only a replica
        could answer: heartbeats of other tablets are in the same envelope."""
        if not self.voter.asks_vote(request):
            self.voter.receive(now, request)
            return None
        async with self.turn:
            if self.ended:
                return None
            answer = self.voter.receive(now, request)
            try:
                await self.save(consensus)
            except DiskFull:
                return None  # a repeated request is answered when there is space
            return None if self.ended else answer

    async def save(self, consensus: RecordStore[ConsensusState]) -> None:
        """Make term and vote durable. The caller holds the turn."""
        assert self.turn.locked(), ("votes are saved one at a time", self.tablet)
        state = self.voter.unsaved
        if state is not None:
            await self.faults.here("tablet.tombstone_vote.before_commit")
            await consensus.save(self.tablet, ConsensusState(state, self.configuration))
            await self.faults.here("tablet.tombstone_vote.after_commit")
            self.voter.saved(state)

    def superseded(self, forced_epoch: int) -> None:
        """Note that a configuration was forced without this server: help no side that does not know of it."""
        self.voter.forced_epoch = max(self.voter.forced_epoch, forced_epoch)

    @property
    def hard_state(self) -> HardState:
        return self.voter.hard_state

    # -- views

    def facts(self) -> tuple[object, ...]:
        return (self.state, self.configuration.index, self.error)

    def report(self) -> ReplicaReport:
        return ReplicaReport(
            tablet=self.tablet,
            state=self.state,
            view=self.voter.view(),
            configuration=self.configuration,
            error=self.error,
        )
