"""A server with a Raft replica: its core, or the tombstone of a deleted replica."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from ebla.actors.messages.protocols import Answer, Request
from ebla.actors.messages.raft import HardState, VoteReply, VoteRequest
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import Send
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.tombstone import TombstoneVoter
from ebla.storage.logs.entries import Entry
from tests.stream import node

if TYPE_CHECKING:
    from tests.raft.group import Group


class Low(Random):
    """The group's random numbers, except for the first term of a forced leadership: that is the lowest, to be readable."""

    def __init__(self, shared: Random) -> None:
        super().__init__(0)
        self._shared = shared

    def uniform(self, a: float, b: float) -> float:
        return self._shared.uniform(a, b)

    def getrandbits(self, bits: int) -> int:
        return 0


class Node(node.Node[RaftCore]):
    group: Group

    def __init__(self, group: Group, name: str, initial: Configuration) -> None:
        super().__init__(group, name, initial, HardState())
        self.tombstone: TombstoneVoter | None = None

    def make_core(self, log: LogIndex, configuration: Configuration, commit_index: int) -> RaftCore:
        return RaftCore(
            "t1",
            self.name,
            self.hard_state,
            configuration,
            log,
            self.group.limits,
            Low(self.group.random),
            self.clock(),
            commit_index=commit_index,
        )

    @property
    def hard_state(self) -> HardState:
        assert isinstance(self.disk.hard_state, HardState)
        return self.disk.hard_state

    def start(self, *, commit_index: int = 0) -> None:
        assert self.tombstone is None
        if not self.disk.tombstone:
            super().start(commit_index=commit_index)
            return
        limit, state = self.group.limits.election_s_min, self.hard_state
        self.tombstone = TombstoneVoter(state, self.disk.tombstone, limit, self.clock(), durable=state)
        self.entries = []

    def crash(self, *, commits_kept: int = 0) -> None:
        super().crash(commits_kept=commits_kept)
        self.tombstone = None

    def delete(self) -> None:
        """Delete the replica: from now on its tombstone votes."""
        entries = self.entries
        last = (entries[-1].index, entries[-1].term) if entries else (0, 0)
        hard_state = self.running().hard_state
        self.crash(commits_kept=99)
        self.disk.hard_state, self.disk.entries, self.disk.dropped, self.disk.tombstone = (
            hard_state,
            [],
            0,
            last,
        )
        self.start()

    @property
    def alive(self) -> bool:
        return self.core is not None or self.tombstone is not None

    def configure(self, wanted: Configuration) -> Entry:
        index, _ = self.running().propose_configuration(self.clock(), wanted)
        self.absorb()
        return self.entries[index - 1]

    def receive_as_tombstone(self, request: Request, respond: Callable[[Answer], None]) -> bool:
        """Answer as a tombstone's server does; return False if it refuses."""
        tombstone = self.tombstone
        assert tombstone is not None
        answer = tombstone.receive(self.clock(), request)
        if answer is None:
            return False
        save = None if tombstone.unsaved is None else tombstone.hard_state
        incarnation = self.incarnation
        if save is not None:
            self._disk_free_at = max(self.group.now, self._disk_free_at) + self.disk_s

        def saved() -> None:
            if incarnation != self.incarnation:
                return
            if save is not None:
                self.disk.hard_state = save
                tombstone.saved(save)
            self.group.tombstone_votes += isinstance(answer, VoteReply) and answer.granted
            self._respond(request, answer, respond)

        wait = max(0.0, self._disk_free_at - self.group.now) if save is not None else 0.0
        self.group.after(wait, "disk", saved)
        return True

    def answering(self, request: Request | None, answer: Answer) -> None:
        if isinstance(answer, VoteReply) and isinstance(request, VoteRequest):
            kind = "pre-vote" if request.pre_vote else "vote"
            outcome = "granted" if answer.granted else answer.reason
            self.group.record(f"{self.name} to {request.candidate}: {kind} for term {request.term} {outcome}")
            if answer.granted and not request.pre_vote:
                self.group.oracle.voted(self, request.term, request.candidate)

    def sending(self, send: Send) -> None:
        if isinstance(send.request, VoteRequest) and not send.request.pre_vote:
            self.group.oracle.voted(self, send.request.term, self.name)
