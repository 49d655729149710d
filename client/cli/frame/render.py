"""Tables for a terminal. Colours repeat the words only, so that no information is lost without them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

UNBROKEN_MAX = 24  # characters of a cell

_WORDS = {
    "green": ("HEALTHY", "alive", "running"),
    "yellow": (
        *("RECOVERING", "LAGGING", "BOOTSTRAPPING", "COPYING", "SILENT", "REJOINING", "DEGRADED"),
        *("UNDER_REPLICATED", "TOMBSTONE", "READ_ONLY", "out of sync", "preparing", "starting", "ending"),
    ),
    "red": (
        *("DISK_FULL", "DISK_LOST", "CONSENSUS_MISMATCH", "CHECKSUM_MISMATCH", "UNAVAILABLE", "UNWRITABLE"),
        *("UNREADABLE", "DEAD", "NO_LEASE", "UNREACHABLE", "FAILED", "MISSING", "WRONG_SERVER"),
        *("ended", "failed", "dead"),
    ),
}
COLOURS = {word: colour for colour, words in _WORDS.items() for word in words}


def status(word: str) -> Text:
    from rich.text import Text

    return Text(word, style=COLOURS.get(word, ""))


def listing(headers: Sequence[str], rows: Iterable[Sequence[Any]], keep_empty: bool = False) -> Table:
    """A table without lines. A header that ends in `>` names a column of numbers, aligned to the right. Empty columns are left
    out unless `keep_empty`. On a narrow terminal only the last column, and columns of long texts, are wrapped."""
    from rich.table import Table

    cells = [list(row) for row in rows]
    kept = keep_empty or not cells
    used = [at for at in range(len(headers)) if kept or any(row[at] != "" for row in cells)]
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
        table.add_row(*(_cell(row[at]) for at in used))
    return table


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """One name and value on each line."""
    from rich.table import Table

    table = Table(box=None, show_edge=False, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, _cell(value))
    return table


def _cell(value: Any) -> Any:
    from rich.text import Text

    if isinstance(value, str):
        return Text(value, style=COLOURS.get(value, ""))
    if value is None:
        return "-"
    return Text(f"{value:,}") if isinstance(value, int) and not isinstance(value, bool) else value
