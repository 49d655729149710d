"""The schema after an alteration: columns are added, renamed and dropped; key columns are never dropped.

Stored rows are never rewritten. A row keeps and names the layout that it was written in (storage/rows/checksum.py); the
schema knows every earlier layout, because a dropped column stays in it as a former one. A column is identified by its
number, not its name: a reused name belongs to a new column, without the old values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ebla.storage.columns import Column, FormerName, require_within
from ebla.storage.errors import InvalidArgument, invalid_column
from ebla.storage.rows import convert
from ebla.storage.rows.alteration import AddColumn, Change, DropColumn, RenameColumn
from ebla.storage.schema import DEFAULT_BYTES_MAX, Hash, Partitioning, Range, TableSchema

VERSIONS_MAX = 60_000  # a row has two bytes for the number of its layout
COLUMNS_EVER_MAX = 600  # including dropped ones, because rows with them must be read
NAMES_EVER_MAX = 100  # of one column

replace = msgspec.structs.replace


def altered(schema: TableSchema, changes: Sequence[Change]) -> TableSchema:
    """The schema after all changes in order, one version later. Raises InvalidArgument with the column."""
    version = schema.version + 1
    require_within(
        "VERSIONS_MAX",
        version,
        VERSIONS_MAX,
        f"the table was altered {schema.version} times; copy it into a new one",
    )
    made = replace(schema, columns=_numbered(schema), version=version)
    for change in changes:
        made = _CARRY_OUT[type(change)](made, change)
    ever = len(made.columns) + len(made.former)
    require_within(
        "COLUMNS_EVER_MAX",
        ever,
        COLUMNS_EVER_MAX,
        f"with dropped ones the table would have {ever} columns, over the limit of {COLUMNS_EVER_MAX}; copy it into a "
        "new table",
    )
    made.validate()
    for column in made.columns:
        convert.defaults(column, 1)
    return made


def plain(schema: TableSchema) -> TableSchema:
    """The schema without traces of alterations, as of a new table."""
    columns = tuple(replace(c, id=0, since=0, until=0, default=None, names=()) for c in schema.columns)
    return msgspec.structs.replace(schema, columns=columns, version=0, former=())


def _numbered(schema: TableSchema) -> tuple[Column, ...]:
    """The columns with numbers: in a table that was never altered, the place of each."""
    if all(column.id for column in schema.columns):
        return schema.columns
    return tuple(replace(column, id=place) for place, column in enumerate(schema.columns, 1))


def _add(schema: TableSchema, change: AddColumn) -> TableSchema:
    given = change.column
    if any(column.name == given.name for column in schema.columns):
        raise InvalidArgument(
            f"there is a column {given.name!r} already; choose another name, or drop or rename that one first",
            column=given.name,
        )
    if not given.nullable and given.default is None:
        raise invalid_column(
            given.name,
            "may not be null, and stored rows have no value for it; give a default, or make it nullable",
        )
    if (size := len(given.default or b"")) > DEFAULT_BYTES_MAX:
        raise invalid_column(
            given.name,
            f"has a default of {size} bytes, and {DEFAULT_BYTES_MAX} are allowed: every stored row is read with it; make the column "
            "nullable, and take null for the default",
        )
    number = 1 + max(column.id for column in (*schema.columns, *schema.former))
    column = replace(given, id=number, since=schema.version, until=0, names=())
    return replace(schema, columns=(*schema.columns, column))


def _rename(schema: TableSchema, change: RenameColumn) -> TableSchema:
    column = schema.column(change.name)
    if change.to == change.name:
        return schema
    if any(other.name == change.to for other in schema.columns):
        raise InvalidArgument(
            f"there is a column {change.to!r} already; rename or drop that one first", column=change.to
        )
    renamed = replace(column, name=change.to)
    if column.since < schema.version and not any(each.until == schema.version for each in column.names):
        renamed = replace(renamed, names=(*column.names, FormerName(schema.version, column.name)))
    problem = f"column {change.name!r} was renamed {NAMES_EVER_MAX} times; keep this name"
    require_within("NAMES_EVER_MAX", len(renamed.names), NAMES_EVER_MAX, problem, change.name)

    def new(name: str) -> str:
        return change.to if name == change.name else name

    return replace(
        schema,
        columns=tuple(renamed if each is column else each for each in schema.columns),
        key=tuple(map(new, schema.key)),
        partitioning=_with_names(schema.partitioning, new),
    )


def _with_names(partitioning: Partitioning, new: Callable[[str], str]) -> Partitioning:
    hashed, ranged = partitioning.hash, partitioning.range
    return Partitioning(
        Hash(tuple(map(new, hashed.columns)), hashed.buckets) if hashed else None,
        Range(tuple(map(new, ranged.columns)), ranged.splits) if ranged else None,
    )


def _drop(schema: TableSchema, change: DropColumn) -> TableSchema:
    column = schema.column(change.name)
    if column.name in schema.key:
        raise invalid_column(column.name, "is part of the key; a key column can be renamed, not dropped")
    left = tuple(each for each in schema.columns if each is not column)
    if column.since == schema.version:  # it was added just now: no row has it
        return replace(schema, columns=left)
    return replace(schema, columns=left, former=(*schema.former, replace(column, until=schema.version)))


_CARRY_OUT: dict[type[Any], Callable[[TableSchema, Any], TableSchema]] = {
    AddColumn: _add,
    RenameColumn: _rename,
    DropColumn: _drop,
}
