"""The position that a tablet's rows on disk reflect: a record that is written in one transaction with them.

It has a digest of the answers as of that position. A disk that returns an older version of some records, whose writes it lost,
would otherwise not be noticed: each of them passes its own checksum.
"""

from __future__ import annotations

import msgspec

from ebla.storage.directories.records import seal, unseal
from ebla.storage.environment import Put, Reader
from ebla.storage.errors import Damaged
from ebla.storage.logs.entries import Position

META = "meta"
POSITION = b"position"


class Flushed(msgspec.Struct, frozen=True):
    """`answers`: the digest of all answers as of the position (results.py)."""

    position: Position
    answers: int


def put_position(position: Position, answers: int) -> Put:
    body = msgspec.msgpack.encode(Flushed(position, answers))
    return Put(META, [(POSITION, seal(POSITION, body))])


def flushed_of(reader: Reader, path: str) -> Flushed:
    """Raises Damaged, Corruption."""
    data = reader.get(META, POSITION)
    if data is None:
        raise Damaged("the data has no position", path=path)
    return msgspec.msgpack.decode(unseal(POSITION, data, path), type=Flushed)


def position_of(reader: Reader, path: str) -> Position:
    """Raises Damaged, Corruption."""
    return flushed_of(reader, path).position
