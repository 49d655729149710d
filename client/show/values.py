"""Values of columns as text, for people and for JSON.

`text` gives the form that CSV files have, and that `ebla feed`, `ebla table put` and `--where` read: true, 0x00ff,
2013-01-31T05:00:00Z, PT90S, [1, 2]. `word` gives a text among others: null and an empty text look different there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec


def text(value: Any) -> str:
    """A value of a column: text unchanged, binary as 0x00ff, the others as JSON has them, without quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return "0x" + value.hex()
    encoded = msgspec.json.encode(in_json(value)).decode()
    return encoded.strip('"') if encoded.startswith('"') else encoded


def texts(row: Mapping[str, Any]) -> dict[str, str | None]:
    """The values of a row as text; nulls stay None."""
    return {name: None if value is None else text(value) for name, value in row.items()}


def word(value: str | None, separator: str = "") -> str:
    """A text for a line with others: as a JSON string if it is empty, has blanks at its ends, control characters or the separator,
    or could be taken for null or for a JSON string."""
    if value is None:
        return "null"
    plain = value.isprintable() and value == value.strip() and value not in ("", "null") and value[0] != '"'
    if plain and not (separator and separator in value):
        return value
    return msgspec.json.encode(value).decode()


def pairs(values: Mapping[str, str | None]) -> str:
    """`carrier=UA flight=1545`, as `ebla table get` takes it."""
    return " ".join(f"{name}={word(value, ' ')}" for name, value in values.items())


def in_json(value: Any) -> Any:
    """The value in JSON's types: times and durations as ISO 8601, bytes as base64, decimals as text, and as text also "NaN",
    "Infinity" and "-Infinity"."""
    return _spelled(msgspec.to_builtins(value, builtin_types=(datetime,), enc_hook=_iso_8601))


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _spelled(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    if isinstance(value, datetime):
        return minutely(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def minutely(value: datetime) -> datetime:
    """The time in UTC if its offset has seconds, as before standard time: ISO 8601 has no such offsets."""
    offset = value.utcoffset()
    return value.astimezone(timezone.utc) if offset is not None and offset.total_seconds() % 60 else value


def _iso_8601(value: Any) -> str:
    """The times and durations of pandas, which columns in nanoseconds have, as text."""
    if isinstance(value, datetime):
        value = minutely(value)
    if hasattr(value, "isoformat"):
        found: str = value.isoformat()
        return found
    raise TypeError(f"{type(value).__name__} has no form in JSON")
