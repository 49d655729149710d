"""Checks of a caller's arguments before anything is sent (write/inputs.py checks rows). Each check returns the value in its
one form, or raises InvalidArgument with the argument's name, what it should be, and the given value.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from ebla.options import DEADLINE_S, INT_MAX, WriteId
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.python_values import shown


def check_deadline(deadline_s: Any, name: str = "deadline_s") -> float:
    if deadline_s is None:
        return DEADLINE_S
    if type(deadline_s) is float and deadline_s > 0:
        return deadline_s
    known = isinstance(deadline_s, numbers.Real) and deadline_s is not True
    if not known:
        raise InvalidArgument(f"{name} is a number of seconds, such as 5.0, not {shown(deadline_s)}")
    if not deadline_s > 0:
        raise InvalidArgument(f"{name} must be positive, not {shown(deadline_s)}")
    try:
        return float(deadline_s)
    except OverflowError:
        return float("inf")


def check_table(table: Any, kind: type) -> None:
    """`kind`: ebla.Table, which needs this module."""
    if not isinstance(table, kind):
        given = shown(table) if isinstance(table, str) else type(table).__name__
        raise InvalidArgument(f"table is a table, such as db.table('people'), not {given}")


def check_reserve(reserve_s: Any) -> float | None:
    if reserve_s is None:
        return None
    known = isinstance(reserve_s, numbers.Real) and not isinstance(reserve_s, bool)
    if not known or not 0 <= float(reserve_s) < float("inf"):
        raise InvalidArgument(
            f"reserve_s is a number of seconds, such as 86400 (0: the table goes at once), not {shown(reserve_s)}"
        )
    return float(reserve_s)


def check_write_id(write_id: tuple[bytes, int] | None) -> WriteId | None:
    if write_id is None:
        return None
    if not isinstance(write_id, (tuple, list)) or len(write_id) != 2:
        raise InvalidArgument(
            f"a write_id is a pair of 16 bytes and a number, such as WriteId(uuid.uuid4().bytes, 0), not {shown(write_id)}"
        )
    client, sequence = write_id
    if not isinstance(client, bytes) or len(client) != 16:
        raise InvalidArgument("the client of a write_id is 16 bytes; digest a longer name to 16 bytes")
    return WriteId(client, check_int("the sequence of a write_id", sequence, 0))


def check_int(name: str, value: Any, least: int, most: int = INT_MAX) -> int:
    """A whole number (of Python or numpy, but no bool) from `least` to `most`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        span = f"{least} or more" if most == INT_MAX and (number or 0) <= most else f"{least} to {most}"
        raise InvalidArgument(f"{name} must be a whole number, {span}, not {shown(value)}")
    return number


def check_text(name: str, value: Any) -> str:
    """A str that can be sent."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is a str, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name} is not valid Unicode: {shown(value)}; {error}") from error
    return value


def check_properties(properties: Any) -> dict[str, str]:
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise InvalidArgument(
            f'properties is a dict of str to str, such as {{"owner": "ana"}}, not {shown(properties)}'
        )
    return {
        check_text("each key of properties", key): check_text(f"properties[{shown(key)}]", value)
        for key, value in properties.items()
    }


def check_names(name: str, value: Any) -> tuple[str, ...]:
    """Names of columns: a list of them, or anything else that yields them, but not one name alone."""
    if isinstance(value, (str, bytes)):
        raise InvalidArgument(f"{name} is a list of columns: [{shown(value)}]")
    if not isinstance(value, Iterable):
        raise InvalidArgument(f'{name} is a list of columns, such as ["a", "b"], not {shown(value)}')
    return tuple(check_text(f"each of {name}", each) for each in value)


def check_key(
    key: Any, names: tuple[str, ...], otherwise: str = "read rows by a condition: scan(where=...)"
) -> None:
    """Refuse columns that are not part of the key, and name the other way. The key's codec checks all else."""
    if isinstance(key, Mapping) and len(key) > len(names):
        extra = next(name for name in key if name not in names)
        raise InvalidArgument(
            f"column {shown(extra)} is not part of the key ({', '.join(names)}): leave it out, or {otherwise}",
            column=str(extra),
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, choices))}, not {shown(value)}")
    return value
