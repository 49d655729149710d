"""The child process of the tests of LMDB disks: `python lmdb_child.py <verb> <arguments>`. It reports on stdout."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from ebla.actors.deadlines import timeout
from ebla.storage.environment import Delete, Put
from ebla.storage.errors import DiskFailed, EblaError, SnapshotExpired
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.lmdb.environment import LmdbEnvironment
from ebla.storage.lmdb.reader import LmdbReader

KIB = bytes(1024)
PAGE_BYTES = 4096
PAGES_LEFT = 20  # more than a new environment takes
BALLAST_BYTES = 1 << 20


def say(*words: object) -> None:
    print(*words, flush=True)


def number(n: int) -> bytes:
    return n.to_bytes(8, "big")


async def ends(*attempts: Awaitable[Any]) -> list[str]:
    """How each attempt ends: the name of its error, or `accepted`."""
    found = await asyncio.gather(*attempts, return_exceptions=True)
    return [type(end).__name__ if isinstance(end, BaseException) else "accepted" for end in found]


def read(environment: LmdbEnvironment, database: str, key: bytes) -> object:
    """The value, or the name of the error."""
    try:
        return environment.get(database, key)
    except EblaError as error:
        return type(error).__name__


async def commit_for_ever(root: str) -> None:
    """Commit numbers by eight tasks; print a number only after its commit has returned."""
    disk = LmdbDisk(Path(root))
    say("instance", (await disk.open_instance("one")).seqno)
    environment = await disk.open_environment("wals/shared", ["log"], create=True)
    last = environment.last("log")
    numbers = iter(range(int.from_bytes(last[0], "big") + 1 if last else 0, 1 << 60))

    async def committer() -> None:
        for n in numbers:
            await environment.commit([Put("log", [(number(n), b"%d" % n)])])
            say(n)

    await asyncio.gather(*(committer() for _ in range(8)))


async def hold(root: str) -> None:
    """Hold the directory until the parent closes stdin."""
    disk = LmdbDisk(Path(root))
    try:
        say("held", (await disk.open_instance("one")).seqno)
    except EblaError as error:
        say(type(error).__name__, error)
        return
    sys.stdin.read()


async def fail_sync(root: str, control: str) -> None:
    """With the shim loaded: a sync fails while `control` exists. Report which later operations succeed."""
    failures: list[DiskFailed] = []
    disk = LmdbDisk(Path(root), on_failed=failures.append)
    await disk.open_instance("one")
    shared = await disk.open_environment("wals/shared", ["log"], create=True)
    other = await disk.open_environment("meta", ["t"], create=True)
    await shared.commit([Put("log", [(b"before", b"1")])])
    Path(control).touch()
    say("commit", *await ends(*(shared.commit([Put("log", [(b"%d" % n, b"lost")])]) for n in range(3))))
    Path(control).unlink()
    say("again", *await ends(shared.commit([Put("log", [(b"later", b"1")])])))
    say("other", *await ends(other.commit([Put("t", [(b"later", b"1")])])))
    say("open", *await ends(disk.open_environment("new", ["t"], create=True)))
    say("read", read(shared, "log", b"before"))
    say("reported", *(type(error).__name__ for error in failures))
    await disk.close()


async def fail_data_sync(root: str, first: str, second: str, control: str) -> None:
    """Like `fail_sync`, for an environment on the first of two data disks."""
    failures: list[DiskFailed] = []
    disk = LmdbDisk(Path(root), [Path(first), Path(second)], on_failed=failures.append)
    await disk.open_instance("one")
    paths = ("data/a", "data/b", "data/c", "wals/shared")
    a, b, c, shared = [await disk.open_environment(path, ["t"], create=True) for path in paths]
    good = [Put("t", [(b"k", b"v")])]
    await asyncio.gather(*(each.commit(good) for each in (a, b, c, shared)))
    Path(control).touch()
    say("commit", *await ends(*(a.commit([Put("t", [(b"%d" % n, b"lost")])]) for n in range(3))))
    Path(control).unlink()
    say("read", read(a, "t", b"k"))
    say("neighbour", *await ends(c.commit(good), c.run(int)))
    say("others", *await ends(b.commit(good), shared.commit(good)))
    for path in ("data/new0", "data/new1"):
        await (await disk.open_environment(path, ["t"], create=True)).commit(good)
    say("new", *((Path(root) / f"data/new{n}").resolve().parent.parent.name for n in range(2)))
    say("reported", *failures)
    say("lost", *(Path(path).name for path in disk.lost_data_dirs()))
    await disk.close()


async def hang_data_sync(root: str, first: str, second: str, control: str) -> None:
    """With the shim loaded: syncs on the first of two data disks hang while `control` exists. Report what else waits."""
    disk = LmdbDisk(Path(root), [Path(first), Path(second)])
    await disk.open_instance("one")
    paths = ("data/a", "data/b", "data/c", "meta")
    a, b, c, meta = [await disk.open_environment(path, ["t"], create=True) for path in paths]
    Path(control).touch()
    good = [Put("t", [(b"k", b"v")])]
    hung = [asyncio.ensure_future(each.commit(good)) for each in (a, c)]
    try:
        async with timeout(30.0):
            await asyncio.gather(b.commit(good), b.commit(good), meta.commit(good))
            say("others", "accepted", not any(each.done() for each in hung))
            made = await disk.open_environment("data/new", ["t"], create=True)  # d1 holds fewer
            await made.commit(good)
            await disk.remove("data/unknown")
            say("measured", len(await disk.space()), await disk.used_bytes() > 0)
    finally:
        Path(control).unlink()
    await asyncio.gather(*hung)
    say("then", "accepted")
    await disk.close()


async def fill_up(root: str, limit: str) -> None:
    """Commit until there is no space; read; make space; commit again. `limit`: highest size of a file, or 0."""
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    disk = LmdbDisk(Path(root))
    await disk.open_instance("one")
    environment = await disk.open_environment("wals/shared", ["log"], create=True)
    committed = 0
    try:
        for _ in range(1000):
            items = [(number(committed + n), KIB) for n in range(100)]
            await environment.commit([Put("log", items, sorted_keys=True)])
            committed += len(items)
        say("never full")
    except EblaError as error:
        say(type(error).__name__, error)
    say("committed", committed > 0, environment.count("log") == committed)
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        (Path(root).parent / "ballast").unlink()
    await environment.commit([Delete("log", [number(n) for n in range(committed // 2)])])
    await environment.commit([Put("log", [(b"after", KIB)])])
    say("after", environment.count("log") == committed - committed // 2 + 1)
    await disk.close()
    disk = LmdbDisk(Path(root))
    await disk.open_instance("one")
    environment = await disk.open_environment("wals/shared", ["log"], create=False)
    say("reopened", environment.count("log") == committed - committed // 2 + 1)
    await disk.close()


async def read_along(directory: str, map_bytes: str) -> None:
    """Read at each request of the parent; a snapshot from the start must stay as it was, or expire."""
    reader = LmdbReader(Path(directory), ["log"], map_bytes=int(map_bytes))
    pinned = reader.snapshot()
    at_start = pinned.count("log")
    say("reader", at_start)
    for _ in sys.stdin:
        total, rows, following = 0, *reader.joined("log", limit=100)
        while True:
            total += len(rows)
            if following is None:
                break
            rows, following = reader.joined("log", following, limit=100)
        try:
            same = pinned.count("log") == at_start
        except SnapshotExpired:
            same = True
        say("rows", total, same)
    pinned.close()
    reader.close()


def fill(root: Path, left_bytes: int = 0) -> Path:
    """Fill the file system with another file, except for `left_bytes`."""
    file = root.parent / "filler"
    space = os.statvfs(root.parent)
    with open(file, "wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, space.f_bavail * space.f_frsize - left_bytes)
    return file


async def make_until_it_fits(place: str) -> None:
    """Make an environment with 0, 1, 2, ... pages of space left, and read an earlier environment each time."""
    root = Path(place)
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


async def start_when_full(place: str) -> None:
    """Start twice on a full file system, read, and write what a role must write at its start."""
    root = Path(place)
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


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    asyncio.run(globals()[verb](*arguments))
