"""The position that a tablet's rows on disk reflect, and the last alteration of its table: records that are written in one
transaction with the rows.

The position has digests of the answers and of the alteration as of its flush. A disk that returns an older version of a record,
because it lost the last write, would otherwise not be noticed: that version passes its own checksum.
"""

from __future__ import annotations

import msgspec
import xxhash

from ebla.storage.directories.records import decoded, seal, unseal
from ebla.storage.environment import Put, Reader
from ebla.storage.errors import Corruption, Damaged
from ebla.storage.logs.entries import Position
from ebla.storage.rows.alteration import Alteration, decode

META = "meta"
POSITION = b"position"
ALTERATION = b"alteration"  # absent: the table was never altered


class Flushed(msgspec.Struct, frozen=True):
    """`answers`: the digest of all answers as of the position (results.py); `alteration`: that of the alteration."""

    position: Position
    answers: int
    alteration: int


_decode = msgspec.msgpack.Decoder(Flushed).decode


def put_position(position: Position, answers: int, alteration: bytes | None) -> Put:
    body = msgspec.msgpack.encode(Flushed(position, answers, _digest(alteration)))
    return Put(META, [(POSITION, seal(POSITION, body))])


def put_alteration(alteration: bytes) -> Put:
    return Put(META, [(ALTERATION, seal(ALTERATION, alteration))])


def flushed_of(reader: Reader, path: str) -> Flushed:
    """Raises Damaged, Corruption."""
    data = reader.get(META, POSITION)
    if data is None:
        raise Damaged("the data has no position", path=path)
    return decoded(POSITION, data, _decode, path)


def position_of(reader: Reader, path: str) -> Position:
    """Raises Damaged, Corruption."""
    return flushed_of(reader, path).position


def alteration_of(reader: Reader, path: str) -> bytes | None:
    """The last alteration, encoded, None if there was none. Raises Corruption."""
    data = reader.get(META, ALTERATION)
    return None if data is None else unseal(ALTERATION, data, path)


def altered(encoded: bytes, path: str) -> Alteration:
    """Raises Corruption."""
    try:
        return decode(encoded)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the alteration in {path} cannot be read: {error}", path=path) from error


def require_alteration(found: Flushed, alteration: bytes | None, path: str) -> None:
    """Raise Corruption if the alteration is not the one of the position."""
    if _digest(alteration) != found.alteration:
        raise Corruption(
            f"the alteration of the table in {path} is not the one of its position: one of both records is missing, or is an "
            "older one",
            path=path,
        )


def _digest(alteration: bytes | None) -> int:
    return 0 if alteration is None else xxhash.xxh3_64_intdigest(alteration)
