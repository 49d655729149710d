"""`ebla check`: the health of every tablet, as each of its replicas reports it. Exit status 0 only if all are healthy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame import views
from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.problems import FAILED
from ebla.cli.frame.render import count, short
from ebla.cli.frame.ui import Progress, Ui

if TYPE_CHECKING:
    from ebla.actors.messages import TableInfo
    from ebla.health.verdicts import ClusterHealth, TabletHealth

LOOKS_MAX = 4  # an election takes about two seconds; what is still wrong after four looks is told
LOOK_AGAIN_S = 0.7
TABLETS_SHOWN = 10
NAMED_MAX = 5
COMPARED_S = 600.0


async def look(
    cluster: Cluster, tables: list[str] | None, wait_s: float, progress: Progress
) -> ClusterHealth:
    """The verdict, looked at again while what is wrong may be a matter of moments, or until `wait_s` have passed."""
    import asyncio

    from ebla.health.tablets import judge, may_pass

    clock = asyncio.get_running_loop().time
    deadline = clock() + wait_s
    looks = 0
    while True:
        health = judge(await cluster.survey(tables))
        looks += 1
        waiting = clock() < deadline
        if health.healthy or not (waiting or (looks < LOOKS_MAX and may_pass(health))):
            return health
        if waiting:
            left = f"{max(0.0, deadline - clock()):.0f} s left"
            progress.step(f"{health.reasons[0]} ({left})")
        await asyncio.sleep(LOOK_AGAIN_S)


async def compared(
    cluster: Cluster,
    tables: list[str] | None,
    timeout_s: float,
    progress: Progress,
    note: Callable[[str], None],
) -> ClusterHealth:
    """The verdict with the digests of all replicas that have one within `timeout_s`. What nobody could begin is not tried, and
    told at once."""
    from ebla.health import survey
    from ebla.health.tablets import judge

    seen = await cluster.survey(tables)
    away = [tablet for tablet in judge(seen).tablets if tablet.status == "UNAVAILABLE"]
    if away:
        note(f"not compared, for they are UNAVAILABLE: {_named(away)}")

    def told(done: int, total: int) -> None:
        progress.step(
            f"{done} of {count(total, 'tablet')} compared, within {timeout_s:g} s in all", done, total
        )

    digests = await survey.digests(cluster.network, _without(seen.tables, away), told, timeout_s)
    return judge(seen, digests)


def _without(infos: tuple[TableInfo, ...], away: list[TabletHealth]) -> list[TableInfo]:
    left_out = {tablet.tablet for tablet in away}
    return [
        msgspec.structs.replace(
            info, tablets=tuple(each for each in info.tablets if each.tablet not in left_out)
        )
        for info in infos
    ]


def check(
    ui: Ui,
    table: Annotated[
        list[str] | None, typer.Argument(help="Check these tables only.", show_default=False)
    ] = None,
    checksum: Annotated[
        bool,
        typer.Option("--checksum", help="Compare the rows of all replicas at one log index per tablet."),
    ] = False,
    wait: Annotated[
        float,
        typer.Option("--wait", metavar="SECONDS", help="Longest wait for everything to become healthy."),
    ] = 0.0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, help="Longest time for --checksum, of all tablets."
        ),
    ] = COMPARED_S,
) -> None:
    """Check the health of every tablet, replica, master and journal node. Exit status 0: all healthy, 1: not.

    A tablet is HEALTHY, RECOVERING, UNDER_REPLICATED, CONSENSUS_MISMATCH, CHECKSUM_MISMATCH or UNAVAILABLE; a replica
    is HEALTHY, LAGGING, BOOTSTRAPPING, COPYING, TOMBSTONE, FAILED, MISSING, UNREACHABLE or WRONG_SERVER.
    """
    with ui.working("check") as progress:

        async def checked(cluster: Cluster) -> ClusterHealth:
            progress.step("asking every server")
            health = await look(cluster, table or None, wait, progress)
            if not checksum:
                return health
            return await compared(cluster, table or None, timeout, progress, ui.note)

        health = within(ui, checked)
    sick = [tablet for tablet in health.tablets if tablet.status != "HEALTHY"]
    shown = list(health.tablets) if ui.verbose else sick[:TABLETS_SHOWN]
    parts: list[Any] = []
    telling = any(s.status != "HEALTHY" or s.failed or s.draining or s.maintained for s in health.servers)
    for tablet in shown:
        parts += [*views.tablet(tablet), ""]
    if len(sick) > len(shown):
        parts += [f"and {count(len(sick) - len(shown), 'more tablet')} not healthy; -v shows all", ""]
    ui.show(
        msgspec.to_builtins(health),
        views.servers(health) if telling else None,
        "" if telling else None,
        *parts,
        views.tables(health) if health.tables else None,
        "" if health.tables else None,
        *([_compared(health)] if checksum else []),
        views.health_line(health),
        *views.reasons(health),
        *views.warnings(health),
        *_forced(health),
        *_set_aside(health),
    )
    if not health.healthy:
        raise typer.Exit(FAILED)


def _forced(health: ClusterHealth) -> list[str]:
    """A mark that no tablet loses, and no verdict on how it is now."""
    forced = [each for each in health.tablets if each.unsafe]
    if not forced:
        return []
    return [
        "  a configuration was forced on these tablets without a majority; acknowledged writes may be missing: "
        + _named(forced)
    ]


def _named(tablets: list[TabletHealth]) -> str:
    named = [f"{each.table} {short(each.tablet)}" for each in tablets]
    more = [f"and {len(named) - NAMED_MAX} more"] if len(named) > NAMED_MAX else []
    return ", ".join([*named[:NAMED_MAX], *more])


def _set_aside(health: ClusterHealth) -> list[str]:
    """Of servers that came back as new ones: what they had is not used any more, and not deleted either."""
    return [
        f"  {server.address} is a new server; the old directory was set aside as {server.set_aside}"  # all of it: it is a path
        for server in health.servers
        if server.set_aside
    ]


def _compared(health: ClusterHealth) -> str:
    digested = [tablet for tablet in health.tablets if tablet.checksum_index is not None]
    agreeing = [t for t in digested if len({r.digest for r in t.replicas if r.digest}) == 1]
    rows = sum(max((r.rows or 0 for r in t.replicas), default=0) for t in digested)
    left_out = len(health.tablets) - len(digested)
    answered = sum(r.digest is not None for t in digested for r in t.replicas)
    return (
        f"checksums: {len(agreeing)} of {count(len(health.tablets), 'tablet')} agree, "
        f"{count(answered, 'replica')} compared, {count(rows, 'row')}"
        + (f"; not compared: {count(left_out, 'tablet')}" if left_out else "")
    )


def register(app: typer.Typer) -> None:
    command(app, "check")(check)
