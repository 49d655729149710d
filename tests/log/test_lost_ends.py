"""The last entries of a log's newest ledger are lost for good: the log goes on behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from ebla import aio
from ebla.actors.errors import Unavailable
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EndUnknown, EntryLost, RecoveryFailed
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.shared.kept import KeptRegistry
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.actors.ledger.store import records as stored
from ebla.aio import Log
from ebla.log.records import ENTRY_RECORDS_MAX
from ebla.operate import decommissioning, forgetting
from ebla.operate import ledgers as operate
from ebla.operate.logs import state_of
from ebla.operate.waiting import Progress
from ebla.storage.environment import Delete
from ebla.storage.errors import EblaError, InvalidArgument
from tests.ledger import repair_stage
from tests.ledger.repair_stage import RepairStage
from tests.log.stage import Stage, play


async def _delete(stage: Stage, ledger: int, lost: Iterable[int]) -> None:
    """Delete these entries on all stores."""
    keys = [stored.key_of(ledger, entry) for entry in lost]
    for address in stage.stores:
        store = stage.role(address)
        await store._mover.move_all()
        await store._environment.commit([Delete(stored.ENTRIES, keys)])


async def _without_the_second(registry: KeptRegistry, ledger: int) -> None:
    """Put another store in the place of the second one of a ledger, which has ended: what only that had is lost."""
    found = await registry.read(ledger)
    spare = next(each.uuid for each in await registry.stores() if each.uuid not in meta.stores_in(found))

    def moved(now: meta.Metadata) -> meta.Metadata:
        changed = meta.with_moved(now, 0, now.segments[0].stores[1], spare)
        assert changed is not None
        return changed

    await registry.change(ledger, moved)


def test_a_log_that_has_lost_its_last_entry_goes_on_behind_it() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", ensemble=2, write_quorum=1, ack_quorum=1)
        async with log.writer("producer") as writer:
            await writer.append_many([b"a", b"b"])
            await writer.append(b"lost")
        registry = log._ledgers.registry
        (part,) = (await log._ledgers.log("events")).ledgers
        store = (await registry.read(part.ledger)).segments[0].stores[1]
        stage.cluster.crash(next(each for each in stage.stores if stage.role(each).instance.uuid == store))
        await asyncio.sleep(20.0)
        await _without_the_second(registry, part.ledger)

        free = 2 + ENTRY_RECORDS_MAX
        assert (await log.info()).end == free
        with pytest.raises(EntryLost):
            await log._ledgers.ranges("events", None, None)
        async with log.writer("producer") as writer:
            assert writer.sequence == 2, "a lost record is not counted"
            with pytest.raises(InvalidArgument, match="has 2 records"):
                await writer.append_once([b"d"], 3)
            assert await writer.append_once([b"a", b"b", b"c"], 0) == 1
        assert [tuple(each) async for each in log.read(free)] == [(free, b"c")]
        read = []
        with pytest.raises(EntryLost):
            async for entry in log.read():
                read.append(entry.data)
        assert read == [b"a", b"b"]
        async with log.writer("producer") as writer:
            assert writer.sequence == 3
        await log.trim(free)
        assert [entry.data async for entry in log.read()] == [b"c"]

    play(scenario)


def test_a_recovery_decides_the_end_although_the_last_acknowledged_entry_is_lost() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.process()
        found = await client.create("a", "b", write_quorum=1, ack_quorum=1)
        writer = client.writer(found)
        for each in repair_stage.data(3):
            await writer.add(each)
        client.crash()
        await stage.lose("b")
        await asyncio.sleep(20.0)
        await _without_the_second(stage.client.registry, found.ledger)
        assert (await stage.client.recover(found.ledger)).last == 2

    repair_stage.play(scenario)


async def _damaged(stage: Stage, lose: bool) -> tuple[Log, int, str]:
    """A log of 6 records whose writer is dead, and the ledger of the last 3. The last one was acknowledged by two of three stores: both
    copies are damaged, or one is, and the store of the other one is lost; it is returned."""
    database = stage.client()
    log = await database.create_log("events")
    async with log.writer() as first:
        await first.append_many([b"0", b"1", b"2"])
    writer = await log.writer()
    for number in range(3, 5):
        await writer.append(b"%d" % number)
    await asyncio.sleep(1.0)  # the third store has them, too, and all know that they are acknowledged
    ledger = (await log._ledgers.log("events")).ledgers[-1].ledger
    found = await log._ledgers.registry.read(ledger)
    a, b, c = (
        next(each for each in stage.stores if stage.role(each).instance.uuid == uuid)
        for uuid in found.segments[-1].stores
    )
    stage.cut(database, c)
    await writer.append(b"5")
    stage.crash(database)
    for address in (b,) if lose else (a, b):
        role = stage.role(address)
        await role._mover.move_all()
        key = stored.key_of(ledger, role.entries.last(ledger))
        stage.cluster.state(address).rot("ledgers", "entries", key)
        await stage.cluster.restart(address)
    uuid = stage.role(a).instance.uuid
    if lose:
        stage.cluster.crash(a)
        await asyncio.sleep(20.0)
    return await stage.client().log("events"), ledger, uuid


async def _read(log: Log) -> tuple[list[bytes], EblaError | None]:
    read: list[bytes] = []
    try:
        async for entry in log.read():
            read.append(entry.data)
    except EblaError as error:
        return read, error
    return read, None


def test_a_log_whose_last_copies_are_damaged_goes_on_when_an_operator_accepts_that() -> None:
    async def scenario(stage: Stage) -> None:
        log, ledger, _ = await _damaged(stage, lose=False)
        read, error = await _read(log)
        assert (read, type(error)) == ([b"0", b"1", b"2", b"3", b"4"], EntryLost), error
        info = await log.info()
        assert (info.first, info.end, info.known_end, info.ledgers) == (0, None, 5, 2)
        assert "the next writer of the log decides it" in str(info.unknown)
        with pytest.raises(EntryLost, match=f"`ebla ledger give-up {ledger}` accepts the loss") as lost:
            await log.writer(deadline_s=5.0)
        info = await log.info()
        assert (info.end, info.known_end) == (None, 5)
        assert f"`ebla ledger give-up {ledger}` accepts the loss" in str(info.unknown)
        await asyncio.sleep(1.0)
        logs = log._ledgers
        assert await Repairs(logs.session).marked() == [ledger]
        found = await logs.registry.read(ledger)
        assert not found.closed and found.given_up == (), "nothing is given up by itself"
        entry = lost.value.entry
        assert await operate.without_copies(logs, ledger) == [(entry, entry)]
        closed = await operate.give_up(logs, ledger, [(entry, entry)])
        assert closed.last == entry and closed.given_up == ((entry, entry),)
        assert await operate.without_copies(logs, ledger) == []
        async with log.writer() as writer:
            position = await writer.append(b"6")
        assert position > 5, "the position of the lost record is not given to another one"
        assert [each.data async for each in log.read(position)] == [b"6"]
        assert (await _read(log))[0] == [b"0", b"1", b"2", b"3", b"4"]

    play(scenario)


def test_a_log_is_readable_up_to_the_last_entry_that_is_known_to_be_acknowledged() -> None:
    """One store is lost with a copy of the entry behind it, and the other copy is damaged."""

    async def scenario(stage: Stage) -> None:
        log, ledger, a = await _damaged(stage, lose=True)
        read, error = await _read(log)
        assert (read, type(error)) == ([b"0", b"1", b"2", b"3", b"4"], EndUnknown), error
        with pytest.raises(RecoveryFailed):
            await log.writer(deadline_s=5.0)
        info = await log.info()
        assert (info.first, info.end, info.known_end, info.ledgers) == (0, None, 5, 2)
        assert "bring them back" in str(info.unknown)
        with pytest.raises(EndUnknown):
            await log.trim(6)
        await log.trim(2)
        state = await state_of(log._ledgers, "events")
        assert (state.first, state.end, state.known_end, state.unknown is None) == (2, None, 5, False)
        cluster: Any = SimpleNamespace(ledgers=log._ledgers)
        stores = decommissioning.Stores(("ledger-store/gone",), (a,), False, (ledger,))
        (loss,) = await forgetting.losses(cluster, stores, Progress())
        assert loss.end and not (await log._ledgers.registry.read(ledger)).given_up
        await forgetting.give_up(cluster, stores, [loss], Progress())
        async with log.writer() as writer:
            await writer.append(b"6")
        assert (await _read(log))[0] == [b"2", b"3", b"4"]
        info = await log.info()
        assert (info.end, info.unknown) == (info.known_end, None)

    play(scenario)


def test_entries_behind_a_lost_one_stay_when_it_is_given_up() -> None:
    async def scenario(stage: RepairStage) -> None:
        client = stage.process()
        found = await client.create("a", "b", "c")
        writer = client.writer(found)
        adding = [writer.add(each) for each in repair_stage.data(4)]
        await asyncio.gather(*adding)
        client.crash()
        await stage.settled()
        for name in "abc":
            stage.cluster.state(repair_stage.store(name)).rot(
                "ledgers", "entries", stored.key_of(found.ledger, 1)
            )
            await stage.restart(name)
        with pytest.raises(EntryLost) as lost:
            await stage.client.recover(found.ledger)
        assert lost.value.entry == 1
        await stage.client.registry.change(found.ledger, lambda now: meta.with_given_up(now, [(1, 1)]))
        closed = await stage.client.recover(found.ledger)
        assert closed.last == 3
        assert [each.data for each in await stage.client.reader.read(closed, 2, 3)] == [
            b"entry 2",
            b"entry 3",
        ]
        findings = await stage.client.check(found.ledger, 100.0)
        assert findings.whole, findings

    repair_stage.play(scenario)


@pytest.mark.parametrize("lost", [(10,), (0,), (4, 5, 6, 9), (18, 19), tuple(range(1, 20))])
def test_every_record_beside_lost_ones_is_readable_from_its_position(lost: tuple[int, ...]) -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            for number in range(20):  # each is an entry of its own
                await writer.append(b"record %d" % number)
        (part,) = (await log._ledgers.log("events")).ledgers
        await _delete(stage, part.ledger, lost)
        for position in range(20):
            entries = log.read(position)
            if position in lost:
                with pytest.raises(EntryLost):
                    await anext(entries)
            else:
                assert await anext(entries) == (position, b"record %d" % position)

    play(scenario)


async def _with_entries(stage: Stage, count: int) -> tuple[aio.Log, int]:
    """A log with one ledger, and its number. Each record is an entry of its own."""
    log = await stage.client().create_log("events")
    async with log.writer() as writer:
        for number in range(count):
            await writer.append(b"%d" % number)
    (part,) = (await log._ledgers.log("events")).ledgers
    return log, part.ledger


def test_records_behind_any_number_of_lost_ones_are_readable_from_their_positions() -> None:
    async def scenario(stage: Stage) -> None:
        log, ledger = await _with_entries(stage, 230)
        await _delete(stage, ledger, range(80, 220))
        for position in (10, 79, 220, 221, 229):
            assert await anext(log.read(position)) == (position, b"%d" % position)
        for position in (80, 150, 219):
            with pytest.raises(EntryLost):
                await anext(log.read(position))

    play(scenario, count=3)


def test_the_end_of_a_log_behind_many_lost_entries_is_found_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        log, ledger = await _with_entries(stage, 120)
        await _delete(stage, ledger, range(1, 120))
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await log.info()).end == 1 + 119 * ENTRY_RECORDS_MAX
        async with log.writer() as writer:
            assert await writer.append(b"next") == 1 + 119 * ENTRY_RECORDS_MAX
        assert loop.time() - began < 0.5

    play(scenario, count=3)


def test_an_end_with_lost_entries_is_not_found_while_a_store_that_may_have_them_is_silent() -> None:
    async def scenario(stage: Stage) -> None:
        log, ledger = await _with_entries(stage, 20)
        await _delete(stage, ledger, range(5, 20))
        stage.cluster.network.isolate(stage.stores[0])
        info = await log.info()
        assert (info.end, info.known_end) == (None, 0) and "cannot be read now" in str(info.unknown)
        with pytest.raises(Unavailable):
            await log.trim(1)
        stage.cluster.network.heal()
        assert (await log.info()).end == 5 + 15 * ENTRY_RECORDS_MAX

    play(scenario, count=3)


def test_no_record_gets_a_position_that_is_trimmed_already() -> None:
    """A log is trimmed up to its end, and an operator who gives up a store has its ledger end before."""

    async def scenario(stage: Stage) -> None:
        db, other = stage.client(), stage.client()
        log = await db.create_log("events", ensemble=1, write_quorum=1, ack_quorum=1)
        writer = await log.writer("producer")
        await writer.append_many([b"lost"] * 30)
        stage.crash(db)
        log = await other.log("events")
        await log.trim(30)
        ledgers = log._ledgers
        (part,) = (await ledgers.log("events")).ledgers
        (uuid,) = (await ledgers.registry.read(part.ledger)).segments[0].stores
        stage.cluster.crash(next(each for each in stage.stores if stage.role(each).instance.uuid == uuid))
        await asyncio.sleep(20.0)
        await recover(ledgers.world, ledgers.registry, ledgers.stores, part.ledger, ledgers.options, (uuid,))
        assert (await log.info()).end == 30
        async with log.writer("producer") as writer:
            assert writer.sequence == 0, "the lost records are not counted"
            assert await writer.append(b"new") == 30
        assert [tuple(each) async for each in log.read()] == [(30, b"new")]
        assert (await log.info()).end == 31

    play(scenario)
