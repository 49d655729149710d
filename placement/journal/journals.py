"""The masters' journal as `ebla up` finds it: made exactly once, and never taken for another.

Its id is remembered before any node is told (placement/state.py), so whatever a crash leaves half-made is made to the
end by the next `up`. Once it was made, or used, it is not made again: a node that comes back empty has forgotten what it
promised. Then the others go on without it, and `up` says so; where a majority is empty or foreign, it refuses.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from ebla.actors.journal.options import JournalOptions
from ebla.actors.messages import Empty, MasterStatus
from ebla.actors.ray_shell import Tasks
from ebla.actors.ray_world import RayClock, RayNetwork
from ebla.actors.world import World
from ebla.placement.journal.format import ASK_S, asked, made, verify
from ebla.storage.environment import Disk
from ebla.storage.errors import EblaError

T = TypeVar("T")

POLL_S = 0.05


def make(namespace: str, journal: JournalOptions) -> str:
    """Durable on every node when it returns; the journal's id."""
    return _operate(namespace, lambda world: made(world, journal))


def look(namespace: str, journal: JournalOptions, masters: Sequence[str], wait_s: float) -> list[str]:
    """As `verify`, of what the nodes say now; and whether one of the masters is active, or becomes so while it waits."""

    async def work(world: World) -> list[str]:
        warnings = verify(journal, await asked(world, journal))
        until = world.clock.monotonic() + wait_s
        while masters and not await _is_one_active(world, masters):
            if world.clock.monotonic() >= until:
                return [*warnings, "no master is active yet; `ebla check` tells why"]
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
    """In a world without a disk: it only asks others."""

    async def body() -> T:
        failed: list[BaseException] = []
        tasks = Tasks(lambda name, error: failed.append(error))
        world = World(
            address="operator",
            clock=RayClock(),
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

    return asyncio.run(body())
