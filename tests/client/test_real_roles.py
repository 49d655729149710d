"""The client against the real master and tablet servers, in the deterministic world, with deaths and returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

import ebla
from ebla import aio
from ebla.actors.master.options import MasterOptions
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import Role, World
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.masters import alone, start_alone
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.errors import Unavailable
from ebla.options import Written
from ebla.transport.client import DeploymentClient
from tests.client.tables import SCHEMA, arrow, row
from tests.client.toy import HOSTS, MASTER, address, client_world


@dataclass
class Stage:
    cluster: SimulatedCluster
    session: DeploymentClient
    db: aio.Database

    async def table(self, buckets: int = 4) -> aio.Table:
        return await self.db.create_table(
            "t", schema=SCHEMA, primary_key=["id"], partition_by=ebla.hash("id", buckets=buckets)
        )

    async def leaders(self, table: aio.Table) -> list[str]:
        return [tablet.leader or "" for tablet in (await table.info()).tablets]


def server(host: str) -> Callable[[World], Role]:
    options = TabletServerOptions(masters=(MASTER,), host=host)
    return lambda world: TabletServer(world, options)


def simulate(scenario: Callable[[Stage], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    async def main() -> None:
        cluster = SimulatedCluster()
        await start_alone(cluster, alone(MASTER, MasterOptions(bg_s=0.1)))
        for host in HOSTS:
            await cluster.start(address(host), server(host))
        session = DeploymentClient(client_world(cluster, "client"))
        db = aio.Database(session)
        while sum(status.alive for status in await db.servers()) < len(HOSTS):
            await session.world.clock.sleep(0.1)
        await scenario(Stage(cluster, session, db))
        session.close()

    run(main(), seed)


def test_a_table_is_made_written_read_and_dropped() -> None:
    async def scenario(stage: Stage) -> None:
        table = await stage.table()
        assert await table.upsert(arrow(3000, width=50)) == Written(3000)
        assert await asyncio.gather(*(table.upsert(row(n)) for n in range(100))) == [Written(1)] * 100
        assert await asyncio.gather(*(table.get({"id": n}) for n in range(100))) == [
            row(n) for n in range(100)
        ]
        await table.flush()
        assert await table.update([{"id": n, "n": -1} for n in range(10)]) == Written(10)
        assert await table.delete([{"id": n} for n in range(5)]) == Written(5)
        assert await table.scan().count() == 2995
        scan = table.scan(columns=["id"], where=ebla.col("n") < 0)
        assert sorted((await scan.to_arrow())["id"].to_pylist()) == [5, 6, 7, 8, 9]
        assert all(index > 0 for index in scan.indexes.values()) and len(scan.indexes) == 4
        await stage.db.drop_table("t")
        assert await stage.db.tables() == []

    simulate(scenario)


def test_more_replicas_than_hosts_are_refused_with_the_remedy() -> None:
    async def scenario(stage: Stage) -> None:
        with pytest.raises(Unavailable, match="fewer replicas"):
            await stage.db.create_table("t", schema=SCHEMA, primary_key=["id"], replicas=5)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(4))
def test_every_insert_is_applied_once_while_a_leader_dies_and_returns(seed: int) -> None:
    """An insert that was applied and repeated would find its own row present."""

    async def scenario(stage: Stage) -> None:
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

    simulate(scenario, seed)


def test_a_write_survives_any_leaders_death_and_is_read_from_its_successor_within_seconds() -> None:
    async def scenario(stage: Stage) -> None:
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

    simulate(scenario)


def test_a_network_that_loses_and_repeats_messages_changes_no_answer() -> None:
    async def scenario(stage: Stage) -> None:
        table = await stage.table()
        stage.cluster.network.drop_probability = 0.02
        stage.cluster.network.repeat_probability = 0.05
        numbers = range(300)
        written = await asyncio.gather(*(table.insert(row(n)) for n in numbers))
        assert written == [Written(1)] * 300
        assert await table.insert(arrow(2000, width=60, start=1000)) == Written(2000)
        stage.cluster.network.drop_probability = 0.0
        assert await table.scan().count() == 2300

    for seed in range(3):
        simulate(scenario, seed)


def _keyed(table: aio.Table, number: int) -> tuple[dict[str, int], bytes]:
    key = {"id": number}
    return key, table._routes.codec.keys.encode_key(key)
