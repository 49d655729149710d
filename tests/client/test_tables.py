"""Tables through the master: create, find, list, drop, and wait until a table is ready."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import ebla
from ebla.actors import errors
from ebla.aio import Table
from ebla.errors import AlreadyPresent, ConnectionClosed, InvalidArgument, NotFound, TimedOut
from ebla.options import Written
from tests.client.tables import SCHEMA, make, on_table, row
from tests.client.toy import Bench, address, on_toys, refuse, silence


@on_toys
async def test_creating_waits_until_every_tablet_can_be_written_to(bench: Bench) -> None:
    bench.toy.ready_after = 5
    table = await make(bench)
    assert (await table.info()).state == "running"
    assert bench.toy.count("get_table") >= 5


@on_toys
async def test_a_table_that_does_not_start_is_named_with_the_waiting_time(bench: Bench) -> None:
    bench.toy.ready_after = 1_000_000
    with pytest.raises(TimedOut, match=r"'t' exists, but 4 of its 4 tablets.*within 2 s.*ebla check"):
        await bench.db.create_table(
            "t", schema=SCHEMA, primary_key=["id"], partition_by=ebla.hash("id", buckets=4), wait_s=2.0
        )


@on_toys
async def test_after_creation_without_waiting_the_first_operation_waits(bench: Bench) -> None:
    bench.toy.ready_after = 4
    table = await bench.db.create_table("t", schema=SCHEMA, primary_key=["id"], wait_s=0)
    assert bench.toy.count("get_table") == 0
    assert await table.upsert(row(1)) == Written(1)
    assert bench.toy.count("get_table") == 4


@on_toys
async def test_tables_are_found_listed_and_dropped_by_name(bench: Bench) -> None:
    await make(bench, name="flights")
    await make(bench, name="fleet")
    assert [t.name for t in await bench.db.tables()] == ["flights", "fleet"]
    assert [t.name for t in await bench.db.tables("flee")] == ["fleet"]
    table = await bench.db.table("flights")
    assert table.schema == pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("n", pa.int32())]
    )
    assert table.primary_key == ("id",)
    await bench.db.drop_table("flights")
    with pytest.raises(NotFound):
        await bench.db.table("flights")
    with pytest.raises(NotFound):
        await bench.db.drop_table("flights")
    with pytest.raises(AlreadyPresent):
        await make(bench, name="fleet")


@on_toys
async def test_a_new_active_master_gets_time_for_the_servers_heartbeats(bench: Bench) -> None:
    away = [refuse(errors.NotRunning("it is starting"))] * 40
    hearing = [refuse(errors.Unavailable("3 replicas, 1 host"))] * 5
    bench.toy.before["master/0", "create_table"] = [*away, *hearing]
    with bench.lasts(60.0, 4.0):
        await make(bench)


def test_partitionings_are_added_and_have_a_readable_form() -> None:
    both = ebla.hash("a", "b", buckets=4) + ebla.range("a", splits=[1, 2])
    assert repr(both) == "ebla.hash('a', 'b', buckets=4) + ebla.range('a', splits=[1, 2])"
    assert both == ebla.range("a", splits=[1, 2]) + ebla.hash("a", "b", buckets=4)
    with pytest.raises(InvalidArgument, match="one hash and one range"):
        both + ebla.hash("a", buckets=2)


@on_table()
async def test_closing_a_connection_ends_new_calls_and_those_under_way(bench: Bench, table: Table) -> None:
    bench.toy.before[address("host-a"), "write"] = [silence()] * 9
    pending = [bench.cluster.loop.create_task(table.upsert(row(n))) for n in range(50)]
    await bench.world.clock.sleep(0.5)
    await bench.db.close()
    outcomes = await asyncio.gather(*pending, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Written, ConnectionClosed}
    for call in (table.upsert(row(1)), table.get({"id": 1}), table.scan().count(), bench.db.tables()):
        with pytest.raises(ConnectionClosed, match=r"ebla\.connect"):
            await call
    await bench.db.close()


@on_toys
async def test_handles_have_a_readable_form(bench: Bench) -> None:
    table = await make(bench, name="flights")
    assert repr(table) == "<ebla.aio.Table 'flights': 3 columns, key (id), 8 tablets, 3 x raft>"
    assert repr(bench.db) == "<ebla.aio.Database 'ebla'>"
    assert "limit 3" in repr(table.scan(columns=["v"], limit=3))
