"""An invalid argument raises one clear InvalidArgument; no request is sent, no row changes, no connection closes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from msgspec.structs import replace

import ebla
from ebla import aio, local_scan
from ebla.actors import messages as m
from ebla.aio import Table
from ebla.arguments import check_deadline
from ebla.errors import InvalidArgument
from ebla.options import INT_MAX, WriteId, Written
from ebla.storage.predicates import expressions
from ebla.storage.schema import Column, Hash, Partitioning, TableSchema
from tests.client.loopback import Loopback
from tests.client.real_roles import Stage, on_real_roles
from tests.client.tables import SCHEMA, on_table, row
from tests.client.toy import HOSTS, Bench, address, on_toys

CLIENT = b"c" * 16
TWICE = pa.table([pa.array([1]), pa.array([2])], names=["id", "id"])
VALUES = pa.schema(
    [("id", pa.int64()), ("money", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC")), ("s", pa.string())]
)  # fmt: skip


@pytest.fixture(scope="module")
def loopback() -> Iterator[Loopback]:
    with Loopback() as running:
        running.db.create_table("t", schema=SCHEMA, primary_key=["id"])
        running.db.create_table("values", schema=VALUES, primary_key=["id"])
        yield running


Call = Callable[[ebla.Table], Any]

CALLS: list[tuple[str, Call]] = [
    ("a key is a dict", lambda t: t.get("a")),  # type: ignore[arg-type]
    ("a key is a dict", lambda t: t.get(None)),  # type: ignore[arg-type]
    ("a key is a dict", lambda t: t.get([1])),  # type: ignore[arg-type]
    ("'id' needs a value", lambda t: t.get({})),
    ("'id', row 0", lambda t: t.get({"id": 10**5000})),
    ("'id', row 0", lambda t: t.get({"id": "\ud800"})),
    ("row 0 is str", lambda t: t.get_many(["a"])),
    ("rows are NoneType", lambda t: t.get_many(None)),
    ("rows are int", lambda t: t.get_many(5)),
    ("'id' appears twice", lambda t: t.get_many(TWICE)),
    ("'id' appears twice", lambda t: t.delete(TWICE)),
    ("'id' appears twice", lambda t: t.delete(pd.DataFrame([[1, 2]], columns=["id", "id"]))),
    ("'id' appears twice", lambda t: t.upsert(TWICE)),
    ("rows are NoneType", lambda t: t.upsert(None)),
    ("rows are set", lambda t: t.upsert({1, 2})),
    ("rows are ndarray", lambda t: t.update(np.array(5))),
    ("rows are str", lambda t: t.upsert("")),
    ("nope", lambda t: t.upsert([{"id": 1, "nope": 2}])),
    ("nope", lambda t: t.update([{"id": 1, "nope": 2}])),
    ("outside the key", lambda t: t.update({"id": 1})),
    ("'id'", lambda t: t.delete([{"v": "a"}])),
    ("row 1 names the columns id, n and row 0 id, v", lambda t: t.update([{"id": 1, "v": "a"}, {"id": 2, "n": 1}])),
    ("no column 'zz' here; the columns are id, v, n$", lambda t: t.upsert({"id": 1, "zz": 1})),
    ("no column 'zz' here; drop it, the columns are id, v, n$", lambda t: t.upsert([{"id": 1, "zz": 1}])),
    ("no column 'idd' here; did you mean 'id'", lambda t: t.upsert({"idd": 1})),
    ("no column 'idd' here; did you mean 'id'", lambda t: t.upsert([{"idd": 1}])),
    ("there is no column", lambda t: t.upsert({"id": 1, "\ud800": 2})),
    ("there is no column", lambda t: t.upsert([{"id": 1, "\ud800": 2}])),
    ("'v', row 1: '.ud800'", lambda t: t.upsert([row(1), row(2, v="\ud800")])),
    ("'v', row 0: '.ud800'", lambda t: t.upsert(row(2, v="\ud800"))),
    ("row 1 names", lambda t: t.update([{"id": 1, "n": 1}, {"id": 2, 3: 1}])),
    ("write_id is a pair.*not 5", lambda t: t.upsert(row(1), write_id=5)),  # type: ignore[arg-type]
    ("write_id is a pair", lambda t: t.upsert(row(1), write_id=(CLIENT,))),  # type: ignore[arg-type]
    ("is 16 bytes", lambda t: t.upsert(row(1), write_id=("c" * 16, 1))),  # type: ignore[arg-type]
    ("write_id", lambda t: t.upsert(row(1), write_id=(b"short", 1))),
    ("whole number.*not True", lambda t: t.upsert(row(1), write_id=(CLIENT, True))),
    ("whole number.*not -1", lambda t: t.upsert(row(1), write_id=(CLIENT, -1))),
    ("whole number", lambda t: t.upsert(row(1), write_id=(CLIENT, 1 << 63))),
    ("another client", lambda t: t.upsert([row(1), row(2)], write_id=(CLIENT, INT_MAX - 1))),
    ("if_present must be", lambda t: t.insert(row(1), if_present=None)),  # type: ignore[arg-type]
    ("deadline_s is a number.*'x'", lambda t: t.upsert(row(1), deadline_s="x")),  # type: ignore[arg-type]
    ("deadline_s is a number.*'x'", lambda t: t.get({"id": 1}, deadline_s="x")),  # type: ignore[arg-type]
    ("deadline_s is a number", lambda t: t.scan(deadline_s=True)),
    ("deadline_s must be positive", lambda t: t.get({"id": 1}, deadline_s=float("nan"))),
    ("columns is a list.*not 5", lambda t: t.scan(columns=5)),  # type: ignore[arg-type]
    (r"\['id'\]", lambda t: t.scan(columns="id")),
    ("columns is a list", lambda t: t.scan(columns="id")),
    ("nope", lambda t: t.scan(columns=["id", "nope"])),
    ("once", lambda t: t.scan(columns=["id", "id"])),
    ("nope", lambda t: t.scan(where=ebla.col("nope") == 1)),
    ("deadline_s", lambda t: t.scan(deadline_s=0)),
    ("each of columns is a str", lambda t: t.scan(columns=[None])),  # type: ignore[list-item]
    ("not valid Unicode", lambda t: t.scan(columns=["\ud800"])),
    ("limit must be a whole number.*'3'", lambda t: t.scan(limit="3")),  # type: ignore[arg-type]
    ("limit must be a whole number", lambda t: t.scan(limit=1.0)),  # type: ignore[arg-type]
    ("limit must be a whole number", lambda t: t.scan(limit=True)),
    ("limit must be a whole number, 0 or more", lambda t: t.scan(limit=-1)),
    ("limit must be a whole number, 0 to 9223372036854775807", lambda t: t.scan(limit=2**70)),
    ("limit must be a whole number", lambda t: t.scan(limit=2**63)),
    ("limit must be a whole number", lambda t: t.scan(limit=10**5000)),
    ("'id' is int64, and starts_with is for string and binary columns: compare it with ==, < .*; give an int .*such as 42$",
        lambda t: t.scan(where=~(ebla.col("id").starts_with("x") | (ebla.col("v") == "a")))),
    ("bucket must be a whole number, 0 to 0, not -1", lambda t: local_scan.scan_tablet(t, -1)),
    ("table is a table, such as", lambda t: local_scan.scan_tablet(t.name, 0)),  # type: ignore[arg-type]
    ("is_in takes a list.*not 5", lambda t: t.scan(where=ebla.col("id").is_in(5))),  # type: ignore[arg-type]
    ("is_in takes a list", lambda t: t.scan(where=ebla.col("v").is_in("abc"))),
    ("is_in takes up to", lambda t: t.scan(where=ebla.col("id").is_in(iter(int, 1)))),
    ("'id' cannot be compared", lambda t: t.scan(where=ebla.col("id") == 10**5000)),
    ("'id' cannot be compared", lambda t: t.scan(where=ebla.col("id") == 2**70)),
    ("'v' cannot be compared", lambda t: t.scan(where=ebla.col("v") == "\ud800")),
    ("no condition", lambda t: t.scan(where="id == 1")),  # type: ignore[arg-type]
    ("over the limit", lambda t: t.scan(where=ebla.col("v") == "x" * (5 << 20))),
    ("over the limit", lambda t: t.scan(where=ebla.col("v").is_in(["x" * 500] * 9000))),
]  # fmt: skip


@pytest.mark.parametrize(("words", "call"), CALLS)
def test_a_bad_argument_is_refused_by_name_and_the_connection_still_works(
    loopback: Loopback, words: str, call: Call
) -> None:
    table = loopback.db.table("t")
    asked = len(loopback.toy.calls)
    with pytest.raises(InvalidArgument, match=words):
        call(table)
    assert len(loopback.toy.calls) == asked
    assert table.get_many([{"id": -1}]) == [None]


@pytest.mark.parametrize("text", ["1e-999999999", "1e999999999", "NaN", "Infinity", "1e-77"])
@pytest.mark.parametrize(
    "condition",
    [
        lambda value: ebla.col("money") == value,
        lambda value: ebla.col("money") < value,
        lambda value: ebla.col("money").is_in([Decimal(1), value]),
        lambda value: ~(ebla.col("money") != value),
        lambda value: ebla.col("id") == value,
    ],
)
def test_a_condition_with_a_decimal_out_of_range_is_refused(
    loopback: Loopback, text: str, condition: Any
) -> None:
    table = loopback.db.table("values")
    with pytest.raises(InvalidArgument, match="cannot be compared with Decimal"):
        table.scan(where=condition(Decimal(text)))


@pytest.mark.parametrize("value", [Decimal("1e-999999999"), Decimal("NaN")])
def test_a_decimal_out_of_range_is_refused_by_every_verb(loopback: Loopback, value: Decimal) -> None:
    table = loopback.db.table("values")
    bad = {"id": 1, "money": value}
    frame = pd.DataFrame({"id": [1], "money": pd.Series([value], dtype=object)})
    for verb in (table.upsert, table.insert, table.update):
        for rows in (bad, [bad], frame):
            with pytest.raises(InvalidArgument, match="'money', row 0"):
                verb(rows)
    assert table.scan().count() == 0


def test_a_number_for_a_time_is_refused_with_what_to_give_instead(loopback: Loopback) -> None:
    table = loopback.db.table("values")
    for rows in ({"id": 1, "at": 0}, [{"id": 1, "at": 0}]):
        with pytest.raises(InvalidArgument, match=r"0 is not a datetime.*such as datetime.datetime.now"):
            table.upsert(rows)


def test_a_stored_time_that_python_cannot_hold_is_named_by_every_read() -> None:
    with Loopback() as loopback:
        schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
        table = loopback.db.create_table("far", schema=schema, primary_key=["id"])
        table.upsert(pa.table({"id": [1], "day": pa.array([2**31 - 1], pa.int32()).view(pa.date32())}))
        for read in (
            lambda: table.get({"id": 1}),
            lambda: table.get_many([{"id": 1}]),
            lambda: list(table),
            lambda: list(table.scan()),
        ):
            with pytest.raises(InvalidArgument, match=r"'day'.*Arrow"):
                read()
        assert table.get_many([{"id": 1}], as_arrow=True).num_rows == table.scan().to_arrow().num_rows == 1


# -- requests to the master ------------------------------------------------------------------------------------


def make_table(**changed: Any) -> Callable[[aio.Database], Any]:
    arguments = {"schema": SCHEMA, "primary_key": ["id"], **changed}
    return lambda db: db.create_table(arguments.pop("name", "t"), **arguments)


ASKED: list[tuple[str, Callable[[aio.Database], Any]]] = [
    ("name is a str, not 5", make_table(name=5)),
    ("name is a str, not None", lambda db: db.table(None)),  # type: ignore[arg-type]
    ("name is not valid Unicode", make_table(name="\ud800")),
    ("name is not valid Unicode", lambda db: db.table("\ud800")),
    ("name is not valid Unicode", lambda db: db.drop_table("\ud800")),
    ("name is a str", lambda db: db.drop_table(["t"])),  # type: ignore[arg-type]
    ("prefix is a str, not 5", lambda db: db.tables(5)),  # type: ignore[arg-type]
    ("deadline_s is a number", lambda db: db.tables(deadline_s="x")),  # type: ignore[arg-type]
    ("schema is a pyarrow.Schema", make_table(schema=None)),
    ("schema is a pyarrow.Schema", make_table(schema={"id": "int64"})),
    ("primary_key is a list", make_table(primary_key=None)),
    ("primary_key is a list", make_table(primary_key=5)),
    ("each of primary_key is a str", make_table(primary_key=[5])),
    (r"list of columns: \['id'\]", make_table(primary_key="id")),
    ("primary key", make_table(primary_key=[])),
    ("nope", make_table(primary_key=["nope"])),
    ("'v' is not in the primary key", make_table(partition_by=ebla.hash("v", buckets=4))),
    ("prefix of the primary key", make_table(partition_by=ebla.range("v", splits=["m"]))),
    ("sort them", make_table(partition_by=ebla.range("id", splits=[5, 3]))),
    ("ebla.hash", make_table(partition_by="id")),
    ("'x' has type halffloat.*use float32", make_table(schema=pa.schema([("id", pa.int64()), ("x", pa.float16())]))),
    ("time zone 'Mars/Base'", make_table(schema=SCHEMA.append(pa.field("at", pa.timestamp("us", "Mars/Base"))))),
    ("replicas must be a whole number", make_table(replicas="3")),
    ("replicas must be a whole number", make_table(replicas=True)),
    ("replicas must be a whole number", make_table(replicas=2**70)),
    ("create_table cannot be sent.*replication", make_table(replication=5)),
    ("create_table cannot be sent", make_table(replication="\ud800")),
    ("properties is a dict", make_table(properties=5)),
    ("properties.'a'. is a str, not 5", make_table(properties={"a": 5})),
    ("not valid Unicode", make_table(properties={"a": "\ud800"})),
    ("wait_s is a number", make_table(wait_s="x")),
    ("wait_s must be positive", make_table(wait_s=-1)),
    ("splits is a list", lambda db: make_table(partition_by=ebla.range("id", splits=5))(db)),  # type: ignore[arg-type]
    ("splits is a list", lambda db: make_table(partition_by=ebla.range("id", splits="abc"))(db)),
    ("range columns are names", lambda db: make_table(partition_by=ebla.range(5, splits=[1]))(db)),  # type: ignore[arg-type]
    ("'id' needs a value", lambda db: make_table(partition_by=ebla.range("id", splits=[None]))(db)),
    ("buckets is a whole number", lambda db: make_table(partition_by=ebla.hash("id", buckets=2.5))(db)),  # type: ignore[arg-type]
    ("buckets is a whole number", lambda db: make_table(partition_by=ebla.hash("id", buckets="2"))(db)),  # type: ignore[arg-type]
    ("buckets is a whole number", lambda db: make_table(partition_by=ebla.hash("id", buckets=None))(db)),  # type: ignore[arg-type]
    ("hash columns are names", lambda db: make_table(partition_by=ebla.hash(["id"], buckets=2))(db)),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize(("words", "call"), ASKED)
@on_toys
async def test_a_bad_argument_is_refused_before_the_master_is_asked(
    bench: Bench, words: str, call: Callable[[aio.Database], Any]
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await call(bench.db)
    assert bench.toy.calls == []


@pytest.mark.parametrize(
    ("columns", "buckets", "words"),
    [
        (("id",), 0, "buckets must be 2 to 4096, not 0"),
        (("id",), 1, "buckets must be 2 to 4096, not 1"),
        (("id",), 2**70, "buckets must be 2 to 4096"),
        ((), 4, "hash columns must be distinct, one at least"),
        (("id", "id"), 4, "hash columns must be distinct, one at least"),
    ],
)
def test_a_hash_that_can_divide_no_table_is_refused_at_once(
    columns: tuple[str, ...], buckets: int, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ebla.hash(*columns, buckets=buckets)
    schema = TableSchema.from_arrow(SCHEMA, ["id"])
    forged = replace(schema, partitioning=Partitioning(Hash(columns, buckets)))
    with pytest.raises(InvalidArgument, match=words):
        forged.validate()


@pytest.mark.parametrize("zone", ["Mars/Base", "+99:99"])
@on_real_roles
async def test_the_master_refuses_an_unknown_time_zone_and_every_server_stays_up(
    stage: Stage, zone: str
) -> None:
    columns = (Column("id", "int64", False), Column("at", "timestamp", unit="us", zone=zone))
    request = m.CreateTableRequest("r", "t", TableSchema(columns, ("id",)), 3, "raft", {})
    with pytest.raises(InvalidArgument, match="'at': time zone"):
        await stage.session.master.ask("create_table", request, m.TableInfo, deadline_s=5.0)
    assert all(stage.cluster.alive(address(host)) for host in HOSTS)
    assert await (await stage.table()).upsert(row(1)) == Written(1)


# -- accepted arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "used"), [(5, 5.0), (np.float32(2), 2.0), (Fraction(1, 2), 0.5), (None, 60.0),
    (float("inf"), float("inf")), (10**400, float("inf"))], ids=["int", "float32", "Fraction", "None", "inf", "huge"])  # fmt: skip
def test_a_deadline_is_any_positive_number(given: Any, used: float) -> None:
    assert check_deadline(given) == used


@on_table()
async def test_an_infinite_deadline_is_accepted_everywhere(bench: Bench, table: Table) -> None:
    for deadline_s in (float("inf"), 10**400):
        assert await table.upsert(row(1), deadline_s=deadline_s) == Written(1)
        assert await table.upsert([row(1), row(2)], deadline_s=deadline_s) == Written(2)
        assert await table.get({"id": 1}, deadline_s=deadline_s) == row(1)
        assert await table.scan(deadline_s=deadline_s).count() == 2
        await table.flush(deadline_s=deadline_s)
    made = await bench.db.create_table("u", schema=SCHEMA, primary_key=("id",), wait_s=10**400)
    assert made.name == "u"


def test_the_largest_numbers_and_numpy_numbers_are_accepted(loopback: Loopback) -> None:
    table = loopback.db.create_table("largest", schema=SCHEMA, primary_key=["id"])
    assert table.upsert([row(1), row(2)], write_id=WriteId(CLIENT, INT_MAX - 2)) == Written(2)
    assert table.scan(limit=INT_MAX).count() == 2
    assert table.scan(limit=np.int64(1)).count() == 1  # type: ignore[arg-type]
    assert table.scan(limit=0).count() == 0
    assert table.scan(columns=(name for name in ("id",))).count() == 2  # type: ignore[arg-type]


def test_rows_may_come_in_any_sequence(loopback: Loopback) -> None:
    """An update from a sequence that is no list changes the named columns only."""
    table = loopback.db.create_table("sequences", schema=SCHEMA, primary_key=["id"])
    assert table.upsert(deque([row(1), row(2)])) == Written(2)
    assert table.update(deque([{"id": 1, "n": 7}])) == Written(1)
    assert table.get_many(deque([{"id": 1}, {"id": 3}])) == [row(1, n=7), None]
    assert table.delete(deque([{"id": 1}])) == Written(1)
    assert table.upsert(deque()) == table.upsert([]) == Written(0)


def test_a_condition_of_the_largest_size_is_accepted_and_the_server_refuses_a_larger_one() -> None:
    at = datetime(2024, 5, 17, tzinfo=timezone.utc)
    fine = ebla.col("v").is_in(["x" * 300] * 10_000)
    assert expressions.decode(expressions.encode(fine)) == fine
    assert expressions.decode(expressions.encode(ebla.col("at") == at)) == (ebla.col("at") == at)
    with pytest.raises(InvalidArgument, match="over the limit"):
        expressions.decode(b"\x00" * (expressions.ENCODED_BYTES_MAX + 1))
