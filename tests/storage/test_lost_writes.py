"""Records of a tablet whose last writes the disk lost: each passes its own checksum, and is not the one of the position."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from ebla.storage.environment import DeleteRange, Environment, Put
from ebla.storage.errors import Corruption
from ebla.storage.logs.entries import Position
from ebla.storage.rows.alteration import AddColumn, Alteration, encode
from ebla.storage.rows.altered import altered
from ebla.storage.schema import COLUMNS, ROWS, Column, TableSchema
from ebla.storage.tablets import local_reader
from ebla.storage.tablets.positions import ALTERATION, META
from ebla.storage.tablets.results import RESULTS, Answer, Results
from ebla.storage.tablets.tablet_store import TabletStore
from tests.storage.disks import in_loop, opened

TABLET = "0123456789abcdef0123456789abcdef"
IDLE, BUSY, LATE = b"client-that-idle", b"client-that-busy", b"client-that-late"
SCHEMA = TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string())]), ["k"])

Records = dict[tuple[str, bytes], bytes]  # by database and key
Flushes = Callable[[TabletStore], Awaitable[list[Records]]]


async def flushes_of_answers(store: TabletStore) -> list[Records]:
    """The records after each flush. Answers come and go, a client comes, and one is forgotten."""
    found = []
    writes = (BUSY, 1, 0), (IDLE, 1, 0), (BUSY, 2, 0), (BUSY, 3, 2), (LATE, 1, 1)
    for index, (client, sequence, first_incomplete) in enumerate(writes, 1):
        store.results.record(client, sequence, first_incomplete, index, Answer(sequence, index, ()))
        store.applied = Position(index, 1, index, index)
        if index == 5:
            store.results.expire(3)
        if index in (2, 4, 5):
            await store.flush()
            found.append(records(store.environment))
    assert list(store.results.clients) == [BUSY, LATE]
    return found


async def flushes_of_alterations(store: TabletStore) -> list[Records]:
    schema, found = SCHEMA, []
    for index in (1, 2, 3):
        if index > 1:
            schema = altered(schema, [AddColumn(Column(f"c{index}", "int64"))])
            store.alter(encode(Alteration(schema)))
        store.applied = Position(index, 1, index, index)
        await store.flush()
        found.append(records(store.environment))
    return found


def records(environment: Environment) -> Records:
    return {(name, key): value for name in (RESULTS, META) for key, value in environment.items(name)}


async def write(environment: Environment, wanted: Records) -> None:
    """Make these the records."""
    await environment.commit(
        [
            *(DeleteRange(name, b"", None) for name in (RESULTS, META)),
            *(Put(name, [(key, value)]) for (name, key), value in wanted.items()),
        ]
    )


async def require_noticed(store: TabletStore, found: Records) -> None:
    """A scrub and a start must notice that these are the records."""
    await write(store.environment, found)
    with pytest.raises(Corruption, match=r"not (those|the one) of its position"):
        await store.scrub()
    with pytest.raises(Corruption, match=r"not (those|the one) of its position"):
        TabletStore(store.environment, Results(), store.seed)


@pytest.mark.parametrize(("flushes", "lost"), [(flushes_of_answers, 14), (flushes_of_alterations, 4)])
@in_loop
async def test_a_record_whose_last_write_was_lost_is_corruption(
    tmp_path: Path, flushes: Flushes, lost: int
) -> None:
    """With an older head of a client, replicas would differ and a retry could be applied again."""
    async with opened(tmp_path) as disk:
        store = await TabletStore.open(disk, TABLET, create=True)
        *earlier, last = await flushes(store)
        for before in earlier:
            for name in sorted({*before, *last}):
                old = before.get(name)
                if old != last.get(name):
                    found = {**last, name: old or b""}
                    if old is None:
                        del found[name]
                    await require_noticed(store, found)
                    lost -= 1
        assert lost == 0
        await write(store.environment, last)
        await store.scrub()


@pytest.mark.parametrize("seed", range(4))
@in_loop
async def test_several_records_whose_last_writes_were_lost_are_corruption(tmp_path: Path, seed: int) -> None:
    """As after the lost write of a page."""
    chance = random.Random(seed)
    async with opened(tmp_path) as disk:
        store = await TabletStore.open(disk, TABLET, create=True)
        flushes = await flushes_of_answers(store)
        names = sorted({name for each in flushes for name in each})
        for _ in range(12):
            chosen = {name: chance.choice(flushes).get(name) for name in names}
            found = {name: value for name, value in chosen.items() if value is not None}
            if found not in flushes:
                await require_noticed(store, found)


@pytest.mark.parametrize("storage", [ROWS, COLUMNS])
@in_loop
async def test_a_scan_of_another_process_notices_an_older_alteration(tmp_path: Path, storage: str) -> None:
    """It would take columns of the newer one for unknown, or for others."""
    async with opened(tmp_path) as disk:
        schema = msgspec.structs.replace(SCHEMA, storage=storage)
        store = await TabletStore.open(disk, TABLET, create=True, schema=schema)
        _, before, last = await flushes_of_alterations(store)
        name = META, ALTERATION
        await write(store.environment, {**last, name: before[name]})
        snapshot = store.environment.snapshot()
        with pytest.raises(Corruption, match="not the one of its position"):
            next(local_reader.batches(snapshot, store.environment.path, TABLET, schema))
        snapshot.close()
