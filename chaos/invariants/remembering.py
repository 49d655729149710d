"""The facts that a server must never forget about a tablet, also when its replica is deleted, copied, failed or restarted.

now     a replica is damaged only if a fault damaged its disk
since   the term on disk never falls, and a vote in a term is never changed
        the log never ends before its known durable end: a copy brings at least that, a tombstone votes by it

The memory lasts until the replica is deleted for good. It is kept by the uuid of the server: a replaced directory has another
uuid, and old copies are not checked.
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

    def check_tombstones(self, server: TabletServer, damaged: Callable[[], bool]) -> None:
        """Check a server's tombstones, and its failed replicas; `damaged`: whether a fault damaged its disk."""
        self._forget_removed(server)
        for tablet, held in server.lifecycle.all().items():
            self._forget_damaged(server, tablet)
            if held.state == FAILED and not damaged():
                raise AssertionError(
                    f"{server.world.address} has a damaged replica of {tablet}: {held.error}"
                )
        for tablet, tombstone in server.lifecycle.tombstones.items():
            who = f"the tombstone of {tablet} on {server.world.address}"
            self.votes(server, tablet, who)
            if tombstone.superblock.last is not None and not tombstone.ended:
                self._require(server, tablet, tombstone.superblock.last, who)

    def _forget_removed(self, server: TabletServer) -> None:
        """A server that still has a replica of a dropped table may copy it to a server that has forgotten it."""
        for known in (self.hard_states, self.newest):
            for uuid, tablet in [key for key in known if key[0] == server.instance.uuid]:
                if server.lifecycle.was_removed(tablet):
                    del known[uuid, tablet]

    def _forget_damaged(self, server: TabletServer, tablet: str) -> None:
        """A damaged replica returns without its votes, after it has left the configuration."""
        broken = server.lifecycle.broken.get(tablet)
        if broken is not None and broken.forgetful:
            self.hard_states.pop((server.instance.uuid, tablet), None)

    def check(self, server: TabletServer, replica: Replica, who: str) -> None:
        last = replica.log.last
        self._require(server, replica.tablet, last, who)
        if replica.core.durable_index == last.index:
            self.newest[server.instance.uuid, replica.tablet] = newness(last)

    def votes(self, server: TabletServer, tablet: str, who: str) -> None:
        try:
            state = server.consensus.get(tablet)
        except StorageError:
            return  # damaged, or the disk is lost: the server uses nothing of it
        if state is None:
            assert (server.instance.uuid, tablet) not in self.hard_states, f"{who} has forgotten its votes"
            return
        key, (now, vote) = (server.instance.uuid, tablet), (state.hard_state.term, state.hard_state.vote)
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
