"""Which Python values a column takes, and what Arrow's own conversion would silently lose of them.

Arrow truncates floats to integers, cuts microseconds off for coarser columns, reads a datetime without a zone as UTC,
takes a str for binary. ebla refuses all of that: `fits` judges by type, `first_unfit_time` by value, and
`exact_type` names the Arrow type in which nothing is lost yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ebla.storage.fixed import Fixed
from ebla.storage.ragged import binary, objects
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
    for place, value in enumerate(values):
        if value is not None and ((value.tzinfo is not None) != zoned or (coarse and _nanosecond(value))):
            return place
    return None


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
