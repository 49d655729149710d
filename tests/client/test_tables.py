"""Tables through the master: create, find, list, drop, and waiting until they can be used."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import ebla
from ebla.actors import errors
from ebla.errors import AlreadyPresent, ConnectionClosed, InvalidArgument, NotFound, TimedOut, Unavailable
from ebla.options import Written
from tests.client.tables import SCHEMA, make, row
from tests.client.toy import Bench, address, refuse, silence, simulate


def test_creating_waits_until_every_tablet_can_be_written_to() -> None:
    async def scenario(bench: Bench) -> None:
        bench.toy.ready_after = 5
        table = await make(bench)
        assert (await table.info()).state == "running"
        assert bench.toy.count("get_table") >= 5

    simulate(scenario)


def test_a_table_that_does_not_come_up_is_named_with_the_time_that_was_waited() -> None:
    async def scenario(bench: Bench) -> None:
        bench.toy.ready_after = 1_000_000
        with pytest.raises(TimedOut, match=r"'t' exists, but 4 of its 4 tablets.*within 2 s.*ebla check"):
            await bench.db.create_table(
                "t", schema=SCHEMA, primary_key=["id"], partition_by=ebla.hash("id", buckets=4), wait_s=2.0
            )

    simulate(scenario)


def test_without_waiting_the_first_operation_waits_instead() -> None:
    async def scenario(bench: Bench) -> None:
        bench.toy.ready_after = 4
        table = await bench.db.create_table("t", schema=SCHEMA, primary_key=["id"], wait_s=0)
        assert bench.toy.count("get_table") == 0
        assert await table.upsert(row(1)) == Written(1)
        assert bench.toy.count("get_table") == 4

    simulate(scenario)


def test_tables_are_found_listed_and_dropped_by_name() -> None:
    async def scenario(bench: Bench) -> None:
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

    simulate(scenario)


def test_what_the_cluster_cannot_take_is_said_within_seconds_in_the_masters_words() -> None:
    async def scenario(bench: Bench) -> None:
        bench.toy.before["master/0", "create_table"] = [
            refuse(errors.Unavailable("5 replicas, 3 hosts"))
        ] * 1000
        began = bench.world.clock.monotonic()
        with pytest.raises(Unavailable, match="5 replicas, 3 hosts"):
            await make(bench)
        assert bench.world.clock.monotonic() - began < 5.0

    simulate(scenario)


def test_a_master_that_took_over_meanwhile_gets_its_time_to_hear_from_the_servers() -> None:
    async def scenario(bench: Bench) -> None:
        away = [refuse(errors.NotRunning("it is starting"))] * 40
        hearing = [refuse(errors.Unavailable("3 replicas, 1 host"))] * 5
        bench.toy.before["master/0", "create_table"] = [*away, *hearing]
        began = bench.world.clock.monotonic()
        await make(bench)
        assert bench.world.clock.monotonic() - began > 4.0

    simulate(scenario)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"primary_key": "id"}, r"list of columns: \['id'\]"),
        ({"primary_key": []}, "primary key"),
        ({"primary_key": ["nope"]}, "nope"),
        ({"partition_by": ebla.hash("v", buckets=4)}, "'v' is not in the primary key"),
        ({"partition_by": ebla.hash("id", buckets=1)}, "buckets must be 2"),
        ({"partition_by": ebla.range("v", splits=["m"])}, "prefix of the primary key"),
        ({"partition_by": ebla.range("id", splits=[5, 3])}, "sort them"),
        ({"partition_by": "id"}, "ebla.hash"),
        ({"schema": pa.schema([("id", pa.int64()), ("x", pa.list_(pa.int8()))])}, "'x' has type list"),
    ],
)
def test_a_table_that_cannot_be_is_refused_before_the_master_is_asked(arguments: dict, words: str) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(InvalidArgument, match=words):
            await bench.db.create_table("t", **{"schema": SCHEMA, "primary_key": ["id"], **arguments})
        assert bench.toy.calls == []

    simulate(scenario)


def test_partitionings_add_up_and_read_well() -> None:
    both = ebla.hash("a", "b", buckets=4) + ebla.range("a", splits=[1, 2])
    assert repr(both) == "ebla.hash('a', 'b', buckets=4) + ebla.range('a', splits=[1, 2])"
    assert both == ebla.range("a", splits=[1, 2]) + ebla.hash("a", "b", buckets=4)
    with pytest.raises(InvalidArgument, match="one hash and one range"):
        both + ebla.hash("a", buckets=2)


def test_a_closed_connection_says_so_to_new_calls_and_to_those_under_way() -> None:
    async def scenario(bench: Bench) -> None:
        table = await make(bench)
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

    simulate(scenario)


def test_handles_tell_what_they_are() -> None:
    async def scenario(bench: Bench) -> None:
        table = await make(bench, name="flights")
        assert repr(table) == "<ebla.aio.Table 'flights': 3 columns, key (id), 8 tablets, 3 x raft>"
        assert repr(bench.db) == "<ebla.aio.Database 'ebla'>"
        assert "limit 3" in repr(table.scan(columns=["v"], limit=3))

    simulate(scenario)
