"""Parquet, Arrow and ORC: timestamps of any year, files that are cut off, and parts of bounded size."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import pytest

from ebla.errors import SourceUnreadable
from ebla.pipelines.sources import readers
from ebla.pipelines.sources.pieces import grouped
from ebla.pipelines.sources.source import infer, open_source
from tests.pipelines.small_sources import checked, read

FAR = 253_402_300_799 * 10**6  # the last second of the year 9999
FIRST = -62_135_596_800 * 10**6  # of the year 1


def write_int96(path: Path, **columns: pa.Array) -> None:
    table = pa.table({"id": range(len(next(iter(columns.values())))), **columns})
    pa.parquet.write_table(table, path, use_deprecated_int96_timestamps=True)


def test_timestamps_of_spark_outside_of_nanoseconds_keep_their_year(tmp_path: Path) -> None:
    kind = pa.timestamp("us")
    columns = {
        "until": pa.array([FAR, None, 5], kind),
        "all": pa.array([[1, None], None, [FIRST]], pa.list_(kind)),
        "by": pa.array([{"a.b": FAR}, None, {"a.b": None}], pa.struct([("a.b", kind)])),
        "named": pa.array([[("k", FAR)], [], None], pa.map_(pa.string(), kind)),
    }
    write_int96(tmp_path / "a.parquet", **columns)
    source, _ = infer(open_source(str(tmp_path / "a.parquet")))
    part = next(source.parts())
    for name, values in columns.items():
        assert part.columns[name].cast(values.type).equals(values), name


def test_nanoseconds_of_int96_are_kept_and_refused_beside_times_that_need_microseconds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.parquet"
    write_int96(path, at=pa.array([1, None, 2**62], pa.timestamp("ns")))
    assert read(path)[1].field("at").type == pa.timestamp("ns")
    (row,) = checked(path, id=pa.int64(), at=pa.timestamp("us")).unfit_rows[:1]
    assert row.problem == "'1970-01-01T00:00:00.000000001' is not timestamp[us]"
    wrapped = (FAR * 1000 + 2**63) % 2**64 - 2**63
    units = [pa.array([FAR, 0], pa.timestamp("us")), pa.array([wrapped, 7], pa.timestamp("ns"))]
    both = pa.RecordBatch.from_arrays(units, names=["at", "at"])
    with pytest.raises(
        SourceUnreadable, match=r"column 'at' of a\.parquet has times with nanoseconds beside"
    ):
        readers.in_one_unit("a.parquet", both, 1)


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_an_arrow_stream_without_its_end_mark_is_refused(tmp_path: Path, batches: int) -> None:
    path, rows = tmp_path / "a.arrows", pa.table({"id": range(10)})
    with pa.ipc.new_stream(path, rows.schema) as writer:
        for _ in range(batches):
            writer.write_table(rows)
    assert len([*open_source(str(path)).parts()]) == min(batches, 1) + 1
    path.write_bytes(path.read_bytes()[:-8])  # as if one more batch had been lost
    with pytest.raises(SourceUnreadable, match=r"a\.arrows has no mark at the end .* write it again"):
        read(path)


def test_a_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    pa.parquet.write_table(rows, tmp_path / "a.parquet")
    pa.feather.write_feather(rows, tmp_path / "a.feather")
    for name in ("a.parquet", "a.feather"):
        with pytest.raises(SourceUnreadable, match=rf"{name} has two columns 'id'; rename one"):
            read(tmp_path / name)


# -- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["parquet", "feather", "orc"])
def test_parts_are_bounded_by_bytes_and_keep_rows_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(readers, "PART_ROWS", 500)
    monkeypatch.setattr(readers, "READ_ROWS", 100)
    texts = ["x" * (1 if n < 1000 else n - 900) for n in range(1200)]
    rows, path = pa.table({"id": range(1200), "text": texts}), tmp_path / f"a.{ending}"
    {
        "parquet": pa.parquet.write_table,
        "feather": pa.feather.write_feather,
        "orc": pa.orc.write_table,
    }[ending](rows, path)
    parts = list(open_source(str(path)).parts())
    assert pa.Table.from_batches([part.columns for part in parts]).equals(rows)
    assert [n for part in parts for n in part.numbers.tolist()] == list(range(1, 1201))
    assert max(part.columns.nbytes for part in parts) <= 10_000
    assert parts[0].columns.num_rows == 500, "small rows are read together"


def test_rows_of_a_dictionary_count_with_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 10_000)
    monkeypatch.setattr(readers, "READ_ROWS", 100)
    text = pa.array(["x" * 100, None] * 500)
    pa.parquet.write_table(pa.table({"text": text.dictionary_encode()}), tmp_path / "a.parquet")
    parts = [part.columns["text"] for part in open_source(str(tmp_path / "a.parquet")).parts()]
    assert pa.concat_arrays([each for each in parts if len(each)]) == text
    assert max(each.nbytes for each in parts) <= 10_000


def test_a_buffer_that_all_rows_share_does_not_make_a_piece_of_each_row() -> None:
    views = pa.record_batch({"text": pa.array(["x" * 100] * 1000, pa.string_view())})
    groups = grouped([views, views], 1500, 50_000)
    assert [[piece.num_rows for piece in group] for group in groups] == [[250]] * 8
