"""Rows and log entries that damaged pages of LMDB hide: reads must notice that they are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.loop import SimulatedLoop
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.directories.records import RecordStore
from ebla.storage.errors import Corruption, Damaged
from ebla.storage.logs.entries import START, Position, make_entry
from ebla.storage.logs.private_log import PrivateLog
from ebla.storage.logs.shared_log import ENTRIES, SharedLog
from ebla.storage.rows import checksum
from ebla.storage.tablets.tablet_store import ROWS, TabletStore
from tests.storage.disks import in_simulation

TABLET, OTHER = "0123456789abcdef0123456789abcdef", "f" * 32
SEED = checksum.seed(TABLET)
FOUND = b"kkkk"  # a row that LMDB does not find


def rows(*keys: bytes) -> tuple[list[bytes], list[bytes]]:
    return list(keys), [checksum.seal(key, b"value", SEED) for key in keys]


class Hiding:
    """An environment whose lookups do not find FOUND; its walks may skip that row, too."""

    def __init__(self, reader: Any, *, from_walks: bool = False) -> None:
        self._reader = reader
        self._from_walks = from_walks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def get_many(self, database: str, keys: Sequence[bytes]) -> list[bytes | None]:
        found = self._reader.get_many(database, keys)
        return [None if key == FOUND else value for key, value in zip(keys, found, strict=True)]

    def items(self, *arguments: Any, **options: Any) -> list[Any]:
        found = self._reader.items(*arguments, **options)
        return [item for item in found if not (self._from_walks and item[0] == FOUND)]

    def joined(self, *arguments: Any, **options: Any) -> tuple[list[bytes], bytes | None]:
        found, following = self._reader.joined(*arguments, **options)
        return [row for row in found if not row.startswith(FOUND)], following

    def snapshot(self, *, views: bool = False) -> Hiding:
        return Hiding(self._reader.snapshot(views=views), from_walks=self._from_walks)


async def opened(state: DurableState | None = None) -> tuple[MemoryDisk, DurableState]:
    state = state or DurableState()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    disk = MemoryDisk(state, loop.derive("disk"))
    await disk.open_instance("u" * 32)
    return disk, state


async def filled(*keys: bytes) -> TabletStore:
    disk, _ = await opened()
    store = await TabletStore.open(disk, TABLET, create=True)
    store.put(*rows(*keys))
    store.applied = Position(1, 1, 1)
    await store.flush()
    return store


@in_simulation
async def test_a_present_row_that_a_lookup_misses_is_corruption() -> None:
    store = await filled(b"aaaa", FOUND, b"zzzz")
    assert store.get_many([b"bbbb", b"cccc", b"zzzzz"]) == [None] * 3
    store.base.environment = Hiding(store.environment)  # type: ignore[assignment]
    with pytest.raises(Corruption, match="rows beside the place of key"):
        store.get_many([b"bbbb", FOUND])
    assert store.get_many([b"bbbb", b"zzzz"])[0] is None


@in_simulation
async def test_absence_beside_a_damaged_row_is_corruption() -> None:
    store = await filled(b"aaaa", b"zzzz")
    table = store.environment._disk.state.environments[store.environment.path][ROWS]  # type: ignore[attr-defined]
    table[b"zzzz"] = b"rotten"
    with pytest.raises(Corruption, match="checksum"):
        store.get_many([b"bbbb"])


@pytest.mark.parametrize("stop", [None, b"kkkz"])
@pytest.mark.parametrize("start", [b"", b"kkkk"])
@in_simulation
async def test_a_scan_that_misses_a_row_at_its_edge_is_corruption(start: bytes, stop: bytes | None) -> None:
    store = await filled(FOUND) if not start else await filled(b"aaaa", FOUND, b"zzzz")
    original = store.snapshot()
    assert any(row.startswith(FOUND) for row in original.block(start, stop, 10, 10_000)[0])
    store.base.environment = Hiding(store.environment)  # type: ignore[assignment]
    with pytest.raises(Corruption, match="rows beside the place of key"):
        store.snapshot().block(start, stop, 10, 10_000)


@pytest.mark.parametrize("in_memory", [False, True])
@in_simulation
async def test_a_scan_that_misses_the_last_row_is_corruption(in_memory: bool) -> None:
    store = await filled(b"aaaa", FOUND)
    if in_memory:
        store.put(*rows(b"bbbb"))
    assert len(store.snapshot().block(b"", None, 10, 10_000)[0]) == 2 + in_memory
    store.base.environment = Hiding(store.environment, from_walks=True)  # type: ignore[assignment]
    with pytest.raises(Corruption, match="rows beside the place of key"):
        store.snapshot().block(b"", None, 10, 10_000)


@pytest.mark.parametrize("in_memory", [False, True])
@in_simulation
async def test_a_scan_that_finds_a_row_twice_is_corruption(in_memory: bool) -> None:
    store = await filled(b"aaaa", b"bbbb", b"cccc")
    if in_memory:
        store.put(*rows(b"dddd"))
    snapshot = store.snapshot()
    original = snapshot.base.items

    def twice(*arguments: Any, **options: Any) -> list[Any]:
        found = original(*arguments, **options)
        return [*found[:2], *found[1:]]

    snapshot.base.items = twice  # type: ignore[method-assign]
    with pytest.raises(Corruption, match="do not ascend"):
        snapshot.block(b"", None, 10, 10_000)


@in_simulation
async def test_rows_ascend_by_their_keys_alone() -> None:
    """A key that begins with another one follows it, for any value of the other."""
    disk, _ = await opened()
    store = await TabletStore.open(disk, TABLET, create=True)
    keys = [b"a", b"a\0"]
    store.put(keys, [checksum.seal(key, b"\xff", SEED) for key in keys])
    store.applied = Position(1, 1, 1)
    await store.flush()
    found, following = store.snapshot().block(b"", None, 10, 10_000)
    assert (found != sorted(found), len(found), following) == (True, 2, None)


@in_simulation
async def test_a_scrub_counts_its_rows() -> None:
    store = await filled(b"aaaa", FOUND, b"zzzz")
    assert await store.scrub() == 3
    store.base.environment = Hiding(store.environment, from_walks=True)  # type: ignore[assignment]
    with pytest.raises(Corruption, match="has 3 rows, 2 are found"):
        await store.scrub()


@in_simulation
async def test_a_scrub_finds_a_damaged_row() -> None:
    store = await filled(b"aaaa", b"zzzz")
    store.environment._disk.state.rot(store.environment.path, ROWS, b"zzzz")  # type: ignore[attr-defined]
    with pytest.raises(Corruption, match="checksum"):
        await store.scrub()


# -- logs


async def logged(count: int) -> tuple[MemoryDisk, DurableState, SharedLog]:
    disk, state = await opened()
    log = await SharedLog.open(disk, create=True)
    previous = START
    for _ in range(count):
        entry = make_entry(TABLET, previous, 1, 0, 0, b"payload")
        await log.append(log.reserve(1), [(TABLET, entry, previous)])
        previous = entry.position
    return disk, state, log


async def reopened(disk: MemoryDisk, state: DurableState) -> SharedLog:
    await disk.close()
    again, _ = await opened(state)
    return await SharedLog.open(again, create=False)


@in_simulation
async def test_a_damaged_entry_still_shows_its_tablet() -> None:
    disk, state, log = await logged(3)
    state.rot(log.environment.path, ENTRIES, list(state.environments[log.environment.path][ENTRIES])[1])
    found = list((await reopened(disk, state)).recover())
    assert [(each.tablet, each.index, each.damage is None) for each in found] == [
        (TABLET, 1, True),
        (TABLET, 2, False),
        (TABLET, 3, True),
    ]


@pytest.mark.parametrize("place", [0, 1, 2])
@in_simulation
async def test_an_entry_under_another_tablets_key_is_damage(place: int) -> None:
    """Otherwise an acknowledged entry would be lost, as if its tablet had been dropped."""
    disk, state, log = await logged(3)
    table = state.environments[log.environment.path][ENTRIES]
    key = list(table)[place]
    table[key[:8] + bytes.fromhex(OTHER) + key[24:]] = table.pop(key)
    with pytest.raises(Damaged, match="its tablet and index are unknown"):
        list((await reopened(disk, state)).recover())


@in_simulation
async def test_a_shared_log_with_a_missing_entry_does_not_start() -> None:
    disk, state, log = await logged(3)
    table = state.environments[log.environment.path][ENTRIES]
    del table[list(table)[1]]
    with pytest.raises(Damaged, match="entry 3 is in the place of entry 2"):
        list((await reopened(disk, state)).recover())


@pytest.mark.parametrize("key", [b"\0", b"\0" * 39, b"\xff" * 7, b"\xff" * 41])
@in_simulation
async def test_a_shared_log_with_a_key_of_another_length_does_not_start(key: bytes) -> None:
    disk, state, log = await logged(3)
    state.environments[log.environment.path][ENTRIES][key] = b"value"
    with pytest.raises(Damaged, match=f"an entry has a key of {len(key)} bytes, not 40"):
        await reopened(disk, state)


@in_simulation
async def test_a_shared_log_with_a_key_of_another_length_in_its_middle_does_not_start() -> None:
    disk, state, log = await logged(3)
    table = state.environments[log.environment.path][ENTRIES]
    key = list(table)[1]
    table[key[:-1]] = table.pop(key)
    with pytest.raises(Damaged, match="an entry has a key of 39 bytes, not 40"):
        list((await reopened(disk, state)).recover())


@pytest.mark.parametrize("key", [b"\0", b"\xff" * 9])
@in_simulation
async def test_a_private_log_with_a_key_of_another_length_is_damaged(key: bytes) -> None:
    disk, state = await opened()
    log = await PrivateLog.open(disk, TABLET, create=True)
    await log.extend([(make_entry(TABLET, START, 1, 0, 0, b"payload"), START)])
    state.environments[log.environment.path][ENTRIES][key] = b"value"
    await log.environment.close()
    with pytest.raises(Damaged, match=f"an entry has a key of {len(key)} bytes, not 8"):
        list((await PrivateLog.open(disk, TABLET, create=False)).recover())


@in_simulation
async def test_a_log_whose_keys_form_a_circle_ends_in_an_error() -> None:
    disk, _, log = await logged(3)
    original = log.environment.items

    def circling(database: str, start: bytes = b"", *arguments: Any, **options: Any) -> list[Any]:
        return original(database, b"", *arguments, **options)

    log.environment.items = circling  # type: ignore[method-assign]
    with pytest.raises(Damaged, match="entry 1 is in the place of entry 4"):
        list(log.recover())
    private = await PrivateLog.open(disk, TABLET, create=True)
    entry = make_entry(TABLET, START, 1, 0, 0, b"payload")
    await private.extend([(entry, START)])
    original = private.environment.items
    private.environment.items = circling  # type: ignore[method-assign]
    with pytest.raises(Damaged, match="entry 1 follows entry 1"):
        list(private.recover())


@in_simulation
async def test_a_private_log_with_a_missing_entry_is_damaged() -> None:
    disk, _ = await opened()
    log = await PrivateLog.open(disk, TABLET, create=True)
    entry = make_entry(TABLET, START, 1, 0, 0, b"payload")
    await log.extend([(entry, START)])
    log.environment.count = lambda database: 2  # type: ignore[method-assign]
    with pytest.raises(Damaged, match="has 2 entries, 1 are found"):
        list(log.recover())


@in_simulation
async def test_missing_records_are_damage() -> None:
    disk, _ = await opened()
    environment = await disk.open_environment("meta", ["records"], create=True)
    store = RecordStore(environment, "records", Position)
    await environment.commit([store.put("one", Position(1, 1, 1))])
    assert [name for name, _ in store.all()] == ["one"]
    environment.count = lambda database: 2  # type: ignore[method-assign]
    with pytest.raises(Damaged, match="has lost records"):
        list(store.all())
