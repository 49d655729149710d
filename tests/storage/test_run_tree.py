"""Reads of a tablet whose rows are runs of columns, compared with a dict: through flushes, compactions, alterations and
restarts; and damage of its blocks and records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.actors.tablet.serving.scans import digest
from ebla.storage.errors import Corruption, Damaged
from ebla.storage.tablets.tablet_store import path_of
from tests.storage.disks import in_simulation
from tests.storage.run_tablet import KEYS, TABLET, Tablet, read, small, steps
from tests.sweeps import examples


@settings(max_examples=examples(80))
@given(
    before=steps,
    after=steps,
    bounds=st.tuples(st.integers(0, len(KEYS)), st.integers(0, len(KEYS))),
    limit=st.integers(1, 7),
    block=st.integers(1, 5),
    range_bytes=st.integers(1, 2000),
    data=st.data(),
)
@in_simulation
async def test_reads_return_each_row_once_and_in_order(
    before: list[Any],
    after: list[Any],
    bounds: tuple[int, int],
    limit: int,
    block: int,
    range_bytes: int,
    data: st.DataObject,
) -> None:
    with small(block, range_bytes):
        tablet = await Tablet.open()
        for what, places in before:
            await tablet.step(what, places)
            tablet.check()
        codec = tablet.codec
        encoded = [b"", *sorted(codec.encode_key(key) for key in KEYS)]
        start, stop = (encoded[at] for at in sorted(bounds))
        names = data.draw(st.lists(st.sampled_from(codec.names), unique=True, min_size=1))
        snapshot, then = tablet.store.snapshot(), tablet.expected(start, stop or None)
        for what, places in [step for step in after if step[0] != "restart"]:
            await tablet.step(what, places)
            tablet.check()
        found = read(codec, snapshot, start, stop or None, limit, names)
        assert found == [{name: row[name] for name in names} for row in then]
        snapshot.close()
        await tablet.store.scrub()
        await tablet.restart()
        tablet.check()


@settings(max_examples=examples(30))
@given(script=steps, other=st.lists(st.sampled_from(["flush", "compact", "merge"])), block=st.integers(1, 5))
@in_simulation
async def test_equal_rows_have_equal_digests_whatever_their_runs(
    script: list[Any], other: list[str], block: int
) -> None:
    with small(block, 500):
        one, two = await Tablet.open(), await Tablet.open()
        turns = iter(other)
        for what, places in script:
            if what in ("put", "batch", "delete", "alter"):
                await one.step(what, places)
                await two.step(what, places)
            else:
                await one.step("flush", [])
                await two.step(next(turns, "flush"), [])
        assert _digest(one) == _digest(two)


def _digest(tablet: Tablet) -> tuple[int, str]:
    snapshot = tablet.store.snapshot()
    try:
        return digest(snapshot, lambda: False)
    finally:
        snapshot.close()


@settings(max_examples=examples(80))
@given(script=steps, data=st.data())
@in_simulation
async def test_a_flipped_bit_is_found_before_a_wrong_row_is_returned(
    script: list[Any], data: st.DataObject
) -> None:
    with small(3, 300):
        tablet = await Tablet.open()
        for what, places in [*script, ("flush", [])]:
            await tablet.step(what, places)
        await tablet.tree.clean()
        tables = tablet.medium.environments[path_of(TABLET)]
        items = [(name, key) for name, table in tables.items() for key in table]
        name, key = data.draw(st.sampled_from(items))
        value = bytearray(tables[name][key])
        value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        tables[name][key] = bytes(value)
        with pytest.raises((Corruption, Damaged)):
            await tablet.store.scrub()
        with pytest.raises((Corruption, Damaged)):
            await tablet.restart()  # a small store is scrubbed when it is opened


@settings(max_examples=examples(60))
@given(script=steps, data=st.data())
@in_simulation
async def test_a_missing_item_is_found_before_a_row_is_denied(script: list[Any], data: st.DataObject) -> None:
    with small(3, 300):
        tablet = await Tablet.open()
        for what, places in [*script, ("put", [1]), ("flush", [])]:
            await tablet.step(what, places)
        await tablet.tree.clean()
        tables = tablet.medium.environments[path_of(TABLET)]
        items = [(name, key) for name in ("rows", "meta") for key in tables[name]]
        name, key = data.draw(st.sampled_from(items))
        del tables[name][key]
        with pytest.raises((Corruption, Damaged)):
            await tablet.restart()


@in_simulation
async def test_every_truncation_of_a_block_is_found() -> None:
    tablet = await Tablet.open()
    tablet.put([1, 2, 3, 8, 9, 14])
    await tablet.flush()
    rows = tablet.medium.environments[path_of(TABLET)]["rows"]
    ((key, value),) = list(rows.items())
    wanted = tablet.codec.encode_key(KEYS[8])
    for size in range(len(value)):
        rows[key] = value[:size]
        for read_one in (tablet.store.get_many, tablet.store.contains):
            with pytest.raises(Corruption):
                read_one([wanted])


@in_simulation
async def test_a_block_that_is_read_where_another_of_its_shape_was_is_damage_after_its_header_was_kept() -> (
    None
):
    tablet = await Tablet.open()
    keys = [tablet.codec.encode_key(KEYS[at]) for at in (13, 15)]
    for at in (13, 15):
        tablet.put([at])
        await tablet.flush()
    assert all(tablet.store.contains(keys)), "which keeps the headers"
    rows = tablet.medium.environments[path_of(TABLET)]["rows"]
    (first, one), (second, two) = sorted(rows.items())
    assert len(one) == len(two) and one != two
    rows[first], rows[second] = two, one
    for key in keys:
        for read_one in (tablet.store.get_many, tablet.store.contains):
            with pytest.raises(Corruption):
                read_one([key])


@pytest.mark.parametrize("key", [b"x", b"x" * 13, b"\xff" * 13, b"\0" * 11])
@in_simulation
async def test_an_item_that_is_no_block_is_damage(key: bytes) -> None:
    tablet = await Tablet.open()
    tablet.put([1])
    await tablet.flush()
    tablet.medium.environments[path_of(TABLET)]["rows"][key] = b"?"
    with pytest.raises(Corruption, match="no block can have"):
        await tablet.restart()


@in_simulation
async def test_a_block_of_the_last_possible_run_is_removed_as_any_other() -> None:
    tablet = await Tablet.open()
    tablet.put([1])
    await tablet.flush()
    tablet.medium.environments[path_of(TABLET)]["rows"][b"\xff" * 12] = b"?"
    await tablet.restart()
    await tablet.tree.clean()
    assert len(tablet.medium.environments[path_of(TABLET)]["rows"]) == 1


@in_simulation
async def test_a_read_ends_after_a_number_of_rows_and_after_a_number_of_bytes() -> None:
    tablet = await Tablet.open()
    tablet.put(list(range(9)))
    await tablet.flush()
    tablet.put(list(range(9, 18)))
    for limit, bytes_max in ((2, 1 << 20), (100, 40)):
        snapshot, at, most = tablet.store.snapshot(), b"", 0
        following: bytes | None = at
        while following is not None:
            batch, following = snapshot.read(tablet.codec, following, None, limit, bytes_max, ["k"])
            most = max(most, batch.num_rows)
        snapshot.close()
        assert most <= (2 * limit if limit == 2 else 12), (
            "two sources, or a block and some rows of a memtable"
        )


@in_simulation
async def test_a_scrub_finds_that_the_list_of_runs_is_missing_or_old() -> None:
    tablet = await Tablet.open()
    tablet.put([1])
    await tablet.flush()
    meta = tablet.medium.environments[path_of(TABLET)]["meta"]
    older = meta[b"runs"]
    tablet.put([2])
    await tablet.flush()
    for record in (older, None):
        if record is None:
            del meta[b"runs"]
        else:
            meta[b"runs"] = record
        with pytest.raises(Corruption):
            await tablet.store.scrub()
