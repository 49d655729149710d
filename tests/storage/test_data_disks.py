"""One of several data disks fails: its environments are lost; the other disks and the role's own disk keep working."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from ebla.storage.directories.instance import FAILED
from ebla.storage.environment import Put
from ebla.storage.errors import Corruption, DataDiskFailed, DiskFailed, EblaError
from ebla.storage.lmdb.disk import LmdbDisk
from tests.storage.children import Child
from tests.storage.disks import RECORD, in_loop, make, opened, reopen

AWAY = "quarantine/q/data"


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    return tmp_path / "role", tmp_path / "d0", tmp_path / "d1"


@in_loop
async def test_a_failed_sync_on_a_data_disk_loses_only_the_environments_on_it(
    places: tuple[Path, Path, Path], tmp_path: Path, failing_sync: Path
) -> None:
    """data/a and data/c are on the disk that fails, data/b on the other one."""
    control = tmp_path / "fail"
    report = Child(
        "fail_data_sync", *places, control, LD_PRELOAD=str(failing_sync), EBLA_FAIL_SYNC=str(control)
    ).finish()
    assert report == {
        "commit": "DataDiskFailed DataDiskFailed DataDiskFailed",
        "read": "DataDiskFailed",
        "neighbour": "DataDiskFailed DataDiskFailed",
        "others": "accepted accepted",
        "new": "d1 d1",
        "reported": "",
        "lost": "d0",
    }
    assert "Input/output error" in (places[1] / FAILED).read_text()
    assert not (places[0] / FAILED).exists()

    async with opened(*places) as disk:
        assert list(disk.lost_data_dirs()) == [str(places[1])] and disk.takes_data()
        for path in ("data/a", "data/c"):
            assert disk.exists(path)
            with pytest.raises(DataDiskFailed, match="Input/output error"):
                await disk.open_environment(path, ["t"], create=True)
        for path in ("data/b", "data/new0", "wals/shared"):
            assert (await disk.open_environment(path, ["t"], create=False)).get("t", b"k") == b"v"


def test_a_hanging_data_disk_delays_nothing_on_other_disks(
    places: tuple[Path, Path, Path], tmp_path: Path, failing_sync: Path
) -> None:
    """data/a and data/c are on the disk that hangs: as many as may be committed at a time."""
    control, d0 = tmp_path / "hang", places[1]
    environment = {"LD_PRELOAD": str(failing_sync), "EBLA_HANG_SYNC": str(control), "EBLA_HANG_DISK": str(d0)}
    report = Child("hang_data_sync", *places, control, **environment).finish()
    assert report == {"others": "accepted True", "measured": "3 True", "then": "accepted"}


def lose(disk: LmdbDisk, path: str, why: str = "it failed") -> None:
    keeper = disk._data_disks.of(disk.root / path)
    assert keeper is not None
    keeper.poison(DiskFailed(why))


@in_loop
async def test_all_operations_on_a_lost_disk_raise_corruption(
    places: tuple[Path, Path, Path],
) -> None:
    async with opened(*places) as disk:
        lost = await disk.open_environment("data/a", ["t"], create=True)
        sound = await disk.open_environment("data/b", ["t"], create=True)
        await asyncio.gather(lost.commit(RECORD), sound.commit(RECORD))
        snapshot = lost.snapshot()
        lose(disk, "data/a", "the first reason")
        lose(disk, "data/a", "another")
        for attempt in (
            lambda: lost.get("t", b"k"),
            lambda: snapshot.count("t"),
            lost.snapshot,
            lost.size_bytes,
        ):
            with pytest.raises(Corruption, match="the first reason"):
                attempt()
        for waiting in (lost.commit(RECORD), lost.run(int), lost.reserve(1)):
            with pytest.raises(DataDiskFailed, match=r"d0 is lost \(the first reason\)"):
                await waiting
        await sound.commit([Put("t", [(b"l", b"w")])])
        assert disk.lost_data_dirs() == {str(places[1]): "the first reason"} and disk.size_bytes() > 0
        await lost.close()
        await disk.raise_seqno(5)
    assert await reopen(places[0], "data/b", places[1:]) == b"v"


@in_loop
async def test_a_server_that_lost_all_data_disks_reports_this(places: tuple[Path, Path, Path]) -> None:
    async with opened(places[0], places[1]) as disk:
        await disk.open_environment("data/a", ["t"], create=True)
        assert disk.takes_data()
        lose(disk, "data/a")
        assert not disk.takes_data()
        with pytest.raises(DataDiskFailed, match="every data directory of this server is lost"):
            await disk.open_environment("data/b", ["t"], create=True)
        await disk.open_environment("wals/b", ["t"], create=True)


def put_file_in_place(place: Path) -> None:
    shutil.rmtree(place)
    place.write_text("no directory")


@in_loop
async def test_a_disk_that_takes_no_new_environment_is_lost_and_another_takes_it(
    places: tuple[Path, Path, Path],
) -> None:
    async with opened(*places) as disk:
        await disk.open_environment("data/a", ["t"], create=True)
        await disk.open_environment("data/b", ["t"], create=True)
        put_file_in_place(places[1] / "data")
        with pytest.raises(DataDiskFailed, match="d0"):
            await disk.open_environment("data/c", ["t"], create=True)
        await disk.open_environment("data/c", ["t"], create=True)
        assert os.readlink(places[0] / "data/c") == str(places[2] / "data/c")


@pytest.mark.parametrize("verb", ["remove", "move"])
@in_loop
async def test_removals_and_moves_succeed_although_the_disk_fails_meanwhile(
    places: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    root, *disks = places
    await make(root, "data/a", "data/b", data_dirs=tuple(disks))
    rename, rmtree = os.rename, shutil.rmtree

    def failing(path: object, *others: object, **options: object) -> object:
        if str(path).startswith(str(disks[0])):
            raise OSError(5, "Input/output error")
        return (rename if others else rmtree)(path, *others, **options)  # type: ignore[operator]

    async with opened(*places) as disk:
        monkeypatch.setattr(os, "rename", failing)
        monkeypatch.setattr(shutil, "rmtree", failing)
        await (disk.remove("data/a") if verb == "remove" else disk.move("data/a", AWAY))
        monkeypatch.undo()
        assert disk.list("data") == ["b"] and list(disk.lost_data_dirs()) == [str(disks[0])]
    assert (disks[0] / "data/a/data.mdb").exists()
    assert await reopen(root, "data/b", tuple(disks)) == b"v"


@pytest.mark.parametrize("verb", ["remove", "move"])
@in_loop
async def test_an_environment_removed_from_a_lost_disk_stays_removed_when_the_disk_returns(
    places: tuple[Path, Path, Path], verb: str
) -> None:
    root, *disks = places
    await make(root, "data/a", "data/b", data_dirs=tuple(disks))
    disks[0].rename(root.with_name("unplugged"))

    async with opened(*places) as disk:
        assert list(disk.lost_data_dirs()) == [str(disks[0])]
        with pytest.raises(DataDiskFailed):
            await disk.open_environment("data/a", ["t"], create=False)
        for _ in range(2):
            if verb == "remove":
                await disk.remove("data/a")
            else:
                await disk.move("data/a", AWAY)
        assert disk.list("data") == ["b"]
        assert disk.exists(AWAY) == (verb == "move")
        assert (await disk.open_environment("data/a", ["t"], create=True)).count("t") == 0
        await disk.remove(AWAY)
    if disks[0].exists():
        shutil.rmtree(disks[0])
    root.with_name("unplugged").rename(disks[0])
    async with opened(*places) as disk:
        assert disk.lost_data_dirs() == {}
        assert (await disk.open_environment("data/a", ["t"], create=False)).count("t") == 0
        await disk.open_environment("data/c", ["t"], create=True)  # as many on either
        await disk.open_environment("data/d", ["t"], create=True)


@in_loop
async def test_a_disk_that_returns_has_its_environments(places: tuple[Path, Path, Path]) -> None:
    root, *disks = places
    await make(root, "data/a", "data/b", data_dirs=tuple(disks))
    disks[0].rename(root.with_name("unplugged"))
    for _ in range(2):
        with pytest.raises(DataDiskFailed):
            await reopen(root, "data/a", tuple(disks))
    root.with_name("unplugged").rename(disks[0])
    assert await reopen(root, "data/a", tuple(disks)) == b"v"


@in_loop
async def test_an_unfinished_removal_on_a_lost_disk_is_forgotten(places: tuple[Path, Path, Path]) -> None:
    root, *disks = places
    await make(root, "data/a", "data/b", data_dirs=tuple(disks))
    (root / "data/a").rename(root / "data/a.removed")
    (root / "data/x").symlink_to(disks[0] / "data/x")
    disks[0].rename(root.with_name("unplugged"))
    async with opened(*places) as disk:
        assert disk.list("data") == ["b", "x"]
    assert not os.path.lexists(root / "data/a.removed")
    assert (root.with_name("unplugged") / "data/a/data.mdb").exists()


@in_loop
async def test_a_failure_that_cannot_be_recorded_ends_the_server(
    places: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    failures: list[DiskFailed] = []
    async with opened(*places, on_failed=failures.append) as disk:
        lost = await disk.open_environment("data/a", ["t"], create=True)
        with monkeypatch.context() as patched:
            patched.setattr("ebla.storage.directories.instance.write_durably", refuse)
            lose(disk, "data/a")
        await asyncio.sleep(0)
        with pytest.raises(DiskFailed, match="cannot be noted"):
            lost.get("t", b"k")
        with pytest.raises(EblaError):
            await disk.open_environment("wals/shared", ["t"], create=True)
    assert [type(error) for error in failures] == [DiskFailed]
