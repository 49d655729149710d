"""Values in columns of pandas, records of NumPy, integers and tensors: each form of rows keeps a value exactly or refuses it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ebla.storage.arrow_types import column_of
from ebla.storage.columns import Column
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows import convert
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import TableSchema
from tests.storage.test_rows import SEED

NOON = datetime(2024, 1, 1, 12)  # noqa: DTZ001
DAY = date(2024, 1, 1)


def column(kind: pa.DataType) -> Column:
    return column_of(pa.field("v", kind))


def objects(*values: Any) -> Any:
    """A column of pandas with Python objects."""
    return pd.Series(list(values), dtype=object)


# -- object columns of pandas ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "values", "row"),
    [
        (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=timezone.utc), NOON], 1),
        (pa.timestamp("us"), [NOON, NOON.replace(tzinfo=timezone(timedelta(hours=5)))], 1),
        (pa.timestamp("us"), [pd.Timestamp(1_000), pd.Timestamp(1_001)], 1),
        (pa.timestamp("us"), [pd.NaT, DAY], 1),
        (pa.timestamp("ns"), [np.datetime64(1, "ns"), NOON], 0),
        (pa.duration("us"), [pd.Timedelta(1_000), pd.Timedelta(1)], 1),
        (pa.date32(), [DAY, NOON], 1),
        (pa.time64("us"), [time(1), time(1, tzinfo=timezone.utc)], 1),
        (pa.float64(), [0.5, True], 1),
        (pa.int64(), [1, True], 1),
        (pa.binary(), [b"a", "x"], 1),
        (pa.string(), ["x", b"a"], 1),
        (pa.float32(), [0.5, 2**24 + 1], 1),
        (pa.float64(), [0.5, np.uint64(2**64 - 1)], 1),
        (pa.int64(), [0.5, np.uint64(2**64 - 1)], 0),
    ],
)
def test_an_object_column_is_checked_value_by_value(kind: pa.DataType, values: list[Any], row: int) -> None:
    with pytest.raises(InvalidArgument, match="'v'") as raised:
        convert.to_array(column(kind), objects(*values))
    assert (raised.value.column, raised.value.row) == ("v", row)


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        (pa.timestamp("ns"), [pd.Timestamp(1_700_000_000_000_000_001), pd.NaT], [1_700_000_000_000_000_001, None]),
        (pa.timestamp("ns", "UTC"), [pd.Timestamp(1, tz="Europe/Zurich"), None], [1, None]),
        (pa.timestamp("ns"), [np.datetime64(1, "ns"), pd.NaT, float("nan")], [1, None, None]),
        (pa.duration("ns"), [pd.Timedelta(1), pd.NaT], [1, None]),
        (pa.duration("ns"), [np.timedelta64(1, "ns")], [1]),
    ],
)  # fmt: skip
def test_an_object_column_keeps_nanoseconds(kind: pa.DataType, values: list[Any], stored: list[Any]) -> None:
    array = convert.to_array(column(kind), objects(*values))
    assert array.type == kind and array.cast(pa.int64()).to_pylist() == stored


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        (pa.bool_(), [True, None, float("nan")], [True, None, None]),
        (pa.date32(), [DAY, float("nan"), None, pd.NaT, pd.NA], [DAY, None, None, None, None]),
        (pa.string(), ["x", float("nan"), pd.NA, None], ["x", None, None, None]),
        (pa.int64(), [1, float("nan"), np.float32("nan")], [1, None, None]),
        (pa.int64(), [1, 2.0], [1, 2]),
        (pa.uint64(), [2**64 - 1, None], [2**64 - 1, None]),
        (pa.int64(), [np.int64(1), None], [1, None]),
        (pa.float32(), [1, 0.5, np.float32(0.25), float("nan")], [1.0, 0.5, 0.25, None]),
        (pa.binary(), [b"a", bytearray(b"b"), None], [b"a", b"b", None]),
    ],
)
def test_an_object_column_takes_missing_values_of_every_kind_as_null(
    kind: pa.DataType, values: list[Any], stored: list[Any]
) -> None:
    assert convert.to_array(column(kind), objects(*values)).to_pylist() == stored


def test_the_key_of_an_object_column_keeps_its_nanoseconds() -> None:
    codec = RowCodec(TableSchema.from_arrow(pa.schema([("at", pa.timestamp("ns"))]), ["at"]))
    keys = codec.encode_keys(codec.arrow(pd.DataFrame({"at": objects(pd.Timestamp(1), pd.Timestamp(0))})))
    assert keys.to_pylist() == [codec.encode_key({"at": pd.Timestamp(at)}) for at in (1, 0)]


# -- integers for columns of floats ---------------------------------------------------------------------------

FORMS: dict[str, Callable[[int], Any]] = {
    "list": lambda value: [value],
    "list with a float": lambda value: [value, 0.5],
    "list of NumPy": lambda value: [np.array([value])[0]],
    "object column": lambda value: objects(value),
    "object column with a float": lambda value: objects(value, 0.5),
    "object column of NumPy": lambda value: objects(np.array([value])[0]),
    "pandas": lambda value: pd.Series([value]),
    "NumPy": lambda value: np.array([value]),
    "Arrow": lambda value: pa.array(np.array([value])),
}
EXACT = [
    (pa.float32(), 2**24),
    (pa.float32(), -(2**24)),
    (pa.float32(), 2**25),
    (pa.float32(), 100_000_000),
    (pa.float32(), 2**63),
    (pa.float64(), 2**53),
    (pa.float64(), 2**54),
    (pa.float64(), -(2**63)),
    (pa.float64(), 2**64 - 2**11),
]
ROUNDED = [
    (pa.float32(), 2**24 + 1),
    (pa.float32(), -(2**24) - 1),
    (pa.float32(), 2**63 - 1),
    (pa.float32(), 2**64 - 1),
    (pa.float64(), 2**53 + 1),
    (pa.float64(), 2**63 - 1),
    (pa.float64(), 2**64 - 1),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "value"), EXACT)
def test_an_integer_that_a_float_column_holds_exactly_is_taken_in_every_form(
    kind: pa.DataType, value: int, form: str
) -> None:
    array = convert.to_array(column(kind), FORMS[form](value))
    assert array.type == kind and int(array[0].as_py()) == value


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("kind", "value"), ROUNDED)
def test_an_integer_that_a_float_column_would_round_is_refused_in_every_form(
    kind: pa.DataType, value: int, form: str
) -> None:
    with pytest.raises(
        InvalidArgument, match=r"'v', row 0: .*or an int that (32|64) bits hold exactly.*give a float"
    ) as raised:
        convert.to_array(column(kind), FORMS[form](value))
    assert (raised.value.column, raised.value.row) == ("v", 0)


@pytest.mark.parametrize(("kind", "value"), [*ROUNDED, (pa.float64(), 10**400), (pa.float32(), 10**40)])
def test_an_integer_that_a_float_column_would_round_is_refused_in_a_single_row_and_inside_a_list(
    kind: pa.DataType, value: int
) -> None:
    with pytest.raises(InvalidArgument, match="'v'"):
        convert.raw(column(kind), value)
    with pytest.raises(InvalidArgument, match=r"'v\[\]'"):
        convert.to_array(column(pa.list_(kind)), [[value]])


THIRD = np.longdouble(1) / 3
LONG_FORMS = {
    "list": lambda value: [value],
    "objects": objects,
    "array": lambda value: np.array([value]),
    "series": lambda value: pd.Series(np.array([value])),
    "object series": lambda value: pd.Series([value], dtype=object),
}


@pytest.mark.parametrize("form", LONG_FORMS)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_a_long_double_is_taken_if_64_bits_hold_it_exactly(kind: pa.DataType, form: str) -> None:
    make = LONG_FORMS[form]
    for value in (0.5, -np.inf, 2.0**53):
        assert convert.to_array(column(kind), make(np.longdouble(value))).to_pylist() == [value]
    assert str(convert.to_array(column(kind), make(np.longdouble("nan"))).to_pylist()[0]) in ("nan", "None")
    for value in (THIRD, np.longdouble("1e4000"), np.longdouble(2) ** 60 + 1):
        with pytest.raises(InvalidArgument, match=r"'v', row 0: .*; cast it, which rounds it: np.float64"):
            convert.to_array(column(kind), make(value))


def test_a_masked_long_double_is_null_and_so_is_nan_in_a_column_of_pandas() -> None:
    given = np.array([1, 2, np.nan], np.longdouble)
    masked = np.ma.masked_array(given[:2], [False, True])
    assert convert.to_array(column(pa.float64()), masked).to_pylist() == [1.0, None]
    matrix = convert.to_array(column(pa.list_(pa.float64())), masked.reshape(1, 2))
    assert matrix.to_pylist() == [[1.0, None]]
    assert convert.to_array(column(pa.float64()), pd.Series(given)).to_pylist() == [1.0, 2.0, None]


def test_a_long_double_that_would_be_rounded_is_refused_in_a_single_row_and_inside_a_list() -> None:
    with pytest.raises(InvalidArgument, match=r"'v', row 0: .*cast it"):
        convert.raw(column(pa.float64()), THIRD)
    assert convert.raw(column(pa.float64()), np.longdouble(0.5)) == 0.5
    for values in ([[THIRD]], [np.array([THIRD])]):
        with pytest.raises(InvalidArgument, match=r"'v\[\]', row 0: .*cast it"):
            convert.to_array(column(pa.list_(pa.float64())), values)


def test_a_double_for_a_float_column_is_rounded_in_every_form() -> None:
    rounded = float(np.float32(0.1))
    for values in ([0.1], objects(0.1), pd.Series([0.1]), np.array([0.1]), pa.array([0.1])):
        assert convert.to_array(column(pa.float32()), values).to_pylist() == [rounded]


# -- decimals without a fraction for columns of integers ------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), float("nan")),
        (pa.int64(), np.float64("nan")),
        (pa.timestamp("us"), pd.NaT),
        (pa.float64(), pd.NA),
        (pa.timestamp("ns"), np.datetime64("NaT")),
        (pa.list_(pa.int64()), [pd.NA]),
        (pa.list_(pa.int64()), pd.NA),
    ],
)
def test_a_missing_value_of_pandas_in_a_row_as_a_dict_is_refused_with_none_as_the_remedy(
    kind: pa.DataType, value: Any
) -> None:
    codec = RowCodec(
        TableSchema.from_arrow(pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", kind)]), ["k"])
    )
    for write in (lambda row: codec.arrow([row]), lambda row: codec.encode_row(row, SEED)):
        with pytest.raises(InvalidArgument, match=r"column 'v.*; for null give None"):
            write({"k": 1, "v": value})
    with pytest.raises(InvalidArgument, match="there is no column 'K' here; did you mean 'k'"):
        codec.encode_key({"K": 1})


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_a_float_that_may_be_a_rounded_integer_is_refused_with_the_forms_that_keep_integers(
    kind: pa.DataType,
) -> None:
    exact = [2.0**53 - 1, None, 3.0]
    assert convert.to_array(column(kind), pd.Series(exact)).to_pylist() == exact
    forms = [
        pd.Series([1.0, None, 2.0**53]),
        np.array([1.0, 2.0, 2.0**53]),
        pa.array([1, 2, 2.0**24], pa.float32()),
    ]
    if kind == pa.int64():
        forms.append(pa.array([1, 2, -(2.0**53)]))
    for values in forms:
        with pytest.raises(
            InvalidArgument, match=r"column 'v', row 2: .*pandas keeps beside nulls as Int64"
        ) as raised:
            convert.to_array(column(kind), values)
        assert (raised.value.column, raised.value.row) == ("v", 2)
    with pytest.raises(InvalidArgument, match=r"'v\[\]', row 1"):
        convert.to_array(column(pa.list_(kind)), pa.array([[], [2.0**60]]))


@pytest.mark.parametrize(
    "given",
    [
        pa.array([1, None, 4 * 10**20], pa.decimal128(38, 0)),
        pa.array([Decimal("1.25"), None, Decimal("4e20")], pa.decimal128(38, 2)),
        pa.array([1, None, 4 * 10**20], pa.decimal256(76, 0)),
        pa.array([1, None, 4 * 10**57], pa.decimal256(76, 0)),
        pl.Series([Decimal(1), None, Decimal("4e20")], dtype=pl.Decimal(38, 0)),
    ],
)
def test_a_decimal_that_is_too_large_with_the_columns_scale_is_refused(given: Any) -> None:
    """Arrow would move the point and keep the low 128 bits: another value."""
    with pytest.raises(InvalidArgument, match=r"column 'v', row 2: .* 18 of them after the point"):
        convert.to_array(column(pa.decimal128(38, 18)), given)
    nested = pa.array([[], [7]], pa.list_(pa.int8()))
    with pytest.raises(InvalidArgument, match=r"column 'v\[\]', row 1"):
        convert.to_array(column(pa.list_(pa.decimal128(38, 38))), nested)
    fits = convert.to_array(column(pa.decimal128(38, 18)), given[:2])
    assert fits.to_pylist() == [
        Decimal(given[0] if isinstance(given[0], Decimal) else given[0].as_py()),
        None,
    ]


def test_decimals_without_a_scale_are_taken_as_integers() -> None:
    """DuckDB's sum of integers has the type decimal(38, 0)."""
    sums = pa.array([Decimal(2**63 - 1), None, Decimal(-(2**63))], pa.decimal128(38, 0))
    assert convert.to_array(column(pa.int64()), sums).to_pylist() == [2**63 - 1, None, -(2**63)]


@pytest.mark.parametrize(
    ("kind", "value", "given"),
    [
        (pa.int64(), Decimal(2**63), pa.decimal128(38, 0)),
        (pa.uint8(), Decimal(-1), pa.decimal128(38, 0)),
        (pa.int8(), Decimal(128), pa.decimal128(38, 0)),
    ],
)
def test_a_decimal_outside_of_the_integers_range_is_refused(
    kind: pa.DataType, value: Decimal, given: pa.DataType
) -> None:
    with pytest.raises(InvalidArgument, match="'v', row 1") as raised:
        convert.to_array(column(kind), pa.array([None, value], given))
    assert raised.value.row == 1


@pytest.mark.parametrize("scale", [2, -2])
def test_decimals_with_a_scale_are_refused_for_integers(scale: int) -> None:
    with pytest.raises(InvalidArgument, match="holds int64, not decimal128"):
        convert.to_array(column(pa.int64()), pa.array([Decimal(100)], pa.decimal128(38, scale)))


# -- records of NumPy -----------------------------------------------------------------------------------------


def test_records_of_numpy_keep_every_value() -> None:
    fields = [
        ("id", ">i8"), ("f", ">f4"), ("name", "U3"), ("blob", "S2"), ("at", "M8[ns]"), ("day", "M8[D]"),
        ("since", "M8[D]"), ("took", "m8[h]"), ("ok", "?"), ("tags", "i4", (2,)), ("o", "O"),
    ]  # fmt: skip
    rows = np.zeros(2, fields)
    rows[0] = (1, np.nan, "abc", b"xy", 7, 3, 1, 2, True, (4, 5), NOON)
    rows[1] = (2, 0.5, "", b"", "NaT", "NaT", "NaT", "NaT", False, (6, 7), None)
    kinds: list[tuple[str, pa.DataType]] = [
        ("id", pa.int64()), ("f", pa.float64()), ("name", pa.string()), ("blob", pa.binary()),
        ("at", pa.timestamp("ns")), ("day", pa.date32()), ("since", pa.timestamp("ms")), ("took", pa.duration("us")),
        ("ok", pa.bool_()), ("tags", pa.list_(pa.int32())), ("o", pa.timestamp("us")),
    ]  # fmt: skip
    codec = RowCodec(TableSchema.from_arrow(pa.schema(kinds), ["id"]))
    first, second = codec.arrow(rows).to_pylist()
    assert np.isnan(first.pop("f")) and second.pop("f") == 0.5, "NaN is no null"
    assert first.pop("at").value == 7
    assert list(first.values()) == [
        1, "abc", b"xy", date(1970, 1, 4), datetime(1970, 1, 2), timedelta(hours=2), True, [4, 5], NOON  # noqa: DTZ001
    ]  # fmt: skip
    assert list(second.values()) == [2, "", b"", None, None, None, None, False, [6, 7], None]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (pa.timestamp("us", "UTC"), "O", NOON),
        (pa.timestamp("us"), "O", pd.Timestamp(1)),
        (pa.float64(), "O", True),
        (pa.timestamp("us"), "M8[ns]", 1),
        (pa.timestamp("ns"), "M8[D]", "2400-01-01"),
        (pa.timestamp("s"), "M8[D]", 2**60),
        (pa.duration("s"), "m8[h]", 2**60),
        (pa.duration("s"), "M8[D]", 1),
        (pa.date32(), "M8[D]", 2**40),
        (pa.date32(), "m8[D]", 1),
        (pa.int64(), "f8", np.nan),
        (pa.int64(), "i4,i4", (1, 2)),
    ],
)
def test_a_field_of_numpy_records_that_does_not_fit_exactly_is_refused(
    kind: pa.DataType, field: str, value: Any
) -> None:
    codec = RowCodec(TableSchema.from_arrow(pa.schema([("k", pa.int8()), ("v", kind)]), ["k"]))
    rows = np.array([(1, value)], [("k", "i1"), ("v", field)])
    with pytest.raises(InvalidArgument, match="'v'"):
        codec.arrow(rows)


# -- tensors --------------------------------------------------------------------------------------------------


def tensors(shape: tuple[int, ...], permutation: list[int] | None = None) -> pa.Array:
    size = int(np.prod(shape))
    kind = pa.fixed_shape_tensor(pa.float64(), shape, permutation=permutation)
    return pa.ExtensionArray.from_storage(kind, pa.array([[1.0] * size], pa.list_(pa.float64(), size)))


@pytest.mark.parametrize(
    "given",
    [
        tensors((2, 2)),
        tensors((2, 3), [1, 0]),
        tensors((1, 4)),
    ],
)
def test_a_tensor_of_several_dimensions_is_not_flattened_into_a_list(given: pa.Array) -> None:
    with pytest.raises(
        InvalidArgument, match=r"'v' holds .*tensors of 2 dimensions; .*list of lists"
    ) as raised:
        convert.to_array(column(pa.list_(pa.float64())), given)
    assert raised.value.column == "v"


def test_a_tensor_of_one_dimension_is_a_list() -> None:
    assert convert.to_array(column(pa.list_(pa.float64())), tensors((4,))).to_pylist() == [[1.0] * 4]


def test_a_single_row_and_a_batch_refuse_the_same_integers() -> None:
    codec = RowCodec(TableSchema.from_arrow(pa.schema([("k", pa.int8()), ("v", pa.float32())]), ["k"]))
    for value in (2**24 + 1, np.uint64(2**64 - 1)):
        with pytest.raises(InvalidArgument, match="hold exactly"):
            codec.encode_row({"k": 1, "v": value}, SEED)
    key, encoded = codec.encode_row({"k": 1, "v": 2**25}, SEED)
    assert codec.decode_row(key, encoded, SEED)["v"] == 2**25


@pytest.mark.parametrize("unit", ["M", "Y"])
def test_durations_of_numpy_in_months_or_years_are_refused(unit: str) -> None:
    months = np.array([1, 2], f"m8[{unit}]")
    for kind, values in ((pa.duration("s"), months), (pa.list_(pa.duration("us")), [months, months])):
        with pytest.raises(
            InvalidArgument, match="whose lengths are not fixed; give values of type duration"
        ):
            convert.to_array(column(kind), values)
    weeks = convert.to_array(column(pa.duration("s")), np.array([1], "m8[W]"))
    assert weeks.to_pylist() == [timedelta(weeks=1)]
