"""Writes to one table: single rows that travel together, and calls with many rows (bulk.py).

A single row takes the scalar way: encoded by itself, queued at its tablet's route, answered through one future. The
rows of concurrent callers leave in one call per server. Nothing here imports or touches Arrow per row.

Order: a caller who awaits one operation before the next sees them applied in that order. Operations under way at the
same time, of one caller or of many, are applied in some order; those of one kind that queue together keep theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np

from ebla.actors.errors import AlreadyPresent, NotFound
from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT
from ebla.options import INT_MAX, WriteId, Written
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.rows import RowCodec
from ebla.table_codec import Shape
from ebla.transport.batches import (
    VERBS,
    Alone,
    BatchUnit,
)
from ebla.transport.certainty import Tries
from ebla.transport.client import DeploymentClient
from ebla.transport.routes import WRITE, Route, TableRoutes, WriteOp
from ebla.write import inputs
from ebla.write.bulk import BulkWrite

Row = Mapping[str, Any]


class Writer:
    """Of one table; shared by everybody who writes to it through one connection."""

    def __init__(self, client: DeploymentClient, table: TableRoutes) -> None:
        self.client = client
        self.table = table

    # -- one row

    def one(self, kind: int, row: Row, deadline_s: float) -> asyncio.Future[Written]:
        """Queue one row. The future is cancelled or ends; every tablet must be running (client.running)."""
        self.client.check_open()
        shape = self.table.shape
        columns, codec = _choose(shape, kind, tuple(row))
        key = codec.encode_key(row)
        route = self.table.routes[shape.partitioner.assign_row(row, key)]
        value = b"" if kind == DELETE else codec.encode_row(row, route.seed)[1]
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        now = self.client.world.clock.monotonic()
        op = WriteOp(kind, columns, key, value, future, now + deadline_s, deadline_s, shape.version)
        self.client.router.enqueue_op(route, op)
        return future

    # -- many rows

    async def many(self, kind: int, rows: Any, write_id: WriteId | None, deadline_s: float) -> Written:
        """Every row is sent before an error about rows is raised."""
        self.client.check_open()
        rows = inputs.listed(rows)
        count = inputs.count(rows)
        if count == 0:
            return Written(0)
        if write_id is not None and write_id.sequence + (count or 0) > INT_MAX:
            raise InvalidArgument(
                f"the rows of this call are numbered from {write_id.sequence} on, and {count} of them go beyond {INT_MAX}; "
                "begin anew with another client"
            )
        names = inputs.names(rows)
        shape = self.table.shape
        columns, codec = _choose(shape, kind, names)
        if kind == UPDATE and names is not None:
            inputs.check_uniform(rows, names)
        if kind == DELETE:
            rows = inputs.select(rows, shape.schema.key)
        call = BulkWrite(self.client, self.table, kind, codec, columns, write_id, deadline_s)
        return await call.run(rows)


def _choose(shape: Shape, kind: int, names: tuple[str, ...] | None) -> tuple[tuple[str, ...], RowCodec]:
    """The columns that the batch names, and the codec for them."""
    if kind == DELETE:
        return (), shape.keys_only
    if kind != UPDATE or names is None:
        return (), shape.codec
    for name in names:
        shape.schema.column(name)
    columns = tuple(name for name in shape.values if name in names)
    if not columns:
        raise InvalidArgument("an update names at least one column outside the key; these rows name none")
    return columns, shape.partial(columns)


async def send_again(
    client: DeploymentClient, route: Route, batch: bytes, deadline_s: float, tries: Tries
) -> Written:
    """One row in an encoded batch that somebody has sent before (`tries`), with a request id that is not ours to count."""
    client.check_open()
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
    """Raise what was rejected, if the caller did not ask to ignore it."""
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
