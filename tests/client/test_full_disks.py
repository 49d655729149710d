"""A request that is refused for lack of disk space ends at once: only an operator can free space."""

from __future__ import annotations

from typing import Any

import pytest

from ebla.aio import Table
from ebla.storage.errors import DiskFull
from tests.client.tables import arrow, make, on_table, row
from tests.client.toy import HOSTS, MASTER, Bench, address, refuse

FULL = DiskFull("the disk of host-a is full, the write was not applied: free space, then send it again")


@pytest.mark.parametrize("rows", [row(1), arrow(100)], ids=["one row", "many rows"])
@on_table(1)
async def test_a_write_that_a_full_disk_refuses_raises_disk_full_at_once(
    bench: Bench, table: Table, rows: Any
) -> None:
    bench.toy.refusals["t000"] = [FULL] * 5
    with bench.lasts(0.5), pytest.raises(DiskFull, match="free space, then send it again") as raised:
        await table.upsert(rows)
    assert bench.toy.count("write") == 1
    assert raised.value.retriable and not raised.value.possibly_applied
    bench.toy.refusals["t000"] = []
    await table.upsert(rows)


@on_table(1)
async def test_a_flush_and_a_new_table_that_a_full_disk_refuses_raise_disk_full_at_once(
    bench: Bench, table: Table
) -> None:
    bench.toy.before[address(HOSTS[0]), "flush"] = [refuse(FULL)]
    bench.toy.before[MASTER, "create_table"] = [refuse(FULL)]
    for act in (table.flush(), make(bench, name="u")):
        with bench.lasts(0.5), pytest.raises(DiskFull, match="free space"):
            await act
