"""Hands leaderships over: one, for an operator or the master, or all of a server that stops.

All leaderships of a server are handed over concurrently, `AT_ONCE_MAX` at a time: the messages to one peer travel in one
envelope, and the peer makes its votes durable in one commit. So a server with many tablets stops in time, and each tablet
is without a leader only for one election.

A server that stops takes no leadership over: it refuses the request of its peer, which then waits no
longer for a successor. So a deployment that stops as a whole does not wait for leaders that no tablet
can get any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ebla.actors import errors
from ebla.actors.messages import StepDownRequest
from ebla.actors.tablet.engine.core import CANDIDATE, LEADER
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.engine.rounds import Rounds
from ebla.actors.world import STOP_S, World

AT_ONCE_MAX = 64  # elections that one peer carries out in some tenths of a second
ALL_S_MAX = STOP_S / 2  # the rest is for flushes; the other tablets elect leaders as after a crash


async def hand_over(
    world: World, rounds: Rounds, replica: Replica, request: StepDownRequest, poll_s: float
) -> None:
    """Hand over and wait until another leader is known, or the time is up. Raises InvalidArgument."""
    deadline = world.now() + request.timeout_s
    if not _begin(world, rounds, replica, request.successor):
        return
    while replica.state == RUNNING and world.now() < deadline:
        if replica.core.role != LEADER and replica.core.leader is not None:
            return
        await world.clock.sleep(poll_s)


async def hand_over_all(
    world: World,
    rounds: Rounds,
    replicas: Iterable[Replica],
    poll_s: float,
    master_answers: Callable[[], bool],
) -> None:
    """Try once for each replica that leads, or is elected meanwhile. Wait until other leaders are known, the tries have failed,
    the elections of this server's candidates are decided, or the time is up. A try has failed when the successor does not catch
    up, or cannot be asked, or no leader is known after an election timeout, or, if a master must appoint it, no master answers."""
    deadline = world.now() + ALL_S_MAX
    untried = list(replicas)
    under_way: list[Replica] = []
    while world.now() < deadline:
        leading = [replica for replica in untried if replica.leads][: AT_ONCE_MAX - len(under_way)]
        untried = [replica for replica in untried if replica not in leading]
        under_way += [replica for replica in leading if _begin(world, rounds, replica, None)]
        if not under_way and not any(replica.leads or _is_candidate(replica) for replica in untried):
            return
        await world.clock.sleep(poll_s)
        under_way = [replica for replica in under_way if _is_under_way(replica, master_answers)]


def _begin(world: World, rounds: Rounds, replica: Replica, successor: str | None) -> bool:
    """Begin to hand over. Return False if there is no successor."""
    try:
        rounds.step(replica, replica.core.step_down, world.now(), successor)
    except errors.Unavailable:
        return False
    return True


def _is_under_way(replica: Replica, master_answers: Callable[[], bool]) -> bool:
    core = replica.core
    if replica.state != RUNNING:
        return False
    return core.handing_over or (core.awaits_successor and (core.asked is None or master_answers()))


def _is_candidate(replica: Replica) -> bool:
    """Whether a majority may elect this replica. Not so before it has won a pre-vote."""
    return replica.state == RUNNING and replica.core.role == CANDIDATE
