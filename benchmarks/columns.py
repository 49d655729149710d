"""The cost of a columnar layout of tablets, on numpy, pyarrow and LMDB alone. docs/storage.md has the results and what follows.

python -m benchmarks.columns [--rows 10000000] [--only flush,compact,get,scan,pins]

flush     one memtable becomes a run: key words, order, moved columns, blocks with digests, filter, one synced transaction
compact   runs of that size are merged, four at a time, until one is left, in ranges of keys
get       single keys and many keys through filter, directory and block, beside a tree with one item per row
scan      every block is verified, and a column summed
pins      the pages that a reader's snapshot holds back in the file while runs come and go
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from crc32c import crc32c

from benchmarks.column_runs import (
    BLOCK,
    FAN_IN,
    FLUSHED,
    KEY,
    MAP,
    PLACE,
    ROW,
    Reader,
    Run,
    Runs,
    mixed_key,
    random_rows,
    words,
)
from benchmarks.figures import Figure, Stopwatch, number


def row(figure: Figure) -> str:
    floor = f"{number(figure.floor)} {figure.floor_name}" if figure.floor else ""
    return f"| {figure.name} | {number(figure.value)} | {figure.unit} | {floor} |"


def seconds(work: Callable[[], Any]) -> float:
    with Stopwatch() as watch:
        work()
    return watch.seconds


def flush(directory: Path, rows: int) -> Iterator[Figure]:
    random, store = np.random.default_rng(1), Runs(directory)
    count = max(2, min(10, rows // FLUSHED))
    batches = [random_rows(random, FLUSHED) for _ in range(count)]
    whole_s = seconds(lambda: [store.flush(batch) for batch in batches])
    for name, taken in store.steps.items():
        yield Figure(f"flush: {name}", taken / count / FLUSHED * 1e9, "ns/row")
    floor = lmdb.open(str(directory / "floor"), map_size=MAP)
    blocks = [random.bytes(BLOCK * ROW) for _ in range(FLUSHED // BLOCK)]

    def bare() -> None:
        with floor.begin(write=True) as transaction:
            for at, block in enumerate(blocks):
                transaction.put(PLACE.pack(0, at), block)

    yield Figure(
        "flush: all",
        whole_s / count / FLUSHED * 1e9,
        "ns/row",
        floor=seconds(bare) / FLUSHED * 1e9,
        floor_name="bare blocks, synced",
    )
    size = store.path.stat().st_size / (count * FLUSHED * ROW)
    yield Figure("flush: bytes on disk of a byte of data", size, "")


def compact(directory: Path, rows: int) -> Iterator[Figure]:
    random, store = np.random.default_rng(2), Runs(directory)
    runs = [store.flush(random_rows(random, FLUSHED)) for _ in range(max(FAN_IN, rows // FLUSHED))]
    store.steps.clear()
    store.longest, moved = 0.0, 0
    before = store.path.stat().st_size
    began = time.perf_counter()
    while len(runs) > 1:
        taken, runs = runs[:FAN_IN], runs[FAN_IN:]
        runs.append(store.merge(taken))
        moved += BLOCK * sum(len(run.last) for run in taken)
    whole_s = time.perf_counter() - began
    kept = words(store.read(runs[0]))[0]
    assert len(kept) == max(FAN_IN, rows // FLUSHED) * FLUSHED and (kept[1:] >= kept[:-1]).all()
    for name, spent in store.steps.items():
        yield Figure(f"compact: {name}", spent / moved * 1e9, "ns/row moved")
    yield Figure("compact: all", whole_s / moved * 1e9, "ns/row moved")
    yield Figure("compact: how often a row is moved", moved / max(rows, FAN_IN * FLUSHED), "")
    yield Figure("compact: the longest transaction", store.longest, "s")
    grown = (store.path.stat().st_size - before) / before
    yield Figure("compact: growth of the file", grown * 100, "%")


def get(directory: Path, rows: int) -> Iterator[Figure]:
    random, store = np.random.default_rng(3), Runs(directory)
    runs: list[Run] = []
    keys: list[bytes] = []
    tree = lmdb.open(str(directory / "tree"), map_size=MAP)
    for _ in range(FAN_IN):
        batch = random_rows(random, rows // FAN_IN)
        runs.append(store.flush(batch))
        written = store.read(runs[-1])
        column = written.column(0).to_pylist()
        keys += [column[at] for at in random.integers(0, len(column), 2500)]
        with tree.begin(write=True) as transaction:
            packed = bytes(ROW - KEY - 4)
            for key in column:
                transaction.put(key, packed + struct.pack("<I", crc32c(packed)))
    random.shuffle(keys)
    absent = [random.bytes(KEY) for _ in keys]

    def each_us(asked: Sequence[bytes], ask: Callable[[bytes], Any]) -> float:
        return seconds(lambda: [ask(key) for key in asked]) / len(asked) * 1e6

    reading: Any
    with tree.begin(buffers=True) as reading:

        def item(key: bytes) -> bytes | None:
            found = reading.get(key)
            if found is None:
                return None
            if crc32c(found[:-4]) != struct.unpack("<I", found[-4:])[0]:
                raise ValueError("a row is damaged")
            return bytes(found)

        each_us(keys, item)
        tree_us, tree_absent_us = each_us(keys, item), each_us(absent, item)
    reader = Reader(store, runs)
    assert all(reader.get(key) for key in keys[:100]) and not any(map(reader.get, absent[:100]))
    of = "tree of rows"
    yield Figure(
        "get: the first of a block, which verifies it",
        each_us(keys, Reader(store, runs).get),
        "us",
        floor=tree_us,
        floor_name=of,
    )
    each_us(keys, reader.get)
    yield Figure(
        "get: a key that is there, in one of four runs",
        each_us(keys, reader.get),
        "us",
        floor=tree_us,
        floor_name=of,
    )
    yield Figure(
        "get: a key that is not there", each_us(absent, reader.get), "us", floor=tree_absent_us, floor_name=of
    )
    wrong = sum(runs[0].maybe(mixed_key(key)) for key in absent) / len(absent)
    yield Figure("get: filter says maybe of a key that is not there", wrong * 100, "%")
    reader.get_many(keys)
    for count in (100, len(keys)):
        asked = keys[:count]
        many_us = seconds(partial(reader.get_many, asked)) / count * 1e6
        yield Figure(
            f"get_many: one of {count:,} keys of {rows:,}", many_us, "us", floor=tree_us, floor_name=of
        )
    many_us = seconds(lambda: reader.get_many(absent)) / len(absent) * 1e6
    yield Figure(
        "get_many: one of as many that are not there", many_us, "us", floor=tree_absent_us, floor_name=of
    )


def scan(directory: Path, rows: int) -> Iterator[Figure]:
    for block in (BLOCK, 4 * BLOCK, 16 * BLOCK):
        store = Runs(directory / str(block), block)
        store.flush(random_rows(np.random.default_rng(5), min(rows, 4 * FLUSHED)))
        store.scan()
        rate = min(rows, 4 * FLUSHED) / seconds(store.scan) / 1e6
        yield Figure(f"scan: verified, a column summed, {block:,} rows in a block", rate, "M rows/s")


def replaced(store: Runs, batch: Any, gone: Run) -> Run:
    run = store.new()
    store.write(run, batch, [PLACE.pack(gone.number, at) for at in range(len(gone.last))])
    return run


def pins(directory: Path, rows: int) -> Iterator[Figure]:
    random = np.random.default_rng(4)
    batch = random_rows(random, FLUSHED)
    for pinned in (False, True):
        path = directory / ("pinned" if pinned else "free")
        store = Runs(path)
        runs = [store.flush(batch) for _ in range(3)]
        before = store.path.stat().st_size
        reader = store.environment.begin(db=store.database) if pinned else None
        cycles = 8
        for _ in range(cycles):
            runs = [*runs[1:], replaced(store, batch, runs[0])]
        after = store.path.stat().st_size
        name = "with a reader" if pinned else "without"
        yield Figure(
            f"pins: growth of the file, {name}",
            (after - before) / (cycles * FLUSHED * ROW),
            "of what was written",
        )
        if reader is not None:
            reader.abort()
            for _ in range(cycles):
                runs = [*runs[1:], replaced(store, batch, runs[0])]
            more = (store.path.stat().st_size - after) / (cycles * FLUSHED * ROW)
            yield Figure("pins: after its end", more, "of what was written")


PARTS = {"flush": flush, "compact": compact, "get": get, "scan": scan, "pins": pins}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.columns")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--only", default=",".join(PARTS))
    given = parser.parse_args(arguments)
    print("| what | value | unit | beside |\n| --- | ---: | --- | --- |")
    for name in given.only.split(","):
        with tempfile.TemporaryDirectory() as directory:
            for figure in PARTS[name](Path(directory), given.rows):
                print(row(figure), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
