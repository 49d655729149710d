"""The replication worker: takes marked ledgers under a lock, a few at a time, and repairs them.

    locked       one worker repairs a ledger; a change of its metadata is made only while the lock exists
    looked again a mark is a hint: what is repaired is what a check finds now
    versioned    a mark is deleted at the version that was read: one that came meanwhile stays
    patient      a ledger that is not whole after a repair gets a note with the reason, and a pause that doubles; other ledgers are
                 repaired meanwhile, and news about its stores ends the pause

A repair that two workers make at once wastes work, and changes nothing twice. Only the deletion of moved entries (garbage.py)
relies on the locks: for its sake each change checks that the lock exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from ebla.actors import messages as am
from ebla.actors.asking.master_client import MasterClient
from ebla.actors.coordination.errors import VersionMismatch
from ebla.actors.coordination.messages import Delete
from ebla.actors.errors import NotFound
from ebla.actors.figures import Figure
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.kept import KeptRegistry, Mark
from ebla.actors.ledger.shared.records import DEADLINE_S, LastingSession
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.actors.ledger.shared.watching import Watched
from ebla.actors.ledger.worker import rules
from ebla.actors.ledger.worker.copying import Progress
from ebla.actors.ledger.worker.garbage import Garbage
from ebla.actors.ledger.worker.locking import LedgerLock, take
from ebla.actors.ledger.worker.measures import Counted, measure_worker
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.ledger.worker.repairing import Outcome, Repairer
from ebla.actors.ledger.worker.rules import Halted
from ebla.actors.world import Role, World, rpc
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after a round that failed
PAUSE_PER_LEDGER_S = 0.02  # a look at a ledger that waits costs the master two reads


class Due(NamedTuple):
    """A mark with its version. `noted`: there was a note why an earlier repair failed."""

    mark: Mark
    version: int
    noted: bool


class ReplicationWorker(Role):
    def __init__(
        self,
        world: World,
        options: WorkerOptions | None = None,
        calls: LedgerOptions | None = None,
    ) -> None:
        self.world = world
        self.options = options or WorkerOptions()
        self.options.validate()
        self.counted = Counted()
        self.repairing: dict[int, Progress] = {}
        self._sessions = LastingSession(MasterClient(world, self.options.masters), world.address)
        self._registry = KeptRegistry(world, self._sessions)
        self._repairs = Repairs(self._sessions)
        calls = calls or LedgerOptions()
        self._repairer = Repairer(
            world, self._registry, self.options, calls, self.counted, self._require_lock
        )
        self._garbage = Garbage(
            world, self._sessions, self._registry, calls, self.counted, self._require_running
        )
        self._marked, self._noted = rules.Seen(), rules.Seen()
        self._up: list[str] = []  # stores that run, as of the last round
        self._news = asyncio.Event()
        self._running = False
        self._enabled = True

    async def start(self) -> None:
        self._running = True
        nodes = self._sessions.nodes
        for path, children in ((paths.MARKS, True), (paths.UP, True), (paths.DISABLE, False)):
            Watched(self.world, nodes, path, children, self._news.set)
        self.world.spawn(self._run(), "repair ledgers")
        self.world.spawn(self._watch_switch(), "watch the switch of repairs")
        self.world.spawn(self._collect(), "collect garbage")

    async def stop(self) -> None:
        """Locks are left to expire with the session: the masters may stop at the same time."""
        self._running = False

    @rpc
    async def worker_status(self, request: am.Empty) -> m.WorkerStatus:
        now = self.world.now()
        tasks = [progress.task(ledger, now) for ledger, progress in self.repairing.items()]
        counted = self.counted
        return m.WorkerStatus(
            tuple(tasks),
            self.options.tasks_max,
            self.options.bytes_per_s,
            counted.repaired,
            counted.moved,
            counted.copied,
        )

    def measure(self) -> Iterable[Figure]:
        return measure_worker(self.counted)

    # -- when to work ----------------------------------------------------------------------------------------

    def _require_running(self) -> None:
        if not (self._running and self._enabled):
            raise Halted("repairs are disabled, or the worker stops")

    def _require_lock(self, lock: LedgerLock) -> None:
        self._require_running()
        if not lock.sure:
            raise Halted(f"the lock of ledger {lock.ledger} may be lost")

    async def _run(self) -> None:
        while self._running:
            self._news.clear()
            try:
                self._enabled = await self._repairs.enabled()
                if self._enabled:
                    await self._round()
            except Halted as error:
                log.info("%s: %s", self.world.address, error)
            except EblaError as error:
                log.info("%s repairs nothing now: %s", self.world.address, error)
                await self.world.clock.sleep(RETRY_S)
                continue  # the news that began this round is not followed yet
            await self._pause()

    async def _pause(self) -> None:
        """Until there is news; while ledgers wait, for a time at most, which is longer if many do."""
        if not (self._enabled and self.counted.marked):
            await self._news.wait()
            return
        try:
            limit_s = max(self.options.look_s, self.counted.marked * PAUSE_PER_LEDGER_S)
            async with self.world.clock.timeout(limit_s * self.world.random.uniform(0.5, 1.5)):
                await self._news.wait()
        except TimeoutError:
            return

    # -- work ------------------------------------------------------------------------------------------------

    async def _round(self) -> None:
        """Try each marked ledger that is due, in random order, so that workers do not follow each other."""
        ledgers = await self._repairs.marked()
        self._up = await self._registry.running() if ledgers else []
        self.counted.marked, self.counted.waiting = len(ledgers), 0
        self._marked.keep(ledgers)
        self._noted.keep(ledgers)
        self.world.random.shuffle(ledgers)
        lanes = [self._try_each(ledgers) for _ in range(self.options.tasks_max)]
        for ended in await asyncio.gather(*lanes, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended
        if not self.counted.marked:
            return
        self.counted.marked = len(await self._repairs.marked())
        if not self.counted.marked:
            await self._forget_notes()

    async def _try_each(self, ledgers: list[int]) -> None:
        """Take one ledger after the other from a list that several tasks share."""
        while ledgers:
            self._require_running()
            self.counted.waiting += not await self._try(ledgers.pop())

    async def _try(self, ledger: int) -> bool:
        """Returns False if the ledger waits."""
        if await self._due(ledger) is None:
            return False
        lock = await take(self._sessions, ledger, self.world.address)
        if lock is None:
            return True
        try:
            due = await self._due(ledger)
            if due is None:
                return True  # another worker was faster
            now = self.world.now()
            progress = self.repairing[ledger] = Progress(now)
            marked_at = now - self._marked.seconds(ledger, due.mark.newest_us, now)
            outcome = await self._repairer.repair(ledger, due.mark, marked_at, lock, progress)
            return await self._conclude(ledger, due, outcome, lock)
        finally:
            self.repairing.pop(ledger, None)
            await lock.release()

    async def _due(self, ledger: int) -> Due | None:
        """The mark of a ledger that is marked, and does not wait."""
        found, note = await asyncio.gather(
            self._registry.marks.find(paths.of_mark(ledger)), self._repairs.notes.find(paths.of_note(ledger))
        )
        if found is None:
            return None
        self._marked.seconds(ledger, found[0].newest_us, self.world.now())
        if note is not None:
            seen_s = self._noted.seconds(ledger, note[1], self.world.now())
            if not rules.is_due(note[0], found[1], self._up, seen_s):
                return None
        return Due(*found, note is not None)

    async def _conclude(self, ledger: int, due: Due, outcome: Outcome, lock: LedgerLock) -> bool:
        self._require_lock(lock)
        path = paths.of_note(ledger)
        if not outcome.reasons:
            await self.world.faults.here("ledger.repair.before_unmark")
            if await self._delete_mark(ledger, due):
                self.counted.repaired += 1
            await self.world.faults.here("ledger.repair.after_unmark")
            return True
        self.counted.failed += 1
        before = await self._repairs.notes.get(path)
        running = await self._registry.running()
        note = rules.noted(
            before,
            outcome.reasons,
            due.version,
            running,
            self.world.address,
            self.world.clock.wall_us(),
            outcome.wait_s,
            self.options.backoff_s,
            self.options.backoff_max_s,
        )
        await self._repairs.notes.put(path, lambda _: note)
        log.warning("ledger %d is not whole: %s", ledger, note.reason)
        return False

    async def _delete_mark(self, ledger: int, due: Due) -> bool:
        """Delete the mark and the note, in one change. Returns False if the ledger was marked again meanwhile, or another worker has
        deleted one of them."""
        session = await self._sessions.open()
        operations = [Delete(paths.of_mark(ledger), due.version)]
        if due.noted:
            operations.append(Delete(paths.of_note(ledger)))
        try:
            await session.change(*operations, deadline_s=DEADLINE_S)
        except (VersionMismatch, NotFound):
            return False
        return True

    async def _forget_notes(self) -> None:
        """No ledger is marked: a note that is left is of a worker that lost its lock without knowing."""
        for ledger in await self._repairs.noted():
            await self._repairs.notes.delete(paths.of_note(ledger))

    # -- beside ----------------------------------------------------------------------------------------------

    async def _watch_switch(self) -> None:
        """While a repair runs, `_run` does not look at the switch."""
        while self._running:
            await self.world.clock.sleep(self.options.look_s)
            if self.repairing:
                try:
                    self._enabled = await self._repairs.enabled()
                except EblaError as error:
                    log.info("%s cannot read the switch of repairs: %s", self.world.address, error)

    async def _collect(self) -> None:
        """Delete what this host's store need not keep."""
        while self._running:
            await self.world.clock.sleep(self.options.garbage_s * self.world.random.uniform(0.8, 1.2))
            try:
                running = await self._registry.stores()
                own = [store.uuid for store in running if store.address == self.options.store]
                if own and await self._repairs.enabled():
                    await self._garbage.collect(own[-1])
            except Halted:
                continue
            except EblaError as error:
                log.info("%s collects no garbage now: %s", self.world.address, error)
