"""Old ledgers are deleted while a store is silent: no caller waits for it for long, and a worker finds what it keeps. A log that is
being dropped is a log no more."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ebla import aio
from ebla.actors.errors import NotFound
from ebla.actors.ledger.shared import paths
from ebla.log.options import LogFenced, LogSettings
from ebla.log.records import LogRecord
from tests.log.stage import MASTER, Stage, contents, play

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


def test_a_read_during_a_drop_does_not_end_as_if_it_were_complete() -> None:
    async def scenario(stage: Stage) -> None:
        log, db = await written(stage), stage.client()
        entries = log.read()
        for _ in range(30):
            await anext(entries)
        drop = asyncio.ensure_future(db.drop_log("events"))
        with pytest.raises(NotFound):
            async for _ in entries:
                await asyncio.sleep(0.001)
        await drop

    play(scenario, count=3)


@pytest.mark.parametrize("follow", [False, True])
def test_a_read_of_a_log_that_is_dropped_and_made_again_does_not_go_on_in_the_new_one(follow: bool) -> None:
    async def scenario(stage: Stage) -> None:
        log, db = await written(stage), stage.client()
        entries = log.read(follow=follow)
        for _ in range(30):
            await anext(entries)
        await db.drop_log("events")
        async with (await db.create_log("events")).writer() as writer:
            await writer.append_many([b"new"] * 200)
        with pytest.raises(NotFound, match="made again"):
            async for entry in entries:
                assert entry.data != b"new"

    play(scenario, count=3)


@pytest.mark.parametrize("at", ["after the first change", "while stores delete"])
def test_a_log_whose_drop_a_client_left_half_done_cannot_be_used_and_is_made_again_from_its_beginning(
    at: str,
) -> None:
    async def scenario(stage: Stage) -> None:
        dropping, db = stage.client(), stage.client()
        log = await db.create_log("events")
        writer = await log.writer("producer")
        await writer.append_once([b"old"] * 30, 0)
        points = {
            "after the first change": [(MASTER, "master.change_nodes.after_edit")],
            "while stores delete": [(address, "ledger.delete.before_commit") for address in stage.stores],
        }
        for address, point in points[at]:
            stage.points.arm(address, point, lambda: stage.crash(dropping))
        dropping._client.world.spawn(dropping.drop_log("events"), "drop")  # type: ignore[attr-defined]
        await asyncio.sleep(5.0)
        assert not stage.cluster.alive(dropping._client.world.address)  # type: ignore[attr-defined]
        for call in (db.log("events"), log.info(), log.trim(10), log.writer("producer"), anext(log.read())):
            with pytest.raises(NotFound, match=r"db.drop_log\('events'\) finishes it"):
                await call
        log = await db.create_log("events", roll_bytes=1000)
        with pytest.raises(LogFenced):
            await writer.append(b"old")
        async with log.writer("producer") as writer:
            assert (writer.sequence, await writer.append(b"new")) == (0, 0)
        assert await contents(log) == [b"new"]
        assert await db._logs.registry.list() == [
            each.ledger for each in (await db._logs.log("events")).ledgers
        ]

    play(scenario, count=3)


def test_a_log_that_is_made_while_two_clients_drop_the_one_before_stays() -> None:
    async def scenario(stage: Stage) -> None:
        await written(stage)
        drops = [asyncio.ensure_future(stage.client().drop_log("events")) for _ in range(2)]
        other, path = stage.client()._logs, f"{paths.LOGS}/events"
        while (found := await other.logs.get(path)) is not None and not found.dropped:
            pass
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            await writer.append(b"new")
        await asyncio.gather(*drops)
        assert await contents(log) == [b"new"]

    play(scenario, count=3)


def test_a_log_of_an_older_version_is_not_dropped() -> None:
    old = msgspec.msgpack.encode(msgspec.structs.astuple(LogRecord(LogSettings(), 1))[:-1])
    assert msgspec.msgpack.decode(old, type=LogRecord) == LogRecord(LogSettings(), 1)
