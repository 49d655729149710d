"""Emptying a host: all replicas move to other servers, and the host gets no new ones."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ebla.actors.master.messages import DrainReply, DrainRequest
from ebla.actors.messages import Empty, ServerState
from ebla.errors import Unavailable
from ebla.health.verdicts import Unanswered
from ebla.operate.cluster import Cluster
from ebla.operate.waiting import Deadline, Progress, until
from ebla.wording import count, host_of

ASK_S = 15.0
BLOCKED_POLLS_MAX = 10  # a second apart: one missed heartbeat of another server does not end a drain
SET_ASIDE_S, AGAIN_S = 15.0, 0.3


class Drained(NamedTuple):
    """`staying`: by server, the masters and journal nodes on its host. `non_voters`: by server, the tablets whose non-voter it
    had: a non-voter is not created on another host."""

    reply: DrainReply
    staying: dict[str, list[str]]
    non_voters: dict[str, tuple[str, ...]]


async def ask(cluster: Cluster, host: str, on: bool | None, progress: Progress) -> DrainReply:
    """Begin the drain, end it, or only report it (None)."""
    return await cluster.persist("drain", DrainRequest(host, on), DrainReply, ASK_S, progress)


async def emptied(
    cluster: Cluster, host: str, first: DrainReply, timeout_s: float, progress: Progress
) -> DrainReply:
    """Wait until the host has no replica. Raises Unavailable if no replica can move, or another command ended the drain."""
    total = sum(each.replicas for each in first.servers)
    seen, stuck = first, 0

    async def poll() -> str | None:
        nonlocal seen, stuck
        seen = await ask(cluster, host, None, progress)
        left = sum(each.replicas for each in seen.servers)
        if not all(each.draining for each in seen.servers):
            raise Unavailable(f"{host} is no longer draining: another command ended the drain")
        if left == 0:
            return None
        stuck = stuck + 1 if sum(each.blocked for each in seen.servers) == left else 0
        if stuck > BLOCKED_POLLS_MAX:
            raise Unavailable(
                f"{count(left, 'replica')} on {host} cannot move: every other live host has one of the same "
                "tablet, is draining or is in maintenance; add a host (the drain then continues), or run `ebla nodes drain --off`"
            )
        text = f"{count(left, 'replica')} of {total} left{waiting(seen)}"
        progress.step(text, total - left, total)
        return text

    await until(poll, timeout_s, progress, "nodes drain")
    return seen


async def replicas_set_aside(cluster: Cluster, reply: DrainReply, progress: Progress) -> None:
    """Wait a while until the servers have deleted the replicas that they lost: a server that is stopped earlier comes back with
    replicas that no tablet needs, and sets them aside then."""

    async def holds(address: str) -> int:
        state = await cluster.ask(address, "status", Empty(), ServerState, SET_ASIDE_S)
        if isinstance(state, Unanswered):
            return 0
        return sum(each.state != "deleted" for each in state.replicas)

    deadline = Deadline(SET_ASIDE_S)
    while left := sum([await holds(each.address) for each in reply.servers]):
        if deadline.passed:
            return
        progress.step(f"{count(left, 'replica')} being set aside")
        await asyncio.sleep(AGAIN_S)


async def staying(cluster: Cluster, reply: DrainReply) -> dict[str, list[str]]:
    """The masters and journal nodes on each server's host, as far as they answer. The active master comes first, marked."""
    seen = await cluster.survey(tables=())
    places = await cluster.hosts(list(dict.fromkeys([*seen.masters, *seen.journals])))
    found: dict[str, list[str]] = {}
    for each in reply.servers:
        there = [address for address, slot in places.items() if slot == host_of(each.address)]
        rest = [address for address in there if address != seen.active]
        if there:
            found[each.address] = [f"{seen.active} (active)", *rest] if len(rest) < len(there) else rest
    return found


def waiting(reply: DrainReply) -> str:
    """The reasons why the remaining replicas do not move yet."""
    leaderless = sum(each.leaderless for each in reply.servers)
    text = f"; cure is frozen {reply.frozen}" if reply.frozen else ""
    text += f"; {leaderless} without a leader, see `ebla check`" if leaderless else ""
    if silent := silent_hosts([address for each in reply.servers for address in each.waits_for]):
        text += f"; {silent}"
    return text


def silent_hosts(addresses: list[str]) -> str:
    hosts = ", ".join(dict.fromkeys(map(host_of, addresses)))
    return f"tablets that also have a replica on {hosts} wait: silent, and in maintenance" if hosts else ""
