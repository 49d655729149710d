"""Surveys of a deployment, and verdicts on it: values only.

STATUSES are the statuses of a tablet, from good to bad; tablets.py explains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ebla.actors.replication.configuration import PACIFICA, RAFT, Forced
from ebla.wording import count

if TYPE_CHECKING:
    from ebla.actors.journal.messages import JournalNodeStatus
    from ebla.actors.ledger.messages import StoreStatus
    from ebla.actors.master.messages import JournalWriterStatus
    from ebla.actors.messages import (
        Digest,
        MasterStatus,
        ReplicaReport,
        ServerState,
        ServerStatus,
        TableInfo,
    )

T = TypeVar("T")

VOTER, PRE_VOTER, NON_VOTER = "voter", "pre-voter", "non-voter"  # members of a tablet

ACTIVE = "active"  # the role of the master that serves
HEALTHY = "HEALTHY"
RECOVERING = "RECOVERING"
REJOINING = "REJOINING"
UNDER_REPLICATED = "UNDER_REPLICATED"
DEGRADED = "DEGRADED"  # all tables are well; another role is not
CONSENSUS_MISMATCH = "CONSENSUS_MISMATCH"
CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
UNAVAILABLE = "UNAVAILABLE"  # of a deployment: no master is active, or no edit can be made durable
UNWRITABLE, UNREADABLE, DEAD = "UNWRITABLE", "UNREADABLE", "DEAD"  # of tablets, see service.py
DISK_FULL = "DISK_FULL"  # a server, a master or a journal node stores nothing more until there is space
DISK_HUNG = "DISK_HUNG"  # a disk of a server, or of a ledger store, does not answer
STATUSES = (
    HEALTHY,
    RECOVERING,
    DEGRADED,
    UNDER_REPLICATED,
    DISK_FULL,
    DISK_HUNG,
    CONSENSUS_MISMATCH,
    CHECKSUM_MISMATCH,
    UNAVAILABLE,
    UNWRITABLE,
    UNREADABLE,
    DEAD,
)
OUT_OF_SERVICE = (UNWRITABLE, UNREADABLE, DEAD)

FULLY_HEALTHY, UNHEALTHY = "fully healthy", "writable but unhealthy"
CLASSES = {
    HEALTHY: FULLY_HEALTHY,
    UNWRITABLE: "readable but unwritable",
    UNREADABLE: "unreadable",
    DEAD: "dead",
}

LAGGING, BOOTSTRAPPING, COPYING, FAILED = "LAGGING", "BOOTSTRAPPING", "COPYING", "FAILED"
MISSING, UNREACHABLE, WRONG_SERVER = "MISSING", "UNREACHABLE", "WRONG_SERVER"
TOMBSTONE = (
    "TOMBSTONE"  # a member without data, since its data or its copy was lost; the leader has it copied
)
DISK_LOST = "DISK_LOST"  # a data directory of the server failed; its replicas there are created again
STOPPED = "STOPPED"  # a drained server that does not answer
SILENT = "SILENT"  # a server or store that answers, but does not reach the master
UNRECOVERABLE = "UNRECOVERABLE"  # a ledger with entries that have no readable copy
READ_ONLY = "READ_ONLY"  # a ledger store that takes no records for want of space
NO_LEASE = "NO_LEASE"  # a server that answers, and whose PacificA replicas may not lead
OUT_OF_ORDER = ("silent", "unhealthy", "lost")  # a replica, as its leader reports


# -- surveys -------------------------------------------------------------------------------------------------


class Unanswered(msgspec.Struct, frozen=True):
    """A role that gave no answer, and why."""

    kind: str
    message: str


def answered(roles: Mapping[str, T | Unanswered]) -> dict[str, T]:
    """The roles that answered, by address."""
    return {address: answer for address, answer in roles.items() if not isinstance(answer, Unanswered)}


def silent(roles: Mapping[str, Any]) -> dict[str, str]:
    """The roles that did not answer, by address, and why."""
    return {address: answer.message for address, answer in roles.items() if isinstance(answer, Unanswered)}


class LedgerHealth(msgspec.Struct, frozen=True):
    """A ledger that is marked for repair. `status`: UNDER_REPLICATED or UNRECOVERABLE. `stores` lack entries, or are lost. `reason`: why
    it is not whole yet, if a worker has tried. `entries` without a readable copy, as ranges (the first ones), and the stores that do
    not run and should have them (`missing`)."""

    ledger: int
    status: str
    stores: tuple[str, ...]
    reason: str | None = None
    entries: tuple[tuple[int, int], ...] = ()
    missing: tuple[str, ...] = ()


class Survey(msgspec.Struct, frozen=True):
    """The answers of all roles, by address: `masters`, tablet servers (`states`) and journal nodes (`journals`). `writer`: the
    active master's report of the journal nodes. `stores`: ledger stores, `registered` the uuids of those that count as running
    (None: not known), `leaving` those whose hosts are being decommissioned. `ledgers`: those that are marked for repair,
    `ledgers_unknown` why there may be more, and `repairs_idle` why nothing is repaired. `slots`: the addresses of all servers of the
    deployment, also of servers without a heartbeat since the master started."""

    masters: dict[str, MasterStatus | Unanswered]
    servers: tuple[ServerStatus, ...]
    tables: tuple[TableInfo, ...]
    states: dict[str, ServerState | Unanswered]
    slots: tuple[str, ...] = ()
    journals: dict[str, JournalNodeStatus | Unanswered] = {}
    writer: JournalWriterStatus | Unanswered | None = None
    stores: dict[str, StoreStatus | Unanswered] = {}
    leaving: tuple[str, ...] = ()
    ledgers: tuple[LedgerHealth, ...] = ()
    ledgers_unknown: str | None = None
    registered: tuple[str, ...] | None = None
    repairs_idle: str | None = None

    @property
    def active(self) -> str | None:
        """The address of the active master, if one answered."""
        known = answered(self.masters).items()
        return next((address for address, status in known if status.role == ACTIVE), None)

    def reports(self, tablet: str) -> dict[str, ReplicaReport]:
        """The tablet's replicas on the servers that answered, by the uuids of the servers."""
        return {
            state.instance.uuid: replica
            for state in answered(self.states).values()
            for replica in state.replicas
            if replica.tablet == tablet
        }


def member_word(member: str, replication: str) -> str:
    """How people call a member: the pre-voter of a PacificA tablet is its learner."""
    return "learner" if replication == PACIFICA and member == PRE_VOTER else member


def health_class(status: str) -> str:
    """The health class of a tablet with this status."""
    return CLASSES.get(status, UNHEALTHY)


class Digests(msgspec.Struct, frozen=True):
    """The digests of one tablet's replicas at log index `index`, by server uuid; `error`: why there is no index."""

    index: int
    replicas: dict[str, Digest | Unanswered]
    error: Unanswered | None = None


# -- verdicts ------------------------------------------------------------------------------------------------


class ReplicaHealth(msgspec.Struct, frozen=True):
    """`leader` and `members` are those that this replica reports (uuids); `lag` counts committed entries that it has not applied.
    Positions are None if it gave no answer. By the leader's configuration: `member` is voter, pre-voter or non-voter;
    `replace`: it leaves as soon as another has caught up; `health`: the leader's report of it (healthy, unknown, silent,
    failed, lost). `draining`, `maintained`, `suspended`, `unlisted`: the marks of operators on its server. From `tiers` on: of its
    sorted runs, None if its rows are no columns (RunsReport)."""

    uuid: str
    address: str
    status: str
    role: str | None = None
    term: int | None = None
    leader: str | None = None
    members: tuple[str, ...] | None = None
    configuration_index: int | None = None
    last_index: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    flushed_index: int | None = None
    lag: int | None = None
    bytes: int | None = None
    rows: int | None = None
    digest: str | None = None
    error: str | None = None
    member: str | None = None
    replace: bool = False
    health: str | None = None
    draining: bool = False
    maintained: bool = False
    suspended: bool = False
    unlisted: bool = False
    tiers: int | None = None
    runs: int | None = None
    blocks: int | None = None
    debt_bytes: int | None = None


class TabletHealth(msgspec.Struct, frozen=True):
    """`unsafe`: how often a configuration was forced on it; `forced`: of a PacificA tablet, what the catalog keeps of each.
    `term`: of a PacificA tablet its ballot. `health_class`: what it still does (service.py)."""

    tablet: str
    table: str
    bucket: int
    status: str
    leader: str | None
    term: int
    wanted: int
    healthy: int
    replicas: tuple[ReplicaHealth, ...]
    reasons: tuple[str, ...]
    checksum_index: int | None = None
    unsafe: int = 0
    replication: str = RAFT
    health_class: str = FULLY_HEALTHY
    forced: tuple[Forced, ...] = ()


class TableHealth(msgspec.Struct, frozen=True):
    """`tablets` counts the tablets by status, `classes` by health class."""

    name: str
    status: str
    wanted: int
    tablets: dict[str, int]
    bytes: int
    classes: dict[str, int]

    def sick(self) -> list[tuple[str, int]]:
        """The statuses of the tablets that are not healthy, the worst first, with the numbers of tablets."""
        found = [(status, self.tablets.get(status, 0)) for status in reversed(STATUSES[1:])]
        return [(status, number) for status, number in found if number]


def reasons_of_tables(tables: Sequence[TableHealth]) -> list[str]:
    return [
        f"table {table.name}: {count(number, 'tablet')} {status}"
        for table in tables
        for status, number in table.sick()
    ]


class ServerHealth(msgspec.Struct, frozen=True):
    """`status`: HEALTHY, STOPPED, UNREACHABLE, WRONG_SERVER, SILENT, NO_LEASE, DISK_LOST, DISK_FULL or DISK_HUNG. `free_bytes`: on
    the fullest of its disks; `low`: a warning that one of them is nearly full. `set_aside`: the old directory of a server that came back as a
    new one, and why; it may be inspected, and deleted."""

    address: str
    status: str
    uuid: str | None
    host: str | None
    replicas: int
    leaders: int
    failed: int
    heartbeat_age_s: float | None = None
    error: str | None = None
    draining: bool = False
    set_aside: str = ""
    maintained: bool = False
    suspended: bool = False
    unlisted: bool = False
    free_bytes: int | None = None
    low: str = ""


class MasterHealth(msgspec.Struct, frozen=True):
    """`frozen`: since when and why the active master cures nothing. `status`: HEALTHY, LAGGING (sessions should have expired some time ago; a standby could not take over now, or is far
    behind), DISK_FULL or UNREACHABLE. `low`: a warning that its disk is nearly full. `role`: active or standby, None without an answer. `sessions`: of coordination, at the active
    master; `sessions_overdue` of them should have expired."""

    address: str
    status: str
    error: str | None = None
    role: str | None = None
    sessions: int = 0
    sessions_overdue: int = 0
    frozen: str = ""
    low: str = ""


class JournalHealth(msgspec.Struct, frozen=True):
    """`status`: HEALTHY, LAGGING (the writer has left it out until the next segment, or it fetches missing data), FAILED (its data
    is damaged, or another deployment's), MISSING (it has no journal any more), REJOINING (it lost the journal, and counts for
    no majority yet), DISK_FULL or UNREACHABLE. `low`: a warning that its disk is nearly full."""

    address: str
    status: str
    error: str | None = None
    low: str = ""


class StoreHealth(msgspec.Struct, frozen=True):
    """A ledger store. `status`: HEALTHY, READ_ONLY, DISK_HUNG, SILENT, UNREACHABLE, or STOPPED if it does not answer and its host is
    being decommissioned (`leaving`). Without an answer the other fields are None."""

    address: str
    status: str
    error: str | None = None
    uuid: str | None = None
    ledgers: int | None = None
    bytes: int | None = None
    free_bytes: int | None = None
    read_only: bool | None = None
    leaving: bool = False


class ClusterHealth(msgspec.Struct, frozen=True):
    """`ledgers_unknown`: why there may be more ledgers that are marked for repair; `repairs_idle`: why none is repaired."""

    status: str
    healthy: bool
    reasons: tuple[str, ...]
    masters: tuple[MasterHealth, ...]
    servers: tuple[ServerHealth, ...]
    tables: tuple[TableHealth, ...]
    tablets: tuple[TabletHealth, ...]
    journals: tuple[JournalHealth, ...] = ()
    stores: tuple[StoreHealth, ...] = ()
    ledgers: tuple[LedgerHealth, ...] = ()
    ledgers_unknown: str | None = None
    repairs_idle: str | None = None
