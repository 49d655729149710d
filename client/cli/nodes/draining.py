"""`ebla nodes drain`: move all replicas off a host, so that it can be removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.polling import persist, until
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.render import count, host_of, short
from ebla.cli.frame.ui import Progress, Ui
from ebla.cli.masters.masters import hosts
from ebla.errors import Unavailable

if TYPE_CHECKING:
    from ebla.actors.master.messages import DrainReply

ASK_S = 15.0
BLOCKED_LOOKS_MAX = 10  # a second apart: a server that is just not heard does not end a drain
STOP_S = 60.0
ASIDE_S, AGAIN_S = 15.0, 0.3
NAMED_MAX = 8  # tablets in one line; `--json` has all


def drain(
    ui: Ui,
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="Host, address or uuid of its server.", show_default=False)
    ],
    off: Annotated[
        bool, typer.Option("--off", help="End the drain: the host may have replicas again.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Return when the host has no replicas.")] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Wait, then stop its tablet server; `ebla up` starts it again.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, help="Longest wait; the work continues in the background."
        ),
    ] = 3600.0,
) -> None:
    """Move all replicas off a host. It gets no new ones until `--off`. Reads and writes continue."""
    if off and (wait or stop):
        raise Usage("--off ends a drain: there is nothing to wait for", option="--off")

    dropped: dict[str, tuple[str, ...]] = {}

    async def work(cluster: Cluster) -> tuple[DrainReply, dict[str, list[str]]]:
        from ebla.actors.master.messages import DrainReply, DrainRequest

        async def ask(on: bool | None) -> DrainReply:
            return await persist(cluster, "drain", DrainRequest(host, on), DrainReply, ASK_S, progress)

        before = None if off else await ask(None)
        reply = await ask(not off)
        if before is not None:  # by the time of an answer they may be gone
            dropped.update({each.address: each.non_voters for each in before.servers if each.non_voters})
            _warn(ui, dropped)
        if wait or stop:
            reply = await _emptied(cluster, host, reply, timeout, progress)
        if stop:
            await _set_aside(cluster, reply, progress)
        return reply, {} if off else await _staying(cluster, reply)

    with ui.working("nodes drain") as progress:
        reply, staying = within(ui, work)
        stopped = _stop(ui, reply, progress) if stop else []
    document: dict[str, Any] = {
        "servers": msgspec.to_builtins(reply.servers),
        "stopped": stopped,
        "staying": staying,
        "non_voters": dropped,
    }
    ui.show(document, *_told(reply, stopped, staying))


async def _emptied(
    cluster: Cluster, host: str, first: DrainReply, timeout_s: float, progress: Progress
) -> DrainReply:
    from ebla.actors.master.messages import DrainReply, DrainRequest

    total = sum(each.replicas for each in first.servers)
    seen, stuck = first, 0

    async def look() -> str | None:
        nonlocal seen, stuck
        seen = await persist(cluster, "drain", DrainRequest(host, None), DrainReply, ASK_S, progress)
        left, blocked = (
            sum(getattr(each, name) for each in seen.servers) for name in ("replicas", "blocked")
        )
        if not all(each.draining for each in seen.servers):
            raise Unavailable(f"{host} is no longer draining: another command ended the drain")
        if left == 0:
            return None
        stuck = stuck + 1 if blocked == left else 0
        if stuck > BLOCKED_LOOKS_MAX:
            raise Unavailable(
                f"{count(left, 'replica')} on {host} cannot move: every other live host has one of the same "
                "tablet, is draining or is in maintenance; add a host (the drain then continues), or run `ebla nodes drain --off`"
            )
        told = f"{count(left, 'replica')} of {total} left{_waiting(seen)}"
        progress.step(told, total - left, total)
        return told

    await until(look, timeout_s, progress, "nodes drain")
    return seen


async def _set_aside(cluster: Cluster, reply: DrainReply, progress: Progress) -> None:
    """Who is stopped before it was told that it left comes back with replicas that nobody wants. For a while only: they are set
    aside then, too."""
    import asyncio

    from ebla.actors.messages import Empty, ServerState
    from ebla.health.survey import ask
    from ebla.health.verdicts import Unanswered

    async def holds(address: str) -> int:
        said = await ask(cluster.network, address, "status", Empty(), ServerState, ASIDE_S)
        return 0 if isinstance(said, Unanswered) else sum(each.state != "deleted" for each in said.replicas)

    clock = asyncio.get_running_loop().time
    deadline = clock() + ASIDE_S
    while left := sum([await holds(each.address) for each in reply.servers]):
        if clock() >= deadline:
            return
        progress.step(f"{count(left, 'replica')} being set aside")
        await asyncio.sleep(AGAIN_S)


def _waiting(reply: DrainReply) -> str:
    silent = list(dict.fromkeys(host_of(address) for each in reply.servers for address in each.waits_for))
    headless = sum(each.leaderless for each in reply.servers)
    told = f"; {headless} without a leader, see `ebla check`" if headless else ""
    if not silent:
        return told
    return f"{told}; tablets that also have a replica on {', '.join(silent)} wait: silent, and in maintenance"


async def _staying(cluster: Cluster, reply: DrainReply) -> dict[str, list[str]]:
    """By server: the masters and journal nodes on its host, as far as they answer. The active master comes first, marked."""
    seen = await cluster.survey(tables=())
    places = await hosts(cluster, list(dict.fromkeys([*seen.masters, *seen.journals])))
    found: dict[str, list[str]] = {}
    for each in reply.servers:
        there = [address for address, slot in places.items() if slot == host_of(each.address)]
        active = [
            address for address in there if getattr(seen.masters.get(address), "role", None) == "active"
        ]
        rest = [address for address in there if address not in active]
        if there:
            found[each.address] = [*(f"{address} (active)" for address in active), *rest]
    return found


def _warn(ui: Ui, dropped: dict[str, tuple[str, ...]]) -> None:
    """Nobody but an operator knows what they were for."""
    for address, tablets in dropped.items():
        told = ", ".join(map(short, tablets[:NAMED_MAX]))
        more = f" and {len(tablets) - NAMED_MAX:,} more" if len(tablets) > NAMED_MAX else ""
        which = (
            f"the non-voter of tablet {told}"
            if len(tablets) == 1
            else f"the non-voters of tablets {told}{more}"
        )
        ui.warn(
            f"{which} on {host_of(address)} will not be created on another host; `ebla tablet add-replica TABLET SERVER --role non-voter` "
            "adds one"
        )


def _stop(ui: Ui, reply: DrainReply, progress: Progress) -> list[str]:
    from ebla.placement import launch

    progress.step("stopping its tablet server")
    addresses = [each.address for each in reply.servers]
    return list(launch.stop(ui.common.name or "ebla", addresses, timeout_s=STOP_S))


def _told(reply: DrainReply, stopped: list[str], staying: dict[str, list[str]]) -> list[str]:
    lines = []
    for each in reply.servers:
        host = host_of(each.address)
        if not each.draining:
            lines.append(f"{host} may have replicas again; it has {each.replicas}")
        elif not each.replicas:
            lines.append(
                f"{host} is drained" + ("; its tablet server has stopped" if each.address in stopped else "")
            )
        else:
            lines.append(f"{host} is draining: {count(each.replicas, 'replica')} left")
            if each.blocked:
                lines.append(f"  {each.blocked} of them cannot move now: add a host")
            if each.leaderless:
                lines.append(
                    f"  {each.leaderless} of them have no leader now, which a move needs: `ebla check` says why"
                )
            if each.waits_for:
                hosts_silent = ", ".join(map(host_of, each.waits_for))
                lines.append(
                    f"  tablets that also have a replica on {hosts_silent} wait: silent, and in maintenance"
                )
        if stay := staying.get(each.address):
            lines.append(
                f"  {', '.join(stay)} {'stays' if len(stay) == 1 else 'stay'} there: a drain moves tablets only"
            )
            if stay[0].endswith("(active)"):
                lines.append("  `ebla master failover` makes another master active, if there is one")
    return lines


def register(app: typer.Typer) -> None:
    command(app, "drain")(drain)
