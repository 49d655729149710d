"""Rows of Arrow as text, in the form that ebla.show.values gives Python's values.

Arrow gives nanoseconds as objects of pandas, which a feed does not import. So they become text without these objects, in the
form that pandas gives them.
"""

from __future__ import annotations

from datetime import datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ebla.show.values import minutely, text

_MINUTE, _HOUR, _DAY = (seconds * 10**9 for seconds in (60, 3_600, 86_400))


def row_texts(batch: pa.RecordBatch) -> list[dict[str, str | None]]:
    """The rows as text; nulls stay None. For few rows: each value is converted on its own."""
    columns = [[_text(value) for value in array] for array in batch.columns]
    return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def plain(value: pa.Scalar) -> Any:
    """The Python value of a scalar, with nanoseconds as text. Raises an error of UNREADABLE if Python has no such value."""
    kind = value.type
    if not value.is_valid or not (pt.is_nested(kind) or getattr(kind, "unit", None) == "ns"):
        return value.as_py()
    if pt.is_timestamp(kind):
        return _instant(value.value, kind.tz)
    if pt.is_duration(kind):
        return _duration(value.value)
    if pt.is_time(kind):
        return _clock(value.value)
    if pt.is_struct(kind):
        return {kind.field(at).name: plain(value[at]) for at in range(kind.num_fields)}
    if pt.is_map(kind):
        return [tuple(plain(each) for each in pair.values()) for pair in value.values]
    return [plain(each) for each in value.values]


def _text(value: pa.Scalar) -> str | None:
    found = plain(value)
    return None if found is None else text(found)


def _instant(nanoseconds: int, zone: str | None) -> str:
    """As pandas.Timestamp.isoformat."""
    microseconds, rest = divmod(nanoseconds, 1_000)
    found: datetime = minutely(pa.scalar(microseconds, pa.timestamp("us", zone)).as_py())
    if not rest:
        return found.isoformat()
    given = found.isoformat(timespec="microseconds")
    end = given.index(".") + 7
    return f"{given[:end]}{rest:03}{given[end:]}"


def _duration(nanoseconds: int) -> str:
    """As pandas.Timedelta.isoformat."""
    days, rest = divmod(nanoseconds, _DAY)
    hours, rest = divmod(rest, _HOUR)
    minutes, rest = divmod(rest, _MINUTE)
    return f"P{days}DT{hours}H{minutes}M{_seconds(rest)}S"


def _seconds(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 10**9)
    return f"{whole}.{rest:09}".rstrip("0").rstrip(".") if rest else str(whole)


def _clock(nanoseconds: int) -> str:
    microseconds, rest = divmod(nanoseconds, 1_000)
    found: time = pa.scalar(microseconds, pa.time64("us")).as_py()
    return f"{found.isoformat('microseconds')}{rest:03}" if rest else found.isoformat()
