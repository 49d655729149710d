"""Updates of a few bytes in large rows: the log has the bytes, a memtable gets the rows."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from ebla.actors import messages as m
from ebla.actors.tablet.engine import apply
from ebla.storage.rows import ragged
from ebla.storage.rows.alteration import AddColumn, Alteration
from ebla.storage.rows.altered import altered
from ebla.storage.schema import COLUMNS, DEFAULT_BYTES_MAX
from ebla.storage.tablets.tablet_store import TabletStore, path_of
from tests.storage.test_altered import column
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, OTHER, SCHEMA, Group, row, simulated

MEMTABLE_BYTES = 20_000
ROWS, LARGE = 60, "x" * 4_000
BOTH = pytest.mark.parametrize("storage", ["rows", "columns"])


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes in a replica's memtables after each change."""
    found: list[int] = []
    put = TabletStore.put

    def measured(store: TabletStore, keys: Any, values: Any) -> None:
        put(store, keys, values)
        found.append(store.memory_bytes)

    monkeypatch.setattr(TabletStore, "put", measured)
    return found


async def with_large_rows(group: Group, storage: str) -> None:
    """All are flushed."""
    group.storage = storage
    await group.create(OTHER)
    for k in range(0, ROWS, 5):
        await group.upsert(*[row(k + i, LARGE) for i in range(5)], tablet=OTHER)
    await group.settle(OTHER)
    await group.flush(*HOSTS, tablet=OTHER)


async def update(group: Group, n: int) -> None:
    """Change `n` in all rows, by many small requests at the same time."""
    sequences = [(k, group.next_sequence()) for k in range(0, ROWS, 2)]
    await asyncio.gather(
        *[
            group.write(
                m.UPDATE,
                [{"k": k + i, "n": n} for i in range(2)],
                columns=("n",),
                sequence=sequence,
                tablet=OTHER,
            )
            for k, sequence in sequences
        ]
    )


async def check(group: Group, n: int) -> None:
    await group.settle(OTHER)
    assert await group.get(0, 31, ROWS - 1, tablet=OTHER) == [row(k, LARGE, n) for k in (0, 31, ROWS - 1)]
    assert [group.replica(host, OTHER).state for host in HOSTS] == ["running"] * 3


@BOTH
@simulated(memtable_bytes=MEMTABLE_BYTES)
async def test_entries_that_make_many_bytes_of_rows_wait_for_a_flush(
    group: Group, held: list[int], storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = group.server(HOSTS[0]).options.unflushed_bytes_max
    monkeypatch.setattr(ragged, "BYTES_MAX", 2 * bound)
    await with_large_rows(group, storage)
    del held[:]
    await update(group, 1)
    await check(group, 1)
    assert len(held) == 3 * ROWS // 2
    assert bound < max(held) <= bound + 2 * 4_200, "no more than the entry that goes over it"


async def follower(group: Group) -> str:
    leader = await group.leader(OTHER)
    return next(host for host in HOSTS if host != leader)


@BOTH
@simulated(memtable_bytes=MEMTABLE_BYTES)
async def test_a_replica_that_applies_a_whole_log_flushes_between_its_entries(
    group: Group, held: list[int], storage: str
) -> None:
    await with_large_rows(group, storage)
    host = await follower(group)
    group.crash(host)
    await update(group, 1)
    await update(group, 2)
    del held[:]
    await group.restart(host)
    await check(group, 2)
    bound = group.server(host).options.unflushed_bytes_max
    assert bound < max(held) <= bound + 2 * 4_200
    await group.restart_all()
    await check(group, 2)


@simulated(memtable_bytes=MEMTABLE_BYTES, disk_hung_s=1.0)
async def test_entries_that_wait_for_a_disk_that_hangs_are_applied_when_it_answers(
    group: Group, held: list[int]
) -> None:
    await with_large_rows(group, "columns")
    host = await follower(group)
    group.disk(host).hang_data(path_of(OTHER))
    await update(group, 1)
    replica, bound = group.replica(host, OTHER), group.server(host).options.unflushed_bytes_max
    await group.sleep(3.0)
    assert replica.store.applied.index < replica.core.commit_index
    assert replica.store.memory_bytes <= bound + 2 * 4_200
    group.disk(host).unhang_data(path_of(OTHER))
    await until(group, lambda: replica.store.applied.index == replica.core.commit_index, "all is applied")
    await check(group, 1)


@simulated()
async def test_rows_that_get_a_long_default_are_flushed_before_they_are_too_many(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a few bytes in a memtable are as large as the default in a flush and in a scan."""
    rows_max = 20
    monkeypatch.setattr(apply, "UNFLUSHED_BYTES_MAX", rows_max * DEFAULT_BYTES_MAX)
    group.storage = COLUMNS
    await group.create(OTHER)
    await group.upsert(*[row(k) for k in range(2 * rows_max)], tablet=OTHER)
    await group.settle(OTHER)
    stores = [group.replica(host, OTHER).store for host in HOSTS]
    assert [store.unflushed_rows for store in stores] == [2 * rows_max] * 3
    schema = altered(
        msgspec.structs.replace(SCHEMA, storage=COLUMNS),
        [AddColumn(column("w", pa.string(), "d" * DEFAULT_BYTES_MAX))],
    )
    leader = await group.leader(OTHER)
    request = m.AlterTabletRequest(group.uuid(leader), OTHER, Alteration(schema))
    await group.ask(leader, "alter_tablet", request, m.Empty, 8.0)
    await group.settle(OTHER)
    assert [store.unflushed_rows for store in stores] == [0] * 3
    most = 0
    for k in range(2 * rows_max):
        await group.upsert(row(k, "new"), tablet=OTHER)  # by a client that knows only the older version
        most = max(most, *(store.unflushed_rows for store in stores))
    assert rows_max / 2 < most <= rows_max
