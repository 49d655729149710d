"""Defects of the move of a catalog into a journal."""

from __future__ import annotations

from typing import Any

from ebla.actors.master.catalog import directory
from ebla.actors.master.leadership.mover import CatalogMover
from ebla.chaos.defects.defect import defect

# Production functions that defects wrap.
original_local = CatalogMover._local


# Until the journal has the catalog, it exists in memory only.
@defect("raised", 60, CatalogMover, "_local", seed=2)
async def emptied_before_moved(self: CatalogMover) -> Any:
    """A catalog is removed from its directory before the journal has it."""
    found = await original_local(self)
    if found[0]:
        await self._clear()
    return found


@defect("raised", 60, CatalogMover, "_moved_before", seed=1)
def moved_again(self: CatalogMover, there: object, local: object) -> None:
    """A catalog is moved into a journal that has it already."""


@defect("raised", 20, directory, "has_moved", seed=1)
def old_master_returns(world: object) -> bool:
    """A single master starts in a directory whose catalog has moved into a journal."""
    return False
