"""What a server must go on knowing of a tablet, whatever becomes of its replica: deleted, copied, failed, restarted.

since   the term on its disk never falls, and a vote in a term is never changed
        what its log surely ended with is never behind it again: a copy brings at least that, a tombstone votes by it

Kept by the uuid of the server: a directory that was replaced is another's, and an old copy of one is nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebla.actors.tablet.replica import RUNNING, ConsensusState
from ebla.actors.tablet.server import TabletServer
from ebla.storage.entries import Position
from ebla.storage.errors import StorageError

Key = tuple[str, str]  # uuid, tablet
Newness = tuple[int, int]  # term, index of the last entry


@dataclass
class Remembered:
    hard_states: dict[Key, tuple[int, str | None]] = field(default_factory=dict)
    newest: dict[Key, Newness] = field(default_factory=dict)

    def look(self, server: TabletServer) -> None:
        """At everything that it holds. Raises AssertionError."""
        for tablet, stone in server.lifecycle.stones.items():
            who = f"the tombstone of {tablet} on {server.world.address}"
            self.votes(server, tablet, who)
            if stone.superblock.last is not None and not stone.ended:
                self._require(server, tablet, stone.superblock.last, who)
        for tablet, replica in server.replicas.items():
            if replica.state == RUNNING:
                last = replica.log.last
                self._require(server, tablet, last, f"the replica of {tablet} on {server.world.address}")
                if replica.core.durable_index == last.index:
                    self.newest[server.instance.uuid, tablet] = newness(last)

    def votes(self, server: TabletServer, tablet: str, who: str) -> None:
        state = self._on_disk(server, tablet)
        if state is None:
            return
        key, (now, vote) = (server.instance.uuid, tablet), (state.hard_state.term, state.hard_state.vote)
        term, voted = self.hard_states.get(key, (0, None))
        assert now >= term, f"{who}: the term on disk fell from {term} to {now}"
        if now == term and voted is not None:
            assert vote == voted, f"{who}: the vote in term {term} was {voted} and is {vote}"
        self.hard_states[key] = now, vote

    def _on_disk(self, server: TabletServer, tablet: str) -> ConsensusState | None:
        try:
            return server.consensus.get(tablet)
        except StorageError:
            return None  # damaged, or the disk is gone: nothing is served from it

    def _require(self, server: TabletServer, tablet: str, last: Position, who: str) -> None:
        before = self.newest.get((server.instance.uuid, tablet), (0, 0))
        assert newness(last) >= before, (
            f"{who} ends at entry {last.index} of term {last.term}, after {before[1]} of {before[0]}"
        )


def newness(position: Position) -> Newness:
    return position.term, position.index
