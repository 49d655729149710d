"""Snapshots of a tablet's rows over several memtables and during flushes, compared with a sorted dict; and changes during
a flush."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.environment import Batch
from ebla.storage.logs.entries import Position
from ebla.storage.rows import checksum
from ebla.storage.tablets.memtable import Memtable
from ebla.storage.tablets.positions import alteration_of
from ebla.storage.tablets.tablet_store import TabletSnapshot, TabletStore
from tests.storage.disks import in_simulation

TABLET = "0123456789abcdef0123456789abcdef"
SEED = checksum.seed(TABLET)
KEYS = [b"%02d" % number for number in range(16)]

Rows = dict[bytes, bytes]
Steps = list[tuple[str, list[bytes]]]

chosen = st.sampled_from(KEYS)
bounds = st.sampled_from([b"", *KEYS])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(chosen, min_size=1, unique=True)),
        st.tuples(st.just("delete"), st.lists(chosen, min_size=1, max_size=4, unique=True)),
        st.sampled_from([("freeze", []), ("begin", []), ("end", [])]),
    ),
    max_size=12,
)


class Tablet:
    """A store, its expected rows, and a flush that the test ends."""

    def __init__(self, store: TabletStore) -> None:
        self.store = store
        self.rows: Rows = {}
        self.flush: asyncio.Future[Position] | None = None
        self._writes = 0
        self._begun, self._gate = asyncio.Event(), asyncio.Event()
        self._commit = store.environment.commit
        store.environment.commit = self._slowly  # type: ignore[method-assign]

    @classmethod
    async def open(cls) -> Tablet:
        disk = MemoryDisk(DurableState(), Random(1))
        await disk.open_instance("u" * 32)
        return cls(await TabletStore.open(disk, TABLET, create=True))

    async def _slowly(self, batch: Batch) -> None:
        self._begun.set()
        await self._gate.wait()
        await self._commit(batch)

    async def step(self, what: str, keys: list[bytes]) -> None:
        if what == "put":
            self.put(keys)
        elif what == "delete":
            self.store.delete(keys)
            self._wrote(dict.fromkeys(keys))
        elif what == "freeze":
            self.store.snapshot().close()
        elif what == "begin":
            await self.begin()
        else:
            await self.end()

    def put(self, keys: list[bytes]) -> None:
        values = [checksum.seal(key, b"%d" % self._writes, SEED) for key in keys]
        self.store.put(keys, values)
        self._wrote(dict(zip(keys, values, strict=True)))

    def _wrote(self, changes: Mapping[bytes, bytes | None]) -> None:
        self._writes += 1
        self.store.applied = Position(self._writes, 1, self._writes)
        changed = {**self.rows, **changes}
        self.rows = {key: value for key, value in changed.items() if value is not None}

    def alter(self, alteration: bytes) -> None:
        self.store.alter(alteration)
        self._wrote({})

    async def begin(self) -> None:
        if self.flush is None and self.store.applied != self.store.flushed:
            self._gate, self._begun = asyncio.Event(), asyncio.Event()
            self.flush = asyncio.ensure_future(self.store.flush())
            await self._begun.wait()

    async def end(self) -> None:
        if self.flush is not None:
            self._gate.set()
            await self.flush
            self.flush = None

    def check(self) -> None:
        assert self.store.get_many(KEYS) == [self.rows.get(key) for key in KEYS]


def read(
    snapshot: TabletSnapshot, start: bytes, stop: bytes | None, limit: int, bytes_max: int
) -> list[bytes]:
    """Return all rows of the snapshot, block by block."""
    found: list[bytes] = []
    at: bytes | None = start
    while at is not None:
        block, following = snapshot.block(at, stop, limit, bytes_max)
        assert following is None or following > at
        found += block
        at = following
    return found


def between(rows: Rows, start: bytes, stop: bytes | None) -> list[bytes]:
    return [key + rows[key] for key in sorted(rows) if start <= key and (stop is None or key < stop)]


@settings(max_examples=100, deadline=None)
@given(
    before=steps,
    after=steps,
    start=bounds,
    stop=st.none() | bounds,
    limit=st.integers(1, 17),
    bytes_max=st.integers(1, 200),
)
@in_simulation
async def test_a_snapshot_returns_each_row_once_and_in_order(
    before: Steps, after: Steps, start: bytes, stop: bytes | None, limit: int, bytes_max: int
) -> None:
    tablet = await Tablet.open()
    for what, keys in before:
        await tablet.step(what, keys)
    snapshot, then = tablet.store.snapshot(), tablet.rows
    for what, keys in after:
        await tablet.step(what, keys)
        tablet.check()
    assert read(snapshot, start, stop, limit, bytes_max) == between(then, start, stop)
    snapshot.close()
    await tablet.end()
    tablet.check()


@given(rows=st.dictionaries(chosen, st.none() | st.binary(max_size=3)), limit=st.integers(1, 17))
def test_a_memtable_returns_each_row_once_and_in_order(rows: dict[bytes, bytes | None], limit: int) -> None:
    table = Memtable()
    for key, value in rows.items():
        if value is not None:
            table.put([key], [value])
    table.delete([key for key, value in rows.items() if value is None])
    table.freeze()
    found: list[tuple[bytes, bytes | None]] = []
    at: bytes | None = b""
    while at is not None:
        items, at = table.range(at, None, limit, 1 << 20)
        assert len(items) == limit or at is None
        found += items
    assert found == sorted(rows.items())


@in_simulation
async def test_rows_that_a_scan_froze_during_a_flush_are_written_by_the_next() -> None:
    tablet = await Tablet.open()
    tablet.put(KEYS[:3])
    await tablet.begin()
    tablet.put(KEYS[2:5])
    snapshot = tablet.store.snapshot()
    await tablet.end()
    tablet.check()
    assert read(snapshot, b"", None, 2, 1000) == between(tablet.rows, b"", None)
    await tablet.begin()
    await tablet.end()
    assert not tablet.store.frozen and not tablet.store.active.rows
    tablet.check()


@in_simulation
async def test_an_alteration_during_a_flush_is_written_by_the_next() -> None:
    tablet = await Tablet.open()
    stored = []
    tablet.alter(b"first")
    await tablet.begin()
    tablet.alter(b"second")
    for _ in range(2):
        await tablet.begin()
        await tablet.end()
        stored.append(alteration_of(tablet.store.environment, "data"))
    assert tablet.store.alteration == b"second"
    assert stored == [b"first", b"second"]
