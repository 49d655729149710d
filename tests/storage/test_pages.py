"""Mapped pages that are let go: the process gets smaller, and what is read stays the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ebla.storage import pages
from ebla.storage.environment import Put
from ebla.storage.lmdb_disk import LmdbDisk
from ebla.storage.lmdb_environment import RELEASE_ITEMS

VALUE = b"x" * 1000


def mapped_kb(file: str) -> int:
    """How much of the file is mapped into this process at present."""
    found, here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            here = line.endswith(file)
        elif here and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def items(first: int, count: int) -> list[tuple[bytes, bytes]]:
    return [(b"%08d" % n, VALUE) for n in range(first, first + count)]


def test_pages_that_were_read_are_let_go_by_the_commits_that_follow(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = LmdbDisk(tmp_path)
        await disk.open_instance("0" * 32)
        environment = await disk.open_environment("data", ["t"], create=True)
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
        await disk.close()

    asyncio.run(scenario())


def test_a_file_that_is_not_mapped_is_left_alone(tmp_path: Path) -> None:
    assert pages.release(str(tmp_path / "data.mdb")) == 0
