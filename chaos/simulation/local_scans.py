"""Node-local scans beside a simulated tablet server. The code is that of client/local_scan.py, except for the disk: it reads
the medium of the server's host instead of LMDB's files, whether or not the server is still alive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from ebla import aio
from ebla.actors import messages as m
from ebla.chaos.simulation.deployment import Deployment, address_of
from ebla.chaos.simulation.environment import TablesReader
from ebla.chaos.simulation.medium import Tables
from ebla.local_scan import TabletScan
from ebla.read.scan_run import Outdated
from ebla.storage.errors import StorageError
from ebla.storage.tablets.local_reader import batches


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
        """Through the code of storage/tablets/local_reader.py."""
        schema, tables = self._routes.schema, self._tables(found)
        self._plan.require_same(schema)
        if tables is None:
            raise StorageError(f"{found.path} does not exist any more")
        names = list(self._plan.columns)
        yield from batches(
            _Medium(tables), found.path, found.tablet, schema, index=found.index, columns=names
        )


class _Medium(TablesReader):
    """The tables of a host's disk, whether or not their owner lives."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def _table(self, database: str) -> Any:
        if database not in self._tables:
            raise StorageError(f"there is no {database}")
        return self._tables[database]

    def close(self) -> None: ...
