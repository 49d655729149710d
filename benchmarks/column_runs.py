"""Runs of sorted blocks in LMDB, on numpy and pyarrow alone: a sketch of the columnar layout, for benchmarks/columns.py.

A row is a random key of 16 bytes, an int64, a float64 and 100 random bytes.
"""

from __future__ import annotations

import bisect
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import xxhash

KEY, VALUE = 16, 100
ROW = KEY + 8 + 8 + VALUE
FLUSHED = 500_000  # rows of a memtable of 64 MiB
FAN_IN = 4
BLOCK = 1024  # rows
BITS, PROBES, LINE = 10, 6, 512  # of the filter: bits per row, bits that are set in one line of so many
MAP = 1 << 36
SCHEMA = pa.schema([("k", pa.binary(KEY)), ("a", pa.int64()), ("b", pa.float64()), ("v", pa.binary())])
HEADER = struct.Struct("<5I")  # rows, and where the columns begin
PLACE = struct.Struct(">II")  # run, block
MASK = (1 << 64) - 1
ODD = 0xD6E8FEB86659FD93

Array = Any  # of numpy


# -- rows, runs and blocks


def random_rows(random: Any, count: int) -> Any:
    """A record batch in no order, as writers send rows."""
    offsets = (np.arange(count + 1, dtype=np.int32) * VALUE).tobytes()
    columns = [
        pa.Array.from_buffers(pa.binary(KEY), count, [None, pa.py_buffer(random.bytes(KEY * count))]),
        pa.array(random.integers(0, 1 << 40, count)),
        pa.array(random.random(count)),
        pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(random.bytes(VALUE * count))]
        ),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def words(batch: Any) -> tuple[Array, Array]:
    """The keys as two numbers each, which have the order of the bytes."""
    raw = np.frombuffer(batch.column(0).buffers()[1], dtype=">u8")
    both = raw[2 * batch.column(0).offset :][: 2 * batch.num_rows].reshape(-1, 2)
    return both[:, 0].astype(np.uint64), both[:, 1].astype(np.uint64)


def order(first: Array, second: Array, kind: Any) -> Array:
    """By the first word; by both only if two first words are equal."""
    found = np.argsort(first, kind=kind)
    ordered = first[found]
    return np.lexsort((second, first)) if (ordered[1:] == ordered[:-1]).any() else found


def mixed(word: Array) -> Array:
    for _ in range(2):
        word = (word ^ (word >> np.uint64(32))) * np.uint64(ODD)
    return word ^ (word >> np.uint64(32))


def hashes(first: Array, second: Array) -> Array:
    return mixed(first ^ mixed(second))


def probes(hashed: Array, lines: int) -> Iterator[Array]:
    line = ((hashed >> np.uint64(32)) * np.uint64(lines) >> np.uint64(32)).astype(np.int64) * LINE
    start, step = hashed & np.uint64(0xFFFF), (hashed >> np.uint64(16) & np.uint64(0xFFFF)) | np.uint64(1)
    for at in range(PROBES):
        yield line + ((start + np.uint64(at) * step) & np.uint64(LINE - 1)).astype(np.int64)


def make_filter(hashed: Array) -> bytes:
    lines = len(hashed) * BITS // LINE + 1
    bits = np.zeros(lines * LINE, dtype=np.bool_)
    for place in probes(hashed, lines):
        bits[place] = True
    made: bytes = np.packbits(bits, bitorder="little").tobytes()
    return made


def encode(batch: Any) -> bytes:
    """A block: a header, and the columns where a reader finds them without any parsing."""
    count = batch.num_rows
    begin = batch.column(0).offset
    parts = [memoryview(batch.column(0).buffers()[1])[KEY * begin :][: KEY * count]]
    parts += [memoryview(batch.column(at).buffers()[1])[8 * begin :][: 8 * count] for at in (1, 2)]
    offsets = np.frombuffer(batch.column(3).buffers()[1], dtype=np.int32)[begin:][: count + 1]
    parts.append(memoryview((offsets - offsets[0]).tobytes()))
    parts.append(memoryview(batch.column(3).buffers()[2])[offsets[0] : offsets[-1]])
    places, at = [], HEADER.size + 8
    for part in parts[:-1]:
        places.append(at)
        at += len(part)
    body = b"".join([HEADER.pack(count, *places), *parts])
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(body)) + body


@dataclass
class Run:
    number: int
    last: list[bytes]  # the last key of each block
    filters: list[bytes]

    @cached_property
    def first_words(self) -> Array:
        return np.array([int.from_bytes(key[:8]) for key in self.last], dtype=np.uint64)

    def maybe(self, hashed: int) -> bool:
        bits = self.filters[0]
        line = ((hashed >> 32) * (len(bits) * 8 // LINE) >> 32) * LINE
        start, step = hashed & 0xFFFF, hashed >> 16 & 0xFFFF | 1
        for at in range(PROBES):
            place = line + (start + at * step & LINE - 1)
            if not bits[place >> 3] >> (place & 7) & 1:
                return False
        return True


class Runs:
    def __init__(self, directory: Path, block: int = BLOCK) -> None:
        self._block = block
        self.environment = lmdb.open(str(directory), map_size=MAP, max_dbs=1)
        self.database = self.environment.open_db(b"blocks")
        self.path = directory / "data.mdb"
        self.steps: dict[str, float] = {}
        self.longest = 0.0  # seconds of the longest transaction
        self._next = 0

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.steps[name] = self.steps.get(name, 0.0) + time.perf_counter() - began

    def write(self, run: Run, batch: Any, gone: Sequence[bytes] = ()) -> None:
        """Add blocks of this batch, which is in order, and remove others: one synced transaction."""
        whole = [batch.slice(at, self._block) for at in range(0, batch.num_rows, self._block)]
        with self.timing("blocks and digests"):
            blocks = [encode(each) for each in whole]
        with self.timing("filter"):
            run.filters.append(make_filter(hashes(*words(batch))))
        began = time.perf_counter()
        with self.timing("synced transaction"):
            self._commit(run, blocks, gone)
        self.longest = max(self.longest, time.perf_counter() - began)
        run.last += [
            block[8 + HEADER.size + KEY * (each.num_rows - 1) :][:KEY]
            for block, each in zip(blocks, whole, strict=True)
        ]

    def _commit(self, run: Run, blocks: Sequence[bytes], gone: Sequence[bytes]) -> None:
        with self.environment.begin(write=True, db=self.database) as transaction:
            for place in gone:
                transaction.delete(place)
            for at, block in enumerate(blocks, len(run.last)):
                transaction.put(PLACE.pack(run.number, at), block)

    def new(self) -> Run:
        self._next += 1
        return Run(self._next, [], [])

    def flush(self, batch: Any) -> Run:
        with self.timing("key words"):
            both = words(batch)
        with self.timing("order"):
            found = pa.array(order(*both, kind="quicksort"))
        with self.timing("moved columns"):
            ordered = batch.take(found)
        run = self.new()
        self.write(run, ordered)
        return run

    def read(self, run: Run) -> Any:
        """The whole run, as Arrow."""
        with self.environment.begin(db=self.database) as transaction:
            return pa.concat_batches(
                [decode(transaction.get(PLACE.pack(run.number, at))) for at in range(len(run.last))]
            )

    def scan(self) -> int:
        """The sum of a column over all blocks, where they lie."""
        total = 0
        with self.environment.begin(db=self.database, buffers=True) as transaction:
            for _, block in transaction.cursor(self.database):
                batch = decode(block)
                total += int(np.frombuffer(batch.column(1).buffers()[1], np.int64, batch.num_rows).sum())
        return total

    def merge(self, runs: Sequence[Run]) -> Run:
        """The newest run is the last one. One range of keys after the other: a transaction adds what is merged of it, and removes the
        blocks that end in it. Until a block is removed, the new run overwrites its rows, or has the same ones."""
        made, removed, before = self.new(), [0] * len(runs), b""
        rows = self._block * sum(len(run.last) for run in runs)
        cuts = np.linspace(0, 2**64 - 1, max(2, rows // FLUSHED + 1))[1:].astype(np.float64)
        for cut in [*(int(each).to_bytes(8) + bytes(8) for each in cuts[:-1]), b"\xff" * KEY]:
            with self.timing("read"):
                found = [self._range(run, before, cut) for run in reversed(runs)]
            with self.timing("merge"):
                merged = self._piece(pa.concat_batches(found))
            ends = [bisect.bisect_right(run.last, cut) for run in runs]
            gone = [
                PLACE.pack(run.number, at)
                for run, begin, end in zip(runs, removed, ends, strict=True)
                for at in range(begin, end)
            ]
            self.write(made, merged, gone)
            removed, before = ends, cut
        return made

    def _range(self, run: Run, after: bytes, upto: bytes) -> Any:
        first, last = bisect.bisect_right(run.last, after), bisect.bisect_left(run.last, upto)
        with self.environment.begin(db=self.database) as transaction:
            places = (PLACE.pack(run.number, at) for at in range(first, min(last + 1, len(run.last))))
            blocks = [decode(transaction.get(place)) for place in places]
        if not blocks:
            return pa.RecordBatch.from_pylist([], schema=SCHEMA)
        whole = pa.concat_batches(blocks)
        keys = words(whole)[0]
        edges = [
            np.searchsorted(keys, np.uint64(int.from_bytes(each[:8])), "right") if each else 0
            for each in (after, upto)
        ]
        return whole.slice(edges[0], edges[1] - edges[0])

    def _piece(self, joined: Any) -> Any:
        first, second = words(joined)
        found = order(first, second, kind="stable")  # equal keys: the newest run is the first
        first, second = first[found], second[found]
        newest = np.concatenate(([True], (first[1:] != first[:-1]) | (second[1:] != second[:-1])))
        return joined.take(pa.array(found[newest]))


def decode(block: Any) -> Any:
    """A block as Arrow, without a copy; its digest is verified."""
    view = memoryview(block)
    if xxhash.xxh3_64_intdigest(view[8:]) != struct.unpack_from("<Q", block)[0]:
        raise ValueError("a block is damaged")
    count, *places = HEADER.unpack_from(block, 8)
    whole = pa.py_buffer(block)
    buffers = [whole.slice(at) for at in places]
    columns = [
        pa.Array.from_buffers(kind.type, count, [None, buffer])
        for kind, buffer in zip(SCHEMA, buffers[:3], strict=False)
    ]
    values = whole.slice(places[3] + 4 * (count + 1))
    columns.append(pa.Array.from_buffers(pa.binary(), count, [None, buffers[3], values]))
    return pa.record_batch(columns, schema=SCHEMA)


def mixed_key(key: bytes) -> int:
    """As `hashes`, of one key."""
    first, word = struct.unpack(">QQ", key)
    for again in range(2):
        for _ in range(2):
            word = (word ^ (word >> 32)) * ODD & MASK
        word ^= word >> 32
        if not again:
            word ^= first
    return int(word)


class Reader:
    def __init__(self, store: Runs, runs: Sequence[Run]) -> None:
        self._transaction = store.environment.begin(db=store.database, buffers=True)
        self._newest_first = list(reversed(runs))
        self._verified: set[tuple[int, int]] = set()

    def get(self, key: bytes) -> tuple[Any, ...] | None:
        hashed = mixed_key(key)
        for run in self._newest_first:
            if run.maybe(hashed):
                at = bisect.bisect_left(run.last, key)
                if at < len(run.last) and (found := self._find(self._block(run.number, at), key)):
                    return found
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[tuple[Any, ...] | None]:
        """Filters and directories for all keys at once; in the blocks, key by key."""
        found: list[tuple[Any, ...] | None] = [None] * len(keys)
        both = np.frombuffer(b"".join(keys), dtype=">u8").astype(np.uint64).reshape(-1, 2)
        hashed, left = hashes(both[:, 0], both[:, 1]), np.arange(len(keys))
        for run in self._newest_first:
            bits = np.frombuffer(run.filters[0], dtype=np.uint8)
            maybe = np.ones(len(left), dtype=np.bool_)
            for place in probes(hashed[left], len(bits) * 8 // LINE):
                maybe &= (bits[place >> 3] >> (place & 7).astype(np.uint8) & 1).astype(np.bool_)
            asked = left[maybe]
            blocks = np.searchsorted(run.first_words, both[asked, 0])
            for at, block in sorted(
                zip(asked.tolist(), blocks.tolist(), strict=True), key=lambda each: each[1]
            ):
                if block < len(run.last):
                    found[at] = self._find(self._block(run.number, block), keys[at])
            left = np.array([at for at in left.tolist() if found[at] is None], dtype=np.int64)
        return found

    def _block(self, number: int, at: int) -> Any:
        block: Any = self._transaction.get(PLACE.pack(number, at))
        if (number, at) not in self._verified:
            if xxhash.xxh3_64_intdigest(block[8:]) != struct.unpack_from("<Q", block)[0]:
                raise ValueError("a block is damaged")
            self._verified.add((number, at))
        return block

    def _find(self, block: Any, key: bytes) -> tuple[Any, ...] | None:
        count, keys, first, second, ends = HEADER.unpack_from(block, 8)
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if block[(at := keys + KEY * middle) : at + KEY].tobytes() < key:
                low = middle + 1
            else:
                high = middle
        if low == count or block[keys + KEY * low : keys + KEY * (low + 1)] != key:
            return None
        begin, end = struct.unpack_from("<II", block, ends + 4 * low)
        values = ends + 4 * (count + 1)
        return (
            struct.unpack_from("<q", block, first + 8 * low)[0],
            struct.unpack_from("<d", block, second + 8 * low)[0],
            bytes(block[values + begin : values + end]),
        )
