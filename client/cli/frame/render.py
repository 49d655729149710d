"""How things look on a terminal: quiet tables, right-aligned numbers, sizes and ages as people say them.

Colour only repeats what the words say, so nothing is lost where there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

COLOURS = {
    "HEALTHY": "green",
    "alive": "green",
    "running": "green",
    "RECOVERING": "yellow",
    "LAGGING": "yellow",
    "BOOTSTRAPPING": "yellow",
    "COPYING": "yellow",
    "DISK_FULL": "red",
    "DISK_LOST": "red",
    "SILENT": "yellow",
    "REJOINING": "yellow",
    "out of sync": "yellow",
    "preparing": "yellow",
    "starting": "yellow",
    "UNDER_REPLICATED": "yellow",
    "CONSENSUS_MISMATCH": "red",
    "CHECKSUM_MISMATCH": "red",
    "UNAVAILABLE": "red",
    "UNREACHABLE": "red",
    "FAILED": "red",
    "failed": "red",
    "MISSING": "red",
    "TOMBSTONE": "yellow",
    "WRONG_SERVER": "red",
    "dead": "red",
}


def size(count: int | None) -> str:
    """980 B, 4.0 KiB, 12 MiB: two digits at least, four at most."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 999.5 or unit == "PiB":
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    raise AssertionError("the loop returns at PiB")


def age(seconds: float | None) -> str:
    """0.3 s, 42 s, 5 min, 3 h, 12 d."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def count(value: int, noun: str, plural: str | None = None) -> str:
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def short(identifier: str | None) -> str:
    """The beginning of a uuid or tablet id; commands take it for the whole where it is unique."""
    return "-" if identifier is None else identifier[:8]


def host_of(address: str | None) -> str:
    """`tablet-server/host-1` without the role."""
    return "-" if address is None else address.rpartition("/")[2]


def brief(text: str, characters_max: int = 90) -> str:
    """The beginning of a long reason; `--json` has all of it."""
    line = " ".join(text.split())
    return line if len(line) <= characters_max else line[: characters_max - 3].rstrip(" ,.:;") + "..."


def status(word: str) -> Text:
    from rich.text import Text

    return Text(word, style=COLOURS.get(word, ""))


def listing(headers: Sequence[str], rows: Iterable[Sequence[Any]], keep_empty: bool = False) -> Table:
    """A table without lines. A header that ends in `>` names a column of numbers, aligned to the right; a column in
    which nothing stands is left out unless `keep_empty`."""
    from rich.table import Table

    cells = [list(row) for row in rows]
    kept = keep_empty or not cells
    used = [at for at in range(len(headers)) if kept or any(row[at] != "" for row in cells)]
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in (headers[at] for at in used):
        right = header.endswith(">")
        table.add_column(
            header.removesuffix(">"), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in cells:
        table.add_row(*(_cell(row[at]) for at in used))
    return table


def facts(pairs: Iterable[tuple[str, Any]]) -> Table:
    """Name and value, one a line."""
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
