"""`delete(where=...)` and `count(where=...)`."""

from __future__ import annotations

from typing import Any

import pytest

import ebla
from ebla.actors.errors import Internal
from ebla.aio import Table
from ebla.errors import InvalidArgument, ScanInterrupted, SnapshotExpired
from ebla.options import WriteId, Written
from tests.client.tables import arrow, on_table, row
from tests.client.toy import HOSTS, Bench, address, refuse

SMALL = ebla.col("n") < 600


@on_table(4, loaded=1000)
async def test_delete_where_deletes_the_matching_rows_and_no_others(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 50
    assert await table.count(SMALL) == 600 and await table.count() == 1000
    assert await table.delete(where=SMALL) == Written(600)
    assert await table.count(SMALL) == 0
    assert sorted((await table.scan(["id"]).to_arrow())["id"].to_pylist()) == list(range(600, 1000))
    assert await table.delete(where=SMALL) == Written(0)


@on_table(1, loaded=1000)
async def test_a_condition_in_place_of_keys_is_refused_with_the_name_of_its_argument(
    bench: Bench, table: Table
) -> None:
    with pytest.raises(InvalidArgument, match="delete takes a condition by name: give where="):
        await table.delete(SMALL)  # type: ignore[arg-type]
    assert bench.toy.rows() == 1000


@on_table(1, loaded=1000)
async def test_an_interrupted_delete_scans_again_and_counts_each_row_once(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 100
    lost = [refuse(SnapshotExpired("expired"))]
    bench.toy.before[address("host-a"), "scan_more"] = lost * 5
    assert await table.delete(where=SMALL) == Written(600)
    assert bench.toy.rows() == 400
    assert bench.toy.scans_opened > 5


@on_table(1, loaded=1000)
async def test_a_delete_that_cannot_go_on_reports_how_far_it_came(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 100
    bench.toy.before[address("host-a"), "scan_more"] = [refuse(Internal("a defect"))]
    with pytest.raises(Internal) as caught:
        await table.delete(where=SMALL)
    assert caught.value.possibly_applied
    assert caught.value.__notes__ == ["100 rows were deleted before; call again to delete the others"]
    assert bench.toy.rows() == 900
    assert await table.delete(where=SMALL) == Written(500)


@on_table(1, loaded=1000)
async def test_a_delete_whose_scans_lead_to_no_deletion_ends(bench: Bench, table: Table) -> None:
    """Another caller deletes every row first, and every scan is interrupted."""
    bench.toy.block_rows = 100
    keys = [{"id": n} for n in range(1000)]
    another = await bench.db.table("t")
    deleting = table._write

    async def write(*arguments: Any) -> Written:
        await another.delete(keys, if_absent="ignore")
        written = await deleting(*arguments)
        await another.upsert(arrow(1000))
        return written

    table._write = write  # type: ignore[assignment, method-assign]
    for host in HOSTS:
        bench.toy.before[address(host), "scan_more"] = [refuse(SnapshotExpired("expired"))] * 50
    with pytest.raises(ScanInterrupted) as caught:
        await table.delete(where=SMALL)
    assert not caught.value.possibly_applied
    assert bench.toy.scans_opened == 3


@on_table(1, loaded=10)
async def test_delete_takes_keys_or_a_condition(bench: Bench, table: Table) -> None:
    for arguments in ({}, {"keys": row(1), "where": SMALL}):
        with pytest.raises(InvalidArgument, match="either keys, or where"):
            await table.delete(**arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="leave it out"):
        await table.delete(where=SMALL, write_id=WriteId(b"c" * 16, 0))
    with pytest.raises(InvalidArgument, match="nope"):
        await table.delete(where=ebla.col("nope") == 1)
    assert bench.toy.rows() == 10
