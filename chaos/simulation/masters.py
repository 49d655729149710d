"""A deployment's single master in simulation, with the only node of its journal in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import GroupOptions, MasterOptions
from ebla.actors.world import World
from ebla.chaos.simulation.world import SimulatedCluster

JOURNAL = JournalId("catalog", "simulated")
POLL_S = 0.01


def alone(address: str, master: MasterOptions, segment_txns: int = 100_000, **more: Any) -> GroupOptions:
    """The options of a single master."""
    journal = JournalOptions(journal=JOURNAL, nodes=(address,), segment_txns=segment_txns)
    return GroupOptions(masters=(address,), journal=journal, master=master, **more)


def maker_of(options: GroupOptions) -> Callable[[World], Master]:
    return lambda world: Master(world, options)


async def start_alone(
    cluster: SimulatedCluster, options: GroupOptions, make: Callable[[World], Master] | None = None
) -> Master:
    """For the first time: the journal is formatted, as `ebla up` does. Returns when the master serves."""
    (address,) = options.masters
    master = await cluster.start(address, make or maker_of(options))
    assert isinstance(master, Master)
    await format_journal(cluster.client_world("operator"), options.journal)
    while master.active_term is None or not master.active_term.serves():
        await asyncio.sleep(POLL_S)
    return master
