"""`ebla table alter`: add, drop and rename columns while clients read and write the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ebla.cli.frame.connection import within
from ebla.cli.frame.options import TableName, Yes, option
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.ui import Shown, Ui
from ebla.wording import count

if TYPE_CHECKING:
    from ebla.actors.messages import TableInfo
    from ebla.operate.cluster import Cluster
    from ebla.write.alter import Alteration


def alter(
    ui: Ui,
    name: TableName,
    add: Annotated[
        list[str] | None,
        option(
            "--add COLUMN",
            "A new column: NAME:TYPE[:null][=DEFAULT]. Existing rows get DEFAULT, or null. Repeatable.",
        ),
    ] = None,
    rename: Annotated[list[str] | None, option("-r --rename OLD=NEW", "Repeatable.")] = None,
    drop: Annotated[
        list[str] | None, option("-d --drop COLUMN", "Drop a column and its values, for good. Repeatable.")
    ] = None,
    as_name: Annotated[str | None, option("--as NAME", "The new name of the table.")] = None,
    least: Annotated[
        int | None, option("--min-members N", "PacificA: fewer voters take no writes.", min=1)
    ] = None,
    wait: Annotated[
        float, option("--wait SECONDS", "Longest wait for every tablet to have the new schema.", min=0)
    ] = 60.0,
    yes: Yes = False,
) -> Shown:
    """Add, rename and drop columns of a table, rename the table, or change its min_members: all of it or nothing.

    First columns are dropped, then renamed, then added. No row is rewritten, and readers and writers continue meanwhile. A
    column of the key can be renamed, not dropped.

    ebla table alter flights --add delay:int32=0 --rename dep=departure \\
      --drop tailnum
    """
    if not (add or rename or drop or as_name or least):
        raise Usage("there is nothing to alter; give --add, --rename, --drop, --as or --min-members")

    async def work(cluster: Cluster) -> TableInfo:
        from ebla.storage.rows.altered import altered

        table = await cluster.database.table(name)
        changes = _collect(table.alter(), add or [], rename or [], drop or [], as_name)
        if least:
            changes.min_members(least)
        if drop:
            # Refuses before the question what the master would refuse after it.
            altered((await table.info()).schema, changes.changes)
            ui.confirm(f"Drop {', '.join(drop)} of table {name}, with all values, for good?", yes)
        with ui.working(f"alter {name}") as progress:
            progress.step("waiting for its tablets" if wait else "")
            return await changes.apply(wait_s=wait)

    info = within(ui, work)
    from ebla.cli.tables.tables import table_document

    everywhere = info.applied_version >= info.schema.version
    return (
        {"altered": True, "in_force": everywhere, "table": table_document(info)},
        f"altered table {info.name}: {count(len(info.schema.columns), 'column')}, version {info.schema.version}"
        + ("" if everywhere else "; not every tablet has the new schema yet"),
    )


def _collect(
    changes: Alteration, add: list[str], rename: list[str], drop: list[str], as_name: str | None
) -> Alteration:
    from ebla.cli.frame.values import from_text
    from ebla.cli.tables.schemas import parse_column

    for text in drop:
        changes.drop_column(text)
    for text in rename:
        old, equals, new = text.partition("=")
        if not (old and equals and new):
            raise Usage(f"{text!r} is not a renaming; write old=new", option="--rename")
        changes.rename_column(old, new)
    for text in add:
        at = _default_at(text)
        column = parse_column(text[:at])
        value = from_text(column, text[at + 1 :]) if at < len(text) else None
        changes.add_column(column.name, column.arrow_type(), nullable=column.nullable, default=value)
    if as_name:
        changes.rename(as_name)
    return changes


def _default_at(text: str) -> int:
    """The place of the first = outside of brackets (timestamp[us,tz=UTC]), or the end."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "[(<") - (character in "])>")
        if character == "=" and depth <= 0:
            return place
    return len(text)
