"""Scans for tasks on hosts with replicas: read a replica on this host from its disk, at the speed of memory.

    for batch in local_scan.scan(table, columns=["origin"], where=ebla.col("origin") == "JFK"): ...
    for batch in local_scan.scan_tablet(table, 3): ...              # one of the tablets in local_scan.buckets(table)

A tablet's leader returns the log index that a reader must see, a replica on this host flushes up to it, and its rows are
then read from its files: as fresh as a scan at the leader, without network or server process. If no replica on this host
can serve, the tablet is scanned through its leader.

The rows of one tablet are of one moment. If its files are lost after rows were returned, or the caller is busy with a batch for
more than ten minutes, the iterator raises; scan again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from ebla import aio
from ebla.actors import messages as m
from ebla.arguments import check_deadline, check_int, check_table
from ebla.errors import ScanInterrupted
from ebla.read.scan_run import Outdated
from ebla.storage.errors import EblaError, SnapshotExpired, StorageError
from ebla.storage.predicates import expressions
from ebla.storage.tablets import local_reader
from ebla.table import Scan, Table
from ebla.transport.routes import Route

SNAPSHOT_S = 10.0  # for the replica here to catch up and flush
FIND_MAX = 8  # tablets located at the same time: one answer takes as long as reading several thousand rows
SERVER = "tablet-server/"

SlotsHere = Callable[[], Sequence[str]]


def _slots_here() -> Sequence[str]:
    from ebla.placement.deploy.nearby import slots_here

    return slots_here()


def scan(
    table: Table,
    columns: Sequence[str] | None = None,
    where: expressions.Expression | None = None,
    *,
    local: bool = True,
    deadline_s: float | None = None,
) -> Iterator[pa.RecordBatch]:
    """All tablets, one after the other, each in key order. `local=False` reads all of them through the leaders."""
    left = buckets(table, where)
    while left:
        some, left = left[:FIND_MAX], left[FIND_MAX:]
        reads = [
            scan_tablet(table, bucket, columns, where, local=local, deadline_s=deadline_s) for bucket in some
        ]
        for read, found in zip(reads, table._run(_find_all(reads)), strict=True):
            yield from read.rows(found)


def buckets(table: Table, where: expressions.Expression | None = None) -> list[int]:
    """The numbers of the tablets that may hold rows for which `where` is true."""
    check_table(table, Table)
    routes = table._awaited._routes
    bounds = None
    if where is not None:
        bounds = expressions.key_bounds(expressions.bind(where, routes.schema), routes.schema)
    return list(range(len(routes.routes))) if bounds is None else list(routes.partitioner.prune(bounds))


def scan_tablet(
    table: Table,
    bucket: int,
    columns: Sequence[str] | None = None,
    where: expressions.Expression | None = None,
    *,
    local: bool = True,
    deadline_s: float | None = None,
    slots_here: SlotsHere = _slots_here,
) -> TabletRead:
    """The rows of one tablet. `slots_here` names the slots whose files this process can open."""
    check_table(table, Table)
    awaited = table._awaited
    number = check_int("bucket", bucket, 0, len(awaited._routes.routes) - 1)
    tablet = TabletScan(
        awaited._client, awaited._routes, columns, where, None, check_deadline(deadline_s), number
    )
    return TabletRead(table, tablet, slots_here if local else lambda: ())


class TabletRead:
    """Each iteration reads the tablet again. `path`: the files that were read last, None if a server was asked."""

    def __init__(self, table: Table, scan: TabletScan, slots_here: SlotsHere) -> None:
        self.path: Path | None = None
        self._table = table
        self._scan = scan
        self._slots_here = slots_here

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows and their types."""
        return self._scan.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.rows(self._table._run(self.find()))

    async def find(self) -> m.LocalSnapshot | None:
        """A snapshot on this host's disk that is as fresh as the leader; None if there is none."""
        return await self._scan.find(self._slots_here)

    def rows(self, found: m.LocalSnapshot | None) -> Iterator[pa.RecordBatch]:
        """The rows from the snapshot of `find`, or through the leader."""
        self.path = None if found is None else Path(found.path)
        rows = 0
        if found is not None:
            try:
                for batch in self._scan.read(found):
                    rows += batch.num_rows
                    yield batch
                return
            except (StorageError, Outdated) as error:
                if rows and isinstance(error, SnapshotExpired):
                    raise self._interrupted(found, rows) from error
                if rows:
                    raise
                self.path = None
        yield from Scan(self._table._database, self._scan).batches()

    def _interrupted(self, found: m.LocalSnapshot, rows: int) -> ScanInterrupted:
        return ScanInterrupted(
            f"scan of {self._table.name!r}: the snapshot of tablet {found.tablet} was closed after {rows} of its rows were read; "
            f"come for the next rows within {local_reader.KEPT_S:g} s, or scan again",
            tablet=found.tablet,
            rows=rows,
        )


async def _find_all(reads: Sequence[TabletRead]) -> list[m.LocalSnapshot | None]:
    return await asyncio.gather(*[read.find() for read in reads])


class TabletScan(aio.Scan):
    """A scan of one tablet, and its snapshot on this host."""

    @property
    def _route(self) -> Route:
        assert self._tablets is not None
        return self._tablets[0]

    async def find(self, slots_here: SlotsHere) -> m.LocalSnapshot | None:
        """A snapshot on this host's disk that is as fresh as the leader; None if there is none."""
        route, client = self._route, self._client
        await client.running(self._routes, self._deadline_s)
        near = [SERVER + slot for slot in slots_here() if SERVER + slot in route.replicas]
        if not near:
            return None
        turn = route.bucket % len(near)
        request = m.TabletRequest(route.tablet, route.version)
        _, reply = await client.router.ask(
            route, "read_index", request, m.ReadIndexReply, what="scan", deadline_s=self._deadline_s
        )
        for address in near[turn:] + near[:turn]:
            found = await self._ask(address, reply.index)
            if found is not None:
                return found
        return None

    async def _ask(self, address: str, index: int) -> m.LocalSnapshot | None:
        """The snapshot of one replica; None if it cannot serve."""
        limit_s = min(SNAPSHOT_S, self._deadline_s)
        request = m.LocalSnapshotRequest(self._route.tablet, index, limit_s, self._route.version)
        network = self._client.world.network
        try:
            found = await network.call(address, "local_snapshot", request, m.LocalSnapshot, limit_s + 1.0)
        except EblaError:
            return None
        return found if self._is_here(found) else None

    def _is_here(self, found: m.LocalSnapshot) -> bool:
        return Path(found.path).is_dir()

    def read(self, found: m.LocalSnapshot) -> Iterator[pa.RecordBatch]:
        """The rows of a snapshot. Blocks the caller."""
        plan, schema = self._plan, self._routes.schema
        plan.require_same(schema)
        wanted = list(plan.columns)
        bounds = None
        if plan.predicate is not None:
            wanted += [name for name in expressions.columns(plan.predicate) if name not in wanted]
            bounds = expressions.key_bounds(plan.predicate, schema)
        batches = local_reader.scan(
            Path(found.path),
            found.tablet,
            schema,
            index=found.index,
            columns=wanted,
            start=b"" if bounds is None else bounds.start,
            stop=None if bounds is None else bounds.stop,
            where=plan.predicate,
        )
        for batch in batches:
            if plan.predicate is not None:
                batch = batch.filter(expressions.mask(plan.predicate, batch))
            if batch.num_rows:
                yield batch.select(list(plan.columns))
