"""What planted defects swap where masters follow, or compete with, another one; chaos/defects/planted_masters.py names them."""

from __future__ import annotations

from ebla.actors.coordination.edits import NodesChanged, NodeSet
from ebla.actors.journal.writer.reader import Page
from ebla.actors.journal.writer.session import Session
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.lineage import Lineage
from ebla.actors.master.leadership.standby import Standby
from ebla.chaos.defects.replication import Swap


def follow_without_what_was_set() -> list[Swap]:
    honest = Standby._apply

    def apply(self: Standby, page: Page) -> None:
        left = [
            (txid, [each for each in e.decode(payload) if not _sets(each)]) for txid, payload in page.edits
        ]
        honest(self, Page([(txid, e.encode(edits)) for txid, edits in left], page.position))

    return [(Standby, "_apply", apply)]


def never_move_on() -> list[Swap]:
    async def move_on(self: Session) -> None:
        return None

    return [(Session, "move_on", move_on)]


def believe_an_older_catalog() -> list[Swap]:
    return [(Lineage, "has", lambda self, seen: True)]


def _sets(edit: e.Edit) -> bool:
    return isinstance(edit, NodesChanged) and all(isinstance(change, NodeSet) for change in edit.changes)
