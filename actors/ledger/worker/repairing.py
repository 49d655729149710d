"""Repairs one ledger: finds what is damaged now, repairs it, and looks again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from ebla.actors.coordination.errors import VersionMismatch
from ebla.actors.errors import NotFound, Unavailable
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EntryLost
from ebla.actors.ledger.handles.checking import Checker, Damage
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.kept import KeptRegistry, Mark
from ebla.actors.ledger.worker import rules
from ebla.actors.ledger.worker.copying import Copier, Pace, Progress
from ebla.actors.ledger.worker.locking import LedgerLock
from ebla.actors.ledger.worker.measures import Counted
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.ledger.worker.rules import Halted, Reason
from ebla.actors.world import World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

ROUNDS_MAX = 4


class Outcome(msgspec.Struct, frozen=True):
    """`reasons`: why the ledger is not whole; none: it is, or it is gone. `wait_s`: when to try again, if known."""

    reasons: tuple[Reason, ...] = ()
    wait_s: float | None = None


class NoStore(Exception):
    """No other store can take the place of one."""


class Repairer:
    """`go_on` raises Halted when the repair must end."""

    def __init__(
        self,
        world: World,
        registry: KeptRegistry,
        options: WorkerOptions,
        calls: LedgerOptions,
        counted: Counted,
        go_on: Callable[[LedgerLock], None],
    ) -> None:
        self._world = world
        self._registry = registry
        self._options = options
        self._calls = calls
        self._counted = counted
        self._go_on = go_on
        self._pace = Pace(world, options.bytes_per_s)
        self._stores = Stores(world, registry)
        self._checker = Checker(world, registry, self._stores, calls)

    async def repair(
        self, ledger: int, mark: Mark, marked_at: float, lock: LedgerLock, progress: Progress
    ) -> Outcome:
        """`marked_at`: when this worker saw the mark first, from which the grace period runs. Raises Halted."""
        reasons: tuple[Reason, ...] = ()
        for _ in range(ROUNDS_MAX):
            self._go_on(lock)
            try:
                found = await self._registry.read(ledger)
            except NotFound:
                return Outcome()
            running, leaving = await self._registry.stores_and_leaving()
            findings = await self._checker.check(
                found,
                [each.uuid for each in running],
                self._options.verify_percentage,
                mark.stores,
                leaving,
            )
            if findings.whole and found.state != meta.IN_RECOVERY:
                return Outcome()
            grace_s = marked_at + self._options.grace_s - self._world.now()
            plan = rules.plan(found, mark, findings, running, grace_s)
            failed = await self._carry_out(found, plan, running, lock, progress)
            reasons = (*failed, *plan.reasons)
            if reasons:
                return Outcome(reasons, None if failed else plan.wait_s)
        return Outcome((Reason("other damage was found after each repair"),))

    async def _carry_out(
        self,
        found: Metadata,
        plan: rules.Plan,
        running: Sequence[StoreInfo],
        lock: LedgerLock,
        progress: Progress,
    ) -> list[Reason]:
        """Do the steps of the plan, each also if another one failed. Returns the reasons of those that failed."""
        copier = Copier(
            self._stores,
            self._options,
            self._calls,
            self._counted,
            self._pace,
            progress,
            lambda: self._go_on(lock),
        )
        failed: list[Reason] = []
        for damage in (*plan.fills, *plan.moves):
            try:
                if damage in plan.fills:
                    entries = _entries(found, damage)
                    await copier.fill(found, damage.store, entries, partly=True)
                else:
                    found = await self._move(found, damage, running, copier, lock)
            except NotFound:
                return []  # the ledger was deleted; the next look tells
            except NoStore:
                failed.append(rules.no_store(damage.store))
            except EblaError as error:
                failed.append(await self._why(found, damage, running, error))
        if plan.recovers:
            self._go_on(lock)
            log.info("ledger %d is recovered: its last fragment has a lost store", found.ledger)
            try:
                await self._world.faults.here("ledger.repair.before_recover")
                await recover(
                    self._world, self._registry, self._stores, found.ledger, self._calls, repair=True
                )
                await self._world.faults.here("ledger.repair.after_recover")
            except NotFound:
                return []
            except EblaError as error:
                up = [each.uuid for each in running]
                failed.append(rules.endless(found, error, up) or Reason(str(error)))
        return failed

    async def _why(
        self, found: Metadata, damage: Damage, running: Sequence[StoreInfo], error: EblaError
    ) -> Reason:
        """Why the copy failed. Every entry is looked for, which costs little beside the pauses between tries."""
        lost = None
        if isinstance(error, EntryLost | Unavailable):
            up = [each.uuid for each in running]
            lost = rules.lost(await self._checker.unreadable(found, damage.fragment, up))
        return lost or Reason(str(error))

    async def _move(
        self,
        found: Metadata,
        damage: Damage,
        running: Sequence[StoreInfo],
        copier: Copier,
        lock: LedgerLock,
    ) -> Metadata:
        """Copy the entries that the lost store has of the fragment to another store, then name that one in the segment."""
        first, old = damage.fragment.first, damage.store
        segment = next((each for each in found.segments if each.first == first), None)
        if segment is None or old not in segment.stores:
            return found
        new = rules.target(running, segment.stores, self._options.store, self._world.random)
        if new is None:
            raise NoStore
        await copier.fill(found, new.uuid, _entries(found, damage))
        return await self._publish(found, first, old, new.uuid, lock)

    async def _publish(self, found: Metadata, first: int, old: str, new: str, lock: LedgerLock) -> Metadata:
        self._go_on(lock)
        await self._world.faults.here("ledger.repair.before_move")
        try:
            changed = await self._registry.change(
                found.ledger, lambda now: meta.with_moved(now, first, old, new) or now, lock.check
            )
        except VersionMismatch as error:
            raise Halted(f"the lock of ledger {found.ledger} is lost") from error
        await self._world.faults.here("ledger.repair.after_move")
        self._counted.moved += 1
        log.info("ledger %d: store %s has taken the place of store %s", found.ledger, new, old)
        return changed


def _entries(found: Metadata, damage: Damage) -> Sequence[int]:
    return meta.owed(found, damage.position, damage.fragment.first, damage.fragment.last)
