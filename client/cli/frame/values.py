"""Values as people write them on a command line, turned into what a column takes.

    int..       12, -3, 1_000              date        2013-01-31
    float..     0.5, 1e-3, nan             timestamp   2013-01-31, 2013-01-31T05:00, 2013-01-31 05:00:00.25+01:00
    bool        true, false                decimal     19.90
    string      as it is                   binary      as it is (UTF-8), or 0x00ff

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
    """The value; raises Usage naming the column and an example."""
    read, example = _READERS.get(column.type, (_integer, "12"))
    try:
        return read(column, text)
    except (ValueError, InvalidOperation) as error:
        raise Usage(
            f"{text!r} is not a value for column {column.name!r} of type {type_name(column)}; write for example {example}",
            column=column.name,
        ) from error


def type_name(column: Column) -> str:
    """As a column is declared: `timestamp[us,UTC]`, `decimal(10,2)`, `string`."""
    if column.type == "timestamp":
        return f"timestamp[{column.unit},{column.zone}]" if column.zone else f"timestamp[{column.unit}]"
    if column.type == "decimal":
        return f"decimal({column.precision},{column.scale})"
    return column.type


def _integer(column: Column, text: str) -> int:
    return int(text)


def _float(column: Column, text: str) -> float:
    return float(text)


def _bool(column: Column, text: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


def _string(column: Column, text: str) -> str:
    return text


def _binary(column: Column, text: str) -> bytes:
    return bytes.fromhex(text[2:]) if text.lower().startswith("0x") else text.encode()


def _date(column: Column, text: str) -> date:
    return date.fromisoformat(text)


def _timestamp(column: Column, text: str) -> datetime:
    read = datetime.fromisoformat(text)
    if column.zone is None or read.tzinfo is not None:
        return read
    return read.replace(tzinfo=_zone(column.zone))


def _zone(name: str) -> Any:
    """Arrow names zones as tzdata does, or as an offset such as +05:30."""
    if re.fullmatch(r"[+-]\d\d:\d\d", name):
        return datetime.fromisoformat(f"2000-01-01T00:00{name}").tzinfo
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise Usage(
            f"the time zone {name!r} is not known here; write timestamps with an offset, as 2013-01-31T05:00+00:00"
        ) from error


def _decimal(column: Column, text: str) -> Decimal:
    return Decimal(text)


_READERS: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "float": (_float, "0.5"),
    "double": (_float, "0.5"),
    "bool": (_bool, "true"),
    "string": (_string, "JFK"),
    "binary": (_binary, "0x00ff"),
    "date": (_date, "2013-01-31"),
    "timestamp": (_timestamp, "2013-01-31T05:00"),
    "decimal": (_decimal, "19.90"),
}
