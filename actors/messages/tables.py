"""Messages between clients and masters about tables; a part of __init__.py, from where they are
imported."""

from __future__ import annotations

import msgspec

from ebla.actors.replication.configuration import Forced
from ebla.storage.rows.alteration import Change
from ebla.storage.schema import TableSchema


class CreateTableRequest(msgspec.Struct, frozen=True):
    """Creates a table. With the same `request_id`, a retry after a lost answer gets the first
    answer. `min_members`: of a PacificA table, with fewer voters a tablet takes no writes; None: more
    than half of the replicas."""

    request_id: str
    name: str
    schema: TableSchema
    replicas: int
    replication: str = "raft"
    properties: dict[str, str] = {}
    min_members: int | None = None


class DropTableRequest(msgspec.Struct, frozen=True):
    """Drops a table. `name`: the table's name, or the id of a dropped table that is kept for
    recall, to delete it now. `reserve_s`: how long it can be recalled (0: it is deleted at once;
    None: as the master's options say)."""

    request_id: str
    name: str
    reserve_s: float | None = None


class RecallTableRequest(msgspec.Struct, frozen=True):
    """Recalls a dropped table. `table`: the id of a table that is kept, or its former name. `name`:
    its new name; "" for the former name."""

    request_id: str
    table: str
    name: str = ""


class AlterTableRequest(msgspec.Struct, frozen=True):
    """Alters a table: all changes or none. `table`: the id, if it is known. `rename`: the new name,
    "" to keep the name. `min_members`: of a PacificA table; None to keep it. Answered when the alteration is durable; the tablets get it afterwards
    (`TableInfo.applied_version`)."""

    request_id: str
    name: str
    table: str
    changes: tuple[Change, ...] = ()
    rename: str = ""
    min_members: int | None = None


class TableName(msgspec.Struct, frozen=True):
    """Names a table. `table`: the id, if it is known; then it identifies the table, even if the
    name has changed."""

    name: str
    table: str = ""


class ReplicaLocation(msgspec.Struct, frozen=True):
    """A member of a tablet, as the master knows it. `role`, of every replication protocol: leader,
    follower (a voter) or learner (a member without a vote)."""

    uuid: str
    address: str
    role: str
    alive: bool


class TabletLocation(msgspec.Struct, frozen=True):
    """A tablet and its replicas. `bucket`: the tablet's number in the partitioning; `leader`: an
    address, None if not known now. `forced`: the configurations that operators forced on a PacificA tablet."""

    tablet: str
    bucket: int
    state: str
    leader: str | None
    term: int
    replicas: tuple[ReplicaLocation, ...]
    forced: tuple[Forced, ...] = ()


class TableInfo(msgspec.Struct, frozen=True):
    """A table as the master knows it. `state`: preparing (some tablet is not yet writable) or
    running. `applied_version`: the lowest version of any of its tablets; when it equals
    `schema.version`, the last alteration is in force everywhere. `min_members`: of a PacificA table,
    with fewer voters a tablet takes no writes; None of a Raft table."""

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
    min_members: int | None = None


class ListTablesRequest(msgspec.Struct, frozen=True):
    """Lists tables. `deleted`: lists the dropped tables that are kept for recall, instead of all
    others."""

    prefix: str = ""
    deleted: bool = False


class TableSummary(msgspec.Struct, frozen=True):
    """One table of a list. `state`: preparing, running, or dropped. A dropped table was dropped at
    `dropped_us`, and can be recalled until `until_us`. `min_members`: as of TableInfo."""

    table: str
    name: str
    state: str
    tablets: int
    replicas: int
    rows_bytes: int
    dropped_us: int = 0
    until_us: int = 0
    replication: str = "raft"
    min_members: int | None = None


class ListTablesReply(msgspec.Struct, frozen=True):
    tables: tuple[TableSummary, ...]
