"""The parts of a source that Spark's tasks read, and the calls that they make of them, which are equal in every attempt."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import SourceUnreadable
from ebla.pipelines import target, tasks
from ebla.pipelines.frames import FilePart
from ebla.pipelines.sources.source import FileSource, infer, open_source
from ebla.storage.errors import InvalidArgument

ROWS = pa.table({"id": range(10), "name": [f"n{n}" for n in range(10)]})


def part_of(path: Path, types: pa.Schema | None = None) -> FilePart:
    source, found = infer(open_source(str(path)))
    assert isinstance(source, FileSource)
    copy: FilePart = pickle.loads(pickle.dumps(FilePart(source, source.split(), types or found)))
    return copy


def read(part: FilePart, *pieces: int) -> list[pa.RecordBatch]:
    return list(part([pa.RecordBatch.from_pydict({"id": list(pieces)})]))


def test_each_row_group_and_each_file_is_a_piece(tmp_path: Path) -> None:
    pa.parquet.write_table(ROWS.slice(0, 7), tmp_path / "a.parquet", row_group_size=3)
    pa.parquet.write_table(ROWS.slice(7), tmp_path / "b.parquet")
    part = part_of(tmp_path)
    assert [(piece.name, piece.groups) for piece in part.pieces] == [
        ("a.parquet", (0, 1)),
        ("a.parquet", (1, 2)),
        ("a.parquet", (2, 3)),
        ("b.parquet", None),
    ]
    batches = [batch for number in range(4) for batch in read(part, number)]
    assert pa.Table.from_batches(batches).equals(ROWS)


def test_text_is_read_in_the_types_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,007\n2,\n")
    types = pa.schema([("id", pa.int16()), ("name", pa.string())])
    batch, nothing = read(part_of(tmp_path / "a.csv", types), 0)
    assert nothing.num_rows == 0
    assert batch.schema == types
    assert batch.to_pylist() == [{"id": 1, "name": "007"}, {"id": 2, "name": None}]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("x,a", r"a\.csv row 3, column 'id': 'x' is not int16"),
        ("5", r"a\.csv row 3 has 1 field, not 2; mend the row"),
    ],
)
def test_a_row_that_does_not_fit_ends_its_task_with_its_place(tmp_path: Path, row: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(f"id,name\n1,a\n{row}\n")
    types = pa.schema([("id", pa.int16()), ("name", pa.string())])
    with pytest.raises(InvalidArgument, match=words):
        read(part_of(tmp_path / "a.csv", types), 0)


def test_values_of_nested_text_are_exact_or_refused_with_their_place(tmp_path: Path) -> None:
    types = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.int64()))])
    (tmp_path / "rows.csv").write_text('id,v\n1,"[1, 2]"\n')
    (batch,) = (batch for batch in read(part_of(tmp_path / "rows.csv", types), 0) if batch.num_rows)
    assert batch.to_pylist() == [{"id": 1, "v": [1, 2]}]
    (tmp_path / "rows.csv").write_text('id,v\n1,"[1.9]"\n')
    with pytest.raises(
        InvalidArgument, match=r"rows.csv row 2, column 'v': '\[1.9\]' is not list<item: int64>"
    ):
        read(part_of(tmp_path / "rows.csv", types), 0)


def test_a_piece_of_a_file_that_changes_ends_its_task(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,a,b\n1,10,20\n")
    swapped = part_of(path)
    path.write_text("id,b,a\n1,20,10\n2,21,11\n")
    with pytest.raises(SourceUnreadable, match=r"a\.csv has changed while it was read; feed it again"):
        read(swapped, 0)
    rows = part_of(path)([pa.RecordBatch.from_pydict({"id": [0]})])
    assert next(rows).num_rows == 2
    path.write_text("id,b,a\n")
    with pytest.raises(SourceUnreadable, match=r"a\.csv has changed while it was read"):
        list(rows)


# -- calls ---------------------------------------------------------------------------------------------------


SIZES = st.lists(st.integers(0, 40), max_size=20)


def batches(sizes: list[int]) -> Iterator[pa.RecordBatch]:
    """Batches with consecutive numbers."""
    start = 0
    for size in sizes:
        yield pa.RecordBatch.from_pydict({"n": pa.array(range(start, start + size), pa.int64())})
        start += size


@given(SIZES, st.integers(1, 64), st.integers(1, 600))
def test_every_row_is_in_one_call_at_its_position(sizes: list[int], rows: int, size: int) -> None:
    seen = 0
    for call in target.calls(batches(sizes), rows, size):
        assert call.position == seen
        assert call.rows.num_rows > 0
        assert call.rows["n"].to_pylist() == list(range(seen, seen + call.rows.num_rows))
        seen += call.rows.num_rows
    assert seen == sum(sizes)


@given(SIZES, st.integers(1, 64), st.integers(1, 600))
def test_a_call_is_larger_than_the_limits_only_if_it_is_one_row(
    sizes: list[int], rows: int, size: int
) -> None:
    for call in target.calls(batches(sizes), rows, size):
        if call.rows.num_rows > 1:
            assert call.rows.num_rows <= rows
            assert call.rows.nbytes <= size


@given(SIZES, st.integers(1, 64), st.integers(1, 600), st.integers(0, 300))
def test_a_repeated_attempt_makes_the_same_calls(
    sizes: list[int], rows: int, size: int, survived: int
) -> None:
    whole = [(c.position, c.rows) for c in target.calls(batches(sizes), rows, size)]
    cut_short = [c for c, _ in zip(target.calls(batches(sizes), rows, size), range(survived), strict=False)]
    again = [(c.position, c.rows) for c in cut_short]
    assert again == whole[: len(again)]


def test_job_and_partition_alone_determine_the_client_id() -> None:
    names = {target.client_id(job, part) for job in ("a", "b", "a/1") for part in range(30)}
    assert len(names) == 90
    assert {len(name) for name in names} == {16}
    assert target.client_id("a", 7) == target.client_id("a", 7)


def test_write_tasks_can_be_pickled() -> None:
    task = tasks.WriteTask(b"handle", "job", "counter", "upsert", 10, None)
    assert pickle.loads(pickle.dumps(task)) == task


def test_the_counter_counts_a_partition_once_and_keeps_the_first_fatal_error() -> None:
    counter = tasks.Counter()
    for partition, rows in [
        (0, 10),
        (1, 5),
        (0, 20),
        (0, 10),
    ]:  # at last another attempt, with fewer rows so far
        counter.rows(partition, rows)
    counter.failed(0, b"passing", False)
    assert counter.read() == (25, b"passing", None)
    counter.failed(1, b"first", True)
    counter.failed(0, b"second", True)
    assert counter.read() == (25, b"second", b"first")


def test_an_error_that_a_later_attempt_overcame_is_not_the_last_one() -> None:
    counter = tasks.Counter()
    counter.failed(0, b"other", False)
    counter.failed(1, b"overcome", False)
    counter.rows(1, 10)
    assert counter.read() == (10, b"other", None)
    counter.failed(1, b"again", False)
    counter.rows(0, 10)
    assert counter.read() == (20, b"again", None)
