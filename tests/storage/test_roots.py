"""Seals of LMDB's roots on real files: every flipped bit is found, and a file after a power cut is accepted."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from itertools import product
from pathlib import Path

import lmdb
import pytest

from ebla.storage.directories.instance import FAILED
from ebla.storage.environment import Delete, Put
from ebla.storage.errors import Corruption, Damaged, DiskFailed
from ebla.storage.lmdb.environment import RENEW_ITEMS, LmdbEnvironment
from ebla.storage.lmdb.roots import (
    HEADER_BYTES,
    NUMBER_AT,
    ROOT_BYTES,
    SEAL_AT,
    SEAL_BYTES,
    SEALED_BYTES,
    TREES_AT,
    Pages,
    Roots,
    held,
    number_of,
    unsealed,
)
from tests.storage.disks import in_loop, opened

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MEANT = [*range(ROOT_BYTES), *range(SEAL_AT, SEALED_BYTES)]
COMMITS = 6


def put(key: bytes, value: bytes = b"v") -> list[Put]:
    return [Put("t", [(key, value)])]


def pages_of(data: Path) -> Pages:
    content = data.read_bytes()
    return content[:SEALED_BYTES], content[PAGE_BYTES:][:SEALED_BYTES]


@asynccontextmanager
async def meta(root: Path, *, create: bool = False) -> AsyncIterator[LmdbEnvironment]:
    """An environment in a new incarnation."""
    async with opened(root) as disk:
        yield await disk.open_environment("meta", ["t"], create=create, map_bytes=1 << 20)


async def start(root: Path, *, create: bool = False) -> Path:
    """Open and close the environment; return its file."""
    async with meta(root, create=create) as environment:
        return Path(environment.directory) / "data.mdb"


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Pages]:
    """The two pages after each of several commits."""

    async def commits() -> list[Pages]:
        found: list[Pages] = []
        async with meta(tmp_path_factory.mktemp("states"), create=True) as environment:
            for number in range(COMMITS):
                await environment.commit(put(b"%d" % number))
                found.append(pages_of(Path(environment.directory) / "data.mdb"))
        return found

    return asyncio.run(commits())


def turned(pages: Pages, place: int, byte: int, bit: int) -> Pages:
    page = bytearray(pages[place])
    page[byte] ^= 1 << bit
    return (bytes(page), pages[1]) if place == 0 else (pages[0], bytes(page))


def newest(pages: Pages) -> int:
    return max(map(number_of, pages))


def accepted(pages: Pages) -> bool:
    try:
        unsealed(pages, "meta")
    except Damaged:
        return False
    return True


@pytest.mark.parametrize("state", [-2, -1])
def test_every_flipped_bit_of_the_roots_and_their_seals_is_found(states: list[Pages], state: int) -> None:
    assert unsealed(states[state], "meta") is None
    missed = [
        (place, byte, bit)
        for place, byte, bit in product((0, 1), MEANT, range(8))
        if accepted(turned(states[state], place, byte, bit))
    ]
    assert missed == []


@pytest.mark.parametrize("state", [-2, -1])
def test_a_flipped_bit_beside_an_unsealed_newest_root_is_found(states: list[Pages], state: int) -> None:
    """A power cut may leave a newest root without its seal. The older root, its seal and all numbers are still checked."""
    before, after = states[state - 1], states[state]
    place = newest(after) & 1
    cut: Pages = (before[0], after[1]) if place else (after[0], before[1])
    assert unsealed(cut, "meta") == newest(after)
    missed = {
        (page, byte)
        for page, byte, bit in product((0, 1), MEANT, range(8))
        if accepted(turned(cut, page, byte, bit))
    }
    fields = {*range(HEADER_BYTES + 16, TREES_AT), *range(TREES_AT + 6, NUMBER_AT)}
    assert missed <= {(place, byte) for byte in fields}


def test_a_page_of_an_earlier_commit_is_refused_unless_only_the_newest_seal_is_missing(
    states: list[Pages],
) -> None:
    """The device lost a write of either root. Only the newest root's seal may be missing."""
    for (first, one), (second, other) in product(enumerate(states), repeat=2):
        mixed = (one[0], other[1])
        later = states[max(first, second)]
        only_its_seal_is_missing = abs(first - second) == 1 and newest(mixed) == newest(later)
        assert accepted(mixed) == (first == second or only_its_seal_is_missing), (first, second)


def test_swapped_roots_are_refused(states: list[Pages]) -> None:
    for first, second in states:
        assert not accepted((second, first))
        assert not accepted((first, first))
        assert not accepted((second, second))


@pytest.mark.parametrize("length", [0, 100, PAGE_BYTES, PAGE_BYTES + SEALED_BYTES - 1])
@in_loop
async def test_a_file_that_ends_within_its_roots_is_damaged(tmp_path: Path, length: int) -> None:
    data = await start(tmp_path, create=True)
    os.truncate(data, length)
    with (
        closing(Roots(data, "meta")) as roots,
        pytest.raises(Damaged, match=r"meta is damaged: its .* no root"),
    ):
        roots.check()


@in_loop
async def test_the_roots_of_a_new_environment_are_sealed_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[int | None] = []
    rename = os.rename

    def check(source: Path, target: Path) -> None:
        if (Path(source) / "data.mdb").is_file():
            named.append(unsealed(pages_of(Path(source) / "data.mdb"), "meta"))
        rename(source, target)

    monkeypatch.setattr(os, "rename", check)
    await start(tmp_path, create=True)
    assert named == [None]


def commit_unsealed(data: Path, count: int) -> None:
    """Commit without sealing, as a process that ends in between; more than one such commit never happens."""
    with lmdb.open(str(data.parent), max_dbs=8) as environment:
        table = environment.open_db(b"t", create=False)
        for number in range(count):
            with environment.begin(write=True) as transaction:
                transaction.put(b"unsealed %d" % number, b"v", db=table)


@in_loop
async def test_a_newest_root_without_its_seal_is_accepted_once_and_sealed(tmp_path: Path) -> None:
    async with meta(tmp_path, create=True) as environment:
        await environment.commit(put(b"k"))
    data = tmp_path / "meta/data.mdb"
    commit_unsealed(data, 1)
    number = newest(pages_of(data))
    assert unsealed(pages_of(data), "meta") == number
    async with meta(tmp_path) as environment:
        assert unsealed(pages_of(data), "meta") is None
        assert environment.get("t", b"unsealed 0") == b"v"
        assert environment.info()["last_txnid"] == number


@in_loop
async def test_an_older_root_without_its_seal_is_refused(tmp_path: Path) -> None:
    commit_unsealed(await start(tmp_path, create=True), 2)
    with pytest.raises(Damaged, match=r"root .* does not match its seal; rebuild it from a peer"):
        await start(tmp_path)


@in_loop
async def test_a_file_without_seals_is_refused(tmp_path: Path) -> None:
    data = await start(tmp_path, create=True)
    with open(data, "r+b") as file:
        for page in (0, 1):
            os.pwrite(file.fileno(), bytes(SEAL_BYTES), page * PAGE_BYTES + SEAL_AT)
    with pytest.raises(Damaged, match="does not match its seal"):
        await start(tmp_path)


@in_loop
async def test_databases_added_later_leave_the_roots_sealed(tmp_path: Path) -> None:
    data = await start(tmp_path, create=True)
    commit_unsealed(data, 1)
    async with opened(tmp_path) as disk:
        await disk.open_environment("meta", ["t", "added"], create=False)
        assert unsealed(pages_of(data), "meta") is None


@in_loop
async def test_an_empty_commit_changes_neither_root_nor_seal(tmp_path: Path) -> None:
    async with meta(tmp_path, create=True) as environment:
        await environment.commit(put(b"k"))
        before = pages_of(Path(environment.directory) / "data.mdb")
        await environment.commit([])
        await environment.commit([Delete("t", [b"absent"])])
        assert pages_of(Path(environment.directory) / "data.mdb") == before
        await environment.commit(put(b"another"))
    assert unsealed(pages_of(tmp_path / "meta/data.mdb"), "meta") is None


def descriptors(data: Path) -> int:
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += each.resolve() == data.resolve()
        except FileNotFoundError:
            continue  # the descriptor that reads the directory
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc here")
@in_loop
async def test_growth_and_opening_again_keep_the_seals_and_leak_no_descriptor(tmp_path: Path) -> None:
    data = tmp_path / "meta/data.mdb"
    async with meta(tmp_path, create=True) as environment:
        open_before = descriptors(data)
        for number in range(4):
            before = environment.lmdb
            items = [(b"%02d%06d" % (number, row), b"v" * 100) for row in range(RENEW_ITEMS)]
            await environment.commit([Put("t", items, True)])
            await environment.commit(put(b"later"))
            assert unsealed(pages_of(data), "meta") is None
            assert environment.lmdb is not before, "it was opened again"
        assert environment.info()["map_size"] > 1 << 20, "it has grown"
        assert descriptors(data) == open_before
    assert descriptors(data) == 0
    with open(data, "r+b") as file:
        file.write(b"\xff")
    with pytest.raises(Damaged):
        await start(tmp_path)
    assert descriptors(data) == 0


@pytest.mark.parametrize("place", [0, 1])
@in_loop
async def test_a_root_damaged_while_open_ends_in_a_refused_commit(tmp_path: Path, place: int) -> None:
    async with meta(tmp_path, create=True) as environment:
        await environment.commit(put(b"k"))
        with open(Path(environment.directory) / "data.mdb", "r+b") as file:
            at = place * PAGE_BYTES + HEADER_BYTES + 8  # an address that LMDB does not use
            os.pwrite(file.fileno(), b"\x01", at)
            with pytest.raises(Corruption, match="rebuild it from a peer"):
                await environment.commit(put(b"lost"))
            assert (environment.get("t", b"k"), environment.get("t", b"lost")) == (b"v", None)
            os.pwrite(file.fileno(), b"\x00", at)
        await environment.commit(put(b"later"))


def cannot_write(*_: object) -> int:
    raise OSError(errno.EIO, "the device fails")


@in_loop
async def test_a_seal_that_cannot_be_written_fails_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with meta(tmp_path, create=True) as environment:
        with monkeypatch.context() as failing:
            failing.setattr(os, "pwrite", cannot_write)
            with pytest.raises(DiskFailed, match="cannot seal root"):
                await environment.commit(put(b"k"))
        with pytest.raises(DiskFailed):
            await environment.commit(put(b"later"))
    assert (tmp_path / FAILED).exists()


@in_loop
async def test_a_seal_that_cannot_be_written_at_a_start_fails_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_unsealed(await start(tmp_path, create=True), 1)
    async with opened(tmp_path) as disk:
        with monkeypatch.context() as failing, pytest.raises(DiskFailed, match="cannot seal root"):
            failing.setattr(os, "pwrite", cannot_write)
            await disk.open_environment("meta", ["t"], create=False)


def test_the_seal_of_a_root_lies_beside_the_other_one(states: list[Pages]) -> None:
    assert all(held(one) != held(other) for one, other in states)
