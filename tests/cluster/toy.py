"""The smallest role with all parts of a real one: a disk, durable state, RPCs and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from ebla.actors.errors import Throttled, Unavailable
from ebla.actors.figures import Figure, Sheet, gauge
from ebla.actors.messages import Empty
from ebla.actors.world import Role, World, new_id, rpc
from ebla.storage.environment import Put
from ebla.storage.errors import DiskFailed, OldCopy

COUNTS = "counts"
SHEET: Sheet[int] = Sheet((), gauge("toy_count", "", "what the toy has counted", int))


class ToyOptions(msgspec.Struct, frozen=True):
    greeting: str = "hello"


class Number(msgspec.Struct, frozen=True):
    value: int = 0


class Relay(msgspec.Struct, frozen=True):
    addresses: tuple[str, ...]


class State(msgspec.Struct, frozen=True):
    uuid: str
    seqno: int
    count: int
    greeting: str


class Toy(Role):
    """Counts, durably."""

    def __init__(self, world: World, options: ToyOptions) -> None:
        self.world = world
        self.options = options
        self.arrived = 0

    async def start(self) -> None:
        self.instance = await self.world.disk.open_instance(new_id(self.world.random))
        self.environment = await self.world.disk.open_environment(
            COUNTS, [COUNTS], create=self.instance.created
        )

    def measure(self) -> Iterable[Figure]:
        return SHEET.read(self._count())

    @rpc
    async def echo(self, number: Number) -> Number:
        return number

    @rpc
    async def relay(self, request: Relay) -> Number:
        calls = [self.world.network.call(to, "echo", Number(1), Number, 5.0) for to in request.addresses]
        return Number(sum(answer.value for answer in await asyncio.gather(*calls)))

    @rpc
    async def add(self, number: Number) -> Number:
        count = self._count() + number.value
        await self.environment.commit([Put(COUNTS, [(b"count", str(count).encode())])])
        return Number(count)

    @rpc
    async def show(self, request: Empty) -> State:
        return State(self.instance.uuid, self.instance.seqno, self._count(), self.options.greeting)

    @rpc
    async def refuse(self, request: Empty) -> Empty:
        raise Throttled("the toy's hands are full", limit="hands", retry_after_s=0.5)

    @rpc
    async def stumble(self, request: Empty) -> Empty:
        raise RuntimeError("a defect of the toy")

    @rpc
    async def hang(self, request: Empty) -> Empty:
        self.arrived += 1
        await asyncio.Event().wait()
        return request

    @rpc
    async def hanging(self, request: Empty) -> Number:
        return Number(self.arrived)

    @rpc
    async def lose_disk(self, request: Empty) -> Empty:
        self.world.fail(DiskFailed("a sync failed, says the toy"))
        return request

    @rpc
    async def grow_old(self, request: Empty) -> Empty:
        error = OldCopy("the toy is an old copy, set it aside")
        await self.world.disk.give_up(error.message)
        self.world.fail(error)
        return request

    @rpc
    async def give_up(self, request: Empty) -> Empty:
        self.world.fail(Unavailable("the toy gives up"))
        return request

    @rpc
    async def fail_beside(self, request: Empty) -> Empty:
        async def work() -> None:
            raise RuntimeError("a background task of the toy failed")

        self.world.spawn(work(), "doomed")
        return request

    def _count(self) -> int:
        return int(self.environment.get(COUNTS, b"count") or b"0")
