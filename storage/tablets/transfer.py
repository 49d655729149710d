"""A piece of a tablet on its way to another server: bytes, items among them, with a digest that is bound to their place.

A chunk that arrives damaged, or in another's place, is Corruption: it is asked for again, never written.
"""

from __future__ import annotations

import msgspec
import xxhash

from ebla.storage.environment import Item
from ebla.storage.errors import Corruption

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


def pack(items: list[Item]) -> bytes:
    """Made without Python code per item."""
    return _encode(items)


def unpack(data: bytes) -> list[Item]:
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise Corruption(f"a chunk of a copy cannot be read: {error}") from error


def digest(session: str, number: int, part: str, data: bytes, *, end: bool) -> int:
    """xxh3-64 of the chunk, and of which one it is."""
    body = xxhash.xxh3_64_digest(data)
    return xxhash.xxh3_64_intdigest(f"{session}/{number}/{part}/{end:d}/".encode() + body)


def check(session: str, number: int, part: str, data: bytes, expected: int, *, end: bool) -> None:
    """Raise Corruption unless the digest is right."""
    if digest(session, number, part, data, end=end) != expected:
        raise Corruption(f"chunk {number} of copy session {session} arrived damaged")
