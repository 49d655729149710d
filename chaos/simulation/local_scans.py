"""Node-local scans beside a simulated tablet server. The code is that of client/local_scan.py, except for the disk: it reads
the medium of the server's host instead of LMDB's files, whether or not the server is still alive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import msgspec
import pyarrow as pa

from ebla import aio
from ebla.actors import messages as m
from ebla.chaos.simulation.deployment import Deployment, address_of
from ebla.chaos.simulation.medium import Tables
from ebla.local_scan import TabletScan
from ebla.read.scan_run import Outdated
from ebla.storage.directories.records import unseal
from ebla.storage.errors import StorageError
from ebla.storage.logs.entries import Position
from ebla.storage.rows import alteration
from ebla.storage.rows.checksum import seed
from ebla.storage.rows.rows import RowCodec
from ebla.storage.tablets.local_reader import Stale
from ebla.storage.tablets.tablet_store import ALTERATION, META, POSITION, ROWS


class LocalScans:
    """`tried`: attempts to read a tablet in place; `read_here`: those that succeeded. Otherwise the leader was asked."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.tried = self.read_here = 0

    async def read(
        self, table: aio.Table, columns: Sequence[str], chance: Random, deadline_s: float
    ) -> pa.Table:
        """Read all tablets, each as of one moment, on a random host."""
        host = chance.choice(self.deployment.hosts)
        parts = []
        for bucket in range(len(table._routes.routes)):
            scan = _Scan(table._client, table._routes, columns, None, None, deadline_s, bucket)
            scan.deployment = self.deployment
            parts.append(await self._of_tablet(scan, host))
        return pa.concat_tables(parts)

    async def _of_tablet(self, scan: _Scan, host: str) -> pa.Table:
        self.tried += 1
        found = await scan.find(lambda: [host])
        if found is not None:
            try:
                rows = pa.Table.from_batches(list(scan.read(found)), scan.schema)
            except (StorageError, Outdated):
                pass
            else:
                self.read_here += 1
                return rows
        return await scan.to_arrow()


class _Scan(TabletScan):
    deployment: Deployment

    def _is_here(self, found: m.LocalSnapshot) -> bool:
        return self._tables(found) is not None

    def _tables(self, found: m.LocalSnapshot) -> Tables | None:
        state = self.deployment.cluster.state(address_of(found.host))
        return state.environments.get(found.path.removeprefix("memory:"))

    def read(self, found: m.LocalSnapshot) -> Iterator[pa.RecordBatch]:
        """As storage/tablets/local_reader.py does: check freshness and schema, and verify every row."""
        schema, tables = self._routes.schema, self._tables(found)
        self._plan.require_same(schema)
        if tables is None:
            raise StorageError(f"{found.path} does not exist any more")
        if _sealed(tables, POSITION, Position).index < found.index:
            raise Stale(f"{found.path} is older than index {found.index}")
        altered = tables[META].get(ALTERATION)
        if altered is not None:
            known = alteration.decode(unseal(ALTERATION, altered, found.path)).schema
            if schema.version < known.renewed:
                raise Stale(f"{found.path} has a schema that this reader does not know")
        rows = [key + value for key, value in tables[ROWS].items()]
        yield RowCodec(schema).decode(rows, seed(found.tablet), list(self._plan.columns), found.path)


def _sealed(tables: Tables, key: bytes, kind: type[Position]) -> Position:
    data = tables[META].get(key)
    if data is None:
        raise StorageError("no rows of a tablet")
    return msgspec.msgpack.decode(unseal(key, data, "memory"), type=kind)
