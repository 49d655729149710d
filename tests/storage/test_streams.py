"""Environments are copied from disk to disk as streams: faults during a copy, its remains, and refused streams."""

from __future__ import annotations

import errno
import io
import os
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ebla.storage.directories.instance import BESIDE
from ebla.storage.environment import Put
from ebla.storage.errors import (
    Damaged,
    DataDiskFailed,
    DiskFailed,
    DiskFull,
    InvalidArgument,
    SnapshotExpired,
    StorageError,
)
from ebla.storage.lmdb import copier
from ebla.storage.lmdb import stream as streams
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.rows import checksum
from ebla.storage.tablets.tablet_store import TabletStore
from tests.storage.two_disks import LARGE, PATH, TABLET, Two, between_disks, ended


def test_a_failed_sync_during_writes_is_reported_before_the_end() -> None:
    reads, writes = os.pipe()  # cannot be synced
    try:
        for wait in (lambda syncs: syncs.begin(), lambda syncs: syncs.end()):
            syncs = copier.Syncs(writes)
            syncs.begin()
            with pytest.raises(OSError, match="Invalid argument"):
                wait(syncs)
    finally:
        os.close(reads)
        os.close(writes)


@between_disks
async def test_a_stream_shows_one_moment_during_commits_and_growth(two: Two) -> None:
    source = await two.environment()
    snapshot = source.snapshot()
    stream = await source.stream()
    for number in range(6):
        await source.commit([Put("t", [(b"%05d" % key, bytes([number]) * 4000) for key in range(2000)])])
        with pytest.raises(InvalidArgument):
            await source.commit([Put("t", [(bytes(512), b"")])])
    with pytest.raises(SnapshotExpired):  # the map has grown
        snapshot.count("t")
    data = b""
    while piece := await stream.read(1 << 20):
        data += piece
    await two.arrive(data)
    copy = await two.target.open_environment(PATH, ["t"], create=False)
    assert copy.items("t") == LARGE


@between_disks
async def test_a_killed_copier_breaks_the_stream_and_releases_its_snapshot(two: Two) -> None:
    source = await two.environment()
    stream = await source.stream()
    assert stream._copier is not None and str(stream._copier.pid) in source.lmdb.readers()
    stream._copier.kill()
    with pytest.raises(StorageError, match="cannot be copied"):
        while await stream.read(1 << 20):
            pass
    stream.close()
    await ended(stream)
    assert str(stream._copier.pid) not in source.lmdb.readers()
    assert stream._copier.done is False
    assert await two.bytes_of(source)


@between_disks
async def test_closing_an_environment_ends_its_streams(two: Two) -> None:
    source = await two.environment()
    stream = await source.stream()
    await source.close()
    with pytest.raises(StorageError, match="closed"):
        await stream.read(1)
    await ended(stream)
    assert stream._copier is not None and stream._copier.done is not None
    again = await two.source.open_environment(PATH, ["t"], create=False)
    assert again.count("t") == len(LARGE)


@between_disks
async def test_a_partial_copy_is_gone_after_a_crash(two: Two) -> None:
    data = await two.bytes_of(await two.environment())
    receiver = await two.target.receive(PATH)
    await receiver.write(data)
    crashed = two.place / "crashed"
    shutil.copytree(two.place / "target", crashed)
    assert (crashed / (PATH + BESIDE)).is_dir()
    disk = LmdbDisk(crashed)
    await disk.open_instance("target")
    assert not disk.exists(PATH) and not (crashed / (PATH + BESIDE)).exists()
    made = await disk.open_environment(PATH, ["t"], create=True)
    assert made.count("t") == 0
    await disk.close()


@between_disks
async def test_a_copied_environment_belongs_to_its_new_disk_only(two: Two) -> None:
    await two.arrive(await two.bytes_of(await two.environment()))
    await two.target.close()
    shutil.rmtree(two.place / "source" / PATH)
    await two.source.close()
    shutil.copytree(two.place / "target" / PATH, two.place / "source" / PATH)
    await two.open()
    copy = await two.target.open_environment(PATH, ["t"], create=False)
    await copy.commit([Put("t", [(b"k", b"v")])])
    assert copy.count("t") == len(LARGE) + 1
    with pytest.raises(Damaged, match="of instance target, not of source"):
        await two.source.open_environment(PATH, ["t"], create=False)


@pytest.mark.parametrize("cut", [0, 3, 5, 1000, -1])
@between_disks
async def test_a_stream_that_is_too_short_or_too_long_is_refused(two: Two, cut: int) -> None:
    data = await two.bytes_of(await two.environment(LARGE[:10]))
    for wrong in (data[:cut], data + b"x"):
        with pytest.raises(Damaged, match="its end"):
            await two.arrive(wrong)
        assert not two.target.exists(PATH)
        assert os.listdir(two.place / "target" / "data") == []


def frames(data: bytes) -> list[Any]:
    found = []
    while data:
        length = copier.LENGTH_BYTES + int.from_bytes(data[: copier.LENGTH_BYTES], "big")
        found.append(msgspec.msgpack.decode(data[copier.LENGTH_BYTES : length]))
        data = data[length:]
    return found


def bytes_of(found: list[Any]) -> bytes:
    out = io.BytesIO()
    for frame in found:
        copier.write(out, frame)
    return out.getvalue()


@between_disks
async def test_frames_in_wrong_order_and_missing_items_are_refused(two: Two) -> None:
    found = frames(await two.bytes_of(await two.environment()))
    parts = [frame for frame in found if frame[0] == b"t"]
    assert len(parts) > 3
    with pytest.raises(Damaged, match="do not ascend"):
        await two.arrive(bytes_of([found[0], parts[1], parts[0], *parts[2:], found[-1]]))
    with pytest.raises(Damaged, match="should be in it"):
        await two.arrive(bytes_of([frame for frame in found if frame is not parts[1]]))
    with pytest.raises(Damaged, match="cannot be read"):
        await two.arrive((5).to_bytes(copier.LENGTH_BYTES, "big") + b"hello")
    await two.arrive(bytes_of(found))


@pytest.mark.parametrize(("count", "size", "in_one"), [(4, copier.FRAME_BYTES, 1), (5000, 1000, 1057)])
@between_disks
async def test_a_frame_has_about_a_megabyte_of_large_and_of_small_items(
    two: Two, count: int, size: int, in_one: int
) -> None:
    environment = await two.environment([(b"%04d" % number, bytes(size)) for number in range(count)])
    parts = [items for name, items in frames(await two.bytes_of(environment)) if name == b"t"]
    assert sum(map(len, parts)) == count
    assert {len(items) for items in parts[:-1]} == {in_one}


@between_disks
async def test_a_tree_with_hidden_items_or_a_circle_is_not_copied(two: Two) -> None:
    source = await two.environment()
    with source.lmdb.begin() as transaction:
        database = source.handle("t")
        for entries in (len(LARGE) - 1, len(LARGE) + 1, 1):
            with pytest.raises(copier.Broken, match="are found"):
                list(copier.frames(transaction, database, entries))
        assert [item for some in copier.frames(transaction, database, len(LARGE)) for item in some] == LARGE


@between_disks
async def test_a_damaged_row_is_refused_at_the_end(two: Two) -> None:
    store = await TabletStore.open(two.source, TABLET, create=True)
    rows = [(key, checksum.seal(key, key * 600, store.seed)) for key, _ in LARGE]
    await store.environment.commit([Put("rows", rows)])
    data = await two.bytes_of(store.environment)
    middle = rows[1000][1]
    assert data.count(middle) == 1
    at = data.index(middle)
    turned = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    databases, sealed = ("rows", "results", "meta"), {"rows": store.seed}
    with pytest.raises(Damaged, match="fail their checksum"):
        await two.arrive(turned, databases, sealed)
    with pytest.raises(Damaged, match="fail their checksum"):
        await two.arrive(data, databases, {"rows": store.seed ^ 1})
    assert not two.target.exists(PATH)
    await two.arrive(data, databases, sealed)
    copy = await TabletStore.open(two.target, TABLET, create=False)
    assert await copy.scrub() == len(rows)


@between_disks
async def test_an_environment_that_does_not_fit_the_first_map_arrives(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_copier(monkeypatch, two, "ROOM_BYTES")
    large = [(b"%05d" % number, os.urandom(100_000)) for number in range(50)]
    source = await two.source.open_environment(PATH, ["t", "empty"], create=True, map_bytes=1 << 30)
    await source.commit([Put("t", large)])
    await two.arrive(await two.bytes_of(source), ("t", "empty"))
    copy = await two.target.open_environment(PATH, ["t", "empty"], create=False)
    assert copy.items("t") == large and copy.count("empty") == 0


def changed_copier(monkeypatch: pytest.MonkeyPatch, two: Two, constant: str, before: str = "") -> None:
    """Let the copier's processes run with the constant set to 1 (or 1 MiB for room), after the statements `before`."""
    program, value = two.place / "copier.py", "1 << 20" if constant == "ROOM_BYTES" else "1"
    original = Path(copier.__file__).read_text().replace("from __future__ import annotations\n", "")
    changed, count = re.subn(rf"(?m)^{constant} = .*", f"{constant} = {value}", original)
    assert count == 1
    program.write_text(before + changed)
    monkeypatch.setattr(copier, "__file__", str(program))
    monkeypatch.setattr(streams, "_origin", streams.Origin())


def failing_copier(monkeypatch: pytest.MonkeyPatch, two: Two, code: int) -> None:
    """Let the copier's processes fail their first sync."""
    failing = f"def failing(*arguments): raise OSError({code}, os.strerror({code}))"
    changed_copier(monkeypatch, two, "SYNC_BYTES", f"import os\n{failing}\nos.fdatasync = failing\n")


@between_disks
async def test_a_full_disk_refuses_the_stream_and_keeps_no_files(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = await two.bytes_of(await two.environment())
    with monkeypatch.context() as patched:
        failing_copier(patched, two, errno.ENOSPC)
        with pytest.raises(DiskFull):
            await two.arrive(data)
    assert os.listdir(two.place / "target" / "data") == []
    await two.arrive(data)


@between_disks
async def test_a_short_write_on_a_full_disk_is_not_a_disk_failure(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB reports it as an input/output error."""
    source = await two.source.open_environment(PATH, ["t"], create=True, map_bytes=1 << 30)
    await source.commit([Put("t", [(b"%05d" % number, os.urandom(100_000)) for number in range(100)])])
    data = await two.bytes_of(source)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, limits[1]))
    try:
        with monkeypatch.context() as patched, pytest.raises(DiskFull):
            patched.setattr(streams, "_origin", streams.Origin())  # its forks have these limits
            await two.arrive(data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await two.arrive(data)


@pytest.mark.parametrize("two", [False, True], indirect=True)
@between_disks
async def test_a_failed_sync_ends_the_use_of_the_target_disk(
    two: Two, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = await two.bytes_of(await two.environment())
    with monkeypatch.context() as patched:
        failing_copier(patched, two, errno.EIO)
        with pytest.raises(DataDiskFailed if two.data_dirs else DiskFailed):
            await two.arrive(data)
    if two.data_dirs:
        assert list(two.target.lost_data_dirs()) == [str(tmp_path / "d0")]
        assert not two.target.exists(PATH)
        await two.target.open_environment("wals/shared", ["t"], create=True)
    else:
        with pytest.raises(DiskFailed):
            two.target.exists(PATH)


@pytest.mark.parametrize("two", [True], indirect=True)
@between_disks
async def test_a_copied_environment_goes_to_a_data_directory(two: Two, tmp_path: Path) -> None:
    await two.arrive(await two.bytes_of(await two.environment()))
    assert (tmp_path / "target" / PATH).is_symlink()
    assert os.listdir(tmp_path / "d0" / "data") == [TABLET]
    copy = await two.target.open_environment(PATH, ["t"], create=False)
    assert copy.items("t") == LARGE
