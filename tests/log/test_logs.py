"""Logs on real stores and a real master, in virtual time."""

from __future__ import annotations

import asyncio

import msgspec
import pyarrow as pa
import pytest

from ebla.actors.coordination.limits import Limits
from ebla.actors.deadlines import timeout
from ebla.actors.errors import AlreadyPresent, NotFound
from ebla.actors.ledger.errors import NotEnoughStores
from ebla.actors.ledger.handles import reading
from ebla.errors import LogFenced, RecordsTrimmed
from ebla.log import records
from ebla.log.appender import ROLL_AGAIN_S
from ebla.log.options import PRODUCER_BYTES_MAX, LogSettings
from ebla.log.parts import ENTRY_BYTES
from ebla.log.records import LEDGERS_MAX, PRODUCERS_MAX, LogLedger, LogRecord, Producer
from ebla.storage.errors import InvalidArgument, OverLimit
from tests.log.stage import Stage, contents, play


def data(count: int, first: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(first, first + count)]


def test_records_are_read_at_their_positions() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            assert [await writer.append(each) for each in data(3)] == [0, 1, 2]
            assert await writer.append_many(data(5, 3)) == range(3, 8)
        other = await stage.client().log("events")
        assert await contents(other) == data(8)
        assert await contents(other, 6) == data(2, 6)
        assert [e.position async for e in other.read(2, limit=2)] == [2, 3]
        info = await other.info()
        assert (info.first, info.end, info.ledgers) == (0, 8, 1)

    play(scenario)


def test_a_second_writer_fences_the_first_and_continues_after_its_last_record() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        first = await log.writer()
        await first.append_many(data(10))
        second = await (await stage.client().log("events")).writer()
        assert await second.append(b"from the second") == 10
        with pytest.raises(LogFenced, match="another writer has opened log 'events'"):
            await first.append(b"late")
        with pytest.raises(LogFenced):
            await first.append(b"later")
        assert await contents(log) == [*data(10), b"from the second"]

    play(scenario)


def test_a_writer_that_dies_leaves_everything_that_it_was_told_to_be_in_the_log() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        writer = await (await db.create_log("events")).writer()
        for each in data(20):
            await writer.append(each)
        stage.crash(db)
        log = await stage.client().log("events")
        assert await contents(log) == data(20), "read without a recovery"
        async with log.writer() as successor:
            assert await successor.append(b"next") == 20
        assert await contents(log) == [*data(20), b"next"]

    play(scenario)


def test_a_reader_ends_a_recovery_whose_process_died() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        writer = await (await db.create_log("events")).writer()
        await writer.append(b"acknowledged")
        for store in stage.stores[1:]:
            stage.cut(db, store)
        late = asyncio.ensure_future(writer.append(b"on one store"))
        await asyncio.sleep(0.2)
        stage.crash(db)
        late.cancel()
        opening = stage.client()
        log = await opening.log("events")
        opened = asyncio.ensure_future(log.writer())
        (ledger,) = await log._ledgers.registry.list()
        async with timeout(10.0):
            while any(stage.role(store).entries.get(ledger, 1) is None for store in stage.stores):
                await asyncio.sleep(0.0001)
        stage.crash(opening)
        opened.cancel()
        log = await stage.client().log("events")
        assert not (await log._ledgers.registry.read(ledger)).closed
        assert await contents(log) == [b"acknowledged", b"on one store"]
        assert (await log._ledgers.registry.read(ledger)).closed, (
            "no other recovery can leave out what was read"
        )

    play(scenario, count=3)


def test_concurrent_appends_are_coalesced_and_each_gets_its_own_position() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            positions = await asyncio.gather(*(writer.append(each) for each in data(256)))
            assert sorted(positions) == list(range(256))
            read = await contents(log)
            assert [read[position] for position in positions] == data(256)
            assert writer._appender._writer.lac < 20, "few entries"

    play(scenario)


def test_a_large_append_becomes_entries_of_a_bounded_size() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        large = [b"%d" % number * 50_000 for number in range(40)]
        async with log.writer() as writer:
            assert await writer.append(b"before") == 0
            assert await writer.append_many(large) == range(1, 41)
            assert await writer.append_many([b""] * 50_000) == range(41, 50_041)
            entries = await log._ledgers.reader.read(
                writer._appender._writer.metadata, 0, writer._appender._writer.lac, 1 << 30
            )
        assert max(len(each.data) for each in entries) <= ENTRY_BYTES + 1000
        assert await contents(log) == [b"before", *large, *[b""] * 50_000]

    play(scenario)


def test_a_large_append_that_is_fenced_may_be_in_the_log_in_part() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        log = await db.create_log("events")
        writer = await log.writer()
        parts = [b"%05d" % number * 20_000 for number in range(100)]
        under_way = asyncio.ensure_future(writer.append_many(parts))
        await asyncio.sleep(0.02)
        successor = await (await stage.client().log("events")).writer()
        with pytest.raises(LogFenced) as caught:
            await under_way
        assert caught.value.possibly_applied
        read = await contents(log)
        assert read == parts[: len(read)]
        assert await successor.append(b"next") == len(read)

    play(scenario)


def test_a_follower_gets_every_record_of_every_writer() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        follower = await stage.client().log("events")
        seen: list[bytes] = []

        async def follow() -> None:
            async for entry in follower.read(follow=True):
                assert entry.position == len(seen)
                seen.append(entry.data)

        following = asyncio.ensure_future(follow())
        for number in range(3):
            async with log.writer() as writer:
                for each in data(5, 5 * number):
                    await writer.append(each)
                    await asyncio.sleep(0.3)
        await asyncio.sleep(8.0)
        assert seen == data(15)
        following.cancel()

    play(scenario)


def test_a_log_rolls_over_ledgers_and_old_ones_are_deleted_by_size() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", roll_bytes=2_000, retain_bytes=4_000)
        async with log.writer() as writer:
            for number in range(100):
                await writer.append(b"%0100d" % number)
        await asyncio.sleep(5.0)
        info = await log.info()
        assert info.end == 100 and 0 < info.first < 80 and info.ledgers >= 2
        read = await contents(log)
        assert (
            read == [b"%0100d" % number for number in range(info.first, 100)]
            or read[0] >= b"%0100d" % info.first
        )
        with pytest.raises(RecordsTrimmed, match=f"before position {info.first} have been deleted"):
            await contents(log, 0)
        ledgers = {each.ledger for each in (await log._ledgers.log("events")).ledgers}
        assert set(await log._ledgers.registry.list()) == ledgers
        assert all(set(stage.role(address).ledgers()) <= ledgers for address in stage.stores)

    play(scenario)


def test_old_records_are_deleted_although_no_writer_begins_a_ledger() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.count_time()
        log = await stage.client().create_log("events", retain_s=100.0)
        for first in (0, 10, 20):
            async with log.writer() as writer:
                await writer.append_many(data(10, first))
            await asyncio.sleep(40.0)
        assert await contents(log) == data(30)
        await asyncio.sleep(54.0)
        assert await contents(log) == data(20, 10), "the first ledger has ended 134 s ago, the second 94 s"
        assert len(await log._ledgers.registry.list()) == 2
        with pytest.raises(RecordsTrimmed, match="before position 10 have been deleted"):
            await contents(log, 5)
        await asyncio.sleep(40.0)
        writer = await log.writer()
        await asyncio.sleep(5.0)
        assert (await log.info()).first == 20, "as soon as a writer opens the log"
        await writer.close()

    play(scenario)


def test_the_list_of_the_ledgers_and_producers_of_a_log_fits_its_node() -> None:
    large = LogLedger(1 << 40, 1 << 60, 1 << 60)
    producer = Producer("p" * PRODUCER_BYTES_MAX, 1 << 60, 1 << 60)
    record = LogRecord(
        LogSettings(), 1 << 60, (large,) * LEDGERS_MAX, 1 << 60, (), (producer,) * PRODUCERS_MAX
    )
    assert len(msgspec.msgpack.encode(record)) <= Limits().data_bytes_max - 1000


def test_a_log_with_many_ledgers_rolls_no_more_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "ROLLED_MAX", 3)
    monkeypatch.setattr(records, "LEDGERS_MAX", 4)

    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", roll_bytes=100)
        async with log.writer() as writer:
            for each in data(60):
                await writer.append(each)
        assert (await log.info()).ledgers == 3
        async with log.writer() as writer:
            await writer.append(b"one more")
        with pytest.raises(OverLimit, match="has 4 ledgers, and each opening"):
            await log.writer()
        assert await contents(log) == [*data(60), b"one more"]
        await log.trim(60)
        async with log.writer() as writer:
            assert await writer.append(b"again") == 61

    play(scenario)


def test_a_writer_at_the_limit_of_ledgers_rolls_again_when_some_are_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "ROLLED_MAX", 3)

    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", roll_bytes=1_000, retain_bytes=5_000)
        async with log.writer() as writer:
            for _ in range(40):
                await writer.append(bytes(100))
            assert (await log.info()).ledgers == 3
            await log.trim((await log.info()).end - 1)
            await asyncio.sleep(ROLL_AGAIN_S)
            for _ in range(100):
                await writer.append(bytes(100))
                await asyncio.sleep(1.0)
            info = await log.info()
            assert info.ledgers == 3 and info.end - info.first >= 50
            await asyncio.sleep(ROLL_AGAIN_S)
            for _ in range(100):
                await writer.append(bytes(100))
                await asyncio.sleep(1.0)
            assert (await log.info()).first > info.first, (
                "retention goes on, also with the bytes of the newest ledger"
            )

    play(scenario)


def test_a_trim_deletes_records_before_a_position() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events", roll_bytes=500)
        async with log.writer() as writer:
            for each in data(60):
                await writer.append(each)
        with pytest.raises(InvalidArgument, match="ends at position 60"):
            await log.trim(61)
        await log.trim(45)
        assert await contents(log) == data(15, 45)
        assert (await log.info()).first == 45
        async with log.writer() as writer:
            assert await writer.append(b"next") == 60

    play(scenario)


def test_records_that_are_trimmed_while_they_are_read_are_named_as_trimmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "READ_ENTRIES_MAX", 2)

    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        for first in (0, 10):
            async with log.writer() as writer:
                for each in data(10, first):
                    await writer.append(each)
        other = await stage.client().log("events")
        read = []
        with pytest.raises(RecordsTrimmed) as trimmed:
            async for entry in log.read():
                read.append(entry.data)
                if entry.position == 3:
                    await other.trim(12)
        assert trimmed.value.first == 12
        assert read == data(4)

    play(scenario)


def test_tables_of_arrow_are_appended_and_read() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("tables")
        tables = [pa.table({"id": [number], "name": [f"n{number}"]}) for number in range(3)]
        async with log.writer() as writer:
            for each in tables:
                await writer.append_table(each)
            read = [table async for table in log.read_tables()]
            assert read == tables
            await writer.append(b"no table")
        with pytest.raises(InvalidArgument, match="position 3 of log 'tables' is no Arrow table"):
            [table async for table in log.read_tables()]

    play(scenario)


def test_a_writer_goes_on_while_a_store_is_lost() -> None:
    async def scenario(stage: Stage) -> None:
        log = await stage.client().create_log("events")
        async with log.writer() as writer:
            await writer.append_many(data(10))
            stage.cluster.crash(stage.stores[0])
            stage.cluster.crash(stage.stores[1])
            await stage.cluster.restart(stage.stores[1])
            for each in data(30, 10):
                await writer.append(each)
                await asyncio.sleep(0.2)
        assert await contents(log) == data(40)

    play(scenario)


def test_logs_are_listed_and_dropped_with_their_ledgers() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        for name in ("b", "a"):
            await db.create_log(name)
        assert await db.logs() == ["a", "b"]
        assert (await db.create_log("a")).name == "a", "a repetition"
        with pytest.raises(AlreadyPresent, match="with other settings"):
            await db.create_log("a", ensemble=4)
        writer = await (await db.log("a")).writer()
        await writer.append_many(data(5))
        await db.drop_log("a")
        assert await db.logs() == ["b"]
        with pytest.raises(LogFenced):
            await writer.append(b"late")
        with pytest.raises(NotFound, match="there is no log 'a'"):
            await db.log("a")
        assert all(stage.role(address).ledgers() == [] for address in stage.stores)

    play(scenario)


def test_mistakes_get_one_clear_error() -> None:
    async def scenario(stage: Stage) -> None:
        db = stage.client()
        with pytest.raises(InvalidArgument, match="without '/'"):
            await db.create_log("a/b")
        with pytest.raises(InvalidArgument, match="ensemble >= write_quorum"):
            await db.create_log("a", ensemble=2)
        with pytest.raises(InvalidArgument, match="retain_s must be positive"):
            await db.create_log("a", retain_s=-1.0)
        with pytest.raises(InvalidArgument, match="retain_bytes must be a whole number"):
            await db.create_log("a", retain_bytes=10 * 1e9)
        with pytest.raises(InvalidArgument, match="retain_s is a number of seconds"):
            await db.create_log("a", retain_s="7d")
        log = await db.create_log("many", ensemble=5, write_quorum=3, ack_quorum=2)
        with pytest.raises(NotEnoughStores, match="there are 4"):
            await log.writer()
        async with (await db.create_log("a")).writer() as writer:
            with pytest.raises(InvalidArgument, match="a record of a log is bytes, not 'text'"):
                await writer.append("text")  # type: ignore[arg-type]
            with pytest.raises(OverLimit, match="8,388,608 bytes at most"):
                await writer.append(bytes(9 << 20))
            assert await writer.append_many([]) == range(0)

    play(scenario)


def test_a_ledger_that_stores_have_begun_to_delete_is_known_no_more_and_its_writer_is_fenced() -> None:
    async def scenario(stage: Stage) -> None:
        writing, dropping, other = stage.client(), stage.client(), stage.client()
        log = await writing.create_log("events")
        writer = await log.writer()
        await writer.append(b"one")
        for address in stage.stores:  # the client that drops the log dies in the middle
            stage.points.arm(address, "ledger.delete.before_commit", lambda: stage.crash(dropping))
        dropping._client.world.spawn(dropping.drop_log("events"), "drop a log")  # type: ignore[attr-defined]
        await asyncio.sleep(2.0)
        assert not stage.cluster.alive(dropping._client.world.address)  # type: ignore[attr-defined]
        assert await other._logs.registry.list() == []
        with pytest.raises(LogFenced):
            await writer.append(b"two")
        await other.drop_log("events")
        assert await other.logs() == []

    play(scenario)
