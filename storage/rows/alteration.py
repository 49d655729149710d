"""Changes of columns, and the last alteration of a table, as every replica of its tablets keeps it.

A tablet is created with the first schema of its table. Each later alteration is an entry of its log, so replicas agree
on the rows before and after it. The newest applied alteration is flushed together with the rows
(storage/tablets/tablet_store.py): rows, position and schema on disk are of one moment.
"""

from __future__ import annotations

import msgspec

from ebla.storage.columns import Column
from ebla.storage.schema import TableSchema


class AddColumn(msgspec.Struct, frozen=True, tag="add"):
    """Stored rows, and new rows without a value for the column, have its default (null if none)."""

    column: Column


class RenameColumn(msgspec.Struct, frozen=True, tag="rename"):
    name: str
    to: str


class DropColumn(msgspec.Struct, frozen=True, tag="drop"):
    name: str


Change = AddColumn | RenameColumn | DropColumn


class Dropped(msgspec.Struct, frozen=True):
    """The table was dropped, and is kept until `until_us` of the master's clock."""

    table: str
    name: str
    until_us: int


class Alteration(msgspec.Struct, frozen=True):
    """The whole new schema, numbered by `schema.version`; an older or equal version changes nothing."""

    schema: TableSchema
    dropped: Dropped | None = None


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Alteration).decode
