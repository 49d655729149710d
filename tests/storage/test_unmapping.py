"""An environment that is not used gives back its descriptors and its map; the next use takes them again."""

from __future__ import annotations

import asyncio
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ebla.storage.environment import Put
from ebla.storage.errors import Corruption, TooManyFiles
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.lmdb.environment import LmdbEnvironment
from tests.storage.disks import on_disk
from tests.storage.test_lmdb_environment import HOT, POOLED, on_either_environment, on_environment

ITEMS = [(b"%06d" % n, b"v" * 50) for n in range(500)]


def descriptors(environment: LmdbEnvironment) -> int:
    """How many files of the environment this process has open, mapped ones included."""
    names = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            names.append(os.readlink(each))
        except FileNotFoundError:
            continue  # the descriptor that reads the directory
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return sum(environment.directory in name for name in names + mapped)


async def unmap(environment: LmdbEnvironment) -> None:
    """Unmap it, and wait until that is done."""
    environment.unmap()
    await environment._submit(None, lambda: None)  # the writer acts in the order of the calls


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no /proc here")
@on_environment(path="data/one")
async def test_an_unmapped_environment_has_no_descriptor_and_knows_its_size(
    environment: LmdbEnvironment,
) -> None:
    await environment.commit([Put("t", ITEMS)])
    size = environment.size_bytes()
    assert descriptors(environment) > 0
    await unmap(environment)
    assert (environment.size_bytes(), descriptors(environment)) == (size, 0)
    assert environment.items("t") == ITEMS
    assert descriptors(environment) > 0


@pytest.mark.parametrize("path", [HOT, POOLED])
@on_either_environment
async def test_every_use_maps_an_environment_again(environment: LmdbEnvironment) -> None:
    await environment.commit([Put("t", ITEMS[:10])])
    for number in range(10, 20):
        await unmap(environment)
        await environment.commit([Put("t", ITEMS[number : number + 1])])
        await unmap(environment)
        assert environment.get_many("t", [b"%06d" % number, b"none"]) == [b"v" * 50, None]
        await unmap(environment)
        assert environment.look("t", [b"000000"], lambda at, value: bytes(value)) == [b"v" * 50]
        await unmap(environment)
        snapshot = environment.snapshot()
        assert snapshot.count("t") == number + 1
        snapshot.close()


@on_environment(path="data/one")
async def test_a_snapshot_keeps_the_map_until_it_is_closed(environment: LmdbEnvironment) -> None:
    await environment.commit([Put("t", ITEMS)])
    snapshot = environment.snapshot()
    await unmap(environment)
    assert environment.mapped
    assert snapshot.items("t") == ITEMS
    snapshot.close()
    await unmap(environment)
    assert not environment.mapped


@on_environment(path="data/one")
async def test_threads_that_read_while_an_environment_is_unmapped_see_all_rows(
    environment: LmdbEnvironment,
) -> None:
    await environment.commit([Put("t", ITEMS)])

    def read() -> int:
        return sum(
            environment.items("t") == ITEMS and environment.count("t") == len(ITEMS) for _ in range(200)
        )

    with ThreadPoolExecutor(2) as threads:
        reading = [asyncio.get_running_loop().run_in_executor(threads, read) for _ in range(2)]
        while not all(each.done() for each in reading):
            environment.unmap()
            await asyncio.sleep(0)
        assert await asyncio.gather(*reading) == [200, 200]


@on_environment(path="data/one")
async def test_a_file_that_is_lost_while_it_is_unmapped_is_damage_and_is_not_made_again(
    environment: LmdbEnvironment,
) -> None:
    await environment.commit([Put("t", ITEMS)])
    await unmap(environment)
    data = Path(environment.directory, "data.mdb")
    data.unlink()
    with pytest.raises(Corruption, match="rebuild it from a peer"):
        environment.get("t", b"000001")
    assert not data.exists()


@on_environment(path="data/one")
async def test_an_older_root_that_returns_while_it_is_unmapped_is_damage(
    environment: LmdbEnvironment,
) -> None:
    await environment.commit([Put("t", ITEMS)])
    data = Path(environment.directory, "data.mdb")
    before = data.read_bytes()
    await environment.commit([Put("t", [(b"later", b"1")])])
    await unmap(environment)
    data.write_bytes(before)
    with pytest.raises(Corruption, match="rebuild it from a peer"):
        environment.get("t", b"000001")


@on_environment(path="data/one")
async def test_an_environment_is_not_unmapped_while_a_thread_reads_it(environment: LmdbEnvironment) -> None:
    await environment.commit([Put("t", ITEMS)])
    with environment.gate.inside():
        await unmap(environment)
        assert environment.mapped
    await unmap(environment)
    assert not environment.mapped


def test_without_a_descriptor_to_map_it_a_use_fails_alone_and_the_next_one_succeeds(tmp_path: Path) -> None:
    on_disk(tmp_path, _short_of_descriptors)


async def _short_of_descriptors(disk: LmdbDisk) -> None:
    environment = await disk.open_environment("data/one", ["t"], create=True)
    await environment.commit([Put("t", ITEMS)])
    await unmap(environment)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(TooManyFiles, match="ulimit -Hn"):
            environment.get("t", b"000001")
        with pytest.raises(TooManyFiles, match="ulimit -Hn"):
            await environment.commit([Put("t", [(b"new", b"1")])])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert environment.get("t", b"000001") == b"v" * 50
    await environment.commit([Put("t", [(b"new", b"1")])])
    assert environment.get("t", b"new") == b"1"
