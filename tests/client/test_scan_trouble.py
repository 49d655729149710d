"""Scans of the real roles when answers are lost, or when the table is dropped during the scan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

from ebla import aio, local_scan
from ebla.actors.errors import NotFound, OutcomeUnknown
from ebla.actors.messages import LocalSnapshot, ScanBlock
from ebla.chaos.simulation.environment import MemoryEnvironment
from ebla.errors import ScanInterrupted
from ebla.read import scan_run
from ebla.storage.errors import SnapshotExpired
from ebla.transport.client import DeploymentClient
from tests.client.loopback import Loopback
from tests.client.real_roles import Stage, on_real_roles
from tests.client.tables import arrow

ROWS = 24_000


@dataclass
class LosesLastBlocks:
    """A network on which the first answer with the last block of a scan is lost."""

    network: Any
    lost: list[ScanBlock] = field(default_factory=list)

    async def call(self, address: str, method: str, *arguments: Any) -> Any:
        reply = await self.network.call(address, method, *arguments)
        if method == "scan_more" and reply.scanner is None and not self.lost:
            self.lost.append(reply)
            raise OutcomeUnknown("the answer was lost", address=address)
        return reply


async def loaded(stage: Stage, width: int = 250) -> aio.Table:
    table = await stage.db.create_table("t", schema=arrow(1).schema, primary_key=["id"])
    await table.upsert(arrow(ROWS, width=width))
    return table


@on_real_roles
async def test_a_stream_whose_last_block_is_lost_is_complete(stage: Stage) -> None:
    await loaded(stage)
    world = stage.cluster.client_world("another")
    network = LosesLastBlocks(world.network)
    session = DeploymentClient(replace(world, network=network))
    table = await aio.Database(session).table("t")
    assert [row["id"] async for row in table.scan(columns=["id", "v"])] == list(range(ROWS))
    assert len(network.lost) == 1
    session.close()


async def read_slowly(table: aio.Table, pause_s: float) -> list[int]:
    """The ids, by a reader that is busy for `pause_s` after the first batch."""
    found: list[int] = []
    async for batch in table.scan(columns=["id", "v"]).batches():
        if not found:
            await asyncio.sleep(pause_s)
        found += batch.column("id").to_pylist()
    return found


@on_real_roles
async def test_the_snapshot_of_a_slow_reader_is_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_run, "SCAN_KEPT_S", 120.0)
    assert await read_slowly(await loaded(stage, width=1000), 100.0) == list(range(ROWS))


@on_real_roles
async def test_one_long_pause_does_not_end_the_keeping_of_later_snapshots(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_run, "SCAN_KEPT_S", 100.0)
    monkeypatch.setattr(scan_run, "SCAN_BLOCKS_AHEAD", 1)
    table = await loaded(stage, width=1000)
    found: list[int] = []
    async for batch in table.scan(columns=["id", "v"]).batches():
        if len(found) < 2 * batch.num_rows:
            await asyncio.sleep(110.0 if not found else 90.0)
        found += batch.column("id").to_pylist()
    assert found == list(range(ROWS))


@on_real_roles
async def test_a_reader_that_is_too_slow_is_told_how_long_a_snapshot_is_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_run, "SCAN_KEPT_S", 60.0)
    with pytest.raises(ScanInterrupted, match="come for the next rows within 60 s, or use to_arrow"):
        await read_slowly(await loaded(stage, width=1000), 150.0)


@pytest.mark.parametrize("seed", range(3))
@on_real_roles
async def test_a_table_dropped_during_its_scan_is_reported_and_never_a_short_result(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    async def late(self: MemoryEnvironment, work: Callable[..., Any], *arguments: Any) -> Any:
        """A result that reaches the loop some turns later, as from the thread of the real environment."""
        self.check()
        found = work(*arguments)
        await asyncio.sleep(0.03)
        return found

    async def read() -> int:
        return sum([1 async for _ in table])

    table = await loaded(stage)
    monkeypatch.setattr(MemoryEnvironment, "run", late)
    collected = asyncio.ensure_future(table.scan().to_arrow())
    streamed = asyncio.ensure_future(read())
    await stage.session.world.clock.sleep(0.04 + seed * 0.007)
    await stage.db.drop_table("t")
    for scan in (collected, streamed):
        with pytest.raises(NotFound, match="was dropped"):
            await scan


@on_real_roles
async def test_a_scan_of_a_table_that_was_dropped_before_it_began_says_so_at_once(stage: Stage) -> None:
    table = await loaded(stage)
    other = stage.client()
    await other.drop_table("t")
    await other._client.world.clock.sleep(10.0)  # its tablets have been deleted
    clock = stage.cluster.loop
    began = clock.time()
    with pytest.raises(NotFound, match="'t'"):
        await table.scan().to_arrow()
    assert clock.time() - began < 10.0
    other._client.close()


def test_a_scan_of_files_whose_snapshot_was_closed_says_how_soon_to_come_back(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed_early(found: LocalSnapshot) -> Iterator[pa.RecordBatch]:
        yield arrow(7)
        raise SnapshotExpired("it was closed")

    table = loopback.db.create_table("t", schema=arrow(1).schema, primary_key=["id"])
    read = local_scan.scan_tablet(table, 0)
    monkeypatch.setattr(read._scan, "read", closed_early)
    rows = read.rows(LocalSnapshot("t-0", "/nowhere", "here", 1))
    assert next(rows).num_rows == 7
    with pytest.raises(
        ScanInterrupted, match=r"closed after 7 of its rows .* come for the next rows within 600 s"
    ):
        next(rows)
