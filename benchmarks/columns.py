"""Rows stored as columns beside rows stored one by one: the same rows in the storage of one tablet, without servers.

python -m benchmarks.columns [--rows 1000000] [--words]

A row is a random int64 key, an int64, a float64 and 100 random bytes, or 100 bytes of words to measure compression. All are flushed when the memtable of the tablet server's
size is full; columns are compacted as soon as a compaction is due. docs/storage.md has the results.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.figures import Stopwatch, number
from ebla.actors.messages import UPSERT
from ebla.actors.tablet.options import TabletServerOptions
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.logs.entries import Position
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.batches import Batch
from ebla.storage.schema import COLUMNS, COMPRESSIONS, ROWS, TableSchema
from ebla.storage.tablets import local_reader
from ebla.storage.tablets.tablet_store import TabletStore, path_of
from ebla.write import forms

TABLET = "0123456789abcdef0123456789abcdef"
SEED = checksum.seed(TABLET)
BATCH, VALUE = 8192, 100
ROW_BYTES = 8 + 8 + 8 + VALUE
MEMTABLE_BYTES = TabletServerOptions(("master/0",), "host").memtable_bytes
WORDS = [f"{word}{number}".encode() for word in ("log", "row", "tablet", "leader") for number in range(50)]
FIELDS = pa.schema([("k", pa.int64()), ("a", pa.int64()), ("b", pa.float64()), ("v", pa.binary())])
SINGLE, MANY = 2000, 10_000

Figures = dict[str, tuple[float, str]]


def seconds(work: Callable[[], Any]) -> float:
    with Stopwatch() as watch:
        work()
    return watch.seconds


@dataclass
class Tablet:
    """One tablet on a real disk. `figures`: value and unit, by name."""

    store: TabletStore
    schema: TableSchema
    rows: int
    words: bool = False
    figures: Figures = field(default_factory=dict)
    put_s: float = 0.0
    flush_s: float = 0.0
    compact_s: float = 0.0
    longest_s: float = 0.0

    def __post_init__(self) -> None:
        self.codec = RowCodec(self.schema)
        self.random = np.random.default_rng(1)

    async def fill(self) -> None:
        keys = self.random.permutation(self.rows).astype(np.int64)
        for start in range(0, self.rows, BATCH):
            self._put(self._batch(keys[start : start + BATCH]))
            index = self.store.applied.index + 1
            self.store.applied = Position(index, 1, index)
            if self.store.memory_bytes > MEMTABLE_BYTES:
                await self._flush()
        await self._flush()
        size = self.store.environment.size_bytes() / (self.rows * ROW_BYTES)
        self.figures["put into the memtable, of a row"] = self.put_s / self.rows * 1e6, "us"
        self.figures["flush, of a row"] = self.flush_s / self.rows * 1e6, "us"
        self.figures["compactions, of a row"] = self.compact_s / self.rows * 1e6, "us"
        self.figures["the longest transaction of a compaction"] = self.longest_s * 1e3, "ms"
        self.figures["bytes on disk of a byte of data"] = size, ""

    def _put(self, rows: pa.RecordBatch) -> None:
        """As a batch is applied that a client encoded."""
        codec = self.codec
        made = forms.make(codec, UPSERT, rows, codec.encode_keys(rows), np.full(len(rows), SEED, np.uint32))
        found = forms.batch_of(codec, [made], SEED)
        with Stopwatch() as watch:
            if isinstance(found, bytes):
                self.store.put_batch(Batch(found, codec, codec.layout, None))
            else:
                self.store.put(found.keys, found.values)
        self.put_s += watch.seconds

    def _batch(self, keys: Any) -> pa.RecordBatch:
        count = len(keys)
        offsets = pa.py_buffer((np.arange(count + 1, dtype=np.int32) * VALUE).tobytes())
        values = [None, offsets, pa.py_buffer(self._bytes(VALUE * count))]
        arrays = [
            pa.array(keys),
            pa.array(self.random.integers(0, 1 << 40, count)),
            pa.array(self.random.random(count)),
            pa.Array.from_buffers(pa.binary(), count, values),
        ]
        return pa.record_batch(arrays, schema=self.schema.arrow())

    def _bytes(self, size: int) -> bytes:
        if not self.words:
            return self.random.bytes(size)
        chosen = self.random.integers(0, len(WORDS), size // 4)  # at least four bytes each, with the space
        return b" ".join([WORDS[at] for at in chosen.tolist()])[:size]

    async def _flush(self) -> None:
        with Stopwatch() as watch:
            await self.store.flush()
        self.flush_s += watch.seconds
        with Stopwatch() as watch:
            await self._compact()
        self.compact_s += watch.seconds

    async def _compact(self) -> None:
        runs = self.store.runs
        while runs is not None and (due := runs.due()) is not None:
            done = await runs.merge(due)
            with Stopwatch() as watch:
                await runs.store(due, done)
            self.longest_s = max(self.longest_s, watch.seconds)
            if done.upto is None:
                await runs.clean()

    def read(self) -> None:
        def keys(count: int, first: int = 0) -> list[bytes]:
            chosen = self.random.integers(first, first + self.rows, count).tolist()
            return [self.codec.encode_key({"k": k}) for k in chosen]

        present, many, absent = keys(SINGLE), keys(MANY), keys(MANY, self.rows)
        single_s = seconds(lambda: [self.store.get_many([key]) for key in present])
        self.figures["a single key"] = single_s / SINGLE * 1e6, "us"
        many_s = seconds(lambda: self.store.get_many(many))
        self.figures[f"one of {MANY:,} keys that are read together"] = many_s / MANY * 1e6, "us"
        absent_s = seconds(lambda: self.store.contains(absent))
        self.figures["one of as many that are not there"] = absent_s / MANY * 1e6, "us"
        for name, columns in (("of all columns", list(FIELDS.names)), ("of one column", ["a"])):
            scan_s = seconds(lambda columns=columns: self._scan(columns))  # type: ignore[misc]
            self.figures[f"scan {name}"] = self.rows / scan_s / 1e6, "M rows/s"

    def _scan(self, columns: Sequence[str]) -> None:
        snapshot, at, rows = self.store.snapshot(), b"", 0
        following: bytes | None = at
        while following is not None:
            batch, following = snapshot.read(self.codec, following, None, BATCH, 2_000_000, columns)
            rows += batch.num_rows
        snapshot.close()
        assert rows == self.rows


def local_scans(directory: Path, tablet: Tablet) -> Iterator[tuple[str, tuple[float, str]]]:
    for name, columns in (("of all columns", None), ("of one column", ["a"])):
        found = local_reader.scan(directory, TABLET, tablet.schema, columns=columns)
        scan_s = seconds(lambda found=found: sum(batch.num_rows for batch in found))  # type: ignore[misc]
        yield f"scan by another process, {name}", (tablet.rows / scan_s / 1e6, "M rows/s")


async def measured(schema: TableSchema, rows: int, words: bool, directory: Path) -> Figures:
    disk = LmdbDisk(directory)
    await disk.open_instance("u" * 32)
    store = await TabletStore.open(disk, TABLET, create=True, schema=schema)
    tablet = Tablet(store, schema, rows, words)
    await tablet.fill()
    tablet.read()
    await disk.close()  # a process opens an LMDB environment once
    return {**tablet.figures, **dict(local_scans(directory / path_of(TABLET), tablet))}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.columns")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--words", action="store_true")
    wanted = parser.parse_args(arguments)
    kinds = {"columns": (COLUMNS, "none"), "rows": (ROWS, "none")}
    if wanted.words:
        kinds |= {compression: (COLUMNS, compression) for compression in COMPRESSIONS[1:]}
    found: dict[str, Figures] = {}
    for kind, (storage, compression) in kinds.items():
        schema = TableSchema.from_arrow(FIELDS, ["k"], storage=storage, compression=compression)
        with tempfile.TemporaryDirectory() as directory:
            found[kind] = asyncio.run(measured(schema, wanted.rows, wanted.words, Path(directory)))
    print(f"| what | {' | '.join(kinds)} | unit |\n| --- |{' ---: |' * len(kinds)} --- |")
    for name, (_, unit) in found["columns"].items():
        print(f"| {name} | {' | '.join(number(found[kind][name][0]) for kind in kinds)} | {unit} |")


if __name__ == "__main__":
    main(sys.argv[1:])
