"""An LMDB disk's promises when its process ends, its device fails, or its space runs out. Real processes, real faults."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ebla.storage.directories.instance import FAILED
from ebla.storage.environment import Put
from ebla.storage.errors import DiskFailed
from ebla.storage.lmdb.disk import LmdbDisk
from tests.storage.children import Child, small_tmpfs
from tests.storage.disks import in_loop, on_one_disk, opened


@in_loop
async def test_every_acknowledged_commit_survives_sigkill(tmp_path):
    acknowledged: set[int] = set()
    for incarnation in (1, 2, 3):
        child = Child("commit_for_ever", tmp_path)
        lines = child.lines()
        assert next(lines) == f"instance {incarnation}"
        first_lines = [next(lines) for _ in range(300)]
        lines_read = first_lines + child.kill()
        acknowledged.update(int(line) for line in lines_read if line.isdigit())
    async with opened(tmp_path) as disk:
        items = (await disk.open_environment("wals/shared", ["log"], create=False)).items("log")
    stored = {int.from_bytes(key, "big") for key, _ in items}
    assert len(acknowledged) >= 900 and acknowledged <= stored
    assert stored == set(range(len(stored))), (
        "commits are visible in the order of the calls, so none is skipped"
    )
    assert all(value == b"%d" % int.from_bytes(key, "big") for key, value in items)


def test_a_second_incarnation_is_refused_while_the_first_lives(tmp_path):
    first = Child("hold", tmp_path)
    assert first.line() == "held 1"
    report = Child("hold", tmp_path).finish()
    assert f"process {first.process.pid};" in report["DirectoryLocked"]
    first.kill()
    third = Child("hold", tmp_path)
    assert third.line() == "held 2"
    third.kill()


def test_a_failed_sync_ends_the_use_of_the_disk(tmp_path, failing_sync):
    root, control = tmp_path / "role", tmp_path / "fail"
    report = Child(
        "fail_sync", root, control, LD_PRELOAD=str(failing_sync), EBLA_FAIL_SYNC=str(control)
    ).finish()
    assert report == {
        "commit": "DiskFailed DiskFailed DiskFailed",
        "again": "DiskFailed",
        "other": "DiskFailed",
        "open": "DiskFailed",
        "read": "DiskFailed",
        "reported": "DiskFailed",
    }
    assert "Input/output error" in (root / FAILED).read_text()
    next_start = Child("hold", root).finish()
    assert "move the directory aside" in next_start["DiskFailed"]


FULL_IS_SURVIVED = {"committed": "True True", "after": "True", "reopened": "True"}


def test_a_full_file_system_refuses_commits_and_nothing_else(tmp_path):
    prefix = small_tmpfs(tmp_path, 6, ballast=True)
    report = Child("fill_up", tmp_path / "role", 0, prefix=prefix).finish()
    assert "nothing was changed" in report.pop("DiskFull")
    assert report == FULL_IS_SURVIVED


def test_a_file_at_its_size_limit_refuses_commits_and_nothing_else(tmp_path):
    report = Child("fill_up", tmp_path / "role", 3_000_000).finish()
    assert "nothing was changed" in report.pop("DiskFull")
    assert report == FULL_IS_SURVIVED


@pytest.mark.parametrize("map_bytes", [1 << 20, 1 << 36])
@on_one_disk
async def test_a_reader_in_another_process_follows_while_the_owner_writes_and_grows(
    disk: LmdbDisk, tmp_path, map_bytes
):
    environment = await disk.open_environment("data/a", ["log"], create=True, map_bytes=1 << 20)
    await environment.commit([Put("log", [(b"%08d" % n, b"x" * 100) for n in range(100)], True)])
    reader = Child("read_along", tmp_path / "data/a", map_bytes)
    assert await environment.run(reader.line) == "reader 100"
    for block in range(1, 6):
        items = [(b"%08d" % n, b"x" * 1000) for n in range(block * 1000, block * 1000 + 1000)]
        await environment.commit([Put("log", items, True)])
        assert await environment.run(reader.ask, "read") == f"rows {100 + block * 1000} True"
    assert environment.info()["map_size"] > 5_000_000
    reader.finish()


@pytest.mark.parametrize("reported_by", ["check", "poison"])
def test_a_failed_disk_is_reported_only_after_its_mark_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported_by: str
) -> None:
    """The report ends the process, and without the mark the next process would trust the disk."""
    waiting = threading.Event()

    class Marked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waiting.set()
            return super().wait(timeout)

    disk = LmdbDisk(tmp_path / "disk")
    mark, marking = disk._directory.mark_failed, threading.Event()

    def mark_late(reason: str) -> None:
        marking.set()
        waiting.wait(10.0)
        mark(reason)

    monkeypatch.setattr(disk, "_marked", Marked())
    monkeypatch.setattr(disk._directory, "mark_failed", mark_late)
    disk.root.mkdir()
    first = threading.Thread(target=disk.poison, args=(DiskFailed("a sync failed"),))
    disk._loop = asyncio.new_event_loop()
    first.start()
    try:
        marking.wait(10.0)
        if reported_by == "poison":
            disk.poison(DiskFailed("another sync failed"))
        else:
            with pytest.raises(DiskFailed, match="a sync failed"):
                disk.check()
        assert (disk.root / FAILED).exists()
    finally:
        waiting.set()
        first.join()
        disk._loop.close()
