"""Times and sizes as people write them on the command line, and moments as they read them."""

from __future__ import annotations

from datetime import datetime, timezone

from ebla.cli.frame.problems import Usage

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "B": 1}


def seconds(text: str, option: str) -> float:
    """The seconds of a time such as 90, 90s, 30m, 12h, 3d or 2w."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _SECONDS else (text, "s")
    try:
        value = float(number) * _SECONDS[unit]
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise Usage(f"{text!r} is not a time; write 3d, 12h, 30m or 90s", option=option)
    return value


def bytes_of(text: str, option: str) -> int:
    """The bytes of a size such as 4096, 64MiB or 10GiB."""
    unit = next((unit for unit in _BYTES if text.endswith(unit)), "")
    try:
        value = float(text.removesuffix(unit)) * _BYTES.get(unit, 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise Usage(f"{text!r} is not a size; write 64MiB, 10GiB or a number of bytes", option=option)
    return int(value)


def when(us: int | None) -> str:
    """A moment; `-` if there was none."""
    if us is None:
        return "-"
    return datetime.fromtimestamp(us / 1e6, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
