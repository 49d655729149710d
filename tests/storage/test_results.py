"""Stored answers on a real disk, also after failed flushes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ebla.storage.environment import Batch, Delete, Put
from ebla.storage.errors import Corruption, Damaged, DiskFull
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.logs.entries import Position
from ebla.storage.rows import checksum
from ebla.storage.tablets.positions import META, POSITION
from ebla.storage.tablets.results import Answer, Results
from ebla.storage.tablets.tablet_store import TabletStore, path_of
from tests.storage.disks import in_loop, opened

TABLET = "0123456789abcdef0123456789abcdef"
IDLE, BUSY = b"client-that-idle", b"client-that-busy"


@asynccontextmanager
async def stored(root: Path, *, create: bool = False) -> AsyncIterator[TabletStore]:
    """The tablet's store in a new incarnation of the disk."""
    async with opened(root) as disk:
        yield await TabletStore.open(disk, TABLET, create=create)


async def fail_once(store: TabletStore, during: Sequence[tuple[bytes, int]] = ()) -> None:
    """Let one flush fail on a full disk; apply the writes `during` while it is under way."""
    commit = store.environment.commit

    async def full(batch: Batch) -> None:
        for client, sequence in during:
            record(store.results, client, sequence)
        raise DiskFull("no space left")

    store.environment.commit = full  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        await store.flush()
    store.environment.commit = commit  # type: ignore[method-assign]


def record(results: Results, client: bytes, sequence: int, time_us: int = 1) -> None:
    results.record(client, sequence, 0, time_us, Answer(sequence, sequence, ()))


async def write_position(disk: LmdbDisk, position: bytes) -> None:
    """Write the tablet's position while its store is closed."""
    environment = await disk.open_environment(path_of(TABLET), [META], create=False)
    await environment.commit([Put(META, [(POSITION, position)])])
    await environment.close()


def answers(results: Results) -> dict[bytes, list[int]]:
    return {client: sorted(known.answers) for client, known in sorted(results.clients.items())}


@in_loop
async def test_answers_of_a_failed_flush_are_written_by_the_next(tmp_path: Path) -> None:
    async with stored(tmp_path, create=True) as store:
        store.put([b"k"], [checksum.seal(b"k", b"v", checksum.seed(TABLET))])
        record(store.results, BUSY, 1)
        store.applied = Position(1, 1, 1)
        await fail_once(store, [(BUSY, 2), (IDLE, 1)])
        record(store.results, BUSY, 3)
        store.applied = Position(4, 1, 4)
        assert await store.flush() == store.applied
    async with stored(tmp_path) as store:
        assert answers(store.results) == {BUSY: [1, 2, 3], IDLE: [1]}
        assert store.flushed == Position(4, 1, 4)


@pytest.mark.parametrize("returns", [False, True])
@in_loop
async def test_expired_clients_of_a_failed_flush_are_dropped_by_the_next(
    tmp_path: Path, returns: bool
) -> None:
    async with stored(tmp_path, create=True) as store:
        record(store.results, IDLE, 1)
        record(store.results, IDLE, 2)
        store.applied = Position(1, 1, 1)
        await store.flush()
        store.results.expire(2)
        store.applied = Position(2, 1, 2)
        await fail_once(store, [(IDLE, 3)] if returns else [])
        store.applied = Position(3, 1, 3)
        await store.flush()
    async with stored(tmp_path) as store:
        assert answers(store.results) == ({IDLE: [3]} if returns else {})


def test_a_client_dropped_before_its_answers_are_given_back_stays_dropped() -> None:
    results = Results()
    record(results, IDLE, 1)
    taken = results.take()
    results.expire(2)
    record(results, IDLE, 5)
    results.give_back(taken)
    pending = results.take()
    assert pending.answers == {IDLE: [5]}
    assert list(pending.dropped) == [IDLE]
    assert len(results.changes(pending)) == 3  # the client's range, its floor, what came after


@in_loop
async def test_clients_expire_in_the_order_of_their_last_writes_after_a_restart(tmp_path: Path) -> None:
    first, second, third = (name * 16 for name in (b"c", b"b", b"a"))
    async with stored(tmp_path, create=True) as store:
        for time_us, client in enumerate((first, second, third, first), 1):
            record(store.results, client, time_us, time_us)
        store.applied = Position(4, 1, 1)
        await store.flush()
    async with stored(tmp_path) as reopened:
        for results in (store.results, reopened.results):
            assert list(results.clients) == [second, third, first]
            assert results.expired(3) and not results.expired(2)
            results.expire(4)
            assert list(results.clients) == [first]


@in_loop
async def test_a_store_that_cannot_be_opened_closes_its_environment(tmp_path: Path) -> None:
    async with opened(tmp_path) as disk:
        store = await TabletStore.open(disk, TABLET, create=True)
        position = store.environment.get(META, POSITION)
        assert position is not None
        await store.environment.commit([Delete(META, [POSITION])])
        await store.close()
        with pytest.raises(Damaged):
            await TabletStore.open(disk, TABLET, create=False)
        await write_position(disk, position)
        await TabletStore.open(disk, TABLET, create=False)


@pytest.mark.parametrize("twice", [False, True])
@in_loop
async def test_an_answer_hidden_by_a_damaged_page_is_corruption(tmp_path: Path, twice: bool) -> None:
    """Otherwise its retry would be applied again. Another answer may be found in its place."""
    async with stored(tmp_path, create=True) as store:
        for sequence in (1, 2, 3):
            record(store.results, BUSY, sequence)
        store.applied = Position(1, 1, 1)
        await store.flush()
        loaded = Results()
        loaded.load(store.environment, store.environment.path, store.results.digest)
        assert answers(loaded) == {BUSY: [1, 2, 3]}
        items = store.environment.items

        def hiding(database: str) -> list[tuple[bytes, bytes]]:
            head, one, _, three = items(database)
            return [head, one, one, three] if twice else [head, one, three]

        store.environment.items = hiding  # type: ignore[method-assign, assignment]
        with pytest.raises(Corruption, match="has 4 answers to writes"):
            Results().load(store.environment, store.environment.path, store.results.digest)


@pytest.mark.parametrize("seed", range(4))
@in_loop
async def test_any_answers_are_the_same_after_a_restart(tmp_path: Path, seed: int) -> None:
    """After flushes that failed, were carried out nevertheless, or overlapped with writes; and whatever clients say."""
    chance = random.Random(seed)
    async with opened(tmp_path) as disk:
        store = await TabletStore.open(disk, TABLET, create=True)
        commit = store.environment.commit

        async def fails(batch: Batch) -> None:
            if chance.random() < 0.5:
                await commit(batch)
            write_some()
            raise DiskFull("no space left")

        def write_some() -> None:
            for _ in range(chance.randrange(8)):
                index = store.applied.index + 1
                client, time_us = bytes([chance.randrange(5)]) * 16, index // 3
                sequence, first_incomplete = chance.randrange(index + 1), chance.randrange(index + 2)
                if chance.random() < 0.1:
                    store.results.expire(time_us - chance.randrange(5))
                elif not store.results.find(client, sequence) and not store.results.forgotten(
                    client, sequence
                ):
                    answer = Answer(sequence, index, (), ("Kind", "a refusal", {"row": 1}))
                    store.results.record(client, sequence, first_incomplete, time_us, answer)
                store.applied = Position(index, 1, index, time_us)

        for _ in range(20):
            write_some()
            if chance.random() < 0.3:
                store.environment.commit = fails  # type: ignore[method-assign]
                if store.applied != store.flushed:
                    with pytest.raises(DiskFull):
                        await store.flush()
                store.environment.commit = commit  # type: ignore[method-assign]
            await store.flush()
            again = TabletStore(store.environment, Results(), store.seed)
            assert again.results.clients == dict(store.results.clients)
            assert again.results.digest == store.results.digest
