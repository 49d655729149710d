"""A file that `ebla table export` writes is fed back with equal values, for every type of column."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebla.cli.frame.ui import write_json
from ebla.cli.tables.scanning import WRITERS
from ebla.pipelines.sources.check import check, fitting_batches
from ebla.pipelines.sources.source import open_source
from ebla.storage.errors import InvalidArgument
from ebla.storage.schema import TableSchema
from tests.sweeps import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SPELLED = st.sampled_from(['\\"', "null", "NaN", '"', "0x00", "~1", "\r\n", "1,5"])
DECIMALS = st.integers(-(10**11), 10**11).map(lambda n: pa.scalar(n, pa.decimal128(12, 0)).as_py().scaleb(-5))


def counted(kind: pa.DataType, least: int, most: int) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """Values of a type that counts units, such as days, as Python values."""
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind, st.integers(least, most).map(lambda n: pa.scalar(n, width).cast(kind).as_py())


PLAIN: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXT | SPELLED),
    "bytes": (pa.binary(), st.binary(max_size=6)),
    "flag": (pa.bool_(), st.booleans()),
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32) | st.integers(2**24, 2**31).map(float)),
    "price": (pa.decimal128(12, 5), DECIMALS),
    "tiny": (pa.decimal128(38, 38), st.integers(-9, 9).map(lambda n: pa.scalar(n, pa.decimal128(38, 0)).as_py().scaleb(-38))),
    "day": counted(pa.date32(), -700_000, 2_900_000),
    "wall_s": counted(pa.timestamp("s"), -60_000_000_000, 250_000_000_000),
    "wall_ns": counted(pa.timestamp("ns"), -(9 * 10**18), 9 * 10**18),
    "at_us": counted(pa.timestamp("us", "UTC"), -6 * 10**16, 25 * 10**16),
    "at_ns": counted(pa.timestamp("ns", "Europe/Berlin"), -9 * 10**18, 9 * 10**18),
    "old": counted(pa.timestamp("us", "Europe/Berlin"), -6 * 10**16, 25 * 10**16),
    "clock": counted(pa.time64("us"), 0, 86_400 * 10**6 - 1),
    "clock_s": counted(pa.time32("s"), 0, 86_399),
    "took_s": counted(pa.duration("s"), -8 * 10**13, 8 * 10**13),
    "took_us": counted(pa.duration("us"), -(10**18), 10**18),
    "took_ns": counted(pa.duration("ns"), -9 * 10**18, 9 * 10**18),
}  # fmt: skip
NESTED = {
    **{f"list_{name}": (pa.list_(kind), st.lists(values, max_size=2)) for name, (kind, values) in PLAIN.items()},
    "point": (
        pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"x": st.none() | st.floats(), "tags": st.none() | st.lists(TEXT | SPELLED, max_size=2)}),
    ),
    "ages": (pa.map_(pa.string(), pa.int8()), st.dictionaries(TEXT, st.integers(-128, 127), max_size=2).map(lambda m: list(m.items()))),
    "days": (pa.map_(pa.date32(), pa.float32()), st.dictionaries(PLAIN["day"][1], st.floats(width=32), max_size=2).map(lambda m: list(m.items()))),
}  # fmt: skip
COLUMNS = {
    **PLAIN,
    **NESTED,
    "note": (pa.json_(), st.sampled_from(["null", "", '{"a": 1}', '"x"', "[]", "1"])),
}
TYPES = {"id": pa.field("id", pa.int64(), False)}


def table_of(columns: dict[str, tuple[pa.DataType, Any]], rows: list[dict[str, Any]]) -> pa.Table:
    fields = [TYPES["id"], *(pa.field(name, kind) for name, (kind, _) in columns.items())]
    storage = [f.with_type(pa.string()) if isinstance(f.type, pa.JsonType) else f for f in fields]
    arrays = [pa.array([row[f.name] for row in rows], f.type) for f in storage]
    made = [
        pa.ExtensionArray.from_storage(f.type, a) if isinstance(f.type, pa.JsonType) else a
        for f, a in zip(fields, arrays, strict=True)
    ]
    return pa.Table.from_arrays(made, schema=pa.schema(fields))


def fed_back(table: pa.Table, format: str) -> pa.Table:
    """The table, exported into a file of this format and read again in the table's types."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"rows.{format}"
        with open(path, "wb") as file:
            write, finish = WRITERS[format](table.schema, file)
            for batch in table.to_batches():
                write(batch)
            finish()
        source, schema = open_source(str(path)), TableSchema.from_arrow(table.schema, ["id"])
        assert check(source, schema).unfit_rows == ()
        return pa.Table.from_batches(list(fitting_batches(source, schema)))


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("name", COLUMNS)
@settings(max_examples=examples(6))
@given(data=st.data())
def test_an_exported_column_is_fed_back_equal(name: str, format: str, data: st.DataObject) -> None:
    kind, values = COLUMNS[name]
    drawn = data.draw(st.lists(st.none() | values, min_size=1, max_size=6))
    table = table_of({name: (kind, values)}, [{"id": n, name: value} for n, value in enumerate(drawn)])
    read = fed_back(table, format)
    # As text: NaN is equal to NaN, and -0.0 is not 0.0.
    assert str(read[name].to_pylist()) == str(table[name].to_pylist())


@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize(
    "far",
    [
        pa.array([None, 2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([0, 2_932_897], pa.int32()).cast(pa.date32()),  # the first day of the year 10000
        pa.array([-(2**62), None], pa.int64()).cast(pa.timestamp("us")),
        pa.array([2**60, 0], pa.int64()).cast(pa.timestamp("s", "UTC")),
        pa.array([253_402_300_800_000], pa.int64()).cast(pa.timestamp("ms", "Europe/Berlin")),
    ],
    ids=lambda array: str(array.type),
)
def test_a_time_beyond_the_year_9999_is_refused_with_its_column(far: pa.Array, format: str) -> None:
    batch = pa.RecordBatch.from_arrays([far], ["at"])
    write, finish = WRITERS[format](batch.schema, io.BytesIO())
    with pytest.raises(InvalidArgument, match=r"^column 'at' \("):
        write(batch)
    finish()


def test_documents_in_json_keep_nan_infinities_and_old_zones(capsys: pytest.CaptureFixture[str]) -> None:
    berlin = pa.scalar(-3_786_825_600_000_000, pa.timestamp("us", "Europe/Berlin")).as_py()
    write_json({"v": [float("nan"), float("inf"), {"x": float("-inf")}, 0.5], "at": berlin})
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found == {"v": ["NaN", "Infinity", {"x": "-Infinity"}, 0.5], "at": "1850-01-01T00:00:00Z"}
