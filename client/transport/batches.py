"""Units of work: each is sent to one tablet and answered as one.

    GetUnit     keys to read
    OpsUnit     single rows of concurrent callers, one batch
    BatchUnit   a part of a bulk call, one batch

A write unit is encoded once. It is repeated with the same bytes and the same request id, so the tablet recognises a
repetition and returns its first answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec
import xxhash

from ebla.actors.asking.certainty import Tries
from ebla.actors.asking.retries import same
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT, RowBatch, WriteResult
from ebla.actors.world import Random
from ebla.options import UNIT_BYTES, WriteId, Written
from ebla.storage.errors import EblaError
from ebla.storage.rows.checksum import rows_digest
from ebla.transport.routes import BULK, Route, WriteOp

if TYPE_CHECKING:
    from ebla.storage.rows.ragged import Array

VERBS = {UPSERT: "upsert", INSERT: "insert", UPDATE: "update", DELETE: "delete"}
ROW_OVERHEAD_BYTES = 10  # MessagePack adds at most this to a row's key and value
APPLIED, REJECTED = Written(1), Written(0, (0,))

_encode = msgspec.msgpack.Encoder().encode


class Ids:
    """Request ids of one connection: 16 random bytes, and a number that only grows."""

    def __init__(self, random: Random) -> None:
        self.client = random.getrandbits(128).to_bytes(16, "big")
        self.last = 0

    def take(self) -> int:
        self.last += 1
        return self.last


def encode_batch(
    version: int,
    request: WriteId,
    first_incomplete: int,
    kind: int,
    columns: tuple[str, ...],
    keys: list[bytes],
    values: list[bytes],
) -> bytes:
    client, sequence = request
    digest = rows_digest(kind, columns, keys, values)
    return _encode(RowBatch(client, sequence, first_incomplete, kind, version, digest, keys, values, columns))


def encode_columnar(version: int, request: WriteId, first_incomplete: int, kind: int, rows: bytes) -> bytes:
    """As `encode_batch`, of rows in columns."""
    client, sequence = request
    digest = xxhash.xxh3_64_intdigest(rows, kind)
    return _encode(RowBatch(client, sequence, first_incomplete, kind, version, digest, [], [], (), rows))


@dataclass(slots=True, eq=False)
class GetUnit:
    """Keys of one tablet; the future's result is the values, None where absent."""

    route: Route
    keys: list[bytes]
    future: asyncio.Future[list[bytes | None]]
    deadline: float
    deadline_s: float
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.keys) * (len(self.keys[0]) + ROW_OVERHEAD_BYTES)

    def succeed(self, result: list[bytes | None]) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def again(self, error: EblaError) -> None:
        """A read may be repeated."""

    def fail(self, error: EblaError) -> None:
        if not self.future.done():
            self.future.set_exception(same(error))

    def expire(self, now: float) -> bool:
        if now >= self.deadline:
            self.fail(self.route.timed_out("get", self.deadline_s))
        return self.future.done()


def expire_op(op: WriteOp, route: Route, now: float) -> bool:
    if now >= op.deadline and not op.future.done():
        op.future.set_exception(route.timed_out(VERBS[op.kind], op.deadline_s))
    return op.future.done()


class OpsUnit:
    """Rows of one kind that queued for one tablet, in order of arrival."""

    __slots__ = ("batch", "ops", "route", "sequence", "size", "tries")

    def __init__(self, route: Route, ids: Ids, ops: list[WriteOp]) -> None:
        self.route = route
        self.ops = ops
        self.tries = Tries()
        self.sequence = ids.take()
        first = ops[0]
        self.batch = encode_batch(
            first.version,
            WriteId(ids.client, self.sequence),
            route.sequence(self.sequence),
            first.kind,
            first.columns,
            [op.key for op in ops],
            [] if first.kind == DELETE else [op.value for op in ops],
        )
        self.size = len(self.batch)

    def succeed(self, result: WriteResult) -> None:
        self.route.outstanding.pop(self.sequence, None)
        rejected = set(result.rejected)
        for at, op in enumerate(self.ops):
            if not op.future.done():
                op.future.set_result(REJECTED if at in rejected else APPLIED)

    def again(self, error: EblaError) -> None:
        self.tries.failed(error)

    def fail(self, error: EblaError) -> None:
        self.route.outstanding.pop(self.sequence, None)
        outcome = self.tries.outcome(error)
        for op in self.ops:
            if not op.future.done():
                op.future.set_exception(same(outcome))

    def expire(self, now: float) -> bool:
        waiting = [op for op in self.ops if not expire_op(op, self.route, now)]
        if not waiting:
            self.route.outstanding.pop(self.sequence, None)
        return not waiting


def build_ops(route: Route, ids: Ids) -> OpsUnit | None:
    """One batch of the first rows in the route's queue: rows of one kind, up to UNIT_BYTES."""
    queued = route.ops
    taken: list[WriteOp] = []
    size = 0
    while queued:
        op = queued[0]
        if op.future.done():  # its caller was cancelled, or its deadline passed: it was never sent
            queued.popleft()
            continue
        first = taken[0] if taken else op
        if (op.kind, op.columns, op.version) != (first.kind, first.columns, first.version):
            break
        size += len(op.key) + len(op.value) + ROW_OVERHEAD_BYTES
        if taken and size > UNIT_BYTES:
            break
        taken.append(queued.popleft())
    return OpsUnit(route, ids, taken) if taken else None


class Owner(Protocol):
    """The bulk call that a batch belongs to."""

    def answered(self, unit: BatchUnit, result: WriteResult) -> None: ...

    def failed(self, unit: BatchUnit, error: EblaError) -> None: ...


@dataclass(slots=True, eq=False)
class BatchUnit:
    """Some rows of a bulk call, at `positions` of the caller's rows. The deadline begins when the unit is sent. `sequence` is
    None if the request id is the caller's own. `tries`: attempts that were made before."""

    route: Route
    owner: Owner
    what: str
    batch: bytes
    positions: Array
    sequence: int | None
    tries: Tries = field(default_factory=Tries)
    size: int = field(init=False)
    deadline: tuple[float, float] = (float("inf"), 0.0)
    kind: int = BULK
    done: bool = False

    def __post_init__(self) -> None:
        self.size = len(self.batch)

    def succeed(self, result: WriteResult) -> None:
        if self._finish():
            self.owner.answered(self, result)

    def again(self, error: EblaError) -> None:
        self.tries.failed(error)

    def fail(self, error: EblaError) -> None:
        if self._finish():
            self.owner.failed(self, self.tries.outcome(error))

    def expire(self, now: float) -> bool:
        deadline, deadline_s = self.deadline
        if now >= deadline:
            self.fail(self.route.timed_out(self.what, deadline_s))
        return self.done

    def forget(self) -> None:
        """The caller no longer waits."""
        self._finish()

    def _finish(self) -> bool:
        first = not self.done
        self.done = True
        if self.sequence is not None:
            self.route.outstanding.pop(self.sequence, None)
        return first


class Alone:
    """The owner of a batch that is a call by itself."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()

    def answered(self, unit: BatchUnit, result: WriteResult) -> None:
        if not self.future.done():
            self.future.set_result(REJECTED if result.rejected else APPLIED)

    def failed(self, unit: BatchUnit, error: EblaError) -> None:
        if not self.future.done():
            self.future.set_exception(same(error))


def rejected_positions(positions: Array, rejected: Sequence[int]) -> list[int]:
    return [int(p) for p in positions[list(rejected)]]
