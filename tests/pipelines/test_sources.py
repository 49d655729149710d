"""Formats are recognised in files as pandas, Excel, Spark and others write them."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import pytest

from ebla.pipelines.datasets import SourceUnreadable
from ebla.pipelines.sources import dialect, readers
from ebla.pipelines.sources.check import Checked, check, fitting_batches
from ebla.pipelines.sources.source import FileSource, infer, open_source
from ebla.storage.errors import InvalidArgument
from ebla.storage.schema import TableSchema

PEOPLE = pd.DataFrame(
    {"id": [1, 2, 3], "name": ["Ada", "Zoë\nO'Neil", 'say "hi", ok'], "score": [1.5, None, -2.25]}
)
ROWS = [
    {"id": 1, "name": "Ada", "score": 1.5},
    {"id": 2, "name": "Zoë\nO'Neil", "score": None},
    {"id": 3, "name": 'say "hi", ok', "score": -2.25},
]
TYPES = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


def read(
    path: Path | str, key: str = "id", **options: str
) -> tuple[FileSource, pa.Schema, list[dict[str, Any]]]:
    """The recognised source, the types of a new table, and all rows."""
    source, types = infer(open_source(str(path), None, options))
    assert isinstance(source, FileSource)
    schema = TableSchema.from_arrow(types, [key])
    assert check(source, schema).unfit_rows == ()
    rows = [row for batch in fitting_batches(source, schema) for row in batch.to_pylist()]
    return source, types, rows


def checked(path: Path, **types: pa.DataType) -> Checked:
    schema = TableSchema.from_arrow(pa.schema(types), [next(iter(types))])
    return check(open_source(str(path)), schema)


# -- CSV -----------------------------------------------------------------------------------------------------


def test_a_csv_of_pandas_is_read_with_quoted_line_breaks(tmp_path: Path) -> None:
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    source, types, rows = read(tmp_path / "people.csv")
    assert (types, rows) == (TYPES, ROWS)
    assert (source.facts.encoding, source.facts.separator, source.facts.decimal) == ("utf-8", ",", ".")


def test_the_index_that_pandas_writes_without_a_name_is_left_out(tmp_path: Path) -> None:
    PEOPLE.to_csv(tmp_path / "people.csv")
    source, types, rows = read(tmp_path / "people.csv")
    assert (types, rows) == (TYPES, ROWS)
    assert source.facts.left_out == ("~0",)


def test_the_index_is_recognised_beside_wrong_rows_and_in_several_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",id\n0,10\n1,11,x\n2,12\n")
    (tmp_path / "b.csv").write_text(",id\n5,15\n6,16\n")
    source, types = infer(open_source(str(tmp_path)))
    assert (types.names, source.facts.left_out) == (["id"], ("~0",))


def test_a_column_that_is_really_named_like_an_unnamed_one_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,~1\n10,1\n11,2\n")
    source, types = infer(open_source(str(tmp_path / "a.csv")))
    assert (types.names, source.facts.left_out) == (["id", "~1"], ())
    (tmp_path / "a.csv").write_text("~1,\n10,1\n")
    with pytest.raises(SourceUnreadable, match="has two columns '~1'; rename one"):
        open_source(str(tmp_path / "a.csv"))


def test_the_index_of_a_filtered_frame_is_refused_with_the_remedy(tmp_path: Path) -> None:
    PEOPLE[PEOPLE["id"] != 2].to_csv(tmp_path / "people.csv")
    with pytest.raises(SourceUnreadable, match=r"column 1 .* has no name .* to_csv\(\.\.\., index=False\)"):
        infer(open_source(str(tmp_path / "people.csv")))


ESCAPED = [
    {"id": 1, "name": 'say "hi" you', "x": "a"},
    {"id": 2, "name": 'end"', "x": "b\\"},
    {"id": 3, "name": "C:\\dir\\", "x": '"'},
]


@pytest.mark.parametrize("sep", [",", ";"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_quotation_marks_after_a_backslash_are_recognised(tmp_path: Path, quoting: Any, sep: str) -> None:
    path = tmp_path / "rows.csv"
    pd.DataFrame(ESCAPED).to_csv(
        path, index=False, doublequote=False, escapechar="\\", quoting=quoting, sep=sep
    )
    assert read(path, escape="\\")[2] == ESCAPED
    if quoting == csv.QUOTE_ALL:
        assert read(path)[2] == ESCAPED
    else:  # values without quotation marks around them may have any inside
        with pytest.raises(
            SourceUnreadable, match=r"after a backslash; give the option escape=\\ .* escape=none"
        ):
            read(path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('id,name\n1,"C:\\dir\\"\n2,"x"\n', ["C:\\dir\\", "x"]),
        ('id,name\n1,"a\\""b"\n2,"\\"","\n', ['a\\"b', '\\",']),
    ],
)
def test_a_backslash_before_a_doubled_or_closing_mark_is_a_backslash(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert [row["name"] for row in read(tmp_path / "rows.csv")[2]] == names


def test_a_late_mark_after_a_backslash_needs_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "SAMPLE_BYTES", 20)
    path = tmp_path / "rows.csv"
    path.write_text('id,name\n1,a\n2,b\n3,c\n4,"say \\"hi\\" you"\n')
    with pytest.raises(
        SourceUnreadable, match=r"after a backslash; give the option escape=\\ .* escape=none"
    ):
        read(path)
    assert read(path, escape="\\")[2][-1] == {"id": 4, "name": 'say "hi" you'}
    path.write_text('id,name\n1,a\n2,b\n3,c\n4,3.5\\"x\n')
    assert read(path, escape="none")[2][-1] == {"id": 4, "name": '3.5\\"x'}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": "id,id"}, "the option names has 'id' twice"),
        ({"escape": "\\\\"}, "the option escape is one ASCII character"),
        *[({"encoding": name}, f"there is no encoding '{name}'; try utf-8") for name in ("rot13", "base64", "hex", "zip", "x")],
    ],
)  # fmt: skip
def test_options_that_no_file_can_have_are_refused(
    tmp_path: Path, options: dict[str, str], message: str
) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n")
    with pytest.raises(InvalidArgument) as caught:
        open_source(str(tmp_path / "rows.csv"), None, options)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("mark", "encoding"), [("utf-8-sig", "utf-8"), ("utf-8-sig", "utf8"), ("utf-16", "utf-16-le")]
)
def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path, mark: str, encoding: str) -> None:
    PEOPLE.to_csv(tmp_path / "people.csv", index=False, encoding=mark)
    assert read(tmp_path / "people.csv", encoding=encoding)[1:] == (TYPES, ROWS)


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


def test_an_empty_key_has_its_own_message(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('name,x\n"",1\na,2\n')
    (row,) = checked(tmp_path / "rows.csv", name=pa.string(), x=pa.int64()).unfit_rows
    assert (row.row, row.column) == (2, "name")
    assert row.problem == "the key is empty; its only column 'name' needs at least one byte"


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


def test_another_column_without_a_name_is_refused(tmp_path: Path) -> None:
    PEOPLE.set_index("score").rename_axis(None).to_csv(tmp_path / "people.csv")
    with pytest.raises(SourceUnreadable, match=r"column 1 of .* has no name in the first row; give it one"):
        read(tmp_path / "people.csv")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252", "utf-8", "utf-16-le"])
@pytest.mark.parametrize("sep", [";", "\t", "|"])
def test_a_csv_of_excel_in_a_country_with_decimal_commas_is_read(
    tmp_path: Path, encoding: str, sep: str
) -> None:
    """Separators other than a comma, decimal commas, Windows' line ends, a byte order mark."""
    PEOPLE.to_csv(
        tmp_path / "people.csv", index=False, sep=sep, decimal=",", encoding=encoding, lineterminator="\r\n"
    )
    source, types, rows = read(tmp_path / "people.csv")
    assert (types, rows) == (TYPES, ROWS)
    assert (source.facts.separator, source.facts.decimal) == (sep, ",")
    assert source.facts.encoding == encoding


def test_the_separator_line_of_excel_and_its_empty_columns_and_rows_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("sep=;\r\nid;name;\r\n1;Ada;\r\n;;\r\n2;Bob;\r\n;;\r\n")
    _, types, rows = read(tmp_path / "people.csv")
    assert types.names == ["id", "name"]
    assert rows == [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Bob"}]


def test_bytes_that_cp1252_lacks_are_latin_1(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,name\n1,\xe9\x81\n")
    source, _, rows = read(tmp_path / "a.csv")
    assert (source.facts.encoding, rows) == ("latin-1", [{"id": 1, "name": "é\x81"}])


def test_one_byte_that_is_not_utf_8_far_into_the_file_decides_the_encoding(tmp_path: Path) -> None:
    lines = [f"{n},name {n}" for n in range(60_000)]
    (tmp_path / "a.csv").write_bytes(("id,name\n" + "\n".join(lines)).encode() + b"\n60000,Zo\xeb\n")
    source, _, rows = read(tmp_path / "a.csv")
    assert (source.facts.encoding, rows[-1]["name"]) == ("cp1252", "Zoë")


def test_options_replace_what_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1#1,5#'x#y'\n2#2,5#z\n")
    _, types, rows = read(tmp_path / "a.csv", sep="#", decimal=",", quote="'", names="id,score,name")
    assert types == pa.schema([("id", pa.int64()), ("score", pa.float64()), ("name", pa.string())])
    assert rows == [{"id": 1, "score": 1.5, "name": "x#y"}, {"id": 2, "score": 2.5, "name": "z"}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seperator": ";"}, "no option 'seperator'"),
        ({"sep": ";;"}, "one ASCII character"),
        ({"encoding": "utf-9"}, "no encoding 'utf-9'"),
        ({"decimal": "'"}, r"is \. or ,"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, options: dict[str, str], words: str) -> None:
    PEOPLE.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InvalidArgument, match=words):
        open_source(str(tmp_path / "a.csv"), None, options)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04rest", "Excel workbook"),
        (b"1,2\n3,4\n", "begins with numbers .* names=a,b,c"),
        (b"a,a\n1,2\n", "two columns 'a'"),
        (b'id,name\n1,"Ada\n2,Bob\n3,Eve\n', "quotation mark .* never closed"),
        (b"\x7fELF" + bytes(range(64)), "is no text"),
    ],
)
def test_a_file_that_is_no_table_is_refused_with_the_remedy(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "unknown"
    path.write_bytes(content)
    with pytest.raises(SourceUnreadable, match=words):
        read(path)


def test_a_value_longer_than_a_block_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 1000)
    (tmp_path / "a.csv").write_text('id,name\n1,"' + "x" * 5000 + '"\n')
    with pytest.raises(SourceUnreadable, match="never closed, or a row of more than"):
        read(tmp_path / "a.csv")


def test_rows_keep_their_numbers_over_blocks_empty_lines_and_wrong_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 64)
    lines = ["id,name"]
    wrong = {}
    for number in range(2, 400):
        if number % 17 == 0:
            lines.append(f"{number},a,b")
            wrong[number] = (None, "has 3 fields, not 2")
        elif number % 13 == 0:
            lines.append("")
        elif number % 7 == 0:
            lines.append(f"x{number},n")
            wrong[number] = ("id", f"'x{number}' is not int64")
        else:
            lines.append(f"{number},n")
    (tmp_path / "a.csv").write_text("\n".join(lines))
    schema = TableSchema.from_arrow(pa.schema([("id", pa.int64()), ("name", pa.string())]), ["id"])
    found = check(open_source(str(tmp_path / "a.csv")), schema, shown=1000)
    assert {row.row: (row.column, row.problem) for row in found.unfit_rows} == wrong
    assert found.unfit == len(wrong)
    ids = [
        n
        for batch in fitting_batches(open_source(str(tmp_path / "a.csv")), schema)
        for n in batch["id"].to_pylist()
    ]
    assert ids == [n for n in range(2, 400) if n not in wrong and n % 13]


def test_a_file_with_one_column_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n\n2\nx\n3")
    found = checked(tmp_path / "a.csv", id=pa.int64())
    assert (found.rows, found.fitting, found.unfit) == (4, 3, 1)


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
    assert [(row.row, row.column) for row in found.unfit_rows] == [
        (3, None),
        (4, None),
        (5, "id"),
        (6, "id"),
        (7, "id"),
    ]
    assert [row.problem for row in found.unfit_rows][2:] == [
        "'x' is not int8",
        "'300' is not int8",
        "needs a value",
    ]
    assert (found.rows, found.fitting) == (6, 1)


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


def test_json_numbers_keep_every_digit_and_strings_are_no_numbers(tmp_path: Path) -> None:
    rows = '{"id": 1, "price": 12345678901234567.89, "text": "007", "at": "2024-05-17T12:30:15Z", "any": 5}\n'
    rows += '{"id": 2, "price": 0.10, "text": "8", "at": null, "any": "five", "list": [1, 2]}\n'
    (tmp_path / "a.json").write_text(rows)
    _, types, _ = read(tmp_path / "a.json")
    assert [str(types.field(name).type) for name in ("price", "text", "at", "any", "list")] == [
        "double",
        "string",
        "timestamp[us, tz=UTC]",
        "string",
        "string",
    ]
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


@pytest.mark.parametrize(
    ("name", "content"), [("a.parquet", b"this is not parquet"), ("a.parquet", b"PAR1 cut off")]
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceUnreadable, match=name):
        read(tmp_path / name)


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


# -- repeated keys -------------------------------------------------------------------------------------------


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
