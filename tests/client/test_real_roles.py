"""Writes and reads reach the real master and tablet servers once, over deaths and returns."""

from __future__ import annotations

import asyncio

import pytest

import ebla
from ebla.aio import Table
from ebla.errors import Unavailable
from ebla.options import Written
from tests.client.real_roles import Stage, on_real_roles
from tests.client.tables import SCHEMA, arrow, row


@on_real_roles
async def test_a_table_is_created_written_read_and_dropped(stage: Stage) -> None:
    table = await stage.table()
    assert await table.upsert(arrow(3000, width=50)) == Written(3000)
    assert await asyncio.gather(*(table.upsert(row(n)) for n in range(100))) == [Written(1)] * 100
    assert await asyncio.gather(*(table.get({"id": n}) for n in range(100))) == [row(n) for n in range(100)]
    await table.flush()
    assert await table.update([{"id": n, "n": -1} for n in range(10)]) == Written(10)
    assert await table.delete([{"id": n} for n in range(5)]) == Written(5)
    assert await table.scan().count() == 2995
    scan = table.scan(columns=["id"], where=ebla.col("n") < 0)
    assert sorted((await scan.to_arrow())["id"].to_pylist()) == [5, 6, 7, 8, 9]
    assert all(index > 0 for index in scan.indexes.values()) and len(scan.indexes) == 4
    await stage.db.drop_table("t")
    assert await stage.db.tables() == []


@on_real_roles
async def test_more_replicas_than_hosts_are_refused_with_the_remedy(stage: Stage) -> None:
    with pytest.raises(Unavailable, match=r"`--replicas 3` \(replicas=3\)"):
        await stage.db.create_table("t", schema=SCHEMA, primary_key=["id"], replicas=5)


@pytest.mark.parametrize("seed", range(4))
@on_real_roles
async def test_every_insert_is_applied_once_while_a_leader_dies_and_returns(stage: Stage, seed: int) -> None:
    """An insert that is applied twice would find its own row present."""
    table = await stage.table()
    victim = (await stage.leaders(table))[seed % 4]

    async def singles(worker: int) -> None:
        for at in range(12):
            assert await table.insert(row(1_000_000 + worker * 1000 + at)) == Written(1)
            await stage.session.world.clock.sleep(0.05)

    async def load() -> None:
        for at in range(6):
            assert await table.insert(arrow(1500, width=80, start=at * 1500)) == Written(1500)
            await stage.session.world.clock.sleep(0.1)

    async def kill() -> None:
        await stage.session.world.clock.sleep(0.25)
        stage.cluster.crash(victim)
        await stage.session.world.clock.sleep(2.0)
        await stage.cluster.restart(victim)

    await asyncio.gather(kill(), load(), *(singles(worker) for worker in range(8)))
    assert await table.scan().count() == 9000 + 96
    assert await table.get({"id": 8999}) is not None


@on_real_roles
async def test_a_write_survives_any_leaders_death_and_is_read_from_its_successor_within_seconds(
    stage: Stage,
) -> None:
    table = await stage.table(buckets=2)
    clock = stage.session.world.clock
    waits = []
    for turn in range(4):
        await table.upsert(row(turn))
        victim = (await stage.leaders(table))[table._routes.partitioner.assign_row(*_keyed(table, turn))]
        stage.cluster.crash(victim)
        began = clock.monotonic()
        assert await table.get({"id": turn}) == row(turn)
        assert await table.upsert(row(turn, v="again")) == Written(1)
        waits.append(clock.monotonic() - began)
        await stage.cluster.restart(victim)
        await clock.sleep(3.0)
    assert max(waits) < 4.0, waits


@pytest.mark.parametrize("seed", range(3))
@on_real_roles
async def test_a_network_that_loses_and_repeats_messages_changes_no_answer(stage: Stage, seed: int) -> None:
    table = await stage.table()
    stage.cluster.network.drop_probability = 0.02
    stage.cluster.network.repeat_probability = 0.05
    numbers = range(300)
    written = await asyncio.gather(*(table.insert(row(n)) for n in numbers))
    assert written == [Written(1)] * 300
    assert await table.insert(arrow(2000, width=60, start=1000)) == Written(2000)
    stage.cluster.network.drop_probability = 0.0
    assert await table.scan().count() == 2300


def _keyed(table: Table, number: int) -> tuple[dict[str, int], bytes]:
    key = {"id": number}
    return key, table._routes.codec.keys.encode_key(key)
