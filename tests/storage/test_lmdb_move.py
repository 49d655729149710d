"""An environment is moved to quarantine by several steps; a crash may follow each of them."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from ebla.storage.environment import Put
from ebla.storage.errors import Damaged, InvalidArgument, SnapshotExpired, StorageError
from ebla.storage.lmdb.disk import LmdbDisk
from tests.storage.disks import PowerCut, cut_before, in_loop, make, on_one_disk, opened, reopen

AWAY = "quarantine/q/data"


async def move(root: Path, *data_dirs: Path, path: str = "data/a", to: str = AWAY) -> None:
    async with opened(root, *data_dirs) as disk:
        await disk.move(path, to)


@pytest.mark.parametrize("disks", [(), ("d0", "d1")], ids=["one disk", "data directories"])
@in_loop
async def test_a_move_cut_off_at_any_step_is_finished_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disks: tuple[str, ...]
) -> None:
    whole = 0
    for number in range(40):
        place = tmp_path / str(number)
        root, data_dirs = place / "role", tuple(place / name for name in disks)
        await make(root, "data/a", "data/b", data_dirs=data_dirs)
        async with opened(root, *data_dirs) as disk:
            with monkeypatch.context() as patched, suppress(PowerCut):
                cut_before(patched, number)
                disk._files.move("data/a", AWAY)
                whole = 1
        async with opened(root, *data_dirs) as disk:
            if disk.exists("data/a"):  # complete or refused, and never new
                try:
                    found = await disk.open_environment("data/a", ["t"], create=True)
                    assert found.get("t", b"k") == b"v"
                    await found.close()
                except Damaged:
                    pass
            await disk.move("data/a", AWAY)
            await disk.move("data/a", AWAY)
            assert disk.list("data") == ["b"] and disk.list("quarantine/q") == ["data"]
        async with opened(root, *data_dirs) as disk:
            assert (await disk.open_environment("data/a", ["t"], create=True)).count("t") == 0
            for path in (AWAY, "data/b"):
                assert (await disk.open_environment(path, ["t"], create=False)).get("t", b"k") == b"v"
        if whole:
            break
    assert whole == 1 and number > 3, "every step was cut off, and the last run was not"


@pytest.mark.parametrize("disks", [(), ("d0",)], ids=["one disk", "data directories"])
@in_loop
async def test_a_move_is_refused_if_both_names_or_neither_exist(
    tmp_path: Path, disks: tuple[str, ...]
) -> None:
    root, data_dirs = tmp_path / "role", tuple(tmp_path / name for name in disks)
    with pytest.raises(Damaged, match="data/a must exist"):
        await move(root, *data_dirs)
    await make(root, "data/a", data_dirs=data_dirs)
    await move(root, *data_dirs)
    await make(root, "data/a", data_dirs=data_dirs)
    with pytest.raises(StorageError, match="both there"):
        await move(root, *data_dirs)
    assert await reopen(root, "data/a", data_dirs) == await reopen(root, AWAY, data_dirs) == b"v"


@pytest.mark.parametrize(
    ("path", "to"), [("data/a", "data/b"), (AWAY, "quarantine/p/data"), ("data/a", "../x")]
)
@in_loop
async def test_an_environment_can_only_be_moved_to_quarantine(tmp_path: Path, path: str, to: str) -> None:
    await make(tmp_path, "data/a")
    with pytest.raises(InvalidArgument):
        await move(tmp_path, path=path, to=to)
    assert await reopen(tmp_path, "data/a") == b"v"


@in_loop
async def test_another_instances_environment_in_quarantine_is_damage(tmp_path: Path) -> None:
    await make(tmp_path / "role", "data/a")
    async with opened(tmp_path / "other", uuid="another") as disk:
        await disk.open_environment("data/a", ["t"], create=True)
    shutil.copytree(tmp_path / "other/data/a", tmp_path / "role" / AWAY)
    with pytest.raises(Damaged, match="of instance another"):
        await reopen(tmp_path / "role", AWAY)


@pytest.mark.parametrize("disks", [(), ("d0",)], ids=["one disk", "data directories"])
@in_loop
async def test_purged_environments_leave_nothing_and_count_until_then(
    tmp_path: Path, disks: tuple[str, ...]
) -> None:
    root, data_dirs = tmp_path / "role", tuple(tmp_path / name for name in disks)
    await make(root, "data/a", "wals/a", data_dirs=data_dirs)
    await move(root, *data_dirs)
    await move(root, *data_dirs, path="wals/a", to="quarantine/q/wals")

    async with opened(root, *data_dirs) as disk:
        assert disk.list("quarantine/q") == ["data", "wals"] and disk.list("quarantine") == []
        both, wals = disk.size_bytes("quarantine/q"), disk.size_bytes("quarantine/q/wals")
        assert 0 < wals < both < disk.size_bytes()
        assert disk.size_bytes(AWAY) == both - wals and disk.size_bytes("quarantine/p") == 0
        await disk.remove(AWAY)
        await disk.remove("quarantine/q/wals")
        assert disk.size_bytes("quarantine/q") == 0
    assert [os.listdir(place / "quarantine") for place in (root, *data_dirs)] == [[]] * (1 + len(disks))


@in_loop
async def test_a_start_removes_the_remains_of_an_unfinished_move(tmp_path: Path) -> None:
    await make(tmp_path, "data/a")
    (tmp_path / "quarantine/q").mkdir(parents=True)
    assert await reopen(tmp_path, "data/a") == b"v"
    assert not (tmp_path / "quarantine/q").exists()


@pytest.mark.parametrize("reserved", [False, True])
@in_loop
async def test_a_reserved_map_does_not_grow_under_a_snapshot(tmp_path: Path, reserved: bool) -> None:
    """Unordered rows leave pages half full; the file grows only with the rows."""
    rows = [(b"%08d" % (n * 7919 % 10_007), bytes(120)) for n in range(10_000)]
    async with opened(tmp_path, growth_grace_s=0.0) as disk:
        environment = await disk.open_environment("data/a", ["t"], create=True, map_bytes=1 << 17)
        if reserved:
            await environment.reserve(8 * sum(len(key) + len(value) for key, value in rows))
        assert (tmp_path / "data/a/data.mdb").stat().st_size < 1 << 17
        pinned = environment.snapshot()
        for first in range(0, len(rows), 500):
            await environment.commit([Put("t", rows[first : first + 500])])
        with nullcontext() if reserved else pytest.raises(SnapshotExpired):
            assert pinned.count("t") == 0


@on_one_disk
async def test_reserving_space_queues_with_commits(disk: LmdbDisk) -> None:
    environment = await disk.open_environment("data/a", ["t"], create=True, map_bytes=1 << 17)
    waiting = [environment.commit([Put("t", [(b"%d" % n, b"v")])]) for n in range(3)]
    waiting.insert(1, environment.reserve(1 << 24))
    await asyncio.gather(*waiting)
    assert environment.count("t") == 3 and environment.info()["map_size"] >= 1 << 25
    await environment.reserve(1 << 10)
    assert environment.info()["map_size"] < 1 << 26
    await environment.close()
    with pytest.raises(StorageError, match="clos"):
        await environment.reserve(1)
