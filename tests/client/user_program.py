"""A user's program, which tests/client/test_api.py checks with mypy: a line without `type: ignore` is right, and a line with it is
wrong in exactly this way."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from typing_extensions import assert_type

import ebla


def right(db: ebla.Database) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    table = db.create_table(
        "t", schema=schema, primary_key=["id"], partition_by=ebla.hash("id", buckets=4), replicas=3
    )
    assert_type(table, ebla.Table)
    assert_type(table.upsert({"id": 1, "v": "a"}), ebla.Written)
    assert_type(table.upsert([{"id": 1}, {"id": 2}], write_id=ebla.WriteId(b"c" * 16, 0)).rows, int)
    table.insert(pa.table({"id": [3]}), if_present="ignore", deadline_s=5)
    table.delete({"id": 3}, if_absent="ignore")
    assert_type(
        table.delete(where=ebla.col("v").starts_with("a") & ebla.col("id").is_in([1, 2])), ebla.Written
    )
    assert_type(table.count(ebla.col("v").is_null()), int)
    assert_type(table.get({"id": 1}), dict[str, Any] | None)
    assert_type(table.get_many([{"id": 1}]), list[dict[str, Any] | None])
    assert_type(table.primary_key, tuple[str, ...])
    for row in table.scan(columns=["v"], where=(ebla.col("id") > 3) | ~(ebla.col("v") == "b"), limit=10):
        assert_type(row, dict[str, Any])
    table.alter().add_column("n", pa.int32(), default=0).min_members(2).rename("u").apply(wait_s=5.0)
    with db.session(timeout_s=10.0) as session, session.lock("/locks/nightly") as lock:
        assert_type(lock.token, int)
    try:
        db.drop_table("t")
    except ebla.TableDropped as error:
        assert_type(error.until_us, int | None)
    except (ebla.DiskFull, ebla.OutcomeUnknown, ebla.OverLimit) as error:
        assert_type(error.possibly_applied, bool)


async def right_awaited() -> None:
    async with ebla.aio.connect("ebla", progress=False) as db:
        table = await db.table("t")
        assert_type(await table.upsert({"id": 1}), ebla.Written)
        assert_type(await table.get_many([{"id": 1}]), list[dict[str, Any] | None])
        assert_type(await table.count(), int)
        async for row in table.scan(limit=3):
            assert_type(row, dict[str, Any])
    again = await ebla.aio.connect()
    assert_type(again, ebla.aio.Database)


def wrong(table: ebla.Table) -> None:
    table.upsert(5)  # type: ignore[arg-type]
    table.upsert("id=1")  # type: ignore[arg-type]
    table.upsert([1, 2])  # type: ignore[list-item]
    table.upsert({"id": 1}, deadline="5")  # type: ignore[call-arg]
    table.insert({"id": 1}, if_present="replace")  # type: ignore[arg-type]
    table.insert({"id": 1}, if_absent="ignore")  # type: ignore[call-arg]
    table.delete(where="id = 1")  # type: ignore[arg-type]
    table.get(1)  # type: ignore[arg-type]
    table.get({"id": 1})["v"]  # type: ignore[index]
    table.scan(where=True)  # type: ignore[arg-type]
    table.scan(columns=[1])  # type: ignore[list-item]
    table.counts()  # type: ignore[attr-defined]
    ebla.col("v").starts_with(5)  # type: ignore[arg-type]
    ebla.col("v").isin([1])  # type: ignore[attr-defined]
    ebla.connect(5)  # type: ignore[arg-type]
    ebla.hash("id")  # type: ignore[call-arg]
    ebla.connect().create_table("t", schema=table.schema)  # type: ignore[call-arg]


async def wrong_awaited(table: ebla.aio.Table) -> None:
    (await table.get({"id": 1})).keys()  # type: ignore[union-attr]
    print((await table.upsert({"id": 1})).row)  # type: ignore[attr-defined]
    print(table.count() + 1)  # type: ignore[operator]
    print(table.count().real)  # type: ignore[attr-defined]
    list(table.scan())  # type: ignore[call-overload]
    ebla.aio.connect().table("t")  # type: ignore[attr-defined]
