"""The masters' journal: `ebla up` makes it exactly once, and never takes another journal for it.

Its id is saved (placement/state.py) before any node gets it, so the next `up` completes a journal
that a crash left half-made. Once a journal was made, or used, it is not made again: a node that
returns empty has forgotten its promises. Then the other nodes continue without that node, and `up`
warns; if a majority is empty or foreign, `up` refuses.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from ebla.actors import deadlines
from ebla.actors.journal.options import JournalOptions
from ebla.actors.messages import Empty, MasterStatus
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.ray_world import RayNetwork
from ebla.actors.world import World
from ebla.placement.journal.format import ASK_S, asked, made, verify
from ebla.storage.environment import Disk
from ebla.storage.errors import EblaError

T = TypeVar("T")

POLL_S = 0.05
INACTIVE = "no master is active yet; `ebla check` says why"


def make(namespace: str, journal: JournalOptions) -> str:
    """Make the journal if needed, and return its id. Durable on every node when it returns."""
    return _operate(namespace, lambda world: made(world, journal))


def nodes_of(namespace: str, journal: JournalOptions) -> tuple[str, ...]:
    """The journal's nodes as its first node knows them: more than `journal` names if it has grown."""
    first = journal.nodes[0]
    state = _operate(namespace, lambda world: asked(world, journal))[first]
    if isinstance(state, EblaError):
        raise state
    return state.nodes


def look(namespace: str, journal: JournalOptions, masters: Sequence[str], wait_s: float) -> list[str]:
    """The warnings of `verify` about the present states of the nodes, and INACTIVE if no
    master is active, or becomes active during the wait."""

    async def work(world: World) -> list[str]:
        warnings = verify(journal, await asked(world, journal))
        until = world.clock.monotonic() + wait_s
        while masters and not await _is_one_active(world, masters):
            if world.clock.monotonic() >= until:
                return [*warnings, INACTIVE]
            await world.clock.sleep(POLL_S)
        return warnings

    return _operate(namespace, work)


async def _is_one_active(world: World, masters: Sequence[str]) -> bool:
    async def one(master: str) -> bool:
        try:
            status = await world.network.call(master, "status", Empty(), MasterStatus, ASK_S)
        except EblaError:
            return False
        return status.role == "active"

    return any(await asyncio.gather(*map(one, masters)))


def _operate(namespace: str, work: Callable[[World], Coroutine[Any, Any, T]]) -> T:
    """Run `work` in a world without a disk: it only calls other roles."""

    async def body() -> T:
        failed: list[BaseException] = []
        tasks = Tasks(lambda name, error: failed.append(error))
        world = World(
            address="operator",
            clock=MachineClock(),
            network=RayNetwork(namespace),
            disk=cast(Disk, None),
            random=random.Random(os.urandom(32)),
            spawn=tasks.spawn,
            fail=failed.append,
        )
        try:
            return await work(world)
        finally:
            tasks.cancel()

    return deadlines.run(body())
