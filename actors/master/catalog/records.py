"""The catalog's records of tables, tablets and requests, all frozen, and the whole catalog as a value."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from ebla.actors.coordination.namespace import NamespaceImage
from ebla.actors.master.catalog.lineage import EMPTY, LineageImage
from ebla.actors.messages import RecordedInstance
from ebla.actors.replication.configuration import Configuration, Forced, Peer
from ebla.storage.schema import TableSchema

# The states of a tablet, and of a table; catalog.py shows the ways between them.
PREPARING, CREATING, RUNNING, REPLACED, DELETED = "preparing", "creating", "running", "replaced", "deleted"
REMOVED, KEPT = "removed", "kept"
LIVE = (PREPARING, CREATING, RUNNING)

STEADY = "steady"  # the first level of every catalog
REQUESTS_MAX = 10_000  # request ids remembered; a client retries for minutes, not for ten thousand tables


class TableRecord(msgspec.Struct, frozen=True):
    """A table.

    `tablets`: the present tablet of every partition, by its number. `first`: the schema that tablets are
    created with, if it is not `schema`. The version of `schema` grows with every change that must reach
    all tablets. `dropped_us`, `until_us`: of a kept table, for people; `left_us`: for how much longer it is
    kept, as of the last ReservesCounted. `min_members`: of PacificA tablets, the fewest voters that take
    writes; 0 for other tables.
    """

    table: str
    name: str
    state: str
    schema: TableSchema
    replicas: int
    replication: str
    properties: dict[str, str]
    created_us: int
    tablets: tuple[str, ...]
    first: TableSchema | None = None
    dropped_us: int = 0
    until_us: int = 0
    left_us: int = 0
    min_members: int = 0

    @property
    def created_schema(self) -> TableSchema:
        return self.first or self.schema

    def altered(self, schema: TableSchema | None = None) -> TableRecord:
        following = schema or replace(self.schema, version=self.schema.version + 1)
        assert following.version == self.schema.version + 1, (self.table, following.version)
        return replace(self, schema=following, first=self.created_schema)


class TabletRecord(msgspec.Struct, frozen=True, gc=False):
    """A tablet.

    `unseen`: members that have not reported a replica yet. `former`: members that left the configuration
    and may still have data. `tombstones`: those that have only a tombstone. `ended_us`: when the tablet was
    deleted or replaced. `forced`: the configurations that operators forced on a PacificA tablet. `primary_start`: the process of its
    primary that may lead in the ballot of the configuration: the last one that was recorded before.
    """

    tablet: str
    table: str
    bucket: int
    state: str
    configuration: Configuration | None = None
    unseen: tuple[str, ...] = ()
    former: tuple[Peer, ...] = ()
    ended_us: int = 0
    tombstones: tuple[Peer, ...] = ()
    forced: tuple[Forced, ...] = ()
    primary_start: str = ""

    @property
    def appointed(self) -> Configuration | None:
        """The configuration of a PacificA tablet, which only the catalog decides; None for other tablets."""
        known = self.configuration
        return known if known is not None and known.primary is not None else None

    def member(self, uuid: str) -> Peer | None:
        return self.configuration.peer(uuid) if self.configuration else None

    def holders(self) -> tuple[Peer, ...]:
        """List every server that may have data of this tablet, or a tombstone."""
        return (self.configuration.peers if self.configuration else ()) + self.former + self.tombstones


class Remembered(msgspec.Struct, frozen=True):
    """A request that was carried out. `kind`: create, alter, drop or recall."""

    kind: str
    digest: int
    table: str


class CatalogImage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The whole catalog as a value, as stored in a checkpoint."""

    tables: tuple[TableRecord, ...]
    tablets: tuple[TabletRecord, ...]
    requests: tuple[tuple[str, Remembered], ...]
    namespace: NamespaceImage | None = None
    draining: tuple[str, ...] = ()
    forgotten: dict[str, str] = {}
    maintained: tuple[str, ...] = ()
    lineage: LineageImage = EMPTY
    incarnations: tuple[RecordedInstance, ...] = ()
    level: str = STEADY
    level_us: int = 0
    suspended: tuple[str, ...] = ()
    doubted: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


encode_image = msgspec.msgpack.Encoder().encode

decode_image = msgspec.msgpack.Decoder(CatalogImage).decode
