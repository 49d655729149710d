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
    """A member of a tablet, as the master knows it.

    Attributes:
        uuid: The id of its tablet server.
        address: The address of its tablet server, such as "tablet-server/host-a".
        role: "leader", "follower" (a voter) or "learner" (a member without a vote), in every replication protocol.
        alive: The master gets heartbeats of that server.
    """

    uuid: str
    address: str
    role: str
    alive: bool


class TabletLocation(msgspec.Struct, frozen=True):
    """A tablet and its replicas.

    Attributes:
        tablet: The tablet's id.
        bucket: Its number in the table's partitioning, from 0.
        state: "preparing" (it takes no writes yet), "running", or what the master does with it.
        leader: The address of the server that leads it, None if the master does not know now.
        term: The term of that leader; of a PacificA tablet, the ballot.
        replicas: Its members.
        forced: The configurations that operators forced on a PacificA tablet.
        in_doubt: Why it gets no primary although its voters run, "" if nothing prevents that.
    """

    tablet: str
    bucket: int
    state: str
    leader: str | None
    term: int
    replicas: tuple[ReplicaLocation, ...]
    forced: tuple[Forced, ...] = ()
    in_doubt: str = ""


class TableInfo(msgspec.Struct, frozen=True):
    """A table as the master knows it.

    Attributes:
        table: The table's id, which never changes.
        name: Its present name.
        state: "preparing" (some tablet takes no writes yet) or "running".
        schema: Its columns, key and partitioning; `Table.schema` has the columns as an Arrow schema. `schema.version` grows by one
            with every alteration.
        replicas: The copies that each tablet shall have.
        replication: The protocol of the replicas, "raft" or "pacifica".
        created_us: When it was created, in microseconds since 1970 (UTC).
        tablets: Its tablets and where their replicas are, by bucket.
        properties: The texts that were kept with the table.
        applied_version: The lowest schema version of any tablet; equal to `schema.version`, the last alteration is in force
            everywhere.
        min_members: Of a PacificA table: with fewer voters, a tablet takes no writes. None of a Raft table.
    """

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

    @property
    def storage(self) -> str:
        """How its replicas keep rows, "rows" or "columns"."""
        return self.schema.storage

    @property
    def compression(self) -> str:
        """Of the blocks of a table with "columns": "none", "lz4" or "zstd"."""
        return self.schema.compression


class ListTablesRequest(msgspec.Struct, frozen=True):
    """Lists tables. `deleted`: lists the dropped tables that are kept for recall, instead of all
    others."""

    prefix: str = ""
    deleted: bool = False


class TableSummary(msgspec.Struct, frozen=True):
    """One table of a list.

    Attributes:
        table: The table's id, which never changes.
        name: Its present name.
        state: "preparing" (some tablet takes no writes yet), "running" or "dropped".
        tablets: The number of its tablets.
        replicas: The copies that each tablet shall have.
        rows_bytes: The bytes that its rows take on disk and in memory, in one replica of each tablet.
        dropped_us: When it was dropped, in microseconds since 1970 (UTC); 0 if it was not.
        until_us: Until when a dropped table can be recalled, in microseconds since 1970 (UTC).
        replication: The protocol of the replicas, "raft" or "pacifica".
        min_members: Of a PacificA table: with fewer voters, a tablet takes no writes. None of a Raft table.
    """

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
