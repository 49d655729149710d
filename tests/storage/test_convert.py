"""Rows in the forms that users give: every form makes the same batch, and no value is lost silently."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ebla.storage.arrow_types import column_of
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.convert import to_array
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column
from tests.storage.test_rows import PLAIN, SEED, joined, schema


def test_every_form_of_rows_makes_the_same_batch() -> None:
    rows = RowCodec(PLAIN)
    data = {"k": [1, 2, 3], "name": ["x", None, "z"], "size": [7, 8, None]}
    expected = rows.arrow(pa.table(data, schema=PLAIN.arrow()))
    dicts = [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]
    chunked = pa.concat_tables(
        [pa.Table.from_pylist(dicts[:1]), pa.Table.from_pylist(dicts[1:])], promote_options="permissive"
    )
    coded = pa.table(data).set_column(1, "name", pa.array(data["name"]).dictionary_encode())
    large = pa.table(data).set_column(1, "name", pa.array(data["name"], pa.large_string()))
    given = [
        data,
        dicts,
        tuple(dicts),
        [{name: value for name, value in row.items() if value is not None} for row in dicts],
        pd.DataFrame(data),  # size is a float column there, with NaN
        pd.DataFrame(data).convert_dtypes(),
        pd.DataFrame(data, dtype=object),
        {"k": np.array([1, 2, 3]), "name": pd.Series(data["name"]), "size": pa.array(data["size"])},
        pa.table(data).select(["size", "name", "k"]),
        pa.table(data).to_batches()[0],
        chunked,
        coded,
        large,
        pa.concat_tables([large, large]).slice(3),
    ]
    for each in given:
        assert rows.arrow(each).equals(expected), each
    assert rows.arrow([]).num_rows == 0
    assert joined(rows, rows.arrow(coded)) == joined(rows, expected)


def test_a_codec_of_some_columns_takes_these_and_the_key() -> None:
    some = RowCodec(PLAIN, ["size"])
    assert some.names == ["k", "size"]
    batch = some.arrow([{"k": 1, "size": 2}])
    key, value = some.encode_row({"k": 1, "size": 2}, SEED)
    assert some.encode(batch, SEED) == ([key], [value])
    assert RowCodec(PLAIN, ()).arrow({"k": [1]}).schema.names == ["k"]
    with pytest.raises(InvalidArgument, match="'name'"):
        some.arrow([{"k": 1, "name": "x"}])
    with pytest.raises(InvalidArgument, match="part of the key"):
        RowCodec(PLAIN, ["k"])


TYPES = schema(
    Column("k", "int64", False),
    Column("must", "string", False),
    Column("i8", "int8"),
    Column("f", "float"),
    Column("b", "bool"),
    Column("blob", "binary"),
    Column("d", "date"),
    Column("local", "timestamp", unit="s"),
    Column("instant", "timestamp", unit="ms", zone="UTC"),
    Column("money", "decimal", precision=5, scale=2),
)
NAIVE = datetime(2020, 1, 1, 0, 0, 5)  # noqa: DTZ001
UNFIT: list[tuple[str, Any]] = [
    ("i8", 128),
    ("i8", 1.0),
    ("i8", "1"),
    ("i8", True),
    ("i8", np.timedelta64(1, "s")),
    ("f", 1e300),
    ("f", "1"),
    ("f", np.timedelta64(1, "s")),
    ("b", 1),
    ("must", b"x"),
    ("must", "\ud800"),
    ("must", 5),
    ("blob", "x"),
    ("d", NAIVE),
    ("d", "2020-01-01"),
    ("local", NAIVE.replace(tzinfo=timezone.utc)),
    ("local", NAIVE.replace(microsecond=1)),
    ("local", 5),
    ("local", pd.NaT),
    ("instant", NAIVE),
    ("instant", pd.Timestamp(5, tz="UTC")),
    ("instant", date(2020, 1, 1)),
    ("money", Decimal("1.234")),
    ("money", Decimal("1000")),
    ("money", Decimal("NaN")),
    ("money", Decimal("1E+999999")),
    ("money", 1.5),
]


@pytest.mark.parametrize(("column", "value"), UNFIT)
def test_a_value_that_does_not_fit_exactly_is_refused_with_column_and_row(column: str, value: Any) -> None:
    rows = RowCodec(TYPES)
    good = {"k": 1, "must": "x"}
    with pytest.raises(InvalidArgument) as raised:
        rows.arrow([good, good, {**good, column: value}, good])
    assert (raised.value.column, raised.value.row) == (column, 2)
    with pytest.raises(InvalidArgument) as raised:
        rows.encode_row({**good, column: value}, SEED)
    assert raised.value.column == column


@pytest.mark.parametrize(
    ("column", "value", "stored"),
    [
        ("i8", np.int64(5), 5),
        ("f", 1, 1.0),
        ("f", 0.1, float(np.float32(0.1))),
        ("b", np.bool_(True), True),
        ("blob", bytearray(b"x"), b"x"),
        (
            "instant",
            pd.Timestamp("2020-01-01", tz="Europe/Berlin"),
            datetime(2019, 12, 31, 23, tzinfo=timezone.utc),
        ),
        ("money", 7, Decimal("7.00")),
        ("money", Decimal("1E2"), Decimal("100.00")),
    ],
)
def test_a_value_of_a_related_type_is_stored_alike_by_both_paths(
    column: str, value: Any, stored: Any
) -> None:
    rows = RowCodec(TYPES)
    row = {"k": 1, "must": "x", column: value}
    pair = rows.encode_row(row, SEED)
    assert rows.encode(rows.arrow([row]), SEED) == ([pair[0]], [pair[1]])
    assert rows.decode_row(*pair, SEED)[column] == stored


@pytest.mark.parametrize(
    ("array", "column", "row"),
    [
        (pa.array([1, 300]), "i8", 1),
        (pa.array([1.0, 1.5]), "i8", 1),
        (pa.array(["1", "2"]), "i8", None),
        (pa.array([1, 2]), "must", None),
        (pa.array(["x", None]), "must", 1),
        (pa.array([b"ok", b"\xff"]).view(pa.string()), "must", 1),
        (pa.array(["x", "y"]), "blob", None),
        (pa.array([1.0, 1e300]), "f", 1),
        (pa.array([1, 86_400_001], pa.timestamp("ms")), "d", None),
        (pa.array([1000, 1500], pa.timestamp("ms")), "local", 1),
        (pa.array([1, 2], pa.timestamp("ms")), "instant", None),
        (pa.array([1, 2], pa.timestamp("s", "UTC")), "local", None),
        (pa.array([1, 1000]), "money", 1),
        (pa.array([1, 2]), "local", None),
    ],
)
def test_arrow_columns_are_cast_only_if_every_value_stays_exact(
    array: Any, column: str, row: int | None
) -> None:
    table = pa.table({"k": [1, 2], "must": ["x", "y"]})
    place = table.schema.get_field_index(column)
    table = table.append_column(column, array) if place < 0 else table.set_column(place, column, array)
    with pytest.raises(InvalidArgument) as raised:
        RowCodec(TYPES).arrow(table)
    assert (raised.value.column, raised.value.row) == (column, row)


@pytest.mark.parametrize(
    ("rows", "column", "row", "remedy"),
    [
        ([{"k": 1}, {"k": None}], "k", 1, "give it one"),
        ([{"name": "x"}], "k", None, "add it to the rows"),
        ([{"k": 1}, {"k": 2, "nme": "x"}], "nme", 1, "did you mean 'name'"),
        ({"k": [1], "nme": ["x"]}, "nme", None, "did you mean 'name'"),
        ({"k": [1, 2], "name": ["x"]}, "name", None, "the same number"),
        ({"k": 1, "name": "x"}, "k", None, r"give \[{...}\]"),
        ([{"k": 1}, 5], None, 1, "as dicts"),
        (5, None, None, "pyarrow Table"),
        ("rows", None, None, "pyarrow Table"),
        (pd.DataFrame({"name": ["x"]}, index=pd.Index([1], name="k")), "k", None, "reset_index"),
        (pa.table([[1], [2]], names=["k", "k"]), "k", None, "twice"),
    ],
)
def test_rows_that_do_not_fit_the_table_are_refused_with_a_remedy(
    rows: Any, column: Any, row: Any, remedy: str
) -> None:
    with pytest.raises(InvalidArgument, match=remedy) as raised:
        RowCodec(PLAIN).arrow(rows)
    assert (raised.value.column, raised.value.row) == (column, row)


def test_a_single_row_with_a_wrong_column_is_refused_by_name() -> None:
    rows = RowCodec(TYPES)
    with pytest.raises(InvalidArgument, match="no column 'x'"):
        rows.encode_row({"k": 1, "must": "y", "x": 1}, SEED)
    with pytest.raises(InvalidArgument, match="'must' may not be null"):
        rows.encode_row({"k": 1}, SEED)
    pair = rows.encode_row({"k": 1, "must": "y"}, SEED)
    for columns in (["x"], ["k", "x"]):
        with pytest.raises(InvalidArgument, match="'x'"):
            rows.decode_row(*pair, SEED, columns)
        with pytest.raises(InvalidArgument, match="'x'"):
            rows.decode([pair[0] + pair[1]], SEED, columns)


@pytest.mark.parametrize(
    ("kind", "array", "words"),
    [
        (pa.time64("us"), pa.array([0, 5001], pa.time64("ns")), r"00:00:00.000005001 has 1 ns that time64\[us\] would lose"),
        (pa.time32("s"), pa.array([0, 1500], pa.time32("ms")), r"00:00:01.500 has 500 ms that time32\[s\] would lose"),
        (
            pa.date32(),
            pa.array([0, -1]).view(pa.date64()),
            r"1969-12-31 23:59:59.999 has 86399999 ms that date32\[day\] would lose; .* of type timestamp\[ms\]",
        ),
        (
            pa.timestamp("us", "Europe/Zurich"),
            pa.array([0, 1], pa.timestamp("ns", "Europe/Zurich")),
            r"1970-01-01 00:00:00.000000001Z has 1 ns that .* would lose; .* of type timestamp\[ns, tz=Europe/Zurich\]",
        ),
        (pa.duration("s"), pa.array([0, 1500], pa.duration("ms")), r"1500 ms has 500 ms that duration\[s\] would lose"),
        (pa.timestamp("ns"), pa.array([0, 1 << 60], pa.timestamp("s")), "that Python cannot express"),
        (pa.date32(), pa.array([0, 1 << 62]).view(pa.date64()), "that Python cannot express"),
    ],
)  # fmt: skip
def test_a_time_of_arrow_that_is_finer_than_its_column_is_refused_with_the_lost_part(
    kind: pa.DataType, array: pa.Array, words: str
) -> None:
    forms = [(kind, array)]
    if array.type != pa.date64():  # Arrow itself refuses such dates in a list
        forms.append((pa.list_(kind), pa.ListArray.from_arrays([0, 1, 2], array)))
    for of, values in forms:
        with pytest.raises(InvalidArgument, match=rf"row 1: .*{words}") as raised:
            to_array(column_of(pa.field("v", of)), values)
        assert (raised.value.column, raised.value.row) == ("v", 1)
