"""Raft's own promises: one vote a term, also across crashes, tombstones and copies; a vote is durable before it leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.stream.invariants import Oracle

if TYPE_CHECKING:
    from tests.raft.group import Group
    from tests.raft.node import Node


class RaftOracle(Oracle):
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
