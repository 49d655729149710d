"""Surprises in the columns of a source: for people, before anything is written."""

from __future__ import annotations

from collections.abc import Sequence

from ebla.pipelines.sources.source import FileSource, Source
from ebla.wording import count

ODD_MAX = 3
NAMES_MAX = 5


def notes(source: Source, key: Sequence[str], new: bool) -> list[str]:
    """One line each. `new`: the table is to be made, with the types of the source and this key."""
    lines = _of_dialects(source) if isinstance(source, FileSource) else []
    if not new:
        return lines
    odd = sorted(source.odd, key=lambda row: row.column not in key)
    for row in odd[:ODD_MAX]:
        lines.append(f"{row.column} is string because of {row.file} row {row.row}: {row.problem}")
    if len(odd) > ODD_MAX:
        lines.append(f"{count(len(odd) - ODD_MAX, 'more column')} string because of one value")
    return lines


def _of_dialects(source: FileSource) -> list[str]:
    lines = _of_encodings(source)
    if source.headless:
        first = ", ".join(source.headless[:NAMES_MAX]) + (", ..." if len(source.headless) > NAMES_MAX else "")
        lines.append(
            f"the first row ({first}) looks like values, and is read as the names of columns; if the file has no such row, name "
            "the columns with -o names=a,b,c"
        )
    open_ = next((each.thousands for each in source.dialects.values() if each.thousands), None)
    if open_ is not None:
        lines.append(f"numbers such as {open_} are text; if the comma is the decimal mark, give -o decimal=,")
    return lines


def _of_encodings(source: FileSource) -> list[str]:
    """A guess of the encoding changes every character that is not ASCII, if it is wrong."""
    guessed = [(path, each) for path, each in source.dialects.items() if each.guess]
    if not guessed:
        return []
    path, first = guessed[0]
    several = len(source.dialects) > 1
    others = {each.encoding for each in source.dialects.values()} - {first.encoding}
    line = f"{count(len(guessed), 'file')} read" if several else "read"
    line += f" as {first.encoding}, such as {first.guess}{f' of {path}' if several else ''}"
    if others:
        line += f", the others as {', '.join(sorted(others))}; if that is wrong, feed them by themselves with -o encoding=NAME"
    else:
        line += "; if that is wrong, give -o encoding=NAME"
    return [f"{line}, such as -o encoding=cp1251"]


def unknown_column(name: str, source: Source, names: Sequence[str]) -> str:
    """The problem and the remedy if the source has no column of this name."""
    listed = ", ".join(map(repr, names))
    hint = ""
    if isinstance(source, FileSource) and source.dialects:
        if len(names) == 1:
            hint = "; if another character separates the values, give it with -o sep=CHARACTER"
        elif source.headless:
            hint = "; if the file has no row of names, give them with -o names=a,b,c"
    return f"there is no column {name!r}; the columns are {listed}{hint}"
