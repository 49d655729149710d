"""Readers while one store of three is silent, and no other one can take its place: an ack quorum answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from random import Random
from typing import TypeVar

import pytest

from ebla.actors.errors import ConnectionClosed
from ebla.actors.ledger.handles.calls import Calls
from ebla.actors.ray_shell import MachineClock, Tasks
from ebla.actors.world import CallerWorld
from tests.ledger.stage import Process, Stage, play

T = TypeVar("T")
SILENT = "ledger-store/a"


async def timed(waited: Awaitable[T]) -> tuple[T, float]:
    """The result, and how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    return await waited, loop.time() - began


async def written(stage: Stage, count: int = 20) -> Process:
    """The writer's process; the silent store does not answer it either."""
    process = stage.process()
    writer = process.writer(stage.create())
    await asyncio.gather(*(writer.add(b"entry %d" % number) for number in range(count)))
    await asyncio.sleep(1.0)
    stage.cluster.network.isolate(SILENT)
    return process


def test_the_last_entry_is_known_once_the_answers_of_the_other_stores_are_enough() -> None:
    async def scenario(stage: Stage) -> None:
        await written(stage)
        found, reader = stage.registry.ledgers[1], stage.process().reader
        for _ in range(5):
            last, took_s = await timed(reader.last_entry(found))
            assert last == 19 and took_s < 0.1

    play(scenario, count=3, timeout_s=3.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_last_entry_is_known_soon_also_while_the_writer_adds_one_entry_after_the_other(seed: int) -> None:
    async def scenario(stage: Stage) -> None:
        process, found = stage.process(), stage.create()
        writer, acknowledged = process.writer(found), -1
        stage.cluster.network.isolate(SILENT)

        async def add() -> None:
            nonlocal acknowledged
            while True:
                number = await writer.add(b"x")
                acknowledged = max(acknowledged, number)

        adding = [asyncio.ensure_future(add()) for _ in range(8)]
        await asyncio.sleep(1.0)
        for _ in range(20):
            reader, before = stage.process().reader, acknowledged
            last, took_s = await timed(reader.last_entry(found))
            assert last >= before > 100 and took_s < 1.0
        for each in adding:
            each.cancel()

    play(scenario, seed, count=3, timeout_s=3.0)


def test_entries_are_read_from_another_store_soon_and_from_then_on_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        await written(stage)
        found, reader = stage.registry.ledgers[1], stage.process().reader
        for _ in range(3):  # the stores take turns
            read, took_s = await timed(reader.read(found, 0, 19))
            assert read and took_s < 0.5
        for first in range(10):
            read, took_s = await timed(reader.read(found, first, 19))
            assert len(read) == 20 - first and took_s < 0.1

    play(scenario, count=3, timeout_s=3.0)


def test_a_reader_that_waits_at_a_silent_store_gets_the_next_entry_from_another_one() -> None:
    async def scenario(stage: Stage) -> None:
        found, reader = stage.create(), stage.process().reader
        writer = stage.process().writer(found)
        await writer.add(b"one")
        stage.cluster.network.isolate(SILENT)
        waiting = asyncio.ensure_future(reader.next_lac(found, stage.uuids[SILENT], 0, 5.0))
        await asyncio.sleep(0.5)
        await writer.add(b"two")
        (store, lac), took_s = await timed(waiting)
        assert store != stage.uuids[SILENT] and lac == 1 and took_s < 1.0

    play(scenario, count=3, timeout_s=3.0)


def test_a_caller_gets_an_error_if_its_connection_closes_while_a_store_is_asked() -> None:
    async def scenario() -> None:
        tasks = Tasks(lambda *given: None)
        calls: Calls[str, int] = Calls(CallerWorld(MachineClock(), None, Random(1), tasks.spawn))
        calls.start("a", asyncio.sleep(60.0, 1))
        waiting = asyncio.ensure_future(calls.answers(math.inf))
        await asyncio.sleep(0)
        tasks.cancel()
        ((_, answer),) = await waiting
        assert isinstance(answer, ConnectionClosed)

    asyncio.run(scenario())
