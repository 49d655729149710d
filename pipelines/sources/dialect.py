"""The dialect of a CSV file, from its bytes: encoding, separator, decimal mark and the names of its columns.

    encoding     a byte order mark decides; else UTF-8 if the whole file is valid UTF-8, else cp1252, which is a guess: a note
                 shows a value. Refused, so that the caller decides: a file with bytes that are no characters of cp1252, and
                 one that is UTF-8 up to one wrong byte
    separator    the one of , ; tab | that divides the first rows into equally many fields; Excel's line `sep=;` decides
    decimal      a comma if the separator is another character, numbers with a comma occur and none with a point, and not all
                 of them may be thousands (1,234). A file with 1,5 in which each number with a point may be thousands (1.500)
                 is refused: the caller decides
    names        the first row. A row of numbers only is data and refused: the caller names the columns
    escape       if a quotation mark follows a backslash: the backslash if quoted values then end at a separator (pandas with
                 escapechar, Spark), none if they end there without it. If both are possible, the caller decides; also if
                 a value without quotation marks has a backslash, which Spark keeps and pandas takes for an escape

Options of the caller replace what is recognised.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ebla.errors import SourceUnreadable
from ebla.storage.columns import CONTROL
from ebla.storage.errors import InvalidArgument, did_you_mean

SAMPLE_BYTES = 262_144
CHUNK_BYTES = 1 << 20
NAME_SHOWN_MAX = 40
SEPARATORS = (",", ";", "\t", "|")
OPTIONS = ("sep", "encoding", "quote", "escape", "decimal", "names")
_WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|"}
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_UNDEFINED = (0x81, 0x8D, 0x8F, 0x90, 0x9D)  # in cp1252
_VALUE_ENDS = re.compile(rb'[\r\n,;\t|"]')
_SEP_LINE = re.compile(r'\A"?sep=(.)"?\r?\n', re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
_WITH_COMMA = re.compile(r"[+-]?\d+,\d+")
_WITH_POINT = re.compile(r"[+-]?\d*\.\d+")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+|[+-]?\d{1,3}(\.\d{3})+")


class Dialect(msgspec.Struct, frozen=True):
    """`guess`: if the encoding is a guess, where this shows: `'Zoë' in line 2`. `skipped`: rows up to and with the header. `sep_line`: the file begins with Excel's line `sep=;`. `escape`: the character
    before quotation marks inside of values, "" if they are doubled; None if the first rows do not show that. `unclear`: whether a backslash is one is known inside of
    quotation marks only; if `escape` is None, nowhere. `thousands`: a number such as 1,234, if the first rows do not show whether
    its comma is a decimal mark."""

    encoding: str
    separator: str
    decimal: str
    quote: str
    names: tuple[str, ...]
    skipped: int
    sep_line: bool = False
    escape: str | None = None
    thousands: str | None = None
    guess: str | None = None
    unclear: bool = False

    @property
    def columns(self) -> list[str]:
        """The names, and names for columns that have none."""
        return [name or unnamed(at) for at, name in enumerate(self.names)]


def unnamed(at: int) -> str:
    """The name of the column at this position, which has none in the file."""
    return f"~{at}"


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options, with words for separators replaced. Raises InvalidArgument with the known options."""
    for name in options:
        if name not in OPTIONS:
            hint = did_you_mean(name, OPTIONS) or f"; the options are {', '.join(OPTIONS)}"
            raise InvalidArgument(f"there is no option {name!r} for a source{hint}")
    found = dict(options)
    if "sep" in found:
        found["sep"] = _WORDS.get(found["sep"], found["sep"])
    if found.get("escape") == "none":
        found["escape"] = ""
    for name in ("sep", "quote", "decimal", *(["escape"] if found.get("escape") else [])):
        if name in found and (len(found[name]) != 1 or not found[name].isascii()):
            raise InvalidArgument(f"the option {name} is one ASCII character, not {found[name]!r}")
    if found.get("decimal", ".") not in (".", ","):
        raise InvalidArgument(f"the option decimal is . or , and not {found['decimal']!r}")
    if "encoding" in found and not _is_text_encoding(found["encoding"]):
        raise InvalidArgument(f"there is no encoding {found['encoding']!r}; try utf-8 or cp1252")
    if "names" in found:
        twice = _twice(_split(found["names"]))
        if twice:
            raise InvalidArgument(f"the option names has {twice!r} twice; name each column once")
    return found


def _is_text_encoding(name: str) -> bool:
    """Python's codecs also have transformations such as base64 and rot13."""
    try:
        codec = codecs.lookup(name)
    except LookupError:
        return False
    return codec._is_text_encoding and codec.incrementaldecoder is not None


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


def _twice(names: Sequence[str]) -> str | None:
    filled = [name or unnamed(at) for at, name in enumerate(names)]
    return next((name for name in filled if filled.count(name) > 1), None)


def recognise(stream: Any, path: str, options: Mapping[str, str]) -> Dialect:
    """Read the whole stream once, in chunks; only its beginning is kept. Raises SourceUnreadable with the remedy."""
    encoding, sample, whole, guess = _encoding(stream, path, options.get("encoding"))
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample, final=whole)
    except UnicodeError as error:
        raise SourceUnreadable(
            f"{path} is not {encoding}: {error}; name another encoding", source=path
        ) from error
    sep_line = _SEP_LINE.match(text)
    if sep_line:
        text = text[sep_line.end() :]
    quote = options.get("quote", '"')
    given = options.get("sep") or (sep_line[1] if sep_line else None)
    escape = options["escape"] if "escape" in options else _escape(text, given, quote, whole, path)
    separator = given or _separator(text, quote, escape, whole)
    rows = _records(text, separator, quote, escape, whole)
    header = next((at for at, row in enumerate(rows) if row), None)
    if header is None:
        raise SourceUnreadable(f"{path} has no rows", source=path)
    if "names" in options:
        names, skipped = _split(options["names"]), 0
        rows = rows[header:]
    else:
        names, skipped = [name.strip() for name in rows[header]], header + 1
        rows = rows[skipped:]
        _check_names(names, path)
    found = options.get("decimal")
    decimal, thousands = (found, None) if found else _decimal(rows, separator, path)
    return Dialect(
        encoding,
        separator,
        decimal,
        quote,
        tuple(names),
        skipped,
        sep_line is not None,
        escape,
        thousands,
        guess,
        bool(escape) and "escape" not in options,
    )


def _check_names(names: Sequence[str], path: str) -> None:
    control = next((name for name in names if CONTROL.search(name)), None)
    if control is not None:
        raise SourceUnreadable(
            f"{path} has control characters in the name of a column, {control[:NAME_SHOWN_MAX]!r}; convert the file if it is no "
            "CSV, name its encoding with the option encoding, or rename the column",
            source=path,
        )
    if all(_NUMBER.fullmatch(name) for name in names):
        raise SourceUnreadable(
            f"{path} begins with numbers ({', '.join(names[:3])}), not with the names of columns; name them with the "
            "option names=a,b,c",
            source=path,
        )
    twice = _twice(names)
    if twice:
        raise SourceUnreadable(f"{path} has two columns {twice!r}; rename one in its first row", source=path)


class _Utf8:
    """Whether bytes are UTF-8. `accents`: other characters than ASCII came before the first wrong byte, so that the file was
    written as UTF-8: a guess of another encoding would garble them all."""

    def __init__(self) -> None:
        self.valid, self.accents = True, False
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._read, self._lines = 0, 1  # up to the first wrong byte
        self._wrong, self._value = 0, b""

    def see(self, chunk: bytes, final: bool = False) -> None:
        if not self.valid:
            return
        held = self._decoder.getstate()[0]
        try:
            text = self._decoder.decode(chunk, final)
            self._read += len(chunk)
        except UnicodeDecodeError as error:
            self.valid, start = False, error.start
            text, self._wrong = error.object[:start].decode(), error.object[start]
            before = _VALUE_ENDS.split(error.object[max(0, start - NAME_SHOWN_MAX) : start])[-1]
            self._value = before + _VALUE_ENDS.split(error.object[start : start + NAME_SHOWN_MAX])[0]
            self._read += start - len(held)
        self._lines += text.count("\n") or text.count("\r")
        self.accents = self.accents or not text.isascii()

    def place(self, encoding: str) -> str:
        """The value with the first wrong byte, in this encoding, and its line."""
        return f"{self._value.decode(encoding).strip()!r} in line {self._lines}"

    def no_character(self, path: str, byte: int) -> SourceUnreadable:
        return SourceUnreadable(
            f"{path} is not UTF-8 (line {self._lines}) and not cp1252, in which the byte 0x{byte:02x} is no character; name its "
            "encoding, such as -o encoding=shift_jis, gb18030 or cp1251",
            source=path,
        )

    def refusal(self, path: str) -> SourceUnreadable:
        return SourceUnreadable(
            f"{path} is UTF-8 up to line {self._lines}, where the byte 0x{self._wrong:02x} (byte {self._read + 1} of the file) is "
            "not; mend the line, or give the option encoding=cp1252 if the whole file has that encoding",
            source=path,
        )


def _encoding(stream: Any, path: str, given: str | None) -> tuple[str, bytes, bool, str | None]:
    """The encoding, the beginning of the bytes, whether that is all, and where a guess shows. Raises SourceUnreadable for a
    mixture of two encodings, and if none fits."""
    utf8 = _Utf8()
    undefined, sample, size = None, b"", 0
    while chunk := stream.read(CHUNK_BYTES):
        size += len(chunk)
        sample += chunk[: SAMPLE_BYTES - len(sample)]
        if given or sample.startswith(tuple(_MARKS)):
            break
        utf8.see(chunk)
        undefined = undefined or next((byte for byte in _UNDEFINED if byte in chunk), None)
    whole = size == len(sample) and not stream.read(1)
    marked = next((name for mark, name in _MARKS.items() if sample.startswith(mark)), None)
    if given and not (marked and codecs.lookup(given).name in ("utf-8", "utf-16-le", "utf-16-be")):
        return given, sample, whole, None
    if marked:
        return marked, sample, whole, None
    wide = utf16_without_mark(sample)
    if wide:
        return wide, sample, whole, None
    utf8.see(b"", final=True)
    if utf8.valid:
        return "utf-8", sample, whole, None
    if utf8.accents:
        raise utf8.refusal(path)
    if undefined is not None:
        raise utf8.no_character(path, undefined)
    return "cp1252", sample, whole, utf8.place("cp1252")


def utf16_without_mark(head: bytes) -> str | None:
    """Which of the two encodings it is, if every other byte is often zero."""
    even, odd = head[:64:2].count(0), head[1:64:2].count(0)
    if odd > even + 8:
        return "utf-16-le"
    return "utf-16-be" if even > odd + 8 else None


def unclear_escape(path: str) -> SourceUnreadable:
    return SourceUnreadable(
        f"{path} has a quotation mark after a backslash; give the option escape=\\ if only the mark is part of the value, "
        "else escape=none",
        source=path,
    )


def unclear_backslash(path: str) -> SourceUnreadable:
    """Spark escapes only inside of quotation marks, and Python's writers everywhere."""
    return SourceUnreadable(
        f"{path} has quotation marks after a backslash, and a backslash in a value without quotation marks; give the option "
        "escape=\\ if it is an escape there, too (pandas). A file of Spark keeps it: write parquet, or the CSV with Spark's "
        "option escape='\"'",
        source=path,
    )


def _escape(text: str, separator: str | None, quote: str, whole: bool, path: str) -> str | None:
    if "\\" + quote not in text:
        return None
    ranks = {}
    for escape in ("", "\\"):
        chosen = separator or _separator(text, quote, escape, whole)
        ranks[escape] = _soundness(text, chosen, quote, escape, whole)
    if ranks[""] == ranks["\\"] > 0:
        raise unclear_escape(path)
    return max(ranks, key=lambda escape: ranks[escape])


def _soundness(text: str, separator: str, quote: str, escape: str, whole: bool) -> int:
    """2 if every quoted value ends before a separator or the end of its row; 1 if only the last one does not, which the end of
    the sample may cut off; else 0."""
    q, s = re.escape(quote), re.escape(separator)
    begun = rf"{q}[^{q}\\]*(?:\\.[^{q}\\]*)*" if escape else rf"{q}[^{q}]*(?:{q}{q}[^{q}]*)*"
    plain = rf"[^{s}{q}\r\n\\]*(?:\\.[^{s}{q}\r\n\\]*)*" if escape else rf"(?!{q})[^{s}\r\n]*"
    field = re.compile(rf"(?:{begun}{q}|{plain})(?:{s}|[\r\n]+|\Z)", re.DOTALL)
    at = 0
    while at < len(text):
        found = field.match(text, at)
        if found is None:
            cut_off = not whole and re.compile(rf"{begun}\\?\Z", re.DOTALL).match(text, at)
            return 1 if cut_off else 0
        at = found.end()
    return 2


def _records(text: str, separator: str, quote: str, escape: str | None, whole: bool) -> list[list[str]]:
    """The first rows as fields. A last row that may be incomplete is left out."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(
        lines, delimiter=separator, quotechar=quote, escapechar=escape or None, doublequote=not escape
    )
    rows = []
    try:
        for row in reader:
            rows.append(row)
    except csv.Error:  # a field longer than the sample
        return rows
    return rows if whole or len(rows) < 2 else rows[:-1]


def _separator(text: str, quote: str, escape: str | None, whole: bool) -> str:
    """The separator by which most rows have as many fields as the first row; of equal ones that with most fields."""
    best, found = (0.0, 1), ","
    for separator in SEPARATORS:
        rows = [row for row in _records(text, separator, quote, escape, whole) if row]
        fields = len(rows[0]) if rows else 1
        if fields < 2:
            continue
        score = sum(len(row) == fields for row in rows) / len(rows), fields
        if score > best:
            best, found = score, separator
    return found


def _decimal(rows: Sequence[Sequence[str]], separator: str, path: str) -> tuple[str, str | None]:
    """The decimal mark, and a number with a comma that leaves it open."""
    if separator == ",":
        return ".", None
    fields = [field.strip() for row in rows for field in row]
    commas = [field for field in fields if _WITH_COMMA.fullmatch(field)]
    points = [field for field in fields if _WITH_POINT.fullmatch(field)]
    certain = next((field for field in commas if not _THOUSANDS.fullmatch(field)), None)
    if certain is None:
        return ".", commas[0] if commas else None
    if not points:
        return ",", None
    if all(_THOUSANDS.fullmatch(field) for field in points):
        raise SourceUnreadable(
            f"{path} has numbers such as {certain} and {points[0]}: if the comma is the decimal mark, give the option decimal=, "
            f"({points[0]} stays text); if the point is, give decimal=. ({certain} stays text)",
            source=path,
        )
    return ".", None
