"""ebla: durable, replicated tables and logs that live inside a Ray cluster.

    db = ebla.connect()                     the deployment in this Ray cluster
    with ebla.local(hosts=3) as db: ...     a deployment of its own on this machine, for tests and notebooks
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

_HOMES = {
    "coordination.awaited": ("Check", "Create", "Delete", "Set"),
    "connection": ("connect", "local"),
    "errors": (
        "AlreadyPresent",
        "ConnectionClosed",
        "EblaError",
        "InvalidArgument",
        "NotFound",
        "RequestReused",
        "ScanInterrupted",
        "SessionExpired",
        "StaleRequest",
        "Throttled",
        "TimedOut",
        "Unavailable",
        "VersionMismatch",
    ),
    "options": ("WriteId", "Written"),
    "partitions": ("PartitionBy", "hash", "range"),
    "storage.predicates.expressions": ("col",),
    "table": ("Database", "Scan", "Table"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("aio", "errors")

__all__ = sorted((*_MODULES, *_HOME))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"ebla.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'ebla' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"ebla.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
