"""As `python -m ebla.chaos.powercut.cases`, with some of storage's checks switched off, by the first argument:

believing    it believes what LMDB's pages do not find
large        files are not looked at as a whole at a start, as if they were large

Only what may lead a read of rows astray is tried; every other case is called right.
"""

from __future__ import annotations

import sys
from typing import Any

from ebla.chaos.powercut import cases
from ebla.chaos.powercut.damage.damage import Damage
from ebla.chaos.powercut.damage.flips import RIGHT, Bench, Judgement
from ebla.storage.lmdb import structure
from ebla.storage.tablets import tablet_store

BELIEVING, LARGE = "believing", "large"
ASTRAY = ("page header", "page pointers", "child pointer", "node header", "key")

judge = Bench.judge


def judge_rows(bench: Bench, node: int, damage: Damage) -> Judgement:
    tried = damage.area == "data" and damage.part in ASTRAY
    return judge(bench, node, damage) if tried else Judgement(RIGHT)


def believe(*_: Any, **__: Any) -> None:
    """Instead of a look at the neighbours, or at the pages."""


async def walk_nothing(*_: Any) -> int:
    return 0


if __name__ == "__main__":
    off = [(structure, "check", believe), (Bench, "judge", judge_rows)]
    if sys.argv.pop(1) == BELIEVING:
        off += [
            (tablet_store, "require_absent", believe),
            (tablet_store, "require_edges", believe),
            (tablet_store, "scrub", walk_nothing),
        ]
    for owner, name, instead in off:
        assert hasattr(owner, name), f"there is no {name} to switch off"
        setattr(owner, name, instead)
    sys.exit(cases.main())
