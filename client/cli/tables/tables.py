"""`ebla table create | list | describe | drop | recall`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame import views
from ebla.cli.frame.connection import within
from ebla.cli.frame.options import TableName, Yes
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.render import facts, listing
from ebla.cli.frame.types import type_name
from ebla.cli.frame.ui import Ui
from ebla.wording import count, size

if TYPE_CHECKING:
    from ebla.actors.messages import TableInfo
    from ebla.cli.tables.schemas import TableSpec
    from ebla.health.verdicts import ClusterHealth
    from ebla.operate.cluster import Cluster
    from ebla.storage.schema import Column

REPLICAS = 3

NewColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        "-c",
        metavar="NAME:TYPE[:null]",
        help="A column, such as tailnum:string:null; repeatable.",
    ),
]
NewSchema = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", help="YAML with columns, key, hash, range, replicas."),
]
NewSchemaFrom = Annotated[
    Path | None,
    typer.Option("--schema-from", metavar="FILE", help="Columns and types of a parquet or CSV file."),
]
NewKey = Annotated[str | None, typer.Option("--key", "-k", metavar="A,B", help="The primary key.")]
NewHash = Annotated[
    str | None, typer.Option("--hash", metavar="A,B:N", help="N tablets, by a hash of key columns.")
]
NewRange = Annotated[
    str | None,
    typer.Option(
        "--range", metavar="A=X,Y", help="Tablets by ranges of the key's first column, split at X, Y."
    ),
]
NewReplicas = Annotated[
    int | None,
    typer.Option("--replicas", "-r", metavar="N", min=1, help=f"Copies of each tablet (default: {REPLICAS})"),
]
NewIfNotExists = Annotated[
    bool, typer.Option("--if-not-exists", help="No error if a table with this name and schema exists.")
]
NewWait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", min=0, help="Longest wait for the table to take writes.")
]


def create(
    ui: Ui,
    name: TableName,
    column: NewColumn = None,
    schema: NewSchema = None,
    schema_from: NewSchemaFrom = None,
    key: NewKey = None,
    hash: NewHash = None,
    range: NewRange = None,
    replicas: NewReplicas = None,
    if_not_exists: NewIfNotExists = False,
    wait: NewWait = 60.0,
) -> None:
    """Create a table.

    Types: int8..int64 uint8..uint64 float double bool string binary json date timestamp\\[us,UTC] time\\[us] duration\\[ms]
    decimal(10,2) list<string> map<string, int64> struct<x: double, y: double>. A column takes null only with :null.
    Without --hash and --range the table is one tablet.

    ebla table create flights -c time_hour:timestamp\\[us,UTC] \\
      -c carrier:string -c flight:int32 -c tailnum:string:null \\
      --key time_hour,carrier,flight --hash carrier,flight:8
    """
    from ebla.cli.tables import schemas

    spec = schemas.gather(column or [], key, hash, range, replicas, schema, schema_from)

    async def work(cluster: Cluster) -> tuple[bool, TableInfo]:
        return await _create(cluster, name, spec, if_not_exists, wait)

    with ui.working(f"create {name}") as progress:
        progress.step("waiting for its tablets" if wait else "")
        made, info = within(ui, work)
    document = {"created": made, "table": table_document(info)}
    if not made:
        ui.show(document, f"table {name} exists already, with this schema; nothing was changed")
        return
    parts = f"{count(len(info.tablets), 'tablet')} x {count(info.replicas, 'replica')}"
    state = "" if info.state == "running" else f"; it is {info.state}, see `ebla check {name}`"
    ui.show(document, f"created table {name}: {count(len(info.schema.columns), 'column')}, {parts}{state}")


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
            wait_s=wait_s,
        )
    except AlreadyPresent as error:
        if not if_not_exists:
            raise AlreadyPresent(
                f"table {name!r} exists already; see `ebla table describe {name}`, or drop it first",
                what="table",
            ) from error
        found = await cluster.database.table(name)
        if not found.schema.equals(spec.arrow()) or found.primary_key != spec.key:
            raise AlreadyPresent(
                f"table {name!r} exists already, with other columns or another key; see `ebla table describe {name}`",
                what="table",
            ) from error
        return False, await found.info()
    return True, await table.info()


def list_tables(
    ui: Ui,
    prefix: Annotated[str, typer.Argument(help="Only names with this beginning.", show_default=False)] = "",
    deleted: Annotated[
        bool, typer.Option("--deleted", help="The dropped tables that can be recalled.")
    ] = False,
) -> None:
    """List the tables: state, tablets, replicas, size."""
    found = within(ui, lambda cluster: cluster.database.tables(prefix, deleted=deleted))
    begins = f" whose name begins with {prefix!r}" if prefix else ""
    document = {"tables": msgspec.to_builtins(found)}
    if not found:
        ui.show(document, f"no {'dropped ' if deleted else ''}tables{begins}{' are kept' if deleted else ''}")
    elif deleted:
        kept = ((t.name, when(t.dropped_us), when(t.until_us), size(t.rows_bytes), t.table) for t in found)
        ui.show(document, listing(("TABLE", "DROPPED", "KEPT UNTIL", "SIZE>", "ID"), kept))
    else:
        rows = ((t.name, t.state, t.tablets, t.replicas, size(t.rows_bytes)) for t in found)
        ui.show(document, listing(("TABLE", "STATE", "TABLETS>", "REPLICAS>", "SIZE>"), rows))


def describe(
    ui: Ui,
    name: TableName,
    details: Annotated[
        bool,
        typer.Option(
            "--details", "-d", help="Also show its tablets: leaders, replicas, log positions, sizes."
        ),
    ] = False,
) -> None:
    """Show the columns, the key and the partitioning of a table."""

    async def work(cluster: Cluster) -> tuple[TableInfo, ClusterHealth | None]:
        info = await cluster.table_info(name)
        return info, await cluster.health([name]) if details else None

    info, health = within(ui, work)
    document = table_document(info)
    parts: list[Any] = [_facts(info), "", _columns(info)]
    if health is not None:
        document["health"] = next(table.status for table in health.tables)
        document["tablet_health"] = msgspec.to_builtins(health.tablets)
        parts += ["", views.tablets(health.tablets, with_table=False)]
        for tablet in health.tablets:
            parts += ["", *views.tablet(tablet)]
    ui.show(document, *parts)


def table_document(info: TableInfo) -> dict[str, Any]:
    """A table for `--json`; the names never change."""
    hashed, ranged = info.schema.partitioning.hash, info.schema.partitioning.range
    return {
        "table": info.table,
        "name": info.name,
        "state": info.state,
        "replicas": info.replicas,
        "replication": info.replication,
        "created": created(info).isoformat(),
        "schema_version": info.schema.version,
        "applied_version": info.applied_version,
        "columns": [
            {"name": c.name, "type": type_name(c), "nullable": c.nullable, "key": c.name in info.schema.key}
            for c in info.schema.columns
        ],
        "key": list(info.schema.key),
        "hash": msgspec.to_builtins(hashed) if hashed else None,
        "range": {"columns": list(ranged.columns), "splits": split_texts(info)} if ranged else None,
        "tablets": msgspec.to_builtins(info.tablets),
        "properties": info.properties,
    }


def created(info: TableInfo) -> datetime:
    return datetime.fromtimestamp(info.created_us / 1e6, UTC)


def when(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
            ("replicas", f"{info.replicas}, {info.replication}"),
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
    from ebla.storage.rows.convert import defaults

    return "" if column.default is None else str(defaults(column, 1)[0].as_py())


def drop(
    ui: Ui,
    name: TableName,
    yes: Yes = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="No error if the table is missing.")] = False,
    reserve: Annotated[
        str | None,
        typer.Option(
            "--reserve",
            metavar="TIME",
            help="How long `ebla table recall` can bring it back; its space stays in use: 3d, 12h, 30m; 0: not at all.",
        ),
    ] = None,
) -> None:
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
            raise await cluster.unknown_table(name)
        summary = found[0]
        what = f"Drop table {summary.name} ({size(summary.rows_bytes)}) and all its rows"
        ui.confirm(f"{what}, to be recalled within {reserve}?" if reserve_s else f"{what}, for good?", yes)
        kept_s = reserve_s if summary.state != "dropped" else 0
        await cluster.database.drop_table(name, reserve_s=kept_s)
        kept = await cluster.database.tables(deleted=True)
        return True, any(each.table == summary.table for each in kept)

    dropped, kept = within(ui, work)
    text = f"dropped table {name}" if dropped else f"there is no table {name}"
    back = f"; `ebla table recall {name}` brings it back" if kept else ""
    ui.show({"dropped": dropped, "name": name, "kept": kept}, text + back)


def recall(
    ui: Ui,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The table's former name, or its id.", show_default=False)
    ],
    as_name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="The table's new name.")] = None,
) -> None:
    """Bring back a table that was dropped and is still kept (see `ebla table list --deleted`)."""

    async def work(cluster: Cluster) -> TableInfo:
        return await (await cluster.database.recall_table(name, as_name)).info()

    info = within(ui, work)
    ui.show({"recalled": True, "table": table_document(info)}, f"recalled table {info.name}")


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def seconds(text: str, option: str) -> float:
    """The seconds of a time such as 90, 90s, 30m, 12h, 3d or 2w."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        value = float(number) * _UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise Usage(f"{text!r} is not a time; write 3d, 12h, 30m or 90s", option=option)
    return value
