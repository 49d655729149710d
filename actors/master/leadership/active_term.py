"""One active term, from the recovery of the journal until another master may begin.

An ActiveMaster (actors/master/server.py) over the journal serves. The term ends with the lease, with the writer,
or by a hand-over; the master's tasks then end, and its state is not used again. The master answers clients
and calls tablet servers only while the lease holds: a master that was paused or cut off, and superseded
meanwhile, sends nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from ebla.actors import messages as m
from ebla.actors.errors import NotDelivered, Unavailable
from ebla.actors.journal.errors import JournalBroken, NodesMoved, QuorumFailed, StaleEpoch
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.journal.writer.recovery import End
from ebla.actors.master.catalog.checkpoint import chunks_of
from ebla.actors.master.catalog.directory import Directory
from ebla.actors.master.catalog.edits import CatalogWritten, Edit
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.catalog.records import encode_image
from ebla.actors.master.catalog.scribe import Scribe
from ebla.actors.master.leadership.standby import Standby
from ebla.actors.master.messages import JournalWriterStatus
from ebla.actors.master.options import GroupOptions
from ebla.actors.master.server import ActiveMaster
from ebla.actors.world import Network, Task, World
from ebla.storage.errors import DiskFull, EblaError

log = logging.getLogger(__name__)

Reply = TypeVar("Reply")
LOOK_S = 0.02  # between two checks whether the changes under way have ended


class ActiveTerm:
    def __init__(
        self,
        world: World,
        options: GroupOptions,
        directory: Directory,
        holder: Holder,
        edits: QuorumEditLog,
        standby: Standby,
    ) -> None:
        self.holder = holder
        self.ended: EblaError | None = None
        self._world = world
        self._options = options
        self._edits = edits
        self._tasks: dict[Task, None] = {}
        self._open = True
        self._over = asyncio.Event()
        self._purged = 0
        self._grows = False  # other nodes fetch the journal: nothing is purged
        own = replace(
            world, network=_WhileHeld(world.network, holder), spawn=self._spawn, fail=self._failed_with
        )
        catalog = standby.catalog
        checkpoints = directory.checkpoints
        scribe = Scribe(own, edits, checkpoints, catalog, options.master, standby.checkpointed)
        self.master = ActiveMaster(
            own,
            options.master,
            catalog,
            directory,
            edits,
            scribe,
            self.serves,
            options.master.unresponsive_s if catalog.lineage.begun else 0.0,
            self._is_only_copy,
        )

    async def begin(self) -> None:
        """Begin to serve. If the journal fails, the term has ended when this returns."""
        lineage, options = self.master.catalog.lineage, self._options.master
        is_new, accepted = not lineage.begun, lineage.unknown(options.accepts)
        if accepted:
            # Leases of the lost catalog may be in force, and its orders on the way. Neither outlasts this (pacifica/doubts.py).
            # A master that fails meanwhile has accepted nothing, and the next one waits again.
            await self._world.clock.sleep(options.detector.grace_s)
        try:
            await self.master.scribe.begin(self.master.instance.start, accepted)
        except (QuorumFailed, Unavailable, NodesMoved, DiskFull) as error:
            self.end(error)
            return
        # Without the pause after a restart, the first servers with heartbeats would get all waiting tablets.
        settle_s = 0.0 if is_new else options.settle_s
        self._spawn(self._end_with_lease(), "end with the lease")
        self._spawn(self._end_with_writer(), "end with the writer")
        self.master.begin(settle_s)
        self._spawn(self._purge(), "purge")

    def serves(self) -> bool:
        """Whether the catalog is up to date at this instant, so that requests may be answered from it."""
        return self._open and self.ended is None and self.holder.holds()

    def writer_status(self) -> JournalWriterStatus:
        writer = self._edits.writer
        journal, epoch = self._options.journal.journal, self.holder.epoch
        return JournalWriterStatus(journal, epoch, writer.committed, writer.segment, tuple(writer.statuses()))

    async def over(self) -> EblaError:
        await self._over.wait()
        assert self.ended is not None
        return self.ended

    def end(self, why: EblaError) -> None:
        """End the term at once: stop its tasks, write no more edits, answer no more requests."""
        if self.ended is not None:
            return
        self.ended = why
        self.master.coordination.close()
        self.master.appointer.close()
        self.master.scribe.close()
        self._edits.writer.close()
        self.holder.close()
        for task in self._tasks:
            task.cancel()
        self._over.set()

    async def retire(self, successor: str | None = None) -> None:
        """Answer no more requests, finish the change under way, and end the term.

        Then release the lease, so that another master may begin: the successor first.
        """
        await self._finish_changes()
        await self._world.faults.here("master.hand_over.before_release")
        self.end(Unavailable(f"{self._world.address} handed over"))
        await self.holder.release(successor)
        await self._world.faults.here("master.hand_over.after_release")

    async def _finish_changes(self) -> None:
        self._open = False
        self.master.scribe.retire()
        clock = self._world.clock
        until = clock.monotonic() + self._options.hand_over_s
        while not self.master.scribe.idle and self.ended is None and clock.monotonic() < until:
            await clock.sleep(LOOK_S)

    # -- from one journal node to several --------------------------------------------------------------------

    @property
    def _is_only_copy(self) -> bool:
        return self._options.journal.nodes == (self._world.address,)

    async def write_catalog(self) -> int:
        """Write a copy of the catalog into the journal; return the last edit, which is finalized.

        The copy is for masters without a checkpoint; they need no edits before it.
        """
        self._grows = True
        catalog = self.master.catalog

        def decide() -> Sequence[Edit]:
            chunks = chunks_of(encode_image(catalog.image()))
            return [CatalogWritten(chunk, number, len(chunks)) for number, chunk in enumerate(chunks)]

        await self.master.scribe.change("grow", decide, lambda: None, apart=True)
        return await self._edits.writer.roll() - 1

    def give_up_growing(self) -> None:
        self._grows = False

    async def finish(self) -> End:
        """Finish all changes; return the last edit of this term, which is finalized.

        From now on no request is answered, and no other master begins yet.
        """
        await self._finish_changes()
        if not self.master.scribe.idle:
            raise Unavailable(
                f"{self._world.address} could not finish its changes in time; nothing was changed"
            )
        return await self._edits.writer.finish()

    # -- how it ends -----------------------------------------------------------------------------------------

    async def _end_with_lease(self) -> None:
        self.end(await self.holder.ended())

    async def _end_with_writer(self) -> None:
        why = await self._edits.writer.ended()
        if isinstance(why, JournalBroken):
            self._world.fail(why)
        self.end(why)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> Task:
        for task in [task for task in self._tasks if task.done()]:
            del self._tasks[task]
        task = self._world.spawn(_Guarded(work, self._takes), name)
        self._tasks[task] = None
        return task

    def _takes(self, error: EblaError) -> bool:
        """Whether an error is one of the edit log, which ends the term.

        A broken journal ends the role. Other errors are defects; they also end the role.
        """
        for broken in (error, self._edits.writer.failed):
            if isinstance(broken, JournalBroken):
                self._world.fail(broken)
        if self._is_of_the_log(error):
            self.end(error)
            return True
        return False

    def _failed_with(self, error: BaseException) -> None:
        if not (isinstance(error, EblaError) and self._takes(error)):
            self._world.fail(error)

    def _is_of_the_log(self, error: EblaError) -> bool:
        return (
            isinstance(error, QuorumFailed | StaleEpoch | NodesMoved | JournalBroken)
            or self._edits.writer.failed is not None
        )

    # -- purging ---------------------------------------------------------------------------------------------

    async def _purge(self) -> None:
        """Purge edits that two masters have in a checkpoint: the loss of one directory loses no edit.

        If this directory has the whole journal, it is the only copy anyway, and its checkpoint is enough.
        """
        while True:
            await self._world.clock.sleep(self._options.purge_s)
            upto = self.master.scribe.checkpointed
            if not self._is_only_copy:
                upto = min(upto, await self._checkpointed_elsewhere())
            if upto <= self._purged or self._grows:
                continue
            await self._world.faults.here("master.checkpoint.before_purge")
            try:
                await self._edits.purge(upto)
            except (QuorumFailed, DiskFull) as error:
                log.info("%s could not purge its edits up to %d: %s", self._world.address, upto, error)
            else:
                self._purged = upto
            await self._world.faults.here("master.checkpoint.after_purge")

    async def _checkpointed_elsewhere(self) -> int:
        others = [each for each in self._options.masters if each != self._world.address]
        known = await statuses_of(self._world, others, self._options.rpc_timeout_s)
        return max((status.checkpointed for status in known), default=0)


async def statuses_of(world: World, masters: Sequence[str], timeout_s: float) -> list[m.MasterStatus]:
    """Return the statuses of the masters that answer."""
    found: list[m.MasterStatus] = []
    for master in masters:
        try:
            found.append(await world.network.call(master, "status", m.Empty(), m.MasterStatus, timeout_s))
        except EblaError as error:
            log.info("%s does not report its status: %s", master, error)
    return found


class _Guarded(Coroutine[Any, Any, None]):
    """A coroutine whose errors go to `takes` first: an error that it takes ends the coroutine normally.

    The class has no frame of its own, so a task that never began is closed like any other.
    """

    def __init__(self, work: Coroutine[Any, Any, None], takes: Callable[[EblaError], bool]) -> None:
        self._work = work
        self._takes = takes

    def send(self, value: Any) -> Any:
        return self._step(lambda: self._work.send(value))

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        thrown = kind if value is None else value
        return self._step(lambda: self._work.throw(thrown))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()

    def _step(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except EblaError as error:
            if not self._takes(error):
                raise
            raise StopIteration from error


class _WhileHeld:
    """The network of an active term: sends nothing when another master may have begun."""

    def __init__(self, network: Network, holder: Holder) -> None:
        self._network = network
        self._holder = holder

    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Reply:
        if not self._holder.holds():
            raise NotDelivered(
                f"{method} was not sent: the lease of the active master has run out", address=address
            )
        return await self._network.call(address, method, message, reply, timeout_s)
