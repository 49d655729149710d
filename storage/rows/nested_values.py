"""Values of lists, structs and maps to arrays of exactly the column's type, as storage/rows/convert.py does for plain types.

A nested column is taken apart into its fields, of all rows together; each field is converted like a column of its own, by
the same rules, and the array is put together again. A refusal names the field (`point.x`, `tags[]`) and the row of the
caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ebla.storage.columns import Column, is_list
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows import convert, nested, python_values
from ebla.storage.rows.fixed import nulls
from ebla.storage.rows.ragged import Array


def to_array(column: Column, values: Any) -> pa.Array:
    """The values as one array of the column's type, without loss. Nulls of the column itself are not checked here."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        array = decoded(column, values)
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidArgument(
                f"column {column.name!r} is not valid Arrow data: {error}; make it again", column=column.name
            ) from error
        return _from_arrow(column, array)
    if isinstance(values, np.ndarray) and values.ndim > 1 and column.type == "list":
        return _from_matrix(column, values)
    if type(getattr(values, "dtype", None)).__name__ == "ArrowDtype":  # of pandas
        return to_array(column, pa.array(values))
    if hasattr(values, "dtype") and not isinstance(values, np.ndarray):  # pandas marks nulls with NaN, too
        return _from_python(column, [None if python_values.missing(value) else value for value in values])
    return _from_python(column, list(values))


def decoded(column: Column, array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array without Arrow's encodings: dictionaries, runs, extension types."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            raise InvalidArgument(
                f"column {column.name!r} holds over 2 GiB in one call; send it in smaller batches",
                column=column.name,
            )
    while True:
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            array = array.storage
        elif pt.is_run_end_encoded(kind):
            array = pc.run_end_decode(array)
        elif pt.is_dictionary(kind):
            plain = _without_views(kind.value_type)
            if plain is not None:  # Arrow cannot gather views
                array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(plain))
            array = array.dictionary_decode()
        else:
            return array


def _without_views(kind: pa.DataType) -> pa.DataType | None:
    return pa.string() if pt.is_string_view(kind) else pa.binary() if pt.is_binary_view(kind) else None


# -- from Arrow ----------------------------------------------------------------------------------------------


def _from_arrow(column: Column, array: pa.Array) -> pa.Array:
    if pt.is_null(array.type):
        return pa.nulls(len(array), column.arrow_type())
    null = nulls(array) if array.null_count else None
    if column.type == "struct" and pt.is_struct(array.type):
        return _struct(column, array, null)
    if (column.type == "list" and is_list(array.type)) or (column.type == "map" and pt.is_map(array.type)):
        lengths, parts = nested.items(array)
        return _runs(column, lengths, parts, null)
    raise InvalidArgument(
        f"column {column.name!r} holds {column.arrow_type()}, not {array.type}; cast it to "
        f"{column.arrow_type()} first",
        column=column.name,
    )


def _struct(column: Column, array: pa.StructArray, null: Array | None) -> pa.Array:
    names = [field.name for field in array.type]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(
            f"column {column.name!r} has the field {twice!r} twice; rename one", column=column.name
        )
    _refuse_unknown(column, names, None)
    given = dict(zip(names, array.flatten(), strict=True))
    parts = [
        _field(column, field, given[field.name], None, null)
        if field.name in given
        else _field(column, field, pa.nulls(len(array)), None, null)
        for field in column.fields
    ]
    mask = None if null is None else pa.array(null)
    return pa.StructArray.from_arrays(parts, fields=list(column.arrow_type()), mask=mask)


def _runs(column: Column, lengths: Array, parts: Sequence[Any], null: Array | None) -> pa.Array:
    """Lists or maps from the values of all items, or of all keys and all values."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    made = [_field(column, field, part, rows, None) for field, part in zip(column.fields, parts, strict=True)]
    return nested.assembled(column.arrow_type(), lengths, made, null)


def _field(column: Column, field: Column, values: Any, rows: Array | None, absent: Array | None) -> pa.Array:
    """The values of one field of all rows. `rows`: the row of each value (None: its place); `absent` marks the rows whose
    field is null because the struct around it is."""
    step = "[]" if column.type == "list" else f".{field.name}"
    inner = msgspec.structs.replace(field, name=column.name + step)
    try:
        array = convert.to_array(inner, values)
        if not field.nullable and array.null_count:
            null = nulls(array) if absent is None else nulls(array) & ~absent
            if null.any():
                row = int(np.argmax(null))
                raise InvalidArgument(
                    f"column {inner.name!r} may not be null, but row {row} has no value for it; give it one",
                    row=row,
                )
        return array
    except InvalidArgument as error:
        _raise_at(error, column, rows)


def _raise_at(error: InvalidArgument, column: Column, rows: Array | None) -> NoReturn:
    """The refusal of a field with the caller's row, in place of that in the array of all values."""
    row, message = error.row, error.message
    if row is not None and rows is not None:
        row = int(rows[row])
        message = re.sub(rf"\brow {error.row}\b", f"row {row}", message, count=1)
    raise InvalidArgument(message, column=column.name, row=row) from error


# -- from Python ---------------------------------------------------------------------------------------------


def _from_matrix(column: Column, values: Array) -> pa.Array:
    """One list per row of a NumPy array."""
    flat = values.reshape(-1, *values.shape[2:])
    return _runs(column, np.full(len(values), values.shape[1], np.int64), [flat], None)


def _from_python(column: Column, values: list[Any]) -> pa.Array:
    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    places = np.flatnonzero(~missing)
    found = [value for value in values if value is not None] if missing.any() else values
    fits = python_values.fits(column)
    wrong = {kind for kind in set(map(type, found)) if not fits(kind)}
    if wrong:
        _refuse(column, values, next(at for at, value in enumerate(values) if type(value) in wrong))
    try:
        made = _assemblers[column.type](column, found)
    except InvalidArgument as error:
        _raise_at(error, column, places)
    return nested.spread(made, missing) if missing.any() else made


def _structs(column: Column, values: list[Mapping[str, Any]]) -> pa.Array:
    known = {field.name for field in column.fields}
    if not known.issuperset(chain.from_iterable(values)):
        row = next(row for row, value in enumerate(values) if not known.issuperset(value))
        _refuse_unknown(column, values[row], row)
    parts = [
        _field(column, field, [value.get(field.name) for value in values], None, None)
        for field in column.fields
    ]
    return pa.StructArray.from_arrays(parts, fields=list(column.arrow_type()))


def _lists(column: Column, values: list[Any]) -> pa.Array:
    for row, value in enumerate(values):
        if isinstance(value, np.ndarray) and not value.ndim:
            _refuse(column, values, row)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    forms = {(value.dtype, value.shape[1:]) if type(value) is np.ndarray else None for value in values}
    if len(forms) == 1 and None not in forms and values[0].dtype != object:
        return _runs(column, lengths, [np.concatenate(values)], None)
    flat = chain.from_iterable(
        value.tolist() if isinstance(value, np.ndarray) and value.dtype == object else value
        for value in values
    )
    return _runs(column, lengths, [list(flat)], None)


def _maps(column: Column, values: list[Any]) -> pa.Array:
    pairs = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
    for row, each in enumerate(pairs):
        if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in each):
            _refuse(column, values, row)
    lengths = np.fromiter(map(len, pairs), np.int64, len(pairs))
    flat = list(chain.from_iterable(pairs))
    return _runs(column, lengths, [[key for key, _ in flat], [value for _, value in flat]], None)


_assemblers: dict[str, Callable[[Column, list[Any]], pa.Array]] = {
    "struct": _structs,
    "list": _lists,
    "map": _maps,
}


def _refuse(column: Column, values: Sequence[Any], row: int) -> NoReturn:
    raise InvalidArgument(
        f"column {column.name!r}, row {row}: {python_values.shown(values[row])} is not "
        f"{python_values.expected(column)}; {python_values.remedy(column)}",
        column=column.name,
        row=row,
    )


def _refuse_unknown(column: Column, names: Iterable[Any], row: int | None) -> None:
    known = [field.name for field in column.fields]
    for name in names:
        if name not in known:
            where = "" if row is None else f", row {row}"
            raise InvalidArgument(
                f"column {column.name!r}{where}: there is no field {name!r}; the fields are {', '.join(known)}",
                column=column.name,
                row=row,
            )
