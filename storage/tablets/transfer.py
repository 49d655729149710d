"""A chunk of a copied tablet: bytes, which may be items, with a digest that is bound to their place.

A chunk that arrives damaged, or in another place, is Corruption: it is requested again, never written.
"""

from __future__ import annotations

import msgspec
import xxhash

from ebla.storage.environment import Item
from ebla.storage.errors import Corruption

pack = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


def unpack(data: bytes) -> list[Item]:
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise Corruption(f"a chunk of a copy cannot be read: {error}") from error


def digest(session: str, number: int, part: str, data: bytes, *, end: bool) -> int:
    """xxh3-64 of the chunk and its place."""
    body = xxhash.xxh3_64_digest(data)
    return xxhash.xxh3_64_intdigest(f"{session}/{number}/{part}/{end:d}/".encode() + body)


def check(session: str, number: int, part: str, data: bytes, expected: int, *, end: bool) -> None:
    if digest(session, number, part, data, end=end) != expected:
        raise Corruption(f"chunk {number} of copy session {session} arrived damaged")
