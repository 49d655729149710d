"""Gets: linearizable reads of rows by their whole key.

Single gets of concurrent callers leave in one call per server; `get_many` encodes and routes all its keys by columns and
sends them with the other queued work. Rows are decoded and their checksums verified here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.options import KEYS_MAX
from ebla.storage.rows.ragged import Array
from ebla.transport.batches import GetUnit
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import READ, Route, TableRoutes
from ebla.write import inputs, streams

Row = dict[str, Any]


class Reader:
    """Reads of one table."""

    def __init__(self, client: DeploymentClient, table: TableRoutes) -> None:
        self.client = client
        self.table = table

    async def get(self, key: Mapping[str, Any], deadline_s: float) -> Row | None:
        """Every tablet must be running (client.running)."""
        self.client.master.check_open()
        codec = self.table.codec
        encoded = codec.keys.encode_key(key)
        route = self.table.routes[codec.partitioner.assign_row(key, encoded)]
        (value,) = await self._enqueue(route, [encoded], deadline_s)
        # Decoded with the present codec: the value may have a layout that is newer than the call.
        return None if value is None else self.table.codec.rows.decode_row(encoded, value, route.seed)

    async def get_many(self, keys: Any, deadline_s: float) -> tuple[pa.RecordBatch, Array]:
        """The rows that exist, and for each key the position of its row among them, -1 if absent."""
        self.client.master.check_open()
        codec = self.table.codec
        batch = codec.keys.arrow(await self._whole(keys))
        encoded = codec.keys.encode_keys(batch)
        buckets = codec.partitioner.assign(batch, encoded)
        order = np.argsort(buckets, kind="stable")
        sorted_keys = encoded.take(pa.array(order)).to_pylist()
        counts = np.bincount(buckets, minlength=len(self.table.routes))
        asked: list[tuple[Route, Array, list[bytes], asyncio.Future[list[bytes | None]]]] = []
        at = 0
        for bucket in np.flatnonzero(counts).tolist():
            stop = at + int(counts[bucket])
            route = self.table.routes[bucket]
            for start in range(at, stop, KEYS_MAX):
                end = min(start + KEYS_MAX, stop)
                part = sorted_keys[start:end]
                asked.append((route, order[start:end], part, self._enqueue(route, part, deadline_s)))
            at = stop
        try:
            await asyncio.gather(*(future for _, _, _, future in asked))
        finally:
            for _, _, _, future in asked:
                future.cancel()  # after a failure the others are not needed
        return self._collect(len(encoded), asked)

    async def _whole(self, keys: Any) -> Any:
        """The key columns of all keys; those of a stream in one table."""
        codec, keys = self.table.codec, inputs.listed(keys)
        if not streams.is_stream(keys):
            return inputs.select(keys, codec.schema.key)
        async with streams.opened(keys, codec.schema.key) as stream:
            parts = [
                codec.keys.arrow(inputs.select(part, codec.schema.key)) async for part in stream.batches()
            ]
        return pa.Table.from_batches(parts, schema=codec.keys.arrow_schema)

    def _enqueue(
        self, route: Route, keys: list[bytes], deadline_s: float
    ) -> asyncio.Future[list[bytes | None]]:
        future: asyncio.Future[list[bytes | None]] = asyncio.get_running_loop().create_future()
        deadline = self.client.world.clock.monotonic() + deadline_s
        self.client.router.enqueue(READ, GetUnit(route, keys, future, deadline, deadline_s))
        return future

    def _collect(self, wanted: int, asked: list[Any]) -> tuple[pa.RecordBatch, Array]:
        codec = self.table.codec
        places = np.full(wanted, -1, np.int64)
        batches: list[pa.RecordBatch] = []
        rows = 0
        for route, positions, keys, future in asked:
            values = future.result()
            found = [at for at, value in enumerate(values) if value is not None]
            if not found:
                continue
            joined = [keys[at] + values[at] for at in found]
            batches.append(codec.rows.decode(joined, route.seed))
            places[positions[found]] = np.arange(rows, rows + len(found))
            rows += len(found)
        table = pa.Table.from_batches(batches, schema=codec.arrow).combine_chunks()
        one = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=codec.arrow)
        return one, places
