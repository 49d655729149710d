"""Which Python values a column takes, and what Arrow's own conversion would silently lose of them.

Arrow truncates floats to integers, cuts microseconds off for coarser columns, reads a datetime without a zone as UTC,
takes a str for binary; decimals with many digits after the point become zero, or end the process. ebla refuses all of
that: `fits` judges by type, `first_unfit_time` and `exact_decimals` by value, and `exact_type` names the Arrow type in
which nothing is lost yet. `rows` is the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.fixed import Fixed
from ebla.storage.rows.ragged import binary, objects
from ebla.storage.schema import Column

_TAKEN: dict[str, tuple[type, ...]] = {
    "int8": (int, np.integer),
    "int16": (int, np.integer),
    "int32": (int, np.integer),
    "int64": (int, np.integer),
    "float": (float, int, np.floating, np.integer),
    "double": (float, int, np.floating, np.integer),
    "bool": (bool, np.bool_),
    "string": (str,),
    "binary": (bytes, bytearray, memoryview),
    "date": (date,),
    "timestamp": (datetime,),
    "decimal": (Decimal, int),
}
_NAMED = {
    "int8": "an int of 8 bits",
    "int16": "an int of 16 bits",
    "int32": "an int of 32 bits",
    "int64": "an int of 64 bits",
    "float": "a float",
    "double": "a float",
    "bool": "a bool",
    "string": "a str",
    "binary": "bytes",
    "date": "a date (not a datetime)",
}
_REMEDIES = {
    "int8": "give an int from -128 to 127, such as 42",
    "int16": "give an int from -32768 to 32767, such as 42",
    "int32": "give an int from -2147483648 to 2147483647, such as 42",
    "int64": "give an int from -9223372036854775808 to 9223372036854775807, such as 42",
    "float": "give a float up to 3.4e38, such as 1.5",
    "double": "give a float, such as 1.5",
    "bool": "give True or False",
    "string": "give a str of valid Unicode, such as 'abc'",
    "binary": "give bytes, such as b'abc'",
    "date": "give a datetime.date, such as datetime.date(2024, 5, 17)",
}
_TIME_EXAMPLES = {
    "s": "datetime.datetime(2024, 5, 17, 12, 30, 15{0})",
    "ms": "datetime.datetime(2024, 5, 17, 12, 30, 15, 250000{0})",
    "us": "datetime.datetime(2024, 5, 17, 12, 30{0})",
    "ns": "datetime.datetime(2024, 5, 17, 12, 30{0}) or a pandas.Timestamp, years 1678 to 2261",
}
SHOWN_MAX = 100
_SCALARS = (str, bytes, bytearray, memoryview)
UNREADABLE = (ArithmeticError, ValueError, LookupError)  # what Arrow raises if Python has no such value


def fits(column: Column) -> Callable[[type], bool]:
    """Does the column take Python values of this type?"""
    taken = _TAKEN[column.type]

    def judge(kind: type) -> bool:
        if column.type != "bool" and issubclass(kind, bool):
            return False
        if column.type == "date" and issubclass(kind, datetime):
            return False
        return issubclass(kind, taken) and kind.__name__ != "NaTType"

    return judge


def expected(column: Column) -> str:
    """In words, for messages: what the column takes."""
    if column.type == "timestamp":
        zone = "a datetime with a zone" if column.zone else "a datetime without a zone"
        return f"{zone}, in whole {column.unit}"
    if column.type == "decimal":
        return f"a Decimal of {column.precision} digits, {column.scale} of them after the point"
    return _NAMED[column.type]


def remedy(column: Column) -> str:
    """In words, for messages: what to give instead, with an example."""
    if column.type == "timestamp":
        example = _TIME_EXAMPLES[str(column.unit)].format(", tzinfo=datetime.UTC" if column.zone else "")
        if column.zone and column.unit in ("us", "ns"):
            example = f"datetime.datetime.now(datetime.UTC) or {example}"
        zone = "with a time zone" if column.zone else "without a time zone"
        return f"give datetime.datetime values {zone}, such as {example}"
    if column.type == "decimal":
        precision, scale = column.precision or 0, column.scale or 0
        places = min(scale, 8)
        number = Decimal((0, tuple(range(1, places + 1 + (precision > scale))), -places))
        return f"give decimal.Decimal values, such as Decimal('{number}')"
    return _REMEDIES[column.type]


def shown(value: Any) -> str:
    """A value in a message: short, whatever it is."""
    try:
        text = repr(value)
    except ValueError:  # an int of thousands of digits has no text
        text = f"a {type(value).__name__}" + (
            f" of {value.bit_length()} bits" if isinstance(value, int) else ""
        )
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def exact_type(column: Column) -> pa.DataType:
    """The Arrow type to read Python values into before the checked cast to the column's own."""
    if column.type == "float":
        return pa.float64()
    if column.type == "timestamp" and column.unit != "ns":
        return pa.timestamp("us", column.zone)
    return column.arrow_type()


def first_unfit_time(column: Column, values: Sequence[datetime | None]) -> int | None:
    """The first time that has a zone and should not (or the reverse), or nanoseconds that would be lost."""
    zoned, coarse = column.zone is not None, column.unit != "ns"
    sound = None  # the zone that was looked at last: mostly it is that of all values
    for place, value in enumerate(values):
        if value is None:
            continue
        zone = value.tzinfo
        if zone is not None and zone is not sound:
            sound = zone if value.utcoffset() is not None else None
            zone = sound
        if (zone is not None) != zoned or (coarse and _nanosecond(value)):
            return place
    return None


def exact_decimals(column: Column, values: Sequence[Any]) -> tuple[list[Any], int | None]:
    """The values with decimals in the column's scale, and the place of the first one that does not fit.

    What Arrow sees afterwards has an exponent and a number of digits that it can deal with.
    """
    quantum = Decimal((0, (1,), -(column.scale or 0)))
    context = Context(prec=column.precision or 1, traps=[Inexact, InvalidOperation])
    made: list[Any] = []
    try:
        for value in values:
            made.append(value.quantize(quantum, None, context) if isinstance(value, Decimal) else value)
    except ArithmeticError:
        return made, len(made)
    return made, None  # NaN is still among them: Arrow refuses it


def wild_objects(values: Any) -> list[Any] | None:
    """The Python objects in a pandas object column (or one of categories), missing ones as None, if Arrow must not see
    them as they are: decimals that it would round or break at, and containers that might hold such."""
    dtype = values.dtype
    inner = getattr(dtype, "categories", getattr(dtype, "subtype", None))
    distinct = values if inner is None else inner
    if getattr(distinct, "dtype", distinct) != np.dtype(object):
        return None
    objects = np.asarray(values, dtype=object).tolist()
    if not any(map(_wild, set(map(type, objects)))):
        return None
    return [None if _missing(value) else value for value in objects]


def _wild(kind: type) -> bool:
    return issubclass(kind, Decimal) or (hasattr(kind, "__iter__") and not issubclass(kind, _SCALARS))


def _missing(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return bool(value != value)
    return type(value).__name__ in ("NaTType", "NAType")


def rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows as Python values. A value that Python cannot hold is refused with its column."""
    try:
        found: list[dict[str, Any]] = batch.to_pylist()
        return found
    except UNREADABLE as error:
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            try:
                array.to_pylist()
            except UNREADABLE as cause:
                raise InvalidArgument(
                    f"column {name!r} ({array.type}) holds a value that Python cannot express: {cause}; read it as "
                    "Arrow, with get_many(..., as_arrow=True) or scan(...).to_arrow()",
                    column=name,
                ) from error
        raise


def raws(column: Column, array: pa.Array) -> list[Any]:
    """The values of an array without nulls as the codecs keep them: int, float or bytes."""
    assert array.null_count == 0
    if column.variable:
        return objects(binary(array))
    values: list[Any] = Fixed(column).values(array).tolist()
    if column.type == "decimal":
        return [int.from_bytes(value, "little", signed=True) for value in values]
    return values


def _nanosecond(value: Any) -> int:
    """Of a pandas Timestamp what a datetime has no room for."""
    return getattr(value, "nanosecond", 0)
