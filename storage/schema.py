"""Table schemas as ebla stores them: typed columns, a primary key, and the division of rows into tablets.

Made from Arrow (`TableSchema.from_arrow`), carried in messages, converted to Arrow for results. storage/columns.py has
the types. Key columns are never null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ebla.storage.columns import NAME_MAX, UNORDERED, check_name, check_type, require, require_within
from ebla.storage.columns import Column as Column
from ebla.storage.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS_MAX = 300  # Kudu's limit; wider tables belong in nested values
DEFAULT_BYTES_MAX = 4096  # of a column that is added; it appears in every stored row that is read
KEY_BYTES_MAX = 480  # LMDB's default key limit is 511 bytes; ebla uses the rest
ROW_BYTES_MAX = 1 << 20
BUCKETS_MAX = 4096
ROWS, COLUMNS = "rows", "columns"
NO_COMPRESSION, COMPRESSIONS = "none", ("none", "lz4", "zstd")


class Hash(msgspec.Struct, frozen=True, tag="hash"):
    """`buckets` parts by a hash of `columns` (key columns)."""

    columns: tuple[str, ...]
    buckets: int

    def validate(self) -> None:
        """Raise InvalidArgument if no table can be divided so."""
        require(2 <= self.buckets <= BUCKETS_MAX, f"buckets must be 2 to {BUCKETS_MAX}, not {self.buckets}")
        require(
            len(set(self.columns)) == len(self.columns) > 0, "hash columns must be distinct, one at least"
        )


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
    every alteration. `former`: dropped columns, which stored rows may have. `storage`: how replicas keep rows, as ROWS or COLUMNS.
    `compression`: of the blocks of COLUMNS, one of COMPRESSIONS."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    partitioning: Partitioning = Partitioning()
    version: int = 0
    former: tuple[Column, ...] = ()
    storage: str = ROWS
    compression: str = NO_COMPRESSION

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
        import pyarrow as pa

        chosen = self.columns if names is None else [self.column(name) for name in names]
        return pa.schema(
            [pa.field(c.name, c.arrow_type(), c.nullable and c.name not in self.key) for c in chosen]
        )

    @staticmethod
    def from_arrow(
        schema: pa.Schema,
        primary_key: Sequence[str],
        partitioning: Partitioning | None = None,
        *,
        storage: str = ROWS,
        compression: str = NO_COMPRESSION,
    ) -> TableSchema:
        """Make and validate a schema. Raises InvalidArgument with the column and the remedy."""
        import pyarrow as pa

        from ebla.storage.arrow_types import column_of

        require(
            isinstance(schema, pa.Schema),
            f'schema is a pyarrow.Schema, such as pa.schema([("id", pa.int64())]), not {type(schema).__name__}',
        )
        require(
            isinstance(primary_key, (list, tuple)) and all(isinstance(name, str) for name in primary_key),
            f'primary_key is a list of column names, such as ["id"], not {primary_key!r:.100}',
        )
        columns = tuple(
            msgspec.structs.replace(column, nullable=column.nullable and column.name not in primary_key)
            for column in map(column_of, schema)
        )
        made = TableSchema(
            columns,
            tuple(primary_key),
            partitioning or Partitioning(),
            storage=storage,
            compression=compression,
        )
        made.validate()
        return made

    def validate(self) -> None:
        """Raise InvalidArgument unless the schema is valid. The master validates schemas from clients again."""
        names = [column.name for column in self.columns]
        require(len(names) > 0, f"a table has 1 to {COLUMNS_MAX} columns, this one none")
        require_within(
            "COLUMNS_MAX",
            len(names),
            COLUMNS_MAX,
            f"a table has 1 to {COLUMNS_MAX} columns, this one {len(names)}",
        )
        for name in names:
            check_name(name, "a column", name)
            require(names.count(name) == 1, f"column {name!r} appears twice; rename one", name)
        require(len(self.key) > 0, "a table needs a primary key: name at least one column in primary_key")
        for name in self.key:
            column = self.column(name)
            require(self.key.count(name) == 1, f"column {name!r} appears twice in primary_key", name)
            require(not column.nullable, f"key column {name!r} may not be nullable", name)
            require(
                column.type not in UNORDERED,
                f"key column {name!r} is a {column.type}, which has no order; use columns of plain types as the key, "
                "such as string or int64",
                name,
            )
        for column in self.columns:
            check_type(column)
        require(
            self.storage in (ROWS, COLUMNS), f"storage is {ROWS!r} or {COLUMNS!r}, not {self.storage!r:.40}"
        )
        require(
            self.compression in COMPRESSIONS,
            f"compression is one of {', '.join(COMPRESSIONS)}, not {self.compression!r:.40}",
        )
        require(
            self.storage == COLUMNS or self.compression == NO_COMPRESSION,
            f"compression {self.compression!r} is for tables with storage {COLUMNS!r}; this one has {self.storage!r}",
        )
        self._validate_partitioning()

    def _validate_partitioning(self) -> None:
        hashed, ranged = self.partitioning.hash, self.partitioning.range
        if hashed:
            hashed.validate()
            for name in hashed.columns:
                require(name in self.key, f"hash column {name!r} is not in the primary key", name)
        if ranged:
            require(
                ranged.columns == self.key[: len(ranged.columns)],
                f"range columns must be a prefix of the primary key {self.key}, not {ranged.columns}",
            )
            require(
                list(ranged.splits) == sorted(set(ranged.splits)), "range splits must ascend, without repeats"
            )
