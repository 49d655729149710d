"""A Raft group in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ebla.actors.messages.protocols import Answer, Request
from ebla.actors.messages.raft import HardState
from ebla.actors.replication.configuration import NON_VOTER, Configuration, Peer
from ebla.actors.replication.health import TABLET_DELETED
from ebla.actors.tablet.raft.events import RaftLimits
from tests.raft.node import Node
from tests.stream import group
from tests.stream.invariants import Oracle
from tests.stream.node import Call


def configuration(
    voters: str, others: str = "", *, prevoters: str = "", index: int = -1, unsafe: int = 0
) -> Configuration:
    """Voters, non-voters and pre-voters by their one-letter names."""
    peers = [Peer(name, f"host-{name}") for name in voters]
    peers += [Peer(name, f"host-{name}", NON_VOTER) for name in others]
    peers += [Peer(name, f"host-{name}", NON_VOTER, promote=True) for name in prevoters]
    return Configuration(tuple(peers), index, unsafe)


class RaftOracle(Oracle):
    """Raft's own promises: one vote a term, also across crashes, tombstones and copies; a vote is durable before it leaves."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.votes: dict[tuple[str, int], str] = {}

    def voted(self, node: Node, term: int, candidate: str) -> None:
        first = self.votes.setdefault((node.name, term), candidate)
        assert first == candidate, f"{node.name} voted for {first} and {candidate} in term {term}"
        state = node.disk.hard_state
        assert (state.term, state.vote) == (term, candidate) or state.term > term, (
            f"{node.name}'s vote for {candidate} in {term} leaves before it is durable: {state}"
        )


class Group(group.Group[Node]):
    oracle: RaftOracle

    def __init__(
        self,
        initial: Configuration,
        *,
        spares: str = "",
        seed: int = 0,
        limits: RaftLimits | None = None,
    ) -> None:
        # Quiescent groups rely on messages between servers, which are not here.
        self.limits = replace(limits or RaftLimits(), quiesce_after_s=math.inf)
        self.tombstone_votes = 0
        super().__init__(initial, spares=spares, seed=seed)

    def prepare(self) -> None:
        self.oracle = RaftOracle(self)

    def make_node(self, name: str, initial: Configuration) -> Node:
        return Node(self, name, initial)

    def arrive(
        self, call: Call, node: Node, source: str, request: Request, respond: Callable[[Answer], None]
    ) -> None:
        if node.tombstone is None:
            super().arrive(call, node, source, request, respond)
        elif not node.receive_as_tombstone(request, respond):
            for delay in self.network.delays(node.name, source):
                self.after(delay, "network", lambda: call.finish(None, True, TABLET_DELETED))

    def campaign(self, name: str) -> None:
        """Let the node's election timeout end now."""
        node = self.nodes[name]
        core = node.running()
        core.timer.deadline = node.clock()
        core.tick(node.clock())
        node.absorb()

    def copy(self, source: Node, target: Node) -> None:
        """Copy a tablet in one step: the source's durable log replaces the target's, and term and vote are merged.
        A log that ends before the target's log did is refused: the target has acknowledged more."""
        if target.core is not None:
            target.delete()
        target.crash()
        core, disk = source.running(), target.disk
        ends = source.disk.entries[-1] if source.disk.entries else None
        assert disk.tombstone is not None
        if ends is None or (ends.term, ends.index) < disk.tombstone[::-1]:
            target.start()
            return
        disk.entries, disk.tombstone = list(source.disk.entries), None
        disk.dropped = core.log.dropped_index
        if source.disk.hard_state.term > disk.hard_state.term:
            disk.hard_state = HardState(source.disk.hard_state.term)
        target.start(commit_index=disk.dropped)
