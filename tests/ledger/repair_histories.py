"""Random histories of several ledgers while stores are lost for good or leave, and repairs follow; every role may crash at any time.

At the end, in calm:

    acknowledged   every acknowledged entry is in its closed ledger, with its bytes
    whole          the metadata names stores that run only, and each entry has all of its copies, equal everywhere
    finished       there are no marks, no notes and no locks
    clean          stores have no entries of deleted ledgers, nor of ledgers that moved elsewhere
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from ebla.actors.fault_points import REPAIR_OF_LEDGERS_POINTS
from ebla.actors.ledger.metadata import Metadata
from ebla.chaos.simulation.world import NodeCrashed
from ebla.storage.errors import EblaError
from tests.ledger.repair_stage import MASTER, Client, RepairStage, store

SHAPES = [(3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2)]
LOSSES_MAX = 2
WHOLE_S = 300.0


class RepairHistory:
    def __init__(self, stage: RepairStage) -> None:
        self.stage = stage
        self.random: Random = stage.cluster.loop.derive("history")
        self.acknowledged: dict[int, dict[int, bytes]] = {}
        self.lost: list[str] = []  # uuids
        self.gone: list[str] = []  # names of stores that never return
        self.deleted: list[int] = []
        self.calm = False

    # -- clients

    async def write(self) -> None:
        """Ledgers one after the other, of clients that close them, leave them open, or end."""
        while not self.calm:
            client = self.stage.process()
            try:
                await self._write(client)
            except EblaError:
                await asyncio.sleep(0.5)
            if self.random.random() < 0.3:
                client.crash()

    async def _write(self, client: Client) -> None:
        ensemble, write_quorum, ack_quorum = self.random.choice(SHAPES)
        found = await client.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        acknowledged = self.acknowledged.setdefault(found.ledger, {})
        writer = client.writer(found)

        async def add(data: bytes) -> None:
            with contextlib.suppress(EblaError):
                acknowledged[await writer.add(data)] = data

        for number in range(self.random.choice([0, 5, 40, 150])):
            if self.calm or writer.failed is not None:
                break
            data = b"%d:%d:%d" % (found.ledger, number, self.random.getrandbits(16))
            client.world.spawn(add(data), "add")
            if self.random.random() < 0.3:
                await client.world.clock.sleep(self.random.uniform(0.0, 0.5))
        await client.world.clock.sleep(self.random.uniform(0.0, 10.0))
        if self.random.random() < 0.6 and await writer.drain(5.0):
            await writer.close()
            if self.random.random() < 0.2:
                del self.acknowledged[found.ledger]
                self.deleted.append(found.ledger)
                await client.registry.delete(found.ledger)

    # -- trouble

    async def trouble(self) -> None:
        cluster, network = self.stage.cluster, self.stage.cluster.network
        roles = [
            f"{kind}/{name}" for kind in ("ledger-store", "replication-worker") for name in self.stage.names
        ]
        roles += ["auditor/0", "auditor/1", "auditor/0", "auditor/1", MASTER]
        while not self.calm:
            await asyncio.sleep(self.random.uniform(0.5, 6.0))
            address = self.random.choice(roles)
            kind = self.random.choice(["crash", "crash", "point", "point", "isolate", "drop"])
            for_s = self.random.uniform(0.1, 12.0)
            if address.endswith(tuple(f"store/{name}" for name in self.gone)):
                continue
            if kind == "crash" and cluster.alive(address):
                cluster.crash(address)
                await asyncio.sleep(for_s if address != MASTER else min(for_s, 4.0))
                await self._restart(address)
            elif kind == "point" and not address.startswith(("ledger-store", "master")):
                point = self.random.choice(REPAIR_OF_LEDGERS_POINTS)
                self.stage.points.arm(address, point, lambda address=address: cluster.crash(address))
                await asyncio.sleep(for_s)
                await self._restart(address)
            elif kind == "isolate" and address != MASTER:
                network.isolate(address)
                await asyncio.sleep(for_s)
                network.rejoin(address)
            elif kind == "drop":
                network.drop_probability = 0.05
                await asyncio.sleep(min(for_s, 3.0))
                network.drop_probability = 0.0

    async def _restart(self, address: str) -> None:
        if any(address == store(name) for name in self.gone):
            return
        with contextlib.suppress(NodeCrashed):
            if not self.stage.cluster.alive(address):
                await self.stage.cluster.restart(address)

    async def lose(self) -> None:
        """One store after the other is lost for good; the next one when all that it had is repaired."""
        for _ in range(self.random.choice([1, LOSSES_MAX])):
            await asyncio.sleep(self.random.uniform(1.0, 10.0))
            name = self.random.choice([name for name in self.stage.names if name not in self.gone])
            uuid = self.stage.uuids[name]
            if self.random.random() < 0.3:
                await self._decommission(name, uuid)
                continue
            self.lost.append(uuid)
            self.gone.append(name)
            self.stage.cluster.crash(store(name))
            if self.random.random() < 0.5:
                await asyncio.sleep(self.random.uniform(0.0, 5.0))
                self.stage.cluster.lose_disk(store(name))
                self.gone.remove(name)
                with contextlib.suppress(NodeCrashed):
                    await self.stage.restart(name)
            await asyncio.sleep(8.0)  # until its session has expired, clients make ledgers on it
            await self.stage.until(lambda uuid=uuid: self._replaced(uuid), WHOLE_S)

    async def _decommission(self, name: str, uuid: str) -> None:
        """The store leaves, and may come back when no ledger names it."""
        await self._leave(name, True)
        await self.stage.until(lambda: self._replaced(uuid), WHOLE_S)
        await asyncio.sleep(self.random.uniform(0.0, 5.0))
        assert await self._replaced(uuid), "no ledger names a store again that leaves"
        await self._leave(name, False)

    async def _leave(self, name: str, on: bool) -> None:
        while True:
            try:
                await self.stage.client.registry.leave([store(name)], on)
            except EblaError:
                await asyncio.sleep(0.5)
            else:
                return

    async def _replaced(self, uuid: str) -> bool:
        await asyncio.sleep(1.0)
        return all(uuid not in _stores(found) for found in await self._ledgers())

    async def _ledgers(self) -> list[Metadata]:
        registry = self.stage.client.registry
        while True:
            try:
                return [await registry.read(ledger) for ledger in await registry.list()]
            except EblaError:
                await asyncio.sleep(0.5)

    # -- the end

    async def run(self) -> None:
        stage = self.stage
        await stage.audit(0, 1)
        await stage.work()
        writers = [asyncio.ensure_future(self.write()) for _ in range(2)]
        troubles = [asyncio.ensure_future(self.trouble()) for _ in range(2)]
        await self.lose()
        self.calm = True
        await asyncio.gather(*troubles, *writers)
        stage.points.disarm_all()
        for name in stage.names:
            if name not in self.gone:
                await self._restart(store(name))
                stage.uuids[name] = stage.role(name).instance.uuid
            await self._restart(f"replication-worker/{name}")
        for address in (MASTER, "auditor/0", "auditor/1"):
            await self._restart(address)
        await asyncio.sleep(15.0)
        await self._close_all()
        await stage.client.repairs.trigger()
        await stage.until(self._finished, WHOLE_S)
        await asyncio.sleep(60.0)  # checks of all ledgers, and garbage
        await stage.until(self._finished, WHOLE_S)
        await self.judge()

    async def _close_all(self) -> None:
        for found in await self._ledgers():
            for _ in range(60):
                try:
                    await self.stage.client.recover(found.ledger)
                    break
                except EblaError:
                    await asyncio.sleep(1.0)
            else:
                raise AssertionError(f"ledger {found.ledger} cannot be recovered in calm")

    async def _finished(self) -> bool:
        survey = await self.stage.survey()
        return not survey.marked and not await self.stage.client.repairs.locked()

    async def judge(self) -> None:
        stage = self.stage
        for ledger, entries in self.acknowledged.items():
            found = await stage.judge_whole(ledger)
            contents = await stage.client.contents(ledger)
            assert found.length == sum(map(len, contents))
            for entry, data in entries.items():
                assert entry <= found.last and contents[entry] == data, (ledger, entry, found)
        assert not await stage.client.repairs.noted()
        self._judge_stores(await self._ledgers())

    def _judge_stores(self, ledgers: list[Metadata]) -> None:
        known = {found.ledger: found for found in ledgers}
        for name in self.stage.names:
            if name in self.gone:
                continue
            role, uuid = self.stage.role(name), self.stage.uuids[name]
            for ledger in role.ledgers():
                assert ledger in known, (name, ledger, "a deleted ledger is on the store")
                if uuid not in _stores(known[ledger]):
                    assert not list(role.entries.numbers(ledger)), (name, ledger)


def _stores(found: Metadata) -> set[str]:
    return {each for segment in found.segments for each in segment.stores}


async def history(stage: RepairStage) -> None:
    await RepairHistory(stage).run()


OPTIONS = {
    "worker": {"garbage_s": 8.0, "backoff_max_s": 8.0, "batch_entries": 20},
    "auditor": {"delay_s": 3.0, "settle_s": 1.0, "check_s": 10.0, "verify_percentage": 100.0},
}
