"""The figures of a master, active or standby: see actors/figures.py.

The active master's channels to the journal's nodes are on the sheet of actors/journal/writer/measures.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ebla.actors.detector import detector as leases
from ebla.actors.figures import Figure, Sheet, counter, gauge
from ebla.actors.journal.writer import measures as journal
from ebla.actors.journal.writer.channel import ChannelStatus
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.records import CREATING, PREPARING, RUNNING
from ebla.actors.master.cluster.servers import gets_leases
from ebla.actors.master.pacifica.appointer import Appointer
from ebla.actors.master.rules.healing import Action, Add, Evict, HandOver, Stay, writes_wait
from ebla.actors.master.server import ActiveMaster
from ebla.actors.replication.configuration import Peer

ENDING = "ending"
ALIVE, SILENT = "alive", "silent"
DETECTED = (leases.ALIVE, leases.UNKNOWN, leases.ENDING, leases.ENDED)
UNHEALTHY, UNWRITABLE, UNREADABLE, DEAD = UNWELL = ("unhealthy", "unwritable", "unreadable", "dead")


class Place(NamedTuple):
    """Whether a master is active at this instant, and how far its catalog is."""

    active: bool
    edits: int
    checkpointed: int


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

SERVING: Sheet[ActiveMaster] = Sheet(
    (),
    gauge(
        "master_tablets_unknown",
        "tablets",
        "tablets that servers report and the catalog does not know",
        lambda m: len(m.views.unknown),
    ),
    gauge(
        "master_changes_waiting", "changes", "changes that wait for the edit log", lambda m: m.scribe.waiting
    ),
    gauge(
        "master_tablets_unsettled",
        "tablets",
        "tablets with a member that is unhealthy, arriving or leaving, or with too few or too many members",
        lambda m: len(m.views.unsettled),
    ),
    gauge(
        "master_tablets_unserved",
        "tablets",
        "running tablets, in every replication protocol, without a leader that is known and whose server answers",
        lambda m: _unserved(m),
    ),
    counter(
        "master_leader_conflicts",
        "reports",
        "reports of a second leader in one term; always 0 unless there is a defect",
        lambda m: m.views.leader_conflicts,
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

PACIFICA: Sheet[Appointer] = Sheet(
    (),
    counter(
        "master_ballots",
        "ballots",
        "configurations that PacificA tablets got after their first",
        lambda a: a.ballots,
    ),
    counter(
        "master_ballot_edits",
        "edits",
        "edits with these configurations; one may have thousands",
        lambda a: a.edits,
    ),
    counter(
        "master_servers_ended",
        "servers",
        "servers whose PacificA replicas were taken away: silent, died, or started again",
        lambda a: a.ends,
    ),
    counter(
        "master_beacons_acknowledged",
        "beacons",
        "beacons that gave a server a lease, or extended it",
        lambda a: a.acknowledged,
    ),
    counter(
        "master_beacons_refused",
        "beacons",
        "beacons that were not acknowledged; some when a server starts",
        lambda a: a.refused,
    ),
    gauge(
        "master_tablets_unled",
        "tablets",
        "PacificA tablets of which no primary is known to lead",
        lambda a: len(a.planner.unled),
    ),
)

LEASED: Sheet[int] = Sheet(
    ("state",),
    gauge(
        "master_leases",
        "servers",
        f"servers with PacificA replicas: {leases.ALIVE} (with a lease), {leases.UNKNOWN} (no beacon yet), {leases.ENDING} "
        f"(silent, died or started again), {leases.ENDED} (what they led was taken away)",
        int,
    ),
)

UNWELL_TABLETS: Sheet[int] = Sheet(
    ("state",),
    gauge(
        "master_pacifica_tablets",
        "tablets",
        f"PacificA tablets that are {UNHEALTHY} (members are missing), {UNWRITABLE} (fewer healthy voters than min_members), "
        f"{UNREADABLE} (no primary leads) or {DEAD} (and no voter is alive)",
        int,
    ),
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

SHEETS = (
    *(PLACE, CATALOG, TABLETS, SERVING, SERVERS, REPAIRS),
    *(PACIFICA, LEASED, UNWELL_TABLETS, LEASE, journal.LINE),
)


def measure_active(master: ActiveMaster) -> Iterator[Figure]:
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


def _serving(master: ActiveMaster) -> Iterator[Figure]:
    yield from SERVING.read(master)
    known = [status.alive for status in master.servers.statuses(master.world.now())]
    yield from SERVERS.read(known.count(True), ALIVE)
    yield from SERVERS.read(known.count(False), SILENT)
    for kind, step in STEPS.items():
        yield from REPAIRS.read(master.messenger.repaired[kind], step)
    yield from PACIFICA.read(master.appointer)
    states = master.appointer.detector.states()
    for state in DETECTED:
        yield from LEASED.read(states[state], state)
    unwell = Counter(_unwell(master))
    for state in UNWELL:
        yield from UNWELL_TABLETS.read(unwell[state], state)


def _unwell(master: ActiveMaster) -> Iterator[str]:
    """The state of each PacificA tablet that has no primary, or needs another member."""
    planner = master.appointer.planner
    for tablet in dict.fromkeys((*planner.unled, *master.views.unsettled)):
        known = planner.stored(tablet)
        if known is None:
            continue
        if tablet in planner.unled:
            yield UNREADABLE if any(_is_alive(master, peer) for peer in known.voters()) else DEAD
        else:
            situation = master.views.situation(master.catalog, tablet)
            yield UNWRITABLE if situation is not None and writes_wait(situation) else UNHEALTHY


def _is_alive(master: ActiveMaster, voter: Peer) -> bool:
    """Whether the voter's server has a lease, or would have one if no operator withheld it."""
    if master.appointer.detector.lease(voter.uuid):
        return True
    answers = master.servers.answers(voter.uuid, master.world.now())
    return answers and not gets_leases(master.catalog, voter.address)


def _unserved(master: ActiveMaster) -> int:
    """The running tablets without a known leader on a server that answers."""
    live = {server.uuid: None for server in master.servers.alive(master.world.now())}
    catalog, views = master.catalog, master.views.tablets
    running = (each for each, record in catalog.tablets.items() if record.state == RUNNING)
    return sum(
        (tablet not in views or views[tablet].leader not in live) and tablet not in catalog.ended
        for tablet in running
    )
