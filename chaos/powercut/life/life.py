"""The recorded life: tables are created and dropped, clients write, followers follow and are evicted, memtables are flushed, logs
are trimmed and moved, and half-way both roles end abruptly and start again.

Every request goes over the network of the machine, by the rules of clients and peers, so the recording has all messages. A life
is bounded by steps, not by time.
"""

from __future__ import annotations

import asyncio
import random

from ebla.actors import messages as m
from ebla.chaos.powercut.life.client import write
from ebla.chaos.powercut.life.ghosts import Ghosts, creation, eviction
from ebla.chaos.powercut.life.machine import SERVER, Machine
from ebla.chaos.powercut.recording.events import Plan
from ebla.chaos.powercut.recording.facts import Facts
from ebla.chaos.powercut.recording.lanes import LANE_STRIDE, bulk_batch, random_batch, schema
from ebla.storage.errors import EblaError
from ebla.storage.schema import COLUMNS, ROWS

KEPT, BRIEF = "kept", "brief"
FOLLOWED = ("f0" * 16, "f1" * 16)
LEFT = ("e0" * 16, "e1" * 16)  # one per turn
LANES_PER_TABLET = 2


class Life:
    def __init__(self, machine: Machine, facts: Facts, plan: Plan) -> None:
        self.machine = machine
        self.facts = facts
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self._sequences: dict[bytes, int] = {}
        self._requests = 0

    async def live(self) -> None:
        await self.machine.start_master()
        await self.machine.start_server()
        kept = await self.create(KEPT, buckets=2)
        for tablet in FOLLOWED:
            request = creation(tablet, self.machine.server.instance.uuid)
            await self.machine.ask(SERVER, "create_tablet", request, m.Empty)
        for turn in range(2):
            await self._turn(kept, turn)
            if turn == 0:
                await self.machine.stop_all()  # while upkeep is under way
                await self.machine.start_master()
                await self.machine.start_server()

    async def _turn(self, kept: list[str], turn: int) -> None:
        steps = self.plan.steps
        await self._led(kept)
        done = asyncio.Event()
        upkeep = asyncio.get_running_loop().create_task(self._upkeep(done))
        lanes = [
            self._lane(tablet, at * LANES_PER_TABLET + lane, steps)
            for at, tablet in enumerate(kept)
            for lane in range(LANES_PER_TABLET)
        ]
        groups = [self._follow(tablet, steps) for tablet in FOLLOWED]
        try:
            passing = self._come_and_go(turn, max(1, steps // 60)), self._leave(turn, max(4, steps // 10))
            await asyncio.gather(*lanes, *groups, *passing)
        finally:
            done.set()
            await upkeep
        if self.plan.bulk and turn == 1:
            await self._bulk(kept[0])

    # -- tables

    async def create(self, name: str, *, buckets: int = 1) -> list[str]:
        """Create a table, and wait until its tablets lead. Returns the tablets."""
        storage = ROWS if self.plan.seed % 2 else COLUMNS
        request = m.CreateTableRequest(self._request_id(), name, schema(buckets, storage), 1)
        table = await self.machine.ask_master("create_table", request, m.TableInfo)
        tablets = [location.tablet for location in table.tablets]
        await self._led(tablets)
        return tablets

    async def _led(self, tablets: list[str]) -> None:
        await self.machine.until(lambda: all(map(self.machine.leads, tablets)), f"{tablets} lead")

    async def _come_and_go(self, turn: int, cycles: int) -> None:
        for cycle in range(cycles):
            name = f"{BRIEF}-{turn}-{cycle}"
            (tablet,) = await self.create(name)
            client = f"brief{turn:04}/{cycle:06}".encode()
            for _ in range(self.rng.randint(0, 12)):
                await self._write(tablet, client, 0)
            if self.rng.random() < 0.4:
                await self.machine.ask(SERVER, "flush", m.FlushRequest(tablet), m.FlushReply)
            await asyncio.sleep(self.rng.random() * 0.03)
            if turn == 1 and cycle == cycles - 1:
                return  # one stays
            request = m.DropTableRequest(self._request_id(), name)
            await self.machine.ask_master("drop_table", request, m.Empty)
            gone = self.facts.tablets[tablet]
            await self.machine.until(lambda gone=gone: gone.deleted, f"{tablet} is deleted")  # type: ignore[misc]

    def _request_id(self) -> str:
        self._requests += 1
        return f"request-{self._requests}"

    # -- rows and entries

    async def _lane(self, tablet: str, lane: int, steps: int) -> None:
        client = f"lane-{lane:011}".encode()
        for _ in range(steps):
            await self._write(tablet, client, lane * LANE_STRIDE)

    async def _write(self, tablet: str, client: bytes, first_key: int) -> None:
        sequence = self._next(client)
        await write(self.machine, tablet, random_batch(self.rng, tablet, client, sequence, first_key))

    async def _bulk(self, tablet: str) -> None:
        """Write more rows at once than an environment commits without being reopened."""
        client = f"lane-{0:011}".encode()
        await write(self.machine, tablet, bulk_batch(tablet, client, self._next(client), 0))
        await self.machine.ask(SERVER, "flush", m.FlushRequest(tablet), m.FlushReply)
        await self._write(tablet, client, 0)

    def _next(self, client: bytes) -> int:
        self._sequences[client] = self._sequences.get(client, 0) + 1
        return self._sequences[client]

    async def _follow(self, tablet: str, steps: int) -> None:
        ghosts = Ghosts(self.machine, self.facts.groups[tablet], self.rng)
        for _ in range(steps):
            await ghosts.step()

    async def _leave(self, turn: int, steps: int) -> None:
        """Evict the server from a group. It keeps a tombstone until the table is dropped."""
        uuid = self.machine.server.instance.uuid
        if turn == 1:
            dropped = m.DeleteTabletRequest(uuid, LEFT[0], "its table was dropped")
            await self.machine.ask(SERVER, "delete_tablet", dropped, m.Empty)
        await self.machine.ask(SERVER, "create_tablet", creation(LEFT[turn], uuid), m.Empty)
        await self._follow(LEFT[turn], steps)
        await self.machine.ask(SERVER, "delete_tablet", eviction(LEFT[turn], uuid), m.Empty)

    async def _upkeep(self, done: asyncio.Event) -> None:
        while not done.is_set():
            await asyncio.sleep(self.rng.random() * 0.08)
            tablets = list(self.machine.server.replicas)
            chosen = self.rng.choice([*tablets, None])
            try:
                await self.machine.ask(SERVER, "flush", m.FlushRequest(chosen), m.FlushReply)
            except EblaError:
                continue  # dropped meanwhile
