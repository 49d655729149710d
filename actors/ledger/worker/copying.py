"""Copies entries of a ledger to one store: what it lacks or has damaged, in batches, each synced there before the next. All copies
of a worker together keep to one rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ebla.actors.ledger import messages as m
from ebla.actors.ledger.errors import EntryLost
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.worker.measures import Counted
from ebla.actors.ledger.worker.options import WorkerOptions
from ebla.actors.world import CallerWorld


class Pace:
    """Bounds the bytes per second of several tasks together."""

    def __init__(self, world: CallerWorld, bytes_per_s: int) -> None:
        self._world = world
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0

    async def spend(self, size: int) -> None:
        """Wait as long as these bytes take."""
        if self._bytes_per_s:
            now = self._world.now()
            self._free_at = max(now, self._free_at) + size / self._bytes_per_s
            await self._world.clock.sleep(self._free_at - now)


@dataclass
class Progress:
    """Of one repair; see messages.Task."""

    since: float
    looked: int = 0
    entries: int = 0
    copied_bytes: int = 0

    def task(self, ledger: int, now: float) -> m.Task:
        return m.Task(ledger, self.looked, self.entries, self.copied_bytes, now - self.since)


class Copier:
    """`go_on` raises Halted when the copy must end; it is called between two batches."""

    def __init__(
        self,
        reader: Reader,
        stores: Stores,
        options: WorkerOptions,
        calls: LedgerOptions,
        counted: Counted,
        pace: Pace,
        progress: Progress,
        go_on: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._stores = stores
        self._options = options
        self._calls = calls
        self._counted = counted
        self._pace = pace
        self._progress = progress
        self._go_on = go_on

    async def fill(self, found: Metadata, store: str, entries: Sequence[int], partly: bool = False) -> None:
        """Return when the store has all of these entries, which ascend, synced. Raises EntryLost, Unavailable, what the store
        raises, and Halted. `partly`: entries without a sound copy are passed over first, and the error is raised at the end."""
        at, lost = 0, None
        self._progress.entries += len(entries)
        while at < len(entries):
            self._go_on()
            wanted = tuple(entries[at : at + self._options.batch_entries])
            request = m.CheckRequest(store, found.ledger, found.token, wanted)
            has = await self._stores.call(
                store, "check_entries", request, m.CheckReply, self._calls.timeout_s
            )
            lacking = sorted((*has.absent, *has.damaged))
            while lacking:
                self._go_on()
                try:
                    lacking = lacking[await self._copy(found, store, lacking) :]
                except EntryLost as error:
                    if not partly:
                        raise
                    lost = lost or error
                    lacking = lacking[1:]
            at += has.checked
            self._progress.looked += has.checked
        if lost is not None:
            raise lost

    async def _copy(self, found: Metadata, store: str, entries: Sequence[int]) -> int:
        """Copy the first of these entries; returns how many."""
        read = await self._reader.read_some(found, entries, self._options.batch_bytes)
        add = m.AddRequest(store, found.ledger, found.token, tuple(read), recovery=True)
        await self._stores.call(store, "add_entries", add, m.Done, self._calls.timeout_s)
        size = sum(len(entry.data) for entry in read)
        self._counted.copied += len(read)
        self._counted.copied_bytes += size
        self._progress.copied_bytes += size
        await self._pace.spend(size)
        return len(read)
