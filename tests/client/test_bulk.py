"""Calls with many rows: their sizes, their order and their errors."""

from __future__ import annotations

import asyncio

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.actors import errors
from ebla.aio import Table
from ebla.errors import AlreadyPresent, InvalidArgument, NotFound, TimedOut
from ebla.options import UNANSWERED_BYTES_MAX, UNIT_BYTES, Written
from ebla.write.bulk import _has_duplicates
from tests.client.tables import arrow, on_table, row, rows
from tests.client.toy import Bench, address, refuse, silence


def call_sizes(bench: Bench) -> list[int]:
    return [sum(len(write.batch) for write in request.writes) for request in bench.toy.requests("write")]


@on_table()
async def test_an_empty_call_sends_nothing(bench: Bench, table: Table) -> None:
    assert await table.upsert([]) == await table.upsert(arrow(0)) == await table.delete([]) == Written(0)
    assert bench.toy.count("write") == 0


@on_table()
async def test_a_large_load_is_sent_in_calls_of_about_a_megabyte_with_all_tablets_of_a_server(
    bench: Bench, table: Table
) -> None:
    count = 60_000
    assert await table.upsert(arrow(count, width=100)) == Written(count)
    sizes = call_sizes(bench)
    large = [size for size in sizes if size >= 1_000_000]
    awkward = [size for size in sizes if 100 * 1024 < size < 1_000_000]
    assert len(large) >= 4 and awkward == []
    assert max(sizes) < 1_300_000
    batches = [len(write.batch) for request in bench.toy.requests("write") for write in request.writes]
    assert np.median(batches) > UNIT_BYTES * 0.8 and max(batches) <= UNIT_BYTES + 100
    for where, method, request in bench.toy.calls:
        if method == "write" and sum(len(w.batch) for w in request.writes) >= 1_000_000:
            led = {t.id for t in bench.toy.tables["t"].tablets if t.leader == where}
            assert {write.tablet for write in request.writes} == led
    assert bench.toy.rows() == count


@on_table(1)
async def test_a_moderate_call_stays_below_the_costly_size(bench: Bench, table: Table) -> None:
    await table.upsert(arrow(3000, width=100))
    assert max(call_sizes(bench)) < 100 * 1024


@on_table(1)
async def test_the_rows_in_flight_are_bounded(bench: Bench, table: Table) -> None:
    bench.toy.before[address("host-a"), "write"] = [silence(1.0)] * 200
    data = arrow(200_000, width=150)
    pending = asyncio.ensure_future(table.upsert(data, deadline_s=1e6))
    for _ in range(50):
        await bench.world.clock.sleep(0.05)
        waiting = sum(
            unit.size for unit in bench.session.router._active and table._routes.routes[0].queues[2]
        )
        assert waiting < UNANSWERED_BYTES_MAX + 5_000_000
    assert bench.toy.count("write") <= 4 * 3, "four large calls in flight, each answered after a second"
    pending.cancel()


@pytest.mark.parametrize("lead_changes", [False, True])
@on_table()
async def test_row_errors_name_the_callers_positions_over_all_tablets(
    bench: Bench, table: Table, lead_changes: bool
) -> None:
    present = list(range(0, 2000, 7))
    await table.upsert([row(n) for n in present])
    if lead_changes:
        bench.toy.lead_all()
    with pytest.raises(AlreadyPresent) as caught:
        await table.insert(arrow(2000, width=100))
    assert caught.value.rows == present
    assert caught.value.applied == 2000 - len(present)
    assert bench.toy.rows() == 2000
    assert "the first at position 0" in str(caught.value)


@on_table()
async def test_updates_and_deletes_of_absent_rows_are_listed_or_ignored(bench: Bench, table: Table) -> None:
    await table.upsert(rows(1, 3))
    with pytest.raises(NotFound) as caught:
        await table.update([{"id": n, "n": 0} for n in (1, 2, 3, 4)])
    assert caught.value.rows == [1, 3] and caught.value.applied == 2
    assert await table.get({"id": 1}) == {"id": 1, "v": "v1", "n": 0}
    with pytest.raises(NotFound) as caught:
        await table.delete([{"id": 9}, {"id": 1}])
    assert caught.value.rows == [0] and caught.value.applied == 1
    assert await table.delete([{"id": 9}, {"id": 3}], if_absent="ignore") == Written(1, (0,))
    assert await table.insert(rows(5, 5), if_present="ignore") == Written(1, (1,))


@pytest.mark.parametrize("at", [0, 1, 20_000])
@on_table()
async def test_a_bad_value_names_its_column_and_row_and_nothing_is_sent(
    bench: Bench, table: Table, at: int
) -> None:
    data = arrow(30_000).to_pydict()
    data["id"][at] = None
    broken = pa.table(data, schema=pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int32())]))
    with pytest.raises(InvalidArgument, match=f"'id'.*row {at} ") as caught:
        await table.upsert(pa.concat_tables([broken.slice(0, 10_000), broken.slice(10_000)]))
    assert (caught.value.column, caught.value.row) == ("id", at)
    assert bench.toy.count("write") == 0


@on_table()
async def test_a_row_that_is_too_large_is_named_and_nothing_is_sent(bench: Bench, table: Table) -> None:
    data = [row(n, v="x" * 40) for n in range(60_000)] + [row(60_000, v="x" * 1_100_000)]
    with pytest.raises(InvalidArgument, match="row 60000 takes") as caught:
        await table.upsert(data)
    assert caught.value.row == 60_000
    assert bench.toy.count("write") == 0


async def later_rows_win(bench: Bench, table: Table) -> None:
    """Of two tablets, over refusals and lost answers."""
    first = arrow(6000, width=100)
    second = first.set_column(2, "n", pa.array(np.arange(6000) + 1_000_000, pa.int32()))
    throttled = errors.Throttled("full", limit="memtable_bytes", retry_after_s=0.3)
    bench.toy.refusals = {"t000": [throttled, throttled], "t001": [throttled]}
    bench.toy.after[address("host-a"), "write"] = [refuse(errors.OutcomeUnknown("lost"))] * 2
    assert await table.upsert(pa.concat_tables([first, second])) == Written(12_000)
    assert (await table.scan().to_arrow()).sort_by("id").to_pylist() == second.to_pylist()


@on_table(2)
async def test_the_later_of_two_rows_with_one_key_wins_over_lost_answers(bench: Bench, table: Table) -> None:
    await later_rows_win(bench, table)


@pytest.mark.parametrize("when", [0.005, 0.02, 0.05, 0.2])
@on_table(1)
async def test_the_later_of_two_rows_with_one_key_wins_while_the_leader_changes(
    bench: Bench, table: Table, when: float
) -> None:
    """Each row is repeated about a batch later, so that a batch that overtakes another is detected."""
    numbers = [n for start in range(0, 10_000, 200) for n in [*range(start, start + 200)] * 2]
    data = arrow(10_000, width=2000).take(pa.array(numbers))  # more than can be under way
    data = data.set_column(2, "n", pa.array(np.arange(len(numbers)), pa.int32()))
    loading = asyncio.ensure_future(table.upsert(data))
    await bench.world.clock.sleep(when)
    bench.toy.lead(bench.toy.tablets["t000"], "host-b")
    await loading
    last = {number: at for at, number in enumerate(numbers)}
    found = await table.scan(columns=["id", "n"]).to_arrow()
    assert dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)) == last


@on_table()
async def test_a_failed_tablet_ends_a_large_call_with_its_error_and_leaves_nothing_queued(
    bench: Bench, table: Table
) -> None:
    bench.toy.tables["t"].tablets[3].leader = ""
    with pytest.raises(TimedOut, match="t003") as caught:
        await table.upsert(arrow(20_000, width=100), deadline_s=2.0)
    applied = bench.toy.rows()
    assert 0 < applied < 20_000
    assert f"{applied} rows of the call were applied" in caught.value.__notes__
    bench.toy.lead(bench.toy.tables["t"].tablets[3], "host-a")
    await bench.world.clock.sleep(5.0)
    assert bench.toy.rows() == applied


@on_table(1)
async def test_a_cancelled_call_stops_sending_and_its_rows_on_the_way_are_written(
    bench: Bench, table: Table
) -> None:
    bench.toy.before[address("host-a"), "write"] = [silence(1.0)] * 1000
    pending = asyncio.ensure_future(table.upsert(arrow(100_000, width=100)))
    await bench.world.clock.sleep(0.5)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    sent, written = bench.toy.count("write"), bench.toy.rows()
    await bench.world.clock.sleep(30.0)
    assert bench.toy.count("write") == sent
    assert written < bench.toy.rows() < 100_000


@on_table(1)
async def test_a_large_load_does_not_delay_single_rows(bench: Bench, table: Table) -> None:
    load = asyncio.ensure_future(table.upsert(arrow(100_000, width=100)))
    await bench.world.clock.sleep(0.001)
    written = await table.upsert(row(1_000_000))
    assert written == Written(1) and not load.done()
    await load


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=3) | st.binary(min_size=9, max_size=9), max_size=40),
    st.integers(0, 40),
)
def test_a_repeated_key_is_always_detected(keys: list[bytes], cut: int) -> None:
    arrays = [pa.array(part, pa.binary()) for part in (keys[:cut], keys[cut:]) if part]
    sliced = [pa.array([b"zz", *array.to_pylist()], pa.binary()).slice(1) for array in arrays]
    assert _has_duplicates(arrays) == _has_duplicates(sliced) == (len(set(keys)) < len(keys))
