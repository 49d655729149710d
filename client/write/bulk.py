"""One call with many rows: encoded by columns, cut into batches per tablet, sent in full calls, bounded in memory.

    1. check      every slice is converted to the schema and its keys are encoded before anything is sent
    2. encode     slice by slice, while earlier calls are in flight; rows are sorted by tablet, without a loop over rows
    3. cut        a tablet's rows, in the caller's order, into batches of UNIT_BYTES; the cuts depend on the rows
                  alone, so a repeated call with the same write id makes the same batches
    4. gather     a server's batches into calls of about CALL_LARGE_BYTES; a smaller rest goes in calls below
                  CALL_SMALL_BYTES

The rows of a stream are written in windows (streams.py), each of them in these steps, one after the other.

Batches of one tablet are in flight together, unless a key occurs twice in the call: then each batch waits for the one before,
so that the later row wins.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from ebla.actors.asking.certainty import Tries
from ebla.actors.asking.retries import same
from ebla.actors.messages import DELETE, WriteResult
from ebla.options import (
    CALL_LARGE_MIN_BYTES,
    INT_MAX,
    SLICE_BYTES,
    SLICE_ROWS_MAX,
    UNANSWERED_BYTES_MAX,
    UNIT_BYTES,
    WriteId,
    Written,
)
from ebla.storage.errors import EblaError, InvalidArgument, add_note
from ebla.storage.rows import ragged
from ebla.storage.rows.ragged import Array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.pieces import Piece
from ebla.transport.batches import (
    VERBS,
    BatchUnit,
    encode_batch,
    encode_columnar,
    rejected_positions,
)
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import BULK, WRITE, Route, TableRoutes
from ebla.write import forms, inputs
from ebla.write.forms import Form
from ebla.write.streams import Slice, Stream, windows

T = TypeVar("T")


@dataclass
class Cutting:
    """The batch of one tablet that is being filled."""

    route: Route
    rows: list[Form] = field(default_factory=list)
    positions: list[Array] = field(default_factory=list)
    bytes: int = 0


@dataclass
class Encoded:
    """A slice sorted by tablet. `ends[i]` is the size of the first i rows together."""

    rows: Form
    positions: Array
    ends: Array


@dataclass(eq=False)
class BulkWrite:
    """One call, in the four steps above."""

    client: DeploymentClient
    table: TableRoutes
    kind: int
    codec: RowCodec
    columns: tuple[str, ...]
    write_id: WriteId | None
    deadline_s: float

    def __post_init__(self) -> None:
        self.partitioner = (
            self.table.partitioner
        )  # of the codec's schema, even if the table is altered meanwhile
        self.applied = 0
        self.rejected: list[int] = []
        self.error: EblaError | None = None
        self._tries = Tries()
        self._ordered = False  # a key occurs twice in the rows that are being sent
        self._cuttings: dict[int, Cutting] = {}
        self._held: dict[str, list[BatchUnit]] = {}  # by target server, until there is enough for a call
        self._groups: dict[Route, str] = {}  # ordered: one group for a tablet, even if its leader changes
        self._chains: dict[Route, deque[BatchUnit]] = {}  # units that wait for the one in flight
        self._begun: dict[Route, None] = {}  # tablets that have answered a batch
        self._sent: dict[BatchUnit, None] = {}
        self._unanswered_bytes = 0
        self._progress: asyncio.Future[None] | None = None

    async def run(self, rows: Any) -> Written:
        """Raises the first error after every batch that was sent has been answered."""
        try:
            async with aclosing(self._windows(rows)) as checked:
                async for slices in checked:
                    await self._send(slices)
                    if self.error is not None:
                        break
        except EblaError as error:
            if not self.applied:
                raise
            self.error = error  # in the rows of a later window
        except Exception as error:  # of the source of a stream
            add_note(error, f"{self.applied} rows of the call were applied")
            raise
        finally:
            self._abandon()
        if self.error is not None:
            add_note(self.error, f"{self.applied} rows of the call were applied")
            raise self._tries.outcome(self.error)
        return Written(self.applied, tuple(sorted(self.rejected)))

    async def _send(self, slices: list[Slice]) -> None:
        """Send these rows, and wait for the answers."""
        self._ordered = _has_duplicates([part.keys for part in slices])
        while slices and self.error is None:
            await self._room()
            self._cut(slices.pop(0))
            await self.client.world.clock.sleep(0)
        for cutting in list(self._cuttings.values()):
            self._close(cutting)
        for target in list(self._held):
            self._release(target, WRITE)
        while self._sent:
            await self._wait()

    # -- 1. check

    async def _windows(self, rows: Any) -> AsyncGenerator[list[Slice], None]:
        """The rows that are checked before the first of them is sent: all of a table, a window of a stream."""
        if not isinstance(rows, Stream):
            slices, start = [], 0
            for part in _parts(rows):
                slices += [piece async for piece in self._checked(part, start)]
                start += len(part)
            yield slices
            return
        async with aclosing(windows(self._streamed(rows))) as found:
            async for window in found:
                yield window

    async def _streamed(self, stream: Stream) -> AsyncGenerator[Slice, None]:
        start = 0
        async with aclosing(stream.batches()) as batches:
            async for batch in batches:
                for at, stop in _spans(batch) if isinstance(batch, pa.RecordBatch) else [(0, len(batch))]:
                    async for piece in self._checked(batch[at:stop], start + at):
                        yield piece
                start += len(batch)

    async def _checked(self, part: Any, start: int) -> AsyncGenerator[Slice, None]:
        """The rows of `part`, which begin at position `start`, in slices."""
        if self.kind == DELETE:
            part = inputs.select(part, self.codec.schema.key)
        batch = _located(start, self.codec.arrow, part)
        stop = start + batch.num_rows
        if self.write_id is not None and self.write_id.sequence + stop > INT_MAX:
            raise InvalidArgument(
                f"the rows of this call are numbered from {self.write_id.sequence} on, and {stop} of them go beyond {INT_MAX}; "
                "begin again with another client"
            )
        for at, stop in _spans(batch):
            piece = batch.slice(at, stop - at)
            keys = _located(start + at, self.codec.encode_keys, piece)
            if self.kind == DELETE:
                sizes = ragged.lengths(keys)
            else:
                sizes = _located(start + at, self.codec.sizes, piece, keys)
            yield Slice(start + at, piece, keys, sizes)
            await self.client.world.clock.sleep(0)

    # -- 2. encode

    def _encode(self, part: Slice, buckets: Array, counts: Array) -> Encoded:
        batch, keys = part.batch, part.keys
        positions = np.arange(part.start, part.start + batch.num_rows)
        if np.count_nonzero(counts) > 1:
            order = np.argsort(buckets, kind="stable")
            positions = positions[order]
            batch, keys = batch.take(pa.array(order)), keys.take(pa.array(order))
            sizes = part.sizes[order]
        else:
            sizes = part.sizes
        seeds = np.repeat(np.array([route.seed for route in self.table.routes], np.uint32), counts)
        rows = _located(positions, forms.make, self.codec, self.kind, batch, keys, seeds)
        ends = np.concatenate(([0], np.cumsum(sizes if isinstance(rows, Piece) else rows.sizes())))
        return Encoded(rows, positions, ends)

    # -- 3. cut

    def _cut(self, part: Slice) -> None:
        buckets = self.partitioner.assign(part.batch, part.keys)
        counts = np.bincount(buckets, minlength=len(self.table.routes))
        try:
            encoded = self._encode(part, buckets, counts)
        except EblaError as error:
            self.error = error
            return
        at = 0
        for bucket in np.flatnonzero(counts).tolist():
            stop = at + int(counts[bucket])
            cutting = self._cuttings.get(bucket)
            if cutting is None:
                cutting = self._cuttings[bucket] = Cutting(self.table.routes[bucket])
            self._fill(cutting, encoded, at, stop)
            at = stop

    def _fill(self, cutting: Cutting, encoded: Encoded, at: int, stop: int) -> None:
        """Put the rows at..stop into batches; a row that is larger than a batch is a batch of its own."""
        ends = encoded.ends
        while at < stop:
            room = UNIT_BYTES - cutting.bytes
            until = min(stop, int(np.searchsorted(ends, ends[at] + room, side="right")) - 1)
            if until == at and not cutting.rows:
                until = at + 1
            if until > at:
                cutting.rows.append(forms.cut(encoded.rows, at, until))
                cutting.positions.append(encoded.positions[at:until])
                cutting.bytes += int(ends[until] - ends[at])
                at = until
            if at < stop:
                self._close(cutting)

    def _close(self, cutting: Cutting) -> None:
        """The batch is full, or the last of its tablet: make a unit with a request id of it."""
        if not cutting.rows or self.error is not None:
            return
        route, ids = cutting.route, self.client.router.ids
        positions = np.concatenate(cutting.positions)
        if self.write_id is None:
            request = WriteId(ids.client, ids.take())
            first_incomplete = route.sequence(request.sequence)
        else:
            request = WriteId(self.write_id.client, self.write_id.sequence + int(positions[0]))
            first_incomplete = 0
        version, rows = self.codec.schema.version, forms.batch_of(self.codec, cutting.rows, route.seed)
        if isinstance(rows, bytes):
            batch = encode_columnar(version, request, first_incomplete, self.kind, rows)
        else:
            batch = encode_batch(
                version, request, first_incomplete, self.kind, self.columns, rows.keys, rows.values
            )
        own = request.sequence if self.write_id is None else None
        unit = BatchUnit(route, self, VERBS[self.kind], batch, positions, own)
        self._unanswered_bytes += unit.size
        self._hold(unit)
        cutting.rows, cutting.positions, cutting.bytes = [], [], 0

    # -- 4. gather and send

    def _hold(self, unit: BatchUnit) -> None:
        target = unit.route.target
        if self._ordered:
            target = self._groups.setdefault(unit.route, target)
        held = self._held.setdefault(target, [])
        held.append(unit)
        if sum(one.size for one in held) >= CALL_LARGE_MIN_BYTES:
            self._release(target, BULK)

    def _release(self, target: str, kind: int) -> None:
        for unit in self._held.pop(target):
            self._sent[unit] = None
            unit.kind = kind
            if unit.route in self._chains:
                self._chains[unit.route].append(unit)
                continue
            # A call that is repeated after an alteration has other batches, of which only the first one of a tablet has the same
            # request id for sure. It is refused, before the others would be applied again.
            if self._ordered or (self.write_id is not None and unit.route not in self._begun):
                self._chains[unit.route] = deque()
            self._enqueue(unit)

    def _enqueue(self, unit: BatchUnit) -> None:
        unit.deadline = (self.client.world.clock.monotonic() + self.deadline_s, self.deadline_s)
        self.client.router.enqueue(unit.kind, unit)

    async def _room(self) -> None:
        """Hold back encoding while too much is unanswered."""
        most = max(UNANSWERED_BYTES_MAX, 3 * CALL_LARGE_MIN_BYTES * len(self._held))
        while self._unanswered_bytes > most and self.error is None:
            if not self._sent:
                for target in list(self._held):
                    self._release(target, BULK)
            await self._wait()

    async def _wait(self) -> None:
        self.client.master.check_open()
        self._progress = asyncio.get_running_loop().create_future()
        await self._progress

    # -- answers

    @property
    def answered_rows(self) -> int:
        return self.applied + len(self.rejected)

    def answered(self, unit: BatchUnit, result: WriteResult) -> None:
        self.applied += len(unit.positions) - len(result.rejected)
        self._tries.carried_out()
        self._begun[unit.route] = None
        self.rejected += rejected_positions(unit.positions, result.rejected)
        self._finished(unit)

    def failed(self, unit: BatchUnit, error: EblaError) -> None:
        self._tries.failed(error)
        self.error = self.error or same(error)  # a copy, since a note is added
        self._finished(unit)

    def _finished(self, unit: BatchUnit) -> None:
        self._sent.pop(unit, None)
        self._unanswered_bytes -= unit.size
        chain = self._chains.get(unit.route)
        if chain is not None:
            if chain and self._ordered and self.error is None:
                self._enqueue(chain.popleft())
            else:
                del self._chains[unit.route]
                for following in chain if self.error is None else ():
                    self._enqueue(following)
                self._drop(chain if self.error is not None else ())
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def _drop(self, units: Sequence[BatchUnit]) -> None:
        for unit in units:
            self._sent.pop(unit, None)
            unit.forget()

    def _abandon(self) -> None:
        """The call has ended: queued units are not sent, units in flight may be applied."""
        for held in self._held.values():
            self._drop(held)
        self._drop(list(self._sent))


def _parts(rows: Any) -> Sequence[Any]:
    """A table in its chunks, so that they are not copied into one; other rows in one piece."""
    return rows.to_batches() if isinstance(rows, pa.Table) else [rows]


def _spans(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """Slices that are small enough to keep the event loop responsive."""
    rows = batch.num_rows
    if rows == 0:
        return []
    per_row = max(1, batch.nbytes // rows)
    step = max(1, min(SLICE_ROWS_MAX, SLICE_BYTES // per_row))
    return [(at, min(at + step, rows)) for at in range(0, rows, step)]


def _located(positions: int | Array, act: Callable[..., T], *arguments: Any) -> T:
    """Call the codec, and convert the row numbers of its errors to positions in the caller's rows. `positions`: those of all
    rows, or of the first."""
    try:
        return act(*arguments)
    except InvalidArgument as error:
        if error.row is None:
            raise
        row = positions + error.row if isinstance(positions, int) else int(positions[error.row])
        message = re.sub(rf"\brow {error.row}\b", f"row {row}", error.message, count=1)
        raise InvalidArgument(message, column=error.column, row=row) from None


def _has_duplicates(arrays: Sequence[pa.BinaryArray]) -> bool:
    """Whether a key occurs twice. A wrong yes is possible and only costs speed; a wrong no is not."""
    if not arrays:
        return False
    offsets = [
        np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1]
        for keys in arrays
    ]
    width = int(offsets[0][1] - offsets[0][0])
    if width > 0 and all((np.diff(some) == width).all() for some in offsets):
        parts = [_digests(keys, some, width) for keys, some in zip(arrays, offsets, strict=True)]
    else:
        parts = [np.fromiter(map(hash, keys.to_pylist()), np.int64, len(keys)) for keys in arrays]
    digests = np.concatenate(parts)
    digests.sort()
    return bool((digests[1:] == digests[:-1]).any())


def _digests(keys: pa.BinaryArray, offsets: Array, width: int) -> Array:
    """A 64-bit digest of each of many keys of one length, computed by columns of 8 bytes."""
    words = -(-width // 8)
    data = np.frombuffer(keys.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    padded = np.zeros((len(keys), words * 8), np.uint8)
    padded[:, :width] = data.reshape(-1, width)
    mixed = np.zeros(len(keys), np.uint64)
    for word in padded.view(np.uint64).T:
        mixed = (mixed ^ word) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
    return mixed
