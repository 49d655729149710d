"""Paths of nodes: `/a/b`, from the root `/` on. Await-free."""

from __future__ import annotations

import unicodedata

from ebla.storage.errors import InvalidArgument

ROOT = "/"
DEPTH_MAX = 16
NAME_MAX = 128  # characters, including the number of a sequential node
SEQUENCE_DIGITS = 16  # more than any journal needs, so that names sort like their numbers


def validate(path: str, sequential: bool = False) -> None:
    """Raise InvalidArgument unless the path is valid. `sequential`: a number will be added to the name."""
    if path == ROOT and not sequential:
        return
    if not path.startswith("/") or path.endswith("/"):
        raise InvalidArgument(f"a path is such as /jobs/report, not {path[:NAME_MAX]!r}")
    names = path[1:].split("/")
    if len(names) > DEPTH_MAX:
        raise InvalidArgument(f"a path has {DEPTH_MAX} names at most, not {len(names)}")
    room = NAME_MAX - (SEQUENCE_DIGITS if sequential else 0)
    for name in names:
        longest = room if name is names[-1] else NAME_MAX
        if not 0 < len(name) <= longest or name in (".", ".."):
            raise InvalidArgument(
                f"each name in a path has 1 to {longest} characters and is not . or .., not {name[:NAME_MAX]!r}"
            )
        if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
            raise InvalidArgument(f"a name may not contain control characters: {name!r}")


def parent(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def name(path: str) -> str:
    return path.rpartition("/")[2]


def join(path: str, name: str) -> str:
    return f"/{name}" if path == ROOT else f"{path}/{name}"


def numbered(path: str, number: int) -> str:
    """The path of a sequential node."""
    return f"{path}{number:0{SEQUENCE_DIGITS}d}"


def number(name: str) -> int | None:
    """The number of a sequential node, from its name or path; None if it has none."""
    digits = name[-SEQUENCE_DIGITS:]
    return int(digits) if len(digits) == SEQUENCE_DIGITS and digits.isascii() and digits.isdigit() else None
