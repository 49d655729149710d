"""A tablet whose rows are runs of columns, beside a dict of the rows that it should have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from ebla.actors.messages import UPSERT
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.logs.entries import Position
from ebla.storage.predicates.conditions import Expression
from ebla.storage.rows import alteration, checksum
from ebla.storage.rows.alteration import AddColumn, Change, DropColumn, RenameColumn
from ebla.storage.rows.altered import altered
from ebla.storage.rows.codecs import codec_of
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import batches, blocks, writing
from ebla.storage.runs.batches import Batch
from ebla.storage.runs.pieces import Piece
from ebla.storage.schema import COLUMNS, TableSchema
from ebla.storage.tablets.run_tree import Ongoing, RunTree
from ebla.storage.tablets.tablet_store import TabletSnapshot, TabletStore
from ebla.write import forms
from tests.storage.test_altered import column

TABLET = "0123456789abcdef0123456789abcdef"
SEED = checksum.seed(TABLET)
FIRST = msgspec.structs.replace(
    TableSchema.from_arrow(
        pa.schema([("s", pa.string()), ("k", pa.int64()), ("n", pa.int32()), ("v", pa.string())]), ["s", "k"]
    ),
    storage=COLUMNS,
    compression="lz4",
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
        st.tuples(st.just("batch"), st.lists(st.sampled_from(range(len(KEYS))), min_size=1, max_size=9)),
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
            case "batch":
                self.put_batch(places)
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
        for at, row in zip(places, self._new(places), strict=True):
            key, value = self.codec.encode_row(row, SEED)
            self.store.put([key], [value])
            self.rows[at] = row
        self._wrote()

    def put_batch(self, places: list[int]) -> None:
        """In columns; a key may occur several times."""
        new, codec = self._new(places), self.codec
        rows = codec.arrow(new)
        piece = forms.make(codec, UPSERT, rows, codec.encode_keys(rows), np.zeros(len(new), np.uint32))
        assert isinstance(piece, Piece)
        self.store.put_batch(Batch(batches.encode(piece, codec, SEED), codec, codec.layout, SEED))
        self.rows.update(zip(places, new, strict=True))
        self._wrote()

    def _new(self, places: list[int]) -> list[Row]:
        self._writes += 1
        known = {"n": self._writes, "v": f"v{self._writes}", "u": "u", "w": [self._writes, None]}
        if self.schema.version >= 2:
            known["v"] = self._writes / 8
        rows = []
        for turn, at in enumerate(places):
            row = {**KEYS[at], **{c.name: known[c.name] for c in self.schema.value_columns()}}
            if (self._writes + at + turn) % 3 == 0:
                row["v"] = None
            rows.append(row)
        return rows

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
            ongoing = Ongoing(writing.merge_of(self.tree.directory, 0, count))
            while await self.advance(ongoing) and everything:
                pass

    async def advance(self, ongoing: Ongoing) -> bool:
        """Whether there is more to merge."""
        if ongoing not in self.tree._merges:
            self.tree._merges.append(ongoing)
        done = await self.tree.merge(ongoing)
        await self.tree.store(ongoing, done)
        self.check()
        return done.upto is not None

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
    codec: RowCodec,
    snapshot: TabletSnapshot,
    start: bytes,
    stop: bytes | None,
    limit: int,
    names: list[str],
    where: Expression | None = None,
) -> list[Row]:
    found: list[Row] = []
    at: bytes | None = start
    while at is not None:
        batch, following = snapshot.read(codec, at, stop, limit, 1000, names, where)
        batch.validate(full=True)
        assert following is None or following > at
        found += batch.to_pylist()
        at = following
    return found


@contextmanager
def small(rows: int, range_bytes: int) -> Iterator[None]:
    with (
        patch.object(blocks, "ROWS", rows),
        patch.object(blocks, "WORTH", 1000 if rows % 2 else 0),  # all blocks are compressed, or none
        patch.object(writing, "RANGE_BYTES", range_bytes),
    ):
        yield
