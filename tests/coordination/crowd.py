"""Clients of the namespace with the real client library, each a simulated process, beside masters that fail over."""

from __future__ import annotations

from ebla import aio
from ebla.coordination.awaited import Session
from ebla.options import ClientWorld
from ebla.transport.client import DeploymentClient
from tests.master.group_stage import GroupStage


class Process:
    """One client, which can be crashed, paused and cut off by its address."""

    def __init__(self, stage: GroupStage, name: str) -> None:
        self.address = f"client/{name}"
        self.world = stage.cluster.client_world(self.address)
        world = ClientWorld(self.world.clock, self.world.network, self.world.random, self.world.spawn)
        self.connection = DeploymentClient(world, "group", stage.masters)
        self.db = aio.Database(self.connection)

    async def session(self, timeout_s: float = 3.0) -> Session:
        return await self.db.session(timeout_s, name=self.address)


async def session(stage: GroupStage, name: str, timeout_s: float = 3.0) -> Session:
    return await Process(stage, name).session(timeout_s)
