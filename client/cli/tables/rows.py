"""`ebla table get | put | delete | count`: single rows, and the rows that meet a condition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from ebla.cli.frame.connection import within
from ebla.cli.frame.options import TableName, Where, Yes, argument, option
from ebla.cli.frame.problems import Usage, column_hint
from ebla.cli.frame.render import facts
from ebla.cli.frame.ui import Shown, Ui
from ebla.cli.frame.values import from_text
from ebla.errors import NotFound
from ebla.show.values import texts, word
from ebla.storage.errors import add_note
from ebla.wording import command
from ebla.wording import count as counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebla.aio import Table
    from ebla.operate.cluster import Cluster
    from ebla.storage.predicates.expressions import Expression
    from ebla.storage.schema import Column, TableSchema

Values = Annotated[list[str], argument("COLUMN=VALUE", "Such as carrier=UA flight=1545.")]
Nulls = Annotated[list[str] | None, option("--null COLUMN", "Set a column to null; repeatable.")]


async def get(cluster: Cluster, name: TableName, key: Values) -> Shown:
    """Show one row, by its whole key.

    ebla table get flights carrier=UA flight=1545
    """
    table = await cluster.database.table(name)
    by_condition = f"read rows by a condition: {command('table scan', name, options='--where ...')}"
    row = await table.get(_key(await _schema(table), key, by_condition))
    if row is None:
        raise _absent(name, key)
    return {"table": name, "row": row}, facts((column, word(value)) for column, value in texts(row).items())


async def put(
    cluster: Cluster,
    name: TableName,
    values: Values,
    null: Nulls = None,
    update: Annotated[
        bool, option("--update", "Keep the other columns of the row, which must exist.")
    ] = False,
) -> Shown:
    """Write one row: insert it, or replace the row with its key.

    Columns that are not named get their default, else null. With --update they keep their values.

    ebla table put flights carrier=UA flight=1545 distance=1400
    """
    table = await cluster.database.table(name)
    schema = await _schema(table)
    row = _values(schema, values)
    for column in null or ():
        row[_column(schema, column).name] = None
    try:
        await (table.update(row) if update else table.upsert(row))
    except NotFound as error:
        if not update or error.what != "rows":
            raise
        raise _absent(name, [text for text in values if text.partition("=")[0] in schema.key]) from None
    others = [] if update else [column.name for column in schema.columns if column.name not in row]
    text = f"wrote 1 row to {name}"
    if others:
        text += f"; not named, so default or null: {', '.join(others)} (--update keeps what a row has)"
    return {"table": name, "written": 1, "not_named": others}, text


def delete(
    ui: Ui,
    name: TableName,
    key: Annotated[list[str] | None, argument("COLUMN=VALUE", "The whole key of one row.")] = None,
    where: Where = None,
    if_exists: Annotated[bool, option("--if-exists", "No error if there is no such row.")] = False,
    yes: Yes = False,
) -> Shown:
    """Delete one row by its whole key, or all rows that meet a condition.

    A deletion by condition is atomic for each row, not for all of them. If it fails, run it again.

    ebla table delete flights carrier=UA flight=1545
    ebla table delete flights --where "distance < 100"
    """
    if bool(key) == (where is not None):
        raise Usage("name either the key of one row, or --where CONDITION", option="--where")

    begun = False

    def begin() -> None:
        nonlocal begun
        begun = True

    async def work(cluster: Cluster) -> int:
        table = await cluster.database.table(name)
        schema = await _schema(table)
        if where is not None:
            return await _delete_where(ui, table, _condition(where, schema), where, yes, begin)
        wanted = _key(schema, key or [], "name rows by a condition: --where ...")
        written = await table.delete(wanted, if_absent="ignore")
        if not written.rows and not if_exists:
            raise _absent(name, key or [])
        return written.rows

    try:
        rows = within(ui, work)
    except (KeyboardInterrupt, SystemExit) as end:
        if begun:
            add_note(
                end, f"rows of {name} may be deleted already; run the command again to delete the others"
            )
        raise
    return {"table": name, "deleted": rows}, f"deleted {counted(rows, 'row')} of {name}"


async def _delete_where(
    ui: Ui, table: Table, condition: Expression, text: str, yes: bool, begin: Callable[[], None]
) -> int:
    if not yes:
        rows = await table.count(condition)
        if not rows:
            return 0
        ui.confirm(f"Delete {counted(rows, 'row')} of {table.name} with {text}?", yes)
    begin()
    return (await table.delete(where=condition)).rows


async def count(cluster: Cluster, name: TableName, where: Where = None) -> Shown:
    """Count the rows, or those that meet a condition."""
    table = await cluster.database.table(name)
    rows = await table.count(None if where is None else _condition(where, await _schema(table)))
    return {"table": name, "count": rows}, f"{rows:,}"


async def _schema(table: Table) -> TableSchema:
    return (await table.info()).schema


def _condition(text: str, schema: TableSchema) -> Expression:
    from ebla.cli.frame import where as conditions

    return conditions.parse(text, schema)


def _values(schema: TableSchema, texts: list[str]) -> dict[str, Any]:
    """The values of COLUMN=VALUE words, in the columns' types."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Usage(f"{text!r} is not COLUMN=VALUE, such as {schema.key[0]}=...")
        column = _column(schema, name)
        if name in found:
            raise Usage(f"column {name!r} is given twice", column=name)
        found[name] = from_text(column, value)
    missing = [name for name in schema.key if name not in found]
    if missing:
        raise Usage(
            f"the key of this table is {', '.join(schema.key)}; add {' '.join(f'{name}=...' for name in missing)}",
            column=missing[0],
        )
    return found


def _key(schema: TableSchema, texts: list[str], otherwise: str) -> dict[str, Any]:
    """The values of a whole key, and of no other column."""
    from ebla.arguments import check_key

    key = _values(schema, texts)
    check_key(key, schema.key, otherwise)
    return key


def _column(schema: TableSchema, name: str) -> Column:
    names = [column.name for column in schema.columns]
    if name not in names:
        raise Usage(f"there is no column {name!r}{column_hint(name, names)}", column=name)
    return schema.column(name)


def _absent(table: str, key: list[str]) -> NotFound:
    return NotFound(f"table {table!r} has no row with {', '.join(key)}", what="rows")
