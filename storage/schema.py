"""Table schemas as ebla stores them: typed columns, a primary key, and the division of rows into tablets.

Made from Arrow (`TableSchema.from_arrow`), carried in messages, converted to Arrow for results. Twelve types:
int8..int64, float32, float64, bool, string, binary, date32, timestamp(unit, zone), decimal128(p, s). Key columns are
never null.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa

from ebla.storage.errors import InvalidArgument, OverLimit

COLUMNS_MAX = 300  # Kudu's limit; wider tables belong in nested values
NAME_MAX = 256
KEY_BYTES_MAX = 480  # LMDB's default key limit is 511 bytes; ebla uses the rest
ROW_BYTES_MAX = 1 << 20
BUCKETS_MAX = 4096

_SIMPLE: dict[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
}
_NAMES = {kind: name for name, kind in _SIMPLE.items()}
TIMESTAMP_UNITS = ("s", "ms", "us", "ns")
_OFFSET = re.compile(r"[+-]([01][0-9]|2[0-3]):[0-5][0-9]")
# Files beside the zones that differ between hosts.
_NO_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")


class FormerName(msgspec.Struct, frozen=True, array_like=True):
    """The name of a column in the versions before `until`."""

    until: int
    name: str


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column. `type` is a name of _SIMPLE, `timestamp` (with `unit` and `zone`) or `decimal` (with
    `precision` 1..38 and `scale`).

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

    def name_at(self, version: int) -> str:
        return next((former.name for former in self.names if version < former.until), self.name)

    def arrow_type(self) -> pa.DataType:
        if self.type == "timestamp":
            return pa.timestamp(self.unit, self.zone)
        if self.type == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return _SIMPLE[self.type]

    @property
    def variable(self) -> bool:
        return self.type in ("string", "binary")

    @staticmethod
    def from_arrow(field: pa.Field) -> Column:
        kind = field.type
        if kind in _NAMES:
            return Column(field.name, _NAMES[kind], field.nullable)
        if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return Column(field.name, "string", field.nullable)
        if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return Column(field.name, "binary", field.nullable)
        if pa.types.is_timestamp(kind):
            return Column(field.name, "timestamp", field.nullable, unit=kind.unit, zone=kind.tz)
        if pa.types.is_decimal128(kind):
            return Column(field.name, "decimal", field.nullable, precision=kind.precision, scale=kind.scale)
        raise InvalidArgument(
            f"column {field.name!r} has type {kind}, which ebla does not store; use one of "
            f"{', '.join(_SIMPLE)}, timestamp or decimal128",
            column=field.name,
        )


class Hash(msgspec.Struct, frozen=True, tag="hash"):
    """`buckets` parts by a hash of `columns` (key columns)."""

    columns: tuple[str, ...]
    buckets: int


class Range(msgspec.Struct, frozen=True, tag="range"):
    """len(splits) + 1 parts by the order of `columns` (a prefix of the key). `splits` are ascending encoded
    prefixes (storage/rows/partition.py encodes the user's values)."""

    columns: tuple[str, ...]
    splits: tuple[bytes, ...]


class Partitioning(msgspec.Struct, frozen=True):
    """Hash first, then range; a tablet is one (bucket, range) pair, numbered bucket * ranges + range."""

    hash: Hash | None = None
    range: Range | None = None

    @property
    def ranges(self) -> int:
        return len(self.range.splits) + 1 if self.range else 1

    @property
    def tablets(self) -> int:
        return (self.hash.buckets if self.hash else 1) * self.ranges


class TableSchema(msgspec.Struct, frozen=True):
    """Columns in the user's order, the key's columns in key order, and the partitioning. `version` grows by one with
    every alteration. `former`: dropped columns, which stored rows may have."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partitioning: Partitioning = Partitioning()
    version: int = 0
    former: tuple[Column, ...] = ()

    @property
    def layout(self) -> int:
        """The version that last added or dropped a column: the layout of new rows."""
        return self.layout_of(self.version)

    def layout_of(self, version: int) -> int:
        """The layout that was current in `version`."""
        changes = [at for column in (*self.columns, *self.former) for at in (column.since, column.until)]
        return max((at for at in changes if at <= version), default=0)

    @property
    def renewed(self) -> int:
        """The version in which a column was last added, dropped or renamed."""
        names = [former.until for column in self.columns for former in column.names]
        return max(self.layout, *names) if names else self.layout

    def in_layout(self, layout: int) -> TableSchema:
        """The columns of rows of that layout, under their present names; dropped ones under a name too long to be valid."""
        held = [column for column in self.columns if column.since <= layout]
        held += [
            msgspec.structs.replace(column, name=f"{column.id:0{NAME_MAX + 1}}")
            for column in self.former
            if column.since <= layout < column.until
        ]
        return msgspec.structs.replace(
            self, columns=tuple(sorted(held, key=lambda column: column.id)), former=(), version=layout
        )

    def called(self, name: str, version: int) -> Column:
        """The column that had this name in that version, even if it was dropped since. Raises InvalidArgument."""
        if version >= self.version:
            return self.column(name)
        for column in (*self.columns, *self.former):
            lived = column.since <= version and (not column.until or version < column.until)
            if lived and column.name_at(version) == name:
                return column
        raise InvalidArgument(f"there was no column {name!r} in version {version} of the table", column=name)

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise InvalidArgument(
            f"there is no column {name!r}; the columns are {', '.join(c.name for c in self.columns)}",
            column=name,
        )

    def key_columns(self) -> list[Column]:
        return [self.column(name) for name in self.key]

    def value_columns(self) -> list[Column]:
        return [column for column in self.columns if column.name not in self.key]

    def arrow(self, names: Sequence[str] | None = None) -> pa.Schema:
        """The Arrow schema of all columns, or of `names` in that order."""
        chosen = self.columns if names is None else [self.column(name) for name in names]
        return pa.schema(
            [pa.field(c.name, c.arrow_type(), c.nullable and c.name not in self.key) for c in chosen]
        )

    @staticmethod
    def from_arrow(
        schema: pa.Schema, primary_key: Sequence[str], partitioning: Partitioning | None = None
    ) -> TableSchema:
        """Make and validate a schema. Raises InvalidArgument with the column and the remedy."""
        _require(
            isinstance(schema, pa.Schema),
            f'schema is a pyarrow.Schema, such as pa.schema([("id", pa.int64())]), not {type(schema).__name__}',
        )
        _require(
            isinstance(primary_key, (list, tuple)) and all(isinstance(name, str) for name in primary_key),
            f'primary_key is a list of column names, such as ["id"], not {primary_key!r:.100}',
        )
        columns = tuple(
            msgspec.structs.replace(column, nullable=column.nullable and column.name not in primary_key)
            for column in map(Column.from_arrow, schema)
        )
        made = TableSchema(columns, tuple(primary_key), partitioning or Partitioning())
        made.validate()
        return made

    def validate(self) -> None:
        """Raise InvalidArgument unless the schema is valid. The master validates schemas from clients again."""
        names = [column.name for column in self.columns]
        _require(len(names) > 0, f"a table has 1 to {COLUMNS_MAX} columns, this one none")
        require_within(
            "COLUMNS_MAX",
            len(names),
            COLUMNS_MAX,
            f"a table has 1 to {COLUMNS_MAX} columns, this one {len(names)}",
        )
        for name in names:
            _require(len(name) > 0, f"a column name has 1 to {NAME_MAX} characters: {name!r}", name)
            shown = f"a column name has 1 to {NAME_MAX} characters, not {len(name)}: {name[:40]!r}..."
            require_within("NAME_MAX", len(name), NAME_MAX, shown, name)
            _require(_unicode(name), f"column name {name!r} is not valid Unicode; rename the column", name)
            _require(names.count(name) == 1, f"column {name!r} appears twice; rename one", name)
        _require(len(self.key) > 0, "a table needs a primary key: name at least one column in primary_key")
        for name in self.key:
            column = self.column(name)
            _require(self.key.count(name) == 1, f"column {name!r} appears twice in primary_key", name)
            _require(not column.nullable, f"key column {name!r} may not be nullable", name)
        for column in self.columns:
            _check_type(column)
        self._validate_partitioning()

    def _validate_partitioning(self) -> None:
        hashed, ranged = self.partitioning.hash, self.partitioning.range
        if hashed:
            _require(
                2 <= hashed.buckets <= BUCKETS_MAX,
                f"buckets must be 2 to {BUCKETS_MAX}, not {hashed.buckets}",
            )
            for name in hashed.columns:
                _require(name in self.key, f"hash column {name!r} is not in the primary key", name)
            _require(
                len(set(hashed.columns)) == len(hashed.columns) > 0,
                "hash columns must be distinct, one at least",
            )
        if ranged:
            _require(
                ranged.columns == self.key[: len(ranged.columns)],
                f"range columns must be a prefix of the primary key {self.key}, not {ranged.columns}",
            )
            _require(
                list(ranged.splits) == sorted(set(ranged.splits)), "range splits must ascend, without repeats"
            )


def _check_type(column: Column) -> None:
    if column.type == "timestamp":
        _require(
            column.unit in TIMESTAMP_UNITS,
            f"column {column.name!r}: unit must be one of {TIMESTAMP_UNITS}",
            column.name,
        )
        _require(
            column.zone is None or known_zone(column.zone),
            f"column {column.name!r}: time zone {column.zone!r:.100} is not known here; give 'UTC', an IANA name such "
            "as 'Europe/Zurich', or an offset such as '+05:30' (a zone with a name needs the package tzdata)",
            column.name,
        )
    elif column.type == "decimal":
        precision, scale = column.precision or 0, column.scale or 0
        _require(
            1 <= precision <= 38 and 0 <= scale <= precision,
            f"column {column.name!r}: decimal needs precision 1 to 38 and scale 0 to precision",
            column.name,
        )
    else:
        _require(column.type in _SIMPLE, f"column {column.name!r}: unknown type {column.type!r}", column.name)


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


def _require(holds: Any, message: str, column: str | None = None) -> None:
    if not holds:
        raise InvalidArgument(message, column=column)
