"""Flushes and compactions of a tablet whose rows are runs of columns: full disks, crashes, cancelled commits, their order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ebla.storage.errors import DiskFull
from ebla.storage.runs import writing
from ebla.storage.runs.writing import Step
from ebla.storage.tablets.run_tree import Ongoing
from ebla.storage.tablets.tablet_store import path_of
from tests.storage.disks import in_simulation
from tests.storage.run_tablet import CHANGES, TABLET, Tablet, small


async def with_a_step() -> tuple[Tablet, Ongoing, Step]:
    """A tablet with two tiers, and the first step of their merge, which is not stored yet."""
    tablet = await Tablet.open()
    for places in ([1, 2, 3, 4], [2, 3]):
        tablet.put(places)
        await tablet.flush()
    ongoing = Ongoing(writing.merge_of(tablet.tree.directory, 0, 2))
    tablet.tree._merges.append(ongoing)
    return tablet, ongoing, await tablet.tree.merge(ongoing)


@in_simulation
async def test_a_full_disk_changes_nothing_and_the_next_flush_writes_everything() -> None:
    with small(2, 100):
        tablet = await Tablet.open()
        for places in ([1, 2, 3], [3, 4], [5], [1, 6]):
            tablet.put(places)
            await tablet.flush()
        tablet.put([7])
        tablet.medium.full = True
        before = tablet.tree.directory
        with pytest.raises(DiskFull):
            await tablet.store.flush()
        with pytest.raises(DiskFull):
            await tablet.compact(everything=True)
        assert tablet.tree.directory is before
        tablet.check()
        tablet.medium.full = False
        await tablet.flush()
        await tablet.compact(everything=True)
        await tablet.restart()
        tablet.check()


@in_simulation
async def test_a_compaction_drops_overwritten_and_deleted_rows() -> None:
    with small(2, 1 << 20):
        tablet = await Tablet.open()
        for places in ([1, 2, 3], [3, 4], [5]):
            tablet.put(places)
            await tablet.flush()
        await tablet.step("delete", [2, 3])
        await tablet.flush()
        assert sum(run.rows for run in tablet.tree.directory.runs) == 8
        ongoing = tablet.tree.due()
        assert ongoing is not None and ongoing.merge.bottom
        await tablet.compact(everything=True)
        assert [(run.rows, run.gone) for run in tablet.tree.directory.runs] == [(3, 0)]
        await tablet.tree.clean()
        tables = tablet.medium.environments[path_of(TABLET)]
        assert len(tables["rows"]) == 2
        tablet.check()


@in_simulation
async def test_a_flush_during_a_compaction_stays_the_newest() -> None:
    with small(2, 1):
        tablet, ongoing, done = await with_a_step()
        tablet.put([1, 2, 3])
        await tablet.flush()
        await tablet.tree.store(ongoing, done)
        tablet.check()
        while await tablet.advance(ongoing):
            pass
        await tablet.restart()
        tablet.check()


@in_simulation
async def test_a_flush_that_is_cancelled_during_its_commit_is_known_to_the_next_one() -> None:
    tablet = await Tablet.open()
    tablet.put([1, 2])
    tablet.medium.commit_s = (0.05, 0.06)
    flush = asyncio.ensure_future(tablet.store.flush())
    await asyncio.sleep(0.01)
    flush.cancel()
    await asyncio.sleep(0.1)
    records = tablet.medium.environments[path_of(TABLET)]["meta"]
    assert b"run/1" in records, "the commit was under way"
    tablet.put([2, 3])
    await tablet.flush()
    tablet.check()
    await tablet.restart()
    tablet.check()
    await tablet.tree.clean()
    meta = tablet.medium.environments[path_of(TABLET)]["meta"]
    assert sorted(meta) == [b"bloom/1", b"bloom/2", b"position", b"run/1", b"run/2", b"runs"]


@in_simulation
async def test_a_flush_that_waits_for_a_cancelled_one_writes_the_layout_of_its_own_position() -> None:
    tablet = await Tablet.open()
    tablet.put([1, 2])
    tablet.medium.commit_s = (0.05, 0.06)
    cancelled = asyncio.ensure_future(tablet.store.flush())
    await asyncio.sleep(0.01)
    cancelled.cancel()
    tablet.put([2, 3])
    tablet.flushed = tablet.schema, dict(tablet.rows)
    flush = asyncio.ensure_future(tablet.store.flush())
    await asyncio.sleep(0.01)
    tablet.alter(CHANGES[0])  # its record is for the flush after this one
    await flush
    await tablet.restart()
    tablet.check()


@in_simulation
async def test_blocks_that_a_crash_left_behind_are_removed() -> None:
    with small(2, 1 << 20):
        tablet = await Tablet.open()
        for places in ([1, 2, 3], [3, 4]):
            tablet.put(places)
            await tablet.flush()
        await tablet.compact(everything=True)
        assert len(tablet.medium.environments[path_of(TABLET)]["rows"]) == 2 + 1 + 2
        await tablet.restart()
        await tablet.tree.clean()
        assert len(tablet.medium.environments[path_of(TABLET)]["rows"]) == 2
        tablet.check()


@pytest.mark.parametrize("first", ["flush", "step"])
@pytest.mark.parametrize("then", ["flush", "step"])
@in_simulation
async def test_after_a_commit_that_was_cancelled_the_next_one_begins_with_what_is_on_disk(
    first: str, then: str
) -> None:
    with small(2, 1):
        tablet, ongoing, done = await with_a_step()
        tablet.put([4, 5])

        def change(what: str) -> Any:
            return tablet.store.flush() if what == "flush" else tablet.tree.store(ongoing, done)

        tablet.medium.commit_s = (0.05, 0.06)
        cancelled = asyncio.ensure_future(change(first))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        await change(then)
        await tablet.flush()
        tablet.check()
        while ongoing in tablet.tree._merges:
            await tablet.advance(ongoing)
        await tablet.restart()
        tablet.check()


@in_simulation
async def test_small_tiers_are_merged_before_a_long_merge_of_older_ones_ends() -> None:
    with small(2, 1):
        tablet = await Tablet.open()

        async def flushes(count: int, places: list[int]) -> None:
            for _ in range(count):
                tablet.put(places)
                await tablet.flush()

        await flushes(4, list(range(18)))
        older = tablet.tree.due()
        assert older is not None and older.merge.bottom
        assert await tablet.advance(older)
        assert tablet.tree.due() is older
        await flushes(4, [1])
        newer = tablet.tree.due()
        assert newer is not None and newer is not older
        assert newer.merge.oldest > older.merge.newest
        while await tablet.advance(newer):
            pass
        assert tablet.tree.due() is older
        while await tablet.advance(older):
            pass
        assert len(tablet.tree.directory.tiers) == 2
        await tablet.restart()
        tablet.check()


@in_simulation
async def test_a_wanted_merge_leaves_one_tier_without_deleted_rows_and_of_the_present_layout() -> None:
    with small(2, 200):
        tablet = await Tablet.open()
        for places in ([1, 2, 3, 4, 5], [3, 4]):
            tablet.put(places)
            await tablet.flush()
        tablet.alter(CHANGES[0])
        await tablet.step("delete", [2])
        await tablet.flush()
        assert tablet.tree.due() is None
        tablet.tree.wanted = tablet.store.flushed.index
        assert tablet.tree.scattered() > 0
        while (ongoing := tablet.tree.due()) is not None:
            await tablet.advance(ongoing)
        assert tablet.tree.wanted == 0
        (tier,) = tablet.tree.directory.tiers
        assert {(run.gone, run.layout) for run in tier.runs} == {(0, tablet.codec.layout)}
        await tablet.restart()
        tablet.check()


@in_simulation
async def test_a_cancelled_flush_of_an_alteration_is_read_by_the_next_compaction() -> None:
    tablet = await Tablet.open()
    for places in ([1, 2], [2, 3], [3]):
        tablet.put(places)
        await tablet.flush()
    tablet.alter(CHANGES[0])
    tablet.put([4])
    tablet.medium.commit_s = (0.05, 0.06)
    flush = asyncio.ensure_future(tablet.store.flush())
    await asyncio.sleep(0.01)
    flush.cancel()
    await tablet.tree.clean()
    assert len(tablet.tree.directory.tiers) == 4, "the flush was carried out"
    ongoing = tablet.tree.due()
    assert ongoing is not None
    while await tablet.advance(ongoing):
        pass
    await tablet.flush()
    await tablet.restart()
    tablet.check()
