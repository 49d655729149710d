"""ebla: durable, replicated tables and logs that live inside a Ray cluster.

    db = ebla.connect()                     the deployment in this Ray cluster
    with ebla.local(hosts=3) as db: ...     one of its own on this machine, for tests and notebooks
    ebla.aio                                the same API, awaited
    db.session()                            nodes, watches and locks for processes that must agree

Importing ebla is light: Ray and Arrow are loaded at the first use of a name that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebla import aio, errors
    from ebla.connection import connect, local
    from ebla.coordination.awaited import Check, Create, Delete, Set
    from ebla.errors import (
        AlreadyPresent,
        ConnectionClosed,
        EblaError,
        InvalidArgument,
        NotFound,
        RequestReused,
        ScanInterrupted,
        SessionExpired,
        StaleRequest,
        Throttled,
        TimedOut,
        Unavailable,
        VersionMismatch,
    )
    from ebla.options import WriteId, Written
    from ebla.partitions import PartitionBy, hash, range
    from ebla.storage.predicates.expressions import col
    from ebla.table import Database, Scan, Table

__all__ = [
    "AlreadyPresent",
    "Check",
    "ConnectionClosed",
    "Create",
    "Database",
    "Delete",
    "EblaError",
    "InvalidArgument",
    "NotFound",
    "PartitionBy",
    "RequestReused",
    "Scan",
    "ScanInterrupted",
    "SessionExpired",
    "Set",
    "StaleRequest",
    "Table",
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
    "range",
]

_HOME = {
    "Check": "coordination.awaited",
    "Create": "coordination.awaited",
    "Delete": "coordination.awaited",
    "Set": "coordination.awaited",
    "Database": "table",
    "PartitionBy": "partitions",
    "Scan": "table",
    "Table": "table",
    "WriteId": "options",
    "Written": "options",
    "col": "storage.predicates.expressions",
    "connect": "connection",
    "hash": "partitions",
    "local": "connection",
    "range": "partitions",
}
_MODULES = ("aio", "errors")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ebla' has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"ebla.{name}")
    value = getattr(importlib.import_module(f"ebla.{_HOME.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
