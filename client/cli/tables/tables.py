"""`ebla table create | list | describe | drop | recall`."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ebla.cli.frame import views
from ebla.cli.frame.amounts import seconds, when
from ebla.cli.frame.connection import within
from ebla.cli.frame.options import (
    NewCompression,
    NewMinMembers,
    NewReplication,
    NewStorage,
    TableName,
    Yes,
    argument,
    option,
)
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.render import facts, listing
from ebla.cli.frame.types import type_name
from ebla.cli.frame.ui import Shown, Ui
from ebla.wording import command, count, protocol, size

if TYPE_CHECKING:
    from ebla.actors.messages import TableInfo
    from ebla.cli.tables.schemas import TableSpec
    from ebla.operate.cluster import Cluster
    from ebla.storage.schema import Column

REPLICAS = 3
DETAILED = 20  # tablets whose replicas `describe -d` shows
OPTIONS = ("replicas", "replication", "min_members", "storage", "compression")  # of a new table, if given


NewSchema = Annotated[
    Path | None,
    option(
        "--schema FILE",
        "YAML with columns, key, hash, range, replicas, replication, min_members, storage, compression.",
    ),
]


def create(
    ui: Ui,
    name: TableName,
    column: Annotated[
        list[str] | None,
        option("-c --column NAME:TYPE[:null]", "A column, such as tailnum:string:null; repeatable."),
    ] = None,
    schema: NewSchema = None,
    schema_from: Annotated[
        Path | None, option("--schema-from FILE", "Columns and types of a parquet or CSV file.")
    ] = None,
    key: Annotated[str | None, option("-k --key A,B", "The primary key.")] = None,
    hash: Annotated[str | None, option("--hash A,B:N", "N tablets, by a hash of key columns.")] = None,
    range: Annotated[
        str | None, option("--range A=X,Y", "Tablets by ranges of the key's first column, split at X, Y.")
    ] = None,
    replicas: Annotated[
        int | None, option("-r --replicas N", f"Copies of each tablet (default: {REPLICAS}).", min=1)
    ] = None,
    replication: NewReplication = None,
    min_members: NewMinMembers = None,
    storage: NewStorage = None,
    compression: NewCompression = None,
    if_not_exists: Annotated[
        bool, option("--if-not-exists", "No error if a table with this name and schema exists.")
    ] = False,
    wait: Annotated[float, option("--wait SECONDS", "Longest wait until it takes writes.", min=0)] = 60.0,
) -> Shown:
    """Create a table.

    Types: int8..int64 uint8..uint64 float double bool string binary json date timestamp\\[us,UTC] time\\[us] duration\\[ms]
    decimal(10,2) list<string> map<string, int64> struct<x: double, y: double>. A column takes null only with :null.
    Without --hash and --range the table is one tablet.

    ebla table create flights -c time_hour:timestamp\\[us,UTC] \\
      -c carrier:string -c flight:int32 -c tailnum:string:null \\
      --key time_hour,carrier,flight --hash carrier,flight:8
    """
    from ebla.cli.tables import schemas

    spec = schemas.gather(
        column or [],
        key,
        hash,
        range,
        schema,
        schema_from,
        replicas=replicas,
        replication=replication,
        min_members=min_members,
        storage=storage,
        compression=compression,
    )
    with ui.working(f"create {name}") as progress:
        progress.step("waiting for its tablets" if wait else "")
        made, info = within(ui, lambda cluster: _create(cluster, name, spec, if_not_exists, wait))
    return {"created": made, "table": table_document(info)}, _outcome(made, info)


def _outcome(made: bool, info: TableInfo) -> str:
    if not made:
        return f"table {info.name} exists already, with this schema; nothing was changed"
    parts = f"{count(len(info.tablets), 'tablet')} x {count(info.replicas, 'replica')}, {protocol(info)}"
    state = "" if info.state == "running" else f"; it is {info.state}, see {command('check', info.name)}"
    return f"created table {info.name}: {count(len(info.schema.columns), 'column')}, {parts}{state}"


async def _create(
    cluster: Cluster, name: str, spec: TableSpec, if_not_exists: bool, wait_s: float
) -> tuple[bool, TableInfo]:
    from ebla.errors import AlreadyPresent

    try:
        table = await cluster.database.create_table(
            name,
            schema=spec.arrow(),
            primary_key=spec.key,
            partition_by=spec.partition_by(),
            replicas=spec.replicas or REPLICAS,
            replication=spec.replication or "raft",
            min_members=spec.min_members,
            storage=spec.storage or "rows",
            compression=spec.compression or "none",
            wait_s=wait_s,
        )
    except AlreadyPresent as error:
        if not if_not_exists:
            raise AlreadyPresent(
                f"table {name!r} exists already; see {command('table describe', name)}, or drop it first",
                what="table",
            ) from error
        found = await cluster.database.table(name)
        info = await found.info()
        other = next((each for each in OPTIONS if getattr(spec, each) not in (None, getattr(info, each))), "")
        if not found.schema.equals(spec.arrow()) or found.primary_key != spec.key:
            other = "columns or key"
        if other:
            raise AlreadyPresent(
                f"table {name!r} exists already, with other {other}; see {command('table describe', name)}",
                what="table",
            ) from error
        return False, info
    return True, await table.info()


async def list_tables(
    ui: Ui,
    cluster: Cluster,
    prefix: Annotated[str, argument("PREFIX", "Only names with this beginning.")] = "",
    deleted: Annotated[bool, option("--deleted", "The dropped tables that can be recalled.")] = False,
) -> Shown:
    """List the tables: state, tablets, replicas, size."""
    found = await cluster.database.tables(prefix, deleted=deleted)
    begins = f" whose name begins with {prefix!r}" if prefix else ""
    document = {"tables": found}
    if not found:
        return document, f"no {'dropped ' if deleted else ''}tables{begins}{' are kept' if deleted else ''}"
    rest = ui.rest(found, "table", "`ebla table list PREFIX` lists some")
    if deleted:
        kept = ((t.name, when(t.until_us), size(t.rows_bytes), t.table) for t in ui.some(found))
        return document, listing(("TABLE", "KEPT UNTIL", "SIZE>", "ID"), kept), *rest
    shown = ui.some(found)
    rows = ((t.name, t.state, t.tablets, t.replicas, protocol(t), size(t.rows_bytes)) for t in shown)
    headers = ("TABLE", "STATE", "TABLETS>", "REPLICAS>", "REPLICATION", "SIZE>")
    return document, listing(headers, rows), *rest


async def describe(
    ui: Ui,
    cluster: Cluster,
    name: TableName,
    details: Annotated[
        bool, option("-d --details", "Also show its tablets: leaders, replicas, log positions, sizes.")
    ] = False,
) -> Shown:
    """Show the columns, the key and the partitioning of a table."""
    info = await cluster.table_info(name)
    document = table_document(info)
    parts: list[Any] = [_facts(info), "", _columns(info)]
    if details:
        health = await cluster.health([name])
        document["health"] = next(table.status for table in health.tables)
        document["tablet_health"] = health.tablets
        ordered = views.sick_first(health.tablets)
        shown = health.tablets if len(ordered) <= DETAILED else ordered[:DETAILED]
        listed = health.tablets if len(ui.some(ordered)) == len(ordered) else ui.some(ordered)
        parts += ["", views.tablets(listed, with_table=False)]
        parts += ui.rest(ordered, "tablet", "`--json` has the rest too")
        for tablet in ordered if ui.verbose else shown:
            parts += ["", *views.tablet(tablet)]
        if len(shown) < len(ordered) and not ui.verbose:
            left = count(len(ordered) - DETAILED, "more tablet")
            parts += [
                "",
                f"and the replicas of {left}: `ebla tablet show TABLET` shows those of one, -v shows all",
            ]
    return document, *parts


def table_document(info: TableInfo) -> dict[str, Any]:
    """A table for `--json`; the names never change."""
    hashed, ranged = info.schema.partitioning.hash, info.schema.partitioning.range
    return {
        "table": info.table,
        "name": info.name,
        "state": info.state,
        "replicas": info.replicas,
        "replication": info.replication,
        "min_members": info.min_members,
        "storage": info.storage,
        "compression": info.compression,
        "created": created(info).isoformat(),
        "schema_version": info.schema.version,
        "applied_version": info.applied_version,
        "columns": [
            {"name": c.name, "type": type_name(c), "nullable": c.nullable, "key": c.name in info.schema.key}
            for c in info.schema.columns
        ],
        "key": list(info.schema.key),
        "hash": hashed,
        "range": {"columns": list(ranged.columns), "splits": split_texts(info)} if ranged else None,
        "tablets": info.tablets,
        "properties": info.properties,
    }


def created(info: TableInfo) -> datetime:
    return datetime.fromtimestamp(info.created_us / 1e6, timezone.utc)


def split_texts(info: TableInfo) -> list[str]:
    """The splits as values; several columns are joined with a comma."""
    from ebla.storage.rows.keys import END, KeyCodec

    ranged = info.schema.partitioning.range
    assert ranged is not None
    columns = [info.schema.column(name) for name in ranged.columns]
    codec = KeyCodec(columns, open_end=len(columns) == len(info.schema.key))

    def values(split: bytes) -> list[Any]:
        place, sizes = 0, []
        for fixed, closed in zip(codec.fixed, codec.closed, strict=True):
            width = fixed.width if fixed else split.find(END, place) + len(END) - place if closed else 0
            if closed and not fixed:
                sizes.append(width)
            place += width
        return codec.decode_row(split, sizes)

    return [", ".join(map(str, values(split))) for split in ranged.splits]


def storage_of(info: TableInfo) -> str:
    packed = info.compression != "none"
    return f"{info.storage}, compressed with {info.compression}" if packed else info.storage


def _facts(info: TableInfo) -> Any:
    hashed, ranged = info.schema.partitioning.hash, info.schema.partitioning.range
    parts = []
    if hashed:
        parts.append(f"hash of ({', '.join(hashed.columns)}) into {hashed.buckets}")
    if ranged:
        parts.append(f"range of ({', '.join(ranged.columns)}) at {'; '.join(split_texts(info))}")
    version = str(info.schema.version)
    if info.applied_version < info.schema.version:
        version += f", not yet in every tablet (some have {info.applied_version})"
    return facts(
        (
            ("table", info.name),
            ("state", info.state),
            ("key", ", ".join(info.schema.key)),
            ("partitions", f"{len(info.tablets)}: {' and '.join(parts)}" if parts else "1"),
            ("replicas", f"{info.replicas}, {protocol(info)}"),
            ("storage", storage_of(info)),
            ("created", when(info.created_us)),
            *([("version", version)] if info.schema.version else []),
            ("id", info.table),
            *(info.properties.items()),
        )
    )


def _columns(info: TableInfo) -> Any:
    key = info.schema.key
    defaults = any(column.default is not None for column in info.schema.columns)
    rows = (
        (
            c.name,
            type_name(c),
            "null" if c.nullable else "",
            f"key {key.index(c.name) + 1}" if c.name in key else "",
            *([default_text(c)] if defaults else []),
        )
        for c in info.schema.columns
    )
    return listing(("COLUMN", "TYPE", "NULL", "KEY", *(["DEFAULT"] if defaults else [])), rows)


def default_text(column: Column) -> str:
    from ebla.show.values import text, word
    from ebla.storage.rows.convert import defaults

    return "" if column.default is None else word(text(defaults(column, 1)[0].as_py()))


def drop(
    ui: Ui,
    name: TableName,
    yes: Yes = False,
    if_exists: Annotated[bool, option("--if-exists", "No error if the table is missing.")] = False,
    reserve: Annotated[
        str | None,
        option(
            "--reserve TIME",
            "How long `ebla table recall` can bring it back; its space stays in use: 3d, 12h, 30m; 0: not at all.",
        ),
    ] = None,
) -> Shown:
    """Drop a table and all its rows. With the ID of a table that is kept for recall: delete it now."""
    if not name:
        raise Usage("a table's name is not empty")
    reserve_s = None if reserve is None else seconds(reserve, "--reserve")

    async def work(cluster: Cluster) -> tuple[bool, bool]:
        found = [each for each in await cluster.database.tables(name) if each.name == name]
        if not found:
            found = [each for each in await cluster.database.tables(deleted=True) if each.table == name]
        if not found:
            if if_exists:
                return False, False
            await cluster.database.table(name)  # raises the error with the name that may be meant
            return await work(cluster)  # it was made meanwhile
        summary = found[0]
        what = f"Drop table {summary.name} ({size(summary.rows_bytes)}) and all its rows"
        ui.confirm(f"{what}, to be recalled within {reserve}?" if reserve_s else f"{what}, for good?", yes)
        kept_s = reserve_s if summary.state != "dropped" else 0
        await cluster.database.drop_table(name, reserve_s=kept_s)
        kept = await cluster.database.tables(deleted=True)
        return True, any(each.table == summary.table for each in kept)

    dropped, kept = within(ui, work)
    text = f"dropped table {name}" if dropped else f"there is no table {name}"
    back = f"; {command('table recall', name)} brings it back" if kept else ""
    return {"dropped": dropped, "name": name, "kept": kept}, text + back


async def recall(
    cluster: Cluster,
    name: Annotated[str, argument("NAME", "The table's former name, or its id.")],
    as_name: Annotated[str | None, option("--as NAME", "The table's new name.")] = None,
) -> Shown:
    """Bring back a table that was dropped and is still kept (see `ebla table list --deleted`)."""
    info = await (await cluster.database.recall_table(name, as_name)).info()
    return {"recalled": True, "table": table_document(info)}, f"recalled table {info.name}"
