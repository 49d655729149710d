"""Writers, readers and recoveries on real stores, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import Unavailable, WrongServer
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.errors import EntryLost, LedgerClosed, LedgerFenced, RecoveryFailed
from ebla.actors.ledger.store import records
from ebla.actors.messages import Empty
from ebla.storage.errors import DiskFull
from tests.figures import figures_of
from tests.ledger.repair_scripts import hook
from tests.ledger.scripts import SCRIPTS
from tests.ledger.stage import Scenario, Stage, play


def data(count: int, first: int = 0) -> list[bytes]:
    return [b"entry %d" % number for number in range(first, first + count)]


def test_entries_are_acknowledged_in_order_and_read_back() -> None:
    async def scenario(stage: Stage) -> None:
        writer = (process := stage.process()).writer(stage.create())
        futures = [writer.add(each) for each in data(100)]
        assert [await future for future in futures] == list(range(100))
        ended = await writer.close()
        assert (ended.last, ended.length) == (99, sum(map(len, data(100))))
        assert await stage.process().contents() == data(100)
        assert stage.registry.marks == {}
        del process

    play(scenario)


def test_a_failing_store_is_replaced_and_the_ledger_continues() -> None:
    async def scenario(stage: Stage) -> None:
        writer = stage.process().writer(stage.create())
        assert await writer.add(b"first") == 0
        stage.cluster.crash("ledger-store/b")
        futures = [writer.add(each) for each in data(50)]
        await asyncio.gather(*futures)
        while len(writer.metadata.segments) == 1:
            await asyncio.sleep(0.1)
            await writer.add(b"more")
        a, _, c, d = (stage.uuids[address] for address in stage.addresses)
        assert writer.metadata.segments[-1].stores == (a, d, c)
        await writer.drain(10.0)
        ended = await writer.close()
        stage.cluster.crash("ledger-store/a")
        assert len(await stage.process().contents()) == ended.last + 1

    play(scenario)


def test_an_entry_that_is_added_while_the_ledger_is_closed_is_refused() -> None:
    async def scenario(stage: Stage) -> None:
        writer = stage.process().writer(stage.create())
        await writer.add(b"one")

        async def slow(point: str) -> None:
            if point == "ledger.add.before_commit":
                await asyncio.sleep(0.2)

        hook(stage.role("ledger-store/c"), slow)
        await writer.add(b"two")
        closing = asyncio.ensure_future(writer.close())
        await asyncio.sleep(0.0)
        with pytest.raises(LedgerClosed):
            await writer.add(b"three")
        assert (await closing).last == 1

    play(scenario)


def test_an_idle_writer_replaces_a_store_that_does_not_run() -> None:
    async def scenario(stage: Stage) -> None:
        writer = stage.process().writer(stage.create())
        await writer.add(b"one")
        await asyncio.sleep(2.0)
        stage.cluster.crash("ledger-store/b")
        await asyncio.sleep(15.0)
        first, second = stage.registry.ledgers[1].segments
        assert (first.first, second.first) == (0, 1)
        a, _, c, d = (stage.uuids[address] for address in stage.addresses)
        assert second.stores == (a, d, c) and stage.registry.marks == {}
        assert await writer.add(b"two") == 1

    play(scenario)


def test_a_store_that_is_back_takes_its_place_again_if_the_one_in_its_place_is_lost() -> None:
    async def scenario(stage: Stage) -> None:
        writer = stage.process().writer(stage.create())
        await writer.add(b"first")
        stage.cluster.crash("ledger-store/a")
        stage.cluster.network.isolate("ledger-store/d")  # it counts as running
        for _ in range(10):
            await writer.add(b"while both are away")
            await asyncio.sleep(0.2)
        await stage.restart("ledger-store/a")
        while len(writer.metadata.segments) == 1 and writer._joining:
            await writer.add(b"while it returns")
            await asyncio.sleep(0.2)
        assert stage.uuids["ledger-store/a"] in writer.metadata.segments[-1].stores
        stage.cluster.crash("ledger-store/b")
        await writer.add(b"on the one that is back")
        assert stage.uuids["ledger-store/a"] in stage.registry.marks[1], "what it missed is marked"

    play(scenario)


def test_without_another_store_the_writer_goes_on_and_marks_what_is_missing() -> None:
    async def scenario(stage: Stage) -> None:
        writer = stage.process().writer(stage.create())
        stage.cluster.crash("ledger-store/b")
        for each in data(20):
            await writer.add(each)
            await asyncio.sleep(0.2)
        ended = await writer.close()
        assert (ended.last, len(ended.segments)) == (19, 1)
        await asyncio.sleep(2.0)
        assert stage.registry.marks == {1: {stage.uuids["ledger-store/b"]}}
        assert await stage.process().contents() == data(20)

    play(scenario, count=3)


@pytest.mark.parametrize("returns", ["ledger-store/b", "ledger-store/d"])
def test_a_writer_without_another_store_seldom_asks_for_one_and_soon_uses_one_that_returns(
    returns: str,
) -> None:
    async def scenario(stage: Stage) -> None:
        stage.cluster.crash("ledger-store/d")
        client = stage.process()
        writer = client.writer(stage.create())
        await writer.add(b"first")
        stage.cluster.crash("ledger-store/b")
        await writer.add(b"second")
        await asyncio.sleep(30.0)
        before = client.registry.requests
        await asyncio.sleep(60.0)
        assert client.registry.requests - before < 60
        await stage.restart(returns)
        await asyncio.sleep(8.0)
        stage.cluster.crash("ledger-store/a")
        assert await asyncio.wait_for(writer.add(b"third"), 8.0) == 2

    play(scenario)


def test_a_recovery_keeps_what_is_acknowledged_and_fences_the_writer() -> None:
    async def scenario(stage: Stage) -> None:
        writer = stage.process().writer(stage.create())
        for each in data(10):
            await writer.add(each)
        ended = await stage.process().recover()
        assert ended.closed and ended.last == 9
        with pytest.raises(LedgerFenced, match="write to a new ledger"):
            await writer.add(b"late")
        assert writer.failed is not None
        assert await stage.process().contents() == data(10)
        assert await stage.process().recover() == ended, "a second recovery changes nothing"

    play(scenario)


@pytest.mark.parametrize("returns", [True, False])
def test_a_recovery_marks_the_stores_that_are_silent_or_lack_the_end(returns: bool) -> None:
    async def scenario(stage: Stage) -> None:
        client, away = stage.process(), "ledger-store/c"
        writer = client.writer(stage.create())
        await writer.add(b"on all stores")
        stage.cluster.crash(away)
        for each in data(5):
            await writer.add(each)
        client.crash()
        if returns:
            await stage.restart(away)
        other = stage.process()
        assert (await other.recover()).last == 5
        await asyncio.sleep(2.0)
        assert stage.registry.marks == {1: {stage.uuids[away]}}

    play(scenario, count=3)


def test_a_recovery_marks_nothing_if_every_store_has_the_end() -> None:
    async def scenario(stage: Stage) -> None:
        client = stage.process()
        writer = client.writer(stage.create(ensemble=4, write_quorum=3))
        for each in data(10):
            await writer.add(each)
        client.crash()
        await stage.process().recover()
        await asyncio.sleep(2.0)
        assert stage.registry.marks == {}

    play(scenario)


def test_a_recovery_of_an_empty_ledger_closes_it_empty() -> None:
    async def scenario(stage: Stage) -> None:
        stage.create()
        ended = await stage.process().recover()
        assert (ended.closed, ended.last, ended.length) == (True, -1, 0)

    play(scenario)


def test_a_recovery_with_too_few_stores_fails_and_a_later_one_completes() -> None:
    async def scenario(stage: Stage) -> None:
        writer = stage.process().writer(stage.create())
        await writer.add(b"acknowledged")
        stage.cluster.crash("ledger-store/a")
        stage.cluster.crash("ledger-store/b")
        with pytest.raises(RecoveryFailed, match="bring them back"):
            await stage.process().recover()
        assert stage.registry.ledgers[1].state == "in_recovery"
        await stage.restart("ledger-store/a")
        ended = await stage.process().recover()
        assert (ended.closed, ended.last) == (True, 0)

    play(scenario, count=3)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_scripted_history_keeps_the_promises(script: Scenario) -> None:
    play(script)


def test_a_store_that_lost_its_directory_counts_as_unknown() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        writer = stage.process().writer(found)
        await writer.add(b"one")
        await asyncio.sleep(2.0)
        stage.cluster.crash("ledger-store/a")
        stage.cluster.lose_disk("ledger-store/a")
        await stage.restart("ledger-store/a")
        old = found.segments[0].stores[0]
        with pytest.raises(WrongServer, match="has lost its directory"):
            request = m.ReadRequest(old, 1, found.token, (0,), 1000)
            await stage.process().stores.call(old, "read_entries", request, m.ReadReply, 1.0)
        assert [e.data for e in await stage.process().reader.read(found, 0, 0)] == [b"one"]

    play(scenario, count=3)


def test_damage_is_read_around_and_is_never_taken_for_absence() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        writer = stage.process().writer(found)
        await writer.add(b"one")
        await asyncio.sleep(6.0)
        for address in stage.addresses[:2]:
            stage.cluster.state(address).rot("ledgers", "entries", records.key_of(1, 0))
        process = stage.process()
        assert [e.data for e in await process.reader.read(found, 0, 0)] == [b"one"]
        ended = await process.recover()
        assert ended.last == 0, "two damaged copies do not end the ledger before the entry"

    play(scenario, count=3)


def test_an_entry_without_a_sound_copy_is_lost_and_one_on_silent_stores_is_unavailable() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        process = stage.process()
        with pytest.raises(EntryLost, match="no store has a sound copy of entry 5"):
            await process.reader.read(found, 5, 5)
        stage.cluster.crash("ledger-store/a")
        with pytest.raises(Unavailable, match="1 of its 3 stores do not answer"):
            await process.reader.read(found, 5, 5)

    play(scenario)


def test_a_reader_sees_every_acknowledged_entry_of_an_open_ledger_at_once() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        writer = stage.process().writer(found)
        reader = stage.process().reader
        for number, each in enumerate(data(30)):
            await writer.add(each)
            assert await reader.last_entry(found) >= number

    play(scenario)


def test_a_follower_waits_for_the_next_entry() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        writer = stage.process().writer(found)
        process = stage.process()
        waiting = asyncio.ensure_future(process.reader.next_lac(found, found.segments[0].stores[0], -1, 10.0))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await writer.add(b"one")
        assert (await waiting)[1] == 0

    play(scenario)


def test_a_recovery_without_a_store_that_is_given_up_leaves_out_nothing_that_another_one_has() -> None:
    """Two of three stores have an entry; one of them is lost and given up, and the other one is away for a while."""

    async def scenario(stage: Stage) -> None:
        a, b, c, d = stage.addresses
        stage.cluster.crash(d)  # no store takes the place of another
        process = stage.process()
        stage.cluster.network.cut(process.world.address, c)
        assert await process.writer(stage.create()).add(b"acknowledged") == 0
        process.crash()
        stage.cluster.crash(a)
        stage.cluster.network.isolate(b)
        gone = (stage.uuids[a],)
        with pytest.raises(RecoveryFailed, match="could not be read at entry 0"):
            await stage.process().recover(gone=gone)
        stage.cluster.network.rejoin(b)
        assert (await stage.process().recover(gone=gone)).last == 0

    play(scenario)


def test_a_store_that_is_given_up_and_answers_counts_as_the_others() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create(1, 1, 1, 1)
        assert await stage.process().writer(found).add(b"acknowledged") == 0
        gone = found.segments[0].stores
        assert (await stage.process().recover(gone=gone)).last == 0

    play(scenario)


def test_a_ledger_whose_only_store_is_given_up_ends_empty() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create(1, 1, 1, 1)
        assert await stage.process().writer(found).add(b"acknowledged") == 0
        stage.cluster.crash(stage.addresses[0])
        with pytest.raises(RecoveryFailed, match="could not be fenced"):
            await stage.process().recover()
        assert (await stage.process().recover(gone=found.segments[0].stores)).last == -1

    play(scenario)


def test_a_full_store_takes_no_new_ledger_and_goes_on_with_recoveries() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        writer = stage.process().writer(found)
        await writer.add(b"one")
        stage.cluster.state("ledger-store/a").free_bytes = 1000
        await asyncio.sleep(2.0)
        assert stage.role("ledger-store/a").read_only
        await writer.add(b"two")
        await asyncio.sleep(2.0)
        assert stage.uuids["ledger-store/d"] in writer.metadata.segments[-1].stores
        ended = await stage.process().recover()
        assert ended.last == 1

    play(scenario)


def test_a_deleted_ledger_is_gone_and_stays_fenced() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        writer = stage.process().writer(found)
        for each in data(5):
            await writer.add(each)
        process = stage.process()
        for store in found.segments[0].stores:
            await process.stores.call(
                store, "delete_ledger", m.DeleteRequest(store, 1, found.token), m.Done, 1.0
            )
        await asyncio.sleep(2.0)
        with pytest.raises(LedgerFenced):
            await writer.add(b"late")
        for address in stage.addresses[:3]:
            assert list(stage.role(address).entries.numbers(1)) == []
            await stage.restart(address)
            assert stage.role(address).ledgers() == []

    play(scenario)


def test_a_deletion_on_a_full_disk_is_listed_until_it_is_durable_and_ends_when_there_is_space() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        writer = stage.process().writer(found)
        await writer.add(b"one")
        await asyncio.sleep(2.0)  # the entry is with its ledger
        address, process = stage.of(found.segments[0].stores[0]), stage.process()
        disk, role = stage.cluster.state(address), stage.role(address)
        request = m.DeleteRequest(stage.uuids[address], 1, found.token)

        async def delete() -> None:
            await process.stores.call(stage.uuids[address], "delete_ledger", request, m.Done, 1.0)

        disk.fill()
        with pytest.raises(DiskFull):
            await delete()
        assert role.ledgers() == [1] and list(role.entries.numbers(1)) == [0], (
            "a worker deletes what is listed"
        )
        disk.free()
        stage.points.arm(address, "ledger.delete.after_commit", disk.fill)
        await delete()
        await asyncio.sleep(2.0)
        assert role.ledgers() == [] and list(role.entries.numbers(1)) == [0]
        disk.free()
        await asyncio.sleep(2.0)
        assert list(role.entries.numbers(1)) == []

    play(scenario)


def test_a_ledger_whose_entries_have_moved_away_is_not_counted() -> None:
    async def scenario(stage: Stage) -> None:
        found = stage.create()
        await stage.process().writer(found).add(b"one")
        uuid, process = found.segments[0].stores[0], stage.process()
        address = stage.of(uuid)

        async def counted() -> tuple[float, int]:
            status = await process.stores.call(uuid, "store_status", Empty(), m.StoreStatus, 1.0)
            return figures_of(stage.role(address))["ledger_ledgers"], status.ledgers

        assert await counted() == (1, 1)
        await stage.restart(address)
        assert await counted() == (1, 1)
        listed = await process.stores.call(uuid, "list_ledgers", m.ListRequest(uuid, -1), m.ListReply, 1.0)
        request = m.DropRequest(uuid, 1, found.token, listed.ledgers[0].sign)
        await process.stores.call(uuid, "drop_entries", request, m.Done, 1.0)
        assert await counted() == (0, 0)
        assert stage.role(address).ledgers() == [1], "its promise stays"
        await stage.restart(address)
        assert await counted() == (0, 0)

    play(scenario)
