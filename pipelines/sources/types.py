"""Text as values of a column's type, and the types of text. A value without an exact form in the type is marked; only a number
with a point or an exponent becomes the nearest float. The values inside of lists, structs and maps follow the same rules.

For a table that exists the types are the table's. Otherwise they are those that every value of the source has, the first of

    bool       true, false
    int64      numbers without a leading zero or plus: 007 and +49 are text
    double     numbers with a point (or the file's decimal mark), an exponent, inf, nan
    date       2024-05-17
    timestamp  2024-05-17 12:30:15.25, with a zone if every value has one (UTC)
    string     everything else, such as 17.05.2024 or 1,234

The words in NULLS are null, except in columns of text.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ebla.storage.arrow_types import column_of
from ebla.storage.columns import Column
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows import nested_values
from ebla.storage.rows.convert import to_decimals

NULLS = pa.array(["", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null", "None", "<NA>", "NaT"])
_FLOAT_NULLS = NULLS.filter(pa.array([text not in ("NaN", "nan") for text in NULLS.to_pylist()]))
_DIGITS_EXACT = 15  # of every number with so many digits there is an exact double

_INTEGER = r"^[+-]?\d+(\.0*)?$"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_FLOAT = r"(?i)^[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)$"
_DAY = r"\d{4}-\d{2}-\d{2}"
_TIME = r"\d{2}:\d{2}(:\d{2}(\.\d+)?)?"
_OFFSET = r"(Z|[+-]\d{2}:?\d{2})"
# ISO 8601 as Python, pandas and Java write it; months and years have no fixed length.
_SPAN = r"([+-]?)P(?:(-?\d+)W)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+)(?:\.(\d+))?S)?)?"
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

Mask = Any  # np.ndarray of bool


class Fitted(NamedTuple):
    """`bad`: the positions of values that do not fit; they are null in `values`."""

    values: pa.Array
    bad: Mask


def storable(kind: pa.DataType) -> pa.DataType:
    """The column type for values of this type: the same, or a wider one that loses nothing."""
    if pt.is_dictionary(kind):
        return storable(kind.value_type)
    if pt.is_decimal(kind) and not pt.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return _WIDENED.get(kind, kind)


_WIDENED = {
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.null(): pa.string(),
}


def halved(
    count: int, attempt: Callable[[int, int], Any], kinds: tuple[type[Exception], ...]
) -> tuple[list[Any], Mask]:
    """The results of `attempt(start, stop)` over pieces, in order, and the positions at which it fails. A single position that
    fails has the result None."""
    results: list[Any] = []
    bad = np.zeros(count, np.bool_)
    waiting = [(0, count)] if count else []
    while waiting:
        start, stop = waiting.pop()
        try:
            results.append(attempt(start, stop))
        except kinds:
            if stop - start == 1:
                bad[start] = True
                results.append(None)
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
    return results, bad


# -- text to values ------------------------------------------------------------------------------------------


def from_text(text: pa.Array, kind: pa.DataType, *, decimal: str = ".", json: bool = False) -> Fitted:
    """The text as values of the column type `kind`. `json`: a JSON value, in which no word means null."""
    if pt.is_string(kind) or isinstance(kind, pa.JsonType):
        return Fitted(text.cast(kind), np.zeros(len(text), np.bool_))
    text = pc.utf8_trim_whitespace(text)
    if not json:
        words = _FLOAT_NULLS if pt.is_floating(kind) else NULLS
        text = pc.if_else(pc.is_in(text, words), pa.scalar(None, pa.string()), text)
    pattern, convert = _conversion(kind, json)
    good = np.ones(len(text), np.bool_)
    if decimal == "," and (pt.is_floating(kind) or pt.is_decimal(kind) or pt.is_integer(kind)):
        good &= ~_true(pc.match_substring(text, "."))
        text = pc.replace_substring(text, ",", ".")
    if pattern is not None:
        good &= _true(pc.match_substring_regex(text, pattern)) | _true(text.is_null())
    if not good.all():
        text = pc.if_else(pa.array(good), text, pa.scalar(None, pa.string()))
    pieces, bad = halved(
        len(text),
        lambda start, stop: convert(text[start:stop], kind),
        (InvalidArgument, pa.ArrowException, ValueError, TypeError, OverflowError, RecursionError),
    )
    arrays = [pa.nulls(1, kind) if piece is None else piece for piece in pieces]
    values = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays) if arrays else pa.nulls(0, kind)
    return Fitted(values, bad | ~good)


def _true(mask: pa.Array) -> Mask:
    return pc.fill_null(mask, False).to_numpy(zero_copy_only=False)


Convert = Callable[[pa.Array, pa.DataType], pa.Array]


def _conversion(kind: pa.DataType, json: bool) -> tuple[str | None, Convert]:
    """The form of the text, and the function that converts text of this form."""
    if pt.is_integer(kind):
        return _INTEGER, _integers
    if pt.is_duration(kind):
        return rf"{_INTEGER}|^{_SPAN}$", _durations
    if pt.is_floating(kind):
        return _FLOAT, _floats
    if pt.is_decimal(kind):
        return _NUMBER, to_decimals
    if pt.is_boolean(kind):
        return r"(?i)^(true|false|0|1)$", lambda text, kind: pc.utf8_lower(text).cast(kind)
    if pt.is_date(kind):
        return rf"^{_DAY}([ T]00:00(:00(\.0+)?)?)?$", lambda text, kind: pc.utf8_slice_codeunits(
            text, 0, 10
        ).cast(kind)
    if pt.is_timestamp(kind):
        return rf"^{_DAY}[ T]{_TIME}{_OFFSET}$" if kind.tz else rf"^{_DAY}([ T]{_TIME})?$", _instants
    if pt.is_time(kind):
        return rf"^{_TIME}$", _times
    if pt.is_binary(kind):
        return (None, _base64) if json else (r"^0x([0-9a-fA-F]{2})*$", _hex)
    if pt.is_nested(kind):
        return None, _nested
    return None, lambda text, kind: text.cast(kind)


def _integers(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.replace_substring_regex(text, r"^\+?(-?\d+)(\.0*)?$", r"\1").cast(kind)


def _durations(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Whole numbers in the unit of `kind`, or ISO 8601."""
    spans = _true(pc.match_substring(text, "P"))
    if not spans.any():
        return _integers(text, pa.int64()).cast(kind)
    units: list[int | None] = []
    for each in text.to_pylist():
        if each is None or "P" not in each:
            units.append(None if each is None else int(each.partition(".")[0]))
            continue
        whole, rest = divmod(iso_nanoseconds(each), _UNITS[kind.unit])
        if rest:
            raise ValueError(each)
        units.append(whole)
    return pa.array(units, pa.int64()).cast(kind)


def iso_nanoseconds(text: str) -> int:
    """The length of a duration in ISO 8601. Raises ValueError for another form, and for parts of a nanosecond."""
    found = re.fullmatch(_SPAN, text)
    if found is None or text.endswith(("P", "T")):
        raise ValueError(text)
    sign, weeks, days, hours, minutes, seconds, digits = found.groups()
    digits = (digits or "").rstrip("0")
    if len(digits) > 9:
        raise ValueError(text)
    fraction = int(digits.ljust(9, "0"))
    whole = 604_800 * int(weeks or 0) + 86_400 * int(days or 0) + 3_600 * int(hours or 0)
    whole += 60 * int(minutes or 0) + int(seconds or 0)
    total = whole * 10**9 + (-fraction if (seconds or "").startswith("-") else fraction)
    return -total if sign == "-" else total


def _floats(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises ArrowInvalid for a number that is too large for the type, and for a whole number that it would round."""
    values = text.cast(kind)
    endless = pc.and_(pc.is_inf(values), pc.invert(pc.match_substring(text, "inf", ignore_case=True)))
    if pc.any(endless).as_py():
        raise pa.ArrowInvalid("too large")
    digits = 8 if pt.is_float32(kind) else _DIGITS_EXACT + 1
    long = pc.match_substring_regex(text, rf"^[+-]?\d{{{digits},}}$")
    if pc.any(long).as_py():
        pairs = zip(text.filter(long).to_pylist(), values.filter(long).to_numpy(False), strict=True)
        if any(is_rounded(number, value) for number, value in pairs):
            raise pa.ArrowInvalid("has no exact float")
    return values


def is_rounded(number: str, value: Any) -> bool:
    """Whether the whole number differs from its float, and from the text of the float, which may have fewer digits than its
    exact value. `value`: a float, or np.float32."""
    return math.isinf(value) or int(number) not in (int(value), Decimal(str(value)))


def _instants(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Zeros at the end of a fraction are no digits."""
    shorter = pc.replace_substring_regex(text, r"(\.\d*?)0+($|[Z+-])", r"\1\2")
    return pc.replace_substring_regex(shorter, r"\.($|[Z+-])", r"\1").cast(kind)


def _times(text: pa.Array, kind: pa.DataType) -> pa.Array:
    day = pc.binary_join_element_wise(pa.scalar("1970-01-01"), text, "T")
    return _instants(day, pa.timestamp(kind.unit)).cast(kind)


def _hex(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array([None if t is None else bytes.fromhex(t[2:]) for t in text.to_pylist()], kind)


def _base64(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array(
        [None if t is None else base64.b64decode(t, validate=True) for t in text.to_pylist()], kind
    )


# -- values inside of JSON -----------------------------------------------------------------------------------

_DECODE_STRING = msgspec.json.Decoder(str).decode
_DECODE_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RepeatedKey(ValueError):
    """A JSON object has a key twice. A decoder would keep the last value, and drop the others."""


def json_object(text: bytes) -> dict[str, msgspec.Raw]:
    """The values of a JSON object, as JSON. Raises RepeatedKey, or msgspec.DecodeError for other text."""
    found = _DECODE_OBJECT(text)
    # Each member has a colon between key and value: if all other colons are inside of these values, no value was dropped.
    others = text.count(b":") - len(found)
    if others and others != b"".join(found.values()).count(b":"):
        names = [name for name, _ in json.loads(text, object_pairs_hook=list, parse_int=str)]
        if len(names) != len(found):
            twice = next(name for name in names if names.count(name) > 1)
            raise RepeatedKey(f"has the key {twice!r} twice; write each key once")
    return found


_DECODE = {
    "list": msgspec.json.Decoder(list[msgspec.Raw]).decode,
    "struct": json_object,
    "map": json_object,
    "pairs": msgspec.json.Decoder(list[tuple[msgspec.Raw, msgspec.Raw]]).decode,
}


def _nested(text: pa.Array, kind: pa.DataType) -> pa.Array:
    raws = [None if each is None else each.encode() for each in text.to_pylist()]
    return _from_json(column_of(pa.field("value", kind)), raws)


def _from_json(column: Column, values: list[Any]) -> pa.Array:
    """JSON of any depth as one array. `values`: JSON as bytes or msgspec.Raw, the keys of JSON objects as str. Raises
    InvalidArgument for a value that does not fit exactly."""
    if column.nested:
        opened = [_opened(column.type, value) for value in values]
        return nested_values.Builder(column, _from_json).to_array(opened)
    texts = [value if isinstance(value, str) else _leaf(column, value) for value in values]
    found = from_text(pa.array(texts, pa.string()), column.arrow_type(), json=True)
    if found.bad.any():
        row = int(np.argmax(found.bad))
        raise InvalidArgument(f"row {row}: {texts[row]!r} is not {column.arrow_type()}", row=row)
    return found.values


def _opened(name: str, value: Any) -> Any:
    """One level of a JSON value as a list or a dict of JSON values."""
    raw = value.encode() if isinstance(value, str) else bytes(value or b"null")
    if raw == b"null":
        return None
    return _DECODE["pairs" if name == "map" and raw.startswith(b"[") else name](raw)


def _leaf(column: Column, value: Any) -> str | None:
    raw = bytes(value or b"null")
    if column.type == "string" and raw != b"null" and not raw.startswith(b'"'):
        raise InvalidArgument(f"{raw.decode()} is no string in JSON")
    return json_text(raw)


def json_text(raw: bytes) -> str | None:
    """A JSON value as text; a string without its quotes."""
    if raw == b"null":
        return None
    return _DECODE_STRING(raw) if raw.startswith(b'"') else raw.decode()


# -- the types of text ---------------------------------------------------------------------------------------

# Which text is of a type without doubt: stricter than the forms above. In the order in which they are tried.
_CERTAIN: tuple[tuple[pa.DataType, str], ...] = (
    (pa.bool_(), r"(?i)^(true|false)$"),
    (pa.int64(), r"^-?(0|[1-9]\d*)$"),
    (pa.float64(), r"(?i)^-?((0|[1-9]\d*)(\.\d*)?(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf|infinity|nan)$"),
    (pa.date32(), rf"^{_DAY}$"),
    (pa.timestamp("us"), rf"^{_DAY}([ T]{_TIME})?$"),
    (pa.timestamp("ns"), rf"^{_DAY}([ T]{_TIME})?$"),
    (pa.timestamp("us", "UTC"), rf"^{_DAY}[ T]{_TIME}{_OFFSET}$"),
    (pa.timestamp("ns", "UTC"), rf"^{_DAY}[ T]{_TIME}{_OFFSET}$"),
)
_FORMS = dict(_CERTAIN)
_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int64(): (pa.float64(),),
    pa.date32(): (pa.timestamp("us"), pa.timestamp("ns")),
    pa.timestamp("us"): (pa.timestamp("ns"),),
    pa.timestamp("us", "UTC"): (pa.timestamp("ns", "UTC"),),
}

_LONG = rf"^-?\d{{{_DIGITS_EXACT + 1},}}$"
FIRST_ROWS = 64


class Guess:
    """The narrowest type of all text of a column that was seen; None while all of it is null. `odd`: the first value that is not of
    the type which most of the first values have, and this type; None if there is no such type, or the column is no string."""

    def __init__(self, decimal: str = ".") -> None:
        self.kind: pa.DataType | None = None
        self.odd: tuple[str, pa.DataType] | None = None
        self._decimal = decimal
        self._long = False  # a number was seen that a double may not hold

    def see(self, text: pa.Array, quoted: bool = False) -> None:
        """`quoted`: strings of JSON, which are no numbers and have no words for null."""
        if self.kind == pa.string() or text.null_count == len(text):
            return
        given = pc.utf8_trim_whitespace(text)
        if not quoted:
            given = pc.if_else(pc.is_in(given, NULLS), pa.scalar(None, pa.string()), given)
        given = given.drop_null()
        if not len(given):
            return
        if self.kind is None:
            tried = [kind for kind, _ in _CERTAIN]
            tried = [kind for kind in tried if pt.is_temporal(kind)] if quoted else tried
        else:
            tried = [self.kind, *_WIDER.get(self.kind, ())]
            tried = [kind for kind in tried if pt.is_temporal(kind) or not quoted]
        before, self.kind = self.kind, next((kind for kind in tried if self._is(given, kind)), pa.string())
        if self.kind == pa.string():
            self.odd = self.odd or self._odd(given, tried)
        if self.kind in (pa.int64(), pa.float64()) and not self._long:
            self._long = bool(pc.any(pc.match_substring_regex(given, _LONG)).as_py())
        if self.kind == pa.float64() and self._long:
            self.odd = self.odd or self._odd_number(given, before)

    def found(self) -> pa.DataType:
        if self.kind is None or (self.kind == pa.float64() and self._long):
            return pa.string()
        return self.kind

    def takes(self, value: str) -> bool:
        """Whether this text is a value of the type."""
        return self._is(pa.array([value], pa.string()), self.found())

    def _is(self, text: pa.Array, kind: pa.DataType) -> bool:
        for part in (text[:FIRST_ROWS], text):  # the first rows show most of the types that do not fit
            if not pc.all(self._have_form(part, kind)).as_py():
                return False
        return not from_text(self._plain(text, kind), kind, json=True).bad.any()

    def _have_form(self, text: pa.Array, kind: pa.DataType) -> pa.Array:
        return pc.match_substring_regex(self._plain(text, kind), _FORMS[kind])

    def _plain(self, text: pa.Array, kind: pa.DataType) -> pa.Array:
        if self._decimal == "," and kind == pa.float64():
            return pc.replace_substring(pc.replace_substring(text, ".", "~"), ",", ".")
        return text

    def _odd(self, text: pa.Array, tried: list[pa.DataType]) -> tuple[str, pa.DataType] | None:
        first = text[:FIRST_ROWS]
        for kind in tried:
            if 2 * self._have_form(first, kind).true_count > len(first):
                widest = (kind, *_WIDER.get(kind, ()))[-1]
                odd = text.filter(pc.invert(self._have_form(text, widest)))
                if not len(odd):  # a value of the right form, such as 2024-02-30
                    odd = text.filter(pa.array(from_text(self._plain(text, widest), widest, json=True).bad))
                return (odd[0].as_py(), kind) if len(odd) else None
        return None

    def _odd_number(self, text: pa.Array, before: pa.DataType | None) -> tuple[str, pa.DataType] | None:
        """The first number that makes doubles of long whole numbers, or the first that is too long for a double."""
        first = text[:FIRST_ROWS]
        if before is None:
            whole = 2 * self._have_form(first, pa.int64()).true_count > len(first)
        else:
            whole = before == pa.int64()
        unfit = from_text(text, pa.int64(), json=True).bad if whole else None
        odd = text.filter(pc.match_substring_regex(text, _LONG) if unfit is None else pa.array(unfit))
        return (odd[0].as_py(), pa.int64() if whole else pa.float64()) if len(odd) else None
