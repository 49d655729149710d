"""What planted defects swap in the growth of a journal from one node to several; chaos/defects/planted_masters.py names them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ebla.actors.journal.node import growth
from ebla.actors.journal.node.journal import Journal
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.master.leadership.growth import _Joins
from ebla.chaos.defects.replication import Swap


def count_nodes_before_they_have_everything() -> list[Swap]:
    honest = growth.admit_joining

    async def reach(self: _Joins, end: Any, limit_s: float) -> None:
        for address in self._request.nodes[1:]:
            await self._ask(address)

    def admit(view: Any, request: Any) -> Any:
        return honest(view, replace(request, end=0, digest=0))

    return [(_Joins, "reach", reach), (growth, "admit_joining", admit)]


def serve_the_old_set() -> list[Swap]:
    honest = JournalNode._journal

    def found(self: JournalNode, wanted: Any) -> Any:
        return honest(self, wanted.of_any_version())

    return [(JournalNode, "_journal", found)]


def witness_while_joining() -> list[Swap]:
    return [(Journal, "require_whole", lambda self: None)]
