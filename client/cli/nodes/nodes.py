"""`ebla nodes`: the hosts and what runs on them. `ebla nodes drain`: draining.py, `maintain`: maintaining.py."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from ebla.cli.frame import views
from ebla.cli.frame.cluster import Cluster, within
from ebla.cli.frame.commands import alone
from ebla.cli.frame.render import host_of, listing, short, size
from ebla.cli.frame.ui import Ui
from ebla.health.verdicts import Survey, Unanswered


async def _seen(cluster: Cluster) -> Survey:
    return await cluster.survey()


def nodes(
    ui: Ui,
    details: Annotated[
        bool, typer.Option("--details", "-d", help="Also every replica on every server.")
    ] = False,
) -> None:
    """List the tablet servers: alive or not, replicas, leaders, disk, memory."""
    from ebla.health.tablets import judge

    seen = within(ui, _seen)
    health = judge(seen)
    heard = {server.address: server for server in seen.servers if server.uuid}
    document = {"nodes": [_document(server, seen, details) for server in health.servers]}
    parts = [views.nodes(health.servers, heard, dict(seen.states))]
    ui.show(document, *parts, *(_details(seen) if details else ()))


def _document(server: object, seen: Survey, details: bool) -> dict[str, object]:
    from ebla.health.verdicts import ServerHealth

    assert isinstance(server, ServerHealth)
    found: dict[str, object] = msgspec.to_builtins(server)
    listed = next((each for each in seen.servers if each.uuid and each.address == server.address), None)
    state = seen.states.get(server.address)
    said = None if state is None or isinstance(state, Unanswered) else state
    found["version"] = listed.version if listed else None
    found["seqno"] = said.instance.seqno if said else listed.seqno if listed else None
    found["disk_bytes"] = said.disk_bytes if said else listed.disk_bytes if listed else None
    found["memtable_bytes"] = said.memtable_bytes if said else None
    found["shared_log_bytes"] = said.shared_log_bytes if said else None
    if details:
        names = _table_names(seen)
        found["replica_list"] = (
            [
                {"table": names.get(replica.tablet), **msgspec.to_builtins(replica)}
                for replica in said.replicas
            ]
            if said
            else None
        )
    return found


def _table_names(seen: Survey) -> dict[str, str]:
    return {tablet.tablet: info.name for info in seen.tables for tablet in info.tablets}


def _details(seen: Survey) -> list[object]:
    names = _table_names(seen)
    parts: list[object] = []
    for address, state in sorted(seen.states.items()):
        if isinstance(state, Unanswered):
            parts += ["", f"{host_of(address)}: {state.message}"]
            continue
        rows = [
            (
                f"  {names.get(replica.tablet, '(unknown)')}",
                short(replica.tablet),
                replica.state,
                replica.role,
                replica.term,
                replica.applied_index,
                replica.flushed_index,
                size(replica.rows_bytes),
                replica.error or "",
            )
            for replica in sorted(state.replicas, key=lambda each: (names.get(each.tablet, ""), each.tablet))
        ]
        headers = ("  TABLE", "TABLET", "STATE", "ROLE", "TERM>", "APPLIED>", "FLUSHED>", "SIZE>", "REASON")
        parts += ["", host_of(address), listing(headers, rows) if rows else "  no replicas"]
    return parts


def register(app: typer.Typer) -> None:
    alone(app)(nodes)
