"""`ebla tablet list | show | flush | step-down`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ebla.cli.frame import views
from ebla.cli.frame.connection import within
from ebla.cli.frame.options import TabletId
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Ui
from ebla.operate.naming import Refused, replica_meant
from ebla.wording import host_of, short

if TYPE_CHECKING:
    from ebla.actors import messages as m
    from ebla.health.verdicts import ClusterHealth
    from ebla.operate.cluster import Cluster

FLUSH_S = 300.0


def list_tablets(
    ui: Ui,
    table: Annotated[
        str | None, typer.Option("--table", "-t", metavar="NAME", help="Only tablets of this table.")
    ] = None,
) -> None:
    """List the tablets: health, leader, term, log index, size."""

    async def work(cluster: Cluster) -> ClusterHealth:
        if table is not None:
            await cluster.table_info(table)
        return await cluster.health(None if table is None else [table])

    health = within(ui, work)
    document = {"tablets": msgspec.to_builtins(health.tablets)}
    ui.show(document, views.tablets(health.tablets) if health.tablets else "no tablets")


def show(ui: Ui, tablet: TabletId) -> None:
    """Show one tablet as each of its replicas sees it."""
    _, found = within(ui, lambda cluster: cluster.tablet_health(tablet))
    ui.show(msgspec.to_builtins(found), *views.tablet(found))


def flush(
    ui: Ui,
    tablet: Annotated[
        str | None,
        typer.Argument(metavar="TABLET", help="The tablet's id, or its beginning.", show_default=False),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", "-t", metavar="NAME", help="All tablets of this table.")
    ] = None,
) -> None:
    """Flush applied rows from memory to the tables on disk, on every replica. (The log has them durably before.)"""
    if (tablet is None) == (table is None):
        raise Refused(
            "name one tablet, or all of a table", hint="`ebla tablet flush TABLET` or `--table NAME`"
        )

    async def work(cluster: Cluster) -> list[tuple[str, str, int]]:
        from ebla.actors.messages import FlushReply, FlushRequest
        from ebla.health.survey import gathered

        async def one(tablet: str, address: str) -> tuple[str, str, int]:
            reply = await cluster.call(address, "flush", FlushRequest(tablet), FlushReply, FLUSH_S)
            return tablet, address, reply.flushed[tablet]

        if tablet is not None:
            locations = [(await cluster.tablet(tablet))[1]]
        else:
            assert table is not None
            locations = list((await cluster.table_info(table)).tablets)
        return await gathered([one(each.tablet, r.address) for each in locations for r in each.replicas])

    flushed = sorted(within(ui, work))
    rows = [(short(name), host_of(address), index) for name, address, index in flushed]
    ui.show(
        {"flushed": [{"tablet": t, "address": a, "index": i} for t, a, i in flushed]},
        listing(("TABLET", "HOST", "FLUSHED>"), rows),
    )


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
        from ebla.actors.messages import StepDownReply, StepDownRequest

        _, found = await cluster.tablet_health(tablet)
        leader = next((replica for replica in found.replicas if replica.uuid == found.leader), None)
        if leader is None:
            raise Refused(
                f"tablet {short(found.tablet)} has no leader now: {'; '.join(found.reasons)}",
                hint=f"`ebla tablet show {short(found.tablet)}`",
            )
        if len(found.replicas) == 1:
            raise Refused(
                f"tablet {short(found.tablet)} has one replica: there is no other replica to lead it"
            )
        successor = None if to is None else replica_meant(to, found).uuid
        request = StepDownRequest(found.tablet, successor, timeout)
        reply = await cluster.call(leader.address, "step_down", request, StepDownReply, timeout + 5.0)
        return found.tablet, leader.address, reply

    full, before, reply = within(ui, work)
    document = {"tablet": full, "leader_before": before, "leader": reply.leader, "term": reply.term}
    now = host_of(reply.leader) if reply.leader else "being elected"
    ui.show(document, f"tablet {short(full)}: leader was {host_of(before)}, is {now} (term {reply.term})")
