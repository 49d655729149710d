"""`ebla tablet list | show | flush | compact | step-down`."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebla.cli.frame import completion, views
from ebla.cli.frame.connection import within
from ebla.cli.frame.options import TabletId, argument, option
from ebla.cli.frame.problems import FAILED
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.operate.naming import Refused, replica_meant
from ebla.storage.errors import EblaError
from ebla.wording import brief, host_of, short, size

if TYPE_CHECKING:
    from ebla.actors.messages import TabletLocation
    from ebla.operate.cluster import Cluster
    from ebla.operate.compacting import Compacted

FLUSH_S = 300.0

SomeTablet = Annotated[str | None, argument("TABLET", "The tablet's id, or its beginning.")]
OfTable = Annotated[
    str | None, option("-t --table NAME", "All tablets of this table.", autocompletion=completion.tables)
]


async def list_tablets(
    ui: Ui,
    cluster: Cluster,
    table: Annotated[
        str | None, option("-t --table NAME", "Only tablets of this table.", autocompletion=completion.tables)
    ] = None,
) -> Shown:
    """List the tablets: health, leader, term or ballot, log index, size. Of a long list, a terminal shows the first 100, those
    that are not healthy before the others."""
    if table is not None:
        await cluster.table_info(table)
    tablets = (await cluster.health(None if table is None else [table])).tablets
    if not tablets:
        return {"tablets": tablets}, "no tablets"
    ordered = tablets if len(ui.some(tablets)) == len(tablets) else views.sick_first(tablets)
    others = "`ebla check` sums them up" if table else "`-t TABLE` lists those of a table"
    return {"tablets": tablets}, views.tablets(ui.some(ordered)), *ui.rest(tablets, "tablet", others)


async def show(cluster: Cluster, tablet: TabletId) -> Shown:
    """Show one tablet as each of its replicas sees it."""
    _, found = await cluster.tablet_health(tablet)
    return found, *views.tablet(found)


def flush(ui: Ui, tablet: SomeTablet = None, table: OfTable = None) -> None:
    """Flush applied rows from memory to the tables on disk, on every replica. (The log has them durably before.)

    Exit status 1: a replica was not flushed.
    """

    async def work(cluster: Cluster) -> list[dict[str, Any]]:
        from ebla.actors.messages import FlushReply, FlushRequest
        from ebla.health.survey import gathered

        async def one(tablet: str, address: str) -> dict[str, Any]:
            index, error = None, None
            try:
                reply = await cluster.call(address, "flush", FlushRequest(tablet), FlushReply, FLUSH_S)
                index = reply.flushed[tablet]
            except EblaError as failed:
                error = failed.message
            return {"tablet": tablet, "address": address, "index": index, "error": error}

        locations = await _meant(cluster, tablet, table, "flush")
        return await gathered([one(each.tablet, r.address) for each in locations for r in each.replicas])

    found = sorted(within(ui, work), key=itemgetter("tablet", "address"))
    rows = [
        (
            short(each["tablet"]),
            host_of(each["address"]),
            "" if each["index"] is None else each["index"],
            brief(each["error"] or ""),
        )
        for each in found
    ]
    ui.show({"flushed": found}, listing(("TABLET", "HOST", "FLUSHED>", "NOT FLUSHED"), rows))
    if any(each["error"] is not None for each in found):
        raise typer.Exit(FAILED)


def compact(ui: Ui, tablet: SomeTablet = None, table: OfTable = None) -> Shown:
    """Merge all sorted runs of a table with storage "columns", on every replica. Reads and writes go on.

    Overwritten and deleted rows go, and reads visit fewer blocks. Servers also do this by themselves, a part at a time. Ctrl-C
    ends the command only; it may be repeated.
    """

    async def work(cluster: Cluster) -> list[Compacted]:
        from ebla.operate.compacting import compacted

        return await compacted(cluster, await _meant(cluster, tablet, table, "compact"), progress)

    with ui.working("compact") as progress:
        found = sorted(within(ui, work))
    rows = [
        (short(each.tablet), host_of(each.address), size(each.before), size(each.after)) for each in found
    ]
    document = {"compacted": [each._asdict() for each in found]}
    return document, listing(("TABLET", "HOST", "BEFORE>", "AFTER>"), rows)


async def _meant(cluster: Cluster, tablet: str | None, table: str | None, verb: str) -> list[TabletLocation]:
    if (tablet is None) == (table is None):
        raise Refused(
            "name one tablet, or all of a table", hint=f"`ebla tablet {verb} TABLET` or `--table NAME`"
        )
    if table is not None:
        return list((await cluster.table_info(table)).tablets)
    assert tablet is not None
    return [(await cluster.tablet(tablet))[1]]


async def step_down(
    cluster: Cluster,
    tablet: TabletId,
    to: Annotated[str | None, option("--to HOST", "The next leader (default: the most caught-up).")] = None,
    timeout: Annotated[float, option("--timeout SECONDS", "Longest time to try.", min=0.1)] = 5.0,
) -> Shown:
    """Hand the leadership of a tablet over to another replica. No write is lost."""
    from ebla.actors.messages import StepDownReply, StepDownRequest

    _, found = await cluster.tablet_health(tablet)
    name = f"tablet {short(found.tablet)}"
    leader = next((replica for replica in found.replicas if replica.uuid == found.leader), None)
    if leader is None:
        raise Refused(
            f"{name} has no leader now: {'; '.join(found.reasons)}",
            hint=f"`ebla tablet show {short(found.tablet)}`",
        )
    if len(found.replicas) == 1:
        raise Refused(f"{name} has one replica: there is no other replica to lead it")
    before, successor = leader.address, None if to is None else replica_meant(to, found).uuid
    request = StepDownRequest(found.tablet, successor, timeout)
    reply = await cluster.call(before, "step_down", request, StepDownReply, timeout + 5.0)
    document = {"tablet": found.tablet, "leader_before": before, "leader": reply.leader, "term": reply.term}
    number = views.era([found.replication]).removesuffix(">").lower()
    now = host_of(reply.leader) if reply.leader else "not known yet"
    return document, f"{name}: leader was {host_of(before)}, is {now} ({number} {reply.term})"
