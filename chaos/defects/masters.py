"""Defects of masters, their standbys and their journal."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from ebla.actors.coordination.edits import NodesChanged, NodeSet
from ebla.actors.journal.messages import Done
from ebla.actors.journal.node import rules
from ebla.actors.journal.node.journal import Journal, batch_of
from ebla.actors.journal.node.lease import Lease
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.journal.writer.reader import Page
from ebla.actors.journal.writer.session import Session
from ebla.actors.master.catalog import edits as e
from ebla.actors.master.catalog.lineage import Lineage
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.leadership.standby import Standby
from ebla.actors.master.repair.repairs import Repairs
from ebla.actors.master.rules import healing
from ebla.chaos.defects.defect import LATE_PROMISES, ONE_NODE_PROMISES, STARTED_UNDER_A_LEASE, defect


@defect("masters", 200, rules, "fence", seed=134)
def fence_skipped(view: object, epoch: object) -> None:
    """A journal node accepts the edits of a superseded writer."""


@defect("masters", 20, rules, "is_new", seed=3, faults=LATE_PROMISES)
def equal_epoch_promised(state: Any, epoch: int) -> bool:
    """A journal node promises an epoch that it has promised before."""
    return bool(epoch >= state.promised)


@defect("masters", 60, Holder, "holds", seed=45)
def no_master_lease(self: Holder) -> bool:
    """A master answers until it learns that it is superseded."""
    return self.lost is None and self.epoch > 0


@defect("masters", 20, Lease, "__init__", seed=1, faults=STARTED_UNDER_A_LEASE)
def quiet_period_skipped(original: Any, self: Lease, name: str, clock: Any, held_ms: int) -> None:
    """A journal node that was started again promises an epoch while another master may hold the lease."""
    original(self, name, clock, 0)


# The edits that the predecessor acknowledged last are in the journal only.
@defect("masters", 60, QuorumEditLog, "_catch_up")
async def take_over_behind(self: QuorumEditLog, after: int, last: int, digest: int) -> list[Any]:
    """A master takes over without reading the recovered edits."""
    return []


@defect("churn", 200, Journal, "_make", seed=22)
async def edit_not_durable(original: Any, self: Journal, what: str, change: Any) -> Any:
    """The master answers before its edit is on disk."""
    if what != "edits":
        return await original(self, what, change)
    self._committing = asyncio.ensure_future(self._environment.commit(batch_of(change)))  # type: ignore[attr-defined]
    self.view.state, self.view.open = change.state, change.open
    for segment in change.put:
        self.view.segments[segment.start] = segment
    return Done()


@defect("locks", 20, Standby, "_apply")
def follows_without_sets(original: Any, self: Standby, page: Page) -> None:
    """A standby skips edits that only set nodes."""
    left = [(txid, [each for each in e.decode(payload) if not _sets(each)]) for txid, payload in page.edits]
    original(self, Page([(txid, e.encode(edits)) for txid, edits in left], page.position))


@defect("masters", 20, Session, "move_on", seed=9, faults=ONE_NODE_PROMISES)
async def left_out_for_good(self: Session) -> None:
    """A journal node that promised a later epoch to a contender that failed stays left out."""


@defect("restores", 60, Lineage, "has", seed=46)
def older_catalog_accepted(self: Lineage, seen: object) -> bool:
    """A master serves from an older copy of its catalog, although servers have seen a newer one."""
    return True


@defect("members", 60, Repairs, "_count_coming")
def places_taken_for_ever(original: Any, self: Repairs, *now: Any) -> Counter[str]:
    """A replica that has arrived at a server still counts among those on their way to it."""
    before = self._coming
    found: Counter[str] = original(self, *now)
    if found is not before:
        found.update(before)
    return found


@defect("members", 60, Repairs, "_pick", seed=13)
def turn_forgotten(original: Any, self: Repairs, catalog: Any, servers: Any, record: Any, *now: Any) -> Any:
    """A tablet that waits for its turn is checked again only when its leader has news."""
    found = original(self, catalog, servers, record, *now)
    if found is healing.LATER:
        self._views.unsettled.pop(record.tablet, None)
    return found


def _sets(edit: e.Edit) -> bool:
    return isinstance(edit, NodesChanged) and all(isinstance(change, NodeSet) for change in edit.changes)
