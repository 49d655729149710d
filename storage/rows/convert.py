"""Rows in the user's form to one Arrow batch with exactly a table's columns.

Accepted: a pa.Table or RecordBatch, a pandas DataFrame, records of NumPy, a dict of columns, a list of dicts
(client/write/inputs.py makes these of other inputs). Conversions lose nothing:
refused are an int that does not fit or that a float column would round, a float with a fraction or too large to be exact
(2**53) for an integer column, a time finer than the column's unit, a datetime without a zone for a column with one (and the reverse). Only a double for a
float column is rounded. A missing nullable column is null. Every refusal is an InvalidArgument with column, row and remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ebla.storage.columns import Column
from ebla.storage.errors import InvalidArgument, did_you_mean, invalid_column
from ebla.storage.rows import nested, nested_values, python_values
from ebla.storage.rows.fixed import Fixed, nulls

_REFUSALS = (pa.ArrowException, ValueError, TypeError, OverflowError)


class Columns:
    """User rows as named columns: `names`, the number of `rows`, and `get(name)`: an Arrow array or a list. `each`: the
    rows if they are dicts, which may have different columns."""

    def __init__(
        self,
        names: Sequence[str],
        rows: int,
        get: Callable[[str], Any],
        remedy: str,
        each: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.names, self.rows, self.get, self.remedy, self.each = list(names), rows, get, remedy, each


def to_batch(rows: Any, columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    """One record batch of `schema`, whose fields are those of `columns`."""
    given = columns_of(rows)
    _check_names(rows, given, dict.fromkeys(column.name for column in columns))
    present = set(given.names)
    arrays = []
    for column in columns:
        if column.name in present and column.default is not None and given.each is not None:
            default = defaults(column, 1)[0].as_py()
            array = to_array(column, [row.get(column.name, default) for row in given.each])
        elif column.name in present:
            array = to_array(column, given.get(column.name))
        elif column.default is not None:
            array = defaults(column, given.rows)
        elif column.nullable or not given.rows:
            array = nested.absent(column.arrow_type(), given.rows)
        else:
            raise invalid_column(column.name, f"may not be null and is missing; {given.remedy}")
        if len(array) != given.rows:
            raise invalid_column(
                column.name,
                f"has {len(array)} values and the first column {given.rows}; "
                "give all columns the same number",
            )
        refuse_nulls(column, array)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def pack_default(column: Column, value: Any) -> bytes | None:
    """The value as a schema keeps it: text and nested values as bytes, other types as the slot of a row
    (storage/rows/fixed.py)."""
    if value is None:
        return None
    array = to_array(column, [value])
    if column.variable:
        packed: bytes = nested.to_binary(column, array)[0].as_py()
        return packed
    return Fixed(column).values(array).tobytes()


def defaults(column: Column, rows: int) -> pa.Array:
    """The column's default, `rows` times. Raises InvalidArgument if the packed default is invalid."""
    kind, packed = column.arrow_type(), column.default
    if packed is None:
        return nested.absent(kind, rows)
    try:
        if column.variable:
            texts = pa.repeat(pa.scalar(packed, pa.binary()), rows)
            made = nested.from_binary(column, texts, None)
            made.validate(full=True)
            return made
        fixed = Fixed(column)
        return fixed.array(np.frombuffer(packed * rows, fixed.slot), None)
    except (ValueError, pa.ArrowException) as error:
        raise invalid_column(column.name, f": {packed[:40]!r} is no default of type {kind}") from error


def refuse_nulls(column: Column, array: pa.Array) -> None:
    if not column.nullable and array.null_count:
        row = int(np.argmax(nulls(array)))
        raise invalid_column(
            column.name, f"may not be null, but row {row} has no value for it; give it one", row
        )


def columns_of(rows: Any) -> Columns:
    add = "add it to the rows"
    if isinstance(rows, (pa.RecordBatch, pa.Table)):
        return Columns(rows.schema.names, rows.num_rows, rows.column, add)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(rows, pandas.DataFrame):
        if any(name is not None for name in rows.index.names):
            add = f"add it (the index {list(rows.index.names)} is not a column: call reset_index() first)"
        return Columns(list(rows.columns), len(rows), rows.__getitem__, add)
    if isinstance(rows, np.ndarray) and rows.dtype.names:
        return Columns(rows.dtype.names, len(rows), lambda name: _native(rows[name]), add)
    if isinstance(rows, Mapping):
        for name, values in rows.items():
            if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
                raise invalid_column(str(name), "is not a list of values; for a single row give [{...}]")
        count = len(next(iter(rows.values()))) if rows else 0
        return Columns(list(rows), count, rows.__getitem__, add)
    if isinstance(rows, Sequence) and not isinstance(rows, (str, bytes)):
        if not all(issubclass(kind, Mapping) for kind in set(map(type, rows))):
            place = next(place for place, row in enumerate(rows) if not isinstance(row, Mapping))
            raise InvalidArgument(
                f"row {place} is {type(rows[place]).__name__}; give rows as dicts of column to value",
                row=place,
            )
        names = dict.fromkeys(chain.from_iterable(rows))
        return Columns(list(names), len(rows), lambda name: [row.get(name) for row in rows], add, rows)
    taken = "a pyarrow Table or RecordBatch, a frame of Polars or pandas, an iterable of record batches, or a list of dicts"
    raise InvalidArgument(
        f"rows are {type(rows).__name__}; {_UNREAD.get(type(rows).__module__.partition('.')[0], f'give {taken}')}"
    )


# What makes rows of the lazy objects of a package.
_UNREAD = {
    "polars": "give rows.collect()",
    "pyspark": "ebla.pipelines.feed.feed writes a DataFrame of Spark",
    "ray": "ebla.ray_data.write_table writes a Dataset of Ray",
}


def _native(values: Any) -> Any:
    """A field of NumPy's records in this machine's byte order."""
    return values.astype(values.dtype.newbyteorder("="))


def _check_names(rows: Any, given: Columns, known: Mapping[str, None]) -> None:
    if len(set(given.names)) != len(given.names):
        twice = next(name for name in given.names if given.names.count(name) > 1)
        raise invalid_column(str(twice), "appears twice in the rows; rename or drop one")
    unknown = [name for name in given.names if name not in known]
    if not unknown:
        return
    row = None
    if not isinstance(rows, Mapping) and isinstance(rows, Sequence):
        row = next(place for place, each in enumerate(rows) if unknown[0] in each)
    name = str(unknown[0])
    hint = did_you_mean(name, known) or f"; drop it, the columns are {', '.join(known)}"
    raise InvalidArgument(f"there is no column {unknown[0]!r} here{hint}", column=name, row=row)


def to_array(column: Column, values: Any) -> pa.Array:
    """The values as one array of the column's type, without loss. Nulls are not checked here."""
    if column.nested:
        return nested_values.Builder(column, to_array).to_array(values)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return _cast(column, values)
    if getattr(getattr(values, "dtype", None), "char", "") == "g":  # long doubles, which Arrow does not have
        values = _long_doubles(values)
    elif isinstance(values, np.ndarray) and values.dtype == object:
        values = values.tolist()
    elif hasattr(values, "dtype"):
        checked = python_values.objects_to_check(column, values)
        values = values if checked is None else checked
    if not hasattr(values, "dtype"):
        return _from_python(column, values if isinstance(values, list) else list(values))
    try:
        if isinstance(values, np.ndarray):
            array = pa.array(python_values.times_for_arrow(column, values))
        else:
            array = pa.array(values, from_pandas=True)
    except _REFUSALS as error:
        raise invalid_column(column.name, f": {error}; give values of type {column.arrow_type()}") from error
    return _cast(column, array)


def _long_doubles(values: Any) -> list[Any]:
    """The values of an array or of a pandas column, the missing ones as None."""
    if isinstance(values, np.ndarray):
        found: list[Any] = values.tolist()  # None for each that is masked
        return found
    return [None if python_values.missing(value) else value for value in values]


def raw(column: Column, value: Any) -> Any:
    """The raw form of one value (storage/rows/scalars.py), by the exact, slow conversion."""
    if value is None:
        raise invalid_column(column.name, "needs a value here; give it one")
    return python_values.raws(column, to_array(column, [value]))[0]


def _from_python(column: Column, values: list[Any]) -> pa.Array:
    fits = python_values.fits(column)
    wrong = {kind for kind in set(map(type, values)) if kind is not type(None) and not fits(kind)}
    if wrong:
        _refuse(column, values, next(place for place, value in enumerate(values) if type(value) in wrong))
    if column.type in ("timestamp", "time"):
        misplaced = python_values.first_unfit_time(column, values)
        if misplaced is not None:
            _refuse(column, values, misplaced)
    elif column.type in _EXACTLY:
        exact, misplaced = _EXACTLY[column.type](column, values)
        if misplaced is not None:
            _refuse(column, values, misplaced)
        values = exact
    kind = python_values.exact_type(column)
    try:
        array = pa.array(values, kind)
    except _REFUSALS as error:
        bad = _first_bad(len(values), lambda start, stop: pa.array(values[start:stop], kind))
        _refuse(column, values, bad, error)
    return _cast(column, array, values)


_EXACTLY: dict[str, Callable[[Column, list[Any]], tuple[list[Any], int | None]]] = {
    "decimal": python_values.exact_decimals,
    "duration": python_values.exact_durations,
    "float": python_values.exact_floats,
    "double": python_values.exact_floats,
}


def _cast(column: Column, array: Any, given: list[Any] | None = None) -> pa.Array:
    """`given`: the Python values of the array, for messages."""
    kind = pa.string() if column.type == "json" else column.arrow_type()
    array = nested_values.decoded(column, array)
    if column.type == "duration" and pt.is_interval(array.type):
        array = _durations(column, array)
    if array.type != kind:
        if not _related(column, array.type):
            raise invalid_column(
                column.name, f"holds {kind}, not {array.type}; {_remedy(column, array.type)}"
            )
        source = array.type
        try:
            array = _exact_cast(array, kind)
        except _REFUSALS as error:
            bad = _first_bad(len(array), lambda start, stop: _exact_cast(array[start:stop], kind))
            if given is None:
                _refuse_finer(column, array, bad)
            _refuse(column, array if given is None else given, bad, error)
        if pt.is_floating(source) and pt.is_integer(kind):
            _refuse_rounded(column, source, array)
    if column.variable or column.type == "time":
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            bad = _first_bad(len(array), lambda start, stop: array[start:stop].validate(full=True))
            rule = "strings must be UTF-8" if column.variable else "a time is within one day"
            raise invalid_column(column.name, f", row {bad}: {error}; {rule}", bad) from error
    return pa.ExtensionArray.from_storage(column.arrow_type(), array) if column.type == "json" else array


def _refuse_finer(column: Column, array: pa.Array, row: int) -> None:
    """Refuse a time that is finer than the column's, with the part that would be lost."""
    source, kind, one = array.type, column.arrow_type(), array[row : row + 1]
    if pt.is_date64(source):  # it counts milliseconds
        unit, step, better = "ms", 86_400_000, pa.timestamp("ms")
        texts = one.cast(better).cast(pa.string())
    elif pt.is_time(source) or pt.is_timestamp(source) or pt.is_duration(source):
        unit, better = source.unit, source
        step = python_values.NANOSECONDS[str(column.unit)] // python_values.NANOSECONDS[unit]
        texts = (one.view(pa.timestamp(unit)) if pt.is_timestamp(source) else one).cast(pa.string())
    else:
        return
    lost = one.view(pa.int64() if source.bit_width == 64 else pa.int32())[0].as_py() % max(step, 1)
    text = texts[0].as_py()
    if lost and not text.startswith("<"):  # "<value out of range: ...>"
        suffix = f" {unit}" if pt.is_duration(source) else "Z" if getattr(source, "tz", None) else ""
        raise invalid_column(
            column.name,
            f", row {row}: {text}{suffix} has {lost} {unit} that {kind} would lose; round it first, or use a column of type {better}",
            row,
        )


_DIGITS = {16: 11, 32: 24, 64: 53}  # of a float, by its bits


def _refuse_rounded(column: Column, source: pa.DataType, array: pa.Array) -> None:
    """Refuse integers that were floats of type `source` and may be rounded: two integers from this size on are one float."""
    digits = _DIGITS[source.bit_width]
    if digits >= array.type.bit_width:
        return
    limit = pa.scalar(1 << digits, array.type)
    large = pc.greater_equal(array, limit)
    if not column.type.startswith("u"):
        large = pc.or_(large, pc.less_equal(array, pc.negate(limit)))
    if pc.any(large).as_py():
        row = pc.index(large, True).as_py()
        raise invalid_column(
            column.name,
            f", row {row}: {array[row].as_py()} came as a float, and floats of 2**{digits} and more may be rounded; "
            "give integers, which pandas keeps beside nulls as Int64, and Polars and scan.to_arrow() always",
            row,
        )


_INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])


def _durations(column: Column, array: pa.Array) -> pa.Array:
    """DuckDB's intervals, which have months, days of 24 hours and nanoseconds, as durations."""
    if not len(array):
        return pa.nulls(0, column.arrow_type())
    null = nulls(array)
    parts = np.frombuffer(array.buffers()[1], _INTERVAL, len(array), array.offset * 16)
    unit = python_values.NANOSECONDS[str(column.unit)]
    per_day = 86_400 * 10**9 // unit
    days, (whole, rest) = parts["days"].astype(np.int64), np.divmod(parts["nanoseconds"], unit)
    limit = (1 << 62) // per_day
    bad = ~null & ((parts["months"] != 0) | (rest != 0) | (np.abs(days) > limit) | (np.abs(whole) > 1 << 62))
    if bad.any():
        _refuse(column, array, int(np.argmax(bad)))
    return pa.array(np.where(null, 0, days * per_day + whole), pa.int64(), mask=null).cast(
        column.arrow_type()
    )


def _exact_cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pt.is_decimal(kind):
        return to_decimals(array.cast(pa.decimal128(20, 0)) if pt.is_integer(array.type) else array, kind)
    if pt.is_floating(kind) and pt.is_integer(array.type):
        return _exact_floats(array, kind)
    made = array.cast(kind)
    if pt.is_float32(kind) and pt.is_float64(array.type) and len(array):
        infinite = pc.and_(pc.is_inf(made), pc.invert(pc.is_inf(array)))
        if pc.any(infinite).as_py():
            raise InvalidArgument("the value is too large for a float")
    return made


def to_decimals(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast decimals, or texts, to a decimal type. Raises ArrowInvalid if a value does not fit.

    Arrow moves the point within 128 bits, and keeps what is left of a value that becomes too large. In 256 bits none does.
    """
    if pt.is_decimal256(array.type) and kind.scale > array.type.scale:
        array = array.cast(pa.decimal128(38, array.type.scale))  # the digits stay: one with more does not fit
    return array.cast(pa.decimal256(76, kind.scale)).cast(kind)


def _exact_floats(array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:  # an int is above 2**24 or 2**53, and may be exact nevertheless
        made = array.cast(kind, safe=False)
        if not made.cast(pa.decimal128(20, 0)).equals(array.cast(pa.decimal128(20, 0))):
            raise InvalidArgument("a float would round it") from None
        return made


def _related(column: Column, given: pa.DataType) -> bool:
    """Whether values of type `given` may be cast to the column's type, if each one fits."""
    if pt.is_null(given):
        return True
    if column.type == "timestamp":
        return bool(pt.is_timestamp(given) and (given.tz is None) == (column.zone is None))
    return any(test(given) for test in _RELATED.get(column.type, ()))


def _is_whole_decimal(given: pa.DataType) -> bool:
    return bool(pt.is_decimal(given) and given.scale == 0)


_NUMBERS = (pt.is_integer, pt.is_floating)
_RELATED: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    **dict.fromkeys(
        (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), (*_NUMBERS, _is_whole_decimal)
    ),
    **dict.fromkeys(("float", "double"), _NUMBERS),
    **dict.fromkeys(("string", "json"), (pt.is_large_string, pt.is_string_view)),
    "binary": (pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary),
    "date": (pt.is_date,),
    "time": (pt.is_time,),
    "duration": (pt.is_duration,),
    "decimal": (pt.is_decimal, pt.is_integer),
}


def _remedy(column: Column, given: pa.DataType) -> str:
    if column.type == "timestamp" and pt.is_timestamp(given):
        return "give times a zone" if column.zone else "give times without a zone"
    return f"cast it to {column.arrow_type()} first"


def _refuse(column: Column, values: Any, row: int, error: Exception | None = None) -> None:
    value = None if isinstance(values, pa.Array) else values[row]
    raise invalid_column(
        column.name,
        f", row {row}: {_shown(values, row)} is not {python_values.expected(column)}; "
        f"{python_values.remedy(column, value)}",
        row,
    ) from error


def _shown(values: Any, row: int) -> str:
    if not isinstance(values, pa.Array):
        return python_values.shown(values[row])
    try:
        return python_values.shown(values[row].as_py())
    except python_values.UNREADABLE:  # Arrow can hold it, Python cannot
        return f"a {values.type} that Python cannot express"


def _first_bad(count: int, attempt: Callable[[int, int], Any]) -> int:
    """The first of `count` rows on which `attempt(start, stop)` fails, given that it fails on all rows together."""
    start, stop = 0, count
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            attempt(start, middle)
            start = middle
        except _REFUSALS:
            stop = middle
    return start
