"""A writer that begins a ledger dies, or loses its session, before or after a change of the namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ebla import aio
from ebla.actors.coordination.errors import LimitReached
from ebla.actors.coordination.limits import Limits
from ebla.actors.errors import NotFound
from ebla.actors.ledger.errors import NotEnoughStores
from ebla.actors.ledger.shared.kept import KeptRegistry
from ebla.actors.ledger.shared.records import DEADLINE_S, SESSION_S
from ebla.log.appender import ROLL_AGAIN_S
from tests.log.stage import MASTER, Stage, contents, play

CHANGES_MAX = 6  # of the namespace, in an opening and the deletions after it


def _at_change(stage: Stage, number: int, side: str, act: Callable[[], None]) -> None:
    """Act before or after this change of the namespace from now on, counted from 0."""

    def passed() -> None:
        if number:
            _at_change(stage, number - 1, side, act)
        else:
            act()

    stage.points.arm(MASTER, f"master.change_nodes.{side}_edit", passed)


async def _begun(stage: Stage, *data: bytes) -> None:
    """A writer that dies with an open ledger."""
    db = stage.client()
    writer = await (await db.log("events")).writer()
    for each in data:
        await writer.append(each)
    stage.crash(db)


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("data", [(), (b"one",)], ids=["after an empty ledger", "after one with a record"])
def test_a_client_that_dies_while_it_opens_a_log_leaves_no_ledger_that_the_log_does_not_name(
    side: str, data: tuple[bytes, ...]
) -> None:
    async def dies(stage: Stage, log: aio.Log, number: int) -> None:
        await _begun(stage, *data)
        opening = stage.client()
        _at_change(stage, number, side, lambda: stage.crash(opening))

        async def open_log() -> None:
            await (await opening.log("events")).writer()

        opening._client.world.spawn(open_log(), "open the log")  # type: ignore[attr-defined]
        await asyncio.sleep(2.0)
        stage.points.disarm_all()
        stage.crash(opening)
        found = await log._ledgers.log("events")
        named = [*found.deleting, *(each.ledger for each in found.ledgers)]
        assert set(await log._ledgers.registry.list()) <= set(named)

    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        for number in range(CHANGES_MAX):
            await dies(stage, log, number)
        async with log.writer() as writer:
            await writer.append(b"last")
        await asyncio.sleep(1.0)
        found = await log._ledgers.log("events")
        assert await log._ledgers.registry.list() == [each.ledger for each in found.ledgers]
        assert await contents(log) == [*data * CHANGES_MAX, b"last"]

    play(scenario)


def test_a_writer_whose_session_expires_before_it_knows_that_its_next_ledger_is_made_goes_on_in_it() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        log = await db.create_log("events", roll_bytes=100)
        async with log.writer() as writer:
            await writer.append(bytes(100))
            _at_change(stage, 1, "after", lambda: stage.cut(db, MASTER))  # the first one closes the ledger
            rolling = asyncio.ensure_future(writer.append(b"next"))
            await asyncio.sleep(1.5 * SESSION_S)
            stage.cluster.network.heal()
            assert await rolling == 1
        assert (await log.info()).ledgers == len(await log._ledgers.registry.list()) == 2

    play(scenario)


def test_a_log_that_is_being_dropped_cannot_be_opened_and_leaves_no_ledger() -> None:
    async def scenario(stage: Stage) -> None:
        dropping, opening = stage.client(), stage.client()
        log = await dropping.create_log("events")
        other = await opening.log("events")

        def hold() -> None:
            """The drop waits after its first change."""
            stage.cut(dropping, MASTER)

        async with log.writer() as writer:
            await writer.append(b"x")
        _at_change(stage, 0, "after", hold)
        drop = asyncio.ensure_future(dropping.drop_log("events"))
        await asyncio.sleep(2.0)
        with pytest.raises(NotFound, match="is being deleted"):
            await other.writer()
        stage.cluster.network.heal()
        await drop
        assert await opening.logs() == []
        assert await opening._logs.registry.list() == []

    play(scenario)


def test_a_writer_without_enough_stores_for_a_further_ledger_goes_on_in_its_ledger_and_rolls_later() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", roll_bytes=500)
        async with log.writer() as writer:
            await writer.append(bytes(100))
            stage.cluster.crash(stage.stores[0])
            await asyncio.sleep(SESSION_S)
            for number in range(1, 30):
                assert await writer.append(bytes(100)) == number
            assert (await log.info()).ledgers == 1
            await stage.cluster.restart(stage.stores[0])
            await asyncio.sleep(ROLL_AGAIN_S)
            for _ in range(10):
                await writer.append(bytes(100))
                await asyncio.sleep(1.0)
        assert (await log.info()).ledgers >= 2
        assert await contents(log) == [bytes(100)] * 40

    play(scenario, count=3)


def test_a_writer_goes_on_if_another_one_cannot_open_the_log_for_want_of_stores() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            stage.cluster.crash(stage.stores[0])
            await asyncio.sleep(1.5 * SESSION_S)
            with pytest.raises(NotEnoughStores):
                await (await stage.client().log("events")).writer()
            assert await writer.append(b"goes on") == 0

    play(scenario, count=3)


def test_a_writer_without_room_in_the_namespace_goes_on_in_its_ledger_and_is_not_fenced() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", roll_bytes=100)
        async with log.writer() as writer:
            for number in range(40):
                assert await writer.append(bytes(100)) == number
            with pytest.raises(LimitReached, match="children_max"):
                await (await stage.client().log("events")).writer()
            assert await writer.append(bytes(100)) == 40
            assert (await log.info()).ledgers == 4
            await log.trim(40)
            await asyncio.sleep(ROLL_AGAIN_S)
            for _ in range(3):
                await writer.append(bytes(100))
                await asyncio.sleep(0.1)
        newest = (await log._ledgers.log("events")).ledgers[-1]
        assert newest.first > 40, "it has rolled again"

    play(scenario, limits=Limits(children_max=4))


def test_a_writer_that_finds_no_room_after_it_has_closed_its_ledger_waits_for_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unseen(*_: object) -> None:
        """Another client takes the room in between."""

    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", roll_bytes=100)
        writer = await log.writer()
        monkeypatch.setattr(KeptRegistry, "require_room", unseen)

        async def append() -> list[int]:
            return [await writer.append(bytes(100), deadline_s=60.0) for _ in range(40)]

        appended = asyncio.ensure_future(append())
        await asyncio.sleep(5.0)
        assert not appended.done()
        while not appended.done():
            await log.trim((await log.info()).end)
            await asyncio.sleep(1.0)
        assert await appended == list(range(40))

    play(scenario, limits=Limits(children_max=4))


@pytest.mark.parametrize("number", [None, 0, 1])
def test_a_writer_rolls_after_the_masters_have_returned(number: int | None) -> None:
    """They end before the roll, or after one of its two changes, whose answer is lost."""

    async def scenario(stage: Stage) -> None:
        db = stage.client()
        log = await db.create_log("events", roll_bytes=500)

        def end() -> None:
            stage.cluster.crash(MASTER)

        async with log.writer("producer") as writer:
            if number is None:
                await writer.append(bytes(100))
                end()
                for _ in range(9):
                    await writer.append(bytes(100))
            else:
                _at_change(stage, number, "after", end)
            appends = [asyncio.ensure_future(writer.append(bytes(100), deadline_s=1000.0)) for _ in range(9)]
            while stage.cluster.alive(MASTER):
                await asyncio.sleep(0.1)
                appends.append(asyncio.ensure_future(writer.append(bytes(100), deadline_s=1000.0)))
            await asyncio.sleep(2.5 * DEADLINE_S)
            await stage.cluster.restart(MASTER)
            await asyncio.gather(*appends)
            await asyncio.sleep(ROLL_AGAIN_S)
            for _ in range(10):
                await writer.append(bytes(100))
                await asyncio.sleep(0.1)
            count = writer.sequence
        found = await log._ledgers.log("events")
        assert len(found.ledgers) >= 2
        assert await log._ledgers.registry.list() == [each.ledger for each in found.ledgers]
        assert await contents(log) == [bytes(100)] * count

    play(scenario)
