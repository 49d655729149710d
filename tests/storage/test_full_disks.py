"""Real full file systems: no process on them ends, and roles can start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ebla.storage.lmdb.files import LOCK_BYTES
from tests.storage.children import Child, small_tmpfs
from tests.storage.disks import in_loop, make, reopen


def lines_of(verb: str, place: Path) -> list[str]:
    """Run the child on a small full tmpfs; return its output."""
    return Child(verb, place / "role", prefix=small_tmpfs(place, 8)).output()


def test_making_an_environment_on_a_full_file_system_is_refused(tmp_path: Path) -> None:
    assert lines_of("make_until_it_fits", tmp_path) == ["refused DiskFull True", "then made"]


def test_a_role_starts_on_a_full_file_system_and_can_read_and_write_votes(tmp_path: Path) -> None:
    assert lines_of("start_when_full", tmp_path) == [
        "started 2 True",
        "committed True",
        "started 3 True",
        "committed True",
    ]


@pytest.mark.parametrize("left_bytes", [0, 8192])
@in_loop
async def test_every_block_of_a_file_written_through_a_map_is_allocated(
    tmp_path: Path, left_bytes: int
) -> None:
    """A missing block on a full disk is a SIGBUS. A file that an attempt on a full disk left too short is completed."""
    place = tmp_path / "data/a"
    await make(tmp_path, "data/a")
    if left_bytes:
        os.truncate(place / "lock.mdb", left_bytes)
        await reopen(tmp_path, "data/a")
    lock = (place / "lock.mdb").stat()
    assert lock.st_blocks * 512 >= lock.st_size == LOCK_BYTES
