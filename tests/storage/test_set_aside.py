"""A server whose own disk failed, or that runs on an old copy, sets its directory aside and starts as a new server, once."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ebla.storage.directories import instance as module
from ebla.storage.directories.instance import FAILED, INSTANCE, InstanceDirectory
from ebla.storage.environment import Instance, Put, SetAside
from ebla.storage.errors import Damaged, DirectoryLocked, DiskFailed, OldCopy, StorageError
from ebla.storage.lmdb.disk import LmdbDisk
from tests.storage.disks import PowerCut, cut_before

ROW = [Put("t", [(b"k", b"v")])]
ASIDE = "role.set-aside"


def start(
    root: Path, uuid: str, *data_dirs: Path, end: str | None = None, sets_aside: bool = True
) -> tuple[Instance, SetAside | None, list[str], dict[str, str]]:
    """Start a server, let it make an environment, and end it as `end` says; return its state after the start."""

    async def main() -> Any:
        disk = LmdbDisk(root, data_dirs, sets_aside=sets_aside)
        found = await disk.open_instance(uuid)
        seen = found, disk.set_aside(), disk.list("data"), disk.lost_data_dirs()
        if not disk.exists(f"data/{uuid}"):
            await (await disk.open_environment(f"data/{uuid}", ["t"], create=True)).commit(ROW)
        if end == "old copy":
            assert await disk.give_up("it is an old copy")
        elif end == "failed sync":
            disk.poison(DiskFailed("a sync of wals/shared failed"))
        await disk.close()
        return seen

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("end", "reason"), [("failed sync", "a sync of wals/shared failed"), ("old copy", "it is an old copy")]
)
def test_a_given_up_directory_is_set_aside_and_the_server_is_a_new_one(
    tmp_path: Path, end: str, reason: str
) -> None:
    root = tmp_path / "role"
    start(root, "one", end=end)
    instance, aside, tablets, _ = start(root, "two")
    assert instance == ("two", 1, True) and tablets == []
    assert aside == SetAside(str(tmp_path / ASIDE), reason, "one")
    assert (tmp_path / ASIDE / "data/one/data.mdb").exists() and (tmp_path / ASIDE / FAILED).exists()
    instance, again, tablets, _ = start(root, "three")
    assert instance == ("two", 2, False) and again == aside and tablets == ["two"]
    shutil.rmtree(tmp_path / ASIDE)
    assert start(root, "three")[1] is None, "a removed directory is not reported any more"


@pytest.mark.parametrize(("end", "error"), [("failed sync", DiskFailed), ("old copy", OldCopy)])
def test_a_second_failure_stays_down_and_says_what_to_do(
    tmp_path: Path, end: str, error: type[StorageError]
) -> None:
    root = tmp_path / "role"
    start(root, "one", end="failed sync")
    start(root, "two", end=end)
    for _ in range(2):
        with pytest.raises(
            error, match=r"an earlier one is still in .*role.set-aside, move both away and start"
        ):
            start(root, "three")
    assert (root / "data/two/data.mdb").exists() and (tmp_path / ASIDE / "data/one/data.mdb").exists()
    shutil.rmtree(tmp_path / ASIDE)
    instance, aside, *_ = start(root, "three")
    assert instance == ("three", 1, True) and aside is not None and aside.uuid == "two"


def test_a_role_that_sets_nothing_aside_stays_down(tmp_path: Path) -> None:
    root = tmp_path / "role"
    start(root, "one", end="failed sync", sets_aside=False)
    with pytest.raises(DiskFailed, match="move the directory aside"):
        start(root, "two", sets_aside=False)
    assert os.listdir(tmp_path) == ["role"]


def test_a_cut_between_any_two_steps_leaves_a_new_server_and_the_complete_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = 0
    for number in range(60):
        place = tmp_path / str(number)
        root, disks = place / "role", (place / "d0", place / "d1")
        start(root, "one", *disks, end="failed sync")
        directory = InstanceDirectory(root, disks, sets_aside=True)
        with monkeypatch.context() as patched, suppress(PowerCut):
            cut_before(patched, number)
            directory.open("two")
            whole = 1
        directory.close()
        instance, aside, tablets, lost = start(root, "three", *disks)
        assert instance.uuid in ("two", "three") and tablets == [] and lost == {}
        assert aside is not None and aside.uuid == "one" and aside.reason == "a sync of wals/shared failed"
        assert os.path.lexists(place / ASIDE / "data/one")
        assert (place / "d0.set-aside/data/one/data.mdb").exists() and (place / "d1.set-aside").exists()
        if whole:
            break
    assert whole == 1 and number > 10


def test_data_directories_are_set_aside_with_the_server_or_are_lost(
    tmp_path: Path,
) -> None:
    root, disks = tmp_path / "role", (tmp_path / "d0", tmp_path / "d1")
    start(root, "one", *disks, end="failed sync")
    (tmp_path / "d1.set-aside").mkdir()
    instance, aside, tablets, lost = start(root, "two", *disks)
    assert instance.created and tablets == [] and aside is not None
    assert list(lost) == [str(disks[1])] and "is in the way; move both away" in lost[str(disks[1])]
    assert (tmp_path / "d0.set-aside/data/one/data.mdb").exists()
    assert Path(os.readlink(root / "data/two")) == disks[0] / "data/two"
    (tmp_path / "d1.set-aside").rmdir()
    assert start(root, "two", *disks)[3] == {}


def test_a_data_disk_that_failed_for_the_old_server_is_lost_for_the_new_one(tmp_path: Path) -> None:
    root, disks = tmp_path / "role", (tmp_path / "d0", tmp_path / "d1")
    directory = InstanceDirectory(root, disks)
    directory.open("one")
    directory.lose(disks[0], "Input/output error")
    directory.mark_failed("a sync failed")
    directory.close()
    (disks[0] / FAILED).unlink()
    for _ in range(2):
        assert start(root, "two", *disks)[3] == {str(disks[0]): "Input/output error"}


def test_a_damaged_directory_is_not_set_aside_automatically(tmp_path: Path) -> None:
    root = tmp_path / "role"
    start(root, "one")
    (root / INSTANCE).unlink()
    with pytest.raises(Damaged, match="move the directory aside"):
        start(root, "two")
    assert os.listdir(tmp_path) == ["role"]


def test_a_directory_that_cannot_be_moved_stays_down_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "role"
    start(root, "one", end="failed sync")

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        with pytest.raises(
            DiskFailed, match=r"cannot be set aside \(.*Read-only file system\), move it away"
        ):
            start(root, "two")
    assert start(root, "two")[0].created


def test_a_lock_on_a_directory_set_aside_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file was opened before the rename and locked after it, so it belongs to the directory set aside."""
    root = tmp_path / "role"
    start(root, "one", end="failed sync")
    flock = module.fcntl.flock

    def late(lock: int, how: int) -> None:
        monkeypatch.undo()
        start(root, "two")
        flock(lock, how)

    monkeypatch.setattr(module.fcntl, "flock", late)
    directory = InstanceDirectory(root, sets_aside=True)
    with pytest.raises(DirectoryLocked, match="set aside meanwhile"):
        directory.open("three")
    assert start(root, "three")[0] == ("two", 2, False)
