"""As `python -m ebla.chaos.powercut.cases`, with storage that believes what LMDB's pages do not find."""

from __future__ import annotations

import sys
from typing import Any

from ebla.chaos.powercut import cases
from ebla.storage import tablet_store


def believe(*_: Any, **__: Any) -> None:
    """Instead of a look at the neighbours."""


async def walk_nothing(*_: Any) -> int:
    return 0


if __name__ == "__main__":
    for name, instead in (
        ("require_absent", believe),
        ("require_edges", believe),
        ("scrub", walk_nothing),
    ):
        assert hasattr(tablet_store, name), f"storage has no {name} to switch off"
        setattr(tablet_store, name, instead)
    sys.exit(cases.main())
