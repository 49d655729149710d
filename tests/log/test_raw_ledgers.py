"""Ledgers without a log: written, recovered, read, listed and deleted by users."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import NotFound, TimedOut
from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced, RecoveryFailed
from ebla.log.ledgers import Ledger
from ebla.storage.errors import InvalidArgument, OverLimit
from tests.log.stage import Stage, play


def data(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]


def test_a_ledger_is_written_closed_read_and_deleted() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        async with db.create_ledger(ensemble=4) as writer:
            assert writer.last_confirmed == -1
            assert await writer.add(b"entry 0") == 0
            assert await writer.add_many(data(2500)[1:]) == range(1, 2500)
            assert await writer.add_many([]) == range(0)
            assert writer.last_confirmed == 2499
            open_info = (await db.ledgers())[0]
            assert (open_info.state, open_info.last, open_info.ensemble) == ("open", None, 4)
        with pytest.raises(LedgerClosed):
            await writer.add(b"late")
        info = await writer.close()
        assert (info.state, info.last, info.length) == ("closed", 2499, sum(map(len, data(2500))))
        ledger = await stage.client().open_ledger(writer.ledger)
        assert [entry.data async for entry in ledger.read()] == data(2500)
        assert [entry.entry async for entry in ledger.read(7, 9)] == [7, 8, 9]
        with pytest.raises(InvalidArgument, match=r"last acknowledged entry of ledger \d+ is 2499"):
            [entry async for entry in ledger.read(0, 2500)]
        await db.delete_ledger(writer.ledger)
        assert await db.ledgers() == []
        with pytest.raises(NotFound, match="there is no ledger"):
            await db.open_ledger(writer.ledger)

    play(scenario)


def test_an_opening_with_recovery_fences_the_writer_and_one_without_does_not() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        writer = await db.create_ledger()
        await writer.add_many(data(10))
        beside = await stage.client().open_ledger(writer.ledger, recover=False)
        assert await beside.last_confirmed() == 9
        await writer.add(b"entry 10")
        assert [entry.data async for entry in beside.read()] == data(11)
        ended = await stage.client().open_ledger(writer.ledger)
        assert (await ended.info()).last == 10
        with pytest.raises(LedgerFenced):
            await writer.add(b"late")
        with pytest.raises(LedgerFenced):
            await writer.close()
        assert [entry.data async for entry in ended.read()] == data(11)

    play(scenario)


def test_a_ledger_that_is_deleted_during_its_recovery_is_not_found() -> None:
    async def scenario(stage: Stage) -> None:
        db, other = stage.client(), stage.client()
        outcomes = set()
        for step in range(20):
            writer = await db.create_ledger()
            await writer.add_many(data(10))
            opening = asyncio.ensure_future(other.open_ledger(writer.ledger))
            await asyncio.sleep(0.003 * step)
            await db.delete_ledger(writer.ledger)
            (outcome,) = await asyncio.gather(opening, return_exceptions=True)
            outcomes.add(type(outcome))
        assert outcomes == {Ledger, NotFound}

    play(scenario)


def test_a_writer_that_dies_leaves_its_acknowledged_entries() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        writer = await db.create_ledger()
        for each in data(20):
            await writer.add(each)
        stage.crash(db)
        ledger = await stage.client().open_ledger(writer.ledger)
        assert [entry.data async for entry in ledger.read()] == data(20)

    play(scenario)


def test_a_writer_whose_stores_take_nothing_waits_and_is_closed_by_a_recovery() -> None:
    async def scenario(stage: Stage) -> None:
        writer = await stage.client().create_ledger()
        await writer.add(b"entry 0")
        for store in stage.stores:
            stage.cluster.network.isolate(store)
        with pytest.raises(TimedOut, match="they may be in the ledger"):
            await writer.add_many([b"entry 1", b"entry 2"], deadline_s=1.0)
        with pytest.raises(RecoveryFailed):
            await writer.close()
        for store in stage.stores:
            stage.cluster.network.rejoin(store)
        info = await writer.close()
        assert info.state == "closed" and info.last in (0, 1, 2)

    play(scenario)


def test_ledgers_of_logs_are_left_alone_and_mistakes_are_named() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        log = await db.create_log("events")
        writer = await log.writer()
        await writer.append(b"x")
        (info,) = await db.ledgers()
        assert info.log == "events"
        with pytest.raises(InvalidArgument, match="is a part of log 'events', and is not recovered"):
            await db.open_ledger(info.ledger)
        with pytest.raises(InvalidArgument, match="is deleted with its records"):
            await db.delete_ledger(info.ledger)
        beside = await db.open_ledger(info.ledger, recover=False)
        assert await beside.last_confirmed() == 0
        await writer.append(b"y")
        with pytest.raises(InvalidArgument, match="ensemble >= write_quorum"):
            await db.create_ledger(ensemble=2)
        own = await db.create_ledger()
        with pytest.raises(InvalidArgument, match="an entry of a ledger is bytes, not 'text'"):
            await own.add("text")  # type: ignore[arg-type]
        with pytest.raises(OverLimit, match="8,388,608 bytes at most"):
            await own.add(bytes(9 << 20))

    play(scenario)
