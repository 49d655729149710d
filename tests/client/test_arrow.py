"""Rows that go in and out as Arrow streams: Polars, DuckDB, pyarrow readers, NumPy records, iterables of batches."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain, islice
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from msgspec.structs import replace

import ebla
from ebla.errors import AlreadyPresent, InvalidArgument, RequestReused, ScanInterrupted
from ebla.options import UNIT_BYTES, WriteId, Written
from ebla.storage.errors import SnapshotExpired
from ebla.storage.rows.alteration import DropColumn
from ebla.storage.rows.altered import altered
from ebla.storage.rows.rows import RowCodec
from ebla.write import streams
from tests.client.loopback import Loopback
from tests.client.tables import RICH, SCHEMA, arrow, rich_rows
from tests.client.toy import address, refuse


class Once:
    """A batch that offers Arrow's array interface only."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.batch.__arrow_c_array__(requested_schema)


def records(data: pa.Table) -> Any:
    made = np.zeros(len(data), dtype=[("n", ">i4"), ("id", "<i8"), ("v", "U10")])
    for name in made.dtype.names or ():
        made[name] = data[name].to_numpy()
    return made


FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "table": lambda data: data,
    "batch": lambda data: data.combine_chunks().to_batches()[0],
    "pandas": lambda data: data.to_pandas(),
    "dicts": lambda data: data.to_pylist(),
    "polars": pl.DataFrame,
    "duckdb": lambda data: duckdb.connect().from_arrow(data),
    "reader": lambda data: data.to_reader(max_chunksize=7),
    "array interface": lambda data: Once(data.combine_chunks().to_batches()[0]),
    "struct array": lambda data: data.combine_chunks().to_batches()[0].to_struct_array(),
    "list of batches": lambda data: data.to_batches(max_chunksize=9),
    "batches and tables": lambda data: iter([data[:20], data.slice(20).combine_chunks().to_batches()[0]]),
    "list of polars frames": lambda data: [pl.DataFrame(data[:20]), pl.DataFrame(data[20:])],
    "pandas chunks": lambda data: (data[at : at + 10].to_pandas() for at in range(0, len(data), 10)),
    "records": records,
}


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_written_read_and_deleted_in_every_form(table: ebla.Table, form: str) -> None:
    data, make = arrow(50), FORMS[form]
    assert table.upsert(make(data)) == Written(50)
    assert table.scan().to_arrow().sort_by("id").equals(data.cast(table.schema))
    assert table.insert(make(data), if_present="ignore") == Written(0, tuple(range(50)))
    doubled = data.set_column(2, "n", pa.array(range(0, 100, 2), pa.int32()))
    assert table.update(make(doubled)) == Written(50)
    assert [row["n"] for row in table.get_many(make(data))] == list(range(0, 100, 2))
    assert table.delete(make(data[10:])) == Written(40)
    assert table.scan().count() == 10


def test_one_record_of_numpy_is_one_row(table: ebla.Table) -> None:
    assert table.upsert(records(arrow(3))[2]) == Written(1)
    assert table.get({"id": 2}) == {"id": 2, "v": f"{2:010}", "n": 2}
    with pytest.raises(InvalidArgument, match=r"2 dimensions; give one dimension, such as rows.ravel\(\)"):
        table.upsert(records(arrow(4)).reshape(2, 2))


def test_nan_in_records_of_numpy_is_no_null(loopback: Loopback) -> None:
    """In a pandas frame it is one: pandas has no other null for floats."""
    kinds = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    table = loopback.db.create_table("floats", schema=kinds, primary_key=["id"])
    rows = np.array([(1, np.nan), (2, 0.5)], [("id", "i8"), ("x", "f8")])
    assert table.upsert(rows) == Written(2)
    assert np.isnan(table.get({"id": 1})["x"])  # type: ignore[index]
    assert table.upsert(pd.DataFrame(rows)) == Written(2)
    assert table.get({"id": 1}) == {"id": 1, "x": None}


def test_a_delete_by_an_object_column_of_pandas_hits_the_row_of_that_nanosecond(loopback: Loopback) -> None:
    key = pa.schema([("at", pa.timestamp("ns"))])
    table = loopback.db.create_table("times", schema=key, primary_key=["at"])
    table.upsert([{"at": pd.Timestamp(at)} for at in (0, 1)])
    assert table.delete(pd.DataFrame({"at": pd.Series([pd.Timestamp(1)], dtype=object)})) == Written(1)
    assert [row["at"].value for row in table] == [0]


def test_a_sum_of_duckdb_is_written_as_an_integer(table: ebla.Table) -> None:
    sums = duckdb.sql("select id, sum(id)::hugeint as n from range(3) found(id) group by id")
    assert table.upsert(sums) == Written(3)
    assert table.get({"id": 2}) == {"id": 2, "v": None, "n": 2}


def test_every_type_is_written_from_polars_and_duckdb(rich: ebla.Table) -> None:
    data = rich_rows(30)
    frame = pl.DataFrame(data).with_columns(pl.col("kind").cast(pl.Categorical), pl.col("note").ext.storage())
    assert rich.upsert(frame) == Written(30)
    assert rich.scan().to_arrow().sort_by("id").equals(data)
    con = duckdb.connect()
    con.register("data", data)
    assert rich.upsert(con.sql("select * replace (id + 30 as id) from data")) == Written(30)
    found = rich.scan(where=ebla.col("id") >= 30).to_arrow().sort_by("id")
    assert found.drop_columns(["id"]).equals(data.drop_columns(["id"]))


# -- scans ----------------------------------------------------------------------------------------------------


def test_a_scan_is_a_stream_with_exact_types(rich: ebla.Table) -> None:
    data = rich_rows(100)
    rich.upsert(data)
    scan = rich.scan()
    read = pa.table(scan)
    assert read.schema.equals(RICH) and read.sort_by("id").equals(data)
    frame = pl.DataFrame(rich.scan(["id", "at", "took", "tags", "point", "u"])).sort("id")
    assert frame["at"].to_list() == data["at"].to_pylist()
    assert frame["took"].to_list() == data["took"].to_pylist() and frame.schema["took"] == pl.Duration("ms")
    assert frame["tags"].to_list() == data["tags"].to_pylist() and frame.schema["u"] == pl.UInt64
    found = duckdb.connect().sql(
        "select id, point.x, m['k'], took from scan where u > 9223372036854775810 order by id limit 2"
    )
    assert found.fetchall() == [
        (3, None, 3, timedelta(milliseconds=3)),
        (4, 2.0, None, timedelta(milliseconds=4)),
    ]
    wider = pa.RecordBatchReader.from_stream(rich.scan(["id", "took"]), pa.schema([("id", pa.float64()), ("took", pa.duration("us"))]))  # fmt: skip
    assert wider.read_all().schema.types == [pa.float64(), pa.duration("us")]


def test_a_table_is_a_stream_of_all_of_its_rows(loopback: Loopback, rich: ebla.Table) -> None:
    data = rich_rows(100)
    rich.upsert(data)
    assert duckdb.connect().sql("select sum(id), count(u) from rich").fetchall() == [
        (sum(data["id"].to_pylist()), 100 - data["u"].null_count)
    ]
    assert pl.DataFrame(rich).schema["took"] == pl.Duration("ms")
    copy = loopback.db.create_table("copy", schema=RICH, primary_key=["id"])
    assert copy.upsert(rich) == Written(100)
    assert pa.table(copy).sort_by("id").equals(data)


def test_a_lazy_frame_is_refused_with_the_call_that_reads_it(table: ebla.Table) -> None:
    with pytest.raises(InvalidArgument, match=r"rows are LazyFrame; give rows.collect\(\)"):
        table.upsert(pl.LazyFrame({"id": [1]}))


def test_a_stream_of_a_scan_is_read_while_it_is_used_and_ends_with_its_reader(
    loopback: Loopback, table: ebla.Table
) -> None:
    table.upsert(arrow(1000))
    loopback.toy.block_rows = 10
    scan = table.scan()
    unused = scan.__arrow_c_stream__()
    assert loopback.toy.count("scan") == 0, "nothing is read before the first batch is asked for"
    reader = pa.RecordBatchReader.from_stream(scan)
    assert reader.read_next_batch().num_rows > 0
    assert loopback.toy.count("scan") + loopback.toy.count("scan_more") < 30
    reader.close()
    del unused
    assert loopback.scanners_left() == {}
    assert pa.table(scan).num_rows == pa.table(scan).num_rows == 1000, "each use reads again"


def test_an_iterator_that_is_dropped_in_the_threads_of_calls_ends_its_scan(
    loopback: Loopback, table: ebla.Table
) -> None:
    table.upsert(arrow(1000))
    loopback.toy.block_rows = 10
    held = [table.scan().batches()]
    next(held[0])

    async def drop() -> None:
        held.clear()

    loopback.bridge.run(drop())
    assert loopback.scanners_left() == {}
    with pytest.raises(InvalidArgument, match="these rows name none"):
        table.update(table.scan(["id"]).batches())
    with pytest.raises(InvalidArgument, match="item 1 of the rows is 5"):
        table.upsert(chain(islice(table.scan().batches(), 1), [5]))
    assert loopback.scanners_left() == {}


def test_the_error_of_an_interrupted_stream_reaches_its_reader(loopback: Loopback, table: ebla.Table) -> None:
    table.upsert(arrow(1000))
    loopback.toy.block_rows = 10
    for host in ("host-a", "host-b", "host-c"):
        loopback.toy.before[address(host), "scan_more"] = [refuse(SnapshotExpired("expired"))] * 3
    with pytest.raises((ScanInterrupted, pa.ArrowException), match="was lost after"):
        pa.table(table.scan())


def test_a_stream_that_was_made_before_an_alteration_is_refused(
    loopback: Loopback, table: ebla.Table
) -> None:
    table.upsert(arrow(10))
    scan = table.scan()
    reader = pa.RecordBatchReader.from_stream(scan)
    changed = loopback.toy.tables["t"]
    schema = altered(changed.info.schema, [DropColumn("n")])
    changed.info = replace(changed.info, schema=schema)
    for tablet in changed.tablets:
        tablet.codec = RowCodec(schema)
    loopback.bridge.run(table._awaited._client.refresh(table._awaited._routes))
    with pytest.raises((InvalidArgument, pa.ArrowException), match="make the scan again"):
        reader.read_all()
    assert pa.table(table.scan()).column_names == ["id", "v"]


def test_a_scan_can_be_written_into_a_table_of_the_same_connection(
    loopback: Loopback, table: ebla.Table
) -> None:
    table.upsert(arrow(500))
    copy = loopback.db.create_table("copy", schema=SCHEMA, primary_key=["id"])
    assert copy.upsert(table.scan()) == Written(500)
    assert copy.scan().to_arrow().sort_by("id").equals(arrow(500).cast(copy.schema))
    loopback.toy.block_rows = 10
    wrong = loopback.db.create_table(
        "wrong", schema=SCHEMA.set(2, pa.field("n", pa.int8())), primary_key=["id"]
    )
    with pytest.raises(InvalidArgument, match="'n'"):  # the scan ends early, in a thread that may wait for it
        wrong.upsert(table.scan())
    assert loopback.scanners_left() == {}


def test_a_polars_column_of_python_objects_is_refused_unless_it_is_ignored(loopback: Loopback) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.binary()), ("w", pa.binary())])
    table = loopback.db.create_table("objects", schema=schema, primary_key=["id"])
    plain = pl.DataFrame({"id": [1, 2]}).with_columns(v=pl.lit(b"x"), w=pl.lit(b"y"))
    objects = plain.with_columns(v=pl.Series([uuid.uuid4(), uuid.uuid4()], dtype=pl.Object))
    for write in (table.upsert, table.update):
        for given in (objects, [objects], iter([objects]), [plain, objects]):
            with pytest.raises(
                InvalidArgument, match=r"'v' is of the type Object .* cast it first"
            ) as raised:
                write(given)
            assert raised.value.column == "v"
    assert table.count() == 0
    cast = objects.with_columns(pl.col("v").map_elements(lambda each: each.bytes, return_dtype=pl.Binary))
    assert table.upsert([plain[:0], cast]) == Written(2)
    assert [each["v"] for each in table.get_many(objects)] == [each.bytes for each in objects["v"]]
    assert table.delete([objects]) == Written(2)


# -- streams in -----------------------------------------------------------------------------------------------


def counted(batches: list[pa.RecordBatch], asked: list[int]) -> Iterator[pa.RecordBatch]:
    for place, batch in enumerate(batches):
        asked.append(place)
        yield batch


def test_a_stream_is_written_window_by_window_in_bounded_memory(
    loopback: Loopback, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", 100_000)
    asked: list[int] = []
    ahead: list[int] = []
    loopback.toy.on_call = lambda method: (
        method == "write" and ahead.append(len(asked) * 1000 - loopback.toy.rows())
    )
    data = arrow(20_000, width=100)
    assert table.upsert(counted(data.to_batches(max_chunksize=1000), asked)) == Written(20_000)
    assert len(asked) == 20 and max(ahead) < 3000, "rows that were read and are not written yet"
    assert table.scan().to_arrow().sort_by("id").equals(data.cast(table.schema))


def test_the_source_is_read_in_another_thread_so_that_other_calls_go_on(table: ebla.Table) -> None:
    table.upsert(arrow(1))

    def source() -> Iterator[pa.Table]:
        assert threading.current_thread().name != "ebla client toy"
        assert table.get({"id": 0}) is not None, (
            "a call of the same connection, while it waits for the source"
        )
        yield arrow(10)

    assert table.upsert(source()) == Written(10)


def test_the_later_of_two_rows_in_a_stream_wins(table: ebla.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", 50_000)
    parts = [arrow(3000).set_column(2, "n", pa.array([version] * 3000, pa.int32())) for version in range(5)]
    assert table.upsert(iter(parts)) == Written(15_000)
    assert set(table.scan(["n"]).to_arrow()["n"].to_pylist()) == {4}


@pytest.mark.parametrize("chunks", [(3000,), (1, 2999), (700, 800, 1500)])
def test_a_repeated_stream_with_a_write_id_changes_nothing_whatever_its_batches(
    table: ebla.Table, monkeypatch: pytest.MonkeyPatch, chunks: tuple[int, ...]
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", UNIT_BYTES * 2)
    data, own = arrow(3000, width=100), WriteId(b"w" * 16, 5)
    first = table.insert(data.to_reader(max_chunksize=1000), write_id=own)
    assert first == Written(3000)
    starts = [sum(chunks[:place]) for place in range(len(chunks))]
    again = [data.slice(start, size) for start, size in zip(starts, chunks, strict=True)]
    assert table.insert(iter(again), write_id=own) == first, (
        "the answer of the first call, not AlreadyPresent"
    )
    with pytest.raises(AlreadyPresent):
        table.insert(iter(again))


def test_rows_in_memory_are_repeated_in_memory_and_not_as_a_stream(
    table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The windows of a stream are cut where rows in memory are not, so the requests differ."""
    monkeypatch.setattr(streams, "WINDOW_BYTES", UNIT_BYTES * 3 // 2)
    data, own = arrow(10_000, width=100), WriteId(b"w" * 16, 5)
    assert table.upsert(data, write_id=own) == table.upsert(data, write_id=own) == Written(10_000)
    with pytest.raises(RequestReused):
        table.upsert(iter([data]), write_id=own)


def test_a_bad_row_of_a_later_window_is_named_and_says_what_was_applied(
    loopback: Loopback, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", 100_000)
    bad = arrow(100, start=5000).set_column(0, "id", pa.array([*range(5000, 5099), None], pa.int64()))
    with pytest.raises(InvalidArgument, match=r"'id' may not be null, but row 5099") as raised:
        table.upsert(iter([arrow(5000, width=100), bad]))
    applied = loopback.toy.rows()
    assert (raised.value.column, raised.value.row) == ("id", 5099)
    assert 0 < applied < 5000 and raised.value.possibly_applied
    assert f"{applied} rows of the call were applied" in raised.value.__notes__
    loopback.toy.calls.clear()
    with pytest.raises(InvalidArgument) as raised:
        table.upsert(iter([arrow(10, start=9000), bad]))
    assert loopback.toy.count("write") == 0 and not raised.value.possibly_applied


def test_the_error_of_a_source_reaches_the_caller_with_the_rows_that_were_applied(
    loopback: Loopback, table: ebla.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", 50_000)

    def source() -> Iterator[pa.Table]:
        yield arrow(2000, width=100)
        raise LookupError("the file is gone")

    with pytest.raises(LookupError, match="the file is gone") as raised:
        table.upsert(source())
    assert f"{loopback.toy.rows('t')} rows of the call were applied" in raised.value.__notes__
    assert loopback.toy.rows() > 0


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError, concurrent.futures.CancelledError, GeneratorExit, SystemExit, KeyboardInterrupt],
)
@pytest.mark.parametrize("before", [0, 1])
def test_an_error_of_a_source_that_would_end_a_task_reaches_the_caller_too(
    table: ebla.Table, error: type[BaseException], before: int
) -> None:
    def source() -> Iterator[pa.Table]:
        yield from [arrow(10)] * before
        raise error

    with pytest.raises(
        ebla.SourceUnreadable, match=f"the source of the rows raised {error.__name__}"
    ) as raised:
        table.upsert(source())
    assert isinstance(raised.value.__cause__, error)
    assert table.upsert({"id": 1}).rows == 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (lambda: iter([{"id": 1}]), "item 0 of the rows is {'id': 1}; .*for rows as dicts give a list"),
        (lambda: [arrow(1), 5], "item 1 of the rows is 5"),
        (lambda: iter([arrow(1), arrow(1).select(["id"])]), "a batch has the columns id and the first id, v, n"),
        (lambda: pl.Series([1]), "rows are Series, which has no named columns"),
        (lambda: pa.array([1]), "rows are Int64Array, which has no named columns"),
        (
            lambda: pl.DataFrame({"id": pl.Series([1], dtype=pl.Int128)}),
            "rows are DataFrame, which has a type that Arrow cannot take .*; cast that column, such as to Int64",
        ),
        (lambda: iter([pa.array([1])]), "rows are Int64Array, which has no named columns"),
        (lambda: pl.DataFrame({"id": [1], "w": [1]}), "there is no column 'w'"),
        (lambda: pl.DataFrame({"id": ["x"]}), "'id' holds int64, not"),
        (lambda: {1, 2}, "rows are set; give a pyarrow Table"),
        (lambda: np.arange(3), "rows are ndarray; give a pyarrow Table"),
    ],
)  # fmt: skip
def test_rows_in_no_known_form_are_refused(table: ebla.Table, rows: Callable[[], Any], words: str) -> None:
    for write in (table.upsert, table.insert, table.delete, table.get_many):
        if write in (table.delete, table.get_many) and "'w'" in words:
            continue  # they ignore other columns
        with pytest.raises(InvalidArgument, match=words):
            write(rows())
    assert table.scan().count() == 0


@pytest.mark.parametrize(
    "rows", [lambda: iter([]), lambda: arrow(0).to_reader(), lambda: pl.DataFrame(arrow(0))]
)
def test_an_empty_stream_writes_nothing(table: ebla.Table, rows: Callable[[], Any]) -> None:
    assert table.upsert(rows()) == table.delete(rows()) == Written(0)
    assert table.get_many(rows()) == []
