"""An LMDB disk's promises when its process ends, its device fails, or its space runs out. Real processes, real faults."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebla.storage.directories.instance import FAILED
from ebla.storage.environment import Put
from ebla.storage.errors import DiskFailed
from ebla.storage.lmdb.disk import LmdbDisk
from tests.storage.disks import in_loop, on_one_disk, opened

CHILD = Path(__file__).with_name("lmdb_child.py")

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int armed(const char *name) { const char *path = getenv(name); return path && access(path, F_OK) == 0; }
static int hangs(int fd) {
    char link[64], path[4096];
    const char *disk = getenv("EBLA_HANG_DISK");
    if (!disk) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return strstr(path, disk) != NULL;
}
int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    if (armed("EBLA_FAIL_SYNC")) { errno = EIO; return -1; }
    while (armed("EBLA_HANG_SYNC") && hangs(fd)) usleep(1000);
    return real(fd);
}
"""


class Child:
    """One child process, with the lines of its output."""

    def __init__(self, *words: object, prefix: tuple[str, ...] = (), **environment: str) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(CHILD), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment,
            text=True,
        )

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        return (line.strip() for line in self.process.stdout)

    def line(self) -> str:
        return next(self.lines())

    def ask(self, line: str) -> str:
        """Send a line to the child; return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.line()

    def kill(self) -> list[str]:
        """Kill the child; return the lines that were not read yet."""
        self.process.kill()
        left = list(self.lines())
        self.process.wait()
        return left

    def finish(self) -> dict[str, str]:
        """Return the child's report by the first word of each line."""
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, output
        return {word: rest for word, _, rest in (line.partition(" ") for line in output.splitlines())}


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


@pytest.fixture(scope="module")
def failing_sync(tmp_path_factory) -> Path:
    """A library that makes fdatasync fail, or on one disk hang, as a device does, while a control file exists."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("skipped: no C compiler to build the library that makes fdatasync fail")
    place = tmp_path_factory.mktemp("shim")
    (place / "shim.c").write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-o", str(place / "shim.so"), str(place / "shim.c"), "-ldl"]
    subprocess.run(command, check=True)
    return place / "shim.so"


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
    """The test uses a small tmpfs in its own mount namespace."""
    place = tmp_path / "small"
    place.mkdir()
    mount = f"mount -t tmpfs -o size=6m tmpfs {place}"
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"skipped: cannot mount a small tmpfs here ({probe.stderr.strip()})")
    script = f'{mount} && dd if=/dev/zero of={place}/ballast bs=1M count=1 2>/dev/null && exec "$@"'
    prefix = ("unshare", "-m", "sh", "-c", script, "sh")
    report = Child("fill_up", place / "role", 0, prefix=prefix).finish()
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
