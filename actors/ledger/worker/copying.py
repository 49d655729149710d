"""Has entries of a ledger copied to one store: what it lacks or has damaged, in batches, a few of them at the same time. The store
gets the bytes from the others itself, a megabyte at a time, and answers when they are synced: with a call for each megabyte, repairs
took a third longer. All copies of a worker together keep to one rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebla.actors.ledger import messages as m
from ebla.actors.ledger.errors import EntryLost
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.worker.measures import Counted
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.world import CallerWorld

LANES = 2  # batches of one repair that are under way
FIRST_PART = 20  # entries of a batch, until their size is known
SOURCES = 3  # that a store can ask, one after the other, before a copy has taken too long


class Pace:
    """Bounds the bytes per second of several tasks together. They wait before they copy: after its last copy a repair goes on at once,
    so that the new store is likely to run yet when it is named."""

    def __init__(self, world: CallerWorld, bytes_per_s: int) -> None:
        self._world = world
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def ready(self) -> None:
        """Wait as long as the bytes before take."""
        while self._free_at > self._world.now():
            await self._world.clock.sleep(self._free_at - self._world.now())

    def spend(self, size: int) -> None:
        if self._bytes_per_s:
            self._free_at = max(self._world.now(), self._free_at) + size / self._bytes_per_s


@dataclass
class Progress:
    """Of one repair; see messages.Task."""

    since: float
    looked: int = 0
    entries: int = 0
    copied_bytes: int = 0

    def task(self, ledger: int, now: float) -> m.Task:
        return m.Task(ledger, self.looked, self.entries, self.copied_bytes, now - self.since)


@dataclass
class _Copy:
    """Of entries of one ledger to one store, in parts of `part` entries. `lost`: the first error about an entry that was passed over."""

    found: Metadata
    store: str
    entries: Sequence[int]
    partly: bool
    part: int
    taken: int = 0
    failed: bool = False
    lost: EntryLost | None = None

    def take(self) -> Sequence[int]:
        first, self.taken = self.taken, self.taken + self.part
        return () if self.failed else self.entries[first : self.taken]

    def give_up(self) -> None:
        """Let every lane end before its next call, because one has failed."""
        self.failed = True


class Copier:
    """`go_on` raises Halted when the copy must end; it is called between two batches."""

    def __init__(
        self,
        stores: Stores,
        options: WorkerOptions,
        calls: LedgerOptions,
        counted: Counted,
        pace: Pace,
        progress: Progress,
        go_on: Callable[[], None],
    ) -> None:
        self._stores = stores
        self._options = options
        # With a rate, at most a second's worth at a time.
        self._batch_bytes = min(options.batch_bytes, options.bytes_per_s or options.batch_bytes)
        self._timeout_s = SOURCES * calls.timeout_s
        self._counted = counted
        self._pace = pace
        self._progress = progress
        self._go_on = go_on

    async def fill(self, found: Metadata, store: str, entries: Sequence[int], partly: bool = False) -> None:
        """Return when the store has all of these entries, which ascend, synced. Raises EntryLost, Unavailable, what the store
        raises, and Halted. `partly`: entries without a sound copy are passed over first, and the error is raised at the end."""
        self._progress.entries += len(entries)
        made = _Copy(found, store, entries, partly, min(FIRST_PART, self._options.batch_entries))
        for ended in await asyncio.gather(*[self._lane(made) for _ in range(LANES)], return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended
        if made.lost is not None:
            raise made.lost

    async def _lane(self, made: _Copy) -> None:
        """Copy one part after the other of those that several lanes share: while one part is written, the next is read."""
        while part := made.take():
            try:
                await self._fill_part(made, part)
            except BaseException:
                made.give_up()
                raise

    async def _fill_part(self, made: _Copy, entries: Sequence[int]) -> None:
        at = 0
        while at < len(entries) and not made.failed:
            await self._pace.ready()
            self._go_on()
            wanted = tuple(entries[at:])
            try:
                reply = await self._copy(made.found, made.store, wanted)
            except EntryLost as error:
                if not made.partly or error.entry not in wanted:
                    raise
                made.lost = made.lost or error
                done = wanted.index(error.entry) + 1
            else:
                done = reply.done
                made.part = self._part_after(made.part, reply)
            at += done
            self._progress.looked += done

    def _part_after(self, part: int, reply: m.CopyReply) -> int:
        """How many such entries one call copies; twice as many as before if it had nothing to copy."""
        fitting = 2 * part
        if reply.copied_bytes:
            fitting = self._batch_bytes * reply.copied // reply.copied_bytes
        return max(1, min(fitting, self._options.batch_entries))

    async def _copy(self, found: Metadata, store: str, entries: tuple[int, ...]) -> m.CopyReply:
        """Have the first of these entries copied."""
        request = m.CopyRequest(store, found, entries, self._batch_bytes)
        reply = await self._stores.call(store, "copy_entries", request, m.CopyReply, self._timeout_s)
        self._counted.copied += reply.copied
        self._counted.copied_bytes += reply.copied_bytes
        self._progress.copied_bytes += reply.copied_bytes
        self._pace.spend(reply.copied_bytes)
        return reply
