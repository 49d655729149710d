"""The structure check of small LMDB files: it accepts all healthy files, and finds every flipped bit of the structure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from ebla.chaos.powercut.damage.btree import FREE, MAIN, File
from ebla.storage.errors import Damaged
from ebla.storage.lmdb.structure import HEADER, check
from tests.storage.disks import in_loop, make, reopen

KEEP = 0x8000  # a flag of a page that LMDB need not write
PAD = (8, 9)  # unused bytes of a page's header
LARGE = 3000  # takes pages of its own


@pytest.mark.parametrize("seed", range(8))
def test_no_healthy_file_is_refused(tmp_path: Path, seed: int) -> None:
    """A reader holds pages back for a while, so that the list of free pages becomes long."""
    rng = random.Random(seed)
    with lmdb.open(str(tmp_path), map_size=64 << 20, max_dbs=4) as environment:
        tables = [environment.open_db(name) for name in (b"one", b"two")]
        reader = None
        for number in range(120):
            with environment.begin(write=True) as transaction:
                for _ in range(rng.choice((1, 5, 200))):
                    change(rng, transaction, rng.choice(tables))
            if number % 20 == 0:
                if reader is not None:
                    reader.abort()
                reader = environment.begin()
            data = (tmp_path / "data.mdb").read_bytes()
            if rng.random() < 0.3 or number > 110:
                check(data, "one")
        assert reader is not None
        reader.abort()
    live = File(data).live()
    assert {"leaf", "branch", "overflow"} <= {page.kind for page in live}
    assert any(page.database == FREE for page in live)


def change(rng: random.Random, transaction: lmdb.Transaction[bytes], table: lmdb._Database) -> None:
    key = b"k" * rng.randrange(40) + b"%04d" % rng.randrange(1000)
    chance = rng.random()
    if chance < 0.6:
        transaction.put(key, bytes(rng.choice((0, 1, 30, 99, LARGE, 5 * LARGE))), db=table)
    elif chance < 0.98:
        transaction.delete(key, db=table)
    elif chance < 0.998:
        with transaction.cursor(table) as cursor:
            found = cursor.set_range(key)
            for _ in range(200):
                found = found and cursor.delete()
    else:
        transaction.drop(table, delete=False)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A branch and leaves, a value on pages of its own, free pages."""
    path = tmp_path_factory.mktemp("lmdb")
    with lmdb.open(str(path), map_size=1 << 24, max_dbs=4) as environment:
        rows = environment.open_db(b"rows")
        for _ in range(3):
            with environment.begin(write=True) as transaction:
                for row in range(60):
                    transaction.put(b"%0200d" % row, b"%05d" % row * 3, db=rows)
                transaction.put(b"large", b"L" * LARGE, db=rows)
    data = (path / "data.mdb").read_bytes()
    check(data, "rows")
    return data


def structure_of(data: bytes) -> Iterator[tuple[int, str]]:
    """Return the offset of every byte of headers and pointers of used pages."""
    file = File(data)
    for page in file.live():
        if not page.kind.endswith("root"):
            for offset in range(file.page_bytes):
                part = file.part(page, offset)
                if part in ("page header", "page pointers", "child pointer") and not (
                    part == "page header" and offset in PAD
                ):
                    yield page.number * file.page_bytes + offset, part


def test_every_flipped_bit_of_headers_and_pointers_is_found(healthy: bytes) -> None:
    places = list(structure_of(healthy))
    assert {part for _, part in places} == {"page header", "page pointers", "child pointer"}
    missed = []
    for place, part in places:
        for bit in range(8):
            data = bytearray(healthy)
            data[place] ^= 1 << bit
            try:
                check(bytes(data), "rows")
                missed.append((place, bit, part))
            except Damaged:
                continue
    assert missed == []


def test_every_flipped_bit_of_tree_records_is_found(healthy: bytes) -> None:
    file = File(healthy)
    (names,) = [page.number for page in file.live() if page.database == MAIN]
    at = healthy.index(b"rows", names * file.page_bytes) + len(b"rows")
    for bit in range(48 * 8):
        data = bytearray(healthy)
        data[at + bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            check(bytes(data), "rows")


def test_swapped_pages_are_found(healthy: bytes) -> None:
    file = File(healthy)
    first, second = [page for page in file.live() if page.kind == "leaf" and page.database == "rows"][:2]
    size = file.page_bytes
    data = bytearray(healthy)
    here, there = (slice(page.number * size, (page.number + 1) * size) for page in (first, second))
    data[here], data[there] = healthy[there], healthy[here]
    with pytest.raises(Damaged, match="the header of page"):
        check(bytes(data), "rows")


@in_loop
async def test_a_page_that_lmdb_would_not_write_is_refused_at_the_start(tmp_path: Path) -> None:
    """Reads do not show this damage; the next write to the page would be lost."""
    await make(tmp_path, "data/a")
    file = tmp_path / "data/a/data.mdb"
    data = bytearray(file.read_bytes())
    (page,) = [page for page in File(bytes(data)).live() if page.database == "t"]
    at = page.number * File(bytes(data)).page_bytes
    number, pad, flags, lower, upper = HEADER.unpack_from(data, at)
    HEADER.pack_into(data, at, number, pad, flags | KEEP, lower, upper)
    file.write_bytes(bytes(data))
    with pytest.raises(
        Damaged, match=r"data/a is damaged: the header of page .* is broken; rebuild it from a peer"
    ):
        await reopen(tmp_path, "data/a")
