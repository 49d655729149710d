"""Scans: their rows, their read-ahead, and servers that crash during a scan."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pyarrow as pa
import pytest

import ebla
from ebla.actors import errors
from ebla.aio import Table
from ebla.errors import ScanInterrupted, TimedOut
from ebla.storage.errors import SnapshotExpired
from tests.client.tables import SCHEMA, arrow, on_table
from tests.client.toy import Bench, address, refuse, silence


@on_table(loaded=1000)
async def test_columns_come_in_the_requested_order(bench: Bench, table: Table) -> None:
    found = await table.scan(columns=["n", "id"]).to_arrow()
    assert found.schema == pa.schema([("n", pa.int32()), pa.field("id", pa.int64(), nullable=False)])
    assert sorted(found["id"].to_pylist()) == list(range(1000))
    assert list((await table.scan(columns=["v"], limit=3).to_pandas()).columns) == ["v"]


@on_table(loaded=1000)
async def test_a_predicate_is_evaluated_by_the_servers(bench: Bench, table: Table) -> None:
    scan = table.scan(columns=["id"], where=(ebla.col("n") >= 100) & (ebla.col("n") < 110))
    assert sorted((await scan.to_arrow())["id"].to_pylist()) == list(range(100, 110))
    assert await scan.count() == 10
    requests = bench.toy.requests("scan")
    assert all(request.predicate for request in requests)


@on_table(loaded=1000)
async def test_only_the_tablets_that_can_hold_matching_rows_are_asked(bench: Bench, table: Table) -> None:
    assert (await table.scan(where=ebla.col("id") == 77).to_arrow()).to_pylist() == [
        {"id": 77, "v": f"{77:010}", "n": 77}
    ]
    assert bench.toy.count("scan") == 1
    ranged = await bench.db.create_table(
        "r", schema=SCHEMA, primary_key=["id"], partition_by=ebla.range("id", splits=[100, 200, 300])
    )
    await ranged.upsert(arrow(400))
    bench.toy.calls.clear()
    assert await ranged.scan(where=(ebla.col("id") >= 150) & (ebla.col("id") < 250)).count() == 100
    requests = bench.toy.requests("scan")
    assert sorted(request.tablet for request in requests) == ["t009", "t010"]
    assert all(request.start > b"" and request.stop is not None for request in requests)
    assert await ranged.scan(where=(ebla.col("id") > 5) & (ebla.col("id") < 5)).count() == 0


@pytest.mark.parametrize("limit", [0, 1, 17, 250, 5000])
@on_table(loaded=1000)
async def test_a_limit_holds_over_all_tablets(bench: Bench, table: Table, limit: int) -> None:
    bench.toy.block_rows = 10
    wanted = min(limit, 1000)
    assert (await table.scan(limit=limit).to_arrow()).num_rows == wanted
    assert len([row async for row in table.scan(limit=limit)]) == wanted
    assert await table.scan(limit=limit).count() == wanted
    requests = bench.toy.requests("scan")
    assert all(request.limit == limit for request in requests)
    await bench.world.clock.sleep(5.0)
    assert bench.toy.scanners == {}


@on_table(loaded=1000)
async def test_every_block_of_every_tablet_arrives_once_and_in_key_order_within_its_tablet(
    bench: Bench, table: Table
) -> None:
    bench.toy.block_rows = 7
    seen = [row["id"] async for row in table]
    assert sorted(seen) == list(range(1000))
    collected = await table.scan(columns=["id"]).to_arrow()
    by_tablet = [
        sorted(int.from_bytes(key, "big") - (1 << 63) for key in tablet.rows)
        for tablet in bench.toy.tables["t"].tablets
    ]
    assert collected["id"].to_pylist() == [number for tablet in by_tablet for number in tablet]


@on_table(buckets=60, loaded=1000)
async def test_small_tablets_of_one_server_are_read_in_one_call(bench: Bench, table: Table) -> None:
    scan = table.scan(columns=["id"])
    assert sorted((await scan.to_arrow())["id"].to_pylist()) == list(range(1000))
    assert bench.toy.count("scan") < 20
    assert scan.indexes == {t.id: len(t.applied) for t in bench.toy.tables["t"].tablets}
    assert sorted([row["id"] async for row in table]) == list(range(1000))
    assert await table.scan(where=ebla.col("n") < 10).count() == 10


@on_table(buckets=60, loaded=1000)
async def test_tablets_that_are_not_answered_with_another_one_are_read_alone(
    bench: Bench, table: Table
) -> None:
    await table.scan().count()
    bench.toy.lead_all()  # the client asks servers that lead no more
    assert sorted([row["id"] async for row in table]) == list(range(1000))


@on_table(buckets=60, loaded=2000)
async def test_a_large_tablet_among_small_ones_is_read_block_by_block(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 30  # some tablets have more rows, some fewer
    assert sorted([row["id"] async for row in table]) == list(range(2000))
    assert bench.toy.count("scan_more") > 0
    bench.toy.calls.clear()
    assert (await table.scan().to_arrow()).num_rows == 2000
    assert bench.toy.count("scan") < 60
    await bench.world.clock.sleep(5.0)
    assert bench.toy.scanners == {}


@on_table(loaded=1000)
async def test_a_scan_has_the_log_index_of_each_tablets_snapshot(bench: Bench, table: Table) -> None:
    scan = table.scan()
    assert scan.indexes == {}
    await scan.to_arrow()
    assert scan.indexes == {t.id: len(t.applied) for t in bench.toy.tables["t"].tablets}


@on_table(loaded=1000)
async def test_blocks_are_read_ahead_within_a_bound(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 5
    async with aclosing(table.scan().batches()) as batches:
        await anext(batches)
        await bench.world.clock.sleep(2.0)
        asked = bench.toy.count("scan") + bench.toy.count("scan_more")
        assert 4 <= asked <= 1 + 4 + 4, "one read, four ready, and one waiting in each of four readers"


@on_table(loaded=1000)
async def test_a_scan_left_early_closes_its_scanners(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 5
    async with aclosing(table.scan().batches()) as batches:
        await anext(batches)
    await bench.world.clock.sleep(2.0)
    assert bench.toy.scans_opened >= 4
    assert bench.toy.scanners == {}


@on_table(loaded=1000)
async def test_a_tablet_that_moves_before_it_is_read_is_read_elsewhere(bench: Bench, table: Table) -> None:
    bench.toy.lead_all("host-b")
    bench.crash("host-a")
    assert sorted(row["id"] for row in (await table.scan().to_arrow()).to_pylist()) == list(range(1000))


@on_table(1, loaded=1000)
async def test_a_lost_block_is_requested_again_from_the_same_server(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 100
    lost = errors.OutcomeUnknown("lost")
    bench.toy.before[address("host-a"), "scan_more"] = [refuse(lost), silence()]
    assert len([row async for row in table]) == 1000
    assert bench.toy.scans_opened == 1


@on_table(1, loaded=1000)
async def test_a_lost_snapshot_is_read_again_when_rows_are_collected(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 100
    bench.toy.before[address("host-a"), "scan_more"] = [refuse(SnapshotExpired("expired"))]
    found = await table.scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(1000))
    assert bench.toy.scans_opened == 2
    assert await table.scan().count() == 1000


@on_table(1, loaded=1000)
async def test_a_scan_whose_snapshot_is_always_lost_times_out_and_says_why(
    bench: Bench, table: Table
) -> None:
    bench.toy.block_rows = 100
    bench.toy.before[address("host-a"), "scan_more"] = [refuse(SnapshotExpired("expired"))] * 1000
    with pytest.raises(TimedOut, match="no answer within 3 s; last tried SnapshotExpired: expired"):
        await table.scan(deadline_s=3.0).to_arrow()
    assert 2 < bench.toy.scans_opened < 100  # with pauses between tries


@on_table(1, loaded=1000)
async def test_a_lost_snapshot_interrupts_a_stream_that_has_returned_rows(bench: Bench, table: Table) -> None:
    bench.toy.block_rows = 100
    bench.toy.before[address("host-a"), "scan_more"] = [refuse(SnapshotExpired("expired"))]
    seen = 0
    with pytest.raises(ScanInterrupted, match="t000 was lost after 100 of its rows") as caught:
        async for _ in table:
            seen += 1
    assert seen <= 100 and caught.value.tablet == "t000" and caught.value.rows == 100


@pytest.mark.parametrize("seed", range(5))
@on_table(loaded=1000)
async def test_a_leader_that_crashes_during_a_collected_scan_does_not_change_its_rows(
    bench: Bench, table: Table, seed: int
) -> None:
    bench.toy.block_rows = 10
    pending = asyncio.ensure_future(table.scan().to_arrow())
    await bench.world.clock.sleep(0.03)
    assert bench.toy.count("scan_more") > 0 and not pending.done()
    bench.crash("host-b")
    bench.toy.lead_all("host-c")
    assert sorted((await pending)["id"].to_pylist()) == list(range(1000))
