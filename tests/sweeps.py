"""How many random histories the sweeps of the tests make. `make sweep` makes FACTOR times as many as `make test`."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("EBLA_SWEEP", "1"))


def seeds(count: int, first: int = 0) -> range:
    """The seeds of a sweep that has `count` of them in `make test`."""
    return range(first, first + count * FACTOR)


def examples(count: int) -> int:
    """The examples of a property that has `count` of them in `make test`."""
    return count * FACTOR
