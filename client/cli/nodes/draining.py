"""`ebla nodes drain | maintain | suspend | allow-only`: a host that is to be removed, will be down for a while, or shall lead no
PacificA tablet; and the hosts that may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ebla.cli.frame.connection import name_of, within
from ebla.cli.frame.options import BackgroundTimeout, Host, argument, option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import Shown, Ui
from ebla.wording import count, host_of, short

if TYPE_CHECKING:
    from ebla.actors.master.messages import AllowReply, DrainReply, Maintained, Suspended
    from ebla.operate.cluster import Cluster
    from ebla.operate.draining import Drained
    from ebla.operate.waiting import Progress

ASK_S = 15.0
STOP_S = 60.0
STAY = "a drain moves tablets only"
NAMED_MAX = 8  # tablets in one line; `--json` has all


# -- drain ---------------------------------------------------------------------------------------------------


def drain(
    ui: Ui,
    host: Host,
    off: Annotated[bool, option("--off", "End the drain: the host may have replicas again.")] = False,
    wait: Annotated[bool, option("-w --wait", "Return when the host has no replicas.")] = False,
    stop: Annotated[
        bool, option("--stop", "Wait, then stop its tablet server; `ebla up` starts it again.")
    ] = False,
    timeout: BackgroundTimeout = 3600.0,
) -> Shown:
    """Move all replicas off a host. It gets no new ones until `--off`. Reads and writes continue."""
    if off and (wait or stop):
        raise Usage("--off ends a drain: there is nothing to wait for", option="--off")

    async def work(cluster: Cluster) -> Drained:
        from ebla.operate import draining

        before = None if off else await draining.ask(cluster, host, None, progress)
        reply = await draining.ask(cluster, host, not off, progress)
        # The reply may come when the non-voters are gone already.
        non_voters = (
            {each.address: each.non_voters for each in before.servers if each.non_voters} if before else {}
        )
        warn_of_non_voters(ui, non_voters)
        if wait or stop:
            reply = await draining.emptied(cluster, host, reply, timeout, progress)
        if stop:
            await draining.replicas_set_aside(cluster, reply, progress)
        staying = {} if off else await draining.staying(cluster, reply)
        return draining.Drained(reply, staying, non_voters)

    with ui.working("nodes drain") as progress:
        done = within(ui, work)
        stopped = _stop(ui, done.reply, progress) if stop else []
    document = {
        "servers": done.reply.servers,
        "frozen": done.reply.frozen,
        "stopped": stopped,
        "staying": done.staying,
        "non_voters": done.non_voters,
    }
    return document, *lines_of(done.reply, stopped, done.staying, STAY)


def warn_of_non_voters(ui: Ui, non_voters: dict[str, tuple[str, ...]]) -> None:
    """Warn of lost non-voters: only an operator knows their purpose."""
    for address, tablets in non_voters.items():
        named = ", ".join(map(short, tablets[:NAMED_MAX]))
        more = f" and {len(tablets) - NAMED_MAX:,} more" if len(tablets) > NAMED_MAX else ""
        which = (
            f"non-voter of tablet {named}" if len(tablets) == 1 else f"non-voters of tablets {named}{more}"
        )
        ui.warn(
            f"the {which} on {host_of(address)} will not be created on another host; `ebla tablet add-replica TABLET "
            "SERVER --role non-voter` adds one"
        )


def _stop(ui: Ui, reply: DrainReply, progress: Progress) -> list[str]:
    from ebla.placement import launch

    progress.step("stopping its tablet server")
    return list(launch.stop(name_of(ui), [each.address for each in reply.servers], timeout_s=STOP_S))


def lines_of(
    reply: DrainReply, stopped: list[str], staying: dict[str, list[str]], stay_because: str
) -> list[str]:
    from ebla.operate.draining import silent_hosts

    waits = reply.frozen and any(each.draining and each.replicas for each in reply.servers)
    lines = [f"no replica moves: cure is frozen {reply.frozen}"] if waits else []
    for each in reply.servers:
        host = host_of(each.address)
        if not each.draining:
            lines.append(f"{host} may have replicas again; it has {each.replicas}")
        elif not each.replicas:
            end = "; its tablet server has stopped" if each.address in stopped else ""
            lines.append(f"{host} is drained{end}")
        else:
            lines.append(f"{host} is draining: {count(each.replicas, 'replica')} left")
            if each.blocked:
                lines.append(f"  {each.blocked} of them cannot move now: add a host")
            if each.leaderless:
                lines.append(
                    f"  {each.leaderless} of them have no leader now, which a move needs: `ebla check` says why"
                )
            if silent := silent_hosts(list(each.waits_for)):
                lines.append(f"  {silent}")
        if stay := staying.get(each.address):
            verb = "stays" if len(stay) == 1 else "stay"
            lines.append(f"  {', '.join(stay)} {verb} there: {stay_because}")
            if stay[0].endswith("(active)"):
                lines.append("  `ebla master failover` makes another master active, if there is one")
    return lines


# -- maintain ------------------------------------------------------------------------------------------------


async def maintain(
    cluster: Cluster,
    progress: Progress,
    host: Host,
    off: Annotated[bool, option("--off", "End maintenance.")] = False,
) -> Shown:
    """Put a host into maintenance: its replicas are not replaced while it is down, and it gets no new ones until `--off`."""
    from ebla.actors.master.messages import MaintainReply, MaintainRequest

    request = MaintainRequest(host, not off)
    reply = await cluster.persist("maintain", request, MaintainReply, ASK_S, progress)
    return reply, *map(_maintained, reply.servers)


def _maintained(server: Maintained) -> str:
    host, replicas = host_of(server.address), count(server.replicas, "replica")
    if server.maintained:
        return (
            f"{host} is in maintenance until `--off`: its {replicas} may be silent, and it gets no new ones"
        )
    if server.alive or not server.replicas:
        return f"{host} is no longer in maintenance; it has {replicas}"
    return (
        f"{host} is no longer in maintenance; it is silent, so its {replicas} will be created on other hosts"
    )


# -- suspend -------------------------------------------------------------------------------------------------


async def suspend(
    cluster: Cluster,
    progress: Progress,
    host: Host,
    off: Annotated[bool, option("--off", "Give it leases again.")] = False,
) -> Shown:
    """Give a host no leases: it leads no PacificA tablet, and gets no new replicas, until `--off`. Its replicas follow and vote."""
    from ebla.actors.master.messages import SuspendReply, SuspendRequest

    request = SuspendRequest(host, not off)
    reply = await cluster.persist("suspend", request, SuspendReply, ASK_S, progress)
    return reply, *map(_suspended, reply.servers)


def _suspended(server: Suspended) -> str:
    host = host_of(server.address)
    if not server.suspended:
        return f"{host} gets leases again"
    return f"{host} is suspended until `--off`: {_gets_nothing(server)}"


def _gets_nothing(server: Suspended) -> str:
    led = count(server.primaries, "tablet")
    others = f"; others take over the {led} that it leads" if server.primaries else ""
    return f"it gets no leases and no new replicas{others}"


# -- allow-only ----------------------------------------------------------------------------------------------


async def allow_only(
    cluster: Cluster,
    progress: Progress,
    hosts: Annotated[
        list[str] | None, argument("HOST", "All that shall be allowed; none: show the list.")
    ] = None,
    off: Annotated[bool, option("--off", "End the list: every host is allowed.")] = False,
) -> Shown:
    """Allow only these hosts: all others are as if suspended, also hosts that join later. Each list replaces the one before."""
    from ebla.actors.master.messages import AllowReply, AllowRequest

    if off and hosts:
        raise Usage("--off ends the list, so it takes no hosts", option="--off")
    request = AllowRequest(tuple(hosts) if hosts else () if off else None)
    reply = await cluster.persist("allow_only", request, AllowReply, ASK_S, progress)
    return reply, *_allowed(reply)


def _allowed(reply: AllowReply) -> list[str]:
    if not reply.allowed:
        return ["every host is allowed"]
    return [
        f"only {', '.join(map(host_of, reply.allowed))} {'is' if len(reply.allowed) == 1 else 'are'} allowed, until `--off`",
        *(f"  {host_of(each)} has no known server" for each in reply.unknown),
        *(f"  {host_of(each.address)} is not allowed: {_gets_nothing(each)}" for each in reply.unlisted),
    ]
