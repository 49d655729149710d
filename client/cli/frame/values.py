"""Converts values from the command line to the type of a column.

    int..       12, -3, 1_000              date        2013-01-31
    float..     0.5, 1e-3, nan             timestamp   2013-01-31, 2013-01-31T05:00, 2013-01-31 05:00:00.25+01:00
    bool        true, false                decimal     19.90
    string      unchanged                  binary      UTF-8 text, or 0x00ff
    time        05:30, 05:30:00.25         duration    1h30m, 250ms, -2d, or ISO 8601 such as PT90S
    json        unchanged                  list, struct, map   JSON, as [1, 2] or {"x": 0.5}

A timestamp without an offset is read in the column's own zone; one that the zone skips or has twice is refused. Inside of JSON,
texts are read as the values above, and binary is base64, as in files of JSON. A value with more digits than its column keeps is
refused, except for floats with a point or an exponent. ebla.show.values makes such texts of values.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ebla.cli.frame.problems import Usage
from ebla.cli.frame.types import type_name

if TYPE_CHECKING:
    from ebla.storage.schema import Column


def from_text(column: Column, text: str) -> Any:
    """The value. Raises Usage with the column's name and an example."""
    try:
        return _READERS[column.type][0](column, text)
    except Usage:  # of a value inside
        raise
    except (ValueError, OverflowError, InvalidOperation) as error:
        raise Usage(
            f"{text!r} is not a value for column {column.name!r} of type {type_name(column)}; write for example {_example(column)}",
            column=column.name,
        ) from error


def _example(column: Column, inside: bool = False) -> str:
    """A value as it is written. `inside`: of JSON."""
    inner = [_example(field, True) for field in column.fields]
    match column.type:
        case "list":
            return f"[{inner[0]}]"
        case "map":
            return f"[[{inner[0]}, {inner[1]}]]"
        case "struct":
            named = zip(column.fields, inner, strict=True)
            return "{" + ", ".join(f"{json.dumps(field.name)}: {each}" for field, each in named) + "}"
    example = "AP8=" if inside and column.type == "binary" else _READERS[column.type][1]
    return json.dumps(example) if inside and column.type not in _BARE else example


def _bool(column: Column, text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _binary(column: Column, text: str) -> bytes:
    return bytes.fromhex(text[2:]) if text.lower().startswith("0x") else text.encode()


def _float(column: Column, text: str) -> float:
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError(text)
    if re.fullmatch(r"[+-]?\d+", text):
        import numpy

        from ebla.pipelines.sources.types import is_rounded

        if is_rounded(text, numpy.float32(value) if column.type == "float" else value):
            raise ValueError(text)
    return value


def _duration(column: Column, text: str) -> timedelta:
    nanoseconds = _iso_8601(text) if "P" in text.upper() else _with_units(text)
    if nanoseconds % 1000 == 0:
        return timedelta(microseconds=nanoseconds // 1000)
    import pandas  # Python's own has no nanoseconds

    made: timedelta = pandas.Timedelta(nanoseconds, unit="ns")
    return made


def _iso_8601(text: str) -> int:
    from ebla.pipelines.sources.types import iso_nanoseconds

    return iso_nanoseconds(text.upper())


def _with_units(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    parts = re.findall(r"\s*(\d+(?:\.\d+)?)(d|h|ms|us|ns|m|s)\s*", digits)
    if not parts or "".join(number + unit for number, unit in parts) != re.sub(r"\s", "", digits):
        raise ValueError(text)
    total = sum(Fraction(number) * _NANOSECONDS[unit] for number, unit in parts)
    if total.denominator != 1:
        raise ValueError(text)
    return sign * int(total)


def _nested(column: Column, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        kept = (
            ', or write a map as a list of pairs, as [["x", 1], ["x", 2]]'
            if "map<" in type_name(column)
            else ""
        )
        raise Usage(
            f"{text!r} for column {column.name!r} of type {type_name(column)} has the key {twice!r} twice; remove one{kept}",
            column=column.name,
        )

    try:
        read = json.loads(text, parse_float=Decimal, object_pairs_hook=once)
    except RecursionError as error:
        raise ValueError(text) from error
    return _of_json(column, read)


def _of_json(column: Column, value: Any) -> Any:
    """A value of JSON as one of the column; a misfit is left for the column to refuse."""
    fields = column.fields
    if column.type == "list" and isinstance(value, list):
        return [_of_json(fields[0], item) for item in value]
    if column.type == "map" and isinstance(value, (dict, list)):
        pairs = value.items() if isinstance(value, dict) else value
        return [(_of_json(fields[0], key), _of_json(fields[1], item)) for key, item in pairs]
    if column.type == "struct" and isinstance(value, dict):
        known = {field.name: field for field in fields}
        return {n: _of_json(known[n], item) if n in known else item for n, item in value.items()}
    if isinstance(value, str) and column.type == "binary":
        return base64.b64decode(value, validate=True)
    if isinstance(value, str) and column.type != "string":
        return from_text(column, value)
    if type(value) is int and column.type in ("float", "double"):
        return from_text(column, str(value))
    if isinstance(value, Decimal) and column.type != "decimal":
        if math.isinf(float(value)):
            raise ValueError(value)
        return float(value)
    return value


def _timestamp(column: Column, text: str) -> datetime:
    read = datetime.fromisoformat(_iso(text))
    if column.zone is not None and read.tzinfo is None:
        read = read.replace(tzinfo=_zone(column.zone))
        later = read.replace(fold=1)
        if read.utcoffset() != later.utcoffset():
            raise Usage(
                f"{text!r} for column {column.name!r} is a time that {column.zone} skips or has twice, because its clocks are "
                f"changed; write it with an offset, as {read.isoformat()} or {later.isoformat()}",
                column=column.name,
            )
    nanoseconds = _digits(column, text, 9 if column.unit == "ns" else 6)[6:]
    if not nanoseconds:
        return read
    import pandas  # Python's own has no nanoseconds

    made: datetime = pandas.Timestamp(read).as_unit("ns").replace(nanosecond=int(nanoseconds.ljust(3, "0")))
    return made


def _time(column: Column, text: str) -> time:
    _digits(column, text, 6)
    return time.fromisoformat(_iso(text))


def _iso(text: str) -> str:
    """The text for Python 3.10, which reads no Z, no other fractions than of 3 and 6 digits, no offset such as +01 or +0100."""
    text = re.sub(r"(:\d\d)[.,](\d+)", lambda found: f"{found[1]}.{found[2]:0<6.6}", text)
    found = re.fullmatch(r"(.*:\d\d(?:\.\d{6})?)(?:Z|([+-]\d\d)(\d\d)?)", text)
    return f"{found[1]}{found[2] or '+00'}:{found[3] or '00'}" if found else text


def _digits(column: Column, text: str, most: int) -> str:
    """The fraction of a second. Raises Usage for more digits than can be kept."""
    found = re.search(r"[.,](\d+)", text)
    digits = found[1].rstrip("0") if found else ""
    if len(digits) > most:
        raise Usage(
            f"{text!r} for column {column.name!r} of type {type_name(column)} has digits after the "
            f"{'nanoseconds' if most == 9 else 'microseconds'}; write fewer digits",
            column=column.name,
        )
    return digits


def _zone(name: str) -> Any:
    """The zone of one of Arrow's names: a name of tzdata, or an offset such as +05:30."""
    if re.fullmatch(r"[+-]\d\d:\d\d", name):
        return datetime.fromisoformat(f"2000-01-01T00:00{name}").tzinfo
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise Usage(
            f"the time zone {name!r} is not known here; write timestamps with an offset, as 2013-01-31T05:00+00:00"
        ) from error


_NANOSECONDS = {
    "d": 86_400 * 10**9,
    "h": 3_600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_BARE = (*_INTEGERS, "float", "double", "bool")  # in JSON without quotes
_READERS: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "float": (_float, "0.5"),
    "double": (_float, "0.5"),
    "bool": (_bool, "true"),
    "string": (lambda _, text: text, "JFK"),
    "binary": (_binary, "0x00ff"),
    "date": (lambda _, text: date.fromisoformat(text), "2013-01-31"),
    "timestamp": (_timestamp, "2013-01-31T05:00"),
    "decimal": (lambda _, text: Decimal(text), "19.90"),
    "time": (_time, "05:30"),
    "duration": (_duration, "1h30m"),
    "json": (lambda _, text: text, '{"a": 1}'),
    **dict.fromkeys(("list", "struct", "map"), (_nested, "")),
    **dict.fromkeys(_INTEGERS, (lambda _, text: int(text), "12")),
}
