"""What the last alteration made of a table, as every replica of its tablets keeps it.

A tablet is created with the schema that its table was created with, and each alteration since comes to it as an entry of
its log, so replicas agree on which rows came before it and which after. The newest applied one is flushed together with
the rows (storage/tablets/tablet_store.py): rows, position and schema on disk are of one moment.
"""

from __future__ import annotations

import msgspec

from ebla.storage.schema import TableSchema


class Dropped(msgspec.Struct, frozen=True):
    """The table was dropped, and is kept until `until_us` of the master's clock."""

    table: str
    name: str
    until_us: int


class Alteration(msgspec.Struct, frozen=True):
    """The whole of it, not a difference: `schema.version` numbers it, an older or equal one changes nothing."""

    schema: TableSchema
    dropped: Dropped | None = None


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Alteration).decode
