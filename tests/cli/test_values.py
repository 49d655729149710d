"""Values as text: what a person sees can be written back, and null, empty and odd texts look different."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.cli.frame.problems import Usage
from ebla.cli.frame.types import parse_type
from ebla.cli.frame.values import from_text
from ebla.show.values import pairs, text, word
from ebla.storage.columns import Column
from ebla.storage.schema import TableSchema
from tests.pipelines.test_exports import COLUMNS, TYPES

NOON = datetime(2013, 7, 4, 12, 0, 0, 250_000, tzinfo=timezone.utc)
VALUES: list[tuple[str, Any, str]] = [
    ("int64", -3, "-3"),
    ("uint8", 255, "255"),
    ("double", 0.1, "0.1"),
    ("double", float("inf"), "Infinity"),
    ("bool", True, "true"),
    ("string", "null", "null"),
    ("binary", b"\x00\xff", "0x00ff"),
    ("date", date(2013, 1, 31), "2013-01-31"),
    ("timestamp[us,UTC]", NOON, "2013-07-04T12:00:00.250000Z"),
    ("timestamp[us]", NOON.replace(tzinfo=None), "2013-07-04T12:00:00.250000"),
    ("time[us]", time(5, 30), "05:30:00"),
    ("duration[us]", timedelta(hours=1, microseconds=5), "PT3600.000005S"),
    ("duration[us]", timedelta(days=-2), "-P2D"),
    ("decimal(10,2)", Decimal("19.90"), "19.90"),
    ("json", '{"a": 1}', '{"a": 1}'),
    ("list<string>", ["a", None, "b, c"], '["a",null,"b, c"]'),
    ("list<binary>", [b"\x00\xff"], '["AP8="]'),
    ("list<bool>", [True, False], "[true,false]"),
    ("map<string, int64>", [("a", 1)], '[["a",1]]'),
    (
        "struct<x: double, at: timestamp[us,UTC]>",
        {"x": 0.5, "at": NOON},
        '{"x":0.5,"at":"2013-07-04T12:00:00.250000Z"}',
    ),
]


def column(kind: str) -> Column:
    return Column("c", nullable=True, **parse_type("c", kind))


@pytest.mark.parametrize(("kind", "value", "shown"), VALUES)
def test_a_shown_value_can_be_written_back(kind: str, value: Any, shown: str) -> None:
    assert text(value) == shown
    assert from_text(column(kind), shown) == value


@pytest.mark.parametrize("name", COLUMNS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_value_of_a_column_can_be_written_back_as_it_is_shown(name: str, data: st.DataObject) -> None:
    kind, values = COLUMNS[name]
    value = data.draw(values)
    schema = TableSchema.from_arrow(pa.schema([TYPES["id"], pa.field("c", kind)]), ["id"])
    written = from_text(schema.column("c"), text(value))
    storage = pa.string() if isinstance(kind, pa.JsonType) else kind
    # As text: NaN is equal to NaN, and -0.0 is not 0.0.
    assert str(pa.array([written], storage).to_pylist()) == str(pa.array([value], storage).to_pylist())


@pytest.mark.parametrize(("kind", "_value", "_shown"), VALUES)
def test_the_example_in_a_refusal_is_a_value_of_the_column(kind: str, _value: Any, _shown: str) -> None:
    if kind in ("string", "json", "binary"):
        return  # which take every text
    with pytest.raises(Usage) as refused:
        from_text(column(kind), "{?")
    example = refused.value.message.partition("write for example ")[2]
    assert from_text(column(kind), example) is not None


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("double", "1e400"),
        ("double", "-1e400"),
        ("float", "1e400"),
        ("list<double>", "[1e400]"),
        ("struct<x: double>", '{"x": -1e400}'),
    ],
)
def test_a_number_beyond_every_float_is_refused_instead_of_infinity(kind: str, written: str) -> None:
    with pytest.raises(Usage, match="is not a value for column 'c'"):
        from_text(column(kind), written)


@pytest.mark.parametrize(
    ("kind", "written", "remedy"),
    [
        ("struct<x: int64>", '{"x": 1, "x": 2}', "remove one$"),
        ("map<string, int64>", '{"x": 1, "x": 2}', r"as \[\[\"x\", 1\], \[\"x\", 2\]\]$"),
        ("list<struct<x: int64>>", '[{"x": 1}, {"x": 1, "x": 1}]', "remove one$"),
    ],
)
def test_an_object_with_a_key_twice_is_refused(kind: str, written: str, remedy: str) -> None:
    with pytest.raises(Usage, match=f"for column 'c' of type .* has the key 'x' twice; .*{remedy}"):
        from_text(column(kind), written)
    pairs_of_map = from_text(column("map<string, int64>"), '[["x", 1], ["x", 2]]')
    assert pairs_of_map == [("x", 1), ("x", 2)]


@pytest.mark.parametrize(
    ("written", "offsets"),
    [
        ("2020-03-29T02:30", ("+01:00", "+02:00")),  # skipped: 02:00 is followed by 03:00
        ("2020-10-25T02:30", ("+02:00", "+01:00")),  # at the end of the summer it is there twice
    ],
)
def test_a_timestamp_that_its_zone_skips_or_has_twice_needs_an_offset(
    written: str, offsets: tuple[str, str]
) -> None:
    zoned = column("timestamp[us,Europe/Zurich]")
    first, second = (f"{written}:00{offset}" for offset in offsets)
    with pytest.raises(Usage, match=re.escape(f"write it with an offset, as {first} or {second}")):
        from_text(zoned, written)
    assert from_text(zoned, first).isoformat() == first
    assert from_text(zoned, "2020-03-29T03:00").isoformat() == "2020-03-29T03:00:00+02:00"
    assert from_text(column("timestamp[us]"), written).isoformat() == f"{written}:00"


@pytest.mark.parametrize("written", ["inf", "-inf", "Infinity", "+INF"])
def test_infinity_is_written_as_a_word(written: str) -> None:
    assert from_text(column("double"), written) == float(written)
    assert from_text(column("list<double>"), f'["{written}"]') == [float(written)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "null"),
        ("null", '"null"'),
        ("", '""'),
        (" x", '" x"'),
        ("a\nb", '"a\\nb"'),
        ('"x"', '"\\"x\\""'),
        ("Smith, John", "Smith, John"),
        ("naïve", "naïve"),
    ],
)
def test_null_and_texts_that_look_like_something_else_are_told_apart(value: str | None, shown: str) -> None:
    assert word(value) == shown


def test_pairs_are_words_of_a_command_line() -> None:
    assert pairs({"carrier": "UA", "name": "Ann Lee", "note": None}) == 'carrier=UA name="Ann Lee" note=null'
