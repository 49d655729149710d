"""Environments on a real disk: group commits, refused batches, reads, growth, snapshots."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ebla.storage.environment import JOINED_STEP, Delete, DeleteRange, Put
from ebla.storage.errors import InvalidArgument, SnapshotExpired, StorageError
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.lmdb.gate import Gate
from tests.storage.disks import Scenario, Test, given_by, on_disk

MIB = 1 << 20
HOT, POOLED = "wals/shared", "meta"


def with_environment(
    scenario: Scenario, root: Path, path: str = HOT, *, map_bytes: int = 1 << 30, grace_s: float = 5.0
) -> None:
    async def opened(disk: LmdbDisk) -> None:
        await scenario(await disk.open_environment(path, ["t", "u"], create=True, map_bytes=map_bytes))

    on_disk(root, opened, growth_grace_s=grace_s)


on_either_environment = given_by(with_environment, "tmp_path", "path")


def on_environment(**options: Any) -> Callable[[Scenario], Test]:
    return given_by(functools.partial(with_environment, **options), "tmp_path")


def put(*keys: bytes, value: bytes = b"v") -> list[Put]:
    return [Put("t", [(key, value) for key in keys])]


@pytest.mark.parametrize("path", [HOT, POOLED])
@on_either_environment
async def test_commits_queued_together_share_one_transaction_in_call_order(environment):
    await environment.commit(put(b"first"))
    before = environment.info()["last_txnid"]
    await asyncio.gather(*(environment.commit([Put("t", [(b"k", b"%d" % n)])]) for n in range(500)))
    assert environment.get("t", b"k") == b"499"
    assert environment.info()["last_txnid"] - before <= 250


@on_environment(map_bytes=MIB, grace_s=60)
async def test_growth_waits_for_an_open_snapshot_and_the_commits_behind_it_are_one_transaction(environment):
    """All commits that queue while the writer is busy become exactly one transaction; reads continue."""
    await environment.commit(put(b"a"))
    before = environment.info()["last_txnid"]
    snapshot = environment.snapshot()
    growing = asyncio.ensure_future(environment.commit(put(b"large", value=bytes(2 * MIB))))
    await asyncio.sleep(0)
    await environment.run(_until, lambda: environment._jobs.empty())
    others = [asyncio.ensure_future(environment.commit(put(b"%d" % n))) for n in range(100)]
    await asyncio.sleep(0)
    assert snapshot.items("t") == environment.items("t") == [(b"a", b"v")]
    assert not growing.done()
    snapshot.close()
    await asyncio.gather(growing, *others)
    assert environment.info()["last_txnid"] - before == 2


@pytest.mark.parametrize("path", [HOT, POOLED])
@pytest.mark.parametrize(
    "bad",
    [
        put(b"x", b"k" * 512),
        put(b"x", b""),
        [*put(b"x"), Put("unknown", [(b"k", b"v")])],
        [*put(b"x"), Put("t", [("text", b"v")])],
        [*put(b"x"), Put("t", [(b"k", None)])],
        [*put(b"x"), Put("t", [[b"k", b"v"]])],
        [*put(b"x"), DeleteRange("unknown", b"", None)],
        [*put(b"x"), None],
    ],
)
@on_either_environment
async def test_a_bad_batch_is_refused_alone_and_as_a_whole(environment, bad):
    results = await asyncio.gather(
        environment.commit(put(b"a")),
        environment.commit(bad),
        environment.commit(put(b"b")),
        environment.commit(bad),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [
        type(None),
        InvalidArgument,
        type(None),
        InvalidArgument,
    ]
    assert [key for key, _ in environment.items("t")] == [b"a", b"b"]
    await environment.commit(put(b"c"))


@on_environment()
async def test_a_broken_promise_of_sorted_keys_loses_nothing(environment):
    items = [(b"a", b"1"), (b"c", b"2"), (b"b", b"3"), (b"c", b"4")]
    await environment.commit([Put("t", items, sorted_keys=True)])
    assert environment.items("t") == [(b"a", b"1"), (b"b", b"3"), (b"c", b"4")]
    await environment.commit([Put("t", [(b"0", b"")], sorted_keys=True)])
    assert environment.count("t") == 4


@on_environment()
async def test_changes_of_one_batch_apply_in_order(environment):
    await environment.commit(
        [
            *put(b"a", b"b", b"c", b"d"),
            DeleteRange("t", b"b", b"d"),
            *put(b"c"),
            Delete("t", [b"a", b"gone", b""]),
        ]
    )
    assert [key for key, _ in environment.items("t")] == [b"c", b"d"]
    await environment.commit([DeleteRange("t", b"d", b"c"), DeleteRange("t", b"d", None), *put(b"e")])
    assert [key for key, _ in environment.items("t")] == [b"c", b"e"]
    await environment.commit([DeleteRange("t", b"", None)])
    assert environment.count("t") == 0


@on_environment()
async def test_joined_continues_where_it_stopped(environment):
    keys = [b"%03d" % n for n in range(100)]
    await environment.commit([Put("t", [(key, b"=" + key) for key in keys], sorted_keys=True)])
    for start, stop in ((b"", None), (b"010", b"090"), (b"0105", b"0895"), (b"100", None), (b"5", b"5")):
        wanted = [key + b"=" + key for key in keys if start <= key and (stop is None or key < stop)]
        for limit, bytes_max in product((1, 7, 80, 100, 1000), (None, 1, 600)):
            rows, following = environment.joined("t", start, stop, limit=limit, bytes_max=bytes_max)
            while following is not None:
                assert rows[-1][:3] < following
                more, following = environment.joined("t", following, stop, limit=limit, bytes_max=bytes_max)
                assert 0 < len(more) <= limit
                rows += more
            assert rows == wanted, (start, stop, limit)


@on_environment()
async def test_joined_ends_early_when_rows_are_large(environment):
    await environment.commit([Put("t", [(b"%03d" % n, b"x" * 97) for n in range(900)], sorted_keys=True)])
    for bytes_max, rows in (
        (1, JOINED_STEP),
        (100 * JOINED_STEP, JOINED_STEP),
        (100 * JOINED_STEP + 1, 2 * JOINED_STEP),
        (1 << 20, 900),
    ):
        assert len(environment.joined("t", limit=1000, bytes_max=bytes_max)[0]) == rows


@on_environment()
async def test_reads_of_absent_keys_and_databases(environment):
    assert environment.get("t", b"") is None
    assert environment.get_many("t", [b"", b"a", b"k" * 600]) == [None, None, None]
    assert environment.last("t") is None and environment.joined("t", limit=1) == ([], None)
    with pytest.raises(InvalidArgument, match="there is no database 'x'"):
        environment.get("x", b"a")
    await environment.commit(put(b"b", b"d"))
    assert [environment.last("t", stop) for stop in (b"", b"b", b"c", b"d", b"z")] == [
        None,
        None,
        (b"b", b"v"),
        (b"b", b"v"),
        (b"d", b"v"),
    ]


@on_environment()
async def test_a_snapshot_stays_as_it_was_and_ends_when_closed(environment):
    await environment.commit(put(b"a"))
    snapshot = environment.snapshot()
    await environment.commit([DeleteRange("t", b"", None), *put(b"b")])
    assert snapshot.items("t") == [(b"a", b"v")] and environment.items("t") == [(b"b", b"v")]
    snapshot.close()
    snapshot.close()
    with pytest.raises(SnapshotExpired):
        snapshot.get("t", b"a")


@on_environment()
async def test_a_snapshot_with_views_shows_items_where_they_lie_and_other_reads_stay_copies(environment):
    await environment.commit(put(b"a", value=b"x" * 5000))
    for _ in range(3):  # transactions are used again
        pinned = environment.snapshot(views=True)
        await environment.commit(put(b"a", value=b"y" * 5000))
        assert pinned.look("t", [b"a", b"b"], lambda at, view: (at, type(view), bytes(view[:2]))) == [
            (0, memoryview, b"xx"),
            None,
        ]
        assert pinned.get("t", b"a") == b"x" * 5000 and isinstance(pinned.get("t", b"a"), bytes)
        with pytest.raises(AssertionError, match="would end with the snapshot"):
            pinned.items("t")
        pinned.close()
        with pytest.raises(SnapshotExpired):
            pinned.look("t", [b"a"], lambda at, view: len(view))
        plain = environment.snapshot()
        assert isinstance(plain.get("t", b"a"), bytes) and isinstance(environment.get("t", b"a"), bytes)
        assert all(isinstance(part, bytes) for item in plain.items("t") for part in item)
        plain.close()
        await environment.commit(put(b"a", value=b"x" * 5000))


@on_environment(map_bytes=MIB)
async def test_the_map_grows_for_writes_far_larger_than_it(environment):
    value = os.urandom(1000)
    for n in range(20):
        await environment.commit([Put("t", [(b"%02d%05d" % (n, i), value) for i in range(1000)], True)])
    assert environment.count("t") == 20_000
    assert environment.info()["map_size"] >= 20 * MIB
    await environment.commit([Put("u", [(b"huge", bytes(64 * MIB))])])
    assert len(environment.get("u", b"huge")) == 64 * MIB


@on_environment(map_bytes=MIB, grace_s=0.05)
async def test_growth_expires_a_snapshot_that_stays_open(environment):
    await environment.commit(put(b"a"))
    left_open = environment.snapshot()
    await environment.commit(put(b"b", value=bytes(4 * MIB)))
    with pytest.raises(SnapshotExpired, match="larger map"):
        left_open.get("t", b"a")
    assert environment.count("t") == 2
    left_open.close()


@pytest.mark.timeout(600)
@on_environment(map_bytes=MIB)
async def test_readers_without_a_pause_do_not_starve_the_writer_that_grows_the_map(environment):
    await environment.commit([Put("u", [(b"%04d" % n, b"x" * 100) for n in range(2000)], True)])
    done = threading.Event()

    def read_until_done() -> int:
        rounds = 0
        while not done.is_set() or not rounds:
            rows, _ = environment.joined("u", limit=5000)
            assert len(rows) == 2000 and rows[7] == b"0007" + b"x" * 100
            assert environment.get("u", b"1999") == b"x" * 100
            rounds += 1
        return rounds

    readers = [asyncio.ensure_future(environment.run(read_until_done)) for _ in range(2)]
    for n in range(6):
        await environment.commit(put(b"%d" % n, value=bytes(MIB << n)))
    done.set()
    assert min(await asyncio.gather(*readers)) > 0


@on_environment()
async def test_a_cancelled_commit_is_carried_out(environment):
    waiting = asyncio.ensure_future(environment.commit(put(b"a")))
    await asyncio.sleep(0)
    waiting.cancel()
    await environment.commit(put(b"b"))
    assert waiting.cancelled() and environment.count("t") == 2


@pytest.mark.parametrize("path", [HOT, POOLED])
@on_either_environment
async def test_close_waits_for_earlier_commits_and_refuses_later_ones(environment):
    snapshot = environment.snapshot()
    commits = [asyncio.ensure_future(environment.commit(put(b"%d" % n))) for n in range(50)]
    await asyncio.sleep(0)
    await environment.close()
    await environment.close()
    assert all(commit.done() and commit.exception() is None for commit in commits)
    for attempt in (
        lambda: environment.get("t", b"1"),
        environment.snapshot,
        lambda: snapshot.count("t"),
    ):
        with pytest.raises(StorageError, match="closed"):
            attempt()
    with pytest.raises(StorageError, match="closed"):
        await environment.commit(put(b"late"))


@on_environment()
async def test_run_uses_another_thread(environment):
    assert await environment.run(threading.get_ident) != threading.get_ident()
    assert await environment.run(max, 3, 4) == 4
    with pytest.raises(ZeroDivisionError):
        await environment.run(divmod, 1, 0)


@on_environment()
async def test_a_forked_child_may_not_touch_the_environment(environment):
    child = os.fork()
    if child == 0:
        refused = 1
        try:
            environment.get("t", b"a")
        except AssertionError:
            refused = 0
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_closed_gate_admits_no_thread_and_waits_for_those_inside():
    gate, order = Gate(), []
    gate.enter()
    closing = threading.Thread(target=lambda: _closed(gate, order))
    closing.start()
    _until(lambda: gate._shut)
    entering = threading.Thread(target=lambda: (gate.enter(), order.append("entered"), gate.leave()))
    entering.start()
    order.append("leaving")
    gate.leave()
    closing.join(10)
    entering.join(10)
    assert order == ["leaving", "closed", "entered"]


def _closed(gate: Gate, order: list[str]) -> None:
    with gate.closed():
        order.append("closed")


def _until(holds: Callable[[], bool]) -> None:
    """Wait for another thread's progress; the test's timeout ends a hanging test."""
    while not holds():
        os.sched_yield()
