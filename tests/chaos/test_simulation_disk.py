"""The simulated disk keeps exactly the data that LMDB keeps; tests/storage/test_lmdb_twin.py compares both."""

from __future__ import annotations

import asyncio
import random

import pytest

from ebla.chaos.simulation.disk import MemoryDisk
from ebla.chaos.simulation.loop import run
from ebla.chaos.simulation.medium import DurableState
from ebla.storage.environment import DeleteRange, Put
from ebla.storage.errors import (
    Damaged,
    DirectoryLocked,
    DiskFailed,
    DiskFull,
    EblaError,
    OldCopy,
    SnapshotExpired,
    StorageError,
)
from tests.staged import simulated


async def start(state: DurableState, seed: int = 0):
    disk = MemoryDisk(state, random.Random(seed))
    await disk.open_instance("one")
    return disk, await disk.open_environment("wals/shared", ["log"], create=True)


def put(number: int) -> list[Put]:
    return [Put("log", [(b"%04d" % number, b"v")])]


def numbers(environment) -> list[int]:
    return [int(key) for key, _ in environment.items("log")]


def crash_in_flight(seed: int) -> tuple[list[int], list[int]]:
    """The acknowledged commits, and those found after a crash among eight committers."""

    async def main():
        state, acknowledged = DurableState(), []
        disk, environment = await start(state, seed)

        async def committer(first):
            for number in range(first, 1000, 8):
                await environment.commit(put(number))
                acknowledged.append(number)

        for first in range(8):
            disk.loop.create_task(committer(first))
        await asyncio.sleep(disk.random.uniform(0.01, 0.05))
        disk.crash()
        _, environment = await start(state, seed)
        return sorted(acknowledged), numbers(environment)

    return run(main(), seed)


def test_a_crash_keeps_what_returned_and_a_prefix_of_what_was_in_flight():
    extra = set()
    for seed in range(100):
        acknowledged, stored = crash_in_flight(seed)
        assert acknowledged and set(acknowledged) <= set(stored)
        assert stored == list(range(len(stored)))
        extra.add(len(stored) - len(acknowledged))
    assert min(extra) == 0 and max(extra) >= 5, "commits in flight were always kept or always lost"


@simulated
async def test_commits_during_a_sync_share_the_next_sync() -> None:
    state = DurableState()
    state.commit_s = (1.0, 1.0)
    disk, environment = await start(state)
    begin = disk.loop.time()
    await asyncio.gather(*(environment.commit(put(n)) for n in range(100)))
    assert 2.0 <= disk.loop.time() - begin < 2.1
    assert numbers(environment) == list(range(100))


def test_a_durable_commit_may_be_visible_before_it_is_acknowledged():
    async def main():
        _, environment = await start(DurableState())
        commit = asyncio.ensure_future(environment.commit(put(1)))
        while not environment.count("log"):
            await asyncio.sleep(0.000_005)
        seen_early = not commit.done()
        await commit
        return seen_early

    assert any(run(main(), seed) for seed in range(5))


@simulated
async def test_a_snapshot_does_not_change_and_can_expire() -> None:
    _, environment = await start(DurableState())
    await environment.commit(put(1))
    snapshot = environment.snapshot()
    await environment.commit([DeleteRange("log", b"", None), *put(2)])
    assert (numbers(snapshot), numbers(environment)) == ([1], [2])
    environment.expire_snapshots()
    with pytest.raises(SnapshotExpired):
        snapshot.count("log")


@simulated
async def test_a_failed_sync_poisons_the_disk_for_good() -> None:
    state = DurableState()
    disk, environment = await start(state)
    other = await disk.open_environment("meta", ["t"], create=True)
    await environment.commit(put(1))
    state.fail_next_commit("wals/shared")
    await other.commit([Put("t", [(b"k", b"v")])])
    commits = [environment.commit(put(2)), environment.commit(put(3)), other.commit([])]
    ends = await asyncio.gather(*commits, return_exceptions=True)
    assert {type(end) for end in ends[:2]} == {DiskFailed}
    for attempt in (
        lambda: environment.get("log", b"0001"),
        lambda: other.count("t"),
        lambda: disk.list("wals"),
    ):
        with pytest.raises(DiskFailed):
            attempt()
    await disk.close()
    with pytest.raises(DiskFailed, match="set the directory aside"):
        await start(state)


@simulated
async def test_a_full_disk_refuses_commits_changes_nothing_and_recovers() -> None:
    state = DurableState()
    _, environment = await start(state)
    await environment.commit(put(1))
    state.fill()
    ends = await asyncio.gather(*(environment.commit(put(n)) for n in (2, 3)), return_exceptions=True)
    assert [type(end) for end in ends] == [DiskFull, DiskFull]
    assert numbers(environment) == [1]
    state.free()
    await environment.commit(put(4))
    assert numbers(environment) == [1, 4]


def test_rot_raises_no_error():
    async def main():
        state = DurableState()
        _, environment = await start(state)
        await environment.commit([Put("log", [(b"k", b"\x02rest")])])
        state.rot("wals/shared", "log", b"k")
        return environment.get("log", b"k")

    assert run(main()) == b"\x02rdst"


@simulated
async def test_incarnations_are_numbered_and_exclude_each_other() -> None:
    state = DurableState()
    first = MemoryDisk(state, random.Random(0))
    assert await first.open_instance("one") == ("one", 1, True)
    with pytest.raises(DirectoryLocked):
        await MemoryDisk(state, random.Random(0)).open_instance("two")
    first.crash()
    second = MemoryDisk(state, random.Random(0))
    assert await second.open_instance("two") == ("one", 2, False)
    with pytest.raises(StorageError, match="not open"):
        first.list("wals")
    await second.close()
    assert (await MemoryDisk(state, random.Random(0)).open_instance("three")).seqno == 3


def test_raising_the_incarnation_number_is_atomic():
    async def main(seed):
        state = DurableState()
        disk, _ = await start(state, seed)
        assert await disk.raise_seqno(1000) == 1001
        state.fill()
        with pytest.raises(DiskFull):
            await disk.raise_seqno(1000)
        state.free()
        raising = asyncio.ensure_future(disk.raise_seqno(1000))
        await asyncio.sleep(disk.random.uniform(0.0, 0.004))
        disk.crash()
        acknowledged = raising.done()
        raising.cancel()
        found = (await MemoryDisk(state, random.Random(seed)).open_instance("one")).seqno
        assert found in ((2002,) if acknowledged else (1002, 2002))
        return found, acknowledged

    assert {run(main(seed), seed) for seed in range(200)} == {(2002, True), (2002, False), (1002, False)}


@simulated
async def test_a_failed_sync_of_the_incarnation_number_poisons_the_disk() -> None:
    state = DurableState()
    disk, environment = await start(state)
    state.fail_next_commit("instance")
    with pytest.raises(DiskFailed):
        await disk.raise_seqno(1000)
    with pytest.raises(DiskFailed):
        environment.count("log")


@simulated
async def test_only_the_holder_of_a_directory_can_give_it_up() -> None:
    state = DurableState()
    first, _ = await start(state)
    old = state.copy()
    state.holder = None  # as if the directory had no lock
    second = MemoryDisk(state, random.Random(0))
    await second.open_instance("one")
    assert not await first.give_up("it was succeeded")
    assert state.given_up is None
    assert await second.give_up("it is an old copy")
    await second.close()
    with pytest.raises(OldCopy, match="it is an old copy"):
        await start(state)
    assert (await MemoryDisk(old, random.Random(0)).open_instance("one")).seqno == 2


@simulated
async def test_a_missing_environment_is_reported_as_damage() -> None:
    state = DurableState()
    disk, environment = await start(state)
    with pytest.raises(Damaged):
        await disk.open_environment("meta", ["t"], create=False)
    await environment.close()
    state.lose_environment("wals/shared")
    with pytest.raises(Damaged):
        await disk.open_environment("wals/shared", ["log"], create=False)


@simulated
async def test_close_waits_for_the_commits_before_it() -> None:
    disk, environment = await start(DurableState())
    commits = [asyncio.ensure_future(environment.commit(put(n))) for n in range(20)]
    await asyncio.sleep(0)
    await disk.close()
    assert all(commit.done() and commit.exception() is None for commit in commits)
    with pytest.raises(EblaError):
        await environment.commit(put(99))


@simulated
async def test_a_file_outside_the_directory_exists_after_its_close() -> None:
    state = DurableState()
    disk, _ = await start(state)
    assert disk.outside.make("/rescue/1") == []
    with disk.outside.create("/rescue/1/rows") as file:
        file.write(b"some ")
        file.write(b"rows")
        assert disk.outside.make("/rescue/1") == []
    assert (disk.outside.make("/rescue/1"), disk.outside.make("/rescue")) == (["rows"], ["1"])
    assert state.outside == {"/rescue/1/rows": b"some rows"}
    state.fill()
    with pytest.raises(OSError, match="No space left"):
        disk.outside.create("/rescue/1/log")
    disk.outside.remove("/rescue/1/rows")
    disk.outside.remove("/rescue/1/rows")
    assert state.outside == {}
