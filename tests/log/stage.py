"""A real master and real ledger stores in virtual time, and clients with the real library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ebla import aio
from ebla.actors.coordination.limits import Limits
from ebla.actors.ledger.auditor.auditor import Auditor
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.master.options import MasterOptions
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.masters import alone, start_alone
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.transport.client import DeploymentClient

MASTER = "master/0"
Scenario = Callable[["Stage"], Coroutine[Any, Any, Any]]


class Stage:
    def __init__(self, count: int = 4) -> None:
        self.points = Points()
        self.cluster = SimulatedCluster(self.points.of)
        self.stores = tuple(f"ledger-store/{name}" for name in "abcdefgh"[:count])
        self._clients = 0

    async def open(self, limits: Limits) -> None:
        await start_alone(self.cluster, alone(MASTER, MasterOptions(bg_s=0.1, coordination=limits)))
        for address in self.stores:
            await self.cluster.start(address, LedgerStore)
        db = self.client()
        while len(await db._logs.registry.stores()) < len(self.stores):
            await asyncio.sleep(0.1)
        await db.close()

    async def count_time(self, number: int = 0) -> None:
        """Start an auditor, which counts the time by which old records are deleted."""
        await self.cluster.start(f"auditor/{number}", lambda world: Auditor(world, AuditorOptions()))

    def client(self) -> aio.Database:
        """A client in a process of its own."""
        self._clients += 1
        return aio.Database(DeploymentClient(self.cluster.client_world(f"client/{self._clients}")))

    def role(self, address: str) -> LedgerStore:
        found: LedgerStore = self.cluster.role(address)
        return found

    def crash(self, db: aio.Database) -> None:
        """End a client's process."""
        self.cluster.crash(db._client.world.address)  # type: ignore[attr-defined]

    def cut(self, db: aio.Database, store: str) -> None:
        """Cut a client from a store."""
        self.cluster.network.cut(db._client.world.address, store)  # type: ignore[attr-defined]

    def mend(self, db: aio.Database, store: str) -> None:
        """Undo `cut`."""
        self.cluster.network.mend(db._client.world.address, store)  # type: ignore[attr-defined]


def play(scenario: Scenario, seed: int = 0, count: int = 4, limits: Limits | None = None) -> Any:
    async def run() -> Any:
        stage = Stage(count)
        await stage.open(limits or Limits())
        return await scenario(stage)

    return loop.run(run(), seed=seed)


async def contents(log: aio.Log, start: int | None = None) -> list[bytes]:
    """All records; their positions are checked."""
    read = [entry async for entry in log.read(start)]
    first = read[0].position if read else 0
    assert [entry.position for entry in read] == list(range(first, first + len(read)))
    return [entry.data for entry in read]
