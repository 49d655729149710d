"""Single rows of concurrent callers share calls: the number of calls, and the order of operations."""

from __future__ import annotations

import asyncio

from ebla.actors.messages import DELETE, INSERT, UPDATE, UPSERT
from ebla.aio import Table
from ebla.errors import AlreadyPresent, InvalidArgument, NotFound
from ebla.options import PATIENCE_S, SMALL_CALLS_MAX, Written
from tests.client.tables import make, on_table, row
from tests.client.test_bulk import call_sizes
from tests.client.toy import Bench, address, on_toys, silence


@on_table()
async def test_the_first_operation_is_sent_at_once_and_queued_ones_as_one_call(
    bench: Bench, table: Table
) -> None:
    first = asyncio.ensure_future(table.upsert(row(0)))
    await bench.world.clock.sleep(0)
    await bench.world.clock.sleep(0)
    rest = [asyncio.ensure_future(table.upsert(row(n))) for n in range(1, 500)]
    await asyncio.gather(first, *rest)
    assert bench.toy.rows() == 500
    assert bench.toy.count("write") <= 1 + 3, "one for the first row, one for the other rows of each server"
    assert len(bench.toy.batches()) <= 1 + 8, "one batch for each tablet"


@on_table()
async def test_concurrent_gets_make_one_call_per_server(bench: Bench, table: Table) -> None:
    await table.upsert([row(n) for n in range(200)])
    found = await asyncio.gather(*(table.get({"id": n}) for n in range(256)))
    assert found == [row(n) for n in range(200)] + [None] * 56
    assert bench.toy.count("read") == 3


@on_table(1)
async def test_small_operations_wait_for_the_call_under_way_and_are_sent_as_one(
    bench: Bench, table: Table
) -> None:
    bench.toy.before[address("host-a"), "write"] = [silence(0.03)] * 2
    pending = [asyncio.ensure_future(table.upsert(row(0)))]
    for n in range(1, 20):
        await bench.world.clock.sleep(0.001)
        pending.append(asyncio.ensure_future(table.upsert(row(n))))
    assert bench.toy.count("write") == 1
    await asyncio.gather(*pending)
    assert bench.toy.count("write") == 2, "all queued rows are one call"
    assert bench.toy.rows() == 20


@on_table(1)
async def test_few_calls_are_sent_beside_an_overdue_one(bench: Bench, table: Table) -> None:
    bench.toy.before[address("host-a"), "write"] = [silence(1.2)] * SMALL_CALLS_MAX
    pending = []
    for n in range(100):
        pending.append(asyncio.ensure_future(table.upsert(row(n))))
        await bench.world.clock.sleep(0.01)
        assert bench.toy.count("write") <= 1 + (n + 1) * 0.01 / PATIENCE_S
    assert bench.toy.count("write") == SMALL_CALLS_MAX
    await asyncio.gather(*pending)
    assert bench.toy.count("write") == SMALL_CALLS_MAX + 1, "all queued rows are one call"
    assert bench.toy.rows() == 100


@on_table(1)
async def test_an_operation_behind_an_overdue_call_is_sent_without_further_operations(
    bench: Bench, table: Table
) -> None:
    bench.toy.before[address("host-a"), "write"] = [silence(1.2)]
    slow = asyncio.ensure_future(table.upsert(row(0)))
    await bench.world.clock.sleep(0.001)
    await table.upsert(row(1))
    assert not slow.done()
    await slow


@on_toys
async def test_operations_of_two_tables_share_calls(bench: Bench) -> None:
    one, two = await make(bench, name="one"), await make(bench, name="two")
    await asyncio.gather(*(table.upsert(row(n)) for n in range(100) for table in (one, two)))
    assert bench.toy.count("write") == 3
    await asyncio.gather(*(table.get({"id": n}) for n in range(100) for table in (one, two)))
    assert bench.toy.count("read") == 3


@on_toys
async def test_a_read_call_never_mixes_schema_versions(bench: Bench) -> None:
    one = await make(bench, name="one")
    bench.toy.schema_version = 3
    two = await make(bench, name="two")
    await asyncio.gather(*(table.upsert(row(n)) for n in range(100) for table in (one, two)))
    bench.toy.calls.clear()
    found = await asyncio.gather(*(table.get({"id": n}) for n in range(100) for table in (one, two)))
    assert found == [row(n) for n in range(100) for _ in range(2)]
    assert bench.toy.count("read") == 6 and bench.toy.count("get_table") == 0


@on_table()
async def test_a_small_call_of_many_rows_shares_calls_with_single_rows(bench: Bench, table: Table) -> None:
    await asyncio.gather(
        *(table.upsert(row(n)) for n in range(50)),
        table.upsert([row(n) for n in range(50, 100)]),
        table.upsert([row(n) for n in range(100, 150)]),
    )
    assert bench.toy.rows() == 150
    assert bench.toy.count("write") <= 6, "the rows of the calls are encoded a moment later"


@on_table(1)
async def test_queued_operations_on_one_key_keep_their_order(bench: Bench, table: Table) -> None:
    outcomes = await asyncio.gather(
        table.insert(row(1, v="a")),
        table.update({"id": 1, "v": "b"}),
        table.update({"id": 1, "n": 9}),
        table.delete({"id": 1}),
        table.insert(row(1, v="c")),
        table.upsert(row(1, v="d")),
    )
    assert outcomes == [Written(1)] * 6
    assert await table.get({"id": 1}) == row(1, v="d")
    sent = [batch for _, batch in bench.toy.batches()]
    assert [batch.kind for batch in sent] == [INSERT, UPDATE, UPDATE, DELETE, INSERT, UPSERT]
    assert [batch.columns for batch in sent] == [(), ("v",), ("n",), (), (), ()]
    assert bench.toy.count("write") == 1


@on_table(1)
async def test_only_the_caller_whose_row_was_refused_gets_the_error(bench: Bench, table: Table) -> None:
    await table.upsert(row(5))
    outcomes = await asyncio.gather(*(table.insert(row(n)) for n in range(10)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Written] * 5 + [AlreadyPresent] + [Written] * 4
    error = outcomes[5]
    assert isinstance(error, AlreadyPresent) and error.rows == [0] and error.applied == 0
    gone = await asyncio.gather(
        table.update({"id": 77, "n": 1}), table.delete({"id": 78}), return_exceptions=True
    )
    assert [type(outcome) for outcome in gone] == [NotFound, NotFound]
    assert await table.delete({"id": 78}, if_absent="ignore") == Written(0, (0,))


@on_table(1)
async def test_a_row_that_cannot_be_encoded_fails_alone_and_is_not_sent(bench: Bench, table: Table) -> None:
    outcomes = await asyncio.gather(
        table.upsert(row(1)), table.upsert({"id": "two"}), table.upsert(row(3)), return_exceptions=True
    )
    assert outcomes[0] == outcomes[2] == Written(1)
    assert isinstance(outcomes[1], InvalidArgument) and outcomes[1].column == "id"
    assert bench.toy.rows() == 2


@on_table(1)
async def test_a_cancelled_operation_that_still_queued_is_never_sent(bench: Bench, table: Table) -> None:
    bench.toy.before[address("host-a"), "write"] = [silence(1.0), silence(1.0)]
    busy = []
    for n in range(2):  # both calls to the server are under way
        busy.append(asyncio.ensure_future(table.upsert(row(n))))
        await bench.world.clock.sleep(0.01)
    queued = [asyncio.ensure_future(table.upsert(row(n))) for n in (2, 3)]
    await bench.world.clock.sleep(0.01)
    queued[0].cancel()
    await asyncio.gather(*busy, queued[1])
    assert await table.get({"id": 2}) is None
    assert bench.toy.rows() == 3


@on_table(1)
async def test_many_large_rows_are_spread_over_calls_below_the_costly_size(
    bench: Bench, table: Table
) -> None:
    await asyncio.gather(*(table.upsert(row(n, v="x" * 3000)) for n in range(100)))
    assert max(call_sizes(bench)) < 100 * 1024 and len(call_sizes(bench)) <= 5
