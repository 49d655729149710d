"""What planted defects swap in masters that follow another one; chaos/planted_masters.py names them."""

from __future__ import annotations

from ebla.actors.coordination.edits import NodesChanged, NodeSet
from ebla.actors.journal.reader import Page
from ebla.actors.master import edits as e
from ebla.actors.master.standby import Standby
from ebla.chaos.defects import Swap


def follow_without_what_was_set() -> list[Swap]:
    honest = Standby._apply

    def apply(self: Standby, page: Page) -> None:
        left = [
            (txid, [each for each in e.decode(payload) if not _sets(each)]) for txid, payload in page.edits
        ]
        honest(self, Page([(txid, e.encode(edits)) for txid, edits in left], page.position))

    return [(Standby, "_apply", apply)]


def _sets(edit: e.Edit) -> bool:
    return isinstance(edit, NodesChanged) and all(isinstance(change, NodeSet) for change in edit.changes)
