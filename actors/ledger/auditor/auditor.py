"""The auditor: one of several is elected, by a lock. It notices lost stores, and marks the ledgers that they had.

elected    it changes nothing unless it is sure of its lock; the next one continues with its times and its delay
patient    one lost store may return within the delay (losses.py), which is counted while an auditor watches, by its monotonic
           clock: neither a wall clock nor a change of the auditor shortens it
complete   it knows every store that ever registered, so that it notices a loss from before its start
off        while repairs are disabled it marks nothing
counting   it counts the time by which logs delete old records (shared/counting.py)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from ebla.actors.asking.master_client import MasterClient
from ebla.actors.coordination.sessions.locks import Lock
from ebla.actors.figures import Figure
from ebla.actors.ledger.auditor import auditing
from ebla.actors.ledger.auditor.held import Held
from ebla.actors.ledger.auditor.losses import Losses
from ebla.actors.ledger.auditor.measures import Counted, measure_auditor
from ebla.actors.ledger.auditor.options import AuditorOptions
from ebla.actors.ledger.handles.checking import Checker
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.counting import CountedTime
from ebla.actors.ledger.shared.kept import KeptRegistry
from ebla.actors.ledger.shared.records import DEADLINE_S, LastingSession
from ebla.actors.ledger.shared.repairs import Audits, Repairs, Tally
from ebla.actors.ledger.shared.watching import Watched
from ebla.actors.world import Role, Task, World
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

RETRY_S = 1.0
RECORD_S = 2.0  # between two records of how long stores have been lost, while a delay runs
FORGET_S = 60.0  # between two looks for stores that can be forgotten; each look reads all ledgers
SESSION_S = 6.0  # another auditor is elected so long after one that died
US = 1_000_000


class Auditor(Role):
    def __init__(
        self,
        world: World,
        options: AuditorOptions | None = None,
        calls: LedgerOptions | None = None,
    ) -> None:
        self.world = world
        self.options = options or AuditorOptions()
        self.options.validate()
        self.counted = Counted()
        self._calls = calls or LedgerOptions()
        self._sessions = LastingSession(MasterClient(world, self.options.masters), world.address, SESSION_S)
        self._running = False

    async def start(self) -> None:
        self._running = True
        self.world.spawn(self._run(), "be elected")

    async def stop(self) -> None:
        """The lock is left to expire with the session: the masters may stop at the same time."""
        self._running = False

    def measure(self) -> Iterable[Figure]:
        return measure_auditor(self.counted)

    async def _run(self) -> None:
        while self._running:
            try:
                session = await self._sessions.open()
                lock = Lock(session, paths.AUDITOR)
                await lock.acquire()
            except EblaError as error:
                log.info("%s is not elected now: %s", self.world.address, error)
                await self.world.clock.sleep(RETRY_S)
                continue
            log.info("%s is the elected auditor", self.world.address)
            self.counted.elected = True
            term = Term(self.world, self.options, self._calls, self.counted, Held(session, lock))
            try:
                await term.run()
            finally:
                self.counted.elected = False
                term.end()
            log.info("%s is the elected auditor no more", self.world.address)


class Term:
    """One auditor's time with the lock."""

    def __init__(
        self,
        world: World,
        options: AuditorOptions,
        calls: LedgerOptions,
        counted: Counted,
        held: Held,
    ) -> None:
        self._world = world
        self._options = options
        self._counted = counted
        self._held = held
        self._registry = KeptRegistry(world, held)
        self._repairs = Repairs(held)
        self._checker = Checker(world, self._registry, Stores(world, self._registry), calls)
        self._news = asyncio.Event()
        self._watched: list[Watched] = []
        self._tasks: list[Task] = []
        self._losses: Losses
        self._audits: Audits
        self._delay_version = self._trigger = 0
        self._recorded_at = 0.0
        self._forget_at = 0.0

    async def run(self) -> None:
        """Returns when the session has ended."""
        while not self._held.session.expired:
            try:
                await self._begin()
                await self._watch()
            except EblaError as error:
                log.info("%s audits nothing now: %s", self._world.address, error)
                await self._world.clock.sleep(RETRY_S)

    def end(self) -> None:
        for watched in self._watched:
            watched.stop()
        for task in self._tasks:
            task.cancel()

    async def _begin(self) -> None:
        """Continue where the auditor before ended."""
        if self._watched:
            return
        self._audits = await self._repairs.audits.get(paths.AUDITS) or Audits()
        now = self._world.now()
        since = {store: now - age for store, age in self._audits.ages.items()}
        self._losses = Losses(self._options.delay_s, now + self._options.settle_s, since)
        self._trigger = self._audits.trigger
        delay = await self._repairs.delays.find(paths.DELAY)
        if delay is not None:
            self._delay_version = delay[1]
            self._losses.delay_s = delay[0].seconds
        for path, children in (
            (paths.KNOWN, True),
            (paths.UP, True),
            (paths.LEAVING, False),
            (paths.DISABLE, False),
            (paths.DELAY, False),
            (paths.TRIGGER, False),
        ):
            self._watched.append(Watched(self._world, self._held.nodes, path, children, self._news.set))
        self._tasks = [
            self._world.spawn(self._check_all(), "check all ledgers"),
            self._world.spawn(self._count(), "count time"),
        ]

    # -- audits ----------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while not self._held.session.expired:
            self._news.clear()
            await self._look()
            if self._losses.is_due(self._world.now()):
                await self._audit()
                continue
            await self._forget_replaced()
            at = self._losses.due_at(self._world.now())
            pending = self._losses.pending(self._world.now())
            wait_s = RECORD_S if pending else self._options.look_s
            if at is not None:
                wait_s = min(wait_s, max(0.01, at - self._world.now()))
            try:
                async with self._world.clock.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        """Read what is watched, and tell it to the decisions."""
        known = [store.uuid for store in await self._registry.known()]
        running = await self._registry.running()
        leaving = await self._registry.leaving()
        enabled = await self._repairs.enabled()
        delay = await self._repairs.delays.find(paths.DELAY)
        trigger = await self._held.nodes.get(paths.TRIGGER, deadline_s=DEADLINE_S)
        now = self._world.now()
        losses = self._losses
        losses.on_switch(enabled)
        losses.on_leaving(now, leaving)
        losses.on_stores(now, known, running)
        seconds, version = (self._options.delay_s, 0) if delay is None else (delay[0].seconds, delay[1])
        losses.on_delay(now, seconds, again=version > self._delay_version)
        self._delay_version = version
        if trigger is not None and trigger.version != self._trigger:
            losses.on_trigger()
            self._trigger = trigger.version
        self._counted.lost, self._counted.cancelled = len(losses.lost), losses.cancelled
        if list(losses.lost) != list(self._audits.lost) or (
            losses.pending(now) and now - self._recorded_at >= RECORD_S
        ):
            self._recorded_at = now
            now_us = self._world.clock.wall_us()
            since = {store: self._audits.lost.get(store, now_us) for store in losses.lost}
            await self._record(lost=since, ages={store: now - at for store, at in losses.lost.items()})

    async def _audit(self) -> None:
        lost, trigger = self._losses.to_audit(self._world.now()), self._trigger
        await self._held.open()  # or NotElected
        await self._world.faults.here("ledger.audit.before_marks")
        named = await auditing.audit(self._registry, lost, self._goes_on, self._counted)
        if named is None:
            return
        await self._world.faults.here("ledger.audit.after_marks")
        self._counted.audits += 1
        await self._record(audit_us=self._world.clock.wall_us(), trigger=trigger)
        self._losses.on_audited(self._world.now(), lost, named)
        if self._trigger != trigger:
            self._losses.on_trigger()

    async def _forget_replaced(self) -> None:
        now = self._world.now()
        gone = self._losses.long_audited(now)
        if gone and now >= self._forget_at and await self._goes_on():
            self._forget_at = now + FORGET_S
            if await auditing.forget_replaced(self._registry, gone):
                self._news.set()

    async def _goes_on(self) -> bool:
        return await self._repairs.enabled()

    async def _record(self, **changes: object) -> None:
        def merge(found: Audits | None) -> Audits:
            return msgspec.structs.replace(found or Audits(), **changes)

        self._audits = await self._repairs.audits.put(paths.AUDITS, merge)

    # -- time ------------------------------------------------------------------------------------------------

    async def _count(self) -> None:
        counted = CountedTime(self._held)
        while True:
            try:
                await counted.advance(self._world, self._options.count_s)
            except EblaError as error:
                log.info("%s has counted no time now: %s", self._world.address, error)
                await self._world.clock.sleep(RETRY_S)

    # -- checks of all ledgers -------------------------------------------------------------------------------

    async def _check_all(self) -> None:
        """From time to time. A check never goes ahead of an audit that waits for its time."""
        skipped = False
        while True:
            due_us = self._audits.check_us + int(self._options.check_s * US)
            wait_s = min(self._options.check_s, max(0, due_us - self._world.clock.wall_us()) / US)
            await self._world.clock.sleep(max(wait_s, RETRY_S))
            if self._losses.pending(self._world.now()):
                self._counted.skipped += not skipped
                skipped = True
                continue
            skipped = False
            try:
                tally = await self._check_each() if await self._goes_on() else None
                if tally is not None:
                    self._counted.checks += 1
                    await self._record(check_us=self._world.clock.wall_us(), copies=tally)
            except EblaError as error:
                log.info("%s checks no ledgers now: %s", self._world.address, error)

    async def _check_each(self) -> Tally | None:
        """Returns None if the check ended early."""
        tally = Tally()
        for ledger in await self._registry.list():
            if self._losses.pending(self._world.now()) or not await self._goes_on():
                return None
            marked, tally = await auditing.check(
                self._registry,
                self._checker,
                ledger,
                self._losses.audited,
                self._options.verify_percentage,
                tally,
            )
            self._counted.marked += marked
            self._counted.checked += 1
            await self._world.clock.sleep(self._options.check_pause_s)
        return tally
