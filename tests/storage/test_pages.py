"""Released mapped pages: the process gets smaller, and reads stay the same."""

from __future__ import annotations

import mmap
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from ebla.storage.environment import Put
from ebla.storage.errors import Corruption
from ebla.storage.lmdb import pages
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.lmdb.environment import RELEASE_ITEMS, RENEW_ITEMS, LmdbEnvironment
from ebla.storage.lmdb.files import map_environment
from tests.storage.disks import Scenario, on_disk
from tests.storage.test_lmdb_environment import on_either_environment, on_environment

VALUE = b"x" * 1000
ENVIRONMENTS = 100


def mapped_kb(file: str) -> int:
    """Return how much of the file is mapped into this process."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            here = line.endswith(file)
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def items(first: int, count: int) -> list[tuple[bytes, bytes]]:
    return [(b"%08d" % n, VALUE) for n in range(first, first + count)]


@on_environment(path="data")
async def test_read_pages_are_released_by_later_commits(environment: LmdbEnvironment) -> None:
    file = environment.directory + "/data.mdb"
    await environment.commit([Put("t", items(0, RELEASE_ITEMS - 1), sorted_keys=True)])
    before = environment.items("t")
    held_kb = mapped_kb(file)
    assert held_kb > len(before) * len(VALUE) // 1024
    snapshot = environment.snapshot()
    await environment.commit([Put("t", items(RELEASE_ITEMS, 1), sorted_keys=True)])
    assert mapped_kb(file) < held_kb / 4
    assert snapshot.items("t") == before
    assert environment.count("t") == len(before) + 1
    snapshot.close()


LARGE_ROWS = 64_000


def anonymous_kb() -> int:
    """Return how much anonymous memory this process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


async def growth_by_a_commit(disk: LmdbDisk) -> int:
    """Return how many kB a commit of LARGE_ROWS leaves behind; its rows can be read."""
    environment = await disk.open_environment("data/one", ["t", "u"], create=True)
    await environment.commit([Put("u", [(b"before", b"1")])])
    rows = items(0, LARGE_ROWS)
    before_kb = anonymous_kb()
    await environment.commit([Put("t", rows, sorted_keys=True)])
    grown_kb = anonymous_kb() - before_kb
    assert environment.items("t") == rows
    await environment.commit([Put("u", [(b"after", b"2")])])
    assert environment.items("u") == [(b"after", b"2"), (b"before", b"1")]
    return grown_kb


async def growth_by_an_environment(disk: LmdbDisk) -> float:
    """Return how many kB an environment needs that is open and not used."""
    await disk.open_environment("data/first", ["t"], create=True)
    before_kb = anonymous_kb()
    for number in range(40):
        await disk.open_environment(f"data/{number}", ["t"], create=True)
    return (anonymous_kb() - before_kb) / 40


def in_a_new_process(root: Path, scenario: Scenario) -> float:
    """Run the scenario on a disk in a process of its own: other tests' threads allocate memory in this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        return float(processes.submit(on_disk, root, scenario).result())


def test_the_memory_of_a_large_commit_is_released_and_its_rows_can_be_read(tmp_path: Path) -> None:
    assert in_a_new_process(tmp_path, growth_by_a_commit) < LARGE_ROWS * len(VALUE) // 1024 / 4


def test_an_open_environment_holds_no_memory_before_it_is_used(tmp_path: Path) -> None:
    assert in_a_new_process(tmp_path, growth_by_an_environment) < 400


@on_environment(path="data/one")
async def test_an_environment_is_opened_again_only_after_its_snapshot_is_closed(
    environment: LmdbEnvironment,
) -> None:
    first = environment.lmdb
    snapshot = environment.snapshot()
    await environment.commit([Put("t", items(0, RENEW_ITEMS))])
    assert environment.lmdb is first
    assert snapshot.items("t") == []
    snapshot.close()
    await environment.commit([Put("t", items(RENEW_ITEMS, 1))])
    assert environment.lmdb is not first
    assert environment.items("t") == items(0, RENEW_ITEMS + 1)


@pytest.mark.parametrize("path", ["wals/shared", "data/one"])
@on_either_environment
async def test_an_environment_that_is_lost_before_it_is_opened_again_is_damaged(
    environment: LmdbEnvironment, tmp_path: Path, path: str
) -> None:
    (tmp_path / path / "data.mdb").unlink()
    await environment.commit([Put("t", items(0, RENEW_ITEMS))])
    with pytest.raises(Corruption, match=r"data.mdb is gone"):
        await environment.commit([Put("t", items(0, 1))])
    with pytest.raises(Corruption, match=r"data.mdb is gone"):
        environment.items("t")


def test_a_file_that_is_not_mapped_is_left_alone(tmp_path: Path) -> None:
    assert pages.release(str(tmp_path / "data.mdb")) == 0


def _growth_kb(root: Path) -> float:
    """Memory of each of some environments that are open for the third time, in a process of its own."""
    pages.keep_small_allocations()
    paths = [root / str(number) for number in range(ENVIRONMENTS)]
    for path in paths:
        path.mkdir()
    before = _resident_kb()
    for _ in range(3):
        opened = [map_environment(path, 1 << 20, synced=False) for path in paths]
        held = _resident_kb() - before
        for each in opened:
            each.close()
    return held / ENVIRONMENTS


def _resident_kb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE / 1024


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="no /proc here")
def test_lists_of_lmdb_take_no_memory_when_environments_are_opened_again(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as other:
        assert other.submit(_growth_kb, tmp_path).result() < 250
