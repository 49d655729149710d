"""The position that a tablet's rows on disk reflect: a record that is written in one transaction with them."""

from __future__ import annotations

import msgspec

from ebla.storage.directories.records import seal, unseal
from ebla.storage.environment import Put, Reader
from ebla.storage.errors import Damaged
from ebla.storage.logs.entries import Position

META = "meta"
POSITION = b"position"


def put_position(position: Position) -> Put:
    return Put(META, [(POSITION, seal(POSITION, msgspec.msgpack.encode(position)))])


def position_of(reader: Reader, path: str) -> Position:
    """The position. Raises Damaged, Corruption."""
    data = reader.get(META, POSITION)
    if data is None:
        raise Damaged("the data has no position", path=path)
    return msgspec.msgpack.decode(unseal(POSITION, data, path), type=Position)
