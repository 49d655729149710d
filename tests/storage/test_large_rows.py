"""Reads are limited by bytes and by number of rows, for rows of any size, and miss no row."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ebla.actors.messages import ScanRequest
from ebla.actors.tablet.serving import scans
from ebla.actors.tablet.serving.scans import READ_BYTES, Scanner, digest, read_block
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.loop import SimulatedLoop
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.environment import JOINED_LARGE, Put
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.logs.entries import Position
from ebla.storage.predicates import expressions
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import TableSchema
from ebla.storage.tablets.row_tree import RowSnapshot
from ebla.storage.tablets.tablet_store import TabletSnapshot, TabletStore
from tests.storage.disks import given_by

TABLET = "0123456789abcdef0123456789abcdef"
SEED = checksum.seed(TABLET)
SCHEMA = TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("v", pa.binary())]), ["k"])
CODEC = RowCodec(SCHEMA)
PATH = "data/one"


def answers(disk: Any, items: list[tuple[bytes, bytes]], ask: Callable[[Any], Any]) -> Any:
    async def asking() -> Any:
        await disk.open_instance("one")
        environment = await disk.open_environment(PATH, ["t"], create=True)
        await environment.commit([Put("t", items, sorted_keys=True)])
        found = ask(environment)
        await disk.close()
        return found

    return asking()


def mixed(seed: int, sizes: list[int], count: int) -> list[tuple[bytes, bytes]]:
    """Runs of rows of similar size, as in a table that is ordered by kind."""
    chance = random.Random(seed)
    items: list[tuple[bytes, bytes]] = []
    while len(items) < count:
        size = chance.choice(sizes)
        for _ in range(chance.randint(1, 400)):
            items.append((b"%06d" % len(items), bytes(chance.randint(size // 2, size))))
    return items


@pytest.mark.parametrize("seed", range(6))
def test_reads_limited_by_bytes_are_equal_on_both_disks_and_miss_no_row(tmp_path: Path, seed: int) -> None:
    sizes = [[20], [20, 1000], [20, JOINED_LARGE - 6, JOINED_LARGE + 100], [9000], [10, 60_000], [1900, 2100]]
    items = mixed(seed, sizes[seed], (1500, 1500, 1500, 600, 250, 1500)[seed])

    def ask(environment: Any) -> list[Any]:
        found = []
        for bytes_max in (1, 10_000, 500_000, 1 << 30):
            for limit in (100, 700, 5000):
                at: bytes | None = b""
                rows: list[bytes] = []
                while at is not None:
                    found.append(environment.items("t", at, limit=limit, bytes_max=bytes_max))
                    some, at = environment.joined("t", at, limit=limit, bytes_max=bytes_max)
                    assert some and some == [key + value for key, value in found[-1]]
                    rows += some
                assert rows == [key + value for key, value in items]
        found.append(environment.items("t", b"000500", b"000900", bytes_max=5000))
        return found

    memory_loop = SimulatedLoop(1)
    real = asyncio.run(answers(LmdbDisk(tmp_path), items, ask))

    async def in_memory() -> Any:
        return await answers(MemoryDisk(DurableState(), random.Random(1)), items, ask)

    assert memory_loop.run_until_complete(in_memory()) == real
    memory_loop.close()


@pytest.mark.parametrize("small", [0, 1, 1000])
def test_a_read_of_large_rows_ends_within_a_row_of_its_limit(tmp_path: Path, small: int) -> None:
    """However many small rows came before."""
    items = [(b"%06d" % n, bytes(20 if n < small else 300_000)) for n in range(small + 60)]

    def ask(environment: Any) -> tuple[int, int]:
        rows, _ = environment.joined("t", limit=5000, bytes_max=2_000_000)
        found = environment.items("t", limit=5000, bytes_max=2_000_000)
        return sum(map(len, rows)), sum(len(key) + len(value) for key, value in found)

    for size in asyncio.run(answers(LmdbDisk(tmp_path), items, ask)):
        assert 2_000_000 <= size + 50_000 <= 2_400_000


# -- of a tablet ---------------------------------------------------------------------------------------------


def encode(k: int, size: int) -> tuple[bytes, bytes]:
    return CODEC.encode_row({"k": k, "v": b"x" * size}, SEED)


async def with_store(root: Path, scenario: Callable[[TabletStore], Awaitable[None]]) -> None:
    disk = LmdbDisk(root)
    await disk.open_instance("one")
    await scenario(await TabletStore.open(disk, TABLET, create=True))
    await disk.close()


on_store = given_by(lambda scenario, root: asyncio.run(with_store(root, scenario)), "tmp_path")


def fill(store: TabletStore, items: list[tuple[bytes, bytes]]) -> None:
    store.put([key for key, _ in items], [value for _, value in items])
    index = store.applied.index + 1
    store.applied = Position(index, 1, index)


class Measured(RowSnapshot):
    """A snapshot that records the size of each block."""

    def __init__(self, of: TabletSnapshot) -> None:
        assert isinstance(of, RowSnapshot)
        super().__init__(of.environment, of.base, of.tables, of.position, of.seed)
        self.sizes: list[int] = []
        self.counts: list[int] = []

    def block(self, *arguments: Any) -> tuple[list[bytes], bytes | None]:
        rows, following = super().block(*arguments)
        self.sizes.append(sum(map(len, rows)))
        self.counts.append(len(rows))
        return rows, following


def scanner(snapshot: Any, **options: Any) -> Scanner:
    request = ScanRequest(TABLET, SCHEMA.version, ("k", "v"), **options)
    predicate = None
    if request.predicate is not None:
        predicate = expressions.bind(expressions.decode(request.predicate), SCHEMA)
    start, left, used_at = b"", request.limit, 0.0
    limits = 8192, min(request.block_bytes, 16_000_000)
    place = start, left, used_at
    return Scanner("s", None, CODEC, request, snapshot, predicate, ["k", "v"], *place, *limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("flushed", [True, False])
@on_store
async def test_a_scan_of_large_rows_reads_no_more_than_its_blocks_need(
    store: TabletStore, flushed: bool
) -> None:
    """From the disk, and from memory."""
    fill(store, [encode(k, 256 << 10) for k in range(100)])
    if flushed:
        await store.flush()
    snapshot = store.snapshot()
    measured = Measured(snapshot)
    _, rows, following = read_block(scanner(measured, limit=1))
    assert (rows, following, measured.counts) == (1, None, [1])

    measured = Measured(snapshot)
    whole = scanner(measured)
    at: bytes | None = b""
    seen = 0
    while at is not None:
        whole.start = at
        data, rows, at = read_block(whole)
        seen += rows
        assert len(data) < 4_000_000
    assert seen == 100 and max(measured.sizes) <= READ_BYTES + (300 << 10)

    everything = scanner(Measured(snapshot), block_bytes=1 << 40)
    data, rows, at = read_block(everything)
    assert len(data) < 20_000_000 and at is not None, "also if the caller wants larger blocks"

    measured = Measured(snapshot)
    assert digest(measured, lambda: False)[0] == 100
    assert max(measured.sizes) <= READ_BYTES + (300 << 10)
    snapshot.close()


@on_store
async def test_a_block_of_a_scan_without_matches_reads_limited_bytes(
    store: TabletStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "READS_PER_BLOCK_MAX", 4)
    fill(store, [encode(k, 256 << 10) for k in range(60)])
    await store.flush()
    snapshot = store.snapshot()
    measured = Measured(snapshot)
    nothing = expressions.encode(expressions.bind(expressions.col("k") < -1, SCHEMA))
    _, rows, following = read_block(scanner(measured, predicate=nothing))
    assert rows == 0 and following is not None and sum(measured.sizes) < 10_000_000
    snapshot.close()


@pytest.mark.parametrize("seed", range(4))
@on_store
async def test_blocks_of_a_snapshot_give_every_row_once_with_any_limits(
    store: TabletStore, seed: int
) -> None:
    """The snapshot has rows on the disk, and newer rows and deletions in two memtables."""
    chance = random.Random(seed)
    model: dict[bytes, bytes] = {}
    for turn in range(3):
        items = [
            encode(k, chance.choice([5, 5, 50, 3000, 30_000])) for k in sorted(chance.sample(range(600), 250))
        ]
        fill(store, items)
        model.update(items)
        gone = [encode(k, 0)[0] for k in chance.sample(range(600), 60)]
        store.delete(gone)
        for key in gone:
            model.pop(key, None)
        if turn == 0:
            await store.flush()
        else:
            store.snapshot().close()  # freezes the active memtable
    snapshot = store.snapshot()
    assert len(snapshot.tables) == 2
    wanted = [key + model[key] for key in sorted(model)]
    for limit in (1, 7, 300, 5000):
        for bytes_max in (1, 40_000, 1 << 30):
            at: bytes | None = b""
            rows: list[bytes] = []
            while at is not None:
                some, at = snapshot.block(at, None, limit, bytes_max)
                rows += some
                assert sum(map(len, some)) < 3 * (bytes_max + 31_000), "three sources"
            assert rows == wanted, (limit, bytes_max)
    snapshot.close()
