"""Schemas from flags and files."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import ebla
from ebla.cli.frame.problems import Usage
from ebla.cli.frame.types import type_name
from ebla.cli.tables.schemas import TableSpec, gather, parse_column
from ebla.storage.schema import Column, TableSchema


def spec(columns: list[str] | None = None, **given: Any) -> TableSpec:
    names = ("key", "hashed", "ranged", "schema_file", "data_file")
    replicated = ("replicas", "replication", "min_members")
    return gather(columns or [], **{name: given.get(name) for name in (*names, *replicated)})


ITEMS = (Column("item", "int64", False),)
TIMES = (Column("key", "string", False), Column("value", "timestamp", unit="s", zone="+05:30"))
POINT = (Column("x", "double", False), Column("y", "decimal", precision=10, scale=2))
NESTED = [
    "time[ns]",
    "duration[s]",
    "list<list<double not null>>",
    "map<date, struct<a: int8, b: list<uint64>> not null>",
    "struct<at: timestamp[us,Europe/Berlin] not null, m: map<string, decimal(38,0)>>",
]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("flight:int32", Column("flight", "int32", False)),
        ("tailnum:string:null", Column("tailnum", "string", True)),
        ("time_hour:timestamp[us,UTC]", Column("time_hour", "timestamp", False, unit="us", zone="UTC")),
        ("t:timestamp[ms, Europe/Rome]:null", Column("t", "timestamp", True, unit="ms", zone="Europe/Rome")),
        ("t:timestamp[ns]", Column("t", "timestamp", False, unit="ns")),
        ("t:timestamp[s,+05:30]", Column("t", "timestamp", False, unit="s", zone="+05:30")),
        ("fare:decimal(10,2)", Column("fare", "decimal", False, precision=10, scale=2)),
        ("fare:decimal128[10, 2]:null", Column("fare", "decimal", True, precision=10, scale=2)),
        ("n:int", Column("n", "int64", False)),
        ("x:float64:nullable", Column("x", "double", True)),
        ("ok:BOOLEAN", Column("ok", "bool", False)),
        ("n:uint64", Column("n", "uint64", False)),
        ("note:json:null", Column("note", "json", True)),
        ("at:time[ms]", Column("at", "time", False, unit="ms")),
        ("took:duration(us):null", Column("took", "duration", True, unit="us")),
        ("tags:list<string>:null", Column("tags", "list", True, fields=(Column("item", "string"),))),
        ("tags:List<item: int not null>", Column("tags", "list", False, fields=ITEMS)),
        ("m:map<string, timestamp[s,+05:30]>", Column("m", "map", False, fields=TIMES)),
        ("p:struct<x: double not null, y: decimal(10,2)>", Column("p", "struct", False, fields=POINT)),
    ],
)
def test_a_column_is_declared_by_name_and_type(text: str, column: Column) -> None:
    assert parse_column(text) == column


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flight", "not name:type"),
        (":int32", "not name:type"),
        ("flight:", "not name:type"),
        ("flight:int31", "did you mean 'int32'"),
        ("flight:quux", "the types are int8"),
        ("t:timestamp", r"write timestamp\[us\]"),
        ("t:timestamp[hours]", "s, ms, us or ns"),
        ("d:decimal", r"decimal\(10,2\)"),
        ("t:time", r"write time\[us\]"),
        ("t:time[us,UTC]", r"a time has no zone; write time\[us\]"),
        ("t:duration[days]", "s, ms, us or ns"),
        ("l:list", "write list<type>"),
        ("l:list<>", "write list<type>"),
        ("l:list<int31>", "did you mean 'int32'"),
        ("m:map<string>", "write map<key type, value type>"),
        ("s:struct<double>", "write struct<name: type"),
    ],
)
def test_a_wrong_column_declaration_gets_the_right_form(text: str, words: str) -> None:
    with pytest.raises(Usage, match=words):
        parse_column(text)


def test_type_names_are_read_back() -> None:
    for text in ("timestamp[us,UTC]", "timestamp[ns]", "decimal(10,2)", "string", "int8", *NESTED):
        assert type_name(parse_column(f"c:{text}")) == text


@pytest.mark.parametrize(
    "name",
    ["a:b", "a,b", "a>b", "x<y", "a b", " a ", "a not null", "list<int>", "(", '"', '"a"', '5" : 6"', "a\\", "\u2028", "größe"],
)  # fmt: skip
def test_a_field_of_a_struct_is_shown_with_a_name_that_is_read_back(name: str) -> None:
    inner = Column(name, "struct", fields=(Column(name, "int64"), Column("z", "string", nullable=False)))
    column = Column("c", "struct", nullable=False, fields=(inner, Column("n", "int8")))
    assert parse_column(f"c:{type_name(column)}") == column


def test_every_name_of_a_field_can_be_in_quotes() -> None:
    assert parse_column('c:struct<"x": int8>') == parse_column("c:struct<x: int8>")
    with pytest.raises(Usage, match="is not JSON"):
        parse_column(r'c:struct<"a\q": int8>')


def test_flags_create_the_same_schema_as_the_python_api() -> None:
    made = spec(
        ["at:timestamp[us,UTC]", "carrier:string", "delay:double:null"],
        key="at,carrier",
        hashed="carrier:4",
        ranged="at=2013-04-01,2013-07-01T12:00",
        replicas=1,
    )
    schema = pa.schema(
        [
            pa.field("at", pa.timestamp("us", "UTC"), False),
            pa.field("carrier", pa.string(), False),
            pa.field("delay", pa.float64()),
        ]
    )
    utc = ZoneInfo("UTC")
    splits = [datetime(2013, 4, 1, tzinfo=utc), datetime(2013, 7, 1, 12, tzinfo=utc)]
    assert made.arrow() == schema
    assert made.key == ("at", "carrier")
    assert made.partition_by() == ebla.hash("carrier", buckets=4) + ebla.range("at", splits=splits)
    assert made.replicas == 1


def test_key_columns_never_take_null() -> None:
    made = spec(["a:int32:null", "b:int32:null"], key="a")
    assert [field.nullable for field in made.arrow()] == [False, True]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"key": "a"}, "has no columns"),
        ({"columns": ["a:int32"]}, "needs a primary key"),
        ({"columns": ["a:int32"], "key": "b"}, "--key names 'b'"),
        ({"columns": ["carrier:string"], "key": "carier"}, "did you mean 'carrier'"),
        ({"columns": ["a:int32", "a:int64"], "key": "a"}, "given twice"),
        ({"columns": ["a:int32"], "key": "a,"}, "not a list of columns"),
        ({"columns": ["a:int32"], "key": "a", "hashed": "a"}, "not columns:buckets"),
        ({"columns": ["a:int32"], "key": "a", "hashed": "b:4"}, "--hash names 'b'"),
        ({"columns": ["a:int32"], "key": "a", "ranged": "a"}, "not column=split"),
        ({"schema_file": Path("x.yaml"), "data_file": Path("x.csv")}, "not both"),
        ({"data_file": Path("missing.parquet")}, "there is no file"),
    ],
)
def test_an_incomplete_table_is_refused_before_any_request(given: Any, words: str) -> None:
    with pytest.raises(Usage, match=words):
        spec(**given)


def test_a_split_that_does_not_fit_its_column_is_named() -> None:
    made = spec(["a:int32"], key="a", ranged="a=1,two")
    with pytest.raises(Usage, match="'two' is not a value for column 'a' of type int32"):
        made.partition_by()


YAML = """
columns:
  time_hour: timestamp[us, UTC]
  carrier: string
  flight: int32
  tailnum: string:null
key: [time_hour, carrier, flight]
hash: {columns: [carrier, flight], buckets: 8}
range:
  columns: [time_hour, carrier]
  splits: [["2013-04-01", UA], ["2013-07-01", AA]]
replicas: 3
replication: pacifica
min_members: 3
"""


def test_a_yaml_file_defines_a_whole_table(tmp_path: Path) -> None:
    path = tmp_path / "flights.yaml"
    path.write_text(YAML)
    made = spec(schema_file=path)
    assert [c.name for c in made.columns] == ["time_hour", "carrier", "flight", "tailnum"]
    assert (made.replicas, made.replication, made.min_members) == (3, "pacifica", 3)
    partition_by = made.partition_by()
    assert partition_by is not None
    assert partition_by.columns == ("time_hour", "carrier")
    assert partition_by.splits[0] == (datetime(2013, 4, 1, tzinfo=ZoneInfo("UTC")), "UA")


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "flights.yaml"
    path.write_text(YAML)
    made = spec(
        ["flight:int64", "note:string:null"], schema_file=path, hashed="flight:2", replicas=1, min_members=1
    )
    types = " ".join(type_name(c) for c in made.columns)
    assert types == "timestamp[us,UTC] string int64 string string"
    assert (made.hash.buckets if made.hash else 0, made.replicas) == (2, 1)
    assert (made.replication, made.min_members) == ("pacifica", 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("colums: {}", "did you mean 'columns'"),
        ("- a", "must be a mapping"),
        ("columns: 5", "columns is a mapping"),
        ("columns: {a: int32}\nkey: a\nreplicas: many", "replicas is a whole number"),
        ("columns: {a: int32}\nkey: a\nreplication: 2", "replication is a word, not 2"),
        ("columns: {a: int32}\nkey: a\nhash: {columns: [a]}", "hash has columns and buckets"),
        ("columns: {a: int32}\nkey: a\nrange: {columns: a, splits: 5}", "list of splits"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_wrong_yaml_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    with pytest.raises(Usage, match=words):
        spec(schema_file=path)


def test_columns_come_from_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    schema = pa.schema([pa.field("a", pa.int16(), False), pa.field("b", pa.timestamp("ms", "UTC"))])
    parquet.write_table(pa.table({"a": [1], "b": [None]}, schema=schema), path)
    made = spec(data_file=path, key="a")
    assert TableSchema.from_arrow(made.arrow(), made.key).arrow() == schema


def test_columns_come_from_a_csv_file_and_flags_correct_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("carrier,flight,delay\nUA,1545,NA\nAA,1141,2.5\n")
    made = spec(["flight:int32"], data_file=path, key="carrier,flight")
    assert [(c.name, type_name(c), c.nullable) for c in made.columns] == [
        ("carrier", "string", False),
        ("flight", "int32", False),
        ("delay", "double", True),
    ]
