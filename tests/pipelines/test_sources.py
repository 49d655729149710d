"""Formats other than CSV, several files, and keys."""

from __future__ import annotations

import bz2
import gzip
import json
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import pytest

from ebla.errors import SourceUnreadable
from ebla.pipelines.sources import readers
from ebla.pipelines.sources.check import _Keys, check, fitting_batches
from ebla.pipelines.sources.notes import notes
from ebla.pipelines.sources.source import FileSource, infer, open_source
from ebla.storage.errors import InvalidArgument
from ebla.storage.schema import TableSchema
from tests.pipelines.small_sources import PEOPLE, ROWS, TYPES, checked, read

# -- other formats -------------------------------------------------------------------------------------------


def test_a_file_without_rows_has_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n")
    pa.parquet.write_table(pa.table({"id": [1]}).slice(0, 0), tmp_path / "a.parquet")
    assert read(tmp_path / "a.csv")[1:] == (pa.schema([("id", pa.string()), ("name", pa.string())]), [])
    assert read(tmp_path / "a.parquet")[1:] == (pa.schema([("id", pa.int64())]), [])


def test_line_ends_of_old_macs_and_breaks_in_the_header_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,"long\nname"\r1,"x\r\ny"\r2,z\r')
    assert read(tmp_path / "a.csv")[2] == [{"id": 1, "long\nname": "x\r\ny"}, {"id": 2, "long\nname": "z"}]


def test_compressed_files_are_recognised_by_their_content(tmp_path: Path) -> None:
    plain = PEOPLE.to_csv(index=False).encode()
    with pa.output_stream(tmp_path / "c", compression="zstd") as stream:
        stream.write(plain)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(plain))
    (tmp_path / "b.csv").write_bytes(bz2.compress(plain))
    for name, compression in (("a.csv.gz", "gzip"), ("b.csv", "bz2"), ("c", "zstd")):
        source, types, rows = read(tmp_path / name)
        assert (types, rows, source.facts.compression) == (TYPES, ROWS, compression)


def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    plain = "id,name\n" + "".join(f"{n},{n * 7919 % 1000003}\n" for n in range(50_000))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(plain.encode())[:-5000])
    with pytest.raises(SourceUnreadable, match=r"a\.csv\.gz cannot be read"):
        read(tmp_path / "a.csv.gz")


def test_json_lines_of_pandas_are_read(tmp_path: Path) -> None:
    PEOPLE.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    assert read(tmp_path / "a.jsonl")[1:] == (TYPES, ROWS)
    (tmp_path / "nameless").write_bytes((tmp_path / "a.jsonl").read_bytes())
    assert read(tmp_path / "nameless")[1:] == (TYPES, ROWS)


def test_lines_that_are_no_json_objects_are_counted_with_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n\n{"id": \n[1]\n{"id": "x"}\n{"id": 300, "name": "n"}\n{}\n')
    found = checked(tmp_path / "a.json", id=pa.int8(), name=pa.string())
    unread, misfits = found.unfit_rows[:2], found.unfit_rows[2:]
    assert [(row.row, row.column) for row in unread] == [(3, None), (4, None)]
    assert [(row.row, row.column, row.problem) for row in misfits] == [
        (5, "id", "'x' is not int8"),
        (6, "id", "'300' is not int8"),
        (7, "id", "needs a value"),
    ]
    assert (found.rows, found.fitting) == (6, 1)


def test_a_line_of_json_that_is_too_long_is_one_row_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1 << 20)
    for end in ("\n", ""):
        long = f'{{"id": 3, "name": "{"x" * (5 << 19)}"}}'
        (tmp_path / "a.json").write_text('{"id": 1}\n' + long + '\n{"id": 2}\n' + long + end)
        found = checked(tmp_path / "a.json", id=pa.int64(), name=pa.string())
        problem = "is no JSON object: the line has more than 1 MiB"
        assert [(row.row, row.problem) for row in found.unfit_rows] == [(2, problem), (4, problem)]
        assert (found.rows, found.fitting) == (4, 2)


def test_rows_of_json_without_any_value_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"id": 1}\n')
    (tmp_path / "b.json").write_text("{}\n{}\n")
    source, types = infer(open_source(str(tmp_path)))
    found = check(source, TableSchema.from_arrow(types, ["id"]))
    assert (found.rows, found.fitting) == (3, 1)
    assert [(row.file, row.row, row.problem) for row in found.unfit_rows] == [
        ("b.json", 1, "needs a value"),
        ("b.json", 2, "needs a value"),
    ]


def test_a_line_of_json_that_repeats_a_key_is_one_row_that_does_not_fit(tmp_path: Path) -> None:
    lines = [
        '{"id": 1, "at": "12:30:15", "a:b": ":", "point": {"x": 1, "y": ":"}}',
        '{"id": 2, "id": 3}',
        '{"id" : 4, "at": "1:2", "point": {"x": 0}, "a\\u003ab": "x", "a:b": "y"}',
        '{"id": 5, "point": {"x": 1, "x": 2}}',
        '{"id": 6, "at": null, "at": null}',
        '{"id": 7, "point": null, "at": "{\\"a\\": 1, \\"a\\": 2}"}',
    ]
    (tmp_path / "rows.json").write_text("\n".join(lines))
    point = pa.struct([("x", pa.int64()), ("y", pa.string())])
    found = checked(
        tmp_path / "rows.json", id=pa.int64(), at=pa.string(), point=point, **{"a:b": pa.string()}
    )
    assert (found.rows, found.fitting) == (6, 2)
    problems = {row.row: (row.column, row.problem) for row in found.unfit_rows}
    assert problems.pop(5 - 1) == ("point", '\'{"x": 1, "x": 2}\' is not struct<x: int64, y: string>')
    assert problems == {
        2: (None, "has the key 'id' twice; write each key once"),
        3: (None, "has the key 'a:b' twice; write each key once"),
        5: (None, "has the key 'at' twice; write each key once"),
    }


def test_a_line_of_json_with_invalid_text_is_one_row_that_does_not_fit(tmp_path: Path) -> None:
    lines = [
        b'{"id": 1, "name": "a"}',
        b'{"id": 2, "name": "\xff"}',
        b'{"id": 3, "name": "\\ud800"}',
        b'{"id": 4}',
    ]
    (tmp_path / "rows.json").write_bytes(b"\n".join(lines))
    found = checked(tmp_path / "rows.json", id=pa.int64(), name=pa.string())
    assert ([row.row for row in found.unfit_rows], found.fitting) == ([2, 3], 2)
    assert all("is no JSON object" in row.problem for row in found.unfit_rows)


def test_a_value_that_json_leaves_out_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PART_ROWS", 1)
    (tmp_path / "a.json").write_text('{"id": 1}\n{"name": "a", "id": 2}\n{"name": "b"}\n')
    schema = TableSchema.from_arrow(pa.schema([("id", pa.int64()), ("name", pa.string())]), ["id"])
    source, _ = infer(open_source(str(tmp_path / "a.json")))
    assert [(row.row, row.column, row.problem) for row in check(source, schema).unfit_rows] == [
        (3, "id", "needs a value")
    ]
    rows = [row for batch in fitting_batches(source, schema) for row in batch.to_pylist()]
    assert rows == [{"id": 1, "name": None}, {"id": 2, "name": "a"}]


def test_a_json_array_is_refused_with_the_remedy(tmp_path: Path) -> None:
    PEOPLE.to_json(tmp_path / "a.json", orient="records", indent=1)
    with pytest.raises(SourceUnreadable, match=r"write one object per line .*lines=True"):
        read(tmp_path / "a.json")


@pytest.mark.parametrize(
    "content",
    ['{"id": 1}\n'.encode("utf-16"), b'{\n  "id": 1,\n  "name": "a"\n}\n', b"1\n2\n"],
    ids=["UTF-16", "pretty-printed", "numbers"],
)
def test_json_of_which_no_line_is_an_object_is_refused_with_its_first_line(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "a.json").write_bytes(content)
    remedy = r"no columns: row 1 is no JSON object: .*; write one object per line, in UTF-8"
    with pytest.raises(SourceUnreadable, match=remedy):
        read(tmp_path / "a.json")


def test_json_numbers_keep_every_digit_and_strings_are_no_numbers(tmp_path: Path) -> None:
    rows = '{"id": 1, "price": 12345678901234567.89, "text": "007", "at": "2024-05-17T12:30:15Z", "any": 5}\n'
    rows += '{"id": 2, "price": 0.10, "text": "8", "at": null, "any": "five", "list": [1, 2]}\n'
    (tmp_path / "a.json").write_text(rows)
    _, types, _ = read(tmp_path / "a.json")
    assert {name: str(types.field(name).type) for name in types.names if name != "id"} == {
        "price": "double",
        "at": "timestamp[us, tz=UTC]",
        **dict.fromkeys(("text", "any", "list"), "string"),
    }
    schema = TableSchema.from_arrow(pa.schema([("id", pa.int64()), ("price", pa.decimal128(20, 2))]), ["id"])
    source = open_source(str(tmp_path / "a.json"))
    assert isinstance(source, FileSource)
    batches = list(fitting_batches(replace(source, columns=("id", "price")), schema))
    assert [str(price) for batch in batches for price in batch["price"].to_pylist()] == [
        "12345678901234567.89",
        "0.10",
    ]


TYPED = pa.table(
    {
        "id": pa.array([1, 2], pa.uint32()),
        "name": pa.array(["a", None]).dictionary_encode(),
        "day": pa.array([0, 86_400_000], pa.date64()),
        "wide": pa.array(["x", "y"], pa.large_string()),
    }
)


def test_typed_formats_become_columns_that_lose_nothing(tmp_path: Path) -> None:
    pa.parquet.write_table(TYPED, tmp_path / "a.parquet")
    pa.feather.write_feather(TYPED, tmp_path / "a.feather")
    with pa.ipc.new_stream(tmp_path / "a.arrows", TYPED.schema) as writer:
        writer.write_table(TYPED)
    pa.orc.write_table(TYPED.select(["wide"]).append_column("id", pa.array([1, 2])), tmp_path / "a.orc")
    for name in ("a.parquet", "a.feather", "a.arrows"):
        source, types, rows = read(tmp_path / name)
        assert [str(kind) for kind in types.types[:2]] == ["uint32", "string"], name
        assert [row["id"] for row in rows] == [1, 2] and [row["name"] for row in rows] == ["a", None]
        assert source.facts.format == ("parquet" if name == "a.parquet" else "arrow")
    assert read(tmp_path / "a.orc")[2] == [{"wide": "x", "id": 1}, {"wide": "y", "id": 2}]


def test_values_of_a_typed_format_that_do_not_fit_have_their_places(tmp_path: Path) -> None:
    numbers = pa.table({"id": [1, 2, 3, None], "n": [5, 300, -1, 7]})
    pa.parquet.write_table(numbers, tmp_path / "a.parquet", row_group_size=2)
    found = checked(tmp_path / "a.parquet", id=pa.int64(), n=pa.int8())
    assert [(row.row, row.column, row.problem) for row in found.unfit_rows] == [
        (2, "n", "300 is not int8"),
        (4, "id", "needs a value"),
    ]
    with pytest.raises(InvalidArgument, match=r"'n' holds string, not int64") as caught:
        checked(tmp_path / "a.parquet", id=pa.int64(), n=pa.string())
    assert caught.value.column == "n"


@pytest.mark.parametrize("content", [b"this is not parquet", b"PAR1 cut off"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(SourceUnreadable, match=r"a\.parquet"):
        read(tmp_path / "a.parquet")


# -- several files -------------------------------------------------------------------------------------------


def test_a_directory_of_parquet_with_partitions_in_its_names_is_read(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / "days" / f"day={day}").mkdir(parents=True)
        pa.parquet.write_table(
            pa.table({"id": [day * 10, day * 10 + 1]}), tmp_path / f"days/day={day}/part.parquet"
        )
    (tmp_path / "days" / "_SUCCESS").write_bytes(b"")
    (tmp_path / "days" / ".part.crc").write_bytes(b"junk")
    source, types, rows = read(tmp_path / "days")
    assert types == pa.schema([("id", pa.int64()), ("day", pa.int64())])
    assert [tuple(row.values()) for row in rows] == [(10, 1), (11, 1), (20, 2), (21, 2)]
    assert source.facts.files == 2


def test_a_glob_reads_its_files_in_order_each_with_its_own_dialect(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("id;name\n3;Zoë\n", "cp1252")
    (tmp_path / "a.csv").write_text("name,id\nx,1\ny,2\n")
    (tmp_path / "c.txt").write_text("other")
    source, _, rows = read(tmp_path / "*.csv")
    assert [(row["id"], row["name"]) for row in rows] == [(1, "x"), (2, "y"), (3, "Zoë")]
    assert (source.facts.files, source.facts.encoding) == (2, "utf-8, cp1252")
    note = r"1 file read as cp1252, such as 'Zoë' in line 2 of .*b\.csv, the others as utf-8; .* by themselves with -o encoding="
    assert re.match(note, notes(source, ["id"], new=True)[0])


def test_files_with_other_columns_or_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,x\n")
    (tmp_path / "b.csv").write_text("id,nom\n1,x\n")
    with pytest.raises(SourceUnreadable, match=r"b\.csv has other columns than .*a\.csv"):
        read(tmp_path / "*.csv")
    (tmp_path / "b.csv").unlink()
    (tmp_path / "c.json").write_text('{"id": 1}\n')
    with pytest.raises(SourceUnreadable, match=r"a\.csv is csv, c\.json is json"):
        read(tmp_path)


def test_the_type_of_a_column_fits_the_rows_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,5\n")
    (tmp_path / "b.csv").write_text("id,n\n2,5.5\n")
    assert read(tmp_path)[1].field("n").type == pa.float64()
    pa.parquet.write_table(pa.table({"id": [1], "n": pa.array([1], pa.int8())}), tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table({"id": [2], "n": pa.array([1], pa.int32())}), tmp_path / "b.parquet")
    assert read(tmp_path / "*.parquet")[1].field("n").type == pa.int32()
    pa.parquet.write_table(pa.table({"id": [3], "n": ["x"]}), tmp_path / "c.parquet")
    with pytest.raises(SourceUnreadable, match=r"column 'n' .* int32 in one file and string in another"):
        read(tmp_path / "*.parquet")


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": 1}) + "\n")
    source = open_source(str(path))
    path.write_text(json.dumps({"id": 1}) + "\n" + json.dumps({"id": 2}) + "\n")
    with pytest.raises(SourceUnreadable, match="has changed while it was read"):
        check(source, TableSchema.from_arrow(pa.schema([("id", pa.int64())]), ["id"]))


@pytest.mark.parametrize("pattern", ["day=*/p.csv", "*/p.csv", "*", "**/*.csv", ""])
def test_directories_of_a_glob_give_their_columns(tmp_path: Path, pattern: str) -> None:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "p.csv").write_text(f"id\n{day}0\n")
    source, _, rows = read(tmp_path / pattern)
    assert rows == [{"id": 10, "day": 1}, {"id": 20, "day": 2}]
    assert [file.name for file in source.files] == ["day=1/p.csv", "day=2/p.csv"]


def test_rows_of_equally_named_files_keep_their_places(tmp_path: Path) -> None:
    for name, text in (("a", "id\n1\n2\n"), ("b", "id\n3\n1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.csv").write_text(text)
    found = checked(tmp_path / "*" / "p.csv", id=pa.int64()).repeated_rows
    assert [(each.file, each.row, each.key, each.earlier_file, each.earlier_row) for each in found] == [
        ("b/p.csv", 3, {"id": "1"}, "a/p.csv", 2)
    ]


def test_a_directory_with_values_may_begin_with_an_underscore(tmp_path: Path) -> None:
    for name in ("_y=2024", "_temporary", ".hidden=1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.csv").write_text("id\n1\n")
    (tmp_path / "_y=2024" / "_SUCCESS").write_text("x")
    assert read(tmp_path)[2] == [{"id": 1, "_y": 2024}]


# -- keys ----------------------------------------------------------------------------------------------------


def test_repeated_keys_are_counted_with_the_places_of_both_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,a\n2,b\n1,c\n")
    (tmp_path / "b.csv").write_text("id,n\n3,a\n02,d\nx,e\n1,f\n")
    schema = TableSchema.from_arrow(pa.schema([("id", pa.int64()), ("n", pa.string())]), ["id"])
    found = check(open_source(str(tmp_path)), schema)
    assert (found.rows, found.fitting, found.unfit, found.repeated) == (7, 6, 1, 3)
    assert [(r.file, r.row, r.key, r.earlier_file, r.earlier_row) for r in found.repeated_rows] == [
        ("a.csv", 4, {"id": "1"}, "a.csv", 2),
        ("b.csv", 3, {"id": "2"}, "a.csv", 3),
        ("b.csv", 5, {"id": "1"}, "a.csv", 4),
    ]
    assert not found.clean


def test_the_memory_for_repeated_keys_does_not_grow_with_their_number() -> None:
    count, keys = 50_000, _Keys()
    keys.add("a.csv", np.arange(count), pa.array([b"%d" % (n // 2) for n in range(count)], pa.binary()))
    tracemalloc.start()
    found = keys.repeated(2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None and found.count == count // 2
    assert found.pairs == ((("a.csv", 0), ("a.csv", 1)), (("a.csv", 2), ("a.csv", 3)))
    assert peak < 50 * count


def test_an_empty_key_has_its_own_message(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('name,x\n"",1\na,2\n')
    (row,) = checked(tmp_path / "rows.csv", name=pa.string(), x=pa.int64()).unfit_rows
    assert (row.row, row.column) == (2, "name")
    assert row.problem == "the key is empty; its only column 'name' needs at least one byte"
