"""The figures of a master, active or standby: see actors/figures.py. The journal's nodes, as the active one writes to them, are
on the sheet of actors/journal/measures.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ebla.actors.figures import Figure, Sheet, counter, gauge
from ebla.actors.journal import measures as journal
from ebla.actors.master.catalog import CREATING, PREPARING, RUNNING, Catalog
from ebla.actors.master.healing import Action, Add, Evict, HandOver, Stay

if TYPE_CHECKING:
    from ebla.actors.master.group import GroupMaster
    from ebla.actors.master.server import Master

ENDING = "ending"
ALIVE, SILENT = "alive", "silent"


class Place(NamedTuple):
    """What a master is at this instant, and how far its catalog is."""

    active: bool
    edits: int
    checkpointed: int


class Serving(NamedTuple):
    """What only a master that serves knows."""

    tablets_unknown: int
    changes_waiting: int
    leader_conflicts: int
    tablets_unsettled: int


class Lease(NamedTuple):
    epoch: int
    held: bool


PLACE: Sheet[Place] = Sheet(
    (),
    gauge("master_active", "0/1", "this master serves", lambda s: s.active),
    gauge(
        "master_last_edit",
        "",
        "the number of the last change of the catalog that is known here",
        lambda s: s.edits,
    ),
    gauge(
        "master_checkpointed_edit", "", "the last edit in the last checkpoint here", lambda s: s.checkpointed
    ),
)

CATALOG: Sheet[Catalog] = Sheet(
    (),
    gauge("master_tables", "tables", "tables in the catalog", lambda c: len(c.names)),
    gauge("master_tables_kept", "tables", "dropped, and to be recalled", lambda c: len(c.kept)),
    gauge(
        "master_former_replicas",
        "tablets",
        "of which a server that is no member may hold data",
        lambda c: len(c.formers),
    ),
    gauge("master_servers_draining", "servers", "shall hold nothing any more", lambda c: len(c.draining)),
    gauge("master_servers_maintained", "servers", "may be silent: maintenance", lambda c: len(c.maintained)),
    gauge("coordination_sessions", "sessions", "open sessions", lambda c: len(c.namespace.sessions)),
    gauge("coordination_nodes", "nodes", "nodes of the namespace", lambda c: len(c.namespace.nodes) - 1),
)

TABLETS: Sheet[int] = Sheet(
    ("state",),
    gauge("master_tablets", "tablets", f"{PREPARING}, {CREATING}, {RUNNING}, {ENDING}", lambda count: count),
)

SERVERS: Sheet[int] = Sheet(
    ("state",),
    gauge(
        "master_servers", "servers", f"tablet servers, {ALIVE} or {SILENT}; told by the active master", int
    ),
)

SERVING: Sheet[Serving] = Sheet(
    (),
    gauge(
        "master_tablets_unknown", "tablets", "reported and not in the catalog", lambda s: s.tablets_unknown
    ),
    gauge(
        "master_changes_waiting", "changes", "changes that wait for the edit log", lambda s: s.changes_waiting
    ),
    gauge(
        "master_tablets_unsettled",
        "tablets",
        "with a member that is not well, on its way or to go, or one too few or too many",
        lambda s: s.tablets_unsettled,
    ),
    counter(
        "master_leader_conflicts",
        "reports",
        "reports of a second leader in one term, which never should be",
        lambda s: s.leader_conflicts,
    ),
)

STEPS: dict[type[Action], str] = {
    Add: "added",
    Evict: "evicted",
    HandOver: "handed_over",
    Stay: "taken_back",
}

REPAIRS: Sheet[int] = Sheet(
    ("step",),
    counter("master_repairs", "steps", ", ".join(STEPS.values()) + ": replicas, leaders, marks", int),
)

LEASE: Sheet[Lease] = Sheet(
    (),
    gauge("master_epoch", "", "of the journal, while this master is active", lambda lease: lease.epoch),
    gauge("master_lease_held", "0/1", "holds the lease at the journal nodes", lambda lease: lease.held),
)

SHEETS = (PLACE, CATALOG, TABLETS, SERVING, SERVERS, REPAIRS, LEASE, journal.LINE)


def measure_single(master: Master) -> Iterator[Figure]:
    yield from PLACE.read(Place(True, master.log.last_txid, master.scribe.checkpointed))
    yield from _catalog(master.catalog)
    yield from _serving(master)


def measure_group(master: GroupMaster) -> Iterator[Figure]:
    """What only an active master knows is told while it serves."""
    reign, standby = master.reign, master.standby
    if reign is None or not reign.serves():
        yield from PLACE.read(Place(False, standby.txid, standby.checkpointed))
        yield from _catalog(standby.catalog)
        return
    serving = reign.master
    yield from PLACE.read(Place(True, serving.log.last_txid, serving.scribe.checkpointed))
    yield from _catalog(serving.catalog)
    yield from _serving(serving)
    yield from LEASE.read(Lease(reign.holder.epoch, reign.holder.holds()))
    yield from journal.measure_lines(reign.writer_status().nodes)


def _catalog(catalog: Catalog) -> Iterator[Figure]:
    yield from CATALOG.read(catalog)
    preparing, creating, ending = len(catalog.preparing), len(catalog.creating), len(catalog.ended)
    running = len(catalog.tablets) - preparing - creating - ending
    counts = {PREPARING: preparing, CREATING: creating, RUNNING: running, ENDING: ending}
    for state, count in counts.items():
        yield from TABLETS.read(count, state)


def _serving(master: Master) -> Iterator[Figure]:
    views = master.views
    yield from SERVING.read(
        Serving(len(views.unknown), master.scribe.waiting, views.leader_conflicts, len(views.unsettled))
    )
    known = [status.alive for status in master.servers.statuses(master.world.clock.monotonic())]
    yield from SERVERS.read(known.count(True), ALIVE)
    yield from SERVERS.read(known.count(False), SILENT)
    for kind, step in STEPS.items():
        yield from REPAIRS.read(master.messenger.repaired[kind], step)
