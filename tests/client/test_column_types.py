"""Columns of newer types over the whole API: pandas, alterations, conditions, keys."""

from __future__ import annotations

from datetime import date, time, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import ebla
from ebla.errors import InvalidArgument
from ebla.options import Written
from tests.client.loopback import Loopback
from tests.client.real_roles import Stage, on_real_roles
from tests.client.tables import RICH, arrow, rich_rows


def test_every_type_goes_through_pandas_and_back(rich: ebla.Table) -> None:
    data = rich_rows(20)
    maps = pa.array(
        [[("k", 1)], []] * 10, RICH.field("m").type
    )  # pandas makes floats of numbers beside nulls
    data = data.set_column(6, RICH.field("m"), maps)
    rich.upsert(data)
    frame = rich.scan().to_pandas()
    assert frame["took"].dtype == "timedelta64[ms]" and frame["u"].dtype == "uint64"
    copy = frame.assign(id=frame["id"] + 100)
    assert rich.upsert(copy) == Written(20)
    found = rich.scan(where=ebla.col("id") >= 100).to_arrow().sort_by("id")
    assert found.drop_columns(["id"]).equals(data.drop_columns(["id"]))
    backed = data.to_pandas(types_mapper=pd.ArrowDtype).assign(id=range(200, 220))
    assert rich.upsert(backed) == Written(20)
    found = rich.scan(where=ebla.col("id") >= 200).to_arrow().sort_by("id")
    assert found.drop_columns(["id"]).equals(data.drop_columns(["id"]))


def test_integers_beside_nulls_keep_every_digit_through_pandas_also_as_keys(loopback: Loopback) -> None:
    large = (1 << 60) + 1
    kinds = {
        "id": pa.int64(),
        "i": pa.int64(),
        "u": pa.uint64(),
        "b": pa.int8(),
        "tags": pa.list_(pa.int64()),
    }
    made = loopback.db.create_table("i", schema=pa.schema(kinds), primary_key=["id"])
    made.upsert([{"id": large, "i": large, "u": 8 * large, "b": -1, "tags": [large, None]}, {"id": 2}])
    before = made.scan().to_arrow()
    frame = made.scan().to_pandas()
    assert list(map(str, frame.dtypes)) == ["int64", "Int64", "UInt64", "Int8", "object"]
    assert made.upsert(frame) == Written(2) and made.scan().to_arrow() == before
    with pytest.raises(InvalidArgument, match=r"column 'id', row 1: .* came as a float"):
        made.upsert(frame.astype({"id": "float64"}))
    assert made.scan().to_arrow() == before


@pytest.mark.parametrize(
    ("kind", "value", "method"),
    [
        (pa.time64("ns"), 1, "to_pandas"),
        (pa.list_(pa.time64("ns")), [1], "to_pandas"),
        (pa.date32(), 1 << 30, "to_pandas"),
        (pa.duration("s"), 1 << 60, "to_polars"),
        (pa.list_(pa.timestamp("s", "Europe/Berlin")), [1 << 60], "to_polars"),
    ],
)
def test_a_value_that_a_frame_cannot_express_is_refused_with_its_column(
    loopback: Loopback, kind: pa.DataType, value: Any, method: str
) -> None:
    made = loopback.db.create_table(
        "far", schema=pa.schema({"id": pa.int64(), "c": kind}), primary_key=["id"]
    )
    made.upsert(pa.table({"id": [1], "c": pa.array([value], kind)}))
    with pytest.raises(InvalidArgument, match=r"column 'c' \(.* cannot express: .*to_arrow\(\)") as raised:
        getattr(made.scan(), method)()
    assert raised.value.column == "c"


# -- alterations and conditions -------------------------------------------------------------------------------


@on_real_roles
async def test_columns_of_new_types_are_added_with_defaults(stage: Stage) -> None:
    table = await stage.table()
    await table.upsert(arrow(2))
    changes = table.alter().add_column("tags", pa.list_(pa.string()), nullable=False, default=["x", None])
    changes.add_column("point", pa.struct([("x", pa.float64())]), default={"x": 0.5})
    changes.add_column("m", pa.map_(pa.string(), pa.date32()), default={"a": date(2024, 1, 1)})
    changes.add_column("u", pa.uint8(), default=255).add_column("at", pa.time32("s"), default=time(12))
    changes.add_column("took", pa.duration("us"), default=timedelta(hours=1))
    await changes.add_column("note", pa.json_(), default="{}").apply()
    expected = {
        "tags": ["x", None],
        "point": {"x": 0.5},
        "m": [("a", date(2024, 1, 1))],
        "u": 255,
        "at": time(12),
        "took": timedelta(hours=1),
        "note": "{}",
    }
    assert await table.get({"id": 1}) == {"id": 1, "v": f"{1:010}", "n": 1, **expected}
    await table.upsert([{"id": 3, "u": 7}, {"id": 4, "tags": []}])
    await table.upsert({"id": 5, "note": None})
    found = {row["id"]: row async for row in table.scan()}
    assert found[0] == {"id": 0, "v": f"{0:010}", "n": 0, **expected}
    assert found[3] == {"id": 3, "v": None, "n": None, **expected, "u": 7}
    assert (found[4]["tags"], found[5]["note"], found[5]["m"]) == ([], None, expected["m"])
    with pytest.raises(InvalidArgument, match=r"'bad\[\]'"):
        table.alter().add_column("bad", pa.list_(pa.int8()), default=[300])


def test_the_servers_compare_times_durations_and_unsigned_integers(rich: ebla.Table) -> None:
    rich.upsert(rich_rows(100))
    col = ebla.col

    def ids(where: Any) -> list[int]:
        return sorted(rich.scan(["id"], where).to_arrow()["id"].to_pylist())

    assert ids(col("u") >= (1 << 63) + 98) == [98, 99]
    assert ids(col("at") == time(23, 30)) == [23, 47, 71, 95]
    assert ids(col("took") < timedelta(milliseconds=2)) == [0, 1]
    assert ids(col("took").is_in([pd.Timedelta("3ms"), timedelta(milliseconds=5)])) == [3, 5]
    assert ids((col("tags").is_null()) & (col("point").is_null())) == list(range(0, 100, 15))
    for name in ("tags", "point", "m", "note"):
        with pytest.raises(InvalidArgument, match="cannot be compared, only asked for null") as raised:
            rich.scan(where=col(name) == "x")
        assert raised.value.column == name
    for name, value in (("u", -1), ("at", timedelta(1)), ("took", timedelta(microseconds=1)), ("took", 5)):
        with pytest.raises(InvalidArgument, match=f"'{name}' cannot be compared with"):
            rich.scan(where=col(name) == value)


def test_new_types_are_keys_and_divide_tables(loopback: Loopback) -> None:
    schema = pa.schema(
        [("u", pa.uint32()), ("at", pa.time64("ns")), ("d", pa.duration("us")), ("v", pa.int8())]
    )
    by = ebla.hash("d", buckets=2) + ebla.range("u", splits=[10, 1 << 31])
    made = loopback.db.create_table("keys", schema=schema, primary_key=["u", "at", "d"], partition_by=by)
    rows = [
        {"u": u, "at": time(1, 2, 3, 4), "d": timedelta(days), "v": 1}
        for u in (0, 10, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
        for days in (-1, 0, 1)
    ]
    assert made.upsert(rows) == Written(15)
    key = {name: rows[7][name] for name in made.primary_key}
    assert made.get(key) == rows[7] and made.get_many(rows) == rows
    assert made.scan(where=(ebla.col("u") >= 1 << 31) & (ebla.col("d") < timedelta(0))).count() == 2
