"""Leaders change, fall silent, refuse and crash; a call continues until its deadline, and its error says why."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.aio import Table
from ebla.errors import NotFound, TimedOut
from ebla.options import PATIENCE_S, SMALL_CALLS_MAX, Written
from tests.client.tables import arrow, make, on_table, row
from tests.client.toy import Bench, address, on_toys, refuse, silence


@on_table(1)
async def test_a_hint_to_the_leader_is_followed_without_a_request_to_the_master(
    bench: Bench, table: Table
) -> None:
    bench.toy.lead(bench.toy.tablets["t000"], "host-c")
    bench.toy.calls.clear()
    assert await table.upsert(row(1)) == Written(1)
    assert [where for where, _, _ in bench.toy.calls] == [address("host-a"), address("host-c")]
    await table.upsert(row(2))
    assert bench.toy.calls[-1][0] == address("host-c") and len(bench.toy.calls) == 3, (
        "the client remembers the leader"
    )


@on_table(1)
async def test_a_late_refusal_of_a_former_leader_does_not_change_the_route(
    bench: Bench, table: Table
) -> None:
    unknown = errors.NotLeader("not any more", tablet="t000")
    bench.toy.before[address("host-a"), "write"] = [refuse(unknown, 0.2), refuse(unknown, 0.5)]
    first = asyncio.ensure_future(table.upsert(row(1)))
    await bench.world.clock.sleep(2 * PATIENCE_S)
    second = asyncio.ensure_future(table.upsert(row(2)))
    bench.toy.lead(bench.toy.tablets["t000"], "host-c")
    assert await asyncio.gather(first, second) == [Written(1)] * 2
    asked = [where for where, method, _ in bench.toy.calls if method == "write"]
    assert asked == [address(f"host-{host}") for host in "aabcc"]


@pytest.mark.parametrize("seed", range(5))
@on_table(1)
async def test_a_write_succeeds_soon_after_a_crashed_leader_is_replaced(
    bench: Bench, table: Table, seed: int
) -> None:
    await table.upsert(row(1))
    tablet = bench.toy.tablets["t000"]
    bench.crash("host-a")
    tablet.leader = ""  # an election is under way

    async def elect() -> None:
        await bench.world.clock.sleep(1.5)
        bench.toy.lead(tablet, "host-b")

    election = asyncio.ensure_future(elect())
    with bench.lasts(1.5 + 1.0):
        assert await table.upsert(row(2)) == Written(1)
    await election


@on_table(1)
async def test_a_silent_leader_costs_one_short_try(bench: Bench, table: Table) -> None:
    tablet = bench.toy.tablets["t000"]
    bench.toy.before[address("host-a"), "write"] = [silence() for _ in range(9)]
    with bench.lasts(3.0):
        pending = asyncio.ensure_future(table.upsert(row(1)))
        await bench.world.clock.sleep(1.0)
        bench.toy.lead(tablet, "host-b")
        await pending


@on_table(6)
async def test_calls_that_fail_together_count_as_one_silence(bench: Bench, table: Table) -> None:
    """The next attempts at the silent server stay short, and the new leaders are found soon, even after several seconds."""
    bench.toy.lead_all("host-a")
    await asyncio.gather(*(table.upsert(row(number)) for number in range(60)))
    bench.toy.before[address("host-a"), "write"] = [silence() for _ in range(99)]
    pending = []
    for number in range(60):
        pending.append(asyncio.ensure_future(table.upsert(row(number))))
        await bench.world.clock.sleep(0.02)
    await bench.world.clock.sleep(4.8 - 60 * 0.02)
    bench.toy.lead_all("host-b")
    with bench.lasts(2.5):
        await asyncio.gather(*pending)


@on_table(1)
async def test_a_hint_to_a_server_that_just_fell_silent_is_not_followed_at_once(
    bench: Bench, table: Table
) -> None:
    bench.crash("host-a")  # the other servers still name it as the leader
    pending = asyncio.ensure_future(table.upsert(row(1)))
    await bench.world.clock.sleep(0.9)
    asked = [where for where, method, _ in bench.toy.calls if method == "write"]
    assert asked and set(asked) == {address("host-b"), address("host-c")}
    bench.toy.lead(bench.toy.tablets["t000"], "host-c")
    await pending


@on_table(1)
async def test_a_throttled_write_waits_for_the_stated_time_and_reads_continue(
    bench: Bench, table: Table
) -> None:
    throttled = errors.Throttled("full", limit="memtable_bytes", retry_after_s=2.0)
    bench.toy.refusals["t000"] = [throttled]
    with bench.lasts(2.7, 2.0):
        pending = asyncio.ensure_future(table.upsert(row(1)))
        with bench.lasts(0.5):
            await bench.world.clock.sleep(0.2)
            assert await table.get({"id": 1}) is None
        await pending
    assert bench.toy.count("write") == 2


@on_table()
async def test_only_the_refused_tablets_of_a_call_are_sent_again(bench: Bench, table: Table) -> None:
    bench.toy.refusals["t000"] = [errors.NotRunning("starting", tablet="t000", state="bootstrapping")]
    assert await table.upsert(arrow(100)) == Written(100)
    counts: dict[str, int] = {}
    for tablet, _ in bench.toy.batches():
        counts[tablet] = counts.get(tablet, 0) + 1
    assert counts.pop("t000") >= 2
    assert set(counts.values()) == {1}


@on_table(1)
async def test_a_moved_tablet_is_found_through_the_master(bench: Bench, table: Table) -> None:
    bench.toy.refusals["t000"] = [errors.TabletNotFound("gone from here", tablet="t000")]
    bench.toy.lead(bench.toy.tablets["t000"], "host-b")
    assert await table.upsert(row(1)) == Written(1)
    assert bench.toy.count("get_table") == 1


@on_table()
async def test_a_dropped_table_is_not_found_even_if_its_name_is_reused(bench: Bench, table: Table) -> None:
    await bench.client("another").drop_table("t")
    with pytest.raises(NotFound, match="dropped"):
        await table.upsert(row(1))
    other = await make(bench)
    with pytest.raises(NotFound, match="dropped"):
        await table.get({"id": 1})
    assert await other.upsert(row(1)) == Written(1)


@on_table()
async def test_writes_continue_while_the_master_is_down(bench: Bench, table: Table) -> None:
    bench.cluster.crash("master/0")
    bench.toy.lead_all()
    assert await table.upsert(arrow(100)) == Written(100)
    assert await table.scan().count() == 100


@on_toys
async def test_a_master_that_stays_down_is_named_at_the_deadline(bench: Bench) -> None:
    bench.cluster.crash("master/0")
    with bench.lasts(3.5), pytest.raises(TimedOut, match=r"master/0.*within 3 s.*ebla status"):
        await bench.db.table("t", deadline_s=3.0)


@pytest.mark.parametrize("method", ["upsert", "get", "scan", "flush", "many"])
@on_table(1)
async def test_a_deadline_ends_a_call_on_time_and_says_what_was_tried_last(
    bench: Bench, table: Table, method: str
) -> None:
    bench.toy.tablets["t000"].leader = ""
    calls = {
        "upsert": lambda: table.upsert(row(1), deadline_s=2.0),
        "get": lambda: table.get({"id": 1}, deadline_s=2.0),
        "scan": lambda: table.scan(deadline_s=2.0).to_arrow(),
        "flush": lambda: table.flush(deadline_s=2.0),
        "many": lambda: table.upsert([row(1), row(2)], deadline_s=2.0),
    }
    with (
        bench.lasts(2.8, 1.9),
        pytest.raises(
            TimedOut, match=r"'t', tablet t000.*within 2 s.*last tried tablet-server/host-.*NotLeader"
        ),
    ):
        await calls[method]()


@on_table(1)
async def test_a_deadline_holds_even_while_the_only_try_is_unanswered(bench: Bench, table: Table) -> None:
    bench.toy.before[address("host-a"), "read"] = [silence()]
    with bench.lasts(0.6), pytest.raises(TimedOut):
        await table.get({"id": 1}, deadline_s=0.3)


@on_table(1)
async def test_a_deadline_holds_for_an_operation_that_was_never_sent(bench: Bench, table: Table) -> None:
    bench.toy.before[address("host-a"), "write"] = [silence(1.2)] * SMALL_CALLS_MAX
    busy = []
    for n in range(SMALL_CALLS_MAX):  # the limit of calls under way
        busy.append(asyncio.ensure_future(table.upsert(row(n))))
        await bench.world.clock.sleep(1.1 * PATIENCE_S)
    with bench.lasts(0.6), pytest.raises(TimedOut):
        await table.upsert(row(9), deadline_s=0.3)
    assert await asyncio.gather(*busy) == [Written(1)] * SMALL_CALLS_MAX
    assert await table.get({"id": 9}) is None


@on_table(1)
async def test_a_defect_of_a_server_reaches_the_caller_as_it_is(bench: Bench, table: Table) -> None:
    bench.toy.before[address("host-a"), "write"] = [refuse(errors.Internal("a defect"))]
    with pytest.raises(errors.Internal, match="a defect"):
        await table.upsert(row(1))


@on_table(1)
async def test_a_tablet_without_a_leader_is_probed_at_a_bounded_rate_by_any_number_of_callers(
    bench: Bench, table: Table
) -> None:
    tablet = bench.toy.tablets["t000"]
    tablet.leader = ""
    pending = [asyncio.ensure_future(table.upsert(row(n))) for n in range(300)]
    await bench.world.clock.sleep(3.0)
    assert bench.toy.count("write") < 40
    bench.toy.lead(tablet, "host-b")
    assert all(written == Written(1) for written in await asyncio.gather(*pending))
    assert bench.toy.rows() == 300
