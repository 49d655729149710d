"""Where the catalog's edits become durable, and the seam at which a quorum of journal nodes is plugged in.

A transaction is one `append`: its edits are replayed together or not at all, numbered 1, 2, 3, ... (txid).
`LocalEditLog` keeps them in the master's own LMDB environment, database `edits`:

    txid (8 bytes)   chain (8 bytes) + edits     chain = digest of the previous chain, the txid and the edits
    base             txid + chain + checksum     what came up to here was purged; a checkpoint holds it
    head             txid + chain + checksum     the last transaction: a log that lost its end is noticed

The chain binds every record to its place and to the whole history before it. LMDB does not notice rot, a
record served for another, or one that is missing; the chain does, and the answer is Corruption, never fewer
edits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import xxhash

from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.checkpoint import UNMARKED, Mark
from ebla.storage.environment import Change, DeleteRange, Environment, Put
from ebla.storage.errors import Corruption

DATABASE = "edits"
_BASE, _HEAD = b"base", b"head"  # txid keys start with zero bytes, so these come after every one of them
_PAGE = 1000
_U64 = 8


class EditLog(Protocol):
    """One writer. `append` and `purge` are never called concurrently."""

    @property
    def last_txid(self) -> int: ...

    def mark(self) -> Mark:
        """Which log it is, and how it has come to `last_txid`."""

    async def open(self, after: int) -> list[e.Edit]:
        """Become able to append; the edits of every transaction after `after`, in order. Corruption if they
        are not all there or any of them is damaged."""

    async def append(self, edits: Sequence[e.Edit]) -> None:
        """One transaction, durable when it returns. If it raises, whether it is durable is unknown (but for DiskFull, after
        which it is not): the only safe reaction is to stop and start again from what the log says."""

    async def purge(self, upto: int) -> None:
        """Transactions up to `upto` are no longer needed: a checkpoint holds them durably."""


class LocalEditLog:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._txid = 0
        self._chain = 0

    @property
    def last_txid(self) -> int:
        return self._txid

    def mark(self) -> Mark:
        return UNMARKED  # it lies in one environment with its checkpoint

    async def open(self, after: int) -> list[e.Edit]:
        base, self._chain = self._marker(_BASE) or (0, 0)
        self._txid = base
        if base > after:
            raise self._corruption(
                f"the edits {after + 1} to {base} were purged, but no checkpoint holds them"
            )
        edits: list[e.Edit] = []
        start = b""
        while page := self._environment.items(DATABASE, start, _BASE, limit=_PAGE):
            for key, value in page:
                replayed = self._replay(key, value)
                if self._txid > after:
                    edits.extend(replayed)
            start = page[-1][0] + b"\x00"
        head = self._marker(_HEAD) or (0, 0)
        if head != (self._txid, self._chain):
            raise self._corruption(f"it ends at transaction {self._txid}, its head says {head[0]}")
        if self._txid < after:
            raise self._corruption(f"it ends at transaction {self._txid}, before the checkpoint at {after}")
        return edits

    async def append(self, edits: Sequence[e.Edit]) -> None:
        assert len(edits) > 0, "an empty transaction says nothing"
        payload = e.encode(edits)
        txid = self._txid + 1
        chain = chained(self._chain, txid, payload)
        await self._environment.commit(
            [
                Put(DATABASE, [(_u64(txid), _u64(chain) + payload)]),
                Put(DATABASE, [(_HEAD, _sealed(_HEAD, txid, chain))]),
            ]
        )
        self._txid, self._chain = txid, chain

    async def purge(self, upto: int) -> None:
        assert upto <= self._txid, (upto, self._txid)
        record = self._environment.get(DATABASE, _u64(upto))
        if record is None:
            return  # purged before
        chain = int.from_bytes(record[:_U64], "big")
        batch: list[Change] = [
            DeleteRange(DATABASE, b"", _u64(upto + 1)),
            Put(DATABASE, [(_BASE, _sealed(_BASE, upto, chain))]),
        ]
        await self._environment.commit(batch)

    def _replay(self, key: bytes, value: bytes) -> list[e.Edit]:
        """The edits of the next record, which must be the very next transaction."""
        txid, payload = self._txid + 1, value[_U64:]
        chain = chained(self._chain, txid, payload)
        if key != _u64(txid):
            raise self._corruption(f"transaction {txid} is missing; the next one is {key.hex()}")
        if value[:_U64] != _u64(chain):
            raise self._corruption(f"transaction {txid} fails its checksum")
        try:
            edits = e.decode(payload)
        except msgspec.MsgspecError as error:
            raise self._corruption(f"transaction {txid} holds no edits: {error}") from error
        self._txid, self._chain = txid, chain
        return edits

    def _marker(self, name: bytes) -> tuple[int, int] | None:
        value = self._environment.get(DATABASE, name)
        if value is None:
            return None
        txid, chain = int.from_bytes(value[:_U64], "big"), int.from_bytes(value[_U64 : 2 * _U64], "big")
        if value != _sealed(name, txid, chain):
            raise self._corruption(f"its {name.decode()} fails its checksum")
        return txid, chain

    def _corruption(self, what: str) -> Corruption:
        path = self._environment.path
        return Corruption(
            f"the edit log in {path} is damaged: {what}; restore the master's catalog", path=path
        )


def chained(previous: int, txid: int, payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(b"edit" + _u64(previous) + _u64(txid) + payload)


def _sealed(name: bytes, txid: int, chain: int) -> bytes:
    body = _u64(txid) + _u64(chain)
    return body + xxhash.xxh3_64_digest(name + body)


def _u64(number: int) -> bytes:
    return number.to_bytes(_U64, "big")
