"""Numbers, sizes, ages and names as people write them, in reasons, messages and tables."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ebla.actors.messages import TableInfo, TableSummary

# Alone, or after the role in an address.
NODE_ID = re.compile(r"(?:(?<=server/)|(?<=store/)|(?<=worker/)|(?<![/\w]))([0-9a-f]{8})[0-9a-f]{48}\b")


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


def protocol(table: TableInfo | TableSummary) -> str:
    """`raft`, or `pacifica, min_members 2`."""
    least = f", min_members {table.min_members}" if table.min_members else ""
    return table.replication + least


def command(verb: str, *names: str, options: str = "") -> str:
    """`ebla table describe flights`, as a shell takes it: with names in quotes that need them, and `--` before a leading hyphen."""
    words = [shlex.join(names), options]
    if any(name.startswith("-") for name in names):
        words = [options, "--", shlex.join(names)]
    return f"`{' '.join(['ebla', verb, *filter(None, words)])}`"


def short(identifier: str | None) -> str:
    """The beginning of a uuid or tablet id; commands accept it where it is unique."""
    return "-" if identifier is None else identifier[:8]


def host_of(address: str | None) -> str:
    """`tablet-server/host-1` without the role."""
    return "-" if address is None else address.rpartition("/")[2]


def with_short_nodes(text: str) -> str:
    """The text with the beginning of each node id, which is the name of a host without a label; commands accept it where it is
    unique. Paths keep the whole id."""
    return NODE_ID.sub(r"\1", text)


def brief(text: str, characters_max: int = 90) -> str:
    """The beginning of a long reason; `--json` has all of it."""
    line = " ".join(text.split())
    return line if len(line) <= characters_max else line[: characters_max - 3].rstrip(" ,.:;") + "..."
