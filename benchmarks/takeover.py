"""Measures how long a master takes over with a large catalog, and the memory of the catalog.

    python -m benchmarks.takeover 100000

In a process of its own, the real master and journal nodes run in virtual time, so that their work is measured without a
network. A first master makes the checkpoint; a second one starts from it with empty memory, takes over and serves.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time

import msgspec
import psutil

from benchmarks.masters import Takeover
from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.catalog import RUNNING, Catalog
from ebla.actors.master.catalog.checkpoint import Checkpoints
from ebla.actors.master.catalog.directory import open_directory
from ebla.actors.master.catalog.records import (
    CatalogImage,
    TableRecord,
    TabletRecord,
    decode_image,
    encode_image,
)
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import GroupOptions
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.world import Role, World
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.schema import Column, Hash, Partitioning, TableSchema

MASTER, NODES = "master/0", ("journal/0", "journal/1", "journal/2")
JOURNAL = JournalOptions(journal=JournalId("catalog", "bench"), nodes=NODES)
OPTIONS = GroupOptions(masters=(MASTER,), journal=JOURNAL)
SERVERS, PER_TABLE = 100, 100


def image(tablets: int) -> CatalogImage:
    """A catalog of running tables with 100 tablets each, and three replicas per tablet, on a hundred servers."""
    columns = (Column("k", "binary", nullable=False), Column("v", "binary"))
    schema = TableSchema(columns, ("k",), Partitioning(hash=Hash(("k",), PER_TABLE)))
    peers = [Peer(f"{number:032x}", f"tablet-server/host-{number}") for number in range(SERVERS)]
    tables, records = [], []
    for number in range(tablets // PER_TABLE):
        table = f"{number:032x}"
        names = tuple(f"{number * PER_TABLE + bucket:032x}" for bucket in range(PER_TABLE))
        tables.append(TableRecord(table, f"table-{number}", RUNNING, schema, 3, "raft", {}, 0, names))
        for bucket, tablet in enumerate(names):
            chosen = tuple(peers[(number + bucket + turn) % SERVERS] for turn in range(3))
            records.append(TabletRecord(tablet, table, bucket, RUNNING, Configuration(chosen, 7)))
    return CatalogImage(tuple(tables), tuple(records), ())


class Preparer(Role):
    """Leaves a checkpoint of the whole catalog behind, as a master's last incarnation does."""

    def __init__(self, world: World, made: CatalogImage, txid: int) -> None:
        self.world, self.made, self.txid = world, made, txid

    async def start(self) -> None:
        directory = await open_directory(self.world)
        await Checkpoints(directory.environment).save(self.txid, self.made)


async def measured(tablets: int) -> Takeover:
    cluster = SimulatedCluster()
    outside = cluster.client_world("outside")
    for node in NODES:
        await cluster.start(node, lambda world: JournalNode(world, JournalNodeOptions()))
    await format_journal(outside, JOURNAL)
    made = image(tablets)
    writer = JournalWriter(outside, JOURNAL)
    await writer.open()
    await writer.begin()
    txid = await writer.append(e.encode([e.TabletsForgotten(())]))
    writer.close()
    await cluster.start(MASTER, lambda world: Preparer(world, made, txid))
    await cluster.stop(MASTER)
    began = time.perf_counter()
    master = await cluster.start(MASTER, lambda world: Master(world, OPTIONS))
    assert isinstance(master, Master)
    while master.active_term is None or not master.active_term.serves():
        await asyncio.sleep(0.01)
    served_s = time.perf_counter() - began
    assert len(master.active_term.master.catalog.tablets) == tablets
    data = encode_image(made)
    load_s, memory_mb = msgspec.json.decode(_in_a_process_of_its_own("load", data), type=tuple[float, float])
    return Takeover(tablets, load_s, served_s, memory_mb, len(data) / 2**20)


def load() -> tuple[float, float]:
    """Seconds and megabytes to decode a checkpoint (standard input) into a checked catalog."""
    data = sys.stdin.buffer.read()
    before, began = psutil.Process().memory_info().rss, time.perf_counter()
    catalog = Catalog()
    catalog.load(decode_image(data))
    seconds = time.perf_counter() - began
    gc.collect()
    return seconds, (psutil.Process().memory_info().rss - before) / 2**20


def _in_a_process_of_its_own(word: str, data: bytes) -> bytes:
    words = [sys.executable, "-m", "benchmarks.takeover", word]
    return subprocess.run(words, input=data, capture_output=True, check=True).stdout


if __name__ == "__main__":
    found = load() if sys.argv[1] == "load" else run(measured(int(sys.argv[1])), 0)
    print(msgspec.json.encode(found).decode())
