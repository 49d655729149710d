"""Columns from Arrow's types.

Encodings of the same values (dictionary, run-end, large and view forms) are taken as the plain type. Every type that
storage/columns.py does not have is refused with the reason and a remedy.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from ebla.storage.columns import JSON_INSIDE, NESTED, SIMPLE, TIMED, Column, check_depth
from ebla.storage.errors import InvalidArgument

_JSON = Column("", "json").arrow_type()
_NAMES = {_JSON: "json", **{Column("", name).arrow_type(): name for name in SIMPLE}}


def column_of(field: pa.Field) -> Column:
    """Raises InvalidArgument with the column, the reason and a remedy for a type that ebla does not store."""
    return _column(field.name, field.type, field.nullable, _Place(field.name, field.name, 0))


class _Place(NamedTuple):
    """The place of a type in a column, for messages."""

    column: str
    path: str
    depth: int

    def inside(self, step: str) -> _Place:
        return _Place(self.column, self.path + step, self.depth + 1)


def _column(name: str, kind: pa.DataType, nullable: bool, place: _Place) -> Column:
    check_depth(place.depth, place.path, place.column)
    if kind in _NAMES and (kind != _JSON or not place.depth):
        return Column(name, _NAMES[kind], nullable)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return _column(name, kind.value_type, nullable, place)
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return Column(name, "string", nullable)
    if pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return Column(name, "binary", nullable)
    if isinstance(kind, pa.JsonType) and not place.depth:
        return Column(name, "json", nullable)
    if pt.is_timestamp(kind):
        return Column(name, "timestamp", nullable, unit=kind.unit, zone=kind.tz)
    if pt.is_time(kind) or pt.is_duration(kind):
        return Column(name, "time" if pt.is_time(kind) else "duration", nullable, unit=kind.unit)
    if pt.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return Column(name, "decimal", nullable, precision=kind.precision, scale=kind.scale)
    fields = _fields(kind, place)
    if fields:
        made = "map" if pt.is_map(kind) else "struct" if pt.is_struct(kind) else "list"
        return Column(name, made, nullable, fields=fields)
    reason, remedy = _reason(kind)
    raise InvalidArgument(
        f"column {place.path!r} has type {kind}, which ebla does not store: {reason}; {remedy}",
        column=place.column,
    )


def is_list(kind: pa.DataType) -> bool:
    """Any of Arrow's layouts of a list."""
    tests = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    return any(test(kind) for test in tests)


def _fields(kind: pa.DataType, place: _Place) -> tuple[Column, ...]:
    """The fields of a nested type; none for other types."""
    if pt.is_map(kind):
        key = _column("key", kind.key_type, False, place.inside(".key"))
        value = kind.item_field
        return key, _column("value", value.type, value.nullable, place.inside(".value"))
    if pt.is_struct(kind):
        return tuple(_column(f.name, f.type, f.nullable, place.inside(f".{f.name}")) for f in kind)
    if is_list(kind):
        return (_column("item", kind.value_type, kind.value_field.nullable, place.inside("[]")),)
    return ()


def _reason(kind: pa.DataType) -> tuple[str, str]:
    """Why this type is not stored, and what to do."""
    if pt.is_decimal(kind):
        if kind.scale < 0:
            return "its scale is negative", "use decimal128 with scale 0"
        return "decimals have 38 digits at most", "cast it to decimal128(38, s), or to string"
    if pt.is_union(kind):
        return "its values have no common type", "use a struct with one nullable field for each alternative"
    if pt.is_interval(kind):
        return "the length of a month is not fixed", "use duration, or an integer for each part"
    if pt.is_null(kind):
        return "it has no values", "name a type, such as string"
    if pt.is_struct(kind):
        return "it has no fields", "name one field at least"
    if pt.is_float16(kind):
        return "it is not exact in Python", "use float32"
    if pt.is_date64(kind):
        return "it spends 8 bytes on a day", "use date32"
    if pt.is_fixed_size_binary(kind):
        return "binary columns have no fixed size", "use binary, which takes the same values"
    if isinstance(kind, pa.JsonType):
        return JSON_INSIDE, "use string there"
    if isinstance(kind, pa.BaseExtensionType):
        if pt.is_fixed_size_binary(kind.storage_type):
            return "it is an extension type", _reason(kind.storage_type)[1]
        return "it is an extension type", f"use its storage type, {kind.storage_type}"
    names = ", ".join((*SIMPLE, "json", *TIMED, "decimal128", *NESTED))
    return "there is no such column type", f"use one of {names}"
