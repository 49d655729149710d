"""The client against the real master and tablet servers, in the deterministic world."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import ebla
from ebla import aio
from ebla.actors.master.options import MasterOptions
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import Role, World
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.masters import alone, start_alone
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.transport.client import DeploymentClient
from tests.client.tables import SCHEMA
from tests.client.toy import HOSTS, MASTER, address
from tests.staged import staged


@dataclass
class Stage:
    cluster: SimulatedCluster
    session: DeploymentClient
    db: aio.Database

    async def table(self, buckets: int = 4) -> aio.Table:
        return await self.db.create_table(
            "t", schema=SCHEMA, primary_key=["id"], partition_by=ebla.hash("id", buckets=buckets)
        )

    def client(self, name: str = "another") -> aio.Database:
        """Another, independent client."""
        return aio.Database(DeploymentClient(self.cluster.client_world(name)))

    async def leaders(self, table: aio.Table) -> list[str]:
        return [tablet.leader or "" for tablet in (await table.info()).tablets]


AnyStage = TypeVar("AnyStage", bound=Stage)


def server(host: str) -> Callable[[World], Role]:
    options = TabletServerOptions(masters=(MASTER,), host=host, version="0.1.0")
    return lambda world: TabletServer(world, options)


async def start(kind: type[AnyStage]) -> AnyStage:
    """A master and three tablet servers that it knows."""
    cluster = SimulatedCluster()
    await start_alone(cluster, alone(MASTER, MasterOptions(bg_s=0.1)))
    for host in HOSTS:
        await cluster.start(address(host), server(host))
    session = DeploymentClient(cluster.client_world("client"))
    db = aio.Database(session)
    while sum(status.alive for status in await db.servers()) < len(HOSTS):
        await session.world.clock.sleep(0.1)
    return kind(cluster, session, db)


def simulate(scenario: Callable[[Stage], Coroutine[Any, Any, None]], seed: int = 0) -> None:
    async def main() -> None:
        stage = await start(Stage)
        await scenario(stage)
        stage.session.close()

    run(main(), seed)


on_real_roles = staged(simulate)
