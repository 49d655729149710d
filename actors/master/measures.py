"""The figures of a master, active or standby: see actors/figures.py.

The active master's channels to the journal's nodes are on the sheet of actors/journal/writer/measures.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from ebla.actors.figures import Figure, Sheet, counter, gauge
from ebla.actors.journal.writer import measures as journal
from ebla.actors.journal.writer.channel import ChannelStatus
from ebla.actors.master.catalog.catalog import CREATING, PREPARING, RUNNING, Catalog
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.catalog.scribe import Scribe
from ebla.actors.master.cluster.reports import Views
from ebla.actors.master.cluster.servers import Servers
from ebla.actors.master.errands.messenger import Messenger
from ebla.actors.master.rules.healing import Action, Add, Evict, HandOver, Stay
from ebla.actors.world import World

ENDING = "ending"
ALIVE, SILENT = "alive", "silent"


class MeasuredMaster(Protocol):
    """The parts of a master that serves which its figures use."""

    world: World
    log: QuorumEditLog
    scribe: Scribe
    catalog: Catalog
    views: Views
    servers: Servers
    messenger: Messenger


class Place(NamedTuple):
    """Whether a master is active at this instant, and how far its catalog is."""

    active: bool
    edits: int
    checkpointed: int


class Serving(NamedTuple):
    """Figures that only a master that serves has."""

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
        "the last change of the catalog that this master knows",
        lambda s: s.edits,
    ),
    gauge(
        "master_checkpointed_edit",
        "",
        "the last edit in this master's last checkpoint",
        lambda s: s.checkpointed,
    ),
)

CATALOG: Sheet[Catalog] = Sheet(
    (),
    gauge("master_tables", "tables", "tables in the catalog", lambda c: len(c.names)),
    gauge("master_tables_kept", "tables", "dropped tables that can still be recalled", lambda c: len(c.kept)),
    gauge(
        "master_former_replicas",
        "tablets",
        "tablets of which a server that is not a member may still have data",
        lambda c: len(c.formers),
    ),
    gauge("master_servers_draining", "servers", "servers that are being drained", lambda c: len(c.draining)),
    gauge("master_servers_maintained", "servers", "servers in maintenance", lambda c: len(c.maintained)),
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
        "master_servers",
        "servers",
        f"tablet servers, {ALIVE} or {SILENT}; reported by the active master",
        int,
    ),
)

SERVING: Sheet[Serving] = Sheet(
    (),
    gauge(
        "master_tablets_unknown",
        "tablets",
        "tablets that servers report and the catalog does not know",
        lambda s: s.tablets_unknown,
    ),
    gauge(
        "master_changes_waiting", "changes", "changes that wait for the edit log", lambda s: s.changes_waiting
    ),
    gauge(
        "master_tablets_unsettled",
        "tablets",
        "tablets with a member that is unhealthy, arriving or leaving, or with too few or too many members",
        lambda s: s.tablets_unsettled,
    ),
    counter(
        "master_leader_conflicts",
        "reports",
        "reports of a second leader in one term; always 0 unless there is a defect",
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
    counter("master_repairs", "steps", ", ".join(STEPS.values()) + ": replicas, leaders, replace flags", int),
)

LEASE: Sheet[Lease] = Sheet(
    (),
    gauge("master_epoch", "", "the journal's epoch, while this master is active", lambda lease: lease.epoch),
    gauge(
        "master_lease_held",
        "0/1",
        "this master holds the lease at the journal nodes",
        lambda lease: lease.held,
    ),
)

SHEETS = (PLACE, CATALOG, TABLETS, SERVING, SERVERS, REPAIRS, LEASE, journal.LINE)


def measure_active(master: MeasuredMaster) -> Iterator[Figure]:
    yield from PLACE.read(Place(True, master.log.last_txid, master.scribe.checkpointed))
    yield from _catalog(master.catalog)
    yield from _serving(master)


def measure_lease(epoch: int, held: bool, nodes: Sequence[ChannelStatus]) -> Iterator[Figure]:
    """The further figures of an active master: its epoch, its lease, and the nodes of its journal."""
    yield from LEASE.read(Lease(epoch, held))
    yield from journal.measure_lines(nodes)


def measure_standby(catalog: Catalog, txid: int, checkpointed: int) -> Iterator[Figure]:
    yield from PLACE.read(Place(False, txid, checkpointed))
    yield from _catalog(catalog)


def _catalog(catalog: Catalog) -> Iterator[Figure]:
    yield from CATALOG.read(catalog)
    preparing, creating, ending = len(catalog.preparing), len(catalog.creating), len(catalog.ended)
    running = len(catalog.tablets) - preparing - creating - ending
    counts = {PREPARING: preparing, CREATING: creating, RUNNING: running, ENDING: ending}
    for state, count in counts.items():
        yield from TABLETS.read(count, state)


def _serving(master: MeasuredMaster) -> Iterator[Figure]:
    views = master.views
    yield from SERVING.read(
        Serving(len(views.unknown), master.scribe.waiting, views.leader_conflicts, len(views.unsettled))
    )
    known = [status.alive for status in master.servers.statuses(master.world.clock.monotonic())]
    yield from SERVERS.read(known.count(True), ALIVE)
    yield from SERVERS.read(known.count(False), SILENT)
    for kind, step in STEPS.items():
        yield from REPAIRS.read(master.messenger.repaired[kind], step)
