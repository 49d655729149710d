"""The child process of the tests of full file systems: `python full_child.py <verb> <root>`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ebla.storage.environment import Put
from ebla.storage.errors import EblaError
from ebla.storage.lmdb.disk import LmdbDisk

PAGE_BYTES = 4096
PAGES_LEFT = 20  # more than a new environment takes
BALLAST_BYTES = 1 << 20


def say(*words: object) -> None:
    print(*words, flush=True)


def fill(root: Path, left_bytes: int = 0) -> Path:
    """Fill the file system with another file, except for `left_bytes`."""
    file = root.parent / "filler"
    space = os.statvfs(root.parent)
    with open(file, "wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, space.f_bavail * space.f_frsize - left_bytes)
    return file


async def make_until_it_fits(root: Path) -> None:
    """Make an environment with 0, 1, 2, ... pages of space left, and read an earlier environment each time."""
    disk = LmdbDisk(root)
    await disk.open_instance("one")
    before = await disk.open_environment("data/before", ["rows"], create=True)
    await before.commit([Put("rows", [(b"k", b"v")])])
    refused = []
    for pages in range(PAGES_LEFT):
        filler = fill(root, pages * PAGE_BYTES)
        try:
            made = await disk.open_environment(f"data/new{pages}", ["rows"], create=True)
            await made.close()
        except EblaError as error:
            refused.append(type(error).__name__)
        assert before.get("rows", b"k") == b"v"
        filler.unlink()
    say("refused", *sorted(dict.fromkeys(refused)), len(refused) > 2)
    made = await disk.open_environment("data/new0", ["rows"], create=True)
    await made.commit([Put("rows", [(b"k", b"v")])])
    say("then", "made")
    await disk.close()


async def start_when_full(root: Path) -> None:
    """Start twice on a full file system, read, and write what a role must write at its start."""
    disk = LmdbDisk(root, ballast_bytes=BALLAST_BYTES)
    await disk.open_instance("one")
    rows = await disk.open_environment("data/rows", ["rows"], create=True)
    await rows.commit([Put("rows", [(b"k", b"v")])])
    await disk.space()
    await disk.close()
    fill(root)
    for _ in range(2):
        disk = LmdbDisk(root, ballast_bytes=BALLAST_BYTES)
        instance = await disk.open_instance("one")
        rows = await disk.open_environment("data/rows", ["rows"], create=False)
        say("started", instance.seqno, rows.get("rows", b"k") == b"v")
        await rows.commit([Put("rows", [(b"vote", b"%d" % instance.seqno)])])
        say("committed", rows.get("rows", b"vote") == b"%d" % instance.seqno)
        await disk.close()


VERBS = {verb.__name__: verb for verb in (make_until_it_fits, start_when_full)}

if __name__ == "__main__":
    asyncio.run(VERBS[sys.argv[1]](Path(sys.argv[2])))
