"""ebla: durable, replicated tables and logs that live inside a Ray cluster.

    db = ebla.connect()                     the deployment in this Ray cluster
    with ebla.local(hosts=3) as db: ...     a deployment of its own on this machine, for tests and notebooks
    ebla.aio                                the same API, awaited
    db.log("events")                        an append-only log of records, with one writer at a time
    db.session()                            nodes, watches and locks for processes that must agree

Importing ebla is light: Ray and Arrow are loaded at the first use of a name that needs them.
"""

# Editors complete every name of this module, except those that begin with "_".
import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from ebla import aio as aio
    from ebla import errors as errors
    from ebla import local_scan as local_scan
    from ebla import ray_data as ray_data
    from ebla.connection import connect as connect
    from ebla.connection import local as local
    from ebla.coordination.awaited import Check as Check
    from ebla.coordination.awaited import Create as Create
    from ebla.coordination.awaited import Delete as Delete
    from ebla.coordination.awaited import Set as Set
    from ebla.errors import AlreadyPresent as AlreadyPresent
    from ebla.errors import ConnectionClosed as ConnectionClosed
    from ebla.errors import Corruption as Corruption
    from ebla.errors import DiskFull as DiskFull
    from ebla.errors import EblaError as EblaError
    from ebla.errors import EntryLost as EntryLost
    from ebla.errors import FeedFailed as FeedFailed
    from ebla.errors import Frozen as Frozen
    from ebla.errors import Internal as Internal
    from ebla.errors import InvalidArgument as InvalidArgument
    from ebla.errors import LedgerClosed as LedgerClosed
    from ebla.errors import LedgerFenced as LedgerFenced
    from ebla.errors import LimitReached as LimitReached
    from ebla.errors import LogFenced as LogFenced
    from ebla.errors import MissingPackage as MissingPackage
    from ebla.errors import NoCluster as NoCluster
    from ebla.errors import NotEmpty as NotEmpty
    from ebla.errors import NotEnoughStores as NotEnoughStores
    from ebla.errors import NotFound as NotFound
    from ebla.errors import OutcomeUnknown as OutcomeUnknown
    from ebla.errors import OverLimit as OverLimit
    from ebla.errors import RecordsTrimmed as RecordsTrimmed
    from ebla.errors import RecoveryFailed as RecoveryFailed
    from ebla.errors import RequestReused as RequestReused
    from ebla.errors import ScanInterrupted as ScanInterrupted
    from ebla.errors import SessionExpired as SessionExpired
    from ebla.errors import SourceUnfit as SourceUnfit
    from ebla.errors import SourceUnreadable as SourceUnreadable
    from ebla.errors import StaleRequest as StaleRequest
    from ebla.errors import TableDropped as TableDropped
    from ebla.errors import Throttled as Throttled
    from ebla.errors import TimedOut as TimedOut
    from ebla.errors import Unavailable as Unavailable
    from ebla.errors import VersionMismatch as VersionMismatch
    from ebla.log.blocking import Ledger as Ledger
    from ebla.log.blocking import LedgerWriter as LedgerWriter
    from ebla.log.blocking import Log as Log
    from ebla.log.blocking import LogWriter as LogWriter
    from ebla.options import WriteId as WriteId
    from ebla.options import Written as Written
    from ebla.partitions import PartitionBy as PartitionBy
    from ebla.partitions import hash as hash
    from ebla.partitions import range as range
    from ebla.storage.predicates.expressions import col as col
    from ebla.table import Database as Database
    from ebla.table import Scan as Scan
    from ebla.table import Table as Table

__all__ = [
    "AlreadyPresent",
    "Check",
    "ConnectionClosed",
    "Corruption",
    "Create",
    "Database",
    "Delete",
    "DiskFull",
    "EblaError",
    "EntryLost",
    "FeedFailed",
    "Frozen",
    "Internal",
    "InvalidArgument",
    "Ledger",
    "LedgerClosed",
    "LedgerFenced",
    "LedgerWriter",
    "LimitReached",
    "Log",
    "LogFenced",
    "LogWriter",
    "MissingPackage",
    "NoCluster",
    "NotEmpty",
    "NotEnoughStores",
    "NotFound",
    "OutcomeUnknown",
    "OverLimit",
    "PartitionBy",
    "RecordsTrimmed",
    "RecoveryFailed",
    "RequestReused",
    "Scan",
    "ScanInterrupted",
    "SessionExpired",
    "Set",
    "SourceUnfit",
    "SourceUnreadable",
    "StaleRequest",
    "Table",
    "TableDropped",
    "Throttled",
    "TimedOut",
    "Unavailable",
    "VersionMismatch",
    "WriteId",
    "Written",
    "aio",
    "col",
    "connect",
    "errors",
    "hash",
    "local",
    "local_scan",
    "range",
    "ray_data",
]

_MODULES = ("aio", "errors", "local_scan", "ray_data")
_HOMES = {
    "connection": ("connect", "local"),
    "coordination.awaited": ("Check", "Create", "Delete", "Set"),
    "log.blocking": ("Ledger", "LedgerWriter", "Log", "LogWriter"),
    "options": ("WriteId", "Written"),
    "partitions": ("PartitionBy", "hash", "range"),
    "storage.predicates.expressions": ("col",),
    "table": ("Database", "Scan", "Table"),
}  # all other names are those of errors
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> _typing.Any:
    if name not in __all__:
        raise AttributeError(f"module 'ebla' has no attribute {name!r}")
    if name in _MODULES:
        return _importlib.import_module(f"ebla.{name}")
    home = _importlib.import_module(f"ebla.{_HOME.get(name, 'errors')}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]
