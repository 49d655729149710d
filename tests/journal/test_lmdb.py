"""Nodes, writer and readers over LMDB files, in real time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ebla.actors.journal import messages as m
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions
from ebla.actors.journal.writer.reader import JournalReader
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.world import Dispatcher, World
from ebla.storage.errors import Damaged, DirectoryLocked
from ebla.storage.lmdb.disk import LmdbDisk
from tests.client.loopback import LoopNetwork

JOURNAL = m.JournalId("edits", "one")
NODES = ("journal/a", "journal/b", "journal/c")
OPTIONS = JournalOptions(journal=JOURNAL, nodes=NODES, segment_txns=50)


class Machine:
    """Three nodes in this process, each with its own directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.network = LoopNetwork()
        self.defects: list[BaseException] = []
        self.tasks = Tasks(lambda name, error: self.defects.append(error))
        self.nodes: dict[str, JournalNode] = {}

    def world(self, address: str) -> World:
        disk = LmdbDisk(self.root / address.replace("/", "-"))
        return World(
            address=address,
            clock=MachineClock(),
            network=self.network,
            disk=disk,
            random=random.Random(1),
            spawn=self.tasks.spawn,
            fail=self.defects.append,
        )

    async def start(self, address: str) -> JournalNode:
        node = self.nodes[address] = JournalNode(self.world(address), JournalNodeOptions(sync_s=1000.0))
        await node.start()
        self.network.roles[address] = Dispatcher(node, lambda name, error: self.defects.append(error))
        return node

    async def stop(self, address: str) -> None:
        self.network.roles.pop(address, None)
        await self.nodes.pop(address).world.disk.close()

    async def end(self) -> None:
        self.tasks.cancel()
        for address in list(self.nodes):
            await self.stop(address)
        assert self.defects == []


def test_edits_in_lmdb_survive_restarts_and_a_node_catches_up(tmp_path: Path):
    async def scenario() -> None:
        machine = Machine(tmp_path)
        for node in NODES:
            await machine.start(node)
        outside = machine.world("outside")
        await format_journal(outside, OPTIONS)
        edits: list[bytes] = []
        for away in NODES:
            await machine.stop(away)
            writer = JournalWriter(outside, OPTIONS)
            await writer.open()
            await writer.begin()
            batch = [f"{away} {number}".encode() * 10 for number in range(100)]
            for edit in batch:
                await writer.append(edit)
            edits += batch
            writer.close()
            await machine.start(away)
        for node in NODES:
            await machine.stop(node)
            await machine.start(node)
        writer = JournalWriter(outside, OPTIONS)
        end = await writer.open()
        reader = JournalReader(outside, OPTIONS)
        page = await reader.read_all(reader.beginning())
        assert page.position == end and [edit for _, edit in page.edits] == edits
        writer.close()
        for node in machine.nodes.values():
            await node.sync.all()
        finals = [
            [s.state for s in node.journals["edits"].view.all() if s.finalized]
            for node in machine.nodes.values()
        ]
        assert finals[0] == finals[1] == finals[2] and finals[0][-1].end == end.txid
        await machine.end()

    asyncio.run(scenario())


def test_a_directory_is_opened_once_and_a_lost_journal_is_not_empty(tmp_path: Path):
    async def scenario() -> None:
        machine = Machine(tmp_path)
        for node in NODES:
            await machine.start(node)
        outside = machine.world("outside")
        await format_journal(outside, OPTIONS)
        with pytest.raises(DirectoryLocked):
            await JournalNode(machine.world(NODES[0])).start()
        await machine.stop(NODES[0])
        (tmp_path / "journal-a" / "journals" / "edits" / "data.mdb").unlink()
        node = await machine.start(NODES[0])
        with pytest.raises(Damaged):
            await node.manifest(m.ManifestRequest(JOURNAL))
        await machine.end()

    asyncio.run(scenario())
