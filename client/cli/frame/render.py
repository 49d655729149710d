"""Tables for a terminal. Colours repeat the words only, so that no information is lost without them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ebla.wording import with_short_nodes

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

UNBROKEN_MAX = 24  # characters of a cell
PLAIN_FROM = 500  # rows: rich takes about a millisecond for each
# Ends where a line may end: at a blank, or after a mark in a name.
PIECE = re.compile(r"\s*\S+?(?:[-_./:,]+(?=\S)|(?=\s|$))")

_WORDS = {
    "green": ("HEALTHY", "alive", "running"),
    "yellow": (
        *("RECOVERING", "LAGGING", "BOOTSTRAPPING", "COPYING", "SILENT", "REJOINING", "DEGRADED"),
        *("UNDER_REPLICATED", "TOMBSTONE", "READ_ONLY", "out of sync", "preparing", "starting", "ending"),
    ),
    "red": (
        *("DISK_FULL", "DISK_HUNG", "DISK_LOST", "CONSENSUS_MISMATCH", "CHECKSUM_MISMATCH", "UNAVAILABLE"),
        *("UNWRITABLE", "UNREADABLE", "DEAD", "NO_LEASE", "UNREACHABLE", "FAILED", "MISSING", "WRONG_SERVER"),
        *("ended", "failed", "dead"),
    ),
}
COLOURS = {word: colour for colour, words in _WORDS.items() for word in words}


class Cell:
    """A text whose lines end at blanks or after the marks in names, and within a word only if that is wider than the column.
    All lines have the indentation of the first."""

    def __init__(self, text: Text) -> None:
        self._text = text
        stripped = text.plain.lstrip()
        self._indent = " " * (len(text.plain) - len(stripped))
        self._pieces = PIECE.findall(stripped)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.cells import cell_len
        from rich.measure import Measurement

        least = len(self._indent) + max((cell_len(piece.strip()) for piece in self._pieces), default=0)
        return Measurement(least, self._text.cell_len).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.cells import cell_len
        from rich.text import Text

        lines = [""]
        for piece in self._pieces:
            if lines[-1] and cell_len(self._indent + lines[-1] + piece) > options.max_width:
                lines.append("")
            lines[-1] += piece if lines[-1] else piece.lstrip()
        yield Text("\n".join(self._indent + line for line in lines), style=self._text.style, overflow="fold")


def status(word: str) -> Text:
    from rich.text import Text

    return Text(word, style=COLOURS.get(word, ""))


def listing(headers: Sequence[str], rows: Iterable[Sequence[Any]], keep_empty: bool = False) -> Table | str:
    """A table without lines. A header that ends in `>` names a column of numbers, aligned to the right. Empty columns are left
    out unless `keep_empty`. On a narrow terminal only the last column, and columns of long texts, are wrapped. A long list is
    plain text."""
    from rich.table import Table

    cells = [list(row) for row in rows]
    kept = keep_empty or not cells
    used = [at for at in range(len(headers)) if kept or any(row[at] != "" for row in cells)]
    if len(cells) > PLAIN_FROM:
        return _plain([headers[at] for at in used], [[_text(row[at]) for at in used] for row in cells])
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for at in used:
        right = headers[at].endswith(">")
        short = all(len(_cell(row[at])) <= UNBROKEN_MAX for row in cells)
        table.add_column(
            headers[at].removesuffix(">"),
            justify="right" if right else "left",
            no_wrap=right or (short and at != used[-1]),
            overflow="fold",
        )
    for row in cells:
        shown = (_cell(row[at]) for at in used)
        table.add_row(
            *(
                each if column.no_wrap else _broken(each)
                for column, each in zip(table.columns, shown, strict=True)
            )
        )
    return table


def _plain(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    right = [header.endswith(">") for header in headers]
    named = [header.removesuffix(">").replace("\n", "") for header in headers]
    widths = [max(len(row[at]) for row in [named, *rows]) for at in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join(map(line, [named, *rows]))


def _text(value: Any) -> str:
    """A cell in one line, with the words of `_cell`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "-" if value is None else with_short_nodes(str(value)).replace("\n", " ")


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """One name and value on each line."""
    from rich.table import Table

    table = Table(box=None, show_edge=False, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, _broken(_cell(value)))
    return table


def _broken(value: Any) -> Any:
    """A text of one style as a Cell."""
    from rich.text import Text

    return Cell(value) if isinstance(value, Text) and not value.spans and "\n" not in value.plain else value


def _cell(value: Any) -> Any:
    from rich.text import Text

    if isinstance(value, str):
        return Text(with_short_nodes(value), style=COLOURS.get(value, ""))
    if value is None:
        return "-"
    return Text(f"{value:,}") if isinstance(value, int) and not isinstance(value, bool) else value
