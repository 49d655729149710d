"""Rows of a source as a table takes them, and the rows that do not fit.

A row fits if each value has an exact form in its column's type, no column that needs a value lacks one, and key and row are
within the limits. All of that is checked here, so that a row that fits is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ebla.pipelines.sources.readers import Part, Unfit
from ebla.pipelines.sources.texts import plain
from ebla.pipelines.sources.types import Fitted, from_text, halved
from ebla.storage.arrow_types import column_of
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows import convert
from ebla.storage.rows.python_values import UNREADABLE, shown
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column, TableSchema

_REFUSALS = (InvalidArgument, pa.ArrowException, ValueError, TypeError, OverflowError)


class FittedPart(NamedTuple):
    """`batch`: rows in the table's types. `fits`: which of them fit; values that do not fit are null. `keyed`: which have a key.
    `keys`: the encoded keys of these."""

    file: str
    batch: pa.RecordBatch
    numbers: Any
    fits: Any
    keyed: Any
    keys: pa.Array
    unfit: list[Unfit]

    @property
    def fitting(self) -> pa.RecordBatch:
        return self.batch if self.fits.all() else self.batch.filter(pa.array(self.fits))


class Fitter:
    def __init__(self, schema: TableSchema, decimal: str = ".") -> None:
        self._schema = schema
        self._decimal = decimal
        self._keys = RowCodec(schema, ())
        self._codecs: dict[tuple[str, ...], RowCodec] = {}

    def fit(self, part: Part) -> FittedPart:
        """Raises InvalidArgument with the column if no value of a column can have the table's type."""
        given = part.columns
        names = [column.name for column in self._schema.columns if column.name in given.schema.names]
        problems: dict[int, tuple[str | None, str]] = {}
        keyed = np.ones(given.num_rows, np.bool_)
        arrays = []
        for name in names:
            column = self._schema.column(name)
            array = given.column(name)
            values, bad = typed(array, column, part, self._decimal)
            lacking = np.zeros(len(values), np.bool_)
            if not column.nullable and values.null_count:
                lacking = values.is_null().to_numpy(zero_copy_only=False) & ~bad
            for at in np.flatnonzero(bad).tolist():
                problems.setdefault(at, (name, f"{_shown(array, at)} is not {column.arrow_type()}"))
            for at in np.flatnonzero(lacking).tolist():
                problems.setdefault(at, (name, "needs a value"))
            if name in self._schema.key:
                keyed &= ~(bad | lacking)
            arrays.append(values)
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        keys = self._encoded(batch, keyed, problems)
        fits = np.ones(given.num_rows, np.bool_)
        fits[list(problems)] = False
        self._check_sizes(batch, keyed, keys, fits, problems)
        unfit = [Unfit(part.file, int(part.numbers[at]), *problems[at]) for at in sorted(problems)]
        unfit = sorted([*part.unread, *unfit], key=lambda row: row.row)
        return FittedPart(part.file, batch, part.numbers, fits, keyed, keys, unfit)

    def _encoded(
        self, batch: pa.RecordBatch, keyed: Any, problems: dict[int, tuple[str | None, str]]
    ) -> pa.Array:
        """The keys of the rows that have one. A key that cannot be encoded is a problem, and no key."""
        places = np.flatnonzero(keyed)
        rows = batch.select(list(self._schema.key)).filter(pa.array(keyed))

        def encode(start: int, stop: int) -> pa.Array:
            return self._keys.encode_keys(rows.slice(start, stop - start))

        pieces, bad = halved(len(places), encode, (InvalidArgument,))
        for at, place in enumerate(places.tolist()):
            if bad[at]:
                problems.setdefault(place, self._key_problem(encode, at))
                keyed[place] = False
        kept = [piece for piece in pieces if piece is not None]
        return pa.concat_arrays(kept) if kept else pa.array([], pa.binary())

    def _key_problem(self, encode: Callable[[int, int], Any], at: int) -> tuple[str, str]:
        try:
            encode(at, at + 1)
        except InvalidArgument as error:
            return error.column or self._schema.key[0], error.message.removeprefix("row 0: ")
        raise AssertionError("this key was refused before")

    def _check_sizes(
        self,
        batch: pa.RecordBatch,
        keyed: Any,
        keys: pa.Array,
        fits: Any,
        problems: dict[int, tuple[str | None, str]],
    ) -> None:
        names = tuple(name for name in batch.schema.names if name not in self._schema.key)
        codec = self._codecs.get(names)
        if codec is None:
            codec = self._codecs[names] = RowCodec(self._schema, names)
        places = np.flatnonzero(keyed)
        rows = batch.filter(pa.array(keyed))

        def check(start: int, stop: int) -> None:
            codec.sizes(rows.slice(start, stop - start), keys[start:stop])

        _, bad = halved(len(places), check, (InvalidArgument,))
        for at in places[bad].tolist():
            problems.setdefault(at, (None, "is over the limit of a row's size"))
            fits[at] = False


def typed(array: pa.Array, column: Column, part: Part, decimal: str) -> Fitted:
    """A column of a part in the type of `column`. Raises InvalidArgument if none of its values can have this type."""
    kind = column.arrow_type()
    if column.name in part.text:
        return from_text(array, kind, decimal=decimal, json=column.name in part.quoted)
    convert.to_array(column, array[:0])  # refuses the type as a whole
    pieces, bad = halved(
        len(array), lambda start, stop: convert.to_array(column, array[start:stop]), _REFUSALS
    )
    arrays = [pa.nulls(1, kind) if piece is None else piece for piece in pieces]
    return Fitted(pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind), bad)


def in_types(part: Part, types: pa.Schema, decimal: str) -> pa.RecordBatch:
    """The rows of a part in these types. Raises InvalidArgument with the place of the first row that does not fit."""
    if part.unread:
        raise InvalidArgument(
            f"{part.unread[0].file} row {part.unread[0].row} {part.unread[0].problem}; mend the row"
        )
    arrays = []
    for field in types:
        array = part.columns.column(field.name) if field.name in part.columns.schema.names else None
        if array is None:
            arrays.append(pa.nulls(part.columns.num_rows, field.type))
            continue
        values, bad = typed(array, column_of(field), part, decimal)
        if bad.any():
            at = int(np.argmax(bad))
            raise InvalidArgument(
                f"{part.file} row {part.numbers[at]}, column {field.name!r}: {_shown(array, at)} is not {field.type}; "
                "mend the row, or leave out the rows that do not fit with --engine arrow --on-error skip",
                column=field.name,
            )
        arrays.append(values)
    return pa.RecordBatch.from_arrays(arrays, schema=types)


def _shown(array: pa.Array, at: int) -> str:
    try:
        return shown(plain(array[at]))
    except UNREADABLE:
        return f"a {array.type} that Python cannot express"
