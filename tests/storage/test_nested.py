"""Lists, structs, maps, times, durations, unsigned integers and JSON: their bytes, their conversions, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.storage.arrow_types import column_of
from ebla.storage.columns import FIELDS_MAX, NESTING_MAX, check_type
from ebla.storage.errors import Corruption, InvalidArgument, OverLimit
from ebla.storage.rows import checksum, nested, python_values
from ebla.storage.rows.convert import to_array
from ebla.storage.rows.keys import KeyCodec
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column, TableSchema
from tests.storage.tables import array_values, nested_columns
from tests.storage.test_rows import SEED, joined

TYPES = pa.schema(
    [
        pa.field("k", pa.int64(), False),
        ("u", pa.uint64()),
        ("at", pa.time32("ms")),
        ("fine", pa.time64("ns")),
        ("took", pa.duration("s")),
        ("exact", pa.duration("ns")),
        ("note", pa.json_(pa.string())),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([pa.field("x", pa.float64(), False), ("y", pa.int8())])),
        ("m", pa.map_(pa.string(), pa.decimal128(5, 2))),
        ("deep", pa.list_(pa.struct([("days", pa.list_(pa.date32()))]))),
    ]
)
SCHEMA = TableSchema.from_arrow(TYPES, ["k"])
ROW = {
    "k": 1,
    "u": (1 << 64) - 1,
    "at": time(23, 59, 59, 999000),
    "fine": time(1, 2, 3, 4),
    "took": timedelta(days=-1, seconds=3),
    "exact": pd.Timedelta(5, unit="ns"),
    "note": '{"a": [1]}',
    "tags": ["x", None, ""],
    "point": {"x": 0.5, "y": None},
    "m": [("a", Decimal("1.25")), ("b", None)],
    "deep": [{"days": [date(2024, 5, 17)]}, None, {"days": None}],
}


def column(name: str) -> Column:
    return SCHEMA.column(name)


def test_a_schema_of_every_type_is_kept_exactly() -> None:
    assert SCHEMA.arrow().equals(TYPES)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(SCHEMA), type=TableSchema)
    sent.validate()
    assert sent == SCHEMA


def test_a_row_of_every_type_is_read_back_by_both_paths() -> None:
    codec = RowCodec(SCHEMA)
    pair = codec.encode_row(ROW, SEED)
    batch = codec.arrow([ROW, {"k": 2}])
    (key, _), (value, empty) = codec.encode(batch, SEED)
    assert pair == (key, value)
    assert codec.decode_row(*pair, SEED) == ROW
    assert python_values.rows(codec.decode(joined(codec, batch), SEED))[0] == ROW
    assert codec.decode(joined(codec, batch), SEED).equals(batch)
    assert len(empty) == codec.header.tail_bytes, "nulls take no bytes outside of the header"


# -- bytes ----------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_nested_arrays_are_read_back_and_equal_values_have_equal_bytes(data: st.DataObject) -> None:
    kind = data.draw(nested_columns(3))
    array = data.draw(array_values(kind, nullable=True))
    encoded = nested.to_binary(kind, array)
    null = np.array([not valid.as_py() for valid in array.is_valid()], np.bool_)
    back = nested.from_binary(kind, encoded, null)
    back.validate(full=True)
    assert same(kind, back, array)
    alone = [nested.to_binary(kind, array[place : place + 1])[0] for place in range(len(array))]
    assert alone == list(encoded), "a value's bytes do not depend on its neighbours or on the array's layout"
    plain = to_array(kind, array)
    assert same(kind, plain, array)


def same(kind: Column, one: pa.Array, other: pa.Array) -> bool:
    """For Arrow no NaN equals another one."""
    if one.equals(other):
        return True
    has_nan = "nan" in repr(other.to_pylist())  # `to_string` leaves out what is nested deeply
    return has_nan and list(nested.to_binary(kind, one)) == list(nested.to_binary(kind, other))


def test_the_bytes_of_nested_values_never_change() -> None:
    def bytes_of(kind: pa.DataType, value: Any) -> str:
        made = column_of(pa.field("c", kind))
        encoded: bytes = nested.to_binary(made, pa.array([value], kind))[0].as_py()
        return encoded.hex(" ")

    assert bytes_of(pa.list_(pa.int16()), [1, -1]) == "02 00 00 00 00 01 00 ff ff"
    assert bytes_of(pa.list_(pa.int16()), [None, 1, None]) == "03 00 00 00 01 05 01 00"
    assert bytes_of(pa.list_(pa.int16()), []) == "00 00 00 00 00"
    assert bytes_of(pa.list_(pa.field("item", pa.bool_(), False)), [True]) == "01 00 00 00 01"
    assert bytes_of(pa.struct([("a", pa.string()), ("b", pa.date32())]), {"a": "hi", "b": None}) == (
        "00 02 00 00 00 68 69 01 01"
    )
    assert bytes_of(pa.map_(pa.string(), pa.uint8()), [("x", 7), ("", None)]) == (
        "02 00 00 00 01 00 00 00 00 00 00 00 78 01 02 07"
    )
    assert bytes_of(pa.list_(pa.list_(pa.int8())), [[1], None, []]) == (
        "03 00 00 00 01 02 01 00 00 00 00 00 00 00 00 01"
    )


def test_the_bytes_of_keys_of_new_types_never_change_and_keep_their_order() -> None:
    columns = [Column("u", "uint16", False), Column("t", "time", False, unit="s")]
    columns += [Column("d", "duration", False, unit="ms")]
    codec = KeyCodec(columns)
    rows = [
        {"u": 0, "t": time(0), "d": timedelta(-1)},
        {"u": 1, "t": time(0, 0, 1), "d": timedelta(0)},
        {"u": 65535, "t": time(0), "d": timedelta(milliseconds=1)},
    ]
    keys = [codec.encode_row(row) for row in rows]
    assert keys[1].hex(" ") == "00 01 80 00 00 01 80 00 00 00 00 00 00 00"
    assert keys == sorted(keys)


@given(nested_columns(2), st.lists(st.binary(max_size=30), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_bytes_that_are_no_nested_values_are_refused_and_take_no_memory(
    kind: Column, garbage: list[bytes]
) -> None:
    for texts in (garbage, [b"\xff\xff\xff\xff" + each for each in garbage]):
        try:
            made = nested.from_binary(kind, pa.array(texts, pa.binary()), None)
        except ValueError:
            continue
        assert len(made) == len(texts)


def test_a_damaged_nested_value_is_corruption_on_both_paths() -> None:
    table = TableSchema((Column("k", "int8", False), column("tags")), ("k",))
    codec = RowCodec(table)
    body = b"\x09\x00\x00\x00\x00" + codec.header.packed.pack(b"\0", 5)
    key = codec.encode_key({"k": 1})
    value = checksum.seal(key, body, SEED)
    with pytest.raises(Corruption, match="'tags' of rows of p is not of this schema"):
        codec.decode([key + value], SEED, path="p")
    with pytest.raises(Corruption, match="not a row of this schema"):
        codec.decode_row(key, value, SEED)


# -- conversions ----------------------------------------------------------------------------------------------

LISTS = [["a", "b"], None, ["c"], []]


@pytest.mark.parametrize(
    "given",
    [
        pa.array(LISTS, pa.list_(pa.string())),
        pa.array([["z"], *LISTS], pa.large_list(pa.large_string()))[1:],
        pa.array(LISTS, pa.list_(pa.string_view())),
        pa.array(LISTS, pa.list_view(pa.string())),
        pa.chunked_array([pa.array(LISTS[:2]), pa.array(LISTS[2:], pa.list_(pa.string()))]),
        pa.ListArray.from_arrays(
            [0, 2, 2, 3, 3],
            pa.array(["a", "b", "c"]).dictionary_encode(),
            mask=pa.array([False, True, False, False]),
        ),
        pd.Series(LISTS, dtype=object),
        pd.Series([np.array(["a", "b"], object), float("nan"), ("c",), []], dtype=object),
    ],
    ids=["list", "large", "view items", "list view", "chunks", "dictionary items", "pandas", "numpy"],
)
def test_every_layout_of_a_list_makes_the_same_array(given: Any) -> None:
    assert to_array(column("tags"), given).equals(pa.array(LISTS, pa.list_(pa.string())))


def test_an_array_of_numpy_with_two_dimensions_is_a_list_of_its_rows() -> None:
    kind = column_of(pa.field("v", pa.list_(pa.list_(pa.float32()))))
    values = np.arange(12, dtype=np.float64).reshape(2, 3, 2)
    assert to_array(kind, values).to_pylist() == values.tolist()
    assert to_array(kind, [values[0], values[1]]).to_pylist() == values.tolist()
    flat = column_of(pa.field("v", pa.list_(pa.float32(), 2)))
    assert to_array(flat, pa.array([[1, 2], None], pa.list_(pa.float64(), 2))).to_pylist() == [[1, 2], None]


def test_a_struct_is_matched_by_name_and_a_missing_field_is_null() -> None:
    given = pa.array([{"y": 3, "x": 1}, None], pa.struct([("y", pa.int64()), ("x", pa.float32())]))
    assert to_array(column("point"), given).to_pylist() == [{"x": 1.0, "y": 3}, None]
    only = pa.array([{"x": 1.0}], pa.struct([("x", pa.float64())]))
    assert to_array(column("point"), only).to_pylist() == [{"x": 1.0, "y": None}]


def test_a_map_is_a_dict_or_a_list_of_pairs_and_keeps_its_order() -> None:
    made = to_array(column("m"), [{"b": 1, "a": None}, [("a", Decimal("0.5"))], None, {}])
    assert made.to_pylist() == [[("b", Decimal("1.00")), ("a", None)], [("a", Decimal("0.50"))], None, []]
    assert to_array(column("m"), made[1:]).equals(made[1:])


def test_durations_take_duckdbs_intervals_without_months() -> None:
    interval = pa.array([pa.MonthDayNano([0, 2, 10**9]), None], pa.month_day_nano_interval())
    assert to_array(column("took"), interval).to_pylist() == [timedelta(days=2, seconds=1), None]
    with pytest.raises(InvalidArgument, match=r"'took', row 1: .*timedelta \(without months\)"):
        to_array(column("took"), pa.array([None, pa.MonthDayNano([1, 0, 0])]))


def test_extension_types_are_taken_as_their_storage() -> None:
    blob = Column("blob", "binary")
    given = pa.array([b"0" * 16], pa.uuid())
    assert to_array(blob, given).to_pylist() == [b"0" * 16]
    assert to_array(Column("s", "string"), pa.array(["1"], pa.json_())).to_pylist() == ["1"]


UNFIT: list[tuple[str, Any, str]] = [
    ("u", -1, "give an int from 0 to 18446744073709551615"),
    ("u", 1 << 64, "give an int from 0"),
    ("u", 1.0, "an int of 64 bits, 0 or more"),
    ("at", time(1, 2, 3, 4), r"such as datetime.time\(12, 30, 15, 250000\)"),
    ("at", time(1, tzinfo=timezone.utc), "without a zone"),
    ("at", datetime(2024, 1, 1, tzinfo=timezone.utc), "a time without a zone"),
    ("at", 5, "a time without a zone"),
    ("took", timedelta(milliseconds=1), r"such as datetime.timedelta\(hours=1\)"),
    ("took", 5, "a timedelta"),
    ("took", pd.NaT, "a timedelta"),
    ("exact", timedelta(days=200_000), "a timedelta"),
    ("note", {"a": 1}, r"json.dumps\(value\)"),
    ("tags", "abc", "give a list of values"),
    ("tags", {"a"}, "give a list of values"),
    ("tags", np.array("x"), "give a list of values"),
    ("tags", ["x", 5], r"'tags\[\]', row 2: 5 is not a str"),
    ("tags", ["\ud800"], r"'tags\[\]', row 2"),
    ("point", [1], "give a dict of field to value"),
    ("point", {"x": 1, "z": 1}, "there is no field 'z'; the fields are x, y"),
    ("point", {"y": 1}, r"'point.x' may not be null, but row 2"),
    ("point", {"x": 1, "y": 300}, r"'point.y', row 2: 300"),
    ("m", [("a",)], "a list of pairs of key and value"),
    ("m", ["ab"], "a list of pairs of key and value"),
    ("m", {None: 1}, r"'m.key' may not be null, but row 2"),
    ("m", {"a": Decimal("1e-99")}, r"'m.value', row 2"),
    ("deep", [{"days": [date(2024, 1, 1), 7]}], r"'deep\[\].days\[\]', row 2: 7 is not a date"),
]


@pytest.mark.parametrize(("name", "value", "words"), UNFIT)
def test_a_value_that_does_not_fit_is_refused_with_field_and_row(name: str, value: Any, words: str) -> None:
    codec = RowCodec(SCHEMA)
    with pytest.raises(InvalidArgument, match=words) as raised:
        codec.arrow([{"k": 1}, {"k": 2, name: ROW[name]}, {"k": 3, name: value}])
    assert (raised.value.column, raised.value.row) == (name, 2)
    with pytest.raises(InvalidArgument) as raised:
        codec.encode_row({"k": 1, name: value}, SEED)
    assert raised.value.column == name


@pytest.mark.parametrize(
    ("name", "array", "row", "words"),
    [
        ("tags", pa.array([["a"], ["c"]]).cast(pa.list_(pa.binary())), None, r"'tags\[\]' holds"),
        ("tags", pa.array([["a"], [b"\xff"]], pa.list_(pa.binary())).view(pa.list_(pa.string())), None, "not valid Arrow"),
        ("tags", pa.array([1, 2]), None, "'tags' holds list<item: string>, not int64"),
        ("point", pa.array([{"x": 1.0}, {"x": None}]), 1, "'point.x' may not be null, but row 1"),
        ("point", pa.array([{"x": 1.0, "q": 1}] * 2), None, "no field 'q'"),
        ("point", pa.array([{"x": 1.0, "y": 1}, {"x": 1.0, "y": 300}]), 1, "'point.y', row 1"),
        ("m", pa.array([[("a", 1)], [("b", 10**6)]], pa.map_(pa.string(), pa.int64())), 1, "'m.value', row 1"),
        ("at", pa.array([0, 86_400_000], pa.int32()).view(pa.time32("ms")), 1, "a time is within one day"),
        ("at", pa.array([0, 1], pa.time64("us")), 1, "has 1 us that time32.ms. would lose"),
        ("took", pa.array([0, 1], pa.duration("ms")), 1, "1 ms has 1 ms that duration.s. would"),
        ("u", pa.array([0, -1]), 1, "'u', row 1"),
        ("note", pa.array([1, 2]), None, "'note' holds"),
    ],
)  # fmt: skip
def test_arrow_values_that_do_not_fit_are_refused(name: str, array: Any, row: int | None, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as raised:
        RowCodec(SCHEMA).arrow(pa.table({"k": [1, 2], name: array}))
    assert (raised.value.column, raised.value.row) == (name, row)


def test_times_that_python_lacks_are_read_as_arrow_only() -> None:
    codec = RowCodec(SCHEMA)
    fine = pa.array([1_001], pa.time64("ns"))
    far = pa.array([2**62], pa.duration("s"))
    batch = codec.arrow(pa.table({"k": [1], "fine": fine, "took": far}))
    (key,), (value,) = codec.encode(batch, SEED)
    back = codec.decode([key + value], SEED)
    assert back.equals(batch)
    for name in ("fine", "took"):
        with pytest.raises(InvalidArgument, match="read it as Arrow") as raised:
            codec.decode_row(key, value, SEED, [name])
        assert raised.value.column == name
        with pytest.raises(InvalidArgument, match="to_arrow"):
            python_values.rows(back.select([name]))
    listed = pa.table({"l": pa.array([[1_001]], pa.list_(pa.time64("ns")))})
    with pytest.raises(InvalidArgument, match=r"'l'.*to_arrow"):
        python_values.rows(listed)


# -- schemas --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.decimal256(60, 2), r"38 digits at most; cast it to decimal128\(38, s\), or to string"),
        (pa.dense_union([pa.field("a", pa.int8())]), "use a struct with one nullable field"),
        (pa.month_day_nano_interval(), "use duration"),
        (pa.null(), "name a type"),
        (pa.struct([]), "name one field at least"),
        (pa.float16(), "use float32"),
        (pa.date64(), "use date32"),
        (pa.binary(16), "use binary"),
        (pa.uuid(), r"extension type; use binary, which takes the same values"),
        (pa.fixed_shape_tensor(pa.int8(), [2]), r"extension type; use its storage type, fixed_size_list"),
        (pa.list_(pa.json_()), r"'c\[\]' has type .*JSON inside of another type; use string there"),
        (pa.struct([("a", pa.list_(pa.float16()))]), r"'c.a\[\]' has type halffloat"),
    ],
)
def test_a_type_that_is_not_stored_is_refused_with_reason_and_remedy(kind: pa.DataType, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as raised:
        column_of(pa.field("c", kind))
    assert raised.value.column == "c"


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.run_end_encoded(pa.int32(), pa.time32("s")), pa.time32("s")),
        (pa.large_list(pa.string_view()), pa.list_(pa.string())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.list_view(pa.dictionary(pa.int8(), pa.int64())), pa.list_(pa.int64())),
        (pa.decimal64(5, 2), pa.decimal128(5, 2)),
    ],
)
def test_an_encoding_is_stored_as_the_plain_type(kind: pa.DataType, stored: pa.DataType) -> None:
    assert column_of(pa.field("c", kind)).arrow_type() == stored


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.json_(), pa.struct([("a", pa.int8())])])
def test_a_type_without_order_is_refused_in_a_key(kind: pa.DataType) -> None:
    with pytest.raises(InvalidArgument, match="which has no order; use columns of plain types") as raised:
        TableSchema.from_arrow(pa.schema([("k", kind)]), ["k"])
    assert raised.value.column == "k"


def nest(depth: int) -> pa.DataType:
    kind: pa.DataType = pa.int8()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def test_nesting_and_fields_are_bounded() -> None:
    fields = pa.struct([(f"f{place}", pa.int8()) for place in range(FIELDS_MAX + 1)])
    made: list[Callable[[], object]] = [
        lambda: column_of(pa.field("c", nest(NESTING_MAX + 1))),
        lambda: TableSchema.from_arrow(pa.schema([("k", pa.int8()), ("c", fields)]), ["k"]),
    ]
    for attempt, limit in zip(made, ("NESTING_MAX", "FIELDS_MAX"), strict=True):
        with pytest.raises(OverLimit) as raised:
            attempt()
        assert (raised.value.limit, raised.value.column) == (limit, "c")
    many = tuple(Column("", "int8") for _ in range(FIELDS_MAX + 1))
    with pytest.raises(
        OverLimit
    ):  # before the names are compared with each other, which takes long for many fields
        check_type(Column("c", "struct", fields=many))
    kind = column_of(pa.field("c", nest(NESTING_MAX)))
    TableSchema((Column("k", "int8", False), kind), ("k",)).validate()


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Column("c", "list"), "the fields of a list are"),
        (Column("c", "list", fields=(Column("other", "int8"),)), "the fields of a list are"),
        (Column("c", "map", fields=(Column("key", "int8"), Column("value", "int8"))), "never null"),
        (Column("c", "struct"), "one field at least"),
        (Column("c", "struct", fields=(Column("a", "int8"), Column("a", "int8"))), "appears twice"),
        (Column("c", "struct", fields=(Column("", "int8"),)), "1 to 256 characters"),
        (Column("c", "struct", fields=(Column("\ud800", "int8"),)), "not valid Unicode"),
        (Column("c", "struct", fields=(Column("a\x1b", "int8"),)), r"'a\\x1b', with a control character"),
        (Column("c", "struct", fields=(Column("a", "json"),)), "use string there"),
        (Column("c", "list", fields=(Column("item", "nope"),)), r"'c.item': unknown type 'nope'"),
        (Column("c", "int8", fields=(Column("a", "int8"),)), "a int8 has no fields"),
        (Column("c", "time", unit="h"), "unit must be one of"),
        (Column("c", "duration"), "unit must be one of"),
    ],
)
def test_a_received_schema_with_an_invalid_type_is_refused(bad: Column, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as raised:
        TableSchema((Column("k", "int8", False), bad), ("k",)).validate()
    assert raised.value.column == "c"
