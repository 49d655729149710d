"""Values that Arrow or Python cannot handle: every path refuses them with the column's name."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pytest

from ebla.storage.errors import InvalidArgument
from ebla.storage.rows import python_values
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column, TableSchema
from tests.storage.test_rows import SEED, schema

MONEY = schema(
    Column("k", "int64", False),
    Column("money", "decimal", precision=10, scale=2),
    Column("n", "int64"),
    Column("d", "double"),
)
WILD = [
    "1e-999999999",
    "1e999999999",
    "1e-10000000",
    "1e-77",
    "1e-400",
    "1e40",
    "0." + "0" * 200 + "1",
    "123456789.00",
    "NaN",
    "sNaN",
    "Infinity",
    "-Infinity",
]
FORMS = {
    "a list of dicts": lambda column, value: [{"k": 1, column: None}, {"k": 2, column: value}],
    "a dict of lists": lambda column, value: {"k": [1, 2], column: [None, value]},
    "an object column": lambda column, value: pd.DataFrame(
        {"k": [1, 2], column: pd.Series([None, value], dtype=object)}
    ),
    "a column of categories": lambda column, value: pd.DataFrame(
        {"k": [1, 2], column: pd.Categorical([None, value], categories=pd.Index([value], dtype=object))}
    ),
}


# -- decimals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (text, form)
        for form in FORMS
        for text in WILD
        if form != "a column of categories" or "NaN" not in text
    ],
)  # pandas has no category NaN
def test_a_decimal_out_of_range_is_refused_in_every_form_of_rows(text: str, form: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"'money'.*Decimal of 10 digits, 2 .*such as Decimal"
    ) as raised:
        RowCodec(MONEY).arrow(FORMS[form]("money", Decimal(text)))
    assert (raised.value.column, raised.value.row) == ("money", 1)


@pytest.mark.parametrize("text", WILD)
def test_a_decimal_out_of_range_is_refused_in_a_single_row_and_as_a_key(text: str) -> None:
    with pytest.raises(InvalidArgument, match="'money'"):
        RowCodec(MONEY).encode_row({"k": 1, "money": Decimal(text)}, SEED)
    keyed = RowCodec(schema(Column("k", "decimal", False, precision=10, scale=2)))
    with pytest.raises(InvalidArgument, match="'k'"):
        keyed.encode_key({"k": Decimal(text)})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("column", ["n", "d"])
def test_a_decimal_in_a_column_of_another_type_never_reaches_arrow(column: str, form: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'{column}'"):
        RowCodec(MONEY).arrow(FORMS[form](column, Decimal("1e-999999999")))


@pytest.mark.parametrize("box", [list, tuple, lambda values: {"x": values[0]}, pd.Series])
def test_a_decimal_inside_a_container_never_reaches_arrow(box: Any) -> None:
    value = box([Decimal("1e-999999999")])
    with pytest.raises(InvalidArgument, match="'money'"):
        RowCodec(MONEY).arrow(FORMS["an object column"]("money", value))


@pytest.mark.parametrize(
    ("text", "stored"),
    [("1.5", "1.50"), ("1." + "0" * 130, "1.00"), ("0e-1000", "0.00"), ("0e50", "0.00"), ("1E2", "100.00")],
)
@pytest.mark.parametrize("form", ["a list of dicts", "an object column"])
def test_a_decimal_that_fits_exactly_is_stored_in_every_notation(text: str, stored: str, form: str) -> None:
    codec = RowCodec(MONEY)
    batch = codec.arrow(FORMS[form]("money", Decimal(text)))
    assert batch.column("money").to_pylist() == [None, Decimal(stored)]
    pair = codec.encode_row({"k": 2, "money": Decimal(text)}, SEED)
    assert str(codec.decode_row(*pair, SEED)["money"]) == stored


def test_missing_values_of_pandas_are_null_beside_decimals() -> None:
    values = pd.Series([Decimal("1.25"), None, float("nan"), pd.NA, pd.NaT], dtype=object)
    batch = RowCodec(MONEY).arrow(pd.DataFrame({"k": range(5), "money": values}))
    assert batch.column("money").to_pylist() == [Decimal("1.25"), None, None, None, None]


# -- time zones ----------------------------------------------------------------------------------------------

UNKNOWN = [
    "Mars/Base", "+99:99", "+24:00", "+05:60", "+0530", "+5:30", "+05", "local", "localtime", "utc+1", "", "Europe",
    "../etc/passwd", "/etc/localtime", "a\x00b", "x" * 5000, "posix/UTC", "right/UTC", "Factory", "+\u0660\u0665:\u0663\u0660", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("zone", UNKNOWN)
def test_a_received_schema_with_an_unknown_time_zone_is_refused(zone: str) -> None:
    table = TableSchema(
        (Column("k", "int64", False), Column("at", "timestamp", unit="us", zone=zone)), ("k",)
    )
    with pytest.raises(InvalidArgument, match=r"'at': time zone .*not known here; give 'UTC'") as raised:
        table.validate()
    assert raised.value.column == "at"


@pytest.mark.parametrize("zone", ["Mars/Base", "+99:99", "local"])
def test_making_a_schema_with_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidArgument, match=r"'at': time zone"):
        TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", zone))]), ["k"])


@pytest.mark.parametrize(
    "zone", [None, "UTC", "Europe/Zurich", "America/Argentina/Ushuaia", "EST5EDT", "Etc/GMT+5", "+05:30", "-23:59"]
)  # fmt: skip
@pytest.mark.parametrize("unit", ["s", "ns"])
def test_every_accepted_zone_can_be_written_and_read(zone: str | None, unit: str) -> None:
    given = pa.schema([("k", pa.int64()), ("at", pa.timestamp(unit, zone))])
    codec = RowCodec(TableSchema.from_arrow(given, ["k"]))
    at = datetime(2024, 5, 17, 12, tzinfo=timezone.utc if zone else None)
    assert codec.decode_row(*codec.encode_row({"k": 1, "at": at}, SEED), SEED)["at"] == at


def test_rows_of_a_zone_that_became_unknown_can_be_stored_and_read_as_arrow() -> None:
    """A server must start with such a table: only Python values need the zone's rules."""
    table = schema(Column("k", "int64", False), Column("at", "timestamp", unit="us", zone="Mars/Base"))
    codec = RowCodec(table)
    pair = codec.encode_row({"k": 1, "at": datetime(2024, 5, 17, tzinfo=timezone.utc)}, SEED)
    back = codec.decode([pair[0] + pair[1]], SEED)
    assert back.column("at").cast(pa.int64()).to_pylist() == [1_715_904_000_000_000]
    with pytest.raises(InvalidArgument, match=r"'at'.*'Mars/Base', which is not known here; install tzdata"):
        codec.decode_row(*pair, SEED)
    with pytest.raises(InvalidArgument, match=r"'at'.*as Arrow"):
        python_values.rows(back)


# -- schemas -------------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("k", pa.int64())])


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        (None, ["k"], "schema is a pyarrow.Schema.*NoneType"),
        ({"k": "int64"}, ["k"], "schema is a pyarrow.Schema.*dict"),
        (SCHEMA, None, "primary_key is a list.*None"),
        (SCHEMA, "k", "primary_key is a list"),
        (SCHEMA, [["k"]], "primary_key is a list"),
        (SCHEMA, ["\ud800"], "no column"),
    ],
)
def test_an_invalid_schema_or_key_is_refused_by_name(given: Any, key: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        TableSchema.from_arrow(given, key)


def test_a_column_name_that_cannot_be_sent_is_refused() -> None:
    table = TableSchema((Column("k", "int64", False), Column("\ud800", "int8")), ("k",))
    with pytest.raises(UnicodeEncodeError):
        msgspec.msgpack.encode(table)
    with pytest.raises(InvalidArgument, match="not valid Unicode"):
        table.validate()


# -- times and texts -----------------------------------------------------------------------------------------

TIMES = schema(
    Column("k", "int64", False),
    Column("s", "string"),
    Column("b", "binary"),
    Column("day", "date"),
    Column("flag", "bool"),
    Column("n", "int8"),
    Column("f", "double"),
    Column("utc", "timestamp", unit="us", zone="UTC"),
    Column("zoned", "timestamp", unit="ms", zone="Europe/Zurich"),
    Column("local", "timestamp", unit="s"),
    Column("fine", "timestamp", unit="ns"),
    Column("money", "decimal", precision=5, scale=2),
)


class NoOffset(tzinfo):
    """A zone without an offset: Python treats such a time as one without a zone."""

    def utcoffset(self, when: datetime | None) -> timedelta | None:
        return None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("zoned", datetime.max.replace(tzinfo=timezone.utc)),
        ("utc", datetime(2024, 5, 17, tzinfo=NoOffset())),
        ("n", 10**5000),
        ("n", -(10**5000)),
        ("f", 10**5000),
        ("money", 10**5000),
        ("s", "\ud800"),
        ("s", 10**5000),
    ],
    ids=lambda part: part if isinstance(part, str) and part.isascii() else type(part).__name__,
)
def test_a_value_that_cannot_be_shown_is_refused_with_its_column(column: str, value: Any) -> None:
    codec = RowCodec(TIMES)
    with pytest.raises(InvalidArgument) as raised:
        codec.encode_row({"k": 1, column: value}, SEED)
    assert raised.value.column == column and len(str(raised.value)) < 700
    with pytest.raises(InvalidArgument) as raised:
        codec.arrow([{"k": 1}, {"k": 2, column: value}])
    assert (raised.value.column, raised.value.row) == (column, 1)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("utc", r"give datetime.datetime values with a time zone, such as datetime.datetime.now\(datetime.timezone.utc\)"),
        ("zoned", r"with a time zone, such as .*250000, tzinfo=datetime.timezone.utc\)"),
        ("local", r"without a time zone, such as datetime.datetime\(2024, 5, 17, 12, 30, 15\)"),
        ("fine", "pandas.Timestamp"),
        ("day", r"such as datetime.date\(2024, 5, 17\)"),
        ("s", "such as 'abc'"),
        ("b", "such as b'abc'"),
        ("flag", "give True or False"),
        ("n", "from -128 to 127, such as 42"),
        ("f", "such as 1.5"),
        ("money", r"such as Decimal\('1.23'\)"),
    ],
)  # fmt: skip
def test_a_refusal_shows_an_example_of_a_valid_value(column: str, words: str) -> None:
    for value in (object(), complex(1)):
        with pytest.raises(InvalidArgument, match=words):
            RowCodec(TIMES).encode_row({"k": 1, column: value}, SEED)


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (1, 1), (38, 38), (38, 0), (5, 2), (10, 9)])
def test_the_example_of_a_decimal_fits_its_column(precision: int, scale: int) -> None:
    column = Column("money", "decimal", precision=precision, scale=scale)
    example = Decimal(python_values.remedy(column).split("'")[1])
    assert python_values.exact_decimals(column, [example])[1] is None


@pytest.mark.parametrize(
    ("column", "raw"), [("day", 2**31 - 1), ("local", 2**62), ("zoned", 2**62), ("zoned", 253_402_300_799_000)]
)  # fmt: skip
def test_a_stored_time_beyond_python_is_read_as_arrow_only(column: str, raw: int) -> None:
    kind = TIMES.column(column).arrow_type()
    width = pa.int32() if column == "day" else pa.int64()
    codec = RowCodec(TIMES)
    batch = codec.arrow(pa.table({"k": [1], column: pa.array([raw], width).view(kind)}))
    (key,), (value,) = codec.encode(batch, SEED)
    back = codec.decode([key + value], SEED)
    assert back.equals(batch)
    for columns in (None, [column]):
        with pytest.raises(InvalidArgument, match=f"'{column}'.*read it as Arrow") as raised:
            codec.decode_row(key, value, SEED, columns)
        assert raised.value.column == column
    with pytest.raises(InvalidArgument, match=f"'{column}'.*to_arrow") as raised:
        python_values.rows(back)
    assert raised.value.column == column


@pytest.mark.parametrize("key", [None, "a", 5, ["k"], b"k", {"k"}])
def test_a_key_that_is_no_dict_is_refused_with_the_right_form(key: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"a key is a dict of column to value, \{'k': ...\}, not"):
        RowCodec(TIMES).encode_key(key)
