"""The toy deployment in this process, in real time, behind the API that does not await."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import msgspec
from typing_extensions import Self

from ebla import aio
from ebla.actors.deadlines import timeout
from ebla.actors.errors import NotDelivered, OutcomeUnknown
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.world import CallerWorld, Dispatcher, World, decode_answer, encode
from ebla.link import Link
from ebla.table import Database
from ebla.transport.bridge import Bridge
from ebla.transport.client import DeploymentClient
from tests.client.toy import HOSTS, MASTER, Toy, ToyMaster, ToyServer, address

TURNS_MAX = 1000


class LoopNetwork:
    """Calls roles of this process; messages are sent as bytes."""

    def __init__(self) -> None:
        self.roles: dict[str, Dispatcher] = {}

    async def call(
        self, where: str, method: str, message: msgspec.Struct, reply: type[Any], timeout_s: float
    ) -> Any:
        role = self.roles.get(where)
        if role is None:
            raise NotDelivered(f"there is no {where}", address=where)
        try:
            async with timeout(timeout_s):
                await asyncio.sleep(0)
                return decode_answer(await role.answer(method, encode(message)), reply)
        except TimeoutError:
            raise OutcomeUnknown("no answer", address=where) from None


class Loopback:
    def __init__(self) -> None:
        self.toy = Toy()
        self.bridge = Bridge("toy")
        self.bridge.run(self._start())
        self.link = Link(self.bridge, aio.Database(self.session))
        self.db = Database(("toy", "somewhere:6379"), self.link)

    async def _start(self) -> None:
        network = LoopNetwork()
        defects: list[BaseException] = []
        tasks = Tasks(lambda name, error: self.session.failed(name, error))

        def world(where: str) -> World:
            generator = random.Random(where)
            return World(
                address=where,
                clock=MachineClock(),
                network=network,
                disk=None,  # type: ignore[arg-type]
                random=generator,
                spawn=tasks.spawn,
                fail=defects.append,
            )

        def serve(role: Any) -> None:
            network.roles[role.world.address] = Dispatcher(role, lambda method, error: defects.append(error))

        serve(ToyMaster(world(MASTER), self.toy))
        for host in HOSTS:
            serve(ToyServer(world(address(host)), self.toy))
        client = CallerWorld(MachineClock(), network, random.Random(1), tasks.spawn)
        self.session = DeploymentClient(client, "toy", on_close=tasks.cancel)

    def operations(self) -> int:
        """Count the calls of the API that are under way."""

        async def look() -> int:
            return len(self.bridge._waiters) - 1

        return self.bridge.run(look())

    def settle(self) -> None:
        """Run every task that is ready."""

        async def turns() -> None:
            for _ in range(50):
                await asyncio.sleep(0)

        self.bridge.run(turns())

    def scanners_left(self) -> dict[str, object]:
        """The scanners that are open once every dropped iterator has ended its scan: an exception that went from thread to
        thread holds one until it is collected, and a thread may drop one a moment after its result has arrived."""
        for _ in range(TURNS_MAX):
            gc.collect()
            self.settle()
            if not self.toy.scanners:
                break
        return dict(self.toy.scanners)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.db.close()
