"""The whole catalog as of one transaction, so that the edit log does not grow for ever.

Database `checkpoint` of the master's environment, replaced in one commit:

    head               the transaction that it reflects, the image's number of chunks and bytes, its digest
    number (8 bytes)   one chunk of the encoded image

The digest covers every byte; damage is Corruption, never a smaller catalog. The head also names the journal
that the checkpoint reflects, with the journal's running digest up to the transaction. So no edit of this
journal is applied to the checkpoint of another deployment or of another history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import xxhash

from ebla.actors.errors import NotFound
from ebla.actors.master.catalog.records import (
    CatalogImage,
    decode_image,
    encode_image,
)
from ebla.actors.master.messages import CheckpointChunk
from ebla.storage.environment import DeleteRange, Environment, Put
from ebla.storage.errors import Corruption

DATABASE = "checkpoint"
CHUNK_BYTES = 256 << 10
_HEAD = b"head"

_encode = msgspec.msgpack.Encoder().encode


class Mark(NamedTuple):
    """`journal`: the journal's id, empty if the edits are not in a journal. `history`: the journal's digest
    up to the checkpoint's transaction, 0 if unknown."""

    journal: str = ""
    history: int = 0


UNMARKED = Mark()


class Saved(NamedTuple):
    """A checkpoint that was loaded. `txid`: the transaction that it reflects."""

    txid: int
    image: CatalogImage
    mark: Mark


class _Head(msgspec.Struct, frozen=True, array_like=True):
    txid: int
    chunks: int
    image_bytes: int
    digest: int
    journal: str = ""
    history: int = 0


_decode_head = msgspec.msgpack.Decoder(_Head).decode


class Checkpoints:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    async def save(self, txid: int, image: CatalogImage, mark: Mark = UNMARKED) -> None:
        """Replace the checkpoint, atomically and durably."""
        data = encode_image(image)
        chunks = chunks_of(data)
        head = _encode(_Head(txid, len(chunks), len(data), _digest(txid, data), *mark))
        await self._environment.commit(
            [
                DeleteRange(DATABASE, b"", None),
                Put(
                    DATABASE, [(_key(number), chunk) for number, chunk in enumerate(chunks)], sorted_keys=True
                ),
                Put(DATABASE, [(_HEAD, xxhash.xxh3_64_digest(head) + head)]),
            ]
        )

    def load(self) -> Saved | None:
        """Load the checkpoint; None if there was never one."""
        head = self._head()
        if head is None:
            return None
        chunks = self._environment.get_many(DATABASE, [_key(number) for number in range(head.chunks)])
        data = b"".join(chunk or b"" for chunk in chunks)
        if len(data) != head.image_bytes or _digest(head.txid, data) != head.digest:
            raise self._corruption(f"the image as of transaction {head.txid} fails its checksum")
        return Saved(head.txid, decode_image(data), Mark(head.journal, head.history))

    def chunk(self, number: int) -> CheckpointChunk:
        """Return a chunk for another master, which checks the digest of all chunks (`image_of`).

        Raises NotFound if there is no such chunk.
        """
        head = self._head()
        if head is None:
            return CheckpointChunk(0, 0, 0, b"")
        data = self._environment.get(DATABASE, _key(number))
        if data is None:
            raise NotFound(
                f"the checkpoint has {head.chunks} chunks, there is no chunk {number}", what="chunk"
            )
        return CheckpointChunk(head.txid, head.chunks, head.digest, data, head.journal, head.history)

    def _head(self) -> _Head | None:
        sealed = self._environment.get(DATABASE, _HEAD)
        if sealed is None:
            if self._environment.count(DATABASE) > 0:
                raise self._corruption("its head is missing")
            return None
        if xxhash.xxh3_64_digest(sealed[8:]) != sealed[:8]:
            raise self._corruption("its head fails its checksum")
        return _decode_head(sealed[8:])

    def _corruption(self, what: str) -> Corruption:
        path = self._environment.path
        return Corruption(
            f"the checkpoint in {path} is damaged: {what}; restore the master's catalog", path=path
        )


def chunks_of(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]


def image_of(chunks: Sequence[CheckpointChunk]) -> CatalogImage | None:
    """Decode another master's chunks; None if they are damaged, or not all of one checkpoint."""
    first, data = chunks[0], b"".join(chunk.data for chunk in chunks)
    if any((chunk.txid, chunk.digest) != (first.txid, first.digest) for chunk in chunks):
        return None
    if len(chunks) != first.chunks or _digest(first.txid, data) != first.digest:
        return None
    return decode_image(data)


def _digest(txid: int, data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(txid.to_bytes(8, "big") + data)


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")
