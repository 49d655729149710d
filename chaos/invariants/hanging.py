"""A hanging data disk blocks the replicas on it, and no others.

If some of a server's data disks hang and its others are neither slow nor full, then the rows of replicas on the others exceed
the limit for flushes for UNFLUSHED_S_MAX at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ebla.actors.tablet.engine.replica import RUNNING
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.simulation.medium import COMMIT_S
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.tablets.tablet_store import path_of

UNFLUSHED_S_MAX = 2.0


@dataclass
class Unflushed:
    """Since when the limit is exceeded, by incarnation."""

    since: dict[str, float] = field(default_factory=dict)


def others_are_flushed(cluster: SimulatedCluster, servers: Iterable[TabletServer], memory: Unflushed) -> None:
    before, memory.since = memory.since, {}
    now = cluster.loop.time()
    for server in servers:
        address, start = server.world.address, server.instance.start
        state = cluster.state(address)
        if not state.hung or state.full or state.commit_s != COMMIT_S or cluster.paused(address):
            continue
        held = sum(
            replica.store.memory_bytes
            for replica in server.replicas.values()
            if replica.state == RUNNING and path_of(replica.tablet) not in state.hung
        )
        if held > server.options.memtable_bytes:
            since = memory.since[start] = before.get(start, now)
            assert now - since <= UNFLUSHED_S_MAX, (
                f"{address} has kept {held} bytes of rows unflushed for {now - since:g} s, while other disks hang: {list(state.hung)}"
            )
