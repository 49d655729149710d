"""Environments appear, spread over disks and vanish by single durable steps; damage never counts as new."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path

import lmdb
import pytest

from ebla.storage.directories.instance import FAILED
from ebla.storage.environment import Delete, Put
from ebla.storage.errors import (
    Corruption,
    Damaged,
    DiskFailed,
    EblaError,
    InvalidArgument,
    StorageError,
)
from ebla.storage.lmdb import structure
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.lmdb.reader import LmdbReader
from tests.storage.disks import RECORD, in_loop, make, on_one_disk, opened, reopen


@in_loop
async def test_environments_are_listed_by_directory_and_removed_for_good(tmp_path):
    async with opened(tmp_path) as disk:
        for path in ("wals/b", "wals/a", "meta"):
            await disk.open_environment(path, ["t"], create=True)
        assert disk.list("wals") == ["a", "b"] and disk.list("data") == []
        assert disk.exists("wals/a") and disk.exists("meta") and not disk.exists("wals")
        with pytest.raises(StorageError, match="close it before"):
            await disk.remove("wals/a")
        await (await disk.open_environment("wals/c", ["t"], create=True)).close()
        await disk.remove("wals/c")
        await disk.remove("wals/c")
        assert disk.list("wals") == ["a", "b"] and disk.size_bytes() > 0
        with pytest.raises(StorageError, match="open already"):
            await disk.open_environment("wals/a", ["t"], create=True)
    assert not (tmp_path / "wals/c").exists()


@in_loop
async def test_a_missing_environment_that_must_exist_is_damaged(tmp_path):
    await make(tmp_path, "meta")
    with pytest.raises(Damaged, match="wals/shared must exist"):
        await reopen(tmp_path, "wals/shared")
    assert not (tmp_path / "wals").exists()


def put_another_instance_there(place: Path) -> None:
    async def other():
        async with opened(place.parent / "other", uuid="another") as disk:
            await disk.open_environment("meta", ["t"], create=True)

    asyncio.run(other())
    shutil.copy(place.parent / "other/meta/data.mdb", place / "data.mdb")


def lose_a_database(place: Path) -> None:
    with lmdb.open(str(place), max_dbs=8) as environment:
        table = environment.open_db(b"t")
        with environment.begin(write=True) as transaction:
            transaction.drop(table)


HARMS = {
    "lost": lambda place: (place / "data.mdb").unlink(),
    "empty": lambda place: (place / "data.mdb").write_bytes(b""),
    "cut off": lambda place: os.truncate(place / "data.mdb", 2 * 4096),
    "overwritten": lambda place: (place / "data.mdb").write_bytes(os.urandom(64 * 1024)),
    "another instance": put_another_instance_there,
    "without a database": lose_a_database,
}


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("harm", HARMS)
@in_loop
async def test_a_harmed_environment_is_damaged_and_not_new(tmp_path, harm, create):
    await make(tmp_path, "meta")
    await asyncio.to_thread(HARMS[harm], tmp_path / "meta")  # it may need a loop of its own
    async with opened(tmp_path) as disk:
        assert disk.exists("meta")
        with pytest.raises(Damaged, match="meta"):
            await disk.open_environment("meta", ["t"], create=create)
        await disk.open_environment("elsewhere", ["t"], create=True)


@in_loop
async def test_an_environment_in_the_wrong_place_is_damaged(tmp_path):
    await make(tmp_path, "data/a", "data/b")
    shutil.copy(tmp_path / "data/a/data.mdb", tmp_path / "data/b/data.mdb")
    with pytest.raises(Damaged, match="data/b is data/a"):
        await reopen(tmp_path, "data/b")


@on_one_disk
async def test_page_headers_damaged_while_open_are_corruption(disk, tmp_path):
    """The page cache shows overwritten page headers to this process."""
    environment = await disk.open_environment("meta", ["t"], create=True)
    await environment.commit([Put("t", [(b"%06d" % n, b"x" * 100) for n in range(5000)], True)])
    data = tmp_path / "meta/data.mdb"
    with open(data, "r+b") as file:
        for page in range(2, data.stat().st_size // 4096):
            file.seek(page * 4096 + 10)
            file.write(b"\xff\xff")  # page flags: none that exist
    with pytest.raises(Corruption, match="rebuild"):
        environment.items("t")
    with pytest.raises(Corruption):
        await environment.commit([Put("t", [(b"000100", b"new")])])
    with pytest.raises(Corruption):
        environment.get("t", b"000100")


@in_loop
async def test_a_truncated_file_never_ends_the_process_and_never_gives_wrong_values(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "BYTES_MAX", 0)  # as if it were large
    rows = [(b"%06d" % n, b"%06d" % n * 20) for n in range(5000)]
    async with opened(tmp_path) as disk:
        environment = await disk.open_environment("meta", ["t"], create=True)
        for first in range(0, 5000, 500):
            await environment.commit([Put("t", rows[first : first + 500], True)])
    data = tmp_path / "meta/data.mdb"
    for tenths in range(9, 1, -1):
        os.truncate(data, data.stat().st_size * tenths // 10)
        found = []
        try:
            async with opened(tmp_path) as disk:
                environment = await disk.open_environment("meta", ["t"], create=False)
                for key, _ in rows:
                    with suppress(Corruption):
                        found.append((key, environment.get("t", key)))
        except Damaged:
            assert tenths < 9  # the root itself is lost
        assert len(found) < len(rows) and set(found) <= set(rows)


@in_loop
async def test_a_file_whose_last_pages_were_freed_unwritten_is_healthy(tmp_path):
    async with opened(tmp_path) as disk:
        environment = await disk.open_environment("meta", ["t"], create=True)
        for _ in range(4):  # frees pages before the large value, to which the tree is written
            await environment.commit(RECORD)
        await environment.commit([*RECORD, Put("t", [(b"large", bytes(100_000))]), Delete("t", [b"large"])])
        used_bytes = environment.size_bytes()
    assert (tmp_path / "meta/data.mdb").stat().st_size < used_bytes
    assert await reopen(tmp_path, "meta") == b"v"


@in_loop
async def test_databases_may_be_added_later(tmp_path):
    await make(tmp_path, "meta")

    async with opened(tmp_path) as disk:
        environment = await disk.open_environment("meta", ["t", "new"], create=False)
        await environment.commit([Put("new", [(b"a", b"1")])])
        assert environment.get("t", b"k") == b"v"
    assert await reopen(tmp_path, "meta") == b"v"


@in_loop
async def test_data_spreads_over_data_directories_and_is_found_again(tmp_path):
    root, disks = tmp_path / "role", (tmp_path / "d0", tmp_path / "d1")
    await make(root, "data/a", "data/b", "data/c", "meta", data_dirs=disks)
    assert [sorted(os.listdir(disk / "data")) for disk in disks] == [["a", "c"], ["b"]]
    assert await reopen(root, "data/b", disks) == await reopen(root, "data/c", disks) == b"v"

    async with opened(root, *disks) as disk:
        assert disk.list("data") == ["a", "b", "c"]
        await disk.remove("data/a")
        await (await disk.open_environment("data/d", ["t"], create=True)).close()
    assert [sorted(os.listdir(disk / "data")) for disk in disks] == [["c", "d"], ["b"]]


@in_loop
async def test_data_without_a_link_is_not_used_for_a_new_environment(tmp_path):
    """It remains from an interrupted placement, or from a tablet deleted while its disk was lost."""
    root, disks = tmp_path / "role", (tmp_path / "d0",)
    await make(root, "data/a", data_dirs=disks)
    (root / "data/a").unlink()

    async with opened(root, *disks) as disk:
        assert (await disk.open_environment("data/a", ["t"], create=True)).count("t") == 0
    await make(root, "data/a", data_dirs=disks)
    assert await reopen(root, "data/a", disks) == b"v"


@in_loop
async def test_a_tablet_on_a_lost_data_directory_is_damaged(tmp_path):
    root, disks = tmp_path / "role", (tmp_path / "d0", tmp_path / "d1")
    await make(root, "data/a", "data/b", data_dirs=disks)
    shutil.rmtree(disks[1] / "data/b")
    with pytest.raises(Damaged):
        await reopen(root, "data/b", disks)
    assert await reopen(root, "data/a", disks) == b"v"


@pytest.mark.parametrize(
    "path", ["", "/etc", "../x", "a//b", "a/./b", "a.new", "x/b.removed", "instance", "FAILED"]
)
@on_one_disk
async def test_an_invalid_path_is_refused(disk, path):
    with pytest.raises(InvalidArgument):
        await disk.open_environment(path, ["t"], create=True)


@in_loop
async def test_no_operation_works_before_open_and_after_close(tmp_path):
    disk = LmdbDisk(tmp_path)
    with pytest.raises(StorageError, match="not open"):
        disk.exists("meta")
    await disk.open_instance("one")
    environment = await disk.open_environment("meta", ["t"], create=True)
    await disk.close()
    for attempt in (lambda: disk.list("wals"), lambda: environment.get("t", b"k")):
        with pytest.raises(StorageError):
            attempt()


@in_loop
async def test_a_poisoned_disk_refuses_all_operations_and_reports_once(tmp_path):
    """The failed sync itself is in test_lmdb_failures.py; this test checks its consequences."""
    failures = []
    disk = LmdbDisk(tmp_path, on_failed=failures.append)
    await disk.open_instance("one")
    first = await disk.open_environment("wals/shared", ["t"], create=True)
    second = await disk.open_environment("meta", ["t"], create=True)
    snapshot = second.snapshot()
    disk.poison(DiskFailed("the sync of wals/shared failed"))
    disk.poison(DiskFailed("and again"))
    await asyncio.sleep(0)
    for attempt in (
        lambda: first.get("t", b"k"),
        lambda: second.count("t"),
        lambda: snapshot.count("t"),
        lambda: disk.list("wals"),
        second.snapshot,
        second.size_bytes,
    ):
        with pytest.raises(DiskFailed, match="wals/shared failed"):
            attempt()
    for waiting in (
        second.commit(RECORD),
        second.run(int),
        disk.open_environment("new", ["t"], create=True),
        disk.remove("old"),
    ):
        with pytest.raises(DiskFailed):
            await waiting
    await disk.close()
    assert [str(error) for error in failures] == ["the sync of wals/shared failed"]
    assert (tmp_path / FAILED).exists()
    with pytest.raises(DiskFailed, match="move the directory aside"):
        await make(tmp_path, "meta")


@in_loop
async def test_a_reader_beside_the_owner_sees_committed_rows(tmp_path):
    async with opened(tmp_path) as disk:
        environment = await disk.open_environment("data/a", ["t"], create=True)
        with pytest.raises(EblaError):
            LmdbReader(tmp_path / "data/b", ["t"])
        await environment.commit(RECORD)
        assert await environment.run(os.path.exists, tmp_path / "data/a/lock.mdb")
    reader = LmdbReader(tmp_path / "data/a", ["t"])
    assert reader.get("t", b"k") == b"v" and reader.snapshot().count("t") == 1
    reader.close()
    with pytest.raises(StorageError, match="closed"):
        reader.get("t", b"k")
