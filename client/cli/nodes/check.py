"""`ebla check`: the health of every tablet, as each of its replicas reports it. Exit status 0 only if all are healthy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from ebla.cli.frame import completion, views
from ebla.cli.frame.connection import within
from ebla.cli.frame.options import argument, option
from ebla.cli.frame.problems import FAILED
from ebla.cli.frame.ui import Ui
from ebla.wording import count

if TYPE_CHECKING:
    from ebla.health.verdicts import ClusterHealth
    from ebla.operate.cluster import Cluster
    from ebla.operate.quarantine import Kept

TABLETS_SHOWN = 10
COMPARED_S = 600.0


def check(
    ui: Ui,
    table: Annotated[
        list[str] | None, argument("TABLE", "Check these tables only.", autocompletion=completion.tables)
    ] = None,
    checksum: Annotated[
        bool, option("--checksum", "Compare the rows of all replicas at one log index per tablet.")
    ] = False,
    wait: Annotated[float, option("--wait SECONDS", "Longest wait for everything to become healthy.")] = 0.0,
    timeout: Annotated[
        float, option("--timeout SECONDS", "Longest time for --checksum, of all tablets.", min=1)
    ] = COMPARED_S,
) -> None:
    """Check the health of every tablet, replica, master, journal node and ledger store. Exit status 0: all healthy, 1: not.

    A tablet is HEALTHY, RECOVERING, UNDER_REPLICATED, CONSENSUS_MISMATCH, CHECKSUM_MISMATCH, UNWRITABLE, UNREADABLE or
    DEAD; a replica is HEALTHY, LAGGING, BOOTSTRAPPING, COPYING, TOMBSTONE, FAILED, MISSING, UNREACHABLE or WRONG_SERVER.
    """
    with ui.working("check") as progress:

        async def work(cluster: Cluster) -> tuple[ClusterHealth, Kept]:
            from ebla.operate import checking

            progress.step("asking every server")
            health, kept = await checking.check_all(cluster, table or None, wait, progress)
            if not checksum:
                return health, kept
            return await checking.compare(cluster, table or None, timeout, progress, ui.note), kept

        health, kept = within(ui, work)
    sick = [tablet for tablet in health.tablets if tablet.status != "HEALTHY"]
    shown = list(health.tablets) if ui.verbose else sick[:TABLETS_SHOWN]
    parts: list[Any] = []
    if any(s.status != "HEALTHY" or s.failed or s.draining or s.maintained for s in health.servers):
        parts += [views.servers(health), ""]
    for tablet in shown:
        parts += [*views.tablet(tablet), ""]
    if len(sick) > len(shown):
        parts += [f"and {count(len(sick) - len(shown), 'more tablet')} not healthy; -v shows all", ""]
    if health.tables:
        parts += [*views.tables(health, ui), ""]
    if checksum:
        parts.append(_compared(health))
    ui.show(
        {**structs.asdict(health), "quarantine": kept},
        *parts,
        views.health_line(health),
        *views.reasons(health),
        *views.warnings(health),
        *views.quarantined(kept),
        *_forced(health),
        *_set_aside(health),
    )
    if not health.healthy:
        raise typer.Exit(FAILED)


def _forced(health: ClusterHealth) -> list[str]:
    """Tablets on which a configuration was ever forced. This never ends, and is no verdict on their present health."""
    from ebla.operate.checking import tablet_names

    forced = [each for each in health.tablets if each.unsafe]
    if not forced:
        return []
    return [
        "  a configuration was forced on these tablets without a majority; acknowledged writes may be missing: "
        + tablet_names(forced)
    ]


def _set_aside(health: ClusterHealth) -> list[str]:
    """Directories of servers that came back as new ones: they are not used any more, and not deleted either. The path is
    printed in full."""
    return [
        f"  {server.address} is a new server; the old directory was set aside as {server.set_aside}"
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
