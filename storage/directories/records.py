"""Small typed records (superblocks, consensus metadata, edits' heads) with a checksum bound to their key.

An absent record is None; one that fails its check raises Corruption: *damaged* differs from *never existed*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import crc32c
import msgspec

from ebla.storage.environment import Delete, Environment, Put
from ebla.storage.errors import Corruption, Damaged

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


def seal(key: bytes, body: bytes) -> bytes:
    """Append a CRC-32C over key and body to `body`, four bytes little endian."""
    return body + int(crc32c.crc32c(body, crc32c.crc32c(key))).to_bytes(4, "little")


def unseal(key: bytes, data: bytes, path: str) -> bytes:
    body = data[:-4]
    if len(data) < 4 or seal(key, body) != data:
        raise Corruption(f"the record under key {key.hex()} fails its checksum", path=path)
    return body


def decoded(key: bytes, data: bytes, decode: Callable[[bytes], T], path: str) -> T:
    """The record in `data`. Raises Corruption, also if it is sound and of another shape."""
    try:
        return decode(unseal(key, data, path))
    except msgspec.MsgspecError as error:
        raise Corruption(f"the record under key {key.hex()} cannot be read: {error}", path=path) from error


class RecordStore(Generic[R]):
    """One record per name in one database of an environment."""

    def __init__(self, environment: Environment, database: str, kind: type[R]) -> None:
        self.environment = environment
        self.database = database
        self._decoder = msgspec.msgpack.Decoder(kind)

    def get(self, name: str) -> R | None:
        key = name.encode()
        data = self.environment.get(self.database, key)
        return None if data is None else self._open(key, data)

    def names(self) -> list[str]:
        return [key.decode(errors="replace") for key in self.environment.keys(self.database)]

    def all(self) -> Iterator[tuple[str, R | Corruption]]:
        """Every record, or its Corruption, by ascending name. Raises Damaged if some are not found."""
        items = self.environment.items(self.database)
        if len(items) != self.environment.count(self.database):
            path = self.environment.path
            raise Damaged(f"{path} has lost records; move the directory aside and start again", path=path)
        for key, data in items:
            name = key.decode(errors="replace")
            try:
                yield name, self._open(key, data)
            except Corruption as error:
                yield name, error

    def put(self, name: str, record: R) -> Put:
        """The change that sets the record, for a batch."""
        key = name.encode()
        return Put(self.database, [(key, seal(key, msgspec.msgpack.encode(record)))])

    def delete(self, name: str) -> Delete:
        return Delete(self.database, [name.encode()])

    async def save(self, name: str, record: R) -> None:
        await self.environment.commit([self.put(name, record)])

    def _open(self, key: bytes, data: bytes) -> R:
        return decoded(key, data, self._decoder.decode, self.environment.path)
