"""What planted defects swap where a catalog moves into a journal; chaos/defects/planted_masters.py names them."""

from __future__ import annotations

from typing import Any

from ebla.actors.master.catalog import directory
from ebla.actors.master.leadership.mover import CatalogMover
from ebla.chaos.defects.replication import Swap


def empty_the_directory_first() -> list[Swap]:
    """What has been read is in memory only until the journal has it."""
    honest = CatalogMover._local

    async def local(self: CatalogMover) -> Any:
        found = await honest(self)
        if found[0]:
            await self._clear()
        return found

    return [(CatalogMover, "_local", local)]


def move_into_whatever_is_there() -> list[Swap]:
    return [(CatalogMover, "_moved_before", lambda self, there, local: None)]


def take_any_directory_for_ones_own() -> list[Swap]:
    return [(directory, "has_moved", lambda world: False)]
