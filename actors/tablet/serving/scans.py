"""Snapshot scans of one replica, block by block, and digests of it.

A scanner pins one position of a replica's rows and answers in Arrow IPC blocks. It ends with its last block, when it is
closed, or after `scanner_ttl_s` without a request. Decoding, filtering and digesting run beside the event loop.

    whole      only a block that reaches the end of the range is marked as the last
    repeated   a repeated request gets its answer again; for an ended scan as long as there is room for it
    wide       the first blocks of small tablets share one answer
    bounded    reads are limited by rows and by bytes, and so is the work for one block
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import xxhash

from ebla.actors import errors
from ebla.actors.messages import ScanBlock, ScanContinue, ScanRequest
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.world import World, new_id
from ebla.storage.errors import Corruption, EblaError, SnapshotExpired
from ebla.storage.predicates import expressions
from ebla.storage.rows.rows import RowCodec
from ebla.storage.tablets.tablet_store import TabletSnapshot

DIGEST_ROWS = 8192
READ_BYTES = 2_000_000
READS_PER_BLOCK_MAX = 32  # a block of a scan with few matches may be empty
READ_GROWTH = 8  # of the size of successive reads with a limit, because some rows are overwritten or deleted
BUSY_RETRY_S = 0.1
OTHERS_MAX, OTHERS_S = 64, 0.5  # further tablets of one request

# Last blocks of ended scans, for requests that are repeated because the answer was lost.
ENDED_MAX = 256
ENDED_BYTES_MAX = 32_000_000


@dataclass
class Scanner:
    id: str
    replica: Replica
    codec: RowCodec  # as of the snapshot: the table may be altered while it is read
    request: ScanRequest
    snapshot: TabletSnapshot
    predicate: expressions.Expression | None
    read_columns: list[str]
    start: bytes
    left: int | None
    used_at: float
    read_rows: int
    block_bytes: int
    block: int = 0
    last: ScanBlock | None = None
    busy: bool = False


@dataclass(frozen=True)
class Ended:
    """The last block of an ended scan, and the time of its end."""

    last: ScanBlock
    at: float


class Scans:
    def __init__(self, world: World, options: TabletServerOptions) -> None:
        self.world = world
        self.options = options
        self._open: dict[str, Scanner] = {}
        self._ended: dict[str, Ended] = {}  # oldest first
        self._ended_bytes = 0

    @property
    def open_count(self) -> int:
        return len(self._open)

    async def begin(
        self, request: ScanRequest, scan: Callable[[str, ScanRequest], Awaitable[ScanBlock]]
    ) -> ScanBlock:
        """The first block of a tablet and, if that is its last one, those of other tablets: as many as one block and
        OTHERS_S have room for. Another tablet that cannot be scanned is left out: the caller asks for it alone. `scan` opens
        the scan of one tablet."""
        first = last = await scan(request.tablet, request)
        others: list[tuple[str, ScanBlock]] = []
        size, rows, until = len(first.data), first.rows, self.world.now() + OTHERS_S
        for tablet in request.others[:OTHERS_MAX]:
            enough = request.limit is not None and rows >= request.limit
            if last.scanner is not None or enough or size >= request.block_bytes or self.world.now() >= until:
                break
            try:
                last = await scan(tablet, request)
            except EblaError:
                continue
            others.append((tablet, last))
            size, rows = size + len(last.data), rows + last.rows
        return msgspec.structs.replace(first, others=tuple(others)) if others else first

    async def open(self, replica: Replica, request: ScanRequest) -> ScanBlock:
        """Begin a scan and return its first block; `more` returns the others."""
        if len(self._open) >= self.options.scanners_max:
            raise errors.Throttled(
                f"{self.options.scanners_max} scans are open on this server",
                limit="scanners_max",
                retry_after_s=0.2,
            )
        codec = replica.rows.codec
        predicate = None
        if request.predicate is not None:
            predicate = expressions.bind(expressions.decode(request.predicate), codec.schema)
        wanted = list(request.columns)
        extra = [] if predicate is None else [c for c in expressions.columns(predicate) if c not in wanted]
        scanner = Scanner(
            id=new_id(self.world.random),
            replica=replica,
            codec=codec,
            request=request,
            snapshot=replica.store.snapshot(),
            predicate=predicate,
            read_columns=(wanted + extra) or [codec.schema.key[0]],  # without columns there is no row count
            start=request.start,
            left=request.limit,
            used_at=self.world.now(),
            read_rows=self.options.scan_read_rows,
            block_bytes=min(request.block_bytes, self.options.scan_block_bytes_max),
        )
        self._open[scanner.id] = scanner
        return await self._next(scanner)

    async def more(self, request: ScanContinue) -> ScanBlock:
        scanner = self._open.get(request.scanner)
        if scanner is None:
            ended = self._ended.get(request.scanner)
            if ended is not None and ended.last.block == request.block:
                return ended.last
            raise _gone()
        if scanner.last is not None and request.block == scanner.last.block:
            scanner.used_at = self.world.now()
            return scanner.last
        if scanner.busy:
            raise errors.Throttled(
                "this scan's next block is still being read",
                limit="one block at a time",
                retry_after_s=BUSY_RETRY_S,
            )
        if request.block != scanner.block:
            raise errors.InvalidArgument(f"block {request.block} was requested, {scanner.block} is next")
        return await self._next(scanner)

    def close(self, scanner_id: str) -> None:
        self._forget(scanner_id)
        scanner = self._open.pop(scanner_id, None)
        if scanner is not None and not scanner.busy:
            scanner.snapshot.close()

    def close_tablet(self, tablet: str) -> None:
        for scanner in list(self._open.values()):
            if scanner.replica.tablet == tablet:
                self.close(scanner.id)

    def expire(self) -> None:
        """End the scans without a recent request, and drop old last blocks."""
        if not self._open and not self._ended:
            return
        now = self.world.now()
        for scanner in list(self._open.values()):
            if not scanner.busy and now - scanner.used_at > self.options.scanner_ttl_s:
                self.close(scanner.id)
        for scanner_id, ended in list(self._ended.items()):
            if now - ended.at > self.options.scanner_ttl_s:
                self._forget(scanner_id)

    async def _next(self, scanner: Scanner) -> ScanBlock:
        replica = scanner.replica
        scanner.busy = True
        try:
            data, rows, following = await replica.store.environment.run(read_block, scanner)
        except Corruption as error:
            replica.fail(error)
            self._finish(scanner)
            replica.require_running()
            raise
        except BaseException:
            self._finish(scanner)
            raise
        scanner.busy = False
        scanner.used_at = self.world.now()
        block = scanner.block
        index = scanner.snapshot.position.index
        if following is None:
            self._finish(scanner)
            last = ScanBlock(None, block, data, rows, index)
            self._remember(scanner, last)
            return last
        if scanner.id not in self._open:  # closed meanwhile, with rows left to read
            self._finish(scanner)
            replica.require_running()
            raise _gone()
        scanner.start = following
        scanner.block += 1
        scanner.last = ScanBlock(scanner.id, block, data, rows, index)
        return scanner.last

    def _finish(self, scanner: Scanner) -> None:
        scanner.busy = False
        self._open.pop(scanner.id, None)
        scanner.snapshot.close()

    def _remember(self, scanner: Scanner, last: ScanBlock) -> None:
        if last.block == 0:
            return  # a client learns the scanner's id with the first block, so it cannot repeat that request
        self._ended[scanner.id] = Ended(last, scanner.used_at)
        self._ended_bytes += len(last.data)
        while len(self._ended) > ENDED_MAX or self._ended_bytes > ENDED_BYTES_MAX:
            self._forget(next(iter(self._ended)))

    def _forget(self, scanner_id: str) -> None:
        ended = self._ended.pop(scanner_id, None)
        if ended is not None:
            self._ended_bytes -= len(ended.last.data)


def _gone() -> SnapshotExpired:
    return SnapshotExpired("the scan is no longer open on this server; scan again")


def read_block(scanner: Scanner) -> tuple[bytes, int, bytes | None]:
    """Arrow IPC bytes of about `block_bytes`, their row count, and the key to continue from (None: done)."""
    request, codec = scanner.request, scanner.codec
    batches: list[pa.RecordBatch] = []
    size = rows = reads = 0
    start: bytes | None = scanner.start
    step = scanner.read_rows
    if scanner.left is not None and scanner.predicate is None:
        step = min(max(1, scanner.left), scanner.read_rows)
    while (
        start is not None and size < scanner.block_bytes and scanner.left != 0 and reads < READS_PER_BLOCK_MAX
    ):
        batch, start = scanner.snapshot.read(
            codec, start, request.stop, step, READ_BYTES, scanner.read_columns, scanner.predicate
        )
        step = min(step * READ_GROWTH, scanner.read_rows)
        reads += 1
        if not batch.num_rows:
            continue
        if scanner.predicate is not None:
            batch = batch.filter(expressions.mask(scanner.predicate, batch))
        if scanner.left is not None:
            batch = batch.slice(0, scanner.left)
            scanner.left -= batch.num_rows
        if batch.num_rows:
            batch = batch.select(list(request.columns))
            batches.append(batch)
            size += batch.nbytes
            rows += batch.num_rows
    if scanner.left == 0:
        start = None
    return _to_ipc(batches, codec, request.columns), rows, start


def _to_ipc(batches: list[pa.RecordBatch], codec: RowCodec, columns: tuple[str, ...]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, codec.schema.arrow(columns)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def digest(snapshot: TabletSnapshot, ended: Callable[[], bool]) -> tuple[int, str]:
    """Row count and xxh3-128 of all rows in key order: equal on replicas with equal rows."""
    state = xxhash.xxh3_128()
    rows = 0
    start: bytes | None = b""
    while start is not None and not ended():
        joined, start = snapshot.packed(start, DIGEST_ROWS, READ_BYTES)
        rows += len(joined)
        state.update(b"".join(joined))
    return rows, state.hexdigest()
