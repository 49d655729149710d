"""A real master, ledger stores, replication workers and auditors in virtual time, and clients that write ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ebla.actors.asking.master_client import MasterClient
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.auditor.auditor import Auditor
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.handles.checking import Checker
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.handles.writer import Writer
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.kept import KeptRegistry, Mark
from ebla.actors.ledger.shared.paths import of_mark
from ebla.actors.ledger.shared.records import LastingSession
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.actors.ledger.shared.survey import RepairSurvey, survey
from ebla.actors.ledger.store import records
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.ledger.worker.worker import ReplicationWorker
from ebla.actors.master.options import MasterOptions
from ebla.actors.world import World
from ebla.chaos.simulation import loop
from ebla.chaos.simulation.masters import alone, start_alone
from ebla.chaos.simulation.points import Points
from ebla.chaos.simulation.world import SimulatedCluster

MASTER = "master/0"
CALLS = LedgerOptions(timeout_s=1.0, replace_s=0.5, ping_s=1000.0)
Scenario = Callable[["RepairStage"], Coroutine[Any, Any, Any]]


class RepairStage:
    """Stores and workers `a`, `b`, ...; the tests start workers and auditors when they need them."""

    def __init__(
        self, count: int = 4, worker: dict[str, Any] | None = None, auditor: dict[str, Any] | None = None
    ) -> None:
        self.points = Points()
        self.cluster = SimulatedCluster(self.points.of)
        self.cluster.network.slow_probability = 0.0
        self.names = tuple("abcdefgh"[:count])
        self.workers = {"grace_s": 5.0, "backoff_s": 2.0, "look_s": 1.0, **(worker or {})}
        self.auditors = {"delay_s": 5.0, "settle_s": 2.0, **(auditor or {})}
        self.uuids: dict[str, str] = {}  # name -> the store's uuid
        self._clients = 0

    async def open(self) -> None:
        await start_alone(self.cluster, alone(MASTER, MasterOptions(bg_s=0.1)))
        for name in self.names:
            await self.cluster.start(store(name), LedgerStore)
            self.uuids[name] = self.role(name).instance.uuid
        self.client = self.process()
        await self.until(lambda: self._registered(len(self.names)))

    async def _registered(self, count: int) -> bool:
        return len(await self.client.registry.stores()) == count

    async def until(self, true: Callable[[], Awaitable[Any]], limit_s: float = 120.0) -> None:
        clock = self.cluster.loop
        until = clock.time() + limit_s
        while not await true():
            assert clock.time() < until, f"not so within {limit_s} s"
            await asyncio.sleep(0.1)

    # -- roles

    def role(self, name: str) -> LedgerStore:
        found: LedgerStore = self.cluster.role(store(name))
        return found

    async def work(self, *names: str) -> None:
        """Start the workers of these hosts; all without names."""
        for name in names or self.names:
            options = WorkerOptions(store=store(name), **self.workers)
            await self.cluster.start(
                f"replication-worker/{name}",
                lambda world, options=options: ReplicationWorker(world, options, CALLS),
            )

    def worker(self, name: str) -> ReplicationWorker:
        found: ReplicationWorker = self.cluster.role(f"replication-worker/{name}")
        return found

    async def audit(self, *numbers: int) -> None:
        """Start auditors; of several the first is elected."""
        options = AuditorOptions(**self.auditors)
        for number in numbers or (0,):
            await self.cluster.start(f"auditor/{number}", lambda world: Auditor(world, options, CALLS))
            if numbers and number != numbers[-1]:
                await self.until(self._has_auditor)

    async def _has_auditor(self) -> bool:
        return (await self.survey()).auditor is not None

    def auditor(self, number: int = 0) -> Auditor:
        found: Auditor = self.cluster.role(f"auditor/{number}")
        return found

    async def lose(self, name: str) -> None:
        """The store ends and never returns."""
        self.cluster.crash(store(name))

    async def restart(self, name: str) -> None:
        await self.cluster.restart(store(name))
        self.uuids[name] = self.role(name).instance.uuid

    # -- what is there

    def process(self) -> Client:
        self._clients += 1
        return Client(self, self.cluster.client_world(f"client/{self._clients}"))

    async def mark_of(self, ledger: int) -> Mark | None:
        return await self.client.registry.marks.get(of_mark(ledger))

    async def survey(self) -> RepairSurvey:
        return await survey(self.client.world, self.client.session)

    def entries(self, name: str) -> int:
        """The number of entries on a store."""
        role = self.role(name)
        return sum(1 for ledger in role.heads for _ in role.entries.numbers(ledger))

    async def settled(self) -> None:
        """Every running store has moved its entries to their ledgers."""
        for name in self.names:
            if self.cluster.alive(store(name)):
                await self.role(name)._mover.move_all()

    def copies(self, found: Metadata, entry: int) -> list[str]:
        """The stores of the segment that run, and have a sound copy."""
        having = []
        for name in self.names:
            uuid = self.uuids[name]
            if self.cluster.alive(store(name)) and uuid in meta.stores_of(found, entry):
                value = self.role(name).entries.get(found.ledger, entry)
                if value is not None and records.read_entry(found.ledger, entry, value) is not None:
                    having.append(uuid)
        return having

    async def judge_whole(self, ledger: int, contents: list[bytes] | None = None) -> Metadata:
        """The closed ledger names stores that run only, and each entry has all of its copies."""
        found = await self.client.registry.read(ledger)
        meta.validate(found)
        assert found.closed, found
        up = [self.uuids[name] for name in self.names if self.cluster.alive(store(name))]
        for segment in found.segments:
            assert all(each in up for each in segment.stores), (segment, up)
        for entry in range(found.last + 1):
            copies = self.copies(found, entry)
            assert len(copies) == found.write_quorum, (ledger, entry, copies, found)
        if contents is not None:
            assert await self.client.contents(ledger) == contents
        return found


def store(name: str) -> str:
    return f"ledger-store/{name}"


class Client:
    """A client process that writes and reads ledgers."""

    def __init__(self, stage: RepairStage, world: World) -> None:
        self.stage = stage
        self.world = world
        self.session = LastingSession(MasterClient(world, (MASTER,)), world.address)
        self.registry = KeptRegistry(world, self.session)
        self.repairs = Repairs(self.session)
        self.stores = Stores(world, self.registry)
        self.reader = Reader(world, self.registry, self.stores, CALLS)
        self.checker = Checker(world, self.registry, self.stores, CALLS)

    def writer(self, found: Metadata) -> Writer:
        return Writer(self.world, self.registry, self.stores, found, CALLS)

    async def create(
        self, *names: str, write_quorum: int = 3, ack_quorum: int = 2, ensemble: int = 3
    ) -> Metadata:
        """A ledger on the stores of these names; by chance without names."""
        made = await self.registry.create(len(names) or ensemble, write_quorum, ack_quorum)
        if not names:
            return made
        segment = meta.Segment(0, tuple(self.stage.uuids[name] for name in names))
        return await self.registry.change(made.ledger, lambda found: meta.replace(found, segments=(segment,)))

    async def written(self, count: int, *names: str, closed: bool = True, **shape: int) -> Metadata:
        """A ledger with entries that all of its stores have."""
        found = await self.create(*names, **shape)
        writer = self.writer(found)
        for future in [writer.add(each) for each in data(count)]:
            await future
        ended = await writer.close()
        if closed:
            return ended
        raise AssertionError("an open ledger has a writer: use `writer`")

    async def check(self, ledger: int, percentage: float = 0.0) -> Any:
        found = await self.registry.read(ledger)
        running = [each.uuid for each in await self.registry.stores()]
        return await self.checker.check(found, running, percentage)

    async def recover(self, ledger: int) -> Metadata:
        return await recover(self.world, self.registry, self.stores, ledger, CALLS)

    async def contents(self, ledger: int) -> list[bytes]:
        found = await self.registry.read(ledger)
        read: list[bytes] = []
        while len(read) <= found.last:
            read += [e.data for e in await self.reader.read(found, len(read), found.last)]
        return read

    def crash(self) -> None:
        self.stage.cluster.crash(self.world.address)


def data(count: int, first: int = 0) -> list[bytes]:
    return [b"entry %d" % number for number in range(first, first + count)]


def play(scenario: Scenario, seed: int = 0, **given: Any) -> Any:
    async def run() -> Any:
        stage = RepairStage(**given)
        await stage.open()
        return await scenario(stage)

    return loop.run(run(), seed=seed)
