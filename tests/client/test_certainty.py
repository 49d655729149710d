"""A refusal is certain only if no earlier try was lost: one rule for every path of a request."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import ebla
from ebla import aio
from ebla.actors import errors
from ebla.actors.asking.retries import same
from ebla.aio import Table
from ebla.errors import EblaError, InvalidArgument, OutcomeUnknown, TableDropped, Unavailable
from tests.client.loopback import Loopback
from tests.client.real_roles import Stage, on_real_roles
from tests.client.tables import arrow, make, on_table, row, rows
from tests.client.test_quick import Fast
from tests.client.toy import HOSTS, Bench, address, on_toys, refuse

LOST = errors.OutcomeUnknown("the answer was lost")
GONE = TableDropped("table 't' was dropped", what="t")

Write = Callable[[aio.Table], Awaitable[Any]]
WRITES: dict[str, Write] = {
    "one row": lambda table: table.upsert(row(1)),
    "many rows": lambda table: table.upsert(rows(1, 2, 3)),
    "an insert": lambda table: table.insert(row(1)),
    "a delete": lambda table: table.delete({"id": 1}),
}
each_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


def refuse_from_now_on(bench: Bench, error: EblaError) -> None:
    for tablet in bench.toy.tables["t"].tablets:
        bench.toy.refusals[tablet.id] = [error] * 100


async def refusal_of(write: Awaitable[Any]) -> EblaError:
    with pytest.raises(EblaError) as caught:
        await write
    return caught.value


@each_write
@on_table(1)
async def test_a_refused_write_without_a_lost_try_was_not_applied(
    bench: Bench, table: Table, write: Write
) -> None:
    bench.toy.before[address(HOSTS[0]), "write"] = [refuse(errors.NotRunning("it is starting"))]
    refuse_from_now_on(bench, GONE)
    error = await refusal_of(write(table))
    assert isinstance(error, TableDropped) and not error.possibly_applied


@each_write
@on_table(1)
async def test_a_write_that_is_refused_after_a_lost_try_may_have_been_applied(
    bench: Bench, table: Table, write: Write
) -> None:
    bench.toy.before[address(HOSTS[0]), "write"] = [refuse(LOST)]
    refuse_from_now_on(bench, GONE)
    error = await refusal_of(write(table))
    assert isinstance(error, TableDropped) and error.possibly_applied
    assert "may have been carried out" in "".join(error.__notes__)
    assert pickle.loads(pickle.dumps(error)).possibly_applied and same(error).possibly_applied


@each_write
@on_table(1)
async def test_a_lost_write_of_a_table_that_is_gone_by_then_may_have_been_applied(
    bench: Bench, table: Table, write: Write
) -> None:
    """The master does not find the table; the queued operations of its tablets end with this error."""

    async def drop() -> None:
        bench.toy.tablets.clear()
        del bench.toy.tables["t"]
        raise LOST

    bench.toy.before[address(HOSTS[0]), "write"] = [drop]
    error = await refusal_of(write(table))
    assert isinstance(error, errors.NotFound) and error.possibly_applied


@on_table(1)
async def test_rows_of_one_lost_call_may_all_have_been_applied(bench: Bench, table: Table) -> None:
    bench.toy.before[address(HOSTS[0]), "write"] = [refuse(LOST)]
    refuse_from_now_on(bench, GONE)
    errors_of_rows = await asyncio.gather(*(table.upsert(row(n)) for n in range(5)), return_exceptions=True)
    assert all(isinstance(error, TableDropped) and error.possibly_applied for error in errors_of_rows)
    refuse_from_now_on(bench, GONE)
    later = await refusal_of(table.upsert(row(9)))
    assert not later.possibly_applied, "another request, without a lost try"


@on_table(2)
async def test_a_partly_applied_call_says_so(bench: Bench, table: Table) -> None:
    first, second = bench.toy.tables["t"].tablets
    bench.toy.refusals[second.id] = [GONE] * 100
    error = await refusal_of(table.upsert(arrow(100)))
    assert error.possibly_applied and 0 < bench.toy.rows() < 100
    bench.toy.refusals[first.id] = [GONE] * 100
    assert not (await refusal_of(table.upsert(arrow(100)))).possibly_applied


@on_table(2)
async def test_one_lost_batch_of_a_call_makes_the_refusal_of_another_uncertain(
    bench: Bench, table: Table
) -> None:
    first, second = bench.toy.tables["t"].tablets
    assert first.leader != second.leader
    bench.toy.refusals[first.id] = [GONE] * 100
    bench.toy.refusals[second.id] = [LOST, *[GONE] * 100]
    error = await refusal_of(table.upsert(arrow(100)))
    assert error.possibly_applied


def test_an_upsert_refused_after_a_lost_try_of_the_fast_path_may_have_been_applied(
    loopback: Loopback, table: ebla.Table
) -> None:
    fast = Fast(loopback, table)
    for tablet in loopback.toy.tables["t"].tablets:
        loopback.toy.refusals[tablet.id] = [GONE] * 100
    for failure, possibly_applied in ((errors.NotDelivered("no such server"), False), (LOST, True)):
        fast.network.fail = failure
        with pytest.raises(TableDropped) as refused:
            fast.upserts.upsert(row(1), 5.0)
        assert refused.value.possibly_applied is possibly_applied


# -- masters


@pytest.mark.parametrize("last", [errors.AlreadyPresent("there is one"), InvalidArgument("too many")])
@on_toys
async def test_a_request_to_the_master_that_is_refused_after_a_lost_try_may_have_been_carried_out(
    bench: Bench, last: EblaError
) -> None:
    bench.toy.before["master/0", "create_table"] = [refuse(last)]
    assert not (await refusal_of(make(bench))).possibly_applied
    bench.toy.before["master/0", "create_table"] = [refuse(LOST), refuse(last)]
    error = await refusal_of(make(bench))
    assert type(error) is type(last) and error.possibly_applied
    assert pickle.loads(pickle.dumps(error)).possibly_applied


@on_toys
async def test_unavailable_comes_within_seconds_and_means_that_nothing_was_carried_out(bench: Bench) -> None:
    refusals = [refuse(Unavailable("5 replicas, 3 hosts"))] * 1000
    bench.toy.before["master/0", "create_table"] = list(refusals)
    with bench.lasts(5.0), pytest.raises(Unavailable, match="5 replicas, 3 hosts"):
        await make(bench)
    bench.toy.before["master/0", "create_table"] = [refuse(LOST), *refusals]
    error = await refusal_of(make(bench))
    assert isinstance(error, OutcomeUnknown) and error.possibly_applied
    assert "Unavailable: 5 replicas, 3 hosts" in str(error)


# -- the real roles


@pytest.mark.parametrize("bulk", [False, True])
@on_real_roles
async def test_a_late_first_try_is_applied_after_a_recall_only_if_its_error_allowed_it(
    stage: Stage, bulk: bool
) -> None:
    """The first try is delayed; the second finds the table dropped; then the table is recalled."""
    table = await stage.table(buckets=2)
    await table.insert(rows(1))
    other = await stage.client().table("t")
    await other.get({"id": 1})
    world = other._client.world
    honest = world.network.call
    held: list[Any] = []

    async def call(where: str, method: str, message: Any, reply: Any, timeout_s: float) -> Any:
        if method == "write" and not held:
            held.append((where, method, message, reply))
            await world.clock.sleep(0.3)
            raise errors.OutcomeUnknown("no answer in time", address=where)
        return await honest(where, method, message, reply, timeout_s)

    object.__setattr__(world.network, "call", call)
    write = asyncio.ensure_future(refusal_of(other.upsert([row(77, "late")] if bulk else row(77, "late"))))
    await world.clock.sleep(0.05)
    await stage.db.drop_table("t", reserve_s=600.0)
    refusal = await write
    assert isinstance(refusal, TableDropped) and refusal.possibly_applied
    back = await stage.db.recall_table("t")
    while True:
        try:
            assert await back.get({"id": 77}) is None
            break
        except TableDropped:
            await world.clock.sleep(0.1)
    await honest(*held[0], 5.0)
    assert await back.get({"id": 77}) in (None, row(77, "late"))
