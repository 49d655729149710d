"""Scans: a snapshot of each tablet, several tablets at a time, a bounded number of blocks ahead of the caller.

    per tablet   the rows of one tablet are of one moment; `indexes` has its log index
    per call     one block of a large tablet, or small tablets of one server as a whole: once a tablet was read in one block,
                 the next call names as many further ones as probably fit
    between      two tablets may show different moments, since tablets are read one by one
    order        within a tablet by key; blocks of different tablets in the order in which they arrive
    failures     a tablet is read again elsewhere if the caller has none of its rows; otherwise its snapshot cannot be
                 found again, and the scan ends in ScanInterrupted. With `hold` (to_arrow, to_pandas, count) each tablet's
                 rows are held until they are complete, so this never happens
    waiting      while the caller is busy with a block, the next ones wait, and their snapshots are kept for SCAN_KEPT_S
    alterations  if the table was dropped, the scan ends in NotFound; if a column that it reads was dropped or renamed, in
                 InvalidArgument. Other alterations have no effect

Scanners on servers are closed in every case. The deadline is for each block, not for the whole scan.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa

from ebla.actors.asking.retries import backoff_s, retriable
from ebla.actors.errors import NetworkError, NotFound, TabletNotFound, Throttled, TimedOut
from ebla.actors.messages import Empty, ScanBlock, ScanClose, ScanContinue, ScanRequest
from ebla.errors import ConnectionClosed, ScanInterrupted
from ebla.options import (
    ASK_ATTEMPT_S,
    SCAN_BLOCKS_AHEAD,
    SCAN_KEEP_EVERY_S,
    SCAN_KEPT_S,
    SCAN_OTHERS_MAX,
    SCAN_TABLETS_MAX,
    SCAN_TRIES_MAX,
)
from ebla.storage.errors import EblaError, InvalidArgument, StorageError
from ebla.storage.predicates import expressions
from ebla.storage.schema import TableSchema
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import Route, TableRoutes, throttle_s


class Outdated(InvalidArgument):
    """The table was altered since the scan was planned: a column was dropped or renamed."""


@dataclass(frozen=True)
class ScanPlan:
    """Columns and rows to read. `columns` are those of the result, in order; their names are those of `schema`."""

    schema: TableSchema
    columns: tuple[str, ...]
    predicate: expressions.Expression | None = None
    limit: int | None = None

    @property
    def arrow(self) -> pa.Schema:
        """The columns of the result and their types."""
        return self.schema.arrow(self.columns)

    def require_same(self, now: TableSchema) -> None:
        """Raise Outdated if a column was dropped or renamed."""
        asked = [] if self.predicate is None else expressions.columns(self.predicate)
        for name in (*self.columns, *asked):
            column = now.called(name, self.schema.version)
            if column.until or column.name != name:
                what = "dropped" if column.until else f"renamed to {column.name!r}"
                raise Outdated(
                    f"column {name!r} was {what} since this scan was made; make the scan again", column=name
                )


@dataclass
class Block:
    """Rows of one tablet. `whole`: the tablet's last block. `rows` may be cut at the limit."""

    route: Route
    rows: int
    data: bytes
    index: int
    whole: bool

    def batches(self) -> list[pa.RecordBatch]:
        left = self.rows
        found: list[pa.RecordBatch] = []
        with pa.ipc.open_stream(self.data) as stream:
            for batch in stream:
                if left > 0 and batch.num_rows:
                    found.append(batch.slice(0, left))
                    left -= batch.num_rows
        return found


@dataclass
class TabletRead:
    """The progress in one tablet. `delivered`: rows that the caller has or will get. `server` has answered with `others`, the
    first blocks of other tablets."""

    route: Route
    delivered: int = 0
    server: str = ""
    kept_too_long: bool = False  # its snapshot, for a caller that was busy
    others: tuple[tuple[str, ScanBlock], ...] = ()
    held: list[Block] = field(default_factory=list)


class ScanRun:
    """One run over the tablets; closing its iterator ends it."""

    def __init__(
        self,
        client: DeploymentClient,
        table: TableRoutes,
        plan: ScanPlan,
        deadline_s: float,
        hold: bool,
        tablets: Sequence[Route] | None = None,
    ) -> None:
        """`tablets`: read these only."""
        self.client = client
        self.table = table
        self.plan = plan
        self.deadline_s = deadline_s
        self.hold = hold
        self.indexes: dict[str, int] = {}
        self.received = 0  # rows, also those that are held
        bounds = None if plan.predicate is None else expressions.key_bounds(plan.predicate, table.schema)
        self._start = b"" if bounds is None else bounds.start
        self._stop = None if bounds is None else bounds.stop
        buckets = range(len(table.routes)) if bounds is None else table.partitioner.prune(bounds)
        self._left = list(tablets or [table.routes[bucket] for bucket in buckets])
        self._left.reverse()
        self._ready: asyncio.Queue[Block | EblaError | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(SCAN_BLOCKS_AHEAD)
        self._taken_at = client.world.clock.monotonic()  # when the caller came for a block last
        self._others_max = 0  # further tablets of one call
        self._ended = False

    async def blocks(self) -> AsyncGenerator[Block, None]:
        """Blocks as they arrive, cut at the limit."""
        left = self.plan.limit
        running = min(SCAN_TABLETS_MAX, len(self._left))
        for _ in range(running):
            self.client.world.spawn(self._read_tablets(), f"scan {self.table.name}")
        try:
            while running and left != 0:
                self._taken_at = self.client.world.clock.monotonic()
                block = await self._ready.get()
                if block is None:
                    running -= 1
                    continue
                if isinstance(block, EblaError):
                    raise block
                self._room.release()
                self.indexes[block.route.tablet] = block.index
                if left is not None:
                    block.rows = min(block.rows, left)
                    left -= block.rows
                yield block
        finally:
            # Readers are not cancelled: each ends by itself, and closes the scanner that it has or awaits.
            self._ended = True
            for _ in range(SCAN_TABLETS_MAX):
                self._room.release()

    # -- reading

    async def _read_tablets(self) -> None:
        """One of a few readers: takes the next tablet until none is left. Its outcome always reaches the caller."""
        outcome: EblaError | None = ConnectionClosed("the connection was closed during the scan")
        try:
            while self._left and not self._ended:
                await self._read_some()
            outcome = None
        except EblaError as error:
            outcome = error
        finally:
            self._ready.put_nowait(outcome)

    async def _read_some(self) -> None:
        """Read the next tablet, and those whose first blocks come with it."""
        route = self._left.pop()
        others = self._take_others(route)
        read = TabletRead(route)
        try:
            await self._read_tablet(read, others=tuple(others))
            for tablet, block in read.others:
                await self._read_tablet(TabletRead(others.pop(tablet), server=read.server), block)
        finally:
            self._left += others.values()  # not answered

    def _take_others(self, route: Route) -> dict[str, Route]:
        """Further tablets for the call to the server of `route`."""
        found: dict[str, Route] = {}
        for other in reversed(self._left):
            if len(found) >= self._others_max:
                break
            if other.target == route.target and other.moved is None:
                found[other.tablet] = other
        self._left = [other for other in self._left if other.tablet not in found]
        return found

    async def _read_tablet(
        self,
        read: TabletRead,
        first: ScanBlock | None = None,
        others: tuple[str, ...] = (),
    ) -> None:
        """Read a tablet from its beginning; again after a failure, while the caller has none of its rows. `first`: its first
        block, if that is here. `others`: tablets whose first blocks may come with it."""
        clock = self.client.world.clock
        route = read.route
        deadline = clock.monotonic() + self.deadline_s
        for failures in count(1):
            try:
                await self._read_snapshot(read, first or await self._open(read, others))
                return
            except EblaError as error:
                if self._ended or not retriable(error):
                    raise
                if isinstance(error, (TabletNotFound, StorageError)):
                    await self._require_table()
                if read.delivered:
                    raise self._interrupted(read, error) from error
                if isinstance(error, TimedOut):
                    raise
                pause_s = backoff_s(failures, self.client.world.random)
                if clock.monotonic() + pause_s >= deadline:
                    route.last = f"{type(error).__name__}: {error}"
                    raise route.timed_out("scan", self.deadline_s) from error
            first, others = None, ()
            self.received -= sum(block.rows for block in read.held)
            read.held.clear()
            await clock.sleep(pause_s)

    def _interrupted(self, read: TabletRead, error: EblaError) -> ScanInterrupted:
        remedy = "scan again, or use to_arrow()"
        if read.kept_too_long:
            remedy = f"come for the next rows within {SCAN_KEPT_S:g} s, or use to_arrow()"
        return ScanInterrupted(
            f"scan of {self.table.name!r}: the snapshot of tablet {read.route.tablet} was lost after "
            f"{read.delivered} of its rows were read ({type(error).__name__}: {error}); {remedy}",
            tablet=read.route.tablet,
            rows=read.delivered,
        )

    async def _require_table(self) -> None:
        """Raise NotFound if the tablet is missing because its table was dropped."""
        try:
            await self.client.refresh(self.table)
        except NotFound:
            raise
        except EblaError:
            return  # no master answers now; the tablet's servers may

    async def _open(self, read: TabletRead, others: tuple[str, ...]) -> ScanBlock:
        """The first block."""
        route, router = read.route, self.client.router
        plan, codec = self.plan, self.table.codec
        plan.require_same(codec.schema)
        request = ScanRequest(
            tablet=route.tablet,
            schema_version=codec.version,
            columns=plan.columns,
            predicate=None if plan.predicate is None else expressions.encode(plan.predicate),
            start=self._start,
            stop=self._stop,
            limit=plan.limit,
            others=others,
        )
        read.server, block = await router.ask(
            route, "scan", request, ScanBlock, what="scan", deadline_s=self.deadline_s
        )
        whole, size = block.scanner is None, max(1, len(block.data))
        self._others_max = min(SCAN_OTHERS_MAX, request.block_bytes // size) if whole else 0
        read.others = block.others
        return block

    async def _read_snapshot(self, read: TabletRead, block: ScanBlock) -> None:
        """Deliver the first block, and read the following ones."""
        try:
            while True:
                following = block.scanner
                await self._deliver(read, block)
                if following is None or self._ended:
                    return
                block = await self._more(read.route, read.server, following, block.block + 1)
        finally:
            if block.scanner is not None:
                self.client.world.spawn(self._close(read.server, block.scanner), "close scanner")

    async def _more(self, route: Route, address: str, scanner: str, number: int) -> ScanBlock:
        """The next block, from the server that has the snapshot. The request may be repeated."""
        world = self.client.world
        request = ScanContinue(scanner, number)
        tries = 0
        deadline = world.clock.monotonic() + self.deadline_s
        while True:
            try:
                return await world.network.call(address, "scan_more", request, ScanBlock, ASK_ATTEMPT_S)
            except (NetworkError, Throttled) as error:
                tries += 1
                route.last = f"{address}: {type(error).__name__}: {error}"
                if tries >= SCAN_TRIES_MAX or world.clock.monotonic() >= deadline:
                    raise
                pause_s = throttle_s(error, world.random) if isinstance(error, Throttled) else 0.0
            await world.clock.sleep(pause_s)

    async def _deliver(self, read: TabletRead, block: ScanBlock) -> None:
        """Pass the rows to the caller, or hold them until the tablet is complete."""
        arrived = Block(read.route, block.rows, block.data, block.index, block.scanner is None)
        self.received += block.rows
        if self.hold:
            read.held.append(arrived)
            if not arrived.whole:
                return
            for held in read.held:
                await self._hand_out(held, read, block)
        elif block.rows or arrived.whole:
            read.delivered += block.rows
            await self._hand_out(arrived, read, block)

    async def _hand_out(self, arrived: Block, read: TabletRead, block: ScanBlock) -> None:
        await self._wait_for_room(read, block)
        self._ready.put_nowait(arrived)

    async def _wait_for_room(self, read: TabletRead, block: ScanBlock) -> None:
        """Wait until the caller has taken enough blocks. Meanwhile the server keeps the snapshot: it gets a request for the
        present block now and then."""
        clock = self.client.world.clock
        while not self._ended:
            with suppress(TimeoutError):
                async with clock.timeout(SCAN_KEEP_EVERY_S):
                    await self._room.acquire()
                return
            too_long = clock.monotonic() - self._taken_at > SCAN_KEPT_S
            read.kept_too_long |= too_long
            if block.scanner is not None and not too_long:
                with suppress(EblaError):  # the request for the next block will tell
                    await self._more(read.route, read.server, block.scanner, block.block)

    async def _close(self, address: str, scanner: str) -> None:
        """Best effort: an unused scanner ends by itself on the server."""
        try:
            await self.client.world.network.call(address, "scan_close", ScanClose(scanner), Empty, 2.0)
        except EblaError:
            return
