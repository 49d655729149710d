"""`ebla nodes`: the hosts and what runs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import structs

from ebla.actors.replication.configuration import RAFT
from ebla.cli.frame import views
from ebla.cli.frame.options import option
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Shown, Ui
from ebla.health.verdicts import ServerHealth, Survey, Unanswered, answered
from ebla.wording import host_of, short, size

if TYPE_CHECKING:
    from ebla.actors.messages import ServerState
    from ebla.operate.cluster import Cluster


async def nodes(
    ui: Ui,
    cluster: Cluster,
    details: Annotated[
        bool,
        option(
            "-d --details",
            "Also leases and primaries of PacificA tables, and each server's uuid, incarnation, memory and replicas.",
        ),
    ] = False,
) -> Shown:
    """List the tablet servers: health, replicas, leaders, used and free space of their disks; and the ledger stores, if there
    are logs: health, ledgers, used and free space."""
    from ebla.health.servers import leases
    from ebla.health.tablets import judge

    seen = await cluster.survey()
    health = judge(seen)
    listed = {server.address: server for server in seen.servers if server.uuid}
    leased = {each.address: each for each in leases(seen)}
    names = _table_names(seen) if details else None
    document = {
        "nodes": [
            _document(server, seen, names) | {"pacifica": leased.get(server.address)}
            for server in health.servers
        ],
        "ledger_stores": health.stores,
    }
    parts: list[Any] = [views.nodes(health.servers, listed, answered(seen.states)), *views.warnings(health)]
    if health.stores:
        parts += ["", views.stores(health.stores)]
        parts += [f"ledgers are not repaired: {health.repairs_idle}"] if health.repairs_idle else []
    if details:
        parts += ["", views.leases(leased.values())] if leased else []
        parts += _details(ui, seen)
    return document, *parts


def _document(server: ServerHealth, seen: Survey, names: dict[str, str] | None) -> dict[str, Any]:
    """`names`: of the tables, by tablet, if the replicas are wanted."""
    listed = next((each for each in seen.servers if each.uuid and each.address == server.address), None)
    state: ServerState | None = answered(seen.states).get(server.address)
    found = structs.asdict(server)
    found["version"] = listed.version if listed else None
    found["seqno"] = state.instance.seqno if state else listed.seqno if listed else None
    found["disk_bytes"] = state.disk_bytes if state else listed.disk_bytes if listed else None
    found["memtable_bytes"] = state.memtable_bytes if state else None
    found["shared_log_bytes"] = state.shared_log_bytes if state else None
    if names is not None:
        found["replica_list"] = state and [
            {"table": names.get(replica.tablet), **structs.asdict(replica)} for replica in state.replicas
        ]
    return found


def _table_names(seen: Survey) -> dict[str, str]:
    return {tablet.tablet: info.name for info in seen.tables for tablet in info.tablets}


def _details(ui: Ui, seen: Survey) -> list[Any]:
    names = _table_names(seen)
    protocols = {tablet.tablet: info.replication for info in seen.tables for tablet in info.tablets}
    parts: list[Any] = []
    for address, state in sorted(seen.states.items()):
        if isinstance(state, Unanswered):
            parts += ["", f"{host_of(address)}: {state.message}"]
            continue
        replicas = sorted(state.replicas, key=lambda each: (names.get(each.tablet, ""), each.tablet))
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
            )
            for replica in ui.some(replicas)
        ]
        number = views.era(protocols.get(replica.tablet, RAFT) for replica in state.replicas)
        headers = ("  TABLE", "TABLET", "STATE", "ROLE", number, "APPLIED>", "FLUSHED>", "SIZE>")
        instance = f"server {short(state.instance.uuid)}, incarnation {state.instance.seqno:,}"
        memory = f"memtable {size(state.memtable_bytes)}, log {size(state.shared_log_bytes)}"
        parts += ["", f"{host_of(address)}: {instance}, {memory}"]
        parts += [listing(headers, rows) if rows else "  no replicas"]
        parts += ["  " + line for line in ui.rest(replicas, "replica", "`ebla tablet list` lists tablets")]
        failed = [each for each in replicas if each.error]
        parts += [f"  {short(each.tablet)}: {each.error}" for each in ui.some(failed)]
        parts += ["  " + line for line in ui.rest(failed, "failed replica", "--json has all")]
    return parts
