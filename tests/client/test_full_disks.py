"""A request that is refused for lack of disk space ends at once: only an operator can free space."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ebla import aio
from ebla.aio import Table
from ebla.storage.errors import DiskFull
from tests.client.tables import SCHEMA, arrow, on_table, row
from tests.client.toy import MASTER, Bench, on_toys, refuse

FULL = DiskFull("the disk of host-a is full, the write was not applied: free space, then send it again")


async def upsert(table: aio.Table) -> object:
    return await table.upsert(row(1))


async def upsert_many(table: aio.Table) -> object:
    return await table.upsert(arrow(100))


@pytest.mark.parametrize("write", [upsert, upsert_many])
@on_table(1)
async def test_a_write_that_a_full_disk_refuses_raises_disk_full_at_once(
    bench: Bench, table: Table, write: Callable[[aio.Table], Coroutine[Any, Any, object]]
) -> None:
    bench.toy.refusals["t000"] = [FULL] * 5
    with bench.lasts(0.5), pytest.raises(DiskFull, match="free space, then send it again") as raised:
        await write(table)
    assert bench.toy.count("write") == 1
    assert raised.value.retriable and not raised.value.possibly_applied
    bench.toy.refusals["t000"] = []
    await write(table)


@on_table(1)
async def test_a_flush_that_a_full_disk_refuses_raises_disk_full_at_once(bench: Bench, table: Table) -> None:
    target = table._routes.routes[0].target
    bench.toy.before[target, "flush"] = [refuse(FULL)]
    with bench.lasts(0.5), pytest.raises(DiskFull):
        await table.flush()


@on_toys
async def test_a_table_without_disk_space_is_refused_at_once(bench: Bench) -> None:
    bench.toy.before[MASTER, "create_table"] = [refuse(DiskFull("no live hosts have disk space; free some"))]
    with bench.lasts(0.5), pytest.raises(DiskFull, match="free some"):
        await bench.db.create_table("t", schema=SCHEMA, primary_key=["id"])
