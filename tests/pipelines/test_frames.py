"""The parts of a source that Spark's tasks read, without Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

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
