"""`ebla check`: the health of every tablet, told by each of its replicas. Exit status 0 only if all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli import views
from ebla.cli.cluster import Cluster, within
from ebla.cli.commands import command
from ebla.cli.problems import FAILED
from ebla.cli.render import count, short
from ebla.cli.ui import Progress, Ui

if TYPE_CHECKING:
    from ebla.verdicts import ClusterHealth

LOOKS_MAX = 4  # an election takes about two seconds; what is still wrong after four looks is told
LOOK_AGAIN_S = 0.7
TABLETS_SHOWN = 10
FORCED_SHOWN = 5


async def look(
    cluster: Cluster, tables: list[str] | None, wait_s: float, progress: Progress
) -> ClusterHealth:
    """The verdict, looked at again while what is wrong may be a matter of moments, or until `wait_s` have passed."""
    import asyncio

    from ebla.health import judge, may_pass

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


async def checked(
    cluster: Cluster, tables: list[str] | None, checksum: bool, wait_s: float, progress: Progress
) -> ClusterHealth:
    from ebla import survey
    from ebla.health import judge

    progress.step("asking every server")
    health = await look(cluster, tables, wait_s, progress)
    if not checksum:
        return health

    def told(done: int, total: int) -> None:
        progress.step(f"{done} of {count(total, 'tablet')} compared", done, total)

    seen = await cluster.survey(tables)
    digests = await survey.digests(cluster.network, seen.tables, told)
    return judge(seen, digests)


def check(
    ui: Ui,
    table: Annotated[list[str] | None, typer.Argument(help="Only these tables.", show_default=False)] = None,
    checksum: Annotated[
        bool,
        typer.Option("--checksum", help="Compare the rows of all replicas, as of one log index per tablet."),
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="Wait so long for everything to be healthy.")
    ] = 0.0,
) -> None:
    """Is everything well? Asks each replica itself; exit status 0 if so, 1 if not.

    A tablet is HEALTHY, RECOVERING, UNDER_REPLICATED, CONSENSUS_MISMATCH, CHECKSUM_MISMATCH or UNAVAILABLE; a replica
    is HEALTHY, LAGGING, BOOTSTRAPPING, COPYING, TOMBSTONE, FAILED, MISSING, UNREACHABLE or WRONG_SERVER.
    """
    with ui.working("check") as progress:
        health = within(ui, lambda cluster: checked(cluster, table or None, checksum, wait, progress))
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
        *_forced(health),
        *_set_aside(health),
    )
    if not health.healthy:
        raise typer.Exit(FAILED)


def _forced(health: ClusterHealth) -> list[str]:
    """A mark that no tablet loses, and no verdict on how it is now."""
    forced = [f"{each.table} {short(each.tablet)}" for each in health.tablets if each.unsafe]
    if not forced:
        return []
    more = [f"and {len(forced) - FORCED_SHOWN} more"] if len(forced) > FORCED_SHOWN else []
    told = ", ".join([*forced[:FORCED_SHOWN], *more])
    return [f"  forced without a majority once, so that acknowledged writes may be missing: {told}"]


def _set_aside(health: ClusterHealth) -> list[str]:
    """Of servers that came back as new ones: what they had is not used any more, and not deleted either."""
    return [
        f"  {server.address} is a new server; set aside is {server.set_aside}"  # all of it: it is a path
        for server in health.servers
        if server.set_aside
    ]


def _compared(health: ClusterHealth) -> str:
    digested = [tablet for tablet in health.tablets if tablet.checksum_index is not None]
    agreeing = [t for t in digested if len({r.digest for r in t.replicas if r.digest}) == 1]
    rows = sum(max((r.rows or 0 for r in t.replicas), default=0) for t in digested)
    answered = sum(r.digest is not None for t in digested for r in t.replicas)
    return (
        f"checksums: {len(agreeing)} of {count(len(health.tablets), 'tablet')} agree, "
        f"{count(answered, 'replica')} compared, {count(rows, 'row')}"
    )


def register(app: typer.Typer) -> None:
    command(app, "check")(check)
