"""The schema of a new table, from flags, a YAML file, or a data file.

    --column time_hour:timestamp[us,UTC] --column flight:int32 --column tailnum:string:null --key time_hour,flight
    --schema flights.yaml          columns, key, hash, range, replicas, replication, min_members, storage,
                                   compression
    --schema-from flights.parquet  columns and types of a parquet or CSV file

Flags override or extend the file. A column takes null only with `:null`. frame/types.py has the types.

    columns:                             key: [time_hour, carrier, flight]
      time_hour: timestamp[us, UTC]      hash: {columns: [carrier, flight], buckets: 8}
      carrier: string                    range: {columns: [time_hour], splits: ["2013-04-01", "2013-07-01"]}
      tailnum: string:null               replicas: 3
                                         replication: pacifica
                                         min_members: 2
                                         storage: columns
                                         compression: lz4
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ebla.cli.frame.problems import Usage, column_hint
from ebla.cli.frame.types import parse_type
from ebla.cli.frame.values import from_text
from ebla.storage.errors import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from ebla.partitions import PartitionBy
    from ebla.storage.schema import Column


class HashSpec(msgspec.Struct, frozen=True):
    columns: tuple[str, ...]
    buckets: int


class RangeSpec(msgspec.Struct, frozen=True):
    """`splits` are texts, or tuples of texts for several `columns`."""

    columns: tuple[str, ...]
    splits: tuple[Any, ...]


class TableSpec(msgspec.Struct, frozen=True):
    """The description of a new table, from flags and files together."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    hash: HashSpec | None = None
    range: RangeSpec | None = None
    replicas: int | None = None
    replication: str | None = None
    min_members: int | None = None
    storage: str | None = None
    compression: str | None = None

    def arrow(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([pa.field(c.name, c.arrow_type(), c.nullable) for c in self.columns])

    def partition_by(self) -> PartitionBy | None:
        """The partitioning; None for one tablet."""
        import ebla.partitions as partitions

        parts = []
        if self.hash is not None:
            parts.append(partitions.hash(*self.hash.columns, buckets=self.hash.buckets))
        if self.range is not None:
            columns = [self._named(name, "range") for name in self.range.columns]
            splits = [_split(columns, split) for split in self.range.splits]
            parts.append(partitions.range(*self.range.columns, splits=splits))
        return parts[0] + parts[1] if len(parts) == 2 else parts[0] if parts else None

    def check(self) -> None:
        """Check without a cluster that there is a key, and that key, hash and range name columns of the table."""
        if not self.columns:
            raise Usage(
                "the table has no columns; give --column name:type, --schema file.yaml or --schema-from data.parquet",
                option="--column",
            )
        if not self.key:
            raise Usage("the table needs a primary key: --key a,b", option="--key")
        for name in self.key:
            self._named(name, "key")
        for name in self.hash.columns if self.hash else ():
            self._named(name, "hash")
        for name in self.range.columns if self.range else ():
            self._named(name, "range")

    def _named(self, name: str, option: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        names = [column.name for column in self.columns]
        message = f"--{option} names {name!r}, which is not a column{column_hint(name, names)}"
        raise Usage(message, option=f"--{option}", column=name)


def gather(
    columns: Sequence[str],
    key: str | None,
    hashed: str | None,
    ranged: str | None,
    schema_file: Path | None,
    data_file: Path | None,
    **properties: Any,
) -> TableSpec:
    """The checked description; flags override files. `properties`: replicas, replication, min_members, storage and compression, None
    if not given."""
    if schema_file is not None and data_file is not None:
        raise Usage("give --schema or --schema-from, not both", option="--schema")
    given = from_yaml(schema_file) if schema_file else TableSpec((), ())
    if data_file is not None:
        given = msgspec.structs.replace(given, columns=from_data(data_file))
    merged = {column.name: column for column in given.columns}
    seen: dict[str, str] = {}
    for text in columns:
        column = parse_column(text)
        if column.name in seen:
            raise Usage(f"column {column.name!r} is given twice", option="--column", column=column.name)
        seen[column.name] = text
        merged[column.name] = column
    spec = TableSpec(
        columns=tuple(merged.values()),
        key=parse_names(key, "--key") if key else given.key,
        hash=parse_hash(hashed) if hashed else given.hash,
        range=parse_range(ranged) if ranged else given.range,
        **{name: getattr(given, name) if value is None else value for name, value in properties.items()},
    )
    spec.check()
    in_key = [msgspec.structs.replace(c, nullable=False) if c.name in spec.key else c for c in spec.columns]
    return msgspec.structs.replace(spec, columns=tuple(in_key))


# -- flags ---------------------------------------------------------------------------------------------------


def parse_column(text: str) -> Column:
    """Read `name:type` or `name:type:null`."""
    from ebla.storage.schema import Column

    name, colon, kind = text.partition(":")
    nullable = False
    if kind.lower().endswith(":null") or kind.lower().endswith(":nullable"):
        kind, nullable = kind.rpartition(":")[0], True
    if not colon or not name.strip() or not kind.strip():
        raise Usage(
            f"--column {text!r} is not name:type, such as flight:int32 or tailnum:string:null",
            option="--column",
        )
    return Column(name.strip(), nullable=nullable, **parse_type(name.strip(), kind))


def parse_names(text: str, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise Usage(f"{option} {text!r} is not a list of columns, such as a,b", option=option)
    return names


def parse_hash(text: str) -> HashSpec:
    names, colon, buckets = text.rpartition(":")
    if not colon or not buckets.strip().isdigit():
        raise Usage(f"--hash {text!r} is not columns:buckets, such as carrier,flight:8", option="--hash")
    return HashSpec(parse_names(names, "--hash"), int(buckets))


def parse_range(text: str) -> RangeSpec:
    name, equals, splits = text.partition("=")
    if not equals or not name.strip() or not splits.strip():
        raise Usage(
            f"--range {text!r} is not column=split,split, such as time_hour=2013-04-01,2013-07-01; for several columns "
            "use --schema file.yaml",
            option="--range",
        )
    return RangeSpec((name.strip(),), tuple(split.strip() for split in splits.split(",")))


def _split(columns: list[Column], given: Any) -> Any:
    texts = given if isinstance(given, (list, tuple)) else (given,)
    if len(texts) != len(columns):
        names = ", ".join(column.name for column in columns)
        raise Usage(
            f"a split of the range over {names} has {len(columns)} values, not {given!r}", option="--range"
        )
    values = tuple(from_text(column, str(text)) for column, text in zip(columns, texts, strict=True))
    return values[0] if len(columns) == 1 else values


# -- files ---------------------------------------------------------------------------------------------------


def from_yaml(path: Path) -> TableSpec:
    import yaml

    try:
        read = yaml.safe_load(path.read_text())
    except OSError as error:
        raise Usage(f"{path} cannot be read: {error.strerror}", option="--schema") from None
    except yaml.YAMLError as error:
        raise Usage(f"{path} is not YAML: {error}", option="--schema") from None
    if not isinstance(read, dict):
        raise Usage(f"{path} must be a mapping with columns and key", option="--schema")
    known = (
        "columns",
        "key",
        "hash",
        "range",
        "replicas",
        "replication",
        "min_members",
        "storage",
        "compression",
    )
    for name in read:
        if name not in known:
            hint = did_you_mean(str(name), known) or f"; there are {', '.join(known)}"
            raise Usage(f"{path}: nothing is called {name!r}{hint}", option="--schema")
    return TableSpec(
        columns=tuple(parse_column(text) for text in _column_texts(path, read.get("columns") or {})),
        key=_strings(path, "key", read.get("key") or []),
        hash=_hash_of(path, read.get("hash")),
        range=_range_of(path, read.get("range")),
        replicas=_whole(path, "replicas", read.get("replicas")),
        replication=_text(path, "replication", read.get("replication")),
        min_members=_whole(path, "min_members", read.get("min_members")),
        storage=_text(path, "storage", read.get("storage")),
        compression=_text(path, "compression", read.get("compression")),
    )


def _column_texts(path: Path, given: Any) -> list[str]:
    if isinstance(given, dict) and all(isinstance(kind, str) for kind in given.values()):
        return [f"{name}:{kind}" for name, kind in given.items()]
    if isinstance(given, list) and all(isinstance(text, str) for text in given):
        return given
    raise Usage(f"{path}: columns is a mapping of name to type, such as `flight: int32`", option="--schema")


def _strings(path: Path, name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        return parse_names(given, name)
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        return tuple(given)
    raise Usage(f"{path}: {name} is a list of columns", option="--schema")


def _whole(path: Path, name: str, given: Any) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    raise Usage(f"{path}: {name} is a whole number, not {given!r}", option="--schema")


def _text(path: Path, name: str, given: Any) -> str | None:
    if given is None or isinstance(given, str):
        return given
    raise Usage(f"{path}: {name} is a word, not {given!r}", option="--schema")


def _hash_of(path: Path, given: Any) -> HashSpec | None:
    if given is None or isinstance(given, str):
        return parse_hash(given) if given else None
    buckets = _whole(path, "buckets", given.get("buckets")) if isinstance(given, dict) else None
    if buckets is None or set(given) != {"columns", "buckets"}:
        raise Usage(f"{path}: hash has columns and buckets", option="--schema")
    return HashSpec(_strings(path, "hash.columns", given["columns"]), buckets)


def _range_of(path: Path, given: Any) -> RangeSpec | None:
    if given is None or isinstance(given, str):
        return parse_range(given) if given else None
    if (
        not isinstance(given, dict)
        or set(given) != {"columns", "splits"}
        or not isinstance(given["splits"], list)
    ):
        raise Usage(f"{path}: range has columns and a list of splits", option="--schema")
    return RangeSpec(_strings(path, "range.columns", given["columns"]), tuple(given["splits"]))


def from_data(path: Path) -> tuple[Column, ...]:
    """The columns and types of a file. Only its beginning is read."""
    import pyarrow as pa

    from ebla.storage.arrow_types import column_of

    if not path.exists():
        raise Usage(f"there is no file {path}", option="--schema-from")
    try:
        schema = _read_schema(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Usage(f"the schema of {path} cannot be read: {error}", option="--schema-from") from None
    return tuple(column_of(field) for field in schema)


def _read_schema(path: Path) -> pa.Schema:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if path.is_dir():
        import pyarrow.dataset as dataset

        return dataset.dataset(path).schema
    if suffixes and suffixes[-1] in (".parquet", ".pq"):
        import pyarrow.parquet as parquet

        return parquet.read_schema(path)
    if ".csv" in suffixes:
        import pyarrow.csv as csv

        options = csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA", "NULL", "null"])
        with csv.open_csv(path, convert_options=options) as reader:
            return reader.schema
    raise Usage(
        f"{path} is neither .parquet nor .csv; give the columns with --column", option="--schema-from"
    )
