"""Two acts. In the first, writers, nodes and links fail, pause and return while a reader tails. Then all faults are removed:
every acknowledged edit exists once, in order, and every node has the same.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.journal.errors import QuorumFailed
from ebla.actors.journal.writer.reader import Position
from ebla.actors.journal.writer.writer import JournalWriter
from tests.journal.stage import Stage, play
from tests.staged import staged

ACT_ONE_S = 60.0
SILENCE_S = 3.0  # after this time a client gives its writer up


class Client:
    """Writes one edit after the other through its own writer; opens another when the writer ends or is silent."""

    def __init__(self, stage: Stage, chance: random.Random) -> None:
        self.stage = stage
        self.chance = chance
        self.acked: dict[int, bytes] = {}
        self.asked: dict[bytes, None] = {}
        self.address = ""

    async def live(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < ACT_ONE_S:
            world = self.stage.world()
            self.address = world.address
            writing = asyncio.ensure_future(self.write(JournalWriter(world, self.stage.options)))
            await asyncio.wait((writing,), timeout=ACT_ONE_S)
            assert writing.done()
            writing.result()
            if self.stage.cluster.alive(world.address):
                self.stage.cluster.crash(world.address)

    async def write(self, writer: JournalWriter) -> None:
        try:
            async with asyncio.timeout(SILENCE_S):
                await writer.open()
                await writer.begin()
            for number in range(self.chance.randrange(10, 100)):
                edit = f"{self.address} {number}".encode()
                self.asked[edit] = None
                async with asyncio.timeout(SILENCE_S):
                    txid = await writer.append(edit)
                assert txid not in self.acked
                self.acked[txid] = edit
        except (QuorumFailed, Unavailable, TimeoutError):
            await asyncio.sleep(self.chance.uniform(0.0, 0.5))


async def tail(stage: Stage, found: dict[int, bytes]) -> None:
    reader = stage.reader()
    position: Position = reader.beginning()
    while asyncio.get_running_loop().time() < ACT_ONE_S:
        try:
            page = await reader.read(position, in_progress=True)
        except (QuorumFailed, Unavailable):
            page = None
        if page is None or page.position == position:
            await asyncio.sleep(0.1)
            continue
        found.update(page.edits)
        position = page.position


async def trouble(stage: Stage, client: Client, chance: random.Random) -> None:
    """One fault at a time for nodes, so that work continues; the writer may crash at any moment."""
    cluster = stage.cluster
    while asyncio.get_running_loop().time() < ACT_ONE_S:
        await asyncio.sleep(chance.uniform(0.1, 1.0))
        node, for_s = chance.choice(stage.nodes), chance.uniform(0.0, 2.0)
        what = chance.choice(("crash", "pause", "isolate", "writer"))
        if what == "crash":
            cluster.crash(node)
            await asyncio.sleep(for_s)
            await cluster.restart(node)
        elif what == "pause":
            cluster.pause(node)
            await asyncio.sleep(for_s)
            cluster.resume(node)
        elif what == "isolate":
            cluster.network.isolate(node)
            await asyncio.sleep(for_s)
            cluster.network.rejoin(node)
        elif cluster.alive(client.address):
            cluster.crash(client.address)


@pytest.mark.parametrize("seed", range(3))
@staged(play, sync_s=2.0, segment_txns=40, write_timeout_s=1.0, recovery_timeout_s=1.0)
async def test_after_faults_every_acknowledged_edit_exists_once_on_all_nodes(stage: Stage, seed: int) -> None:
    chance = random.Random(seed)
    stage.cluster.network.drop_probability = stage.cluster.network.repeat_probability = 0.002
    client, tailed = Client(stage, chance), dict[int, bytes]()
    await asyncio.gather(client.live(), tail(stage, tailed), trouble(stage, client, chance))

    stage.cluster.network.drop_probability = stage.cluster.network.repeat_probability = 0.0
    clean = JournalWriter(stage.world(), stage.options)
    await clean.open()
    await clean.begin()
    last = await clean.append(b"the last one")
    await clean.roll()
    await asyncio.sleep(30.0)
    reader = stage.reader()
    edits = dict((await reader.read_all(reader.beginning())).edits)
    assert len(client.acked) > 100
    assert {txid: edits.get(txid) for txid in client.acked} == client.acked
    assert {txid: edits.get(txid) for txid in tailed} == tailed
    assert len(set(edits.values())) == len(edits)
    assert list(edits.values())[:-1] == [edit for edit in client.asked if edit in set(edits.values())]
    stage.judge_copies()
    copies = [
        [(s.start, s.end, s.state.digest) for s in stage.view(node).all() if s.finalized]
        for node in stage.nodes
    ]
    assert copies[0] == copies[1] == copies[2] and copies[0][-1][1] == last
