"""Requests to change tables: validation, and recognition of repeated ones. Await-free.

A client repeats a request without an answer with the same request id. The catalog keeps requests that were
carried out: a repeat gets the first answer, and an id with another body is refused.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import msgspec
import xxhash

from ebla.actors.errors import RequestReused, StaleRequest, Unavailable
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import TableCreated
from ebla.actors.master.catalog.records import RUNNING, Remembered, TableRecord
from ebla.actors.master.options import RESERVE_S_MAX, MasterOptions
from ebla.actors.messages import (
    AlterTableRequest,
    CreateTableRequest,
    DropTableRequest,
    RecallTableRequest,
)
from ebla.actors.replication.configuration import PACIFICA, RAFT
from ebla.actors.world import Random, new_id
from ebla.storage.columns import require_within
from ebla.storage.errors import DiskFull, InvalidArgument
from ebla.storage.rows.altered import plain
from ebla.storage.schema import TableSchema

NAME_MAX = 256
REPLICAS_MAX = 7  # Kudu's limit: every write waits for a majority
REPLICATIONS = (RAFT, PACIFICA)
REQUEST_ID_MAX = 128
PROPERTIES_MAX = 64
PROPERTY_CHARACTERS_MAX = 4096
SCHEMA_BYTES_MAX = 1 << 20

CHANGES_MAX = 300
TableRequest = CreateTableRequest | AlterTableRequest | DropTableRequest | RecallTableRequest
_KINDS: dict[type[TableRequest], str] = {
    CreateTableRequest: "create",
    AlterTableRequest: "alter",
    DropTableRequest: "drop",
    RecallTableRequest: "recall",
}

_encode = msgspec.msgpack.Encoder(order="sorted").encode


def validate_create(request: CreateTableRequest) -> None:
    """Raise InvalidArgument, with the field, for a request that can never succeed on any cluster."""
    _validate_request_id(request.request_id)
    validate_name(request.name)
    _validate_replication(request)
    require_within(
        "PROPERTIES_MAX",
        len(request.properties),
        PROPERTIES_MAX,
        f"properties may have {PROPERTIES_MAX} entries, not {len(request.properties)}",
    )
    for key, value in request.properties.items():
        _require(
            0 < len(key) <= NAME_MAX and len(value) <= PROPERTY_CHARACTERS_MAX,
            f"properties: {key[:NAME_MAX]!r} is longer than {NAME_MAX} characters or its value longer than "
            f"{PROPERTY_CHARACTERS_MAX}",
        )
    request.schema.validate()
    validate_schema(request.schema)
    _require(
        request.schema == plain(request.schema),
        "schema: a new table has version 0 and no former columns; create it first, then alter it",
    )


def _validate_replication(request: CreateTableRequest) -> None:
    replicas, least = request.replicas, request.min_members
    _require(
        request.replication in REPLICATIONS,
        f"replication must be one of {', '.join(REPLICATIONS)}, not {request.replication!r}",
    )
    if request.replication == PACIFICA:
        _require(1 <= replicas <= REPLICAS_MAX, f"replicas must be 1 to {REPLICAS_MAX}, not {replicas}")
        _validate_min_members(request.replication, replicas, least)
        return
    _require(
        1 <= replicas <= REPLICAS_MAX and replicas % 2 == 1,
        f"replicas must be odd, 1 to {REPLICAS_MAX}, not {replicas}",
    )
    _validate_min_members(request.replication, replicas, least)


def _validate_min_members(replication: str, replicas: int, least: int | None) -> None:
    _require(
        least is None or replication == PACIFICA,
        f"min_members is for tables with replication {PACIFICA!r}; a table with {RAFT!r} always needs a majority: "
        "leave it out",
    )
    _require(
        least is None or 1 <= least <= replicas,
        f"min_members must be 1 to replicas, which is {replicas}, not {least}",
    )


def altered_min_members(record: TableRecord, request: AlterTableRequest) -> int:
    """The table's `min_members` after the request."""
    _validate_min_members(record.replication, record.replicas, request.min_members)
    return record.min_members if request.min_members is None else request.min_members


def min_members(request: CreateTableRequest) -> int:
    """The fewest voters with which a tablet of the table takes writes; 0 if the protocol decides."""
    if request.replication != PACIFICA:
        return 0
    return request.replicas // 2 + 1 if request.min_members is None else request.min_members


def validate_schema(schema: TableSchema) -> None:
    """Limit the size of a schema, because every edit, tablet and answer has it."""
    size = len(_encode(schema))
    require_within(
        "SCHEMA_BYTES_MAX",
        size,
        SCHEMA_BYTES_MAX,
        f"the schema takes {size} bytes, over the limit of {SCHEMA_BYTES_MAX}; use fewer or shorter names, defaults and "
        "splits",
    )


def validate_name(name: str) -> None:
    problem = f"name must have 1 to {NAME_MAX} characters, not {len(name)}"
    _require(len(name) > 0, problem)
    require_within("NAME_MAX", len(name), NAME_MAX, problem)
    _require(
        not any(unicodedata.category(character) in ("Cc", "Cs") for character in name),
        f"name may not contain control characters: {name!r}",
    )


def validate_drop(request: DropTableRequest) -> None:
    _validate_request_id(request.request_id)
    if request.reserve_s is not None:
        _require(
            0 <= request.reserve_s <= RESERVE_S_MAX,
            f"reserve_s must be 0 (drop it at once) to {RESERVE_S_MAX:g}, not {request.reserve_s}",
        )


def validate_recall(request: RecallTableRequest) -> None:
    _validate_request_id(request.request_id)
    if request.name:
        validate_name(request.name)


def validate_space(request: CreateTableRequest, hosts: int, full: Sequence[str]) -> None:
    """Raise DiskFull if the `hosts` with disk space are too few, and would be enough with the `full` ones."""
    if full and hosts < request.replicas <= hosts + len(full):
        raise DiskFull(
            f"{_wants(request)}, and the cluster has {_live(hosts)} with disk space for one; free space on {', '.join(full)} (`ebla "
            f"nodes` shows how much they have){', or create it with fewer replicas' if request.replicas > 1 else ''}"
        )


def validate_room(
    request: CreateTableRequest,
    hosts: int,
    options: MasterOptions,
    tables: int = 0,
    replicas: int = 0,
    *,
    settled: bool = True,
) -> None:
    """Raise OverLimit or Unavailable if the cluster, with its `tables` and `replicas`, cannot take the table.

    Before it has `settled`, there may be more live hosts than known, so too few hosts are Unavailable.
    """
    require_within(
        "tables_max",
        tables + 1,
        options.tables_max,
        f"there are {tables} tables already, kept ones included, and tables_max is {options.tables_max}; drop one",
    )
    if request.replicas > hosts:
        raise Unavailable(
            f"{_wants(request)}, and the cluster has {_live(hosts)}; start more{f', or create it with `--replicas {hosts}` (replicas={hosts})' if hosts else ''}"
        )
    tablets = request.schema.partitioning.tablets
    require_within(
        "tablets_per_table_max",
        tablets,
        options.tablets_per_table_max,
        f"partitioning makes {tablets} tablets, and tablets_per_table_max is {options.tablets_per_table_max}: use fewer "
        "buckets or splits",
    )
    added = tablets * request.replicas
    wanted = replicas + added
    of_one, of_all = options.replicas_per_server_max * hosts, options.replicas_of_server_max * hosts
    if not settled and (added > of_one or wanted > of_all):
        raise Unavailable(
            f"table {request.name!r} has too many replicas for {_live(hosts)}, and others may not have sent a heartbeat "
            "since the master began; try again"
        )
    require_within(
        "replicas_per_server_max",
        added,
        of_one,
        f"partitioning makes {tablets} tablets with {request.replicas} replicas each; on {_live(hosts)} "
        f"a new table may have {of_one} replicas altogether: use fewer buckets or splits",
    )
    require_within(
        "replicas_of_server_max",
        wanted,
        of_all,
        f"with this table there would be {wanted} replicas on {_live(hosts)}, which may have {of_all} altogether: use "
        "fewer buckets or splits, drop tables, or add hosts",
    )


def _wants(request: CreateTableRequest) -> str:
    each = "one replica" if request.replicas == 1 else f"{request.replicas} replicas on different hosts"
    return f"table {request.name!r} wants {each}"


def _live(hosts: int) -> str:
    return "1 live host" if hosts == 1 else f"{hosts} live hosts"


def validate_alter(request: AlterTableRequest) -> None:
    _validate_request_id(request.request_id)
    named = request.changes or request.rename or request.min_members is not None
    _require(bool(named), "there is nothing to alter; name a change")
    require_within(
        "CHANGES_MAX",
        len(request.changes),
        CHANGES_MAX,
        f"an alteration has {CHANGES_MAX} changes at most, not {len(request.changes)}; make several",
    )
    if request.rename:
        validate_name(request.rename)


def earlier_table(
    catalog: Catalog, request: CreateTableRequest | AlterTableRequest | RecallTableRequest
) -> TableRecord | None:
    """Return the present record of the table that this request created, altered or recalled before.

    None if the request was not carried out before.
    """
    remembered = earlier(catalog, request)
    if remembered is None:
        return None
    table = catalog.tables.get(remembered.table)
    if table is None or table.state != RUNNING:
        name = request.table if isinstance(request, RecallTableRequest) else request.name
        raise StaleRequest(
            f"request {request.request_id} to {remembered.kind} table {name!r} was carried out, and the table dropped since"
        )
    return table


def earlier(catalog: Catalog, request: TableRequest) -> Remembered | None:
    """Return the record of this request, if it was carried out before."""
    remembered = catalog.requests.get(request.request_id)
    if remembered is None:
        return None
    if remembered.kind != _KINDS[type(request)] or remembered.digest != digest(request):
        raise RequestReused(
            f"request {request.request_id} was used for something else before; use a new request id"
        )
    return remembered


def created(request: CreateTableRequest, random: Random, wall_us: int) -> TableCreated:
    """Make the edit that creates the table with all of its tablets."""
    return TableCreated(
        request=request.request_id,
        digest=digest(request),
        table=new_id(random),
        name=request.name,
        schema=request.schema,
        replicas=request.replicas,
        replication=request.replication,
        properties=dict(request.properties),
        created_us=wall_us,
        tablets=tuple(new_id(random) for _ in range(request.schema.partitioning.tablets)),
        min_members=min_members(request),
    )


def digest(request: TableRequest) -> int:
    return xxhash.xxh3_64_intdigest(_encode(request))


def _validate_request_id(request_id: str) -> None:
    _require(
        0 < len(request_id) <= REQUEST_ID_MAX,
        f"request_id must have 1 to {REQUEST_ID_MAX} characters, not {len(request_id)}",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidArgument(message)
