"""`ebla tablet list | show | flush | step-down`. Its members: members.py, forcing.py, copies.py, quarantine.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ebla.cli.frame import views
from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.problems import Refused
from ebla.cli.frame.render import host_of, listing, short
from ebla.cli.frame.ui import Ui

if TYPE_CHECKING:
    from ebla.actors import messages as m
    from ebla.health.verdicts import ClusterHealth, TabletHealth

FLUSH_S = 300.0

TabletId = Annotated[
    str, typer.Argument(metavar="TABLET", help="The tablet's id, or its beginning.", show_default=False)
]


def list_tablets(
    ui: Ui,
    table: Annotated[str | None, typer.Option("--table", "-t", help="Only tablets of this table.")] = None,
) -> None:
    """List the tablets: health, leader, term, log index, size."""

    async def work(cluster: Cluster) -> ClusterHealth:
        from ebla.health.tablets import judge

        if table is not None:
            await cluster.table_info(table)
        return judge(await cluster.survey(None if table is None else [table]))

    health = within(ui, work)
    document = {"tablets": msgspec.to_builtins(health.tablets)}
    ui.show(document, views.tablets(health.tablets) if health.tablets else "no tablets")


def show(ui: Ui, tablet: TabletId) -> None:
    """Show one tablet as each of its replicas sees it."""

    async def work(cluster: Cluster) -> TabletHealth:
        from ebla.health.tablets import judge

        info, location = await cluster.tablet(tablet)
        health = judge(await cluster.survey([info.name]))
        return next(each for each in health.tablets if each.tablet == location.tablet)

    found = within(ui, work)
    ui.show(msgspec.to_builtins(found), *views.tablet(found))


def flush(
    ui: Ui,
    tablet: Annotated[
        str | None,
        typer.Argument(metavar="[TABLET]", help="The tablet's id, or its beginning.", show_default=False),
    ] = None,
    table: Annotated[str | None, typer.Option("--table", "-t", help="All tablets of this table.")] = None,
) -> None:
    """Flush applied rows from memory to the tables on disk, on every replica. (The log has them durably before.)"""
    if (tablet is None) == (table is None):
        raise Refused(
            "name one tablet, or all of a table", hint="`ebla tablet flush TABLET` or `--table NAME`"
        )

    async def work(cluster: Cluster) -> list[tuple[str, str, int]]:
        if tablet is not None:
            locations = [(await cluster.tablet(tablet))[1]]
        else:
            assert table is not None
            locations = list((await cluster.table_info(table)).tablets)
        return await _flush(cluster, locations)

    flushed = sorted(within(ui, work))
    rows = [(short(name), host_of(address), index) for name, address, index in flushed]
    ui.show(
        {"flushed": [{"tablet": t, "address": a, "index": i} for t, a, i in flushed]},
        listing(("TABLET", "HOST", "FLUSHED>"), rows),
    )


async def _flush(cluster: Cluster, locations: list[m.TabletLocation]) -> list[tuple[str, str, int]]:
    from ebla.actors import messages as m
    from ebla.health.survey import gathered

    async def one(tablet: str, address: str) -> tuple[str, str, int]:
        reply = await cluster.call(address, "flush", m.FlushRequest(tablet), m.FlushReply, FLUSH_S)
        return tablet, address, reply.flushed[tablet]

    return await gathered([one(each.tablet, r.address) for each in locations for r in each.replicas])


def step_down(
    ui: Ui,
    tablet: TabletId,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="HOST", help="The next leader (default: the most caught-up)"),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Longest time to try.")
    ] = 5.0,
) -> None:
    """Hand the leadership of a tablet over to another replica. No write is lost."""

    async def work(cluster: Cluster) -> tuple[str, str, m.StepDownReply]:
        return await _step_down(cluster, tablet, to, timeout)

    full, before, reply = within(ui, work)
    document = {"tablet": full, "leader_before": before, "leader": reply.leader, "term": reply.term}
    now = host_of(reply.leader) if reply.leader else "being elected"
    ui.show(document, f"tablet {short(full)}: leader was {host_of(before)}, is {now} (term {reply.term})")


async def _step_down(
    cluster: Cluster, tablet: str, to: str | None, timeout_s: float
) -> tuple[str, str, m.StepDownReply]:
    from ebla.actors import messages as m
    from ebla.health.tablets import judge

    info, location = await cluster.tablet(tablet)
    health = judge(await cluster.survey([info.name]))
    found = next(each for each in health.tablets if each.tablet == location.tablet)
    leader = next((replica for replica in found.replicas if replica.uuid == found.leader), None)
    if leader is None:
        raise Refused(
            f"tablet {short(found.tablet)} has no leader now: {'; '.join(found.reasons)}",
            hint=f"`ebla tablet show {short(found.tablet)}`",
        )
    if len(found.replicas) == 1:
        raise Refused(f"tablet {short(found.tablet)} has one replica: there is no other replica to lead it")
    successor = None if to is None else _successor(found, to)
    request = m.StepDownRequest(found.tablet, successor, timeout_s)
    reply = await cluster.call(leader.address, "step_down", request, m.StepDownReply, timeout_s + 5.0)
    return found.tablet, leader.address, reply


def _successor(tablet: TabletHealth, to: str) -> str:
    """A host, an address or a uuid (or how it begins) as the uuid of one of the tablet's replicas."""
    for replica in tablet.replicas:
        if to in (replica.address, host_of(replica.address)) or (
            len(to) >= 4 and replica.uuid.startswith(to)
        ):
            return replica.uuid
    hosts = [host_of(replica.address) for replica in tablet.replicas]
    raise Refused(
        f"tablet {short(tablet.tablet)} has no replica at {to!r}; it has replicas at {', '.join(hosts)}",
        hint=None,
    )


def register(app: typer.Typer) -> None:
    command(app, "list")(list_tablets)
    command(app, "show")(show)
    command(app, "flush")(flush)
    command(app, "step-down")(step_down)
