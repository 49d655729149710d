"""A tablet whose rows are runs of columns, compared with a dict: through flushes, compactions, alterations and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.actors.tablet.serving.scans import digest
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.errors import Corruption, Damaged, DiskFull
from ebla.storage.logs.entries import Position
from ebla.storage.rows import alteration, checksum
from ebla.storage.rows.alteration import AddColumn, Change, DropColumn, RenameColumn
from ebla.storage.rows.altered import altered
from ebla.storage.rows.codecs import codec_of
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import blocks, writing
from ebla.storage.schema import COLUMNS, TableSchema
from ebla.storage.tablets.run_tree import RunTree
from ebla.storage.tablets.tablet_store import TabletSnapshot, TabletStore, path_of
from tests.storage.disks import in_simulation
from tests.storage.test_altered import column

TABLET = "0123456789abcdef0123456789abcdef"
SEED = checksum.seed(TABLET)
FIRST = msgspec.structs.replace(
    TableSchema.from_arrow(
        pa.schema([("s", pa.string()), ("k", pa.int64()), ("n", pa.int32()), ("v", pa.string())]), ["s", "k"]
    ),
    storage=COLUMNS,
)
CHANGES: list[list[Change]] = [
    [AddColumn(column("w", pa.list_(pa.int64()), [1, 2]))],
    [RenameColumn("v", "u"), AddColumn(column("v", pa.float64()))],
    [DropColumn("n")],
]
KEYS = [{"s": text, "k": number} for text in ("", "\x00", "b") for number in range(6)]

Row = dict[str, Any]
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.lists(st.sampled_from(range(len(KEYS))), min_size=1, max_size=6, unique=True)
        ),
        st.tuples(
            st.just("delete"),
            st.lists(st.sampled_from(range(len(KEYS))), min_size=1, max_size=4, unique=True),
        ),
        st.sampled_from(
            [("flush", []), ("flush", []), ("merge", []), ("compact", []), ("alter", []), ("restart", [])]
        ),
    ),
    max_size=25,
)


class Tablet:
    """A store and its expected rows."""

    def __init__(self, medium: DurableState, store: TabletStore) -> None:
        self.medium = medium
        self.store = store
        self.schema = FIRST
        self.rows: dict[int, Row] = {}  # by the place of the key in KEYS
        self.flushed: tuple[TableSchema, dict[int, Row]] = (FIRST, {})
        self._writes = 0

    @classmethod
    async def open(cls) -> Tablet:
        medium = DurableState()
        return cls(medium, await _opened(medium, create=True))

    @property
    def codec(self) -> RowCodec:
        return codec_of(self.schema)

    @property
    def tree(self) -> RunTree:
        assert isinstance(self.store.base, RunTree)
        return self.store.base

    async def step(self, what: str, places: list[int]) -> None:
        match what:
            case "put":
                self.put(places)
            case "delete":
                self.store.delete([self.codec.encode_key(KEYS[at]) for at in places])
                self.rows = {at: row for at, row in self.rows.items() if at not in places}
                self._wrote()
            case "flush":
                await self.flush()
            case "merge" | "compact":
                await self.compact(everything=what == "compact")
            case "alter":
                if self.schema.version < len(CHANGES):
                    self.alter(CHANGES[self.schema.version])
            case "restart":
                await self.restart()

    def put(self, places: list[int]) -> None:
        self._writes += 1
        known = {"n": self._writes, "v": f"v{self._writes}", "u": "u", "w": [self._writes, None]}
        if self.schema.version >= 2:
            known["v"] = self._writes / 8
        for at in places:
            row = {**KEYS[at], **{c.name: known[c.name] for c in self.schema.value_columns()}}
            if (self._writes + at) % 3 == 0:
                row["v"] = None
            key, value = self.codec.encode_row(row, SEED)
            self.store.put([key], [value])
            self.rows[at] = row
        self._wrote()

    def _wrote(self) -> None:
        index = self.store.applied.index + 1
        self.store.applied = Position(index, 1, index)

    def alter(self, changes: list[Change]) -> None:
        self.schema = altered(self.schema, changes)
        self.store.alter(alteration.encode(alteration.Alteration(self.schema)))
        old, self.rows = self.rows, {}
        for at, row in old.items():
            self.rows[at] = self._renewed(row, changes)
        self._wrote()

    def _renewed(self, row: Row, changes: list[Change]) -> Row:
        made = dict(row)
        for change in changes:
            match change:
                case RenameColumn(name, to):
                    made[to] = made.pop(name)
                case DropColumn(name):
                    del made[name]
                case AddColumn(added):
                    made[added.name] = [1, 2] if added.default is not None else None
        return made

    async def flush(self) -> None:
        await self.store.flush()
        self.flushed = self.schema, dict(self.rows)

    async def compact(self, *, everything: bool) -> None:
        """All tiers; without `everything` only the first range."""
        count = len(self.tree.directory.tiers)
        if count:
            chosen, after = writing.merge_of(self.tree.directory, 0, count), None
            while True:
                done = await self.tree.merge(chosen, after)
                await self.tree.store(done)
                self.check()
                if done.upto is None or not everything:
                    break
                after = done.upto

    async def restart(self) -> None:
        assert self.medium.holder is not None
        self.medium.holder = None
        self.schema, rows = self.flushed
        self.rows = dict(rows)
        self.store = await _opened(self.medium, create=False)

    def check(self) -> None:
        keys = [self.codec.encode_key(key) for key in KEYS]
        found = self.store.get_many(keys)
        rows = [
            None if v is None else self.codec.decode_row(k, v, SEED) for k, v in zip(keys, found, strict=True)
        ]
        assert rows == [self.rows.get(at) for at in range(len(KEYS))]
        assert self.store.contains(keys) == [at in self.rows for at in range(len(KEYS))]

    def expected(self, start: bytes, stop: bytes | None) -> list[Row]:
        rows = sorted((self.codec.encode_key(KEYS[at]), row) for at, row in self.rows.items())
        return [row for key, row in rows if start <= key and (stop is None or key < stop)]


async def _opened(medium: DurableState, *, create: bool) -> TabletStore:
    disk = MemoryDisk(medium, Random(1))
    await disk.open_instance("u" * 32)
    return await TabletStore.open(disk, TABLET, create=create, schema=FIRST)


def read(
    codec: RowCodec, snapshot: TabletSnapshot, start: bytes, stop: bytes | None, limit: int, names: list[str]
) -> list[Row]:
    found: list[Row] = []
    at: bytes | None = start
    while at is not None:
        batch, following = snapshot.read(codec, at, stop, limit, 1000, names)
        batch.validate(full=True)
        assert following is None or following > at
        found += batch.to_pylist()
        at = following
    return found


@contextmanager
def small(rows: int, range_bytes: int) -> Iterator[None]:
    with patch.object(blocks, "ROWS", rows), patch.object(writing, "RANGE_BYTES", range_bytes):
        yield


@settings(max_examples=150, deadline=None)
@given(
    before=steps,
    after=steps,
    bounds=st.tuples(st.integers(0, len(KEYS)), st.integers(0, len(KEYS))),
    limit=st.integers(1, 7),
    block=st.integers(1, 5),
    range_bytes=st.integers(1, 2000),
    data=st.data(),
)
@in_simulation
async def test_reads_return_each_row_once_and_in_order(
    before: list[Any],
    after: list[Any],
    bounds: tuple[int, int],
    limit: int,
    block: int,
    range_bytes: int,
    data: st.DataObject,
) -> None:
    with small(block, range_bytes):
        tablet = await Tablet.open()
        for what, places in before:
            await tablet.step(what, places)
            tablet.check()
        codec = tablet.codec
        encoded = [b"", *sorted(codec.encode_key(key) for key in KEYS)]
        start, stop = (encoded[at] for at in sorted(bounds))
        names = data.draw(st.lists(st.sampled_from(codec.names), unique=True, min_size=1))
        snapshot, then = tablet.store.snapshot(), tablet.expected(start, stop or None)
        for what, places in [step for step in after if step[0] != "restart"]:
            await tablet.step(what, places)
            tablet.check()
        found = read(codec, snapshot, start, stop or None, limit, names)
        assert found == [{name: row[name] for name in names} for row in then]
        snapshot.close()
        await tablet.store.scrub()
        await tablet.restart()
        tablet.check()


@settings(max_examples=50, deadline=None)
@given(script=steps, other=st.lists(st.sampled_from(["flush", "compact", "merge"])), block=st.integers(1, 5))
@in_simulation
async def test_equal_rows_have_equal_digests_whatever_their_runs(
    script: list[Any], other: list[str], block: int
) -> None:
    with small(block, 500):
        one, two = await Tablet.open(), await Tablet.open()
        turns = iter(other)
        for what, places in script:
            if what in ("put", "delete", "alter"):
                await one.step(what, places)
                await two.step(what, places)
            else:
                await one.step("flush", [])
                await two.step(next(turns, "flush"), [])
        assert _digest(one) == _digest(two)


def _digest(tablet: Tablet) -> tuple[int, str]:
    snapshot = tablet.store.snapshot()
    try:
        return digest(snapshot, lambda: False)
    finally:
        snapshot.close()


@settings(max_examples=150, deadline=None)
@given(script=steps, data=st.data())
@in_simulation
async def test_a_flipped_bit_is_found_before_a_wrong_row_is_returned(
    script: list[Any], data: st.DataObject
) -> None:
    with small(3, 300):
        tablet = await Tablet.open()
        for what, places in [*script, ("flush", [])]:
            await tablet.step(what, places)
        await tablet.tree.clean()
        tables = tablet.medium.environments[path_of(TABLET)]
        items = [(name, key) for name, table in tables.items() for key in table]
        name, key = data.draw(st.sampled_from(items))
        value = bytearray(tables[name][key])
        value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        tables[name][key] = bytes(value)
        with pytest.raises((Corruption, Damaged)):
            await tablet.store.scrub()
        with pytest.raises((Corruption, Damaged)):
            await tablet.restart()  # a small store is scrubbed when it is opened


@settings(max_examples=100, deadline=None)
@given(script=steps, data=st.data())
@in_simulation
async def test_a_missing_item_is_found_before_a_row_is_denied(script: list[Any], data: st.DataObject) -> None:
    with small(3, 300):
        tablet = await Tablet.open()
        for what, places in [*script, ("put", [1]), ("flush", [])]:
            await tablet.step(what, places)
        await tablet.tree.clean()
        tables = tablet.medium.environments[path_of(TABLET)]
        items = [(name, key) for name in ("rows", "meta") for key in tables[name] if key != b"alteration"]
        name, key = data.draw(st.sampled_from(items))
        del tables[name][key]
        with pytest.raises((Corruption, Damaged)):
            await tablet.restart()


@in_simulation
async def test_a_full_disk_changes_nothing_and_the_next_flush_writes_everything() -> None:
    with small(2, 100):
        tablet = await Tablet.open()
        for places in ([1, 2, 3], [3, 4], [5], [1, 6]):
            tablet.put(places)
            await tablet.flush()
        tablet.put([7])
        tablet.medium.full = True
        before = tablet.tree.directory
        with pytest.raises(DiskFull):
            await tablet.store.flush()
        with pytest.raises(DiskFull):
            await tablet.compact(everything=True)
        assert tablet.tree.directory is before
        tablet.check()
        tablet.medium.full = False
        await tablet.flush()
        await tablet.compact(everything=True)
        await tablet.restart()
        tablet.check()


@in_simulation
async def test_a_compaction_drops_overwritten_and_deleted_rows() -> None:
    with small(2, 1 << 20):
        tablet = await Tablet.open()
        for places in ([1, 2, 3], [3, 4], [5]):
            tablet.put(places)
            await tablet.flush()
        await tablet.step("delete", [2, 3])
        await tablet.flush()
        assert sum(run.rows for run in tablet.tree.directory.runs) == 8
        chosen = tablet.tree.due()
        assert chosen is not None and chosen.bottom
        await tablet.compact(everything=True)
        assert [(run.rows, run.gone) for run in tablet.tree.directory.runs] == [(3, 0)]
        await tablet.tree.clean()
        tables = tablet.medium.environments[path_of(TABLET)]
        assert len(tables["rows"]) == 2
        tablet.check()


@in_simulation
async def test_a_flush_during_a_compaction_stays_the_newest() -> None:
    with small(2, 1):
        tablet = await Tablet.open()
        for places in ([1, 2, 3, 4], [2, 3]):
            tablet.put(places)
            await tablet.flush()
        chosen = writing.merge_of(tablet.tree.directory, 0, 2)
        done = await tablet.tree.merge(chosen, None)
        tablet.put([1, 2, 3])
        await tablet.flush()
        await tablet.tree.store(done)
        tablet.check()
        while done.upto is not None:
            done = await tablet.tree.merge(chosen, done.upto)
            await tablet.tree.store(done)
            tablet.check()
        await tablet.restart()
        tablet.check()


@in_simulation
async def test_a_flush_that_is_cancelled_during_its_commit_leaves_nothing_behind() -> None:
    tablet = await Tablet.open()
    tablet.put([1, 2])
    tablet.medium.commit_s = (0.05, 0.06)
    flush = asyncio.ensure_future(tablet.store.flush())
    await asyncio.sleep(0.01)
    flush.cancel()
    await asyncio.sleep(0.1)
    records = tablet.medium.environments[path_of(TABLET)]["meta"]
    assert b"run/1" in records, "the commit was under way"
    tablet.put([2, 3])
    await tablet.flush()
    tablet.check()
    await tablet.restart()
    tablet.check()
    await tablet.tree.clean()
    meta = tablet.medium.environments[path_of(TABLET)]["meta"]
    assert sorted(meta) == [b"filter/2", b"position", b"run/2", b"runs"]


@in_simulation
async def test_blocks_that_a_crash_left_behind_are_removed() -> None:
    with small(2, 1 << 20):
        tablet = await Tablet.open()
        for places in ([1, 2, 3], [3, 4]):
            tablet.put(places)
            await tablet.flush()
        await tablet.compact(everything=True)
        assert len(tablet.medium.environments[path_of(TABLET)]["rows"]) == 2 + 1 + 2
        await tablet.restart()
        await tablet.tree.clean()
        assert len(tablet.medium.environments[path_of(TABLET)]["rows"]) == 2
        tablet.check()
