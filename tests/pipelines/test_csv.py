"""The dialects of CSV are recognised in files as pandas, Excel and others write them, or refused with the remedy."""

from __future__ import annotations

import csv
import gzip
import lzma
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebla.errors import SourceUnreadable
from ebla.pipelines.sources import decoded, dialect, readers
from ebla.pipelines.sources.check import check, fitting_batches
from ebla.pipelines.sources.notes import notes
from ebla.pipelines.sources.source import infer, open_source
from ebla.storage.errors import InvalidArgument
from ebla.storage.schema import TableSchema
from tests.pipelines.small_sources import PEOPLE, ROWS, TYPES, checked, read


@pytest.mark.parametrize(("index", "left_out"), [(False, ()), (True, ("~0",))])
def test_a_csv_of_pandas_is_read_without_its_unnamed_index(
    tmp_path: Path, index: bool, left_out: tuple[str, ...]
) -> None:
    PEOPLE.to_csv(tmp_path / "people.csv", index=index)
    source, types, rows = read(tmp_path / "people.csv")
    assert (types, rows, source.facts.left_out) == (TYPES, ROWS, left_out)
    assert (source.facts.encoding, source.facts.separator, source.facts.decimal) == ("utf-8", ",", ".")


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


def test_other_columns_without_a_name_are_refused_with_the_remedy(tmp_path: Path) -> None:
    """The index of a filtered frame, and a column that is no index."""
    unnamed = PEOPLE.set_index("score").rename_axis(None)
    for frame, remedy in (
        (PEOPLE[PEOPLE["id"] != 2], r"to_csv\(\.\.\., index=False\)"),
        (unnamed, "give it one"),
    ):
        frame.to_csv(tmp_path / "people.csv")
        with pytest.raises(SourceUnreadable, match=f"column 1 of .* has no name .*{remedy}"):
            read(tmp_path / "people.csv")


ESCAPE = r"after a backslash; give the option escape=\\ .* escape=none"
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
        with pytest.raises(SourceUnreadable, match=ESCAPE):
            read(path)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('id,name\n1,"C:\\dir\\"\n2,"x"\n', ["C:\\dir\\", "x"]),
        ('id,name\n1,"a\\""b"\n2,"\\"","\n', ['a\\"b', '\\",']),
        ('id,name\n1,"[[""\\"",0]]"\n', ['[["\\",0]]']),
        ('id,name\n1,"\\"\n2,","\n3,",x"\n', ["\\", ",", ",x"]),
    ],
)
def test_a_backslash_before_a_doubled_or_closing_mark_is_a_backslash(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert [row["name"] for row in read(tmp_path / "rows.csv")[2]] == names


SPARK = 'id,name\n1,"say \\"hi\\", ok"\n'  # Spark escapes only inside of quotation marks
UNCLEAR = (
    r"a backslash in a value without quotation marks; give the option escape=\\ .* write parquet, or the CSV"
)


@pytest.mark.parametrize("row", ["2,C:\\temp", "2,\\\\server", "\\N,x", '2,"a, \\\\b"\n3,x\\'])
def test_a_backslash_outside_of_quotation_marks_beside_escaped_ones_is_refused(
    tmp_path: Path, row: str
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(SPARK + row + "\n")
    with pytest.raises(SourceUnreadable, match=UNCLEAR):
        read(path)
    path.write_text(SPARK + '2,"a, \\\\\\\\b"\n3,"c,\\\\"\n4,")\\"\n"\n')
    names = ['say "hi", ok', "a, \\\\b", "c,\\", ')"\n']
    assert [row["name"] for row in read(path)[2]] == names


def has_plain_backslash(text: str) -> bool:
    """As decoded.py, character by character."""
    characters, quoted, starts = iter(text), False, True
    for each in characters:
        if quoted:
            quoted = each != '"' and (each != "\\" or next(characters, None) is not None)
            starts = False
        elif starts and each == '"':
            quoted = True
        elif each == "\\":
            return True
        else:
            starts = each in ",\n"
    return False


@given(st.lists(st.text('a,\n"\\', max_size=6), max_size=6))
def test_a_backslash_outside_of_quotation_marks_is_found_in_chunks_of_any_size(chunks: list[str]) -> None:
    unquoted = decoded._Unquoted(
        dialect.Dialect("utf-8", ",", ".", '"', ("a",), 1, escape="\\", unclear=True)
    )
    found = any(unquoted.has_backslash(chunk.encode(), chunk == "") for chunk in [*filter(None, chunks), ""])
    assert found == has_plain_backslash("".join(chunks))


def test_a_file_that_shows_no_escape_has_no_backslash_beside_one_that_does(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(SPARK)
    (tmp_path / "b.csv").write_text("id,name\n2,x\n")
    assert len(read(tmp_path)[2]) == 2
    (tmp_path / "b.csv").write_text('id,name\n2,"C:\\\\a, b"\n')
    with pytest.raises(SourceUnreadable, match=f"b.csv has .*{UNCLEAR}"):
        read(tmp_path)
    assert read(tmp_path, escape="\\")[2][1]["name"] == "C:\\a, b"


def test_a_cut_sample_does_not_hide_where_a_value_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "SAMPLE_BYTES", 40)
    path = tmp_path / "rows.csv"
    path.write_text('id,name\n1,"C:\\dir\\"\n' + "".join(f"{n},x\n" for n in range(2, 20)))
    assert read(path)[2][:2] == [{"id": 1, "name": "C:\\dir\\"}, {"id": 2, "name": "x"}]
    path.write_text('id,name\n1,"say \\"hi\\" you"\n2,"a long value that the end of the sample cuts"\n')
    assert read(path)[2][0] == {"id": 1, "name": 'say "hi" you'}


def test_a_late_mark_after_a_backslash_needs_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "SAMPLE_BYTES", 20)
    path = tmp_path / "rows.csv"
    path.write_text('id,name\n1,a\n2,b\n3,c\n4,"say \\"hi\\" you"\n')
    with pytest.raises(SourceUnreadable, match=ESCAPE):
        read(path)
    assert read(path, escape="\\")[2][-1] == {"id": 4, "name": 'say "hi" you'}
    path.write_text('id,name\n1,a\n2,b\n3,c\n4,3.5\\"x\n')
    assert read(path, escape="none")[2][-1] == {"id": 4, "name": '3.5\\"x'}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": "id,id"}, "the option names has 'id' twice"),
        ({"escape": "\\\\"}, "the option escape is one ASCII character"),
        ({"seperator": ";"}, "no option 'seperator'"),
        ({"sep": ";;"}, "one ASCII character"),
        ({"decimal": "'"}, "is . or ,"),
        *[({"encoding": name}, f"there is no encoding '{name}'; try utf-8") for name in ("rot13", "base64", "hex", "zip", "utf-9")],
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


LATE = "".join(f"{n},name {n}\n" for n in range(60_000)).encode() + b"60000,Zo\xeb\n"


def test_one_byte_decides_the_encoding_even_far_into_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,name\n" + LATE)
    source, _, rows = read(tmp_path / "a.csv")
    assert (source.facts.encoding, rows[-1]["name"]) == ("cp1252", "Zoë")
    assert "such as 'Zoë' in line 60002;" in notes(source, ["id"], new=True)[0]


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("cp1251", "Ада"), ("cp1250", "Łódź"), ("mac_roman", "Zoë"), ("euc-kr", "한국어"), ("gb18030", "中文")],
)
def test_a_guess_of_the_encoding_is_a_note_that_shows_a_value(
    tmp_path: Path, encoding: str, name: str
) -> None:
    """Each byte of these texts is a character of cp1252 too."""
    (tmp_path / "a.csv").write_bytes(f"id;name\n1;Bob\n2;x {name} y\n".encode(encoding))
    garbled = f"x {name} y".encode(encoding).decode("cp1252")
    source = read(tmp_path / "a.csv")[0]
    assert notes(source, ["id"], new=False) == [
        f"read as cp1252, such as {garbled!r} in line 3; if that is wrong, give -o encoding=NAME, such as -o encoding=cp1251"
    ]
    source, _, rows = read(tmp_path / "a.csv", encoding=encoding)
    assert (rows[-1]["name"], notes(source, ["id"], new=False)) == (f"x {name} y", [])


def test_bytes_that_are_no_characters_of_the_guess_are_refused(tmp_path: Path) -> None:
    """As latin-1 they would be control characters."""
    (tmp_path / "a.csv").write_bytes("id,name\n1,テスト\n".encode("shift_jis") + b"\x81\x90\n")
    with pytest.raises(
        SourceUnreadable, match=r"not UTF-8 \(line 2\) and not cp1252, .* 0x81 .* -o encoding=shift_jis"
    ):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("end", [b"2000,Caf\xe9\n", b"2000,Caf\xe9"])
def test_a_wrong_byte_in_a_file_of_utf8_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, end: bytes
) -> None:
    """Another encoding would silently garble each accent before it."""
    monkeypatch.setattr(dialect, "CHUNK_BYTES", chunk)
    lines = "".join(f"{n},Müller Straße {n}\n" for n in range(2000))
    content = b"id,name\n" + lines.encode() + end
    (tmp_path / "a.csv").write_bytes(content)
    place = rf"line 2002, .* 0xe9 \(byte {content.index(b'Caf') + 4} .* mend the line, .* encoding=cp1252"
    with pytest.raises(SourceUnreadable, match=place):
        read(tmp_path / "a.csv")
    assert read(tmp_path / "a.csv", encoding="cp1252")[2][-1] == {"id": 2000, "name": "Café"}


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_wrong_bytes_at_an_end_do_not_make_a_file_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """The bytes of `Ã` begin a character of UTF-8 that does not end."""
    monkeypatch.setattr(dialect, "CHUNK_BYTES", chunk)
    for name in ("Ã", "Ãà", "Ãb\n2,é"):
        (tmp_path / "a.csv").write_bytes(b"id,name\n1," + name.encode("cp1252"))
        assert read(tmp_path / "a.csv")[0].facts.encoding == "cp1252"


@pytest.mark.parametrize("text", ["id;x;y\n1;1,5;1.500\n2;2,5;2.750\n", "id;x\n1;1.500\n2;2,5\n"])
def test_a_file_with_decimal_commas_and_points_that_may_be_thousands_is_refused(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(SourceUnreadable, match=r"such as \d,5 and 1\.500: .* decimal=, .* decimal=\. "):
        read(path)
    assert "1.500" in [*read(path, decimal=",")[2][0].values()], "text"
    assert read(path, decimal=".")[1].field("x").type == pa.string()


@pytest.mark.parametrize("number", ["1.5", "1234.500", "1.50"])
def test_a_certain_decimal_point_beside_a_comma_decides_for_the_point(tmp_path: Path, number: str) -> None:
    (tmp_path / "a.csv").write_text(f"id;x;y\n1;1,5;{number}\n")
    _, types, rows = read(tmp_path / "a.csv")
    assert (types.field("x").type, rows[0]["y"]) == (pa.string(), float(number))


def test_options_replace_what_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1#1,5#'x#y'\n2#2,5#z\n")
    _, types, rows = read(tmp_path / "a.csv", sep="#", decimal=",", quote="'", names="id,score,name")
    assert types == pa.schema([("id", pa.int64()), ("score", pa.float64()), ("name", pa.string())])
    assert rows == [{"id": 1, "score": 1.5, "name": "x#y"}, {"id": 2, "score": 2.5, "name": "z"}]


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


@pytest.mark.parametrize("ending", ["", ".csv", ".csv.gz", ".json"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lzma.compress(b"id,name\n1,a\n"), "decompress it first"),
        (b"PK\x05\x06" + bytes(18), "decompress it first"),
        (b"SQLite format 3\0" + bytes(200), "SQLite database; export the table"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(60), "not rows"),
        ("id,name\n1,a\n".encode("utf-32"), "is UTF-32; convert it to UTF-8"),
        (gzip.compress(b"a.csv".ljust(257, b"\0") + b"ustar\x0000"), "tar archive; unpack it"),
    ],
    ids=["xz", "empty zip", "SQLite", "PNG", "UTF-32", "tar in gzip"],
)
def test_a_format_that_is_not_read_is_recognised_by_its_content(
    tmp_path: Path, content: bytes, words: str, ending: str
) -> None:
    path = tmp_path / f"rows{ending}"
    path.write_bytes(content)
    with pytest.raises(SourceUnreadable, match=words):
        open_source(str(path))


def test_bytes_with_many_zeros_are_no_text_and_no_utf_16(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"id\0\0\0\0\x05" * 40)
    with pytest.raises(SourceUnreadable, match="is no text"):
        open_source(str(tmp_path / "rows"))


@pytest.mark.parametrize("text", ["id,na\x00me\n1,a\n", "id,\x1bname\n1,a\n", "id,n\x81\n1,a\n"])
def test_a_name_with_control_characters_is_refused_and_shown_escaped(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.csv").write_text(text, "utf-8")
    with pytest.raises(SourceUnreadable, match=r"control characters .* 'n?a?\\x\w\w"):
        open_source(str(tmp_path / "rows.csv"))
    (tmp_path / "rows.csv").write_text("id,name\n1,a\n", "utf-32-le")
    with pytest.raises(SourceUnreadable, match="control characters"):
        open_source(str(tmp_path / "rows.csv"))


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
    assert found.unfit_rows[0].row == 5, "empty lines have numbers"
