"""Columns of a table and their types.

    whole numbers        int8..int64, uint8..uint64
    other fixed widths   float32, float64, bool, date32, timestamp(unit, zone), time(unit), duration(unit),
                         decimal128(p, s)
    texts                string, binary, json
    nested               list, struct, map, of any of these except json

Arrow has more types. Encodings of the same values (dictionary, run-end, large and view forms) are taken as the plain
type. Every other type is refused with the reason and a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from ebla.storage.errors import InvalidArgument, OverLimit

NAME_MAX = 256
NESTING_MAX = 16  # levels of one nested type
FIELDS_MAX = 300  # of one nested type, on all levels together

_SIMPLE: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "json": pa.json_(pa.string()),
}
_NAMES = {kind: name for name, kind in _SIMPLE.items()}
_JSON_INSIDE = "Arrow cannot filter JSON inside of another type"
UNITS = ("s", "ms", "us", "ns")
TIMED = ("timestamp", "time", "duration")
NESTED = ("list", "struct", "map")
UNORDERED = ("json", *NESTED)  # neither in a key nor in a comparison
_OFFSET = re.compile(r"[+-]([01][0-9]|2[0-3]):[0-5][0-9]")
# Files beside the zones that differ between hosts.
_NO_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")


class FormerName(msgspec.Struct, frozen=True, array_like=True):
    """The name of a column in the versions before `until`."""

    until: int
    name: str


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column, or one field of a nested one. `type` is a name of _SIMPLE; `timestamp` (with `unit` and `zone`); `time`
    or `duration` (with `unit`); `decimal` (with `precision` 1..38 and `scale`); `list` (`fields`: its item), `map` (its key
    and value) or `struct` (its fields).

    In an altered table (storage/rows/altered.py): `id` identifies the column across renames; rows written in versions
    since <= v < until have the column (`until` 0: no end); `default`: the value in other rows, as packed by
    storage/rows/convert.py.
    """

    name: str
    type: str
    nullable: bool = True
    unit: str | None = None
    zone: str | None = None
    precision: int | None = None
    scale: int | None = None
    id: int = 0
    since: int = 0
    until: int = 0
    default: bytes | None = None
    names: tuple[FormerName, ...] = ()
    fields: tuple[Column, ...] = ()

    def name_at(self, version: int) -> str:
        return next((former.name for former in self.names if version < former.until), self.name)

    def arrow_type(self) -> pa.DataType:
        match self.type:
            case "timestamp":
                return pa.timestamp(self.unit, self.zone)
            case "time":
                return pa.time32(self.unit) if self.unit in ("s", "ms") else pa.time64(self.unit)
            case "duration":
                return pa.duration(self.unit)
            case "decimal":
                return pa.decimal128(self.precision, self.scale)
            case "list":
                return pa.list_(self.fields[0].arrow_field())
            case "map":
                return pa.map_(self.fields[0].arrow_type(), self.fields[1].arrow_field())
            case "struct":
                return pa.struct([field.arrow_field() for field in self.fields])
        return _SIMPLE[self.type]

    def arrow_field(self) -> pa.Field:
        return pa.field(self.name, self.arrow_type(), self.nullable)

    @property
    def nested(self) -> bool:
        return self.type in NESTED

    @property
    def variable(self) -> bool:
        return self.type in ("string", "binary", *UNORDERED)

    @property
    def unsigned(self) -> bool:
        return self.type.startswith("uint")

    @staticmethod
    def from_arrow(field: pa.Field) -> Column:
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
    _check_depth(place.depth, place.path, place.column)
    if kind in _NAMES and (kind != _SIMPLE["json"] or not place.depth):
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


def _check_depth(depth: int, path: str, column: str) -> None:
    problem = (
        f"column {path[:100]!r} nests deeper than {NESTING_MAX} levels; store the value as json or binary"
    )
    require_within("NESTING_MAX", depth, NESTING_MAX, problem, column)


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
        return _JSON_INSIDE, "use string there"
    if isinstance(kind, pa.BaseExtensionType):
        if pt.is_fixed_size_binary(kind.storage_type):
            return "it is an extension type", _reason(kind.storage_type)[1]
        return "it is an extension type", f"use its storage type, {kind.storage_type}"
    names = ", ".join((*_SIMPLE, *TIMED, "decimal128", *NESTED))
    return "there is no such column type", f"use one of {names}"


def check_type(column: Column) -> None:
    """Raise InvalidArgument unless the type of a received column is valid, on all its levels."""
    for fields, (depth, path, field) in enumerate(_levels(column, 0, column.name)):
        _check_depth(depth, path, column.name)
        require_within(
            "FIELDS_MAX",
            fields,
            FIELDS_MAX,
            f"column {column.name!r} has more than {FIELDS_MAX} fields on all levels; divide it into several columns",
            column.name,
        )
        shown = f"column {path[:100]!r}"
        require(not depth or field.type != "json", f"{shown}: {_JSON_INSIDE}; use string there", column.name)
        _check_level(field, shown, column.name)


def _levels(column: Column, depth: int, name: str) -> Iterator[tuple[int, str, Column]]:
    yield depth, name, column
    for field in column.fields if depth <= NESTING_MAX else ():
        yield from _levels(field, depth + 1, f"{name}.{field.name}")


def _check_level(column: Column, shown: str, name: str) -> None:
    if column.type in TIMED:
        require(column.unit in UNITS, f"{shown}: unit must be one of {UNITS}", name)
    if column.type == "timestamp":
        require(
            column.zone is None or known_zone(column.zone),
            f"{shown}: time zone {column.zone!r:.100} is not known here; give 'UTC', an IANA name such "
            "as 'Europe/Zurich', or an offset such as '+05:30' (a zone with a name needs the package tzdata)",
            name,
        )
    elif column.type == "decimal":
        precision, scale = column.precision or 0, column.scale or 0
        require(
            1 <= precision <= 38 and 0 <= scale <= precision,
            f"{shown}: decimal needs precision 1 to 38 and scale 0 to precision",
            name,
        )
    elif column.nested:
        _check_fields(column, shown, name)
    else:
        require(
            column.type in _SIMPLE or column.type in TIMED, f"{shown}: unknown type {column.type!r}", name
        )
    require(column.nested or not column.fields, f"{shown}: a {column.type} has no fields", name)


def _check_fields(column: Column, shown: str, name: str) -> None:
    names = [field.name for field in column.fields]
    expected = {"list": ["item"], "map": ["key", "value"]}.get(column.type)
    if expected is not None:
        require(
            names == expected, f"{shown}: the fields of a {column.type} are {expected}, not {names}", name
        )
        require(
            column.type == "list" or not column.fields[0].nullable,
            f"{shown}: keys of a map are never null",
            name,
        )
        return
    require(names, f"{shown}: a struct needs one field at least", name)
    for each in names:
        check_name(each, f"a field of {shown}", name)
        require(names.count(each) == 1, f"{shown}: field {each!r} appears twice; rename one", name)


def check_name(name: str, what: str, column: str) -> None:
    """Raise InvalidArgument unless the name can be that of a column or a field."""
    require(len(name) > 0, f"the name of {what} has 1 to {NAME_MAX} characters: {name!r}", column)
    shown = f"the name of {what} has 1 to {NAME_MAX} characters, not {len(name)}: {name[:40]!r}..."
    require_within("NAME_MAX", len(name), NAME_MAX, shown, column)
    require(_unicode(name), f"{what} has the name {name!r}, which is not valid Unicode; rename it", column)


def known_zone(zone: str) -> bool:
    """Whether Python here knows the zone: UTC, an offset of hours and minutes, or a zone of the IANA database."""
    if zone == "UTC" or _OFFSET.fullmatch(zone):
        return True
    if zone.startswith(_NO_ZONES):
        return False
    try:
        ZoneInfo(zone)
        pa.lib.string_to_tzinfo(zone)
    except (LookupError, ValueError, OSError):  # unknown; not a name; a folder
        return False
    return True


def _unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_within(limit: str, found: int, most: int, message: str, column: str | None = None) -> None:
    if found > most:
        raise OverLimit(message, column=column, limit=limit, most=most)


def require(holds: Any, message: str, column: str | None = None) -> None:
    if not holds:
        raise InvalidArgument(message, column=column)
