"""All messages between roles and from clients, in the order in which a cluster's life needs them.

Messages are immutable msgspec structs, encoded to MessagePack at the boundary. Times are seconds (`_s`) or
microseconds (`_us`), sizes bytes. An address is a role's stable name, such as `tablet-server/host-a`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ebla.actors.catalog_versions import CatalogVersion
from ebla.actors.errors import Triple
from ebla.actors.messages.protocols import View as View
from ebla.actors.messages.repair import ADD as ADD
from ebla.actors.messages.repair import MODIFY as MODIFY
from ebla.actors.messages.repair import REMOVE as REMOVE
from ebla.actors.messages.repair import BeginCopyRequest as BeginCopyRequest
from ebla.actors.messages.repair import CancelCopyRequest as CancelCopyRequest
from ebla.actors.messages.repair import ChangeMembersRequest as ChangeMembersRequest
from ebla.actors.messages.repair import Chunk as Chunk
from ebla.actors.messages.repair import CopyBegun as CopyBegun
from ebla.actors.messages.repair import CopyJob as CopyJob
from ebla.actors.messages.repair import CopyJobs as CopyJobs
from ebla.actors.messages.repair import DeleteTabletRequest as DeleteTabletRequest
from ebla.actors.messages.repair import EndCopyRequest as EndCopyRequest
from ebla.actors.messages.repair import FetchRequest as FetchRequest
from ebla.actors.messages.repair import MemberChange as MemberChange
from ebla.actors.messages.repair import MembersReply as MembersReply
from ebla.actors.messages.repair import QuarantineEntries as QuarantineEntries
from ebla.actors.messages.repair import QuarantineEntry as QuarantineEntry
from ebla.actors.messages.repair import QuarantineRequest as QuarantineRequest
from ebla.actors.messages.repair import StartCopyRequest as StartCopyRequest
from ebla.actors.messages.repair import UnsafeChangeRequest as UnsafeChangeRequest
from ebla.actors.messages.scans import ScanBlock as ScanBlock
from ebla.actors.messages.scans import ScanClose as ScanClose
from ebla.actors.messages.scans import ScanContinue as ScanContinue
from ebla.actors.messages.scans import ScanRequest as ScanRequest
from ebla.actors.messages.status import ListServersReply as ListServersReply
from ebla.actors.messages.status import MasterStatus as MasterStatus
from ebla.actors.messages.status import RecordedInstance as RecordedInstance
from ebla.actors.messages.status import ServerInstance as ServerInstance
from ebla.actors.messages.status import ServerStatus as ServerStatus
from ebla.actors.messages.tables import AlterTableRequest as AlterTableRequest
from ebla.actors.messages.tables import CreateTableRequest as CreateTableRequest
from ebla.actors.messages.tables import DropTableRequest as DropTableRequest
from ebla.actors.messages.tables import ListTablesReply as ListTablesReply
from ebla.actors.messages.tables import ListTablesRequest as ListTablesRequest
from ebla.actors.messages.tables import RecallTableRequest as RecallTableRequest
from ebla.actors.messages.tables import ReplicaLocation as ReplicaLocation
from ebla.actors.messages.tables import TableInfo as TableInfo
from ebla.actors.messages.tables import TableName as TableName
from ebla.actors.messages.tables import TableSummary as TableSummary
from ebla.actors.messages.tables import TabletLocation as TabletLocation
from ebla.actors.replication.configuration import RAFT as RAFT
from ebla.actors.replication.configuration import Configuration
from ebla.actors.replication.health import COPYING as COPYING
from ebla.actors.replication.health import DELETED as DELETED
from ebla.actors.replication.health import DOES_NOT_EXIST as DOES_NOT_EXIST
from ebla.actors.replication.health import FAILED as FAILED
from ebla.actors.replication.health import HEALTHY as HEALTHY
from ebla.actors.replication.health import LOST as LOST
from ebla.actors.replication.health import RUNNING as RUNNING
from ebla.actors.replication.health import SILENT as SILENT
from ebla.actors.replication.health import UNHEALTHY as UNHEALTHY
from ebla.actors.replication.health import UNKNOWN as UNKNOWN
from ebla.storage.rows.alteration import Alteration
from ebla.storage.schema import TableSchema
from ebla.storage.space import DiskSpace


class Empty(msgspec.Struct, frozen=True):
    """A request or an answer without content."""


# -- life of a server ----------------------------------------------------------------------------------------


class Registration(msgspec.Struct, frozen=True):
    address: str
    host: str
    version: str


class RunsReport(msgspec.Struct, frozen=True):
    """The sorted runs of a replica whose rows are columns. `debt_bytes`: of the rows that compactions under way, or due, have yet to
    merge."""

    runs: int
    tiers: int
    blocks: int
    debt_bytes: int


class ReplicaReport(msgspec.Struct, frozen=True):
    """One replica as its server sees it. `state`: running, failed, copying, deleted (a tombstone). `view`: the replica's view of its group,
    None if it could not be loaded; its `role` is that of its protocol, and `leads` is neutral. `health`: a leader's view of each other
    member: healthy, unknown, silent (for long), failed (out of order for long, or silent and too far behind for the log) or lost (it cannot
    return: another server has its address). `pending`: the configuration in force, if not the committed one."""

    tablet: str
    state: str
    view: View | None = None
    configuration: Configuration = Configuration(())
    schema_version: int = 0
    applied_index: int = 0
    flushed_index: int = 0
    rows_bytes: int = 0
    error: str | None = None
    health: dict[str, str] = {}
    pending: Configuration | None = None
    runs: RunsReport | None = None

    @property
    def role(self) -> str:
        return self.view.role if self.view else "follower"

    @property
    def leads(self) -> bool:
        return self.view is not None and self.view.leads

    @property
    def term(self) -> int:
        return self.view.term if self.view else 0

    @property
    def leader(self) -> str | None:
        return self.view.leader if self.view else None

    @property
    def last_index(self) -> int:
        return self.view.last_index if self.view else 0

    @property
    def verified(self) -> bool:
        return self.view.verified if self.view else False

    @property
    def asks(self) -> bool:
        return self.view.asks if self.view else False

    @property
    def commit_index(self) -> int:
        return self.view.commit_index if self.view else 0


class TabletReport(msgspec.Struct, frozen=True):
    """A full report, or (`incremental`) what changed since the acknowledged one. `sequence` grows by one."""

    sequence: int
    incremental: bool
    updated: tuple[ReplicaReport, ...]
    removed: tuple[str, ...] = ()


class HeartbeatRequest(msgspec.Struct, frozen=True):
    """A tablet server's heartbeat to one master. `replicas`: without tombstones. `disks`: of its directory,
    then of each data directory not lost. `seen`: the newest version of the catalog that a master sent it."""

    instance: ServerInstance
    registration: Registration | None = None
    report: TabletReport | None = None
    replicas: int = 0
    leaders: int = 0
    disk_bytes: int = 0
    memory_bytes: int = 0
    takes_data: bool = True  # a disk has space for further replicas
    disks: tuple[DiskSpace, ...] = ()
    seen: CatalogVersion | None = None


class HeartbeatReply(msgspec.Struct, frozen=True):
    """A master's answer. `others`: all incarnations that it knows, if the server shows a higher number."""

    master: ServerInstance
    needs_register: bool
    needs_full_report: bool
    others: tuple[ServerInstance, ...] = ()
    catalog: CatalogVersion | None = None


class CreateTabletRequest(msgspec.Struct, frozen=True):
    """Creates a replica. Idempotent: if one of this tablet exists, the server answers ok. `schema`: as the
    table was created; later alterations come through the tablet's log, so that all replicas begin alike."""

    dest_uuid: str
    tablet: str
    table: str
    table_name: str
    schema: TableSchema
    bucket: int
    configuration: Configuration


class AlterTabletRequest(msgspec.Struct, frozen=True):
    """Sent to the leader. Idempotent: a version that the tablet has already changes nothing."""

    dest_uuid: str
    tablet: str
    alteration: Alteration


# -- data ----------------------------------------------------------------------------------------------------

UPSERT, INSERT, UPDATE, DELETE = 0, 1, 2, 3


class RowBatch(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one request for one tablet, and the payload of a WRITE entry, byte for byte. `client` (16
    bytes) and `sequence` are the request's id; answers below `first_incomplete` may be dropped. `keys` and
    `values` are as storage/rows/rows.py encodes them (values empty for DELETE; for UPDATE values are of
    `columns` only, in that order). Many rows of a columnar table are in `columnar` instead, as
    storage/runs/batches.py encodes them (UPSERT and INSERT). `digest` is xxh3-64 over the rows, so that a
    reused id is caught."""

    client: bytes
    sequence: int
    first_incomplete: int
    kind: int
    schema_version: int
    digest: int
    keys: list[bytes]
    values: list[bytes]
    columns: tuple[str, ...] = ()
    columnar: bytes = b""

    @property
    def rows(self) -> int:
        return int.from_bytes(self.columnar[:4], "little") if self.columnar else len(self.keys)


class TabletWrite(msgspec.Struct, frozen=True, array_like=True):
    """A write to one tablet. `batch`: an encoded RowBatch, which is appended to the log unchanged."""

    tablet: str
    batch: bytes


class WriteRequest(msgspec.Struct, frozen=True):
    """All of a client's batches for one server. `timeout_s`: how long the server may try."""

    writes: tuple[TabletWrite, ...]
    timeout_s: float


class WriteResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a batch. `rejected`: positions of refused rows (INSERT: present; UPDATE, DELETE:
    absent); all others were applied, at log index `index`."""

    index: int
    rejected: tuple[int, ...]


class WriteReply(msgspec.Struct, frozen=True):
    """One per write, in order: a WriteResult or the error."""

    results: tuple[WriteResult | None, ...]
    errors: tuple[Triple | None, ...]


class TabletKeys(msgspec.Struct, frozen=True, array_like=True):
    tablet: str
    keys: list[bytes]


class ReadRequest(msgspec.Struct, frozen=True):
    """Linearizable gets from many tablets of one server in one call."""

    schema_version: int
    reads: tuple[TabletKeys, ...]


class ReadReply(msgspec.Struct, frozen=True):
    """For each read, the values by key position (None: absent), or the error."""

    values: tuple[list[bytes | None] | None, ...]
    errors: tuple[tuple[str, str, dict[str, Any]] | None, ...]


# -- operations ----------------------------------------------------------------------------------------------


class TabletRequest(msgspec.Struct, frozen=True):
    tablet: str
    schema_version: int = 0


class FlushRequest(msgspec.Struct, frozen=True):
    """Flushes one tablet (all, if `tablet` is None), at least up to the entries that are applied now."""

    tablet: str | None = None


class FlushReply(msgspec.Struct, frozen=True):
    flushed: dict[str, int]


class CompactRequest(msgspec.Struct, frozen=True):
    """Lets a server merge the runs of a tablet's rows up to the index `upto` (None: all that is applied now) into one tier, in the
    background. Repeat it with the `upto` of its reply until nothing is left: a server that restarts forgets the request."""

    tablet: str
    upto: int | None = None


class CompactReply(msgspec.Struct, frozen=True):
    """`left_bytes`: of the rows that are not yet merged, of `bytes` on disk."""

    upto: int
    left_bytes: int
    bytes: int


class ReadIndexReply(msgspec.Struct, frozen=True):
    tablet: str
    index: int


class LocalSnapshotRequest(msgspec.Struct, frozen=True):
    """Asks the replica on the reader's host to flush, at least up to `index` (a leader's read index)."""

    tablet: str
    index: int
    timeout_s: float = 10.0
    schema_version: int = 0


class LocalSnapshot(msgspec.Struct, frozen=True):
    """Where a process on the host may open the flushed rows, read-only: of the log at least to `index`."""

    tablet: str
    path: str
    host: str
    index: int


class StepDownRequest(msgspec.Struct, frozen=True):
    """Hands leadership over gracefully, to `successor` (uuid) or the most caught-up voter."""

    tablet: str
    successor: str | None = None
    timeout_s: float = 5.0


class StepDownReply(msgspec.Struct, frozen=True):
    leader: str | None
    term: int


class ChecksumStart(msgspec.Struct, frozen=True):
    """Asks the leader of these tablets to append a checkpoint entry to the log of each: every replica digests its rows as of that
    index."""

    tablets: tuple[str, ...]


class ChecksumStarted(msgspec.Struct, frozen=True):
    """For each tablet, in order, the index of its checkpoint or the error; Throttled if there is no room now."""

    indexes: tuple[int | None, ...]
    errors: tuple[Triple | None, ...]


class ChecksumQuery(msgspec.Struct, frozen=True):
    """Asks a server for the digests of its replicas at these checkpoints (tablet, index), and waits for them up to `timeout_s`."""

    checkpoints: tuple[tuple[str, int], ...]
    timeout_s: float = 30.0


class ChecksumReply(msgspec.Struct, frozen=True):
    """For each checkpoint, in order: the digest or the error."""

    digests: tuple[Digest | None, ...]
    errors: tuple[Triple | None, ...]


class Digest(msgspec.Struct, frozen=True):
    """Row count and digest of the rows of a replica, as of an index of its log."""

    tablet: str
    index: int
    rows: int
    digest: str


class ServerState(msgspec.Struct, frozen=True):
    """A tablet server as it sees itself. `lost_disks`: data directories that failed, and why. `set_aside`: the directory that was
    set aside to make this one, and why; "" if there is none. `pending`: by tablet, configurations in force here and not known to be
    committed. `full_disks`: those of `disks` without space for writes: less than `disk_reserve_bytes` is free. `hung_disks`: the
    directories of the disks that do not answer. `lease_left_s`: for how long the lease of its PacificA replicas is in force; 0 if it
    has none, and then `lease_refused` is why a master gave none, if one said so."""

    instance: ServerInstance
    address: str
    host: str
    replicas: tuple[ReplicaReport, ...]
    memtable_bytes: int
    shared_log_bytes: int
    disk_bytes: int
    lost_disks: dict[str, str] = {}
    set_aside: str = ""
    pending: dict[str, Configuration] = {}
    disks: tuple[DiskSpace, ...] = ()
    full_disks: tuple[str, ...] = ()
    disk_reserve_bytes: int = 0
    lease_left_s: float = 0.0
    lease_refused: str = ""
    hung_disks: tuple[str, ...] = ()
