"""Conversions of single values in plain Python, for single-row reads and writes without Arrow.

A value has three forms. The *Python* value is the user's (equal to Arrow's to_pylist). The *raw* value is an int (also
for bool, dates, times and durations in the column's unit, unscaled decimals), a float, or bytes (of a nested value as
storage/rows/nested.py writes it). The *slot* is packed by struct
into a record's header. Values of exactly the expected type take a short path; other values go through
storage/rows/convert.py, so that both paths accept and refuse the same values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, NamedTuple

import pyarrow as pa

from ebla.storage.columns import Column, known_zone
from ebla.storage.errors import InvalidArgument, invalid_column
from ebla.storage.rows import convert, nested, python_values
from ebla.storage.rows.fixed import width_of

Convert = Callable[[Any], Any]

# struct's formats of NumPy's.
_SLOTS = {
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f4": "f",
    "f8": "d",
    "V16": "16s",
}
_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of a column's unit
_DAY_S = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - columns without a zone have times without one
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EXACT = Context(prec=120, traps=[Inexact, InvalidOperation, Overflow])


class Scalar(NamedTuple):
    """The conversions of one column. `to_slot` and `from_slot` are None if the raw value is the slot."""

    to_raw: Convert
    from_raw: Convert
    format: str
    to_slot: Convert | None = None
    from_slot: Convert | None = None


def scalar(column: Column) -> Scalar:
    def slow(value: Any) -> Any:
        return convert.raw(column, value)

    kind = column.type
    form = "" if column.variable else _SLOTS[width_of(column)]
    if column.nested:
        return Scalar(slow, _from_nested(column), form)
    if kind in ("string", "json"):
        return Scalar(_text(slow), bytes.decode, form)
    if kind == "binary":
        return Scalar(_exactly(bytes, slow), _same, form)
    if kind == "bool":
        return Scalar(lambda value: int(value) if type(value) is bool else slow(value), bool, form)
    if kind == "date":
        return Scalar(_day(slow), _from_day(column), form)
    if kind == "timestamp":
        return Scalar(_instant(column, slow), _from_instant(column), form)
    if kind == "time":
        return Scalar(_time(column, slow), _from_time(column), form)
    if kind == "duration":
        return Scalar(_duration(column, slow), _from_duration(column), form)
    if kind == "decimal":
        scale = -(column.scale or 0)
        return Scalar(
            _decimal(column, slow),
            lambda raw: Decimal(raw).scaleb(scale, _EXACT),
            form,
            lambda raw: raw.to_bytes(16, "little", signed=True),
            lambda slot: int.from_bytes(slot, "little", signed=True),
        )
    if kind == "float":
        return Scalar(_float32(slow), _same, form)
    return Scalar(_exactly(float if kind == "double" else int, slow), _same, form)


def _same(value: Any) -> Any:
    return value


# -- Python to raw: an exact type, or the slow conversion -----------------------------------------------------------


def _exactly(kind: type, slow: Convert) -> Convert:
    return lambda value: value if type(value) is kind else slow(value)


def _float32(slow: Convert) -> Convert:
    packed = struct.Struct("<f")

    def to_raw(value: Any) -> Any:
        try:
            return packed.unpack(packed.pack(value))[0] if type(value) is float else slow(value)
        except OverflowError:
            return slow(value)

    return to_raw


def _text(slow: Convert) -> Convert:
    def to_raw(value: Any) -> Any:
        try:
            return value.encode() if type(value) is str else slow(value)
        except UnicodeEncodeError:
            return slow(value)

    return to_raw


def _day(slow: Convert) -> Convert:
    return lambda value: value.toordinal() - _EPOCH_DAY if type(value) is date else slow(value)


def _steps(column: Column) -> tuple[int, int, int]:
    """Column units in a second, microseconds in a column unit (1 for ns), column units in a microsecond (1 if coarser)."""
    second = _SECOND[str(column.unit)]
    return second, max(1, 10**6 // second), max(1, second // 10**6)


def _instant(column: Column, slow: Convert) -> Convert:
    zoned = column.zone is not None
    epoch = _EPOCH_UTC if zoned else _EPOCH
    second, step, multiple = _steps(column)

    def to_raw(value: Any) -> Any:
        if type(value) is not datetime or (value.tzinfo is not None) != zoned:
            return slow(value)
        try:
            since = value - epoch
        except TypeError:  # its zone gives no offset
            return slow(value)
        micros = since.microseconds
        if micros % step:
            return slow(value)
        return (since.days * _DAY_S + since.seconds) * second + micros // step * multiple

    return to_raw


def _time(column: Column, slow: Convert) -> Convert:
    second, step, multiple = _steps(column)

    def to_raw(value: Any) -> Any:
        if type(value) is not time or value.tzinfo is not None or value.microsecond % step:
            return slow(value)
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * second + value.microsecond // step * multiple

    return to_raw


def _duration(column: Column, slow: Convert) -> Convert:
    second, step, multiple = _steps(column)

    def to_raw(value: Any) -> Any:
        if type(value) is not timedelta or value.microseconds % step:
            return slow(value)
        raw = (value.days * _DAY_S + value.seconds) * second + value.microseconds // step * multiple
        return raw if -(1 << 63) <= raw < 1 << 63 else slow(value)

    return to_raw


def _decimal(column: Column, slow: Convert) -> Convert:
    scale, limit = column.scale or 0, 10 ** (column.precision or 0)

    def to_raw(value: Any) -> Any:
        if type(value) is Decimal:
            try:
                scaled = value.scaleb(scale, _EXACT)
                if scaled.adjusted() > 38:  # int() of a huge exponent would not end
                    return slow(value)
                raw = int(scaled)
            except (ArithmeticError, ValueError):
                return slow(value)
            if raw == scaled and -limit < raw < limit:
                return raw
        return slow(value)

    return to_raw


# -- raw to Python ---------------------------------------------------------------------------------------------


def _from_day(column: Column) -> Convert:
    def from_raw(raw: int) -> date:
        try:
            return date.fromordinal(raw + _EPOCH_DAY)
        except (OverflowError, ValueError) as error:
            raise _beyond(column, raw) from error

    return from_raw


def _from_nested(column: Column) -> Convert:
    def from_raw(raw: bytes) -> Any:
        array = nested.from_binary(column, pa.array([raw], pa.binary()), None)
        return python_values.plain_values(column.name, array)[0]

    return from_raw


def _from_time(column: Column) -> Convert:
    second, _, multiple = _steps(column)

    def from_raw(raw: int) -> time:
        seconds, part = divmod(raw, second)
        if part % multiple or not 0 <= seconds < _DAY_S:
            raise _beyond(column, raw)
        minutes, seconds = divmod(seconds, 60)
        return time(minutes // 60, minutes % 60, seconds, part * 10**6 // second)

    return from_raw


def _from_duration(column: Column) -> Convert:
    second, step, _ = _steps(column)
    if column.unit == "ns":
        return _from_nanoseconds(column)

    def from_raw(raw: int) -> timedelta:
        try:
            whole, part = divmod(raw, second)
            return timedelta(0, whole, part * step)
        except OverflowError as error:
            raise _beyond(column, raw) from error

    return from_raw


def _from_instant(column: Column) -> Convert:
    if column.zone and not known_zone(column.zone):
        return _from_unknown_zone(column)
    if column.unit == "ns":
        return _from_nanoseconds(column)
    epoch = _EPOCH_UTC if column.zone else _EPOCH
    zone = pa.lib.string_to_tzinfo(column.zone) if column.zone else None
    if zone is not None and (column.zone == "UTC" or isinstance(zone, timezone)):
        epoch, zone = epoch.astimezone(zone), None  # a constant offset: adding to the epoch is enough
    seconds = 1 if column.unit == "s" else 0
    micros = {"s": 0, "ms": 1000, "us": 1}[str(column.unit)]

    def from_raw(raw: int) -> datetime:
        try:
            time: datetime = epoch + timedelta(0, raw * seconds, raw * micros)
            return time.astimezone(zone) if zone else time
        except (OverflowError, ValueError) as error:
            raise _beyond(column, raw) from error

    return from_raw


def _from_unknown_zone(column: Column) -> Convert:
    """Refuse only Python values: bytes and Arrow need no rules of the zone to store, copy and scan rows."""

    def from_raw(raw: int) -> Any:
        raise invalid_column(
            column.name,
            f"has times of the zone {column.zone!r}, which is not known here; install tzdata, "
            "or read it as Arrow",
        )

    return from_raw


def _from_nanoseconds(column: Column) -> Convert:
    zone = pa.lib.string_to_tzinfo(column.zone) if column.zone else None

    def from_raw(raw: int) -> Any:
        import pandas  # only nanoseconds need it, and it is slow to import

        if raw == python_values.LEAST:  # pandas would make NaT of it
            raise _beyond(column, raw)
        try:
            if column.type == "duration":
                return pandas.Timedelta(raw, unit="ns")
            return pandas.Timestamp(raw, unit="ns", tz=zone)
        except (OverflowError, ValueError) as error:
            raise _beyond(column, raw) from error

    return from_raw


def _beyond(column: Column, raw: int) -> InvalidArgument:
    return invalid_column(
        column.name,
        f"holds {raw} ({column.arrow_type()}), which Python's datetime cannot express; read it as Arrow",
    )
