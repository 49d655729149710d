"""Old ledgers are deleted while a store is silent: no caller waits for it for long, and a worker finds what it keeps."""

from __future__ import annotations

import asyncio

import pytest

from ebla import aio
from tests.log.stage import Stage, contents, play

SILENT = "ledger-store/a"


async def written(stage: Stage, **settings: float) -> aio.Log:
    """A log of about twelve ledgers, by a client that reaches all stores."""
    log = await stage.client().create_log("events", roll_bytes=500, **settings)  # type: ignore[arg-type]
    async with log.writer() as writer:
        for number in range(100):
            await writer.append(b"record %d" % number * 10)
    assert (await log.info()).ledgers >= 10
    return await stage.client().log("events")


@pytest.mark.parametrize("drops", [False, True])
def test_a_trim_or_a_drop_of_many_ledgers_waits_once_and_shortly_for_a_silent_store(drops: bool) -> None:
    async def scenario(stage: Stage) -> None:
        log, db, loop = await written(stage), stage.client(), asyncio.get_running_loop()
        stage.cluster.network.isolate(SILENT)
        began = loop.time()
        await (db.drop_log("events") if drops else log.trim(90))
        assert loop.time() - began < 1.5
        kept = [] if drops else [each.ledger for each in (await db._logs.log("events")).ledgers]
        assert await db._logs.registry.list() == kept, "no metadata of the others are left"
        for address in stage.stores:
            lists = stage.role(address).ledgers()
            assert lists == kept or (address == SILENT and len(lists) > len(kept)), (
                "a worker deletes what is listed"
            )

    play(scenario, count=3)


def test_a_read_that_finds_old_records_hardly_waits_for_a_silent_store() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.count_time()
        log, loop = await written(stage, retain_s=100), asyncio.get_running_loop()
        await asyncio.sleep(200)
        stage.cluster.network.isolate(SILENT)
        began = loop.time()
        left = await contents(log)
        assert len(left) < 15 and loop.time() - began < 1.5

    play(scenario, count=3)
