"""Every error that ebla raises, and what the caller does next.

    InvalidArgument    the call can never succeed as it is            change the column, row or option it names
    OverLimit          one of those: a stated limit would be passed   ask for less, or have `limit` raised
    NotFound           the table, or the rows at `rows`, do not exist
    TableDropped       a NotFound: the table is kept for a while      recall it
    AlreadyPresent     the table, or the rows at `rows`, exist already
    TimedOut           the deadline passed; a write may have happened look, or send it again with the same write id
    Throttled          a stated limit is full                         wait `retry_after_s` (the client does)
    OutcomeUnknown     nobody can tell whether it was carried out     look, or send it again with the same write id
    DiskFull           a disk is full; nothing was changed            free space, send it again
    Unavailable        no deployment, no quorum, no master; a request see `ebla check`
                       that got it was not carried out
    ScanInterrupted    a streamed tablet's snapshot was lost          scan again
    SessionExpired     a session for coordination has ended           open another one
    VersionMismatch    a node has changed since it was read           read it again, decide again
    NotEmpty, LimitReached    a node has children; a namespace is full
    ConnectionClosed   the connection was closed, or forked           ebla.connect()

All derive from EblaError and carry fields; `possibly_applied` tells whether a write may have happened, whatever the kind: a
refusal is certain only if no earlier try was left without an answer (transport/certainty.py). The others are met inside the cluster and
reach a user only as the reason of one of these, or in a role's log.
"""

from __future__ import annotations

from ebla.actors.coordination.errors import LimitReached, NotEmpty, SessionExpired, VersionMismatch
from ebla.actors.errors import (
    AlreadyInProgress,
    AlreadyPresent,
    ConfigurationMoved,
    CopyExpired,
    IllegalState,
    Internal,
    NetworkError,
    NotActive,
    NotDelivered,
    NotFound,
    NotLeader,
    NotRunning,
    OldTerm,
    OutcomeUnknown,
    ReplicaFailed,
    RequestReused,
    SchemaMismatch,
    StaleRequest,
    TableDropped,
    TabletNotFound,
    TabletRemoved,
    Throttled,
    TimedOut,
    Unavailable,
    WrongServer,
)
from ebla.storage.errors import (
    Corruption,
    Damaged,
    DataDiskFailed,
    DirectoryLocked,
    DiskFailed,
    DiskFull,
    EblaError,
    Forgotten,
    InvalidArgument,
    OldCopy,
    OverLimit,
    SnapshotExpired,
    StorageError,
)

__all__ = [
    "AlreadyInProgress",
    "AlreadyPresent",
    "ConfigurationMoved",
    "ConnectionClosed",
    "Corruption",
    "Damaged",
    "DataDiskFailed",
    "DirectoryLocked",
    "DiskFailed",
    "DiskFull",
    "EblaError",
    "Forgotten",
    "IllegalState",
    "Internal",
    "InvalidArgument",
    "LimitReached",
    "NetworkError",
    "CopyExpired",
    "NotActive",
    "NotDelivered",
    "NotEmpty",
    "NotFound",
    "NotLeader",
    "NotRunning",
    "OldCopy",
    "OldTerm",
    "OutcomeUnknown",
    "OverLimit",
    "ReplicaFailed",
    "RequestReused",
    "ScanInterrupted",
    "SchemaMismatch",
    "SessionExpired",
    "SnapshotExpired",
    "StaleRequest",
    "StorageError",
    "TableDropped",
    "TabletNotFound",
    "TabletRemoved",
    "Throttled",
    "TimedOut",
    "Unavailable",
    "VersionMismatch",
    "WrongServer",
]


class ConnectionClosed(EblaError):
    """The connection was closed, or belongs to the process that this one was forked from.

    A write that was under way may have been applied.
    """

    possibly_applied = True


class ScanInterrupted(EblaError):
    """Rows of `tablet` were handed out already and its snapshot is gone, so that the rest of it cannot be read as
    of the same moment. Scan again, or let `to_arrow` collect the tablet (it starts over by itself)."""

    fields = ("tablet", "rows")
    tablet: str | None
    rows: int | None
    retriable = True
