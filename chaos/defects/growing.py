"""Defects of the growth of a journal from one node to several."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ebla.actors.journal.node import growth
from ebla.actors.journal.node.journal import Journal
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.master.leadership.growth import _Joins
from ebla.chaos.defects.defect import Swap, defect

# Production functions that defects wrap.
original_admit = growth.admit_joining


@defect("growing", 60, seed=9)
def counted_too_early() -> list[Swap]:
    """A node that joins a journal counts before it has all edits."""

    async def reach(self: _Joins, end: Any, limit_s: float) -> None:
        for address in self._request.nodes[1:]:
            await self._ask(address)

    def admit(view: Any, request: Any) -> Any:
        return original_admit(view, replace(request, end=0, digest=0))

    return [(_Joins, "reach", reach), (growth, "admit_joining", admit)]


@defect("growing", 60, JournalNode, "_journal")
def old_set_served(original: Any, self: JournalNode, wanted: Any) -> Any:
    """A node of a journal that has grown still serves writers of the old set of nodes."""
    return original(self, wanted.of_any_version())


@defect("growing", 60, Journal, "require_whole", seed=1)
def joining_node_promises(self: Journal) -> None:
    """A node promises epochs and takes part in recoveries while it joins a journal."""
