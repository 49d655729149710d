"""Measures how long a master takes over with a large catalog, and the memory of the catalog.

    python -m benchmarks.takeover 100000

In a process of its own, the real master and journal nodes run in virtual time, so that their work is measured without a
network. A first master makes the checkpoint; a second one starts from it with empty memory, takes over and serves.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import psutil

from benchmarks.figures import in_another_process
from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions, JournalOptions
from ebla.actors.journal.writer.session import format_journal
from ebla.actors.journal.writer.writer import JournalWriter
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.checkpoint import Checkpoints
from ebla.actors.master.catalog.directory import open_directory
from ebla.actors.master.catalog.records import (
    RUNNING,
    CatalogImage,
    TableRecord,
    TabletRecord,
    decode_image,
    encode_image,
)
from ebla.actors.master.leadership.group import Master
from ebla.actors.master.options import GroupOptions
from ebla.actors.replication.configuration import RAFT, Configuration, Peer
from ebla.actors.world import Role, World
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.world import SimulatedCluster
from ebla.storage.schema import Column, Hash, Partitioning, TableSchema

MASTER, NODES = "master/0", ("journal/0", "journal/1", "journal/2")
JOURNAL = JournalOptions(journal=JournalId("catalog", "bench"), nodes=NODES)
OPTIONS = GroupOptions(masters=(MASTER,), journal=JOURNAL)
SERVERS, PER_TABLE = 100, 100
PEERS = [Peer(f"{number:032x}", f"tablet-server/host-{number}") for number in range(SERVERS)]


class Takeover(msgspec.Struct, frozen=True):
    tablets: int
    load_s: float
    serve_s: float
    catalog_mb: float
    checkpoint_mb: float


def spread(table: int, bucket: int) -> tuple[Peer, ...]:
    """Three of a hundred servers for a tablet."""
    return tuple(PEERS[(table + bucket + turn) % SERVERS] for turn in range(3))


def image(
    tablets: int, members: Callable[[int, int], Configuration], replication: str, least: int = 0
) -> CatalogImage:
    """A catalog of running tables with 100 tablets each. `members`: of a tablet, by the numbers of its table and its bucket."""
    columns = (Column("k", "binary", nullable=False), Column("v", "binary"))
    schema = TableSchema(columns, ("k",), Partitioning(hash=Hash(("k",), PER_TABLE)))
    tables, records = [], []
    for number in range(tablets // PER_TABLE):
        table = f"{number:032x}"
        names = tuple(f"{number * PER_TABLE + bucket:032x}" for bucket in range(PER_TABLE))
        record = TableRecord(
            table, f"table-{number}", RUNNING, schema, 3, replication, {}, 0, names, min_members=least
        )
        tables.append(record)
        for bucket, tablet in enumerate(names):
            records.append(TabletRecord(tablet, table, bucket, RUNNING, members(number, bucket)))
    return CatalogImage(tuple(tables), tuple(records), ())


class Preparer(Role):
    """Leaves a checkpoint of the whole catalog behind, as a master's last incarnation does."""

    def __init__(self, world: World, made: CatalogImage, txid: int) -> None:
        self.world, self.made, self.txid = world, made, txid

    async def start(self) -> None:
        directory = await open_directory(self.world)
        await Checkpoints(directory.environment).save(self.txid, self.made)


async def first_edit(world: World) -> int:
    """Format the journal, and write an edit that changes nothing; its number."""
    await format_journal(world, JOURNAL)
    writer = JournalWriter(world, JOURNAL)
    await writer.open()
    await writer.begin()
    txid = await writer.append(e.encode([e.TabletsForgotten(())]))
    writer.close()
    return txid


async def simulated(masters: Sequence[str], made: CatalogImage) -> SimulatedCluster:
    """A cluster with journal nodes, and the catalog in the directory of each master."""
    cluster = SimulatedCluster()
    for node in NODES:
        await cluster.start(node, lambda world: JournalNode(world, JournalNodeOptions()))
    txid = await first_edit(cluster.client_world("outside"))
    for address in masters:
        await cluster.start(address, lambda world: Preparer(world, made, txid))
        await cluster.stop(address)
    return cluster


def serves(master: Master) -> bool:
    return master.active_term is not None and master.active_term.serves()


async def measured(tablets: int) -> Takeover:
    made = image(tablets, lambda table, bucket: Configuration(spread(table, bucket), 7), RAFT)
    cluster = await simulated([MASTER], made)
    began = time.perf_counter()
    master = await cluster.start(MASTER, lambda world: Master(world, OPTIONS))
    assert isinstance(master, Master)
    while not serves(master):
        await asyncio.sleep(0.01)
    served_s = time.perf_counter() - began
    assert master.active_term is not None
    assert len(master.active_term.master.catalog.tablets) == tablets
    data = encode_image(made)
    load_s, memory_mb = in_another_process("takeover", tuple[float, float], "load", given=data)
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


def takeover(tablets: int = 100_000) -> Takeover:
    return in_another_process("takeover", Takeover, str(tablets))


if __name__ == "__main__":
    found = load() if sys.argv[1] == "load" else run(measured(int(sys.argv[1])), 0)
    print(msgspec.json.encode(found).decode())
