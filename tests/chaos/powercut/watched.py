"""Writes that the tests of the recorder watch, in a separate process: `python watched.py VERB DIRECTORY`. Prints JSON."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from ebla.chaos.powercut.cuts.platter import Platter
from ebla.chaos.powercut.recorder import differences
from ebla.chaos.powercut.recording.events import Event
from ebla.chaos.powercut.recording.watch import Watch
from ebla.storage.directories.instance import remove_tree, write_durably
from ebla.storage.lmdb.files import map_environment


def as_json(event: Event) -> list[Any]:
    """The event for JSON, with lengths instead of contents."""
    shown: list[Any] = [type(event).__name__]
    for value in msgspec.structs.asdict(event).values():
        shown.append(len(value) if isinstance(value, bytes) else value)
    return shown


def commits(root: Path) -> None:
    """Two LMDB commits: a small one, and one of more than a page."""
    environment = map_environment(root, 1 << 20)
    for rows in (1, 200):
        with environment.begin(write=True) as transaction:
            for row in range(rows):
                transaction.put(b"%05d" % row, b"v" * 100)
    environment.close()


def files(root: Path) -> None:
    """The operations of storage/ on plain files and directories."""
    write_durably(root / "instance", b"one")
    write_durably(root / "instance", b"another")
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_bytes(b"x" * 1000)
    os.truncate(root / "a" / "b" / "file", 10)
    (root / "link").symlink_to(root / "a")
    os.rename(root / "a" / "b", root / "a" / "c")
    (root / "link" / "c" / "second").write_bytes(b"through a link")
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT)
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"42\n", 0)
    os.write(lock, b"43")
    os.close(lock)
    (root / "gone").mkdir()
    (root / "gone" / "file").write_bytes(b"")
    shutil.rmtree(root / "gone")
    remove_tree(root / "link")


def past_the_log(root: Path) -> None:
    """A write that is not recorded: directly through the C library."""
    (root / "file").write_bytes(b"seen")
    file = os.open(root / "file", os.O_WRONLY)
    ctypes.CDLL(None).pwrite(file, b"un", ctypes.c_size_t(2), ctypes.c_long(0))
    os.close(file)


def main() -> None:
    verb, root = sys.argv[1], Path(sys.argv[2])
    watch = Watch(root)
    first = watch.begin()
    {"commits": commits, "files": files, "past_the_log": past_the_log}[verb](root)
    watch.end()
    assert watch.defect is None, watch.defect
    platter = Platter(watch.events)
    platter.advance(len(watch.events))
    print(
        json.dumps(
            {
                "events": [as_json(event) for event in watch.events[first:]],
                "differences": list(differences(platter.whole(), root)),
                "lmdb": lmdb.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
