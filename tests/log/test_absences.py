"""Masters and stores that are away for a while, or for good: writers and readers of logs go on."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import NotFound
from ebla.actors.ledger.auditor.auditor import Auditor
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.ledger.worker.worker import ReplicationWorker
from tests.log.stage import MASTER, Stage, contents, play

LONG_S = 300.0


def test_a_writer_goes_on_with_two_of_three_stores_while_no_other_store_can_take_the_place_of_the_third() -> (
    None
):
    """A repair that closed the ledger would leave too few stores for the next one."""

    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        writer = await log.writer()
        for host in "abc":
            options = WorkerOptions(store=f"ledger-store/{host}")
            await stage.cluster.start(
                f"replication-worker/{host}", lambda world, options=options: ReplicationWorker(world, options)
            )
        await stage.cluster.start("auditor/0", lambda world: Auditor(world, AuditorOptions()))
        await writer.append(b"before")
        stage.cluster.crash(stage.stores[2])
        for _ in range(20):
            await asyncio.sleep(LONG_S / 20)
            await writer.append(b"after", deadline_s=20)
        assert await contents(log) == [b"before", *[b"after"] * 20]

    play(scenario, count=3)


def test_a_store_that_fails_while_it_joins_and_returns_is_one_of_the_ledgers_stores() -> None:
    """All three stores of the ledger must have an entry, and there is no other store to join."""

    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", ensemble=3, write_quorum=3, ack_quorum=3)
        writer = await log.writer()
        await writer.append(b"first")
        ledger = writer._appender._writer
        addresses = {stage.role(address).instance.uuid: address for address in stage.stores}
        used = ledger.metadata.segments[-1].stores
        (spare,) = (address for uuid, address in addresses.items() if uuid not in used)
        stage.cluster.crash(addresses[used[0]])
        appended = asyncio.ensure_future(writer.append(b"second", deadline_s=LONG_S))
        while not ledger._joining:
            await asyncio.sleep(0.0005)
        stage.cluster.crash(spare)
        await asyncio.sleep(12)
        await stage.cluster.restart(spare)
        assert await appended == 1
        while ledger._joining:
            await asyncio.sleep(0.1)
        assert await contents(log) == [b"first", b"second"]

    play(scenario, count=4)


def test_a_reader_that_follows_waits_for_masters_that_are_away() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        writer = await log.writer()
        await writer.append(b"first")
        other = await stage.client().log("events")
        entries = other.read(follow=True)
        assert (await anext(entries)).data == b"first"
        following = asyncio.ensure_future(anext(entries))
        await asyncio.sleep(10)
        stage.cluster.crash(MASTER)
        await asyncio.sleep(LONG_S)
        await writer.append(b"second")
        await stage.cluster.restart(MASTER)
        assert (await following).data == b"second"

    play(scenario, count=3)


def test_a_client_stays_connected_if_masters_are_away_while_it_deletes_old_ledgers() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            await writer.append(b"first")
        async with log.writer():
            pass  # the next writer leaves the empty ledger out
        writer = await log.writer()
        stage.cluster.crash(MASTER)
        for number in range(1, 41):
            assert await writer.append(b"more", deadline_s=5) == number
            await asyncio.sleep(1)

    play(scenario, count=3)


def test_a_writer_reaches_stores_again_after_their_calls_failed_while_masters_were_away() -> None:
    """Nobody can tell their addresses again: the writer uses the old ones."""

    async def scenario(stage: Stage) -> None:
        db = stage.client()
        log = await db.create_log("events")
        writer = await log.writer()
        await writer.append(b"first")
        stage.cluster.crash(MASTER)
        for store in stage.stores[:2]:
            stage.cut(db, store)
        appended = asyncio.ensure_future(writer.append(b"second", deadline_s=LONG_S))
        await asyncio.sleep(20)
        assert not appended.done()
        for store in stage.stores[:2]:
            stage.mend(db, store)
        await asyncio.sleep(8)
        assert appended.done() and await appended == 1

    play(scenario, count=3)


def test_tasks_that_make_logs_at_once_share_one_session() -> None:
    async def scenario(stage: Stage) -> None:
        db, other = stage.client(), stage.client()
        await other.create_log("another")
        await asyncio.gather(*(db.create_log(f"log-{number}") for number in range(20)))
        sessions = await other._logs.session.nodes.sessions(deadline_s=5)
        assert len([each for each in sessions if "logs" in each.name]) == 2

    play(scenario, count=3)


def test_the_bytes_of_a_log_include_its_newest_ledger_once_that_is_closed() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            await writer.append_many([b"x" * 1000] * 100)
            assert (await log.info()).bytes == 0
        assert (await log.info()).bytes > 100_000

    play(scenario, count=3)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_log_whose_ledger_was_deleted_by_another_program_says_so_in_every_call(which: int) -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        for number in range(3):
            async with log.writer() as writer:
                await writer.append(b"%d" % number)
        ledgers = log._ledgers
        part = (await ledgers.log("events")).ledgers[which]
        await ledgers.registry.delete(part.ledger)
        for follow in (False, True):
            read = []
            with pytest.raises(NotFound, match="of log 'events' is gone"):
                async for entry in log.read(follow=follow):
                    read.append(entry.data)
            assert read == [b"0", b"1", b"2"][:which]
        with pytest.raises(NotFound, match="or delete the log"):
            await log.info()
        if which == 2:
            with pytest.raises(NotFound, match="or delete the log"):
                await log.writer()

    play(scenario, count=3)
