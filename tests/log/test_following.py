"""Readers that follow a log see a record soon after it is acknowledged, also when its ledger ends."""

from __future__ import annotations

import asyncio

import pytest

from ebla import aio
from tests.log.stage import Stage, play


class Follower:
    """Reads a log, and measures how late it sees each record."""

    def __init__(self, log: aio.Log) -> None:
        self.seen: dict[int, float] = {}
        self._log = log
        self.task = asyncio.ensure_future(self._follow())

    async def _follow(self) -> None:
        async for entry in self._log.read(0, follow=True):
            self.seen[entry.position] = asyncio.get_running_loop().time()

    async def latest(self, appended: dict[int, float]) -> float:
        """The greatest delay of these records."""
        while len(self.seen) < len(appended):
            await asyncio.sleep(0.1)
        return max(self.seen[position] - at for position, at in appended.items())


@pytest.mark.parametrize("pause_s", [0.05, 2.0])
def test_a_reader_that_follows_goes_on_at_once_when_the_writer_begins_another_ledger(pause_s: float) -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", roll_bytes=5_000)
        follower = Follower(await stage.client().log("events"))
        appended = {}
        async with log.writer() as writer:
            for _ in range(50):
                position = await writer.append(b"x" * 1000)
                appended[position] = asyncio.get_running_loop().time()
                await asyncio.sleep(pause_s)
        assert (await log.info()).ledgers >= 8
        assert await follower.latest(appended) < 0.5
        follower.task.cancel()

    play(scenario)


def test_a_reader_that_follows_goes_on_soon_when_another_writer_ends_the_ledger() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client().create_log("events")
        follower = Follower(await stage.client().log("events"))
        appended = {}
        for number in range(5):
            writer = await (await stage.client().log("events")).writer()  # and fences the one before
            position = await writer.append(b"record")
            appended[position] = asyncio.get_running_loop().time()
            await asyncio.sleep(2.3 + number / 7)
        assert await follower.latest(appended) < 1.5
        follower.task.cancel()

    play(scenario)
