"""As `python -m ebla.chaos.powercut.cases`, with some of storage's checks switched off, by the first argument:

believing    it believes what LMDB's pages do not find
large        files are not looked at as a whole at a start, as if they were large
"""

from __future__ import annotations

import sys
from typing import Any

from ebla.chaos.powercut import cases
from ebla.storage import structure, tablet_store

BELIEVING, LARGE = "believing", "large"


def believe(*_: Any, **__: Any) -> None:
    """Instead of a look at the neighbours, or at the pages."""


async def walk_nothing(*_: Any) -> int:
    return 0


if __name__ == "__main__":
    off = [(structure, "check", believe)]
    if sys.argv.pop(1) == BELIEVING:
        off += [
            (tablet_store, "require_absent", believe),
            (tablet_store, "require_edges", believe),
            (tablet_store, "scrub", walk_nothing),
        ]
    for module, name, instead in off:
        assert hasattr(module, name), f"storage has no {name} to switch off"
        setattr(module, name, instead)
    sys.exit(cases.main())
