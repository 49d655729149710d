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
import pyarrow.types as pt

from ebla.storage.arrow_types import is_list
from ebla.storage.columns import Column
from ebla.storage.errors import InvalidArgument, invalid_column
from ebla.storage.rows import nested, python_values
from ebla.storage.rows.fixed import nulls
from ebla.storage.rows.ragged import Array

Convert = Callable[[Column, Any], pa.Array]


class Builder:
    """Makes arrays of one nested column. `convert` makes those of its fields: storage/rows/convert.py's `to_array`."""

    def __init__(self, column: Column, convert: Convert) -> None:
        self.column, self.convert = column, convert

    def to_array(self, values: Any) -> pa.Array:
        """The values as one array of the column's type, without loss. Nulls of the column itself are not checked here."""
        if isinstance(values, (pa.Array, pa.ChunkedArray)):
            array = decoded(self.column, values)
            try:
                array.validate(full=True)
            except pa.ArrowInvalid as error:
                raise invalid_column(
                    self.column.name, f"is not valid Arrow data: {error}; make it again"
                ) from error
            return self._from_arrow(array)
        if isinstance(values, np.ndarray) and values.ndim > 1 and self.column.type == "list":
            return self._from_matrix(values)
        if type(getattr(values, "dtype", None)).__name__ == "ArrowDtype":  # of pandas
            return self.to_array(pa.array(values))
        if hasattr(values, "dtype") and not isinstance(values, np.ndarray):
            # pandas marks nulls with NaN, too
            return self._from_python([None if python_values.missing(value) else value for value in values])
        return self._from_python(list(values))

    # -- from Arrow ----------------------------------------------------------------------------------------------

    def _from_arrow(self, array: pa.Array) -> pa.Array:
        if pt.is_null(array.type):
            return nested.absent(self.column.arrow_type(), len(array))
        null = nulls(array) if array.null_count else None
        if self.column.type == "struct" and pt.is_struct(array.type):
            return self._struct(array, null)
        if (self.column.type == "list" and is_list(array.type)) or (
            self.column.type == "map" and pt.is_map(array.type)
        ):
            lengths, parts = nested.items(array)
            return self._runs(lengths, parts, null)
        raise invalid_column(
            self.column.name,
            f"holds {self.column.arrow_type()}, not {array.type}; cast it to "
            f"{self.column.arrow_type()} first",
        )

    def _struct(self, array: pa.StructArray, null: Array | None) -> pa.Array:
        names = [field.name for field in array.type]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise invalid_column(self.column.name, f"has the field {twice!r} twice; rename one")
        _refuse_unknown(self.column, names, None)
        given = dict(zip(names, array.flatten(), strict=True))
        parts = [
            self._field(field, given[field.name], None, null)
            if field.name in given
            else self._field(field, pa.nulls(len(array)), None, null)
            for field in self.column.fields
        ]
        made = pa.StructArray.from_arrays(parts, fields=list(self.column.arrow_type()))
        return made if null is None else nested.spread(made.filter(pa.array(~null)), null)

    def _runs(self, lengths: Array, parts: Sequence[Any], null: Array | None) -> pa.Array:
        """Lists or maps from the values of all items, or of all keys and all values."""
        rows = np.repeat(np.arange(len(lengths)), lengths)
        made = [
            self._field(field, part, rows, None)
            for field, part in zip(self.column.fields, parts, strict=True)
        ]
        return nested.assembled(self.column.arrow_type(), lengths, made, null)

    def _field(self, field: Column, values: Any, rows: Array | None, absent: Array | None) -> pa.Array:
        """The values of one field of all rows. `rows`: the row of each value (None: its place); `absent` marks the rows whose
        field is null because the struct around it is."""
        step = "[]" if self.column.type == "list" else f".{field.name}"
        inner = msgspec.structs.replace(field, name=self.column.name + step)
        try:
            array = self.convert(inner, values)
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
            _raise_at(error, self.column, rows)

    # -- from Python ---------------------------------------------------------------------------------------------

    def _from_matrix(self, values: Array) -> pa.Array:
        """One list per row of a NumPy array."""
        flat = values.reshape(-1, *values.shape[2:])
        return self._runs(np.full(len(values), values.shape[1], np.int64), [flat], None)

    def _from_python(self, values: list[Any]) -> pa.Array:
        missing = np.fromiter((value is None for value in values), np.bool_, len(values))
        places = np.flatnonzero(~missing)
        found = [value for value in values if value is not None] if missing.any() else values
        fits = python_values.fits(self.column)
        wrong = {kind for kind in set(map(type, found)) if not fits(kind)}
        if wrong:
            _refuse(self.column, values, next(at for at, value in enumerate(values) if type(value) in wrong))
        try:
            made = {"struct": self._structs, "list": self._lists, "map": self._maps}[self.column.type](found)
        except InvalidArgument as error:
            _raise_at(error, self.column, places)
        return nested.spread(made, missing) if missing.any() else made

    def _structs(self, values: list[Mapping[str, Any]]) -> pa.Array:
        known = {field.name for field in self.column.fields}
        if not known.issuperset(chain.from_iterable(values)):
            row = next(row for row, value in enumerate(values) if not known.issuperset(value))
            _refuse_unknown(self.column, values[row], row)
        parts = [
            self._field(field, [value.get(field.name) for value in values], None, None)
            for field in self.column.fields
        ]
        return pa.StructArray.from_arrays(parts, fields=list(self.column.arrow_type()))

    def _lists(self, values: list[Any]) -> pa.Array:
        for row, value in enumerate(values):
            if isinstance(value, np.ndarray) and not value.ndim:
                _refuse(self.column, values, row)
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        forms = {(value.dtype, value.shape[1:]) if type(value) is np.ndarray else None for value in values}
        if len(forms) == 1 and None not in forms and values[0].dtype != object:
            return self._runs(lengths, [np.concatenate(values)], None)
        flat = chain.from_iterable(
            value.tolist() if isinstance(value, np.ndarray) and value.dtype == object else value
            for value in values
        )
        return self._runs(lengths, [list(flat)], None)

    def _maps(self, values: list[Any]) -> pa.Array:
        pairs = [list(value.items()) if isinstance(value, Mapping) else value for value in values]
        for row, each in enumerate(pairs):
            if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in each):
                _refuse(self.column, values, row)
        lengths = np.fromiter(map(len, pairs), np.int64, len(pairs))
        flat = list(chain.from_iterable(pairs))
        return self._runs(lengths, [[key for key, _ in flat], [value for _, value in flat]], None)


def decoded(column: Column, array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array without Arrow's encodings: dictionaries, runs, extension types."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            raise invalid_column(column.name, "holds over 2 GiB in one call; send it in smaller batches")
    while True:
        kind = array.type
        if isinstance(kind, pa.BaseExtensionType):
            _refuse_tensor(column, kind)
            array = array.storage
        elif pt.is_run_end_encoded(kind):
            array = _gathered(column, array.values, _places(array))
        elif pt.is_dictionary(kind):
            array = _gathered(column, array.dictionary, array.indices)
        else:
            return array


def _places(array: pa.RunEndEncodedArray) -> pa.Array:
    """For each row, the place of its value among the values of the runs."""
    ends = np.clip(array.run_ends.to_numpy().astype(np.int64) - array.offset, 0, len(array))
    return pa.array(np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)))


def _gathered(column: Column, values: pa.Array, places: pa.Array) -> pa.Array:
    values = decoded(column, values)
    plain = _without_views(values.type)  # Arrow cannot gather views
    try:
        return (values if plain is None else values.cast(plain)).take(places)
    except pa.ArrowException as error:
        raise invalid_column(
            column.name,
            f"has encoded values of {values.type} that Arrow cannot decode: {error}; send them as plain values",
        ) from error


def _refuse_tensor(column: Column, kind: Any) -> None:
    """The storage of a tensor has its elements in one run, without the dimensions."""
    dimensions = len(getattr(kind, "shape", ()))
    if dimensions > 1:
        raise invalid_column(
            column.name,
            f"holds {column.arrow_type()}, not tensors of {dimensions} dimensions; give each as a list "
            "of lists, for a column of that type, or as one flat list",
        )


def _without_views(kind: pa.DataType) -> pa.DataType | None:
    return pa.string() if pt.is_string_view(kind) else pa.binary() if pt.is_binary_view(kind) else None


def _raise_at(error: InvalidArgument, column: Column, rows: Array | None) -> NoReturn:
    """The refusal of a field with the caller's row, in place of that in the array of all values."""
    row, message = error.row, error.message
    if row is not None and rows is not None:
        row = int(rows[row])
        message = re.sub(rf"\brow {error.row}\b", f"row {row}", message, count=1)
    raise InvalidArgument(message, column=column.name, row=row) from error


def _refuse(column: Column, values: Sequence[Any], row: int) -> NoReturn:
    raise invalid_column(
        column.name,
        f", row {row}: {python_values.shown(values[row])} is not "
        f"{python_values.expected(column)}; {python_values.remedy(column, values[row])}",
        row,
    )


def _refuse_unknown(column: Column, names: Iterable[Any], row: int | None) -> None:
    known = [field.name for field in column.fields]
    for name in names:
        if name not in known:
            where = "" if row is None else f", row {row}"
            raise invalid_column(
                column.name, f"{where}: there is no field {name!r}; the fields are {', '.join(known)}", row
            )
