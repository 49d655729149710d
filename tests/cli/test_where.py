"""Conditions as text: their meaning, and the messages for mistakes."""

from __future__ import annotations

import re
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.cli.frame.problems import Usage
from ebla.cli.frame.where import parse
from ebla.storage.predicates import expressions
from ebla.storage.predicates.expressions import col
from ebla.storage.schema import TableSchema

ARROW = pa.schema(
    [
        pa.field("origin", pa.string(), False),
        pa.field("distance", pa.int32()),
        pa.field("speed", pa.float64()),
        pa.field("cancelled", pa.bool_()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "America/New_York")),
        pa.field("local", pa.timestamp("ms")),
        pa.field("fare", pa.decimal128(8, 2)),
        pa.field("raw", pa.binary()),
        pa.field("tail num", pa.string()),
    ]
)
SCHEMA = TableSchema.from_arrow(ARROW, ["origin"])


def means(expression: expressions.Expression) -> expressions.Expression:
    return expressions.bind(expression, SCHEMA)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("origin == 'JFK'", col("origin") == "JFK"),
        ("'JFK' != origin", col("origin") != "JFK"),
        ("500 < distance", col("distance") > 500),
        ("-1 <= distance", col("distance") >= -1),
        ("500 < distance <= 1000", (col("distance") > 500) & (col("distance") <= 1000)),
        ("origin == 'JFK' and distance > 500", (col("origin") == "JFK") & (col("distance") > 500)),
        ("origin == 'JFK' or not distance > 500", (col("origin") == "JFK") | ~(col("distance") > 500)),
        ("origin in ('JFK', 'LGA')", col("origin").is_in(["JFK", "LGA"])),
        ("distance not in [1, 2]", ~col("distance").is_in([1, 2])),
        ("distance is null", col("distance").is_null()),
        ("distance is not None", col("distance").is_not_null()),
        ("distance == null", col("distance").is_null()),
        ("cancelled", col("cancelled") == True),  # noqa: E712
        ("not cancelled", ~(col("cancelled") == True)),  # noqa: E712
        ("cancelled == False", col("cancelled") == False),  # noqa: E712
        ("speed >= 0.5", col("speed") >= 0.5),
        ("day == '2013-07-04'", col("day") == date(2013, 7, 4)),
        ("at >= '2013-07-04T12:00+00:00'", col("at") >= datetime(2013, 7, 4, 12, tzinfo=timezone.utc)),
        ("local < '2013-07-04 12:00:00.5'", col("local") < datetime.fromisoformat("2013-07-04T12:00:00.500")),
        ("fare == 19.90", col("fare") == Decimal("19.90")),
        ("fare == -0.10", col("fare") == Decimal("-0.10")),
        ("fare > '1e2'", col("fare") > Decimal(100)),
        ("raw == '0x00ff'", col("raw") == b"\x00\xff"),
        ("raw == b'ab'", col("raw") == b"ab"),
        ('col("tail num") == "N1"', col("tail num") == "N1"),
        ("origin ==\n'JFK'", col("origin") == "JFK"),
        ("\r\n  origin == 'JFK'\n", col("origin") == "JFK"),
        ("cancelled # or not\n and distance > 5", (col("cancelled") == True) & (col("distance") > 5)),  # noqa: E712
        ("origin == '#1' # it's", col("origin") == "#1"),
        ("origin == 'a\\nb'", col("origin") == "a\nb"),
        ("origin == 'a\u2028b'", col("origin") == "a\u2028b"),
        ("origin == 'a\x85b'", col("origin") == "a\x85b"),
        ("origin == 'a\x0cb'", col("origin") == "a\x0cb"),
        ("speed < 'inf'", col("speed") < float("inf")),
        ("speed > '-Infinity'", col("speed") > float("-inf")),
    ],
)
def test_a_condition_means_what_the_same_python_expression_means(
    text: str, expected: expressions.Expression
) -> None:
    assert parse(text, SCHEMA) == means(expected)


def test_a_time_without_an_offset_is_read_in_the_zone_of_its_column() -> None:
    assert parse("at == '2013-07-04T08:00'", SCHEMA) == parse("at == '2013-07-04T12:00+00:00'", SCHEMA)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("orgin == 'JFK'", "orgin", "did you mean 'origin'?"),
        ("quux > 1", "quux", "the columns are origin, distance"),
        ("distance == '500'", "'500'", "without quotes"),
        ("origin == JFK", "JFK", "write text in quotes"),
        ("origin == 5", "5", "in quotes"),
        ("distance > 1.5", "1.5", "int of 32 bits"),
        ("distance == 99999999999", "99999999999", "int of 32 bits"),
        ("distance", "distance", "alone is not a condition"),
        ("1 < 2", "1", "a comparison needs a column"),
        ("distance + 1 > 2", "distance + 1", "a comparison needs a column"),
        ("origin == 'a' and distance in 5", "5", "in takes a list"),
        ("5 in distance", "5", "write the column before in"),
        ("day == 'soon'", "'soon'", "not a value for column 'day'"),
        ("distance < null", "null", "neither less nor greater"),
        ("distance is 5", "5", "null only"),
        ("__import__('os').system('true')", "__import__('os').system('true')", "this is not a condition"),
        ("origin == open('f').read()", "open('f').read()", "a value is a number"),
        ("(lambda: origin) == 1", "lambda: origin", "a comparison needs a column"),
        ("origin.x == 'a'", "origin.x", "a comparison needs a column"),
        ("'größe' == 'ß' or orgin == 'JFK'", "'größe'", "a comparison needs a column"),
        ("origin == 'ß' or orgin == 'JFK'", "orgin", "did you mean"),
        ("speed > 1e400", "1e400", "write 'inf' or '-inf'"),
        ("speed == 'fast'", "'fast'", "without quotes"),
    ],
)
def test_a_mistake_is_shown_with_a_caret_under_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(Usage) as caught:
        parse(text, SCHEMA)
    message, shown, pointer = caught.value.message.split("\n")
    assert words in message
    start = pointer.index("^")
    assert shown[start : start + pointer.count("^")] == place


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("origin = 'JFK'", "write == to compare"),
        ("origin == 'JFK' AND distance > 5", "small letters"),
        ("origin <> 'JFK'", "write != for not equal"),
        ("distance between 1 and 5", "no like or between"),
        ("origin == 'JFK", "cannot be read"),
        ("(" * 300 + "origin == 'JFK'" + ")" * 300, "cannot be read"),
        ("not " * 5000 + "cancelled", "longer than|cannot be read|nested"),
        ("origin == '\0'", "cannot be read"),
        ("   ", "the condition is empty"),
    ],
)
def test_an_unreadable_condition_is_refused_with_a_hint(text: str, words: str) -> None:
    with pytest.raises(Usage, match=words):
        parse(text, SCHEMA)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("quote", ["'", '"', "'''", '"""'])
def test_a_line_end_in_quotes_is_refused_instead_of_changed(quote: str, end: str) -> None:
    with pytest.raises(Usage, match=r"write \\n for a line end"):
        parse(f"distance > 5 and\n origin != {quote}it\\{quote[0]}s{end}b{quote}", SCHEMA)


ODD = ["class", "None", "null", "a-b", "2x", "tail num", "from", "ﬁ", "fi", "µ"]
ODD_SCHEMA = TableSchema.from_arrow(pa.schema([pa.field(name, pa.int64()) for name in ODD]), ["class"])


@pytest.mark.parametrize("name", ODD[:7])
@pytest.mark.parametrize("text", ["{} == 1", "fi > 5 and not {} == 1"])
def test_a_column_whose_name_is_no_plain_word_is_refused_with_its_form(text: str, name: str) -> None:
    with pytest.raises(Usage, match=re.escape(f'write col("{name}") for column')):
        parse(text.format(name), ODD_SCHEMA)
    written = parse(text.format(f'col("{name}")'), ODD_SCHEMA)
    assert name in expressions.columns(written)


@pytest.mark.parametrize("name", ODD[7:])
def test_a_column_is_the_one_whose_name_is_written_and_no_normal_form_of_it(name: str) -> None:
    assert parse(f"{name} == 1", ODD_SCHEMA) == expressions.bind(col(name) == 1, ODD_SCHEMA)


def test_a_mistake_late_in_a_long_condition_is_shown() -> None:
    text = " or ".join(["origin == 'JFK'"] * 40) + " or orgin == 'JFK'"
    with pytest.raises(Usage) as caught:
        parse(text, SCHEMA)
    _, shown, pointer = caught.value.message.split("\n")
    assert len(shown) <= 100
    assert shown[pointer.index("^") : pointer.index("^") + 5] == "orgin"


@given(st.text(max_size=60))
def test_any_text_is_a_condition_or_a_usage_error(text: str) -> None:
    try:
        assert isinstance(parse(text, SCHEMA), expressions.Expression)
    except Usage:
        return
