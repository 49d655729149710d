"""The command line against a real master and three real tablet servers, in the deterministic world.

Each invocation gets a fresh cluster on which `prepare` has run; nothing of it needs Ray.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import ebla
from ebla import aio
from ebla.actors.master.options import MasterOptions
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import Role, World
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.masters import alone, start_alone
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.cli.app import app
from ebla.cli.frame import connection as seam
from ebla.cli.frame.ui import Ui
from ebla.operate.cluster import Cluster
from ebla.options import MASTER, ClientWorld
from ebla.transport.client import DeploymentClient

HOSTS = ("host-a", "host-b", "host-c")
SERVERS = tuple(f"tablet-server/{host}" for host in HOSTS)
SCHEMA = pa.schema(
    [
        pa.field("carrier", pa.string(), False),
        pa.field("flight", pa.int32(), False),
        pa.field("distance", pa.int32()),
        pa.field("at", pa.timestamp("us", "UTC")),
    ]
)
ROWS = [
    {"carrier": carrier, "flight": flight, "distance": 100 * flight, "at": None}
    for carrier in ("AA", "UA")
    for flight in range(1, 11)
]


@dataclass
class Outcome:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Everything on stdout is one document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines()]


@dataclass
class Stage:
    cluster: SimulatedCluster
    db: aio.Database

    async def table(self, name: str = "flights", buckets: int = 2) -> aio.Table:
        table = await self.db.create_table(
            name,
            schema=SCHEMA,
            primary_key=["carrier", "flight"],
            partition_by=ebla.hash("flight", buckets=buckets),
        )
        await table.upsert(ROWS)
        return table


Prepare = Callable[[Stage], Awaitable[object]]


def _server(host: str) -> Callable[[World], Role]:
    options = TabletServerOptions(masters=(MASTER,), host=host, version="0.1.0")
    return lambda world: TabletServer(world, options)


@dataclass
class Cli:
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *words: str, prepare: Prepare | None = None) -> Outcome:
        def connected(ui: Ui, work: Callable[[Cluster], Coroutine[Any, Any, Any]]) -> Any:
            async def main() -> Any:
                stage, session = await _boot()
                if prepare is not None:
                    await prepare(stage)
                return await work(Cluster(session, SERVERS))

            return run(main())

        self.monkeypatch.setattr(seam, "connected", connected)
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        return Outcome(result.exit_code, result.stdout, result.stderr)


async def _boot() -> tuple[Stage, DeploymentClient]:
    cluster = SimulatedCluster()
    await start_alone(cluster, alone(MASTER, MasterOptions(bg_s=0.1)))
    for host, address in zip(HOSTS, SERVERS, strict=True):
        await cluster.start(address, _server(host))
    world = cluster.client_world("client")
    session = DeploymentClient(ClientWorld(world.clock, world.network, world.random, world.spawn))
    stage = Stage(cluster, aio.Database(session))
    while sum(status.alive for status in await stage.db.servers()) < len(HOSTS):
        await world.clock.sleep(0.1)
    return stage, session
