"""Repairs one ledger: finds what is damaged now, repairs it, and looks again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from ebla.actors.coordination.errors import VersionMismatch
from ebla.actors.errors import NotFound
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import NotEnoughStores
from ebla.actors.ledger.handles.checking import Checker, Damage
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.registry import StoreInfo
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Metadata, Stripe
from ebla.actors.ledger.shared.kept import KeptRegistry, Mark
from ebla.actors.ledger.worker import rules
from ebla.actors.ledger.worker.copying import Copier
from ebla.actors.ledger.worker.locking import LedgerLock
from ebla.actors.ledger.worker.measures import Counted
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.ledger.worker.rules import Halted
from ebla.actors.world import World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

ROUNDS_MAX = 4


class Outcome(msgspec.Struct, frozen=True):
    """`reasons`: why the ledger is not whole; none: it is, or it is gone. `wait_s`: when to try again, if known."""

    reasons: tuple[str, ...] = ()
    wait_s: float | None = None


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
        self._stores = Stores(world, registry)
        self._checker = Checker(world, registry, self._stores, calls)

    async def repair(self, ledger: int, mark: Mark, marked_at: float, lock: LedgerLock) -> Outcome:
        """`marked_at`: when this worker saw the mark first, from which the grace period runs. Raises Halted."""
        reasons: tuple[str, ...] = ()
        for _ in range(ROUNDS_MAX):
            self._go_on(lock)
            try:
                found = await self._registry.read(ledger)
            except NotFound:
                return Outcome()
            running = await self._registry.stores()
            findings = await self._checker.check(
                found, [each.uuid for each in running], self._options.verify_percentage, mark.stores
            )
            if findings.whole:
                return Outcome()
            grace_s = marked_at + self._options.grace_s - self._world.now()
            plan = rules.plan(found, mark, findings, grace_s)
            failed = await self._carry_out(found, plan, running, lock)
            reasons = (*failed, *plan.reasons)
            if reasons:
                return Outcome(reasons, None if failed else plan.wait_s)
        return Outcome(("other damage was found after each repair",))

    async def _carry_out(
        self, found: Metadata, plan: rules.Plan, running: Sequence[StoreInfo], lock: LedgerLock
    ) -> list[str]:
        """Do the steps of the plan, each also if another one failed. Returns the reasons of those that failed."""
        reader = Reader(self._world, self._registry, self._stores, self._calls)
        copier = Copier(
            self._world,
            reader,
            self._stores,
            self._options,
            self._calls,
            self._counted,
            lambda: self._go_on(lock),
        )
        failed: list[str] = []
        for damage in (*plan.fills, *plan.moves):
            try:
                if damage in plan.fills:
                    entries = _entries(found, damage)
                    await copier.fill(found, damage.store, entries, partly=True)
                else:
                    found = await self._move(found, damage, running, copier, lock)
            except NotFound:
                return []  # the ledger was deleted; the next look tells
            except EblaError as error:
                failed.append(str(error))
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
                failed.append(str(error))
        return list(dict.fromkeys(failed))

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
            raise NotEnoughStores(
                f"no store that could replace store {old} runs and takes entries: start another store"
            )
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


def _entries(found: Metadata, damage: Damage) -> Stripe:
    return Stripe(found, damage.position, damage.fragment.first, damage.fragment.last)
