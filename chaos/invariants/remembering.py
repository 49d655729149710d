"""What a server must go on knowing of a tablet, whatever becomes of its replica: deleted, copied, failed, restarted.

now     nothing is damaged on a disk that was not
since   the term on its disk never falls, and a vote in a term is never changed
        what its log surely ended with is never behind it again: a copy brings at least that, a tombstone votes by it

Kept until the replica is deleted for good, and by the uuid of the server: a directory that was replaced is another's, and an old
copy of one is nobody's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ebla.actors.tablet.engine.replica import FAILED, Replica
from ebla.actors.tablet.server import TabletServer
from ebla.storage.errors import StorageError
from ebla.storage.logs.entries import Position

Key = tuple[str, str]  # uuid, tablet
Newness = tuple[int, int]  # term, index of the last entry


@dataclass
class Remembered:
    hard_states: dict[Key, tuple[int, str | None]] = field(default_factory=dict)
    newest: dict[Key, Newness] = field(default_factory=dict)

    def look_at_stones(self, server: TabletServer, damaged: Callable[[], bool]) -> None:
        """At all that it has, and for failed replicas; `damaged`: its disk was. Raises AssertionError, as the others do."""
        self._forget_what_was_removed(server)
        for tablet, held in server.lifecycle.all().items():
            self._forget_what_is_damaged(server, tablet)
            if held.state == FAILED and not damaged():
                raise AssertionError(
                    f"{server.world.address} has a damaged replica of {tablet}: {held.error}"
                )
        for tablet, tombstone in server.lifecycle.tombstones.items():
            who = f"the tombstone of {tablet} on {server.world.address}"
            self.votes(server, tablet, who)
            if tombstone.superblock.last is not None and not tombstone.ended:
                self._require(server, tablet, tombstone.superblock.last, who)

    def _forget_what_was_removed(self, server: TabletServer) -> None:
        """Of a dropped table: who still has a replica may copy it back to a server that has forgotten it."""
        for known in (self.hard_states, self.newest):
            for uuid, tablet in [key for key in known if key[0] == server.instance.uuid]:
                if server.lifecycle.was_removed(tablet):
                    del known[uuid, tablet]

    def _forget_what_is_damaged(self, server: TabletServer, tablet: str) -> None:
        """It comes back as one that has forgotten, once it counts for nothing any more."""
        broken = server.lifecycle.broken.get(tablet)
        if broken is not None and broken.forgetful:
            self.hard_states.pop((server.instance.uuid, tablet), None)

    def look_at(self, server: TabletServer, replica: Replica, who: str) -> None:
        last = replica.log.last
        self._require(server, replica.tablet, last, who)
        if replica.core.durable_index == last.index:
            self.newest[server.instance.uuid, replica.tablet] = newness(last)

    def votes(self, server: TabletServer, tablet: str, who: str) -> None:
        try:
            state = server.consensus.get(tablet)
        except StorageError:
            return  # damaged, or the disk is gone: nothing is served from it
        if state is None:
            assert (server.instance.uuid, tablet) not in self.hard_states, f"{who} has forgotten its votes"
            return
        key, (now, vote) = (server.instance.uuid, tablet), (state.record.term, state.record.vote)
        term, voted = self.hard_states.get(key, (0, None))
        assert now >= term, f"{who}: the term on disk fell from {term} to {now}"
        if now == term and voted is not None:
            assert vote == voted, f"{who}: the vote in term {term} was {voted} and is {vote}"
        self.hard_states[key] = now, vote

    def _require(self, server: TabletServer, tablet: str, last: Position, who: str) -> None:
        before = self.newest.get((server.instance.uuid, tablet), (0, 0))
        assert newness(last) >= before, (
            f"{who} ends at entry {last.index} of term {last.term}, after {before[1]} of {before[0]}"
        )


def newness(position: Position) -> Newness:
    return position.term, position.index
