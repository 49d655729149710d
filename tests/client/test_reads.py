"""Gets of one row, of many rows, and of absent rows."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import ebla
from ebla.aio import Table
from ebla.errors import Corruption, InvalidArgument, NotFound
from tests.client.tables import arrow, on_table, row
from tests.client.toy import Bench, on_toys


@on_table()
async def test_get_many_answers_in_the_order_of_the_keys_with_none_for_absent_rows(
    bench: Bench, table: Table
) -> None:
    await table.upsert([row(n) for n in range(100)])
    wanted = [5, 500, 99, 5, 0, 101]
    expected = [row(n) if n < 100 else None for n in wanted]
    assert await table.get_many([{"id": n} for n in wanted]) == expected
    assert await table.get_many(pa.table({"id": wanted})) == expected
    assert await table.get_many({"id": 5}) == [row(5)]
    assert await table.get_many([]) == []


@on_table()
async def test_get_many_as_arrow_returns_the_existing_rows_in_the_order_of_their_keys(
    bench: Bench, table: Table
) -> None:
    await table.upsert([row(n) for n in range(100)])
    found = await table.get_many([{"id": n} for n in (7, 300, 3, 7)], as_arrow=True)
    assert found.to_pylist() == [row(7), row(3), row(7)]
    assert found.schema == table.schema
    assert (await table.get_many([{"id": 300}], as_arrow=True)).num_rows == 0


@on_table()
async def test_many_keys_are_read_while_leaders_change(bench: Bench, table: Table) -> None:
    await table.upsert(arrow(10_000))
    pending = asyncio.ensure_future(table.get_many(pa.table({"id": range(12_000)}), as_arrow=True))
    await bench.world.clock.sleep(0.0005)
    bench.toy.lead_all()
    assert (await pending)["id"].to_pylist() == list(range(10_000))


@on_table(1)
async def test_a_row_that_arrives_damaged_is_never_returned(bench: Bench, table: Table) -> None:
    await table.upsert([row(1), row(2)])
    stored = bench.toy.tablets["t000"].rows
    for key, value in stored.items():
        stored[key] = bytes([value[0] ^ 1]) + value[1:]
    with pytest.raises(Corruption):
        await table.get({"id": 1})
    with pytest.raises(Corruption):
        await table.get_many([{"id": 1}, {"id": 2}])


@on_table(1)
async def test_callers_that_wait_for_the_same_answer_get_errors_of_their_own(
    bench: Bench, table: Table
) -> None:
    await bench.db.drop_table("t")
    for act in (lambda: table.get({"id": 1}), lambda: table._client.refresh(table._routes)):
        errors = await asyncio.gather(*(act() for _ in range(3)), return_exceptions=True)
        assert all(isinstance(error, NotFound) for error in errors)
        assert len(set(map(id, errors))) == 3


@on_table()
async def test_an_invalid_key_is_refused_with_the_name_of_its_column(bench: Bench, table: Table) -> None:
    for key, named in (({}, "id"), ({"id": None}, "id"), ({"id": "one"}, "id"), ({"idd": 1}, "idd")):
        with pytest.raises(InvalidArgument) as caught:
            await table.get(key)
        assert caught.value.column == named
    with pytest.raises(InvalidArgument, match="row 1") as caught:
        await table.get_many([{"id": 1}, {"id": None}])
    assert caught.value.row == 1
    assert bench.toy.count("read") == 0


@on_toys
async def test_tables_with_other_keys_and_partitionings_work(bench: Bench) -> None:
    schema = pa.schema(
        [("b", pa.string()), ("a", pa.binary()), ("x", pa.float64()), ("t", pa.timestamp("us", "UTC"))]
    )
    table = await bench.db.create_table(
        "wide",
        schema=schema,
        primary_key=["a", "b"],
        partition_by=ebla.hash("b", buckets=3) + ebla.range("a", splits=[b"f", b"m"]),
    )
    assert (await table.info()).schema.partitioning.tablets == 9
    data = [{"b": chr(97 + n % 26), "a": bytes([97 + n % 20, n]), "x": n / 2, "t": None} for n in range(200)]
    await table.upsert(data)
    assert await table.get({"a": data[9]["a"], "b": data[9]["b"]}) == data[9]
    assert await table.get_many([{"b": d["b"], "a": d["a"]} for d in data]) == data
    assert await table.scan(where=ebla.col("a") < b"c").count() == sum(d["a"] < b"c" for d in data)
