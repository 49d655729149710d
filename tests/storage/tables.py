"""Random tables for the tests of codecs: every column type, with edge values."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import strategies as st

from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import Column, TableSchema

ZONES = (None, "UTC", "Europe/Berlin", "+05:30")
EXACT = Context(prec=60)
# whole units since 1970 of the years 2 and 9998 (a day of room for zones), of 1678 and 2262 for nanoseconds
YEARS_S = (-62_103_000_000, 253_370_000_000)
TIMES = {
    "s": YEARS_S,
    "ms": tuple(1_000 * bound for bound in YEARS_S),
    "us": tuple(1_000_000 * bound for bound in YEARS_S),
    "ns": (-9_200_000_000_000_000_000, 9_200_000_000_000_000_000),
}

COLUMNS: list[Column] = [
    *(Column("", name) for name in ("int8", "int16", "int32", "int64", "float", "double", "bool")),
    *(Column("", name) for name in ("uint8", "uint16", "uint32", "uint64")),
    *(Column("", name) for name in ("string", "binary", "date")),
    *(Column("", "time", unit=unit) for unit in TIMES),
    *(Column("", "duration", unit=unit) for unit in TIMES),
    *(Column("", "timestamp", unit=unit, zone=zone) for unit in TIMES for zone in ZONES[:2]),
    *(Column("", "timestamp", unit="us", zone=zone) for zone in ZONES[2:]),
    *(Column("", "decimal", precision=p, scale=s) for p, s in ((1, 0), (9, 2), (38, 0), (38, 37))),
]

INSIDE = [Column("", kind) for kind in ("int16", "uint64", "double", "bool", "string", "binary", "date")]
INSIDE += [Column("", "time", unit="us"), Column("", "duration", unit="ms")]
INSIDE += [Column("", "timestamp", unit="s", zone="UTC"), Column("", "decimal", precision=9, scale=2)]

texts = st.one_of(
    st.text(st.sampled_from("\x00\x01aé\U0001f600\uffff"), max_size=8), st.text(max_size=12), st.just("")
)
blobs = st.one_of(
    st.lists(st.sampled_from([b"\x00", b"\x01", b"\xff", b"a"]), max_size=8).map(b"".join),
    st.binary(max_size=12),
)


def raw_values(column: Column) -> st.SearchStrategy[Any]:
    """Values as pa.array takes them for the column's type (times and dates as ints)."""
    kind = column.type
    if column.nested:
        return nested_values(column)
    if column.unsigned:
        limit = 1 << int(kind[4:])
        return st.one_of(st.integers(0, limit - 1), st.sampled_from([0, 1, limit // 2, limit - 1]))
    if kind.startswith("int"):
        limit = 1 << (int(kind[3:]) - 1)
        return st.one_of(st.integers(-limit, limit - 1), st.sampled_from([-limit, -1, 0, 1, limit - 1]))
    if kind == "float":
        return st.floats(width=32)
    if kind == "double":
        return st.one_of(st.floats(), st.sampled_from([0.0, -0.0, 5e-324, -5e-324]))
    if kind == "bool":
        return st.booleans()
    if kind in ("string", "json"):
        return texts
    if kind == "binary":
        return blobs
    if kind == "date":
        return st.integers(-719_000, 2_900_000)
    if kind == "timestamp":
        return st.one_of(st.integers(*TIMES[str(column.unit)]), st.integers(-2, 2))
    if kind == "time":  # of time64[ns] the values that Python has, too
        units = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**6}[str(column.unit)]
        fine = 1000 if column.unit == "ns" else 1
        return st.integers(0, 86_400 * units - 1).map(lambda raw: raw * fine)
    if kind == "duration":
        limit = {"s": 86_399_999_913_600, "ms": 86_399_999_913_600_000}.get(str(column.unit), (1 << 63) - 1)
        return st.one_of(st.integers(-limit, limit), st.sampled_from([-limit, -1, 0, 1, limit]))
    limit = 10 ** (column.precision or 0) - 1
    unscaled = st.one_of(st.integers(-limit, limit), st.sampled_from([-limit, -1, 0, 1, limit]))
    return unscaled.map(lambda value: Decimal(value).scaleb(-(column.scale or 0), EXACT))


def nested_values(column: Column) -> st.SearchStrategy[Any]:
    inner = [
        st.one_of(st.none(), raw_values(field)) if field.nullable else raw_values(field)
        for field in column.fields
    ]
    if column.type == "list":
        return st.lists(inner[0], max_size=4)
    if column.type == "map":
        return st.lists(st.tuples(*inner), max_size=4)
    names = [field.name for field in column.fields]
    return st.tuples(*inner).map(lambda values: dict(zip(names, values, strict=True)))


@st.composite
def nested_columns(draw: st.DrawFn, depth: int = 2) -> Column:
    """A list, a struct or a map of anything, up to `depth` levels."""

    def inner(name: str, nullable: bool) -> Column:
        deeper = depth > 1 and draw(st.booleans())
        chosen = draw(nested_columns(depth - 1)) if deeper else draw(st.sampled_from(INSIDE))
        return of_type(chosen, name, nullable)

    kind = draw(st.sampled_from(["list", "struct", "map"]))
    if kind == "list":
        return Column("", kind, fields=(inner("item", draw(st.booleans())),))
    if kind == "map":
        return Column("", kind, fields=(inner("key", False), inner("value", draw(st.booleans()))))
    names = [f"f{place}" for place in range(draw(st.integers(1, 3)))]
    return Column("", kind, fields=tuple(inner(name, draw(st.booleans())) for name in names))


def of_type(column: Column, name: str, nullable: bool) -> Column:
    return msgspec.structs.replace(column, name=name, nullable=nullable)


@st.composite
def schemas(draw: st.DrawFn, values_max: int = 5) -> TableSchema:
    """A schema with its key columns anywhere among the others."""
    key_types = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3))
    of_values = st.one_of(st.sampled_from([*COLUMNS, Column("", "json")]), nested_columns())
    value_types = draw(st.lists(of_values, max_size=values_max))
    keys = [of_type(column, f"k{place}", False) for place, column in enumerate(key_types)]
    values = [of_type(column, f"v{place}", draw(st.booleans())) for place, column in enumerate(value_types)]
    columns = draw(st.permutations(keys + values)) if draw(st.booleans()) else keys + values
    schema = TableSchema(tuple(columns), tuple(column.name for column in keys))
    schema.validate()
    return schema


@st.composite
def array_values(draw: st.DrawFn, column: Column, nullable: bool) -> pa.Array:
    """An array of the column's values, sometimes a slice from the middle of a larger one."""
    values = st.one_of(st.none(), raw_values(column)) if nullable else raw_values(column)
    made = pa.array(draw(st.lists(values, max_size=8)), column.arrow_type())
    return made[draw(st.integers(0, 2)) :]


@st.composite
def batches(draw: st.DrawFn, schema: TableSchema, rows_max: int = 8, rows_min: int = 0) -> pa.RecordBatch:
    """Rows of the schema, sometimes a slice from the middle of a larger batch."""
    count = draw(st.integers(rows_min, rows_max))
    before, after = (draw(st.integers(0, 9)), 2) if draw(st.booleans()) else (0, 0)
    arrays = []
    for column in schema.columns:
        values = raw_values(column)
        if column.name in schema.key and len(schema.key) == 1 and column.variable:
            values = values.filter(len)  # an only key column may not be empty
        if column.nullable:
            values = st.one_of(st.none(), values)
        size = before + count + after
        drawn = draw(st.lists(values, min_size=size, max_size=size))
        kind = column.arrow_type()
        arrays.append(pa.array(drawn, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow()).slice(before, count)


@st.composite
def tables(
    draw: st.DrawFn, rows_max: int = 8, rows_min: int = 0, values_max: int = 5
) -> tuple[RowCodec, pa.RecordBatch]:
    schema = draw(schemas(values_max))
    return RowCodec(schema), draw(batches(schema, rows_max, rows_min))


def plain(rows: Any) -> Any:
    """Rows made comparable: NaN equals itself, zones count."""
    if isinstance(rows, pa.RecordBatch):
        rows = rows.to_pylist()
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float) and value != value:
        return "NaN"
    return (value, str(getattr(value, "tzinfo", "")), type(value))
