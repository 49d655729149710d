"""Random histories of one ledger: a writer, stores that crash and return, lost messages, readers, and recoveries that race.

Promises that are checked:

    acknowledged   an acknowledged entry is in the closed ledger, with its bytes
    seen           an entry that a reader has returned is in the closed ledger
    complete       a reader sees every entry that was acknowledged before its read began
    one end        all recoveries return the same end, and it never changes
    whole          each entry of the closed ledger is on an ack quorum of its stores, equal everywhere
"""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EndUndecided
from ebla.actors.ledger.metadata import Metadata
from ebla.chaos.simulation.medium import COMMIT_S
from ebla.chaos.simulation.world import NodeCrashed
from ebla.storage.errors import EblaError
from tests.ledger.stage import Process, Stage

SHAPES = [(3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 2, 1), (3, 3, 3), (5, 3, 2), (5, 4, 3)]
RETRY_S = 0.3
TRIES_MAX = 200


class History:
    def __init__(self, stage: Stage, shape: tuple[int, int, int]) -> None:
        self.stage = stage
        self.random: Random = stage.cluster.loop.derive("history")
        self.found = stage.create(1, *shape)
        self.acknowledged: dict[int, bytes] = {}
        self.seen: dict[int, bytes] = {}
        self.ends: list[tuple[int, int]] = []
        self.calm = False

    async def write(self, process: Process) -> None:
        writer = process.writer(self.found)
        number = 0

        async def add(data: bytes) -> None:
            entry = await writer.add(data)
            self.acknowledged[entry] = data

        while True:
            for _ in range(self.random.choice([1, 1, 3, 10])):
                data = b"%d:%d" % (number, self.random.getrandbits(16))
                number += 1
                process.world.spawn(_quietly(add(data)), "add")
            await process.world.clock.sleep(self.random.uniform(0.0, 0.05))
            if writer.failed is not None:
                return
            if number > 60 and self.random.random() < 0.02 and await writer.drain(5.0):
                await _quietly(self._close(writer.close()))
                return

    async def _close(self, closing: object) -> None:
        ended: Metadata = await closing  # type: ignore[misc]
        self.ends.append((ended.last, ended.length))

    async def read(self, process: Process) -> None:
        while not self.calm:
            await process.world.clock.sleep(self.random.uniform(0.0, 0.2))
            before = dict(self.acknowledged)
            try:
                found = await process.registry.read(1)
                try:
                    last = await process.reader.last_entry(found)
                except EndUndecided:
                    found = await process.recover()
                    last = found.last
                assert last >= max(before, default=-1), (
                    last,
                    max(before),
                    "a reader misses acknowledged entries",
                )
                first = self.random.randint(0, max(0, last))
                entries = await process.reader.read(found, first, last) if last >= 0 else []
            except EblaError:
                continue
            for entry in entries:
                self.seen[entry.entry] = entry.data

    async def trouble(self) -> None:
        cluster, network = self.stage.cluster, self.stage.cluster.network
        while not self.calm:
            await asyncio.sleep(self.random.uniform(0.02, 0.5))
            address = self.random.choice(self.stage.addresses)
            kind = self.random.choice(["crash", "crash", "pause", "isolate", "drop", "slow"])
            for_s = self.random.uniform(0.05, 1.5)
            if kind == "crash" and cluster.alive(address):
                cluster.crash(address)
                await asyncio.sleep(for_s)
                await self._restart(address)
            elif kind == "pause" and cluster.alive(address):
                cluster.pause(address)
                await asyncio.sleep(for_s)
                cluster.resume(address)
            elif kind == "isolate":
                network.isolate(address)
                await asyncio.sleep(for_s)
                network.rejoin(address)
            elif kind == "drop":
                network.drop_probability = 0.1
                await asyncio.sleep(for_s)
                network.drop_probability = 0.0
            elif kind == "slow":
                cluster.state(address).commit_s = (0.1, 0.3)
                await asyncio.sleep(for_s)
                cluster.state(address).commit_s = COMMIT_S

    async def _restart(self, address: str) -> None:
        with contextlib.suppress(NodeCrashed):  # by the other trouble, which restarts it as well
            if not self.stage.cluster.alive(address):
                await self.stage.restart(address)

    async def recover(self, process: Process) -> None:
        for _ in range(TRIES_MAX):
            try:
                ended = await process.recover()
            except EblaError:
                await process.world.clock.sleep(RETRY_S)
                continue
            self.ends.append((ended.last, ended.length))
            return
        raise AssertionError("the ledger could not be recovered in calm")

    async def run(self) -> None:
        """Trouble, then calm; then the promises are checked."""
        stage = self.stage
        stage.registry.lost = self.random.choice([0.0, 0.3])
        writer = stage.process()
        writer.world.spawn(self.write(writer), "write")
        for _ in range(2):
            reader = stage.process()
            reader.world.spawn(self.read(reader), "read")
        troubles = [asyncio.ensure_future(self.trouble()) for _ in range(2)]
        await asyncio.sleep(self.random.uniform(0.2, 6.0))
        if self.random.random() < 0.5:
            writer.crash()
        racing = [stage.process() for _ in range(self.random.choice([1, 2]))]
        for process in racing:
            process.world.spawn(_quietly(self.recover(process)), "recover")
        await asyncio.sleep(self.random.uniform(0.0, 2.0))
        if self.random.random() < 0.3:
            racing[0].crash()
        self.calm = True
        stage.registry.lost = 0.0
        await asyncio.gather(*troubles)
        await self.recover(stage.process())
        await asyncio.sleep(3.0)
        await self.judge()

    async def judge(self) -> None:
        found = self.stage.registry.ledgers[1]
        meta.validate(found)
        assert set(self.ends) == {(found.last, found.length)}, (self.ends, found)
        contents = await self.stage.process().contents()
        for entry, data in (self.acknowledged | self.seen).items():
            assert entry <= found.last, (entry, found.last, entry in self.acknowledged, entry in self.seen)
            assert contents[entry] == data, (entry, data, contents[entry])
        assert found.length == sum(map(len, contents))
        self._judge_copies(found, contents)

    def _judge_copies(self, found: Metadata, contents: list[bytes]) -> None:
        for entry, data in enumerate(contents):
            copies = 0
            for store in meta.stores_of(found, entry):
                role = self.stage.role(self.stage.of(store))
                value = role.entries.get(1, entry)
                if value is not None:
                    assert value.endswith(data), (entry, value, data)
                    copies += 1
            assert copies >= found.ack_quorum, (entry, copies, found)


async def _quietly(work: object) -> None:
    try:
        await work  # type: ignore[misc]
    except EblaError:
        return


async def history(stage: Stage) -> None:
    shape = stage.cluster.loop.derive("shape").choice([s for s in SHAPES if s[0] <= len(stage.addresses)])
    await History(stage, shape).run()
