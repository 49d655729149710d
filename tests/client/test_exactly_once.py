"""A write is applied once, although requests and answers are lost, and its caller gets the first answer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebla.actors import errors
from ebla.aio import Table
from ebla.errors import RequestReused, TimedOut
from ebla.options import Written
from tests.client.tables import arrow, make, on_table, row, rows
from tests.client.toy import HOSTS, Bench, address, on_toys, refuse, silence

LOST = errors.OutcomeUnknown("the answer was lost")


@on_table(1)
async def test_a_request_with_a_lost_answer_is_repeated_with_the_same_bytes(
    bench: Bench, table: Table
) -> None:
    bench.toy.after["tablet-server/host-a", "write"] = [refuse(LOST)]
    assert await table.insert(row(1)) == Written(1)  # a second insert would find the row present
    sent = [request.writes for _, method, request in bench.toy.calls if method == "write"]
    assert len(sent) >= 2 and all(writes == sent[0] for writes in sent)
    assert len(bench.toy.tables["t"].tablets[0].applied) == 1


@on_table()
async def test_bulk_inserts_over_lost_answers_apply_every_row_once(bench: Bench, table: Table) -> None:
    for host in HOSTS:
        bench.toy.after[address(host), "write"] = [refuse(LOST), refuse(LOST)]
    assert await table.insert(arrow(3000, width=100)) == Written(3000)
    assert bench.toy.rows() == 3000
    by_id: dict[tuple[bytes, int], set[int]] = {}
    for _, batch in bench.toy.batches():
        by_id.setdefault((batch.client, batch.sequence), set()).add(batch.digest)
    assert all(len(digests) == 1 for digests in by_id.values())


@on_table(1)
async def test_a_silent_leader_gets_the_same_request_again_until_it_answers(
    bench: Bench, table: Table
) -> None:
    bench.toy.before["tablet-server/host-a", "write"] = [silence(), silence(5.0)]
    assert await table.insert(row(1)) == Written(1)
    assert len(bench.toy.tables["t"].tablets[0].applied) == 1
    assert len({batch.sequence for _, batch in bench.toy.batches()}) == 1


@on_table()
async def test_received_answers_are_dropped_on_each_tablet(bench: Bench, table: Table) -> None:
    for number in range(60):
        await table.upsert(row(number))
    for tablet in bench.toy.tables["t"].tablets:
        assert len(tablet.answers) == 1, "all answers but the newest are received and dropped"
        assert len({batch.sequence for batch in tablet.applied}) == len(tablet.applied)


@on_table(1)
async def test_a_tablet_keeps_the_answers_of_requests_after_an_unanswered_one(
    bench: Bench, table: Table
) -> None:
    bench.toy.before["tablet-server/host-a", "write"] = [silence(1.0)]
    slow = bench.cluster.loop.create_task(table.upsert(row(1)))
    await bench.world.clock.sleep(0.1)
    await table.upsert(row(2))
    await table.upsert(row(3))
    sent = {batch.sequence: batch.first_incomplete for _, batch in bench.toy.batches()}
    assert sent == {1: 1, 2: 1, 3: 1}
    await slow
    await table.upsert(row(4))
    _, last = bench.toy.batches()[-1]
    assert last.first_incomplete == last.sequence


@on_table(1)
async def test_a_late_copy_of_a_request_that_timed_out_is_refused(bench: Bench, table: Table) -> None:
    bench.toy.before["tablet-server/host-a", "write"] = [silence(3.0)]
    with pytest.raises(TimedOut) as caught:
        await table.upsert(row(1, v="late"), deadline_s=1.0)
    assert caught.value.possibly_applied
    assert await table.upsert(row(1, v="new")) == Written(1)
    await bench.world.clock.sleep(10.0)
    assert await table.get({"id": 1}) == row(1, v="new")


@on_table()
async def test_a_call_repeated_with_its_write_id_changes_nothing(bench: Bench, table: Table) -> None:
    write_id = (b"spark-task-00001", 5000)
    data = arrow(3000, width=100)
    assert await table.insert(data, write_id=write_id) == Written(3000)
    applied = [len(tablet.applied) for tablet in bench.toy.tables["t"].tablets]

    again = await bench.client("another-process").table("t")
    assert await again.insert(data.combine_chunks(), write_id=write_id) == Written(3000)
    assert [len(tablet.applied) for tablet in bench.toy.tables["t"].tablets] == applied
    for _, batch in bench.toy.batches():
        assert batch.client == write_id[0] and 5000 <= batch.sequence < 8000
        assert batch.first_incomplete == 0, "a later repetition must find its answers"


@on_table()
async def test_the_batches_of_a_write_id_do_not_depend_on_chunks_or_leaders(
    bench: Bench, table: Table
) -> None:
    data = arrow(4000, width=60)
    await table.upsert(data, write_id=(b"spark-task-00001", 0))
    first = sorted((tablet, batch) for tablet, batch in bench.toy.batches())
    bench.toy.calls.clear()
    bench.toy.lead_all("host-a")
    other = await bench.client("another").table("t")
    pieces = [data.slice(at, 700) for at in range(0, 4000, 700)]
    await other.upsert(pa.concat_tables(pieces), write_id=(b"spark-task-00001", 0))
    second = sorted({(t, b.sequence, b.digest) for t, b in bench.toy.batches()})
    assert second == [(t, b.sequence, b.digest) for t, b in first]


@on_table(1)
async def test_a_write_id_with_other_rows_is_refused(bench: Bench, table: Table) -> None:
    await table.upsert(rows(1, 2), write_id=(b"spark-task-00001", 0))
    with pytest.raises(RequestReused):
        await table.upsert(rows(1, 3), write_id=(b"spark-task-00001", 0))


@on_toys
async def test_creating_a_table_over_a_lost_answer_returns_the_table_it_made(bench: Bench) -> None:
    bench.toy.after["master/0", "create_table"] = [refuse(LOST)]
    table = await make(bench)
    assert table.name == "t"
    first, again = bench.toy.requests("create_table")
    assert first == again
