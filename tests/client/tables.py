"""The table of the client's tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import time, timedelta
from typing import Any

import pyarrow as pa

import ebla
from ebla import aio
from tests.client.toy import Bench, simulate
from tests.staged import Test, staged

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int32())])


def row(number: int, v: str | None = None, n: int | None = None) -> dict[str, Any]:
    return {"id": number, "v": v if v is not None else f"v{number}", "n": n if n is not None else number}


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [row(number) for number in numbers]


def arrow(count: int, width: int = 10, start: int = 0) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "v": [f"{n:0{width}}" for n in numbers],
            "n": pa.array(numbers, pa.int32()),
        }
    )


async def make(bench: Bench, buckets: int = 8, name: str = "t", storage: str = "rows") -> aio.Table:
    partition_by = ebla.hash("id", buckets=buckets) if buckets > 1 else None
    return await bench.db.create_table(
        name, schema=SCHEMA, primary_key=["id"], partition_by=partition_by, storage=storage
    )


def on_table(
    buckets: int = 8, loaded: int = 0, storage: str = "rows"
) -> Callable[[Test], Callable[..., None]]:
    """Run a test on the toy deployment and a table, with `loaded` rows, before which no call is recorded."""

    def play(scenario: Test, seed: int = 0) -> None:
        async def on_bench(bench: Bench) -> None:
            table = await make(bench, buckets, storage=storage)
            if loaded:
                await table.upsert(arrow(loaded))
                bench.toy.calls.clear()
            await scenario(bench, table)

        simulate(on_bench, seed)

    return staged(play, parts=2)


RICH = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("u", pa.uint64()),
        ("at", pa.time64("us")),
        ("took", pa.duration("ms")),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.float64()), ("y", pa.string())])),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("note", pa.json_()),
        ("kind", pa.string()),
    ]
)


def rich_rows(count: int) -> pa.Table:
    rows = [
        {
            "id": n,
            "u": (1 << 63) + n,
            "at": time(n % 24, 30),
            "took": timedelta(milliseconds=n),
            "tags": None if n % 5 == 0 else ["a", None, str(n)][: n % 4],
            "point": None if n % 3 == 0 else {"x": n / 2, "y": None},
            "m": [("k", n), ("l", None)] if n % 2 else [],
            "note": f'{{"n": {n}}}',
            "kind": "ab"[n % 2],
        }
        for n in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=RICH)
