"""A full disk interrupts removals and the naming of new environments; a later attempt finishes them durably."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ebla.storage.directories import instance
from ebla.storage.errors import DiskFailed, DiskFull
from ebla.storage.lmdb import files
from tests.storage.disks import RECORD, in_loop, make, opened, reopen


def refuse(path: Path) -> None:
    raise OSError(errno.ENOSPC, "no space left on device", str(path))


def refuse_syncs_of(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Let every sync of this directory fail for want of space."""
    sync = instance.sync_path

    def sync_others(path: Path) -> None:
        (refuse if path == directory else sync)(path)

    for module in (instance, files):
        patch.setattr(module, "sync_path", sync_others)


@pytest.mark.parametrize("spread", [False, True])
@in_loop
async def test_a_removal_on_a_full_disk_is_finished_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: bool
) -> None:
    places = (tmp_path / "disk",) if spread else ()
    root = tmp_path / "role"
    home = places[0] if spread else root
    await make(root, "data/a", "data/b", data_dirs=places)

    async with opened(root, *places) as disk:
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", refuse)
            for path in ("data/a", "data/b"):
                with pytest.raises(DiskFull):
                    await disk.remove(path)
            await disk.space()
            with pytest.raises(DiskFull):  # a new environment waits for its predecessor's removal
                await disk.open_environment("data/a", ["t"], create=True)
        assert disk.list("data") == [] and disk.failed is None and len(os.listdir(home / "data")) == 2
        environment = await disk.open_environment("data/a", ["t"], create=True)
        assert environment.count("t") == 0
        await disk.space()
        assert os.listdir(home / "data") == ["a"] and os.listdir(root / "data") == ["a"]
        await environment.commit(RECORD)
    assert await reopen(root, "data/a", places) == b"v"


@in_loop
async def test_a_removal_that_a_disk_fails_to_finish_fails_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter((errno.ENOSPC, errno.EIO))

    def failing(path: Path) -> None:
        raise OSError(next(codes), "failed", str(path))

    await make(tmp_path, "data/a")
    async with opened(tmp_path) as disk:
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", failing)
            with pytest.raises(DiskFull):
                await disk.remove("data/a")
            await disk.space()
        with pytest.raises(DiskFailed):
            disk.exists("data/a")


@pytest.mark.parametrize("spread", [False, True])
@in_loop
async def test_a_removal_whose_syncs_fail_leaves_nothing_that_leads_to_the_next_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: bool
) -> None:
    """A link that is left would delete the new environment at the next start."""
    root, places = tmp_path / "role", (tmp_path / "disk",) if spread else ()
    await make(root, "data/a", data_dirs=places)
    async with opened(root, *places) as disk:
        with monkeypatch.context() as patch:
            refuse_syncs_of(root / "data", patch)
            for _ in ("after the rename", "after the last unlink", "without anything left to unlink"):
                with pytest.raises(DiskFull):
                    await disk.remove("data/a")
            with pytest.raises(DiskFull):
                await disk.open_environment("data/a", ["t"], create=True)
        assert disk.failed is None and os.listdir(root / "data") == []
        environment = await disk.open_environment("data/a", ["t"], create=True)
        await environment.commit(RECORD)
    assert await reopen(root, "data/a", places) == b"v"


@in_loop
async def test_a_removal_in_quarantine_is_finished_although_its_directory_was_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another removal clears empty directories before the first one is tried again."""
    await make(tmp_path, "data/a", "data/b")
    async with opened(tmp_path) as disk:
        for name in "ab":
            await disk.move(f"data/{name}", f"quarantine/{name}/data")
        with monkeypatch.context() as patch:
            refuse_syncs_of(tmp_path / "quarantine/a", patch)
            for _ in ("after the rename", "after the last unlink"):
                with pytest.raises(DiskFull):
                    await disk.remove("quarantine/a/data")
        await disk.remove("quarantine/b/data")
        assert os.listdir(tmp_path / "quarantine") == []
        await disk.remove("quarantine/a/data")
        assert disk.failed is None


@in_loop
async def test_a_removal_that_one_disk_prevents_does_not_delay_those_on_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, disks = tmp_path / "role", (tmp_path / "d0", tmp_path / "d1")
    await make(root, "data/a", "data/b", data_dirs=disks)
    remove = shutil.rmtree

    def refuse_on_first(path: Path) -> None:
        (refuse if path.is_relative_to(disks[0]) else remove)(path)

    async with opened(root, *disks) as disk:
        monkeypatch.setattr(shutil, "rmtree", refuse)
        for path in ("data/a", "data/b"):
            with pytest.raises(DiskFull):
                await disk.remove(path)
        monkeypatch.setattr(shutil, "rmtree", refuse_on_first)
        await disk.space()
        assert [os.listdir(each / "data") for each in disks] == [["a"], []]


class RemovedAgain(dict[str, Path]):
    """The unfinished removals. Once, when an entry is to be dropped that another thread has dropped, this thread
    first removes the next environment of that name."""

    def __init__(self, held: dict[str, Path], remove: Callable[[], None]) -> None:
        super().__init__(held)
        self._remove: Callable[[], None] | None = remove

    def pop(self, path: str, *default: Path | None) -> Path | None:  # type: ignore[override]
        if path not in self and self._remove is not None:
            remove, self._remove = self._remove, None
            remove()
        return super().pop(path, *default)


@in_loop
async def test_a_late_second_attempt_leaves_a_newer_removal_on_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads finish one removal. Meanwhile the name is used again, and its environment is removed on a full disk."""
    root, places = tmp_path / "role", (tmp_path / "disk",)
    await make(root, "data/a", data_dirs=places)
    async with opened(root, *places) as disk:
        held = disk._files

        def use_name_again() -> None:
            held.open("data/a", ["t"], create=True, map_bytes=1 << 20)[0].close()
            with monkeypatch.context() as patch:
                patch.setattr(shutil, "rmtree", refuse)
                with pytest.raises(OSError, match="no space"):
                    held.remove("data/a")

        class OvertakenTurn:
            def __enter__(self) -> None:
                held._turns.clear()
                held._finish_removal("data/a")

            def __exit__(self, *_: object) -> None: ...

        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", refuse)
            with pytest.raises(DiskFull):
                await disk.remove("data/a")
        monkeypatch.setattr(held, "_unfinished", RemovedAgain(held._unfinished, use_name_again))
        monkeypatch.setitem(held._turns, places[0], OvertakenTurn())
        held.retry_removals(places[0])
        environment = await disk.open_environment("data/a", ["t"], create=True)
        await environment.commit(RECORD)
    assert await reopen(root, "data/a", places) == b"v"


@pytest.mark.parametrize(("spread", "unsynced"), [(False, "role"), (True, "role"), (True, "disk")])
@in_loop
async def test_an_environment_whose_name_is_not_durable_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: bool, unsynced: str
) -> None:
    root, places = tmp_path / "role", (tmp_path / "disk",) if spread else ()
    await make(root, "data/b", data_dirs=places)
    async with opened(root, *places) as disk:
        with monkeypatch.context() as patch:
            refuse_syncs_of(tmp_path / unsynced / "data", patch)
            for _ in range(2):
                with pytest.raises(DiskFull):
                    await disk.open_environment("data/a", ["t"], create=True)
                assert not disk.exists("data/a")
        environment = await disk.open_environment("data/a", ["t"], create=True)
        await environment.commit(RECORD)
    assert await reopen(root, "data/a", places) == b"v"
    assert sorted(os.listdir(root / "data")) == ["a", "b"]
