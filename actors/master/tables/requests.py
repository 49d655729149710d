"""Requests to change tables: what makes one valid, and how a repeated one is recognised. Await-free.

A client repeats a request whose answer it did not get, with the same request id. What was carried out is
remembered in the catalog, hence durable: the repeat gets the first answer, and an id that comes back with
another body is refused.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import msgspec
import xxhash

from ebla.actors.errors import RequestReused, StaleRequest, Unavailable
from ebla.actors.master.catalog.catalog import (
    RUNNING,
    Catalog,
)
from ebla.actors.master.catalog.edits import TableCreated
from ebla.actors.master.catalog.records import (
    Remembered,
    TableRecord,
)
from ebla.actors.master.options import RESERVE_S_MAX, MasterOptions
from ebla.actors.messages import (
    AlterTableRequest,
    CreateTableRequest,
    DropTableRequest,
    RecallTableRequest,
)
from ebla.actors.world import Random, new_id
from ebla.storage.errors import DiskFull, InvalidArgument
from ebla.storage.rows.altered import plain
from ebla.storage.schema import TableSchema, require_within

NAME_MAX = 256
REPLICAS_MAX = 7  # Kudu's limit: every write waits for a majority
REPLICATIONS = ("raft",)
REQUEST_ID_MAX = 128
PROPERTIES_MAX = 64
PROPERTY_CHARACTERS_MAX = 4096
SCHEMA_BYTES_MAX = 1 << 20

CHANGES_MAX = 300
TableRequest = CreateTableRequest | AlterTableRequest | DropTableRequest | RecallTableRequest

_encode = msgspec.msgpack.Encoder(order="sorted").encode


def validate_create(request: CreateTableRequest) -> None:
    """What can never succeed, whatever the cluster looks like: InvalidArgument that names the field."""
    _validate_request_id(request.request_id)
    validate_name(request.name)
    _require(
        1 <= request.replicas <= REPLICAS_MAX and request.replicas % 2 == 1,
        f"replicas must be odd, 1 to {REPLICAS_MAX}, not {request.replicas}",
    )
    _require(
        request.replication in REPLICATIONS,
        f"replication must be one of {', '.join(REPLICATIONS)}, not {request.replication!r}",
    )
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
        "schema: a new table has version 0 and no former columns; alter it when it is there",
    )


def validate_schema(schema: TableSchema) -> None:
    """It is with every edit, every tablet and every answer to a client."""
    size = len(_encode(schema))
    require_within(
        "SCHEMA_BYTES_MAX",
        size,
        SCHEMA_BYTES_MAX,
        f"the schema takes {size} bytes, over the limit of {SCHEMA_BYTES_MAX}; use fewer or shorter names, defaults and "
        "splits",
    )


def validate_name(name: str) -> None:
    told = f"name must have 1 to {NAME_MAX} characters, not {len(name)}"
    _require(len(name) > 0, told)
    require_within("NAME_MAX", len(name), NAME_MAX, told)
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
    """Beside `hosts` that can take replicas, those at `full` live and cannot. Raises DiskFull if one of these is needed."""
    if full and hosts < request.replicas <= hosts + len(full):
        raise DiskFull(
            f"table {request.name!r} wants {request.replicas} replicas, each on a host of its own, and {hosts} live hosts have "
            f"disk space for one; free space on {', '.join(full)} (`ebla nodes` shows how much they have), or create it with "
            "fewer replicas"
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
    """What the cluster of this moment can take, beside the `tables` and `replicas` that it has. Unless it has `settled`,
    more hosts may be there than were heard, and what they could take is refused for now only."""
    require_within(
        "tables_max",
        tables + 1,
        options.tables_max,
        f"there are {tables} tables already, kept ones included, and tables_max is {options.tables_max}; drop one",
    )
    if request.replicas > hosts:
        raise Unavailable(
            f"table {request.name!r} wants {request.replicas} replicas, each on a host of its own, but "
            f"tablet servers of {hosts} hosts are live; start more, or create it with fewer replicas"
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
            f"table {request.name!r} has too many replicas for {hosts} live hosts, and others may not have been heard "
            "since the master began; repeat it"
        )
    require_within(
        "replicas_per_server_max",
        added,
        of_one,
        f"partitioning makes {tablets} tablets with {request.replicas} replicas each; on {hosts} live hosts "
        f"a new table may have {of_one} replicas altogether: use fewer buckets or splits",
    )
    require_within(
        "replicas_of_server_max",
        wanted,
        of_all,
        f"with this table there would be {wanted} replicas on {hosts} live hosts, which may have {of_all} altogether: use "
        "fewer buckets or splits, drop tables, or add hosts",
    )


def earlier_create(catalog: Catalog, request: CreateTableRequest) -> TableRecord | None:
    """The table that this request created before, if it did."""
    return _earlier_table(catalog, request, "create", f"created table {request.name!r}")


def earlier_drop(catalog: Catalog, request: DropTableRequest) -> bool:
    """Whether this request was carried out before."""
    return _earlier(catalog, request, "drop") is not None


def validate_alter(request: AlterTableRequest) -> None:
    _validate_request_id(request.request_id)
    _require(bool(request.changes or request.rename), "there is nothing to alter; name a change")
    require_within(
        "CHANGES_MAX",
        len(request.changes),
        CHANGES_MAX,
        f"an alteration has {CHANGES_MAX} changes at most, not {len(request.changes)}; make several",
    )
    if request.rename:
        validate_name(request.rename)


def earlier_alter(catalog: Catalog, request: AlterTableRequest) -> TableRecord | None:
    """The table that this request altered before, if it did, as it is by now."""
    return _earlier_table(catalog, request, "alter", f"altered table {request.name!r}")


def earlier_recall(catalog: Catalog, request: RecallTableRequest) -> TableRecord | None:
    """The table that this request recalled before, if it did."""
    return _earlier_table(catalog, request, "recall", f"recalled table {request.table!r}")


def _earlier_table(catalog: Catalog, request: TableRequest, kind: str, did: str) -> TableRecord | None:
    remembered = _earlier(catalog, request, kind)
    if remembered is None:
        return None
    table = catalog.tables.get(remembered.table)
    if table is None or table.state != RUNNING:
        raise StaleRequest(f"request {request.request_id} {did}, dropped since")
    return table


def _earlier(catalog: Catalog, request: TableRequest, kind: str) -> Remembered | None:
    remembered = catalog.requests.get(request.request_id)
    if remembered is None:
        return None
    if remembered.kind != kind or remembered.digest != digest(request):
        raise RequestReused(f"request {request.request_id} was used for something else before")
    return remembered


def created(request: CreateTableRequest, random: Random, wall_us: int) -> TableCreated:
    """The edit that creates the table: one transaction with all of its tablets."""
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
