"""Text becomes values without loss, and a frame that pandas writes as CSV is read back equal."""

from __future__ import annotations

import csv
import tempfile
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.pipelines.sources.check import check, fitting_batches
from ebla.pipelines.sources.source import infer, open_source
from ebla.pipelines.sources.types import Guess, from_text
from ebla.storage.schema import TableSchema

NOON = datetime.fromisoformat("2024-05-17T12:00")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.int8(), {"5": 5, "-128": -128, "+7": 7, "007": 7, " 3 ": 3, "5.0": 5, "NA": None}, ["128", "0x10", "5.5", "1e3", "1,000"]),
        (pa.int64(), {str(2**63 - 1): 2**63 - 1}, [str(2**63), "--5"]),
        (pa.float64(), {"1.5": 1.5, ".5": 0.5, "5.": 5.0, "1e3": 1000.0, "-inf": float("-inf")}, ["1e400", "1,5", "1_0", "0x1p3"]),
        (pa.float32(), {"0.5": 0.5}, ["1e39"]),
        (pa.bool_(), {"true": True, "FALSE": False, "1": True, "0": False}, ["yes", "2", "t"]),
        (pa.string(), {"NA": "NA", " x ": " x ", "": ""}, []),
        (pa.date32(), {"2024-05-17": date(2024, 5, 17), "2024-05-17 00:00:00": date(2024, 5, 17)}, ["2024-13-01", "17.05.2024", "2024-05-17 01:00"]),
        (pa.timestamp("us"), {"2024-05-17 12:00": NOON, "2024-05-17T12:00:00.000000000": NOON}, ["2024-05-17 12:00:00Z", "2024-05-17 12:00:00.1234567", "12:00"]),
        (pa.timestamp("s", "UTC"), {"2024-05-17 14:00:00+02:00": NOON.replace(tzinfo=timezone.utc), "2024-05-17T12:00:00.000Z": NOON.replace(tzinfo=timezone.utc)}, ["2024-05-17 12:00:00", "2024-05-17 12:00:00.5Z"]),
        (pa.decimal128(5, 2), {"1.50": Decimal("1.50"), "999.99": Decimal("999.99"), "1e2": Decimal("100.00")}, ["1.505", "1000", "inf"]),
        (pa.decimal128(38, 18), {"1.5": Decimal("1.5"), "-1e19": Decimal("-1e19")}, ["4e20", "400000000000000000000", "1e60"]),
        (pa.binary(), {"0x00ff": b"\x00\xff", "0x": b""}, ["00ff", "0xf"]),
        (pa.time64("us"), {"12:30:15.25": time(12, 30, 15, 250_000)}, ["25:00", "noon"]),
    ],
)  # fmt: skip
def test_text_fits_a_type_exactly_or_is_marked(
    kind: pa.DataType, good: dict[str, Any], bad: list[str]
) -> None:
    mixed = [text for pair in zip(good, [*bad, *[None] * len(good)], strict=False) for text in pair] + bad
    found = from_text(pa.array(mixed, pa.string()), kind)
    assert found.values.type == kind
    for text, value, wrong in zip(mixed, found.values.to_pylist(), found.bad.tolist(), strict=True):
        assert wrong == (text in bad), text
        assert value == (good.get(text) if text is not None and not wrong else None), text


def test_json_text_has_base64_for_bytes_and_no_words_for_null() -> None:
    found = from_text(pa.array(["AP8=", "*", None]), pa.binary(), json=True)
    assert (found.values.to_pylist(), found.bad.tolist()) == ([b"\x00\xff", None, None], [False, True, False])
    found = from_text(pa.array(["NA", "5"]), pa.int64(), json=True)
    assert found.bad.tolist() == [True, False]
    found = from_text(pa.array(["[1, 2]", "[1, x"]), pa.list_(pa.int8()), json=True)
    assert (found.values.to_pylist(), found.bad.tolist()) == ([[1, 2], None], [False, True])


@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.list_(pa.int64()), {"[1, 2.0, null]": [1, 2, None], "[]": [], "null": None}, ["[1.9]", "[9223372036854775808]", "[true]", "1", "[[1]]", "[1"]),
        (pa.list_(pa.uint64()), {"[18446744073709551615]": [2**64 - 1]}, ["[-1]"]),
        (pa.list_(pa.float32()), {'[0.5, 1e3, "Infinity"]': [0.5, 1000.0, float("inf")]}, ["[1e39]", "[16777217]"]),
        (pa.list_(pa.float64()), {"[9007199254740992]": [2.0**53]}, ["[9007199254740993]", '["x"]', "[1e400]"]),
        (pa.list_(pa.string()), {'["1", "NA"]': ["1", "NA"]}, ["[1]", "[true]", '[{"a": 1}]']),
        (pa.list_(pa.binary()), {'["/w==", ""]': [b"\xff", b""]}, ['["*"]', "[1]"]),
        (pa.list_(pa.bool_()), {"[true, false]": [True, False]}, ["[2]", "[0.5]"]),
        (pa.list_(pa.decimal128(5, 2)), {'[1.25, "2.00", 3]': [Decimal("1.25"), Decimal(2), Decimal(3)]}, ["[1.255]", "[1000]"]),
        (pa.list_(pa.timestamp("us")), {'["2024-05-17T12:00:00"]': [NOON]}, ["[0]", '["2024-05-17T12:00:00Z"]', '["2024-05-17T12:00:00.0000001"]']),
        (pa.list_(pa.date32()), {'["2024-05-17"]': [date(2024, 5, 17)]}, ["[0]", '["17.05.2024"]']),
        (pa.list_(pa.time64("us")), {'["05:30:00.25"]': [time(5, 30, 0, 250_000)]}, ["[0]", '["25:00"]']),
        (pa.list_(pa.duration("ms")), {'["PT1.5S", 7]': [timedelta(seconds=1.5), timedelta(milliseconds=7)]}, ['["PT0.0001S"]', "[0.5]"]),
        (pa.struct([("x", pa.int64())]), {'{"x": 1}': {"x": 1}, "{}": {"x": None}}, ['{"x": 1.7}', '{"x": 1, "z": 2}', "[1]", '"x"']),
        (pa.struct([("d", pa.list_(pa.date32()))]), {'{"d": ["2024-05-17"]}': {"d": [date(2024, 5, 17)]}}, ['{"d": [1]}', '{"d": 1}']),
        (pa.map_(pa.string(), pa.int8()), {'{"a": 1}': [("a", 1)], '[["a", 1]]': [("a", 1)]}, ['{"a": 1.7}', '[["a"]]', '{"a": 128}']),
        (pa.map_(pa.int8(), pa.date32()), {'{"7": "2024-05-17"}': [(7, date(2024, 5, 17))]}, ['{"x": null}', "[[null, null]]"]),
    ],
)  # fmt: skip
def test_values_inside_of_json_fit_exactly_or_mark_their_row(
    kind: pa.DataType, good: dict[str, Any], bad: list[str], json: bool
) -> None:
    texts = [*good, *bad, "[" * 100_000]
    found = from_text(pa.array(texts, pa.string()), kind, json=json)
    assert dict(zip(texts, found.values.to_pylist(), strict=True)) == good | dict.fromkeys(texts[len(good) :])
    assert [text for text, wrong in zip(texts, found.bad.tolist(), strict=True) if wrong] == texts[
        len(good) :
    ]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("P1D", "s", 86_400),
        ("-PT86399.999999S", "us", -86_399_999_999),
        ("P0DT0H0M0.000000001S", "ns", 1),
        ("P-1DT23H59M59.999999999S", "ns", -1),
        ("P1W2DT3H4M5S", "s", 788_645),
        ("PT90S", "ms", 90_000),
        ("P106751991D", "s", 106_751_991 * 86_400),
        ("90", "ms", 90),
        ("PT0.0000000001S", "ns", None),
        ("PT0.5S", "s", None),
        ("P1Y", "s", None),
        ("P1M", "s", None),
        ("P", "s", None),
        ("PT", "s", None),
        ("P300000DT0S", "ns", None),
    ],
)  # fmt: skip
def test_a_duration_is_a_number_of_units_or_iso_8601(text: str, unit: str, value: int | None) -> None:
    found = from_text(pa.array([text]), pa.duration(unit))
    assert found.values.cast(pa.int64()).to_pylist() == [value]
    assert found.bad.tolist() == [value is None]


def test_a_whole_number_is_not_rounded_to_a_float() -> None:
    texts = [
        "9007199254740993",
        "9007199254740992",
        "-9007199254740993",
        "9007199254740993.5",
        "1152921504606847000",
        "1152921504606846976",
    ]
    assert from_text(pa.array(texts), pa.float64()).bad.tolist() == [True, False, True, False, False, False]
    texts = ["16777217", "16777216", "+16777217", "16777217.5", "123456790", "123456789"]
    assert from_text(pa.array(texts), pa.float32()).bad.tolist() == [True, False, True, False, False, True]


def test_json_columns_keep_their_text() -> None:
    found = from_text(pa.array(["null", "", " 1", None]), pa.json_(), json=False)
    assert found.values.to_pylist() == ["null", "", " 1", None]


def test_a_decimal_comma_is_a_point_and_a_point_is_none() -> None:
    found = from_text(pa.array(["1,5", "1.5", "7"]), pa.float64(), decimal=",")
    assert (found.values.to_pylist(), found.bad.tolist()) == ([1.5, None, 7.0], [False, True, False])


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", None, "-5"], "int64"),
        (["1", "NA", "-5"], "int64"),
        (["1", "2.5"], "double"),
        (["1e5", "nan"], "double"),
        (["007", "8"], "string"),
        (["+49"], "string"),
        (["12345678901234567890"], "string"),
        (["1234567890123456789", "0.5"], "string"),  # a double would lose digits
        (["1,234"], "string"),
        (["True", "false"], "bool"),
        (["True", "1"], "string"),
        (["2024-05-17"], "date32[day]"),
        (["2024-05-17", "2024-05-17 12:30"], "timestamp[us]"),
        (["2024-05-17 12:30:15.123456789"], "timestamp[ns]"),
        (["2024-05-17 12:30:15+00:00", "2024-05-17T12:30:15Z"], "timestamp[us, tz=UTC]"),
        (["2024-05-17 12:30:15+00:00", "2024-05-17T12:30:15"], "string"),
        (["17.05.2024"], "string"),
        (["2024-02-30"], "string"),
        ([None, None], "string"),
        (["x", "1"], "string"),
        (["1"] * 70 + ["x"], "string"),  # after the rows that are tried first
        (["1"] * 70 + ["2.5"], "double"),
        (["1"] * 70 + ["1234567890123456789", "0.5"], "string"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("together", [True, False])
def test_the_type_of_text_is_one_that_loses_nothing(
    texts: list[str | None], kind: str, together: bool
) -> None:
    guess = Guess()
    for part in [texts] if together else [[text] for text in texts]:
        guess.see(pa.array(part, pa.string()))
    assert str(guess.found()) == kind


# -- pandas --------------------------------------------------------------------------------------------------

# pandas writes None and "" alike, and does not quote a carriage return.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), min_size=1, max_size=12)
MOMENTS = st.datetimes(datetime.fromisoformat("1700-01-01"), datetime.fromisoformat("2250-01-01"))
COLUMNS = {
    "text": (pa.string(), TEXT),
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates(date(1, 1, 1))),
    "wall": (pa.timestamp("us"), MOMENTS),
    "at": (pa.timestamp("us", "UTC"), MOMENTS.map(lambda at: at.replace(tzinfo=timezone.utc))),
    "price": (pa.decimal128(12, 3), st.decimals(-(10**8), 10**8, places=3)),
}  # fmt: skip
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), *((name, kind) for name, (kind, _) in COLUMNS.items())]
)
FRAMES = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, values) in COLUMNS.items()}), max_size=8
)


@settings(max_examples=60, deadline=None)
@given(
    FRAMES,
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.booleans(),
)
def test_a_frame_that_pandas_writes_is_read_back_equal(
    rows: list[dict[str, Any]], sep: str, encoding: str, compressed: bool
) -> None:
    table = pa.Table.from_pylist([{"id": n, **row} for n, row in enumerate(rows)], SCHEMA)
    frame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.int8(): pd.Int8Dtype()}.get)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "frame.csv"
        frame.to_csv(
            path, index=False, sep=sep, encoding=encoding, compression="gzip" if compressed else None
        )
        source = open_source(str(path), None, {"sep": sep})
        schema = TableSchema.from_arrow(SCHEMA, ["id"])
        assert check(source, schema).unfit_rows == ()
        batches = [batch.cast(SCHEMA) for batch in fitting_batches(source, schema)]
        read = pa.Table.from_batches(batches, SCHEMA)
    assert read.equals(table)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(TEXT, TEXT, st.floats(allow_nan=False)), min_size=1, max_size=6),
    st.sampled_from(",;\t|"),
)
def test_the_separator_is_recognised_beside_any_text(rows: list[tuple[str, str, float]], sep: str) -> None:
    """Every value is quoted, as by the most careful writers: then no text looks like a separator."""
    frame = pd.DataFrame(rows, columns=["name", "other", "x"])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "frame.csv"
        frame.to_csv(path, index=False, sep=sep, quoting=csv.QUOTE_ALL)
        source, types = infer(open_source(str(path)))
    assert source.facts.separator == sep
    assert types.names == ["name", "other", "x"]


@pytest.mark.parametrize(
    ("parts", "odd"),
    [
        ([["1", "2", "2,5", "x", "y"]], ("x", "double")),
        ([["1"] * 100, ["2", "3", "4", "x"]], ("x", "int64")),
        ([["x", "1", "2"]], ("x", "int64")),
        ([["2024-05-17", "2024-05-18", "soon"]], ("soon", "date32[day]")),
        ([["1,5", "2,5", "3.5"]], ("3.5", "double")),
        ([["1"] * 100 + ["9223372036854775808"]], ("9223372036854775808", "int64")),
        ([["1"] * 100, ["2", "99999999999999999999"]], ("99999999999999999999", "int64")),
        ([["123456789012345678"] * 3, ["1,5"]], ("1,5", "int64")),
        ([["1,5"] * 3, ["1e999"]], ("1e999", "double")),
        ([["1,5"] * 3, ["12345678901234567"]], ("12345678901234567", "double")),
        ([["2024-05-17"] * 3 + ["2024-02-30"]], ("2024-02-30", "date32[day]")),
        ([["a", "b", "1"]], None),
        ([["1", "2,5"]], None),
    ],
)
def test_the_first_value_of_another_type_than_most_is_known(
    parts: list[list[str]], odd: tuple[str, str] | None
) -> None:
    guess = Guess(",")
    for part in parts:
        guess.see(pa.array(part))
    found = None if guess.odd is None else (guess.odd[0], str(guess.odd[1]))
    assert found == odd
