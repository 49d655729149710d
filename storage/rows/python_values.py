"""The Python values that a column takes, and checks against silent losses in Arrow's conversion.

Arrow truncates floats to integers, rounds integers to floats, cuts off microseconds for coarser columns, reads a datetime
without a zone as UTC, takes a str for binary; decimals with many digits after the point become zero, or end the process.
ebla refuses all of that: `fits` checks the type, `first_unfit_time` and the functions `exact_...` the value, and `exact_type`
is an Arrow type that loses nothing. `rows` converts back. storage/rows/nested_values.py does the same for lists, structs and maps.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.columns import UNITS, Column
from ebla.storage.errors import invalid_column
from ebla.storage.rows import nested
from ebla.storage.rows.fixed import Fixed
from ebla.storage.rows.ragged import objects


class _Taken(NamedTuple):
    """The Python types that a column takes; their name and a remedy, for messages."""

    types: tuple[type, ...]
    named: str = ""
    remedy: str = ""


def _integers(bits: int, least: int) -> _Taken:
    remedy = f"give an int from {least} to {least + (1 << bits) - 1}, such as 42"
    sign = "" if least else ", 0 or more"
    return _Taken((int, np.integer), f"an int of {bits} bits{sign}", remedy)


_FLOATS = (float, int, np.floating, np.integer)
_TAKEN: dict[str, _Taken] = {
    **{f"int{bits}": _integers(bits, -1 << (bits - 1)) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": _integers(bits, 0) for bits in (8, 16, 32, 64)},
    "float": _Taken(
        _FLOATS, "a float, or an int that 32 bits hold exactly", "give a float up to 3.4e38, such as 1.5"
    ),
    "double": _Taken(_FLOATS, "a float, or an int that 64 bits hold exactly", "give a float, such as 1.5"),
    "bool": _Taken((bool, np.bool_), "a bool", "give True or False"),
    "string": _Taken((str,), "a str", "give a str of valid Unicode, such as 'abc'"),
    "binary": _Taken((bytes, bytearray, memoryview), "bytes", "give bytes, such as b'abc'"),
    "date": _Taken(
        (date,), "a date (not a datetime)", "give a datetime.date, such as datetime.date(2024, 5, 17)"
    ),
    "timestamp": _Taken((datetime,)),
    "time": _Taken((time,)),
    "duration": _Taken((timedelta,)),
    "decimal": _Taken((Decimal, int)),
    "json": _Taken((str,), "JSON text", "give a str, such as json.dumps(value)"),
    "list": _Taken((list, tuple, np.ndarray), "a list", "give a list of values, such as [1, 2]"),
    "struct": _Taken((Mapping,), "a dict", "give a dict of field to value"),
    "map": _Taken((Mapping, list, tuple), "a dict", "give a dict, or a list of pairs of key and value"),
}
_TIME_EXAMPLES = {
    "s": "datetime.datetime(2024, 5, 17, 12, 30, 15{0})",
    "ms": "datetime.datetime(2024, 5, 17, 12, 30, 15, 250000{0})",
    "us": "datetime.datetime(2024, 5, 17, 12, 30{0})",
    "ns": "datetime.datetime(2024, 5, 17, 12, 30{0}) or a pandas.Timestamp, years 1678 to 2261",
}
_CLOCK_EXAMPLES = {"s": "12, 30, 15", "ms": "12, 30, 15, 250000", "us": "12, 30", "ns": "12, 30"}
_SPAN_EXAMPLES = {"s": "hours=1", "ms": "milliseconds=250", "us": "hours=1", "ns": "hours=1"}
_MICROSECOND = timedelta(microseconds=1)
LEAST = -1 << 63  # NumPy's NaT
SHOWN_MAX = 100
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # in a unit
_INTEGERS = (int, np.integer)
_SINGLE = struct.Struct("<f")
_DAYS = np.datetime64(-1 << 31, "D"), np.datetime64((1 << 31) - 1, "D")  # the first and last of date32
_COARSE = ("m", "h", "D", "W", "M", "Y")  # NumPy's units above seconds
_MISSING = ("NaTType", "NAType")  # the types of pandas' missing values
UNREADABLE = (ArithmeticError, ValueError, LookupError)  # raised by Arrow if Python has no such value


def fits(column: Column) -> Callable[[type], bool]:
    """A function from a Python type to whether the column takes it."""
    taken = _TAKEN[column.type].types

    def judge(kind: type) -> bool:
        if column.type != "bool" and issubclass(kind, bool):
            return False
        if column.type == "date" and issubclass(kind, datetime):
            return False
        if issubclass(kind, np.timedelta64):  # a subclass of NumPy's integers
            return False
        return issubclass(kind, taken) and kind.__name__ != "NaTType"

    return judge


def expected(column: Column) -> str:
    """A description of the column's values, for messages."""
    if column.type == "timestamp":
        zone = "a datetime with a zone" if column.zone else "a datetime without a zone"
        return f"{zone}, in whole {column.unit}"
    if column.type in ("time", "duration"):
        return f"a {'time without a zone' if column.type == 'time' else 'timedelta (without months)'}, in whole {column.unit}"
    if column.type == "decimal":
        return f"a Decimal of {column.precision} digits, {column.scale} of them after the point"
    return _TAKEN[column.type].named


def remedy(column: Column, value: Any = None) -> str:
    """A remedy with an example, for messages on `value`."""
    if missing(value) or (isinstance(value, (np.datetime64, np.timedelta64)) and np.isnat(value)):
        return "for null give None" if column.nullable else "give it a value: it may not be null"
    if column.type in ("float", "double") and isinstance(value, np.longdouble):
        return "cast it, which rounds it: np.float64(value), or values.astype('float64') for an array"
    if column.type == "timestamp":
        example = _TIME_EXAMPLES[str(column.unit)].format(
            ", tzinfo=datetime.timezone.utc" if column.zone else ""
        )
        if column.zone and column.unit in ("us", "ns"):
            example = f"datetime.datetime.now(datetime.timezone.utc) or {example}"
        zone = "with a time zone" if column.zone else "without a time zone"
        return f"give datetime.datetime values {zone}, such as {example}"
    if column.type == "time":
        return f"give datetime.time values without a zone, such as datetime.time({_CLOCK_EXAMPLES[str(column.unit)]})"
    if column.type == "duration":
        example = _SPAN_EXAMPLES[str(column.unit)]
        return f"give datetime.timedelta values, such as datetime.timedelta({example})"
    if column.type == "decimal":
        precision, scale = column.precision or 0, column.scale or 0
        places = min(scale, 8)
        number = Decimal((0, tuple(range(1, places + 1 + (precision > scale))), -places))
        return f"give decimal.Decimal values, such as Decimal('{number}')"
    return _TAKEN[column.type].remedy


def shown(value: Any) -> str:
    """Any value in short form, for messages."""
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
    if column.type in ("timestamp", "time") and column.unit != "ns":
        return msgspec.structs.replace(column, unit="us").arrow_type()
    return column.arrow_type()


def first_unfit_time(column: Column, values: Sequence[Any]) -> int | None:
    """The first time that has a zone and should not (or the reverse), or nanoseconds that would be lost."""
    zoned, coarse = column.zone is not None, column.unit != "ns"
    if column.type == "time":
        return next((place for place, value in enumerate(values) if getattr(value, "tzinfo", None)), None)
    sound = None  # the zone that was checked last: mostly all values have the same
    for place, value in enumerate(values):
        if value is None:
            continue
        zone = value.tzinfo
        if zone is not None and zone is not sound:
            sound = zone if value.utcoffset() is not None else None
            zone = sound
        if (zone is not None) != zoned or (coarse and getattr(value, "nanosecond", False)):
            return place  # a pandas Timestamp has nanoseconds
    return None


def exact_durations(column: Column, values: Sequence[Any]) -> tuple[list[int | None], int | None]:
    """The values in the column's unit, of which Arrow has more than microseconds, and the place of the first misfit."""
    unit = NANOSECONDS[str(column.unit)]
    made: list[int | None] = []
    for place, value in enumerate(values):
        if value is None:
            made.append(None)
            continue
        whole, rest = divmod(nanoseconds(value), unit)
        if rest or not -(1 << 63) <= whole < 1 << 63:
            return made, place
        made.append(whole)
    return made, None


def nanoseconds(duration: timedelta) -> int:
    """The length of a timedelta, or of a pandas Timedelta."""
    return duration // _MICROSECOND * 1000 + getattr(duration, "nanoseconds", 0)


def exact_decimals(column: Column, values: Sequence[Any]) -> tuple[list[Any], int | None]:
    """The values with decimals in the column's scale, which Arrow can handle, and the place of the first misfit."""
    quantum = Decimal((0, (1,), -(column.scale or 0)))
    context = Context(prec=column.precision or 1, traps=[Inexact, InvalidOperation])
    made: list[Any] = []
    try:
        for value in values:
            made.append(value.quantize(quantum, None, context) if isinstance(value, Decimal) else value)
    except ArithmeticError:
        return made, len(made)
    return made, None  # NaN is left for Arrow to refuse


def exact_floats(column: Column, values: list[Any]) -> tuple[list[Any], int | None]:
    """The values with integers and long doubles as floats, which Arrow gets wrong for NumPy's, and the place of the first that
    a float would round: an integer by the column's width, a long double by 64 bits, as any float."""
    if not any(issubclass(kind, (*_INTEGERS, np.longdouble)) for kind in set(map(type, values))):
        return values, None
    made = list(values)
    for place, value in enumerate(values):
        if isinstance(value, np.longdouble):
            made[place] = float(value)
            if made[place] != value and not np.isnan(value):
                return made, place
        elif isinstance(value, _INTEGERS):
            try:
                double = float(value)
                made[place] = _SINGLE.unpack(_SINGLE.pack(double))[0] if column.type == "float" else double
            except OverflowError:
                return made, place
            if made[place] != int(value):
                return made, place
    return made, None


def times_for_arrow(column: Column, values: Any) -> Any:
    """A NumPy array with its times in a unit that Arrow takes: it refuses hours, reads M8[25s] as seconds, and cuts days to
    32 bits. Raises OverflowError if a time does not fit, and ValueError for durations in months or years."""
    if values.dtype.kind not in "mM":
        return values
    unit, count = np.datetime_data(values.dtype)
    if values.dtype.kind == "m" and unit in ("M", "Y"):
        raise ValueError(f"{values.dtype} counts months or years, whose lengths are not fixed")
    if column.type == "date" and (unit, count) == ("D", 1):
        if ((values < _DAYS[0]) | (values > _DAYS[1])).any():
            raise OverflowError("a day does not fit into 32 bits")
        return values
    if (unit in UNITS and count == 1) or unit not in (*UNITS, *_COARSE):
        return values
    made = values.astype(f"{values.dtype.kind}8[{unit if unit in UNITS else 's'}]")
    if not np.array_equal(made.astype(values.dtype), values, equal_nan=True):
        raise OverflowError("a time does not fit into 64 bits")
    return made


def objects_to_check(column: Column, values: Any) -> list[Any] | None:
    """The Python objects in a pandas object column (or one of categories), missing ones as None; None if Arrow converts them
    without loss. Arrow rounds decimals or ends the process, drops zones and nanoseconds, and takes a str for bytes."""
    dtype = values.dtype
    inner = getattr(dtype, "categories", getattr(dtype, "subtype", None))
    distinct = values if inner is None else inner
    if getattr(distinct, "dtype", distinct) != np.dtype(object):
        return None
    objects: list[Any] = np.asarray(values, dtype=object).tolist()
    kinds = set(map(type, objects))
    if _is_exact_in_arrow(column, kinds):
        return None
    if any(issubclass(kind, (float, np.floating)) or kind.__name__ in _MISSING for kind in kinds):
        return [None if missing(value) else value for value in objects]
    return objects


def _is_exact_in_arrow(column: Column, kinds: set[type]) -> bool:
    """Whether Arrow finds the type of these objects without loss. NaN, a float, may be a missing value among any of them."""
    mixed = column.type not in ("float", "double") and any(issubclass(kind, float) for kind in kinds)
    families = (
        (str, float),
        (int, float) if mixed else (float,),
        (np.datetime64, float),
        (np.timedelta64, float),
    )
    found = [kind for kind in kinds if kind is not type(None) and kind.__name__ not in _MISSING]
    return bool not in kinds and any(all(issubclass(kind, family) for kind in found) for family in families)


def missing(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return bool(value != value)
    return type(value).__name__ in _MISSING


def rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows as Python values. A value that Python cannot express is refused with its column."""
    try:
        for array in batch.columns:
            _refuse_unreadable(array)
        found: list[dict[str, Any]] = batch.to_pylist()
        return found
    except UNREADABLE:
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            plain_values(name, array)
        raise


def plain_values(name: str, array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The Python values of a column. A value that Python cannot express is refused with the column's name."""
    try:
        _refuse_unreadable(array)
        found: list[Any] = array.to_pylist()
        return found
    except UNREADABLE as error:
        raise invalid_column(
            name,
            f"({array.type}) holds a value that Python cannot express: {error}; read it as "
            "Arrow, with get_many(..., as_arrow=True) or scan(...).to_arrow()",
        ) from error


def _refuse_unreadable(array: pa.Array | pa.ChunkedArray) -> None:
    """Raise ValueError for values that Arrow changes when it makes Python's of them: it cuts nanoseconds off times of day, and takes
    the least of 64 bits in nanoseconds for pandas.NaT."""
    for chunk in array.chunks if isinstance(array, pa.ChunkedArray) else [array]:
        for part in inner(chunk):
            if part.type == pa.time64("ns"):
                part.cast(pa.time64("us"))
            elif getattr(part.type, "unit", "") == "ns":
                refuse_least(part)


def refuse_least(array: pa.Array) -> None:
    """Raise ValueError for the least timestamp or duration of 64 bits: pandas and NumPy take it for a missing value."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        least = pc.min(array.view(pa.int64())).as_py()
        if least == LEAST:
            raise ValueError(f"{LEAST} {kind.unit}, which pandas takes for a missing value")


def inner(array: pa.Array) -> Iterator[pa.Array]:
    """The arrays of plain types inside an array."""
    if pa.types.is_struct(array.type):
        for part in array.flatten():
            yield from inner(part)
    elif pa.types.is_list(array.type) or pa.types.is_map(array.type):
        for part in nested.items(array)[1]:
            yield from inner(part)
    else:
        yield array


def raws(column: Column, array: pa.Array) -> list[Any]:
    """The values of an array without nulls in raw form: int, float or bytes."""
    assert array.null_count == 0
    if column.variable:
        return objects(nested.to_binary(column, array))
    values: list[Any] = Fixed(column).values(array).tolist()
    if column.type == "decimal":
        return [int.from_bytes(value, "little", signed=True) for value in values]
    return values
