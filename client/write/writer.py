"""Writes to one table: single rows, and calls with many rows (bulk.py).

A single row is encoded by itself, without Arrow, queued at its tablet's route, and answered through one future. The rows of
concurrent callers leave in one call per server.

Order: operations that a caller awaits one after the other are applied in that order. Operations under way at the same time,
of one caller or of many, are applied in any order; those of one kind that queue together keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from ebla.actors.asking.certainty import Tries
from ebla.actors.errors import AlreadyPresent, NotFound
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT
from ebla.options import WriteId, Written
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.rows import RowCodec
from ebla.table_codec import TableCodec
from ebla.transport.batches import VERBS, Alone, BatchUnit
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import WRITE, Route, TableRoutes, WriteOp
from ebla.write import inputs, streams
from ebla.write.bulk import BulkWrite

Row = Mapping[str, Any]


class Writer:
    """Writes to one table."""

    def __init__(self, client: DeploymentClient, table: TableRoutes) -> None:
        self.client = client
        self.table = table

    # -- one row

    def one(self, kind: int, row: Row, deadline_s: float) -> asyncio.Future[Written]:
        """Queue one row; returns the future of its outcome. Every tablet must be running (client.running)."""
        self.client.master.check_open()
        codec = self.table.codec
        columns, row_codec = _choose(codec, kind, tuple(row))
        key = row_codec.encode_key(row)
        route = self.table.routes[codec.partitioner.assign_row(row, key)]
        value = b"" if kind == DELETE else row_codec.encode_row(row, route.seed)[1]
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        now = self.client.world.clock.monotonic()
        op = WriteOp(kind, columns, key, value, future, now + deadline_s, deadline_s, codec.version)
        self.client.router.enqueue_op(route, op)
        return future

    # -- many rows

    async def many(self, kind: int, rows: Any, write_id: WriteId | None, deadline_s: float) -> Written:
        """Write all rows; see inputs.py for their forms. Every row is sent before an error about present or absent rows is
        raised."""
        self.client.master.check_open()
        rows = inputs.listed(rows)
        needed = self.table.schema.key if kind == DELETE else None
        async with streams.opened(rows, needed) if streams.is_stream(rows) else nullcontext() as stream:
            if inputs.count(rows) == 0 or (stream is not None and stream.names is None):
                return Written(0)
            names = inputs.names(rows) if stream is None else stream.names
            codec = self.table.codec
            columns, row_codec = _choose(codec, kind, names)
            if kind == UPDATE and names is not None and stream is None:
                inputs.check_uniform(rows, names)
            call = BulkWrite(self.client, self.table, kind, row_codec, columns, write_id, deadline_s)
            title, total = f"{VERBS[kind]} {self.table.name}", inputs.count(rows)
            with self.client.watching(title, lambda: call.answered_rows, total):
                return await call.run(rows if stream is None else stream)


def _choose(codec: TableCodec, kind: int, names: tuple[str, ...] | None) -> tuple[tuple[str, ...], RowCodec]:
    """The columns that the batch names, and their codec."""
    if kind == DELETE:
        return (), codec.keys
    if kind != UPDATE or names is None:
        return (), codec.rows
    for name in names:
        codec.schema.column(name)
    columns = tuple(name for name in codec.values if name in names)
    if not columns:
        raise InvalidArgument("an update names at least one column outside the key; these rows name none")
    return columns, codec.partial(columns)


async def send_again(
    client: DeploymentClient, route: Route, batch: bytes, deadline_s: float, tries: Tries
) -> Written:
    """Repeat an encoded batch of one row, which the fast path has sent before (`tries`) with its own request id."""
    client.master.check_open()
    alone = Alone()
    unit = BatchUnit(route, alone, VERBS[UPSERT], batch, np.zeros(1, np.int64), None, tries)
    unit.kind = WRITE
    unit.deadline = (client.world.clock.monotonic() + deadline_s, deadline_s)
    try:
        client.router.enqueue(WRITE, unit)
        return await alone.future
    finally:
        unit.forget()


def check_rows(kind: int, table: str, written: Written, strict: bool) -> Written:
    """Raise an error for rejected rows, unless the caller ignores them."""
    if not written.rejected or not strict:
        return written
    rows, verb = list(written.rejected), VERBS[kind]
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    where = f"at position {rows[0]}" if len(rows) == 1 else f"the first at position {rows[0]}"
    others = f"; the other {written.rows} were applied" if written.rows else ""
    if kind == INSERT:
        raise AlreadyPresent(
            f"{verb} into {table!r}: {count} ({where}) present already{others}; use upsert, or if_present='ignore'",
            what="rows",
            rows=rows,
            applied=written.rows,
        )
    raise NotFound(
        f"{verb} in {table!r}: {count} ({where}) not present{others}; use "
        + ("upsert, or if_absent='ignore'" if kind == UPDATE else "if_absent='ignore'"),
        what="rows",
        rows=rows,
        applied=written.rows,
    )
