"""Every error that ebla raises, and what the caller does next.

    InvalidArgument    the call can never succeed as it is            change the column, row or option it names
    OverLimit          an InvalidArgument: above a stated limit       ask for less, or have `limit` raised
    NotFound           the table, or the rows at `rows`, do not exist
    TableDropped       a NotFound: the dropped table is still kept    recall it
    AlreadyPresent     the table, or the rows at `rows`, exist already
    TimedOut           the deadline passed; a write may be applied    read, or send it again with the same write id
    Throttled          a stated limit is full                         wait `retry_after_s` (the client does)
    OutcomeUnknown     it is not known whether it was carried out     read, or send it again with the same write id
    DiskFull           a disk is full; nothing was changed            free space, send it again
    TooManyFiles       a process can open no further file now         raise its limit (ulimit -Hn), try again
    Unavailable        no deployment, no quorum, no master;           see `ebla check`
                       the request was not carried out
    NoCluster          an Unavailable: no Ray cluster answers         start one, or give its address
    Frozen             the cluster's level creates no tables now      wait for servers, or `ebla level`
    ScanInterrupted    a streamed tablet's snapshot was lost          scan again
    SessionExpired     a session for coordination has ended           open another session
    VersionMismatch    a node has changed since it was read           read it again, decide again
    NotEmpty           a node has children                            delete them first
    LimitReached       a limit of the namespace is reached            delete nodes, or have the limit raised
    LogFenced          another writer has opened the log             open a new writer to go on
    RecordsTrimmed     records before `first` were deleted           read from `first` on
    NotEnoughStores    fewer ledger stores run than a log needs      start hosts, or wait for them
    RecoveryFailed     too few stores know where a log ends          wait for stores, then open a writer again
    EntryLost          no store has a sound copy of a record         bring stores back; `ebla ledger check`
    LedgerClosed       the writer of a log or ledger was closed      open another one
    LedgerFenced       another client has opened the ledger          create another ledger
    RequestReused      a write id was used with other rows            use another write id
    StaleRequest       the answer to a write id is no longer kept     read, then decide
    Corruption         bytes fail their check, on every replica       see `ebla check`
    SourceUnreadable   the source of rows cannot be read              mend the source, or say how to read it
    SourceUnfit        rows of a source do not fit; none was written  mend them, or `on_error="skip"`
    FeedFailed         a feed ended early; rows may be written        feed again under the same job
    MissingPackage     a package that the call needs is missing       install it as the message says
    Internal           a defect of ebla                               report it; see the role's log
    ConnectionClosed   the connection was closed, or forked           ebla.connect()

All derive from EblaError, have fields, and are names of `ebla` itself: `ebla.NotFound`. `possibly_applied` says for every kind
whether a write may have been applied: a refusal is certain only if every earlier try got an answer (actors/asking/certainty.py).
The other errors occur inside the cluster; a user sees them only as the reason of one of these, or in a role's log.
"""

import ebla as _ebla
from ebla.actors.coordination.errors import LimitReached as LimitReached
from ebla.actors.coordination.errors import NotEmpty as NotEmpty
from ebla.actors.coordination.errors import SessionExpired as SessionExpired
from ebla.actors.coordination.errors import VersionMismatch as VersionMismatch
from ebla.actors.errors import AlreadyInProgress as AlreadyInProgress
from ebla.actors.errors import AlreadyPresent as AlreadyPresent
from ebla.actors.errors import ConfigurationMoved as ConfigurationMoved
from ebla.actors.errors import ConnectionClosed as ConnectionClosed
from ebla.actors.errors import CopyExpired as CopyExpired
from ebla.actors.errors import Frozen as Frozen
from ebla.actors.errors import IllegalState as IllegalState
from ebla.actors.errors import Internal as Internal
from ebla.actors.errors import NetworkError as NetworkError
from ebla.actors.errors import NoCluster as NoCluster
from ebla.actors.errors import NotActive as NotActive
from ebla.actors.errors import NotDelivered as NotDelivered
from ebla.actors.errors import NotFound as NotFound
from ebla.actors.errors import NotLeader as NotLeader
from ebla.actors.errors import NotRunning as NotRunning
from ebla.actors.errors import OldTerm as OldTerm
from ebla.actors.errors import OutcomeUnknown as OutcomeUnknown
from ebla.actors.errors import ReplicaFailed as ReplicaFailed
from ebla.actors.errors import RequestReused as RequestReused
from ebla.actors.errors import SchemaMismatch as SchemaMismatch
from ebla.actors.errors import StaleRequest as StaleRequest
from ebla.actors.errors import TableDropped as TableDropped
from ebla.actors.errors import TabletNotFound as TabletNotFound
from ebla.actors.errors import TabletRemoved as TabletRemoved
from ebla.actors.errors import Throttled as Throttled
from ebla.actors.errors import TimedOut as TimedOut
from ebla.actors.errors import Unavailable as Unavailable
from ebla.actors.errors import WrongServer as WrongServer
from ebla.actors.ledger.errors import EndUndecided as EndUndecided
from ebla.actors.ledger.errors import EndUnknown as EndUnknown
from ebla.actors.ledger.errors import EntryLost as EntryLost
from ebla.actors.ledger.errors import LedgerBusy as LedgerBusy
from ebla.actors.ledger.errors import LedgerClosed as LedgerClosed
from ebla.actors.ledger.errors import LedgerError as LedgerError
from ebla.actors.ledger.errors import LedgerFenced as LedgerFenced
from ebla.actors.ledger.errors import NotEnoughStores as NotEnoughStores
from ebla.actors.ledger.errors import RecoveryFailed as RecoveryFailed
from ebla.actors.ledger.errors import StoreLeaving as StoreLeaving
from ebla.actors.ledger.errors import StoreReadOnly as StoreReadOnly
from ebla.actors.ledger.errors import WrongToken as WrongToken
from ebla.placement.extras import MissingPackage as MissingPackage
from ebla.storage.errors import Corruption as Corruption
from ebla.storage.errors import Damaged as Damaged
from ebla.storage.errors import DataDiskFailed as DataDiskFailed
from ebla.storage.errors import DirectoryLocked as DirectoryLocked
from ebla.storage.errors import DiskFailed as DiskFailed
from ebla.storage.errors import DiskFull as DiskFull
from ebla.storage.errors import EblaError as EblaError
from ebla.storage.errors import Forgotten as Forgotten
from ebla.storage.errors import InvalidArgument as InvalidArgument
from ebla.storage.errors import OldCopy as OldCopy
from ebla.storage.errors import OverLimit as OverLimit
from ebla.storage.errors import SnapshotExpired as SnapshotExpired
from ebla.storage.errors import StorageError as StorageError
from ebla.storage.errors import TooManyFiles as TooManyFiles


class ScanInterrupted(EblaError):
    """The caller has some rows of `tablet`, and its snapshot is gone, so that the other rows cannot be read as of the same
    moment. Scan again, or use `to_arrow`, which begins such a tablet again by itself."""

    fields = ("tablet", "rows")
    tablet: str | None
    rows: int | None
    retriable = True


class SourceUnreadable(EblaError):
    """The source cannot be read; `source` names it."""

    fields = ("source",)
    source: str | None


class SourceUnfit(EblaError):
    """The source has rows that do not fit the table, or rows with the same key. Nothing was written.

    `unfit` and `repeated` are numbers of rows, `rows` the first rows that do not fit.
    """

    source: str | None
    unfit: int | None
    repeated: int | None
    rows: tuple[object, ...] | None


class LogFenced(EblaError):
    """Another writer has opened the log: this one has ended. Records that were under way may be in the log."""

    log: str | None
    possibly_applied = True


class RecordsTrimmed(EblaError):
    """The records before `first` have been deleted."""

    log: str | None
    first: int | None


class FeedFailed(EblaError):
    """The feed ended early. Rows may have been written; feed again, and the table equals the source."""

    fields = ("job", "rows")
    job: str | None
    rows: int | None
    possibly_applied = True


__all__ = [name for name, kind in globals().items() if isinstance(kind, type) and issubclass(kind, EblaError)]

# Of these errors, calls raise those that are names of `ebla`; the others occur inside the cluster only.
RAISED = [name for name in __all__ if name in _ebla.__all__]

# Tracebacks, help and pickles name the errors that calls raise as users do: `ebla.NotFound`.
for _name in RAISED:
    globals()[_name].__module__ = "ebla"
