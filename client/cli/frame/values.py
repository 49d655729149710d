"""Converts values from the command line to the type of a column.

    int..       12, -3, 1_000              date        2013-01-31
    float..     0.5, 1e-3, nan             timestamp   2013-01-31, 2013-01-31T05:00, 2013-01-31 05:00:00.25+01:00
    bool        true, false                decimal     19.90
    string      unchanged                  binary      UTF-8 text, or 0x00ff

A timestamp without an offset is read in the column's own zone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ebla.cli.frame.problems import Usage

if TYPE_CHECKING:
    from ebla.storage.schema import Column


def from_text(column: Column, text: str) -> Any:
    """The value. Raises Usage with the column's name and an example."""
    read, example = _READERS.get(column.type, (lambda _, text: int(text), "12"))
    try:
        return read(column, text)
    except (ValueError, InvalidOperation) as error:
        raise Usage(
            f"{text!r} is not a value for column {column.name!r} of type {type_name(column)}; write for example {example}",
            column=column.name,
        ) from error


def type_name(column: Column) -> str:
    """The type as users declare it: `timestamp[us,UTC]`, `decimal(10,2)`, `string`."""
    if column.type == "timestamp":
        return f"timestamp[{column.unit},{column.zone}]" if column.zone else f"timestamp[{column.unit}]"
    if column.type == "decimal":
        return f"decimal({column.precision},{column.scale})"
    return column.type


def _bool(column: Column, text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _binary(column: Column, text: str) -> bytes:
    return bytes.fromhex(text[2:]) if text.lower().startswith("0x") else text.encode()


def _timestamp(column: Column, text: str) -> datetime:
    read = datetime.fromisoformat(text)
    if column.zone is None or read.tzinfo is not None:
        return read
    return read.replace(tzinfo=_zone(column.zone))


def _zone(name: str) -> Any:
    """The zone of one of Arrow's names: a name of tzdata, or an offset such as +05:30."""
    if re.fullmatch(r"[+-]\d\d:\d\d", name):
        return datetime.fromisoformat(f"2000-01-01T00:00{name}").tzinfo
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise Usage(
            f"the time zone {name!r} is not known here; write timestamps with an offset, as 2013-01-31T05:00+00:00"
        ) from error


_READERS: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "float": (lambda _, text: float(text), "0.5"),
    "double": (lambda _, text: float(text), "0.5"),
    "bool": (_bool, "true"),
    "string": (lambda _, text: text, "JFK"),
    "binary": (_binary, "0x00ff"),
    "date": (lambda _, text: date.fromisoformat(text), "2013-01-31"),
    "timestamp": (_timestamp, "2013-01-31T05:00"),
    "decimal": (lambda _, text: Decimal(text), "19.90"),
}
