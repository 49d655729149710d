"""One running replica, and the state that its invariants read."""

from __future__ import annotations

from operator import attrgetter

from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.server import RECORDS, TabletServer
from ebla.chaos.simulation.disk import MemoryDisk

Facts = tuple[object, ...]
Groups = dict[str, list["Seen"]]


class Seen:
    """One running replica and its server."""

    __slots__ = ("disk", "facts", "key", "path", "record_changed", "replica", "server", "tablet")

    def __init__(self, server: TabletServer, replica: Replica) -> None:
        disk = server.world.disk
        assert isinstance(disk, MemoryDisk)
        self.disk = disk
        self.path = server.consensus.environment.path
        self.server = server
        self.replica = replica
        self.tablet = replica.tablet
        self.key = replica.tablet.encode()
        self.facts: Facts = ()  # its state at the last check
        self.record_changed = True  # whether its record on disk changed since then

    @property
    def uuid(self) -> str:
        return self.server.instance.uuid

    def __str__(self) -> str:
        return f"{self.server.world.address}'s replica of {self.tablet}"


_OF_REPLICA = attrgetter(
    "core.role",
    "core.hard_state",
    "core.commit_index",
    "core.durable_index",
    "core.log.last_index",
    "log.dropped",
    "log.private_last",
    "store.flushed",
    "store.applied",
)


def facts_of(seen: Seen) -> Facts:
    """The state that the invariants of one replica read. The last slot represents the whole log before it: another entry
    there gives another slot. The record is read from the medium, whether or not the disk still answers."""
    server, slots = seen.server, seen.replica.log.slots
    return (
        _OF_REPLICA(seen.replica),
        len(slots),
        slots[-1] if slots else None,
        server.shared.first_seq,
        seen.disk.state.environments[seen.path][RECORDS].get(seen.key),
    )


def by_side(group: list[Seen]) -> Groups:
    """Group by forced epoch: replicas that were given up serve until they learn it, and differ from the others."""
    found: Groups = {}
    for seen in group:
        found.setdefault(str(seen.replica.core.committed_configuration.unsafe), []).append(seen)
    return found
