"""What clients and masters say to each other about tables; a part of __init__.py, where everybody finds it."""

from __future__ import annotations

import msgspec

from ebla.storage.rows.altered import Change
from ebla.storage.schema import TableSchema


class CreateTableRequest(msgspec.Struct, frozen=True):
    """`request_id` makes a retry after a lost answer return the first answer."""

    request_id: str
    name: str
    schema: TableSchema
    replicas: int
    replication: str = "raft"
    properties: dict[str, str] = {}


class DropTableRequest(msgspec.Struct, frozen=True):
    """`name`: of the table, or the id of one that was dropped before and is kept, to have it go now. `reserve_s`: for how
    long it can be recalled (0: it goes at once; None: as the master's options say)."""

    request_id: str
    name: str
    reserve_s: float | None = None


class RecallTableRequest(msgspec.Struct, frozen=True):
    """`table`: the id of a table that is kept, or the name that it had. `name`: which it shall have; "" for that one."""

    request_id: str
    table: str
    name: str = ""


class AlterTableRequest(msgspec.Struct, frozen=True):
    """All of it or nothing. `table`: the id, if it is known. `rename`: what the table is called from now on, "" for as it
    is. Answered when it is durable; the tablets hear of it afterwards (`TableInfo.applied_version`)."""

    request_id: str
    name: str
    table: str
    changes: tuple[Change, ...] = ()
    rename: str = ""


class TableName(msgspec.Struct, frozen=True):
    """`table`: the id, if it is known: then that very table is meant, whatever its name is by now."""

    name: str
    table: str = ""


class ReplicaLocation(msgspec.Struct, frozen=True):
    uuid: str
    address: str
    role: str
    alive: bool


class TabletLocation(msgspec.Struct, frozen=True):
    """`bucket` is the tablet's number in the partitioning; `leader` an address or None if not known now."""

    tablet: str
    bucket: int
    state: str
    leader: str | None
    term: int
    replicas: tuple[ReplicaLocation, ...]


class TableInfo(msgspec.Struct, frozen=True):
    """`state`: preparing (some tablet not yet writable) or running. `applied_version`: the lowest that any of its tablets
    has; when it is `schema.version`, the last alteration is in force everywhere."""

    table: str
    name: str
    state: str
    schema: TableSchema
    replicas: int
    replication: str
    created_us: int
    tablets: tuple[TabletLocation, ...]
    properties: dict[str, str] = {}
    applied_version: int = 0


class ListTablesRequest(msgspec.Struct, frozen=True):
    """`deleted`: those that were dropped and are kept, instead of all others."""

    prefix: str = ""
    deleted: bool = False


class TableSummary(msgspec.Struct, frozen=True):
    """`state`: preparing, running, or dropped; then since `dropped_us`, and to be recalled until `until_us`."""

    table: str
    name: str
    state: str
    tablets: int
    replicas: int
    rows_bytes: int
    dropped_us: int = 0
    until_us: int = 0


class ListTablesReply(msgspec.Struct, frozen=True):
    tables: tuple[TableSummary, ...]
