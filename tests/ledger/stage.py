"""Ledger stores in virtual time, and a registry in memory whose changes may lose their answers."""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine
from random import Random
from typing import Any

from ebla.actors.errors import NotFound, OutcomeUnknown, Unavailable
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.registry import StoreInfo, Transform
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.handles.writer import Writer
from ebla.actors.ledger.metadata import Metadata, Segment
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.world import World
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.world import SimulatedCluster

Scenario = Callable[["Stage"], Coroutine[Any, Any, Any]]


class Registry:
    """One linearizable registry for all worlds of a stage. `lost`: the share of changes whose answers are lost, of which half were
    made; `fails`: every request fails."""

    def __init__(self, stage: Stage, random: Random) -> None:
        self.stage = stage
        self.random = random
        self.ledgers: dict[int, Metadata] = {}
        self.marks: dict[int, set[str]] = {}
        self.lost = 0.0
        self.fails = False

    def put(self, changed: Metadata) -> None:
        meta.validate(changed)
        before = self.ledgers.get(changed.ledger)
        if before is not None and before.closed:
            assert (changed.last, changed.length) == (before.last, before.length) and changed.closed
        self.ledgers[changed.ledger] = changed


class View:
    """The registry as one process reaches it."""

    def __init__(self, registry: Registry, world: World) -> None:
        self._registry = registry
        self._world = world
        self.requests = 0

    async def _travel(self) -> None:
        self.requests += 1
        await self._world.clock.sleep(self._registry.random.uniform(0.0005, 0.003))
        if self._registry.fails:
            raise Unavailable("no master")

    async def stores(self) -> list[StoreInfo]:
        await self._travel()
        stage = self._registry.stage
        running = [address for address in stage.addresses if stage.cluster.alive(address)]
        return [
            StoreInfo(stage.uuids[address], address, stage.role(address).read_only) for address in running
        ]

    async def address(self, store: str) -> str | None:
        await self._travel()
        return next((a for a, uuid in self._registry.stage.uuids_ever if uuid == store), None)

    async def read(self, ledger: int) -> Metadata:
        await self._travel()
        found = self._registry.ledgers.get(ledger)
        if found is None:
            raise NotFound(f"there is no ledger {ledger}", what=str(ledger))
        return found

    async def change(self, ledger: int, transform: Transform) -> Metadata:
        registry = self._registry
        while True:
            before = await self.read(ledger)
            changed = transform(before)
            if changed == before:
                return before
            await self._travel()
            if registry.random.random() < registry.lost:
                if registry.random.random() < 0.5 and registry.ledgers[ledger] == before:
                    registry.put(changed)
                raise OutcomeUnknown("the answer was lost")
            if registry.ledgers[ledger] == before:
                registry.put(changed)
                await self._travel()
                return changed

    async def mark(self, ledger: int, store: str) -> None:
        await self._travel()
        self._registry.marks.setdefault(ledger, set()).add(store)


class Stage:
    """Stores `ledger-store/a`, `ledger-store/b`, ... and a registry."""

    def __init__(self, count: int = 4, **options: Any) -> None:
        self.points = Points()
        self.cluster = SimulatedCluster(self.points.of)
        self.cluster.network.slow_probability = 0.0
        self.addresses = tuple(f"ledger-store/{name}" for name in "abcdefgh"[:count])
        self.options = LedgerOptions(**{"timeout_s": 1.0, "replace_s": 0.5, **options})
        self.registry = Registry(self, self.cluster.loop.derive("registry"))
        self.uuids: dict[str, str] = {}
        self.uuids_ever: list[tuple[str, str]] = []
        self._processes = 0

    async def open(self) -> None:
        for address in self.addresses:
            await self.cluster.start(address, LedgerStore)
            self._register(address)

    def _register(self, address: str) -> None:
        uuid = self.role(address).instance.uuid
        self.uuids[address] = uuid
        if (address, uuid) not in self.uuids_ever:
            self.uuids_ever.append((address, uuid))

    async def restart(self, address: str) -> None:
        await self.cluster.restart(address)
        self._register(address)

    def role(self, address: str) -> LedgerStore:
        found: LedgerStore = self.cluster.role(address)
        return found

    def of(self, store: str) -> str:
        """The address of a store."""
        return next(address for address, uuid in self.uuids_ever if uuid == store)

    def create(
        self, ledger: int = 1, ensemble: int = 3, write_quorum: int = 3, ack_quorum: int = 2
    ) -> Metadata:
        stores = tuple(self.uuids[address] for address in self.addresses[:ensemble])
        made = Metadata(
            ledger, ensemble, write_quorum, ack_quorum, f"token-{ledger}", (Segment(0, stores),), created_us=0
        )
        self.registry.put(made)
        return made

    def process(self) -> Process:
        self._processes += 1
        return Process(self, self.cluster.client_world(f"client/{self._processes}"))


class Process:
    """A client process: everything that it starts ends with it."""

    def __init__(self, stage: Stage, world: World) -> None:
        self.stage = stage
        self.world = world
        self.registry = View(stage.registry, world)
        self.stores = Stores(world, self.registry)
        self.reader = Reader(world, self.registry, self.stores, stage.options)

    def writer(self, found: Metadata) -> Writer:
        return Writer(self.world, self.registry, self.stores, found, self.stage.options)

    async def recover(self, ledger: int = 1, gone: Container[str] = ()) -> Metadata:
        return await recover(self.world, self.registry, self.stores, ledger, self.stage.options, gone)

    async def contents(self, ledger: int = 1) -> list[bytes]:
        """All entries of a closed ledger."""
        found = await self.registry.read(ledger)
        assert found.closed
        read: list[bytes] = []
        while len(read) <= found.last:
            read += [e.data for e in await self.reader.read(found, len(read), found.last)]
        return read

    def crash(self) -> None:
        self.stage.cluster.crash(self.world.address)


def play(scenario: Scenario, seed: int = 0, **given: Any) -> Any:
    async def run() -> Any:
        stage = Stage(**given)
        await stage.open()
        return await scenario(stage)

    return loop.run(run(), seed=seed)
