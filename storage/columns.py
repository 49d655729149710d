"""Columns of a table and their types.

    whole numbers        int8..int64, uint8..uint64
    other fixed widths   float32, float64, bool, date32, timestamp(unit, zone), time(unit), duration(unit),
                         decimal128(p, s)
    texts                string, binary, json
    nested               list, struct, map, of any of these except json

storage/arrow_types.py makes columns of Arrow's types, of which there are more. pyarrow is imported at the first use of an
Arrow type: a program that only passes schemas on starts without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ebla.storage.errors import InvalidArgument, OverLimit

if TYPE_CHECKING:
    import pyarrow as pa

NAME_MAX = 256
CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)  # not tab and line ends: Excel's headers have them
NESTING_MAX = 16  # levels of one nested type
FIELDS_MAX = 300  # of one nested type, on all levels together

# The types without parameters, and pyarrow's functions that make them.
_INTS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_OTHERS = {"float": "float32", "double": "float64", "bool": "bool_"}
SIMPLE = {name: name for name in _INTS} | _OTHERS | {"string": "string", "binary": "binary", "date": "date32"}
JSON_INSIDE = "Arrow cannot filter JSON inside of another type"
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
    """One column, or one field of a nested one. `type` is a name of SIMPLE; `json`; `timestamp` (with `unit` and `zone`); `time`
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
        import pyarrow as pa

        match self.type:
            case "json":
                return pa.json_(pa.string())
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
        return getattr(pa, SIMPLE[self.type])()

    def arrow_field(self) -> pa.Field:
        import pyarrow as pa

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


def check_depth(depth: int, path: str, column: str) -> None:
    problem = (
        f"column {path[:100]!r} nests deeper than {NESTING_MAX} levels; store the value as json or binary"
    )
    require_within("NESTING_MAX", depth, NESTING_MAX, problem, column)


def check_type(column: Column) -> None:
    """Raise InvalidArgument unless the type of a received column is valid, on all its levels."""
    for fields, (depth, path, field) in enumerate(_levels(column, 0, column.name)):
        check_depth(depth, path, column.name)
        require_within(
            "FIELDS_MAX",
            fields + len(field.fields),  # before any work on each of them
            FIELDS_MAX,
            f"column {column.name!r} has more than {FIELDS_MAX} fields on all levels; divide it into several columns",
            column.name,
        )
        shown = f"column {path[:100]!r}"
        require(not depth or field.type != "json", f"{shown}: {JSON_INSIDE}; use string there", column.name)
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
        require(column.type in (*SIMPLE, "json", *TIMED), f"{shown}: unknown type {column.type!r}", name)
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
    require(
        not CONTROL.search(name), f"{what} has the name {name!r}, with a control character; rename it", column
    )


def known_zone(zone: str) -> bool:
    """Whether Python here knows the zone: UTC, an offset of hours and minutes, or a zone of the IANA database."""
    if zone == "UTC" or _OFFSET.fullmatch(zone):
        return True
    if zone.startswith(_NO_ZONES):
        return False
    from zoneinfo import ZoneInfo

    import pyarrow as pa

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
