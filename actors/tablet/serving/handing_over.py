"""Leaderships are handed over: one of them, as an operator or the master asks, or all that a server has when it stops.

All of a server begin side by side, `AT_ONCE_MAX` at a time: what their cores say to one peer travels in one envelope, and the
peer makes their votes durable in one commit. So a server with many tablets stops within its time, and each tablet is without a
leader only for an election, whatever the number of the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ebla.actors import errors
from ebla.actors.tablet.engine.core import LEADER
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.world import World

AT_ONCE_MAX = 64  # elections that one peer carries out in some tenths of a second
ALL_S_MAX = 15.0  # half of the time that a role has for its goodbye; what is left is elected as after a crash


async def hand_over(
    world: World, rounds: Rounds, replica: Replica, successor: str | None, timeout_s: float, look_s: float
) -> None:
    """Until another leader is known or the time is up. Raises InvalidArgument."""
    deadline = world.clock.monotonic() + timeout_s
    if not _begin(world, rounds, replica, successor):
        return
    while replica.state == RUNNING and world.clock.monotonic() < deadline:
        if replica.core.role != LEADER and replica.core.leader is not None:
            return
        await world.clock.sleep(look_s)


async def hand_over_all(world: World, rounds: Rounds, replicas: Iterable[Replica], look_s: float) -> None:
    """One try for each that leads. Until other leaders are known, or the tries are over, or the time is up."""
    deadline = world.clock.monotonic() + ALL_S_MAX
    left = deque(replicas)
    under_way: list[Replica] = []
    while (left or under_way) and world.clock.monotonic() < deadline:
        while left and len(under_way) < AT_ONCE_MAX:
            replica = left.popleft()
            if replica.leads and _begin(world, rounds, replica, None):
                under_way.append(replica)
        if under_way:
            await world.clock.sleep(look_s)
        under_way = [replica for replica in under_way if _is_under_way(replica)]


def _begin(world: World, rounds: Rounds, replica: Replica, successor: str | None) -> bool:
    """False if there is nobody to hand over to."""
    try:
        rounds.step(replica, replica.core.step_down, world.clock.monotonic(), successor)
    except errors.Unavailable:
        return False
    return True


def _is_under_way(replica: Replica) -> bool:
    if replica.leads:
        return replica.core.handing_over
    return replica.state == RUNNING and replica.core.leader is None
