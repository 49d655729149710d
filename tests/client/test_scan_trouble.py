"""Scans by a client of the real roles, when answers are lost or the table is dropped half-way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ebla import aio
from ebla.actors.errors import NotFound, OutcomeUnknown
from ebla.actors.messages import ScanBlock
from ebla.chaos.simulation.environment import MemoryEnvironment
from ebla.transport.client import DeploymentClient
from tests.client.tables import arrow
from tests.client.test_real_roles import Stage, simulate
from tests.client.toy import client_world

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


async def loaded(stage: Stage) -> aio.Table:
    table = await stage.db.create_table("t", schema=arrow(1).schema, primary_key=["id"])
    await table.upsert(arrow(ROWS, width=250))
    return table


def test_a_stream_whose_last_block_is_lost_on_the_way_is_complete_nevertheless() -> None:
    async def scenario(stage: Stage) -> None:
        await loaded(stage)
        world = client_world(stage.cluster, "another")
        network = LosesLastBlocks(world.network)
        session = DeploymentClient(replace(world, network=network))
        table = await aio.Database(session).table("t")
        assert [row["id"] async for row in table.scan(columns=["id", "v"])] == list(range(ROWS))
        assert len(network.lost) == 1
        session.close()

    simulate(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_table_dropped_during_its_scan_is_reported_and_never_a_short_result(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """In the real environment work runs on a thread; its result reaches the loop some turns later."""

    async def late(self: MemoryEnvironment, work: Callable[..., Any], *arguments: Any) -> Any:
        self.check()
        found = work(*arguments)
        await asyncio.sleep(0.03)
        return found

    async def scenario(stage: Stage) -> None:
        table = await loaded(stage)
        monkeypatch.setattr(MemoryEnvironment, "run", late)
        collected = asyncio.ensure_future(table.scan().to_arrow())
        streamed = asyncio.ensure_future(read(table))
        await stage.session.world.clock.sleep(0.04 + seed * 0.007)
        await stage.db.drop_table("t")
        with pytest.raises(NotFound, match="was dropped"):
            await collected
        with pytest.raises(NotFound, match="was dropped"):
            await streamed

    async def read(table: aio.Table) -> int:
        return sum([1 async for _ in table])

    simulate(scenario, seed)


def test_a_scan_of_a_table_that_was_dropped_before_it_began_says_so_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        table = await loaded(stage)
        other = aio.Database(DeploymentClient(client_world(stage.cluster, "another")))
        await other.drop_table("t")
        await other._client.world.clock.sleep(10.0)  # its tablets have been deleted
        clock = stage.cluster.loop
        began = clock.time()
        with pytest.raises(NotFound, match="'t'"):
            await table.scan().to_arrow()
        assert clock.time() - began < 10.0
        other._client.close()

    simulate(scenario)
