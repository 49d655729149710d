"""Records are deleted by age in counted time: no wall clock makes one old, and none keeps it."""

from __future__ import annotations

import asyncio

import pytest

from ebla import aio
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.counting import US, Counted, advanced
from ebla.log.options import LogSettings
from ebla.log.records import LogLedger, LogRecord, expired
from tests.log.stage import Stage, contents, play
from tests.sweeps import seeds

DAY_US = 86_400 * US
LATE_S = 31.0  # three steps of the counted time, and a second of rounding


def off_by(stage: Stage, days: int) -> aio.Database:
    """A client whose wall clock is wrong."""
    db = stage.client()
    stage.cluster.clock(db._client.world.address).wall_offset_us = days * DAY_US  # type: ignore[attr-defined]
    return db


async def append(db: aio.Database, *records: bytes) -> None:
    async with (await db.log("events")).writer() as writer:
        await writer.append_many(records)


@pytest.mark.parametrize("days", [-30, 30])
def test_a_writer_whose_wall_clock_is_wrong_deletes_no_record_and_keeps_none(days: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.count_time()
        log = await stage.client().create_log("events", retain_s=100.0)
        await append(stage.client(), b"fresh")
        await append(off_by(stage, days), b"by the wrong clock")
        await asyncio.sleep(80.0)
        await append(stage.client(), b"last")
        assert await contents(log) == [b"fresh", b"by the wrong clock", b"last"]
        await asyncio.sleep(100.0 + LATE_S)
        assert await contents(log) == [b"last"]

    play(scenario)


@pytest.mark.parametrize("days", [-30, 30])
def test_a_reader_whose_wall_clock_is_wrong_deletes_no_record_and_keeps_none(days: int) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.count_time()
        log = await stage.client().create_log("events", retain_s=100.0)
        await append(stage.client(), b"fresh")
        await append(stage.client(), b"last")
        wrong = await off_by(stage, days).log("events")
        assert await contents(wrong) == [b"fresh", b"last"]
        await asyncio.sleep(100.0 + LATE_S)
        assert await contents(wrong) == [b"last"]
        assert await contents(log) == [b"last"]

    play(scenario)


def test_a_reader_that_stood_still_deletes_nothing_of_a_log_that_was_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.count_time()
        db, other = stage.client(), stage.client()
        log = await db.create_log("events", retain_s=100.0)
        for record in (b"old", b"older"):
            await append(db, record)
        await asyncio.sleep(100.0 + LATE_S)
        counted = log._ledgers.counted
        least_s = counted.least_s

        async def late() -> float:
            found = await least_s()
            monkeypatch.setattr(counted, "least_s", least_s)
            await other.drop_log("events")
            await other.create_log("events", retain_s=100.0)
            for record in (b"new", b"newer"):
                await append(other, record)
            return found

        monkeypatch.setattr(counted, "least_s", late)
        await log._ledgers.retain("events")
        assert await contents(log) == [b"new", b"newer"]

    play(scenario)


@pytest.mark.parametrize("seed", seeds(2))
def test_records_stay_for_their_time_while_auditors_pause_and_die(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        loop, chance = asyncio.get_running_loop(), stage.cluster.loop.derive("auditors", str(seed))
        for number in (0, 1):
            await stage.count_time(number)
        log = await stage.client().create_log("events", retain_s=40.0)

        async def trouble() -> None:
            while True:
                address = f"auditor/{chance.randint(0, 1)}"
                if chance.random() < 0.5:
                    stage.cluster.pause(address)
                    await asyncio.sleep(chance.uniform(0.5, 30.0))
                    stage.cluster.resume(address)
                else:
                    stage.cluster.crash(address)
                    await asyncio.sleep(chance.uniform(0.5, 10.0))
                    await stage.count_time(int(address[-1]))
                await asyncio.sleep(chance.uniform(0.5, 20.0))

        troubled = asyncio.ensure_future(trouble())
        appended_s: list[float] = []  # by position
        for _ in range(30):
            appended_s.append(loop.time())
            await append(stage.client(), b"x")
            await asyncio.sleep(chance.uniform(0.0, 20.0))
            first = len(appended_s) - len(await contents(log))
            assert all(loop.time() - at_s >= 40.0 for at_s in appended_s[:first])
        troubled.cancel()
        assert first > 0

    play(scenario, seed=seed)


def test_a_deployment_whose_logs_keep_records_of_any_age_counts_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.count_time()
        db = stage.client()
        await db.create_log("events", retain_bytes=1_000)
        await append(db, b"one")
        await asyncio.sleep(60.0)
        assert await db._logs.session.nodes.get(paths.COUNTED, deadline_s=1.0) is None

    play(scenario)


def test_a_step_of_the_counted_time_is_bounded_by_what_was_told_before() -> None:
    known = advanced(Counted(), 500.0, 10.0)
    assert known == Counted(0, 20 * US), "what has passed before the first step is not known"
    assert advanced(known, 10.5, 10.0) == Counted(10_500_000, 30_500_000)
    assert advanced(known, 3600.0, 10.0) == Counted(20 * US, 40 * US), "a pause"


def test_a_ledger_without_a_time_is_as_old_as_the_next_one_with_a_time() -> None:
    wall_us = 1_700_000_000 * US
    older = tuple(LogLedger(number, 10 * number, wall_us) for number in (1, 2, 3))
    stamped = tuple(LogLedger(number, 10 * number, counted_s=50 + number) for number in (4, 5))
    of = LogRecord(LogSettings(retain_s=100.0), wall_us, older)
    assert expired(of, 1e9, {}) == 0, "nobody knows how old they are"
    of = LogRecord(LogSettings(retain_s=100.0), wall_us, older + stamped)
    assert expired(of, 154.0, {}) == 0
    assert expired(of, 154.5, {}) == 40
    assert expired(of, 1e9, {}) == 50, "the newest one stays"
