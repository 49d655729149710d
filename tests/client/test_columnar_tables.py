"""Calls with many rows of a columnar table, which travel in columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ebla.actors.messages import UPDATE
from ebla.aio import Table
from ebla.errors import AlreadyPresent, InvalidArgument
from ebla.options import COLUMNAR_ROWS_MIN, UNIT_BYTES, Written
from tests.client.tables import arrow, on_table, row
from tests.client.test_bulk import later_rows_win
from tests.client.toy import Bench

ID = b"spark-task-00001"


def forms(bench: Bench) -> set[bool]:
    """Whether the batches that were sent are in columns."""
    return {bool(batch.columnar) for _, batch in bench.toy.batches()}


@on_table(storage="columns")
async def test_many_rows_are_sent_in_columns_and_read_back(bench: Bench, table: Table) -> None:
    data = arrow(20_000, width=100)
    assert await table.upsert(data) == Written(20_000)
    assert forms(bench) == {True}
    assert max(len(batch.columnar) for _, batch in bench.toy.batches()) < UNIT_BYTES * 1.1
    assert (await table.scan().to_arrow()).sort_by("id").to_pylist() == data.to_pylist()
    assert await table.insert(arrow(100, start=19_950), if_present="ignore") == Written(50, tuple(range(50)))
    with pytest.raises(AlreadyPresent):
        await table.insert(arrow(100))
    assert await table.get({"id": 7}) == row(7, f"{7:0100}")


@on_table(1, storage="columns")
async def test_few_rows_are_packed(bench: Bench, table: Table) -> None:
    await table.upsert(arrow(COLUMNAR_ROWS_MIN - 1))
    assert forms(bench) == {False}
    await table.upsert(arrow(COLUMNAR_ROWS_MIN))
    assert forms(bench) == {False, True}


@on_table(storage="columns")
async def test_updates_and_deletions_are_packed(bench: Bench, table: Table) -> None:
    await table.upsert(arrow(1000))
    bench.toy.calls.clear()
    await table.update(pa.table({"id": pa.array(range(1000)), "n": pa.array([5] * 1000, pa.int32())}))
    assert forms(bench) == {False} and {batch.kind for _, batch in bench.toy.batches()} == {UPDATE}
    assert set((await table.scan(["n"]).to_arrow())["n"].to_pylist()) == {5}
    await table.delete(pa.table({"id": pa.array(range(1000))}))
    assert forms(bench) == {False} and bench.toy.rows() == 0


@on_table(storage="columns")
async def test_the_batches_of_a_write_id_do_not_depend_on_chunks(bench: Bench, table: Table) -> None:
    texts = pa.array([None if n % 7 == 0 else f"{n:060}" for n in range(4000)])
    data = arrow(4000).set_column(1, "v", texts)
    assert await table.insert(data, write_id=(ID, 0)) == Written(4000)
    first = {(tablet, b.sequence, b.digest, b.columnar) for tablet, b in bench.toy.batches()}
    applied = [len(tablet.applied) for tablet in bench.toy.tables["t"].tablets]
    bench.toy.calls.clear()
    other = await bench.client("another").table("t")
    pieces = [data.slice(at, 700) for at in range(0, 4000, 700)]
    assert await other.insert(pa.concat_tables(pieces), write_id=(ID, 0)) == Written(4000)
    assert {(t, b.sequence, b.digest, b.columnar) for t, b in bench.toy.batches()} == first
    assert [len(tablet.applied) for tablet in bench.toy.tables["t"].tablets] == applied


@on_table(2, storage="columns")
async def test_the_later_of_two_rows_with_one_key_wins_over_lost_answers(bench: Bench, table: Table) -> None:
    await later_rows_win(bench, table)
    assert forms(bench) == {True}


@on_table(storage="columns")
async def test_a_bad_value_names_its_column_and_row_and_nothing_is_sent(bench: Bench, table: Table) -> None:
    data = arrow(30_000).to_pydict()
    data["id"][20_000] = None
    broken = pa.table(data, schema=pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int32())]))
    with pytest.raises(InvalidArgument, match=r"'id'.*row 20000 "):
        await table.upsert(broken)
    assert bench.toy.count("write") == 0
