"""Defects of the repair of ledgers: of auditors, replication workers, and stores that they ask."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any

from ebla.actors.coordination.sessions.changes import Session, open_session
from ebla.actors.errors import AlreadyPresent
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.auditor.held import Held
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.counting import US, CountedTime
from ebla.actors.ledger.shared.presence import Presence
from ebla.actors.ledger.shared.records import DEADLINE_S, LastingSession
from ebla.actors.ledger.store import rules
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.ledger.worker import worker
from ebla.actors.ledger.worker.locking import LedgerLock
from ebla.chaos.defects.defect import FULL_DISKS, LOST_BESIDE_SLOW_DISKS, WORKERS_END, Swap, defect
from ebla.storage.errors import EblaError


@defect("repairs", 60, LedgerStore, "_save", faults=LOST_BESIDE_SLOW_DISKS)
async def copies_counted_unsynced(
    original: Any, self: LedgerStore, what: str, ledger: int, head: Any, changes: Sequence[Any] = ()
) -> None:
    """A store answers that it has a copy before the copy is synced."""
    saving = original(self, what, ledger, head, changes)
    if what == "recovery_add":
        self.world.spawn(_quietly(saving), "write a copy")
    else:
        await saving


async def _quietly(saving: Coroutine[Any, Any, None]) -> None:
    with contextlib.suppress(EblaError):
        await saving


@defect("repairs", 60, Presence, "_tell", seed=31)
async def store_registers_once(original: Any, self: Presence, info: StoreInfo) -> None:
    """A store whose session has expired is not registered again when it returns."""
    if self._told is None:
        await original(self, info)


@defect("repairs", 60, Held, "open", seed=9)
async def auditor_acts_unelected(self: Held) -> Session:
    """An auditor that is not sure of its lock marks ledgers in another session."""
    if self.sure:
        return self.session
    return await open_session(
        Session, self.session._master, 6.0, name="auditor/unelected", deadline_s=DEADLINE_S
    )


@defect("repairs", 60, worker, "take", faults=WORKERS_END)
async def locks_outlive_workers(sessions: LastingSession, ledger: int, holder: str) -> LedgerLock | None:
    """The lock of a ledger stays when its worker has ended."""
    session = await sessions.open()
    try:
        made = await session.create(
            paths.of_lock(ledger), holder.encode(), parents=True, deadline_s=DEADLINE_S
        )
    except AlreadyPresent:
        return None
    return LedgerLock(ledger, made.version, session)


@defect("repairs", 60, rules, "lacking", seed=4)
def damaged_copies_stay(looked: m.CheckReply) -> list[int]:
    """A repair copies what a store lacks, and leaves what the store has damaged."""
    return list(looked.absent)


@defect("repairs", 60, LedgerStore, "ledgers", seed=3, faults=FULL_DISKS)
def deletion_on_a_full_disk_forgotten(self: LedgerStore) -> list[int]:
    """A store lists a ledger no more, although the disk was too full for the deletion."""
    return [ledger for ledger, head in self.heads.items() if not head.deleted]


@defect("ages", 20)
def ages_by_wall_clocks() -> list[Swap]:
    """Old records are deleted by the wall clocks of writers and readers."""

    async def wall_s(self: Any) -> int:
        wall_us: int = self._session._master.world.clock.wall_us()
        return wall_us // US

    return [(CountedTime, "least_s", wall_s), (CountedTime, "most_s", wall_s)]
