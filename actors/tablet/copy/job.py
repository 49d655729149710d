"""One copy under way: it fetches chunks a few ahead, checks them, and writes them in order.

A lost or damaged answer is fetched again; an ended session, or a silent source, ends the copy. A
copy that waits for its own disk cannot be ended; it is reported as stalled, and the tablet is
copied elsewhere. The data gets its name once every row is verified and all is synced, so data that
was damaged at the source is never served. The copy counts only when the superblock says ready
(copies.py).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.copy.sources import DATA, LOG, WINDOW
from ebla.actors.tablet.lifecycle import bootstrap
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle, Parts
from ebla.actors.tablet.lifecycle.tombstones import Tombstone
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.world import World
from ebla.storage.environment import Environment, Put, Receiver
from ebla.storage.errors import Corruption, Damaged, DataDiskFailed, EblaError, InvalidArgument
from ebla.storage.logs import private_log
from ebla.storage.logs.entries import Position
from ebla.storage.rows import checksum
from ebla.storage.tablets import positions, tablet_store, transfer
from ebla.storage.tablets.results import RESULTS

FETCH_TIMEOUT_S = 10.0
ATTEMPTS_MAX = 6
RETRY_S = 0.1
NUMBER_MAX = 1 << 62
DATABASES = [tablet_store.ROWS, RESULTS, positions.META]
# The disk counts as hung after this many times copy_idle_s without a step; files are synced often,
# so no step takes as long.
STALLED_AFTER = 5
STALLED = "stalled"

# The states of a copy. Operators see the first four; of a copy that has ended, the last of them
# that it reached.
METADATA, FINISHING = "metadata", "finishing"
COMMITTING = "committing"  # too late to cancel it
READY, STOPPED = "ready", "stopped"
FETCHING = (METADATA, DATA, LOG)
SHOWN = (*FETCHING, FINISHING)

TRANSITIONS = {
    METADATA: (DATA, STOPPED),
    DATA: (LOG, STOPPED),
    LOG: (FINISHING, STOPPED),
    FINISHING: (COMMITTING, STOPPED),
    COMMITTING: (READY, STOPPED),
    READY: (),
    STOPPED: (),
}
RATE_S = 5.0  # the time over which the rate is measured


class CopyEnded(EblaError):
    """The copy did not complete; a tombstone is left."""


class CopyDamaged(CopyEnded):
    """The data arrived completely and as it was sent, and failed its checks."""


@dataclass(eq=False)
class Job:
    """One copy. `parts`: the parts of the replica, once the copy is complete."""

    world: World
    options: TabletServerOptions
    lifecycle: Lifecycle
    tombstone: Tombstone
    request: m.StartCopyRequest
    begun: m.CopyBegun
    attempt: int

    def __post_init__(self) -> None:
        self.tablet = self.request.tablet
        self.source = self.request.source.address
        self.began_at = self.world.now()
        self.state = self.phase = METADATA
        self.copied = 0
        self.parts: Parts | None = None
        self.done = asyncio.Event()
        self._receiver: Receiver | None = None
        self._open: dict[str, Environment] = {}
        self._arrived: dict[int, m.Chunk] = {}
        self._next = 0  # the next chunk to fetch
        self._wanted = 0  # the next chunk to write
        self._last = NUMBER_MAX  # the number of the last chunk, as far as known
        self._error: EblaError | None = None
        self._changed = asyncio.Event()
        self._rated = (self.began_at, 0)
        self._rate = 0.0
        self._moved()

    def move(self, state: str) -> None:
        allowed = TRANSITIONS[self.state]
        assert state in allowed, ("a copy goes through its states", self.tablet, self.state, state)
        self.state = state
        if state in SHOWN:
            self.phase = state

    # -- control

    def cancel(self) -> None:
        if self.state != COMMITTING:
            self._stop(CopyEnded(f"the copy of tablet {self.tablet} was cancelled"))

    def require_wanted(self) -> None:
        """Raise the reason why the copy ended, if it did. Called after every wait."""
        if self._error is not None:
            raise self._error

    # -- the copy

    async def copy(self) -> None:
        """Copy all that the source has, sync it, and assemble the parts. The superblock does not
        say ready yet."""
        try:
            await self._begin_data()
            self.move(DATA)
            for _ in range(WINDOW):
                self.world.spawn(self._fetch_all(), f"chunks of {self.tablet}")
            await self._write_all()
        except EblaError as error:
            self._stop(error)
            raise
        self.move(FINISHING)
        self._changed.set()
        await self._close_all()
        self._moved()
        self.parts = await self._put_together()
        self.require_wanted()

    async def _begin_data(self) -> None:
        disk, tablet = self.world.disk, self.tablet
        for path in (tablet_store.path_of(tablet), private_log.path_of(tablet)):
            if disk.exists(path):  # an interrupted creation left it
                await disk.remove(path)
        sealed = {tablet_store.ROWS: checksum.seed(tablet)}
        self._receiver = await disk.receive(tablet_store.path_of(tablet), sealed)
        self.require_wanted()

    async def _write_all(self) -> None:
        while True:
            chunk = await self._take()
            if chunk.part == LOG and self.state == DATA:
                await self._finish_data()
                await self._open_log()
            if chunk.part != self.state:
                self.move(chunk.part)
            await self.world.faults.here("tablet.copy.before_commit")
            if chunk.part == DATA:
                assert self._receiver is not None, ("data has a receiver", self.tablet)
                await self._receiver.write(chunk.data)
            elif items := transfer.unpack(chunk.data):
                await self._open[LOG].commit([Put(private_log.ENTRIES, items, sorted_keys=True)])
            await self.world.faults.here("tablet.copy.after_commit")
            self.require_wanted()
            self._note(len(chunk.data))
            if chunk.end:
                return

    async def _finish_data(self) -> None:
        assert self._receiver is not None, ("data has a receiver", self.tablet)
        try:
            await self._receiver.finish(DATABASES)
        except Damaged as error:
            raise CopyDamaged(f"the copy of tablet {self.tablet} cannot be used: {error}") from error
        self._moved()
        await self.world.faults.here("tablet.copy.after_data")
        self.require_wanted()

    async def _open_log(self) -> None:
        log = await private_log.PrivateLog.open(self.world.disk, self.tablet, create=True)
        self._open[LOG] = log.environment
        self.require_wanted()

    async def _take(self) -> m.Chunk:
        """The next chunk in order."""
        while self._wanted not in self._arrived:
            self.require_wanted()
            self._changed.clear()
            await self._changed.wait()
        self.require_wanted()
        chunk = self._arrived.pop(self._wanted)
        assert chunk.number == self._wanted, ("chunks are written in order", chunk.number, self._wanted)
        self._wanted += 1
        self._changed.set()
        parts = (DATA, LOG) if self.state == DATA else (LOG,)
        if chunk.part not in parts or (chunk.end and chunk.part != LOG):
            raise CopyDamaged(f"the source of tablet {self.tablet} sent {chunk.part} after {self.state}")
        return chunk

    async def _put_together(self) -> Parts:
        """Load the parts from disk, as at a start. Raises CopyEnded unless they are complete, and
        not older than the former replica."""
        begun = self.begun
        tail = bootstrap.Tail(self.tablet)
        private = await bootstrap.open_private(self.world.disk, tail)
        try:
            parts = await self.lifecycle.put_together(self.tombstone.superblock, private, tail)
        except (Corruption, Damaged, InvalidArgument) as error:
            if private is not None:
                await private.environment.close()
            kind = CopyEnded if isinstance(error, DataDiskFailed) else CopyDamaged  # the disk is ours
            raise kind(f"the copy of tablet {self.tablet} cannot be used: {error}") from error
        self._parts_made(parts)
        if parts.rows.store.flushed != begun.flushed or parts.log.last != begun.last:
            raise CopyEnded(
                f"the copy of tablet {self.tablet} ends at {parts.log.last}, its source at {begun.last}"
            )
        self._require_not_older(parts)
        return parts

    def _require_not_older(self, parts: Parts) -> None:
        """Raise unless the copy has every entry that this server acknowledged."""
        last = self.tombstone.superblock.last
        if last is not None and _newness(parts.log.last) < _newness(last):
            raise CopyEnded(
                f"the copy of tablet {self.tablet} ends at {parts.log.last}, before our own {last}"
            )

    def _parts_made(self, parts: Parts) -> None:
        self._open["data"] = parts.rows.store.environment
        if parts.log.private is not None:
            self._open[LOG] = parts.log.private.environment

    async def close(self) -> None:
        """Close the files of a failed copy. Calls under way end by themselves."""
        self._stop(CopyEnded("it has ended"))
        await self._close_all()
        assert not self._open, ("a copy that ended holds no files", self.tablet)

    async def _close_all(self) -> None:
        if self._receiver is not None:
            await self._receiver.abort()
        while self._open:
            _, environment = self._open.popitem()
            await environment.close()

    # -- chunks

    async def _fetch_all(self) -> None:
        """Run one of WINDOW loops, each with one chunk under way, never further ahead than that. A
        loop may ask for a chunk behind the end; that failure is ignored."""
        while self.state in FETCHING and self._next <= self._last:
            if self._next >= self._wanted + WINDOW:
                self._changed.clear()
                await self._changed.wait()
                continue
            number, self._next = self._next, self._next + 1
            try:
                chunk = await self._fetch(number)
            except EblaError as error:
                if number <= self._last:
                    self._stop(error)
                return
            assert number >= self._wanted, ("a chunk is asked for once", number, self._wanted)
            self._arrived[number] = chunk
            ahead = len(self._arrived)
            assert ahead <= WINDOW, ("a copy holds at most a window of chunks", ahead)
            if chunk.end:
                self._last = min(self._last, number)
            self._changed.set()

    async def _fetch(self, number: int) -> m.Chunk:
        """Fetch one chunk. A source whose bandwidth is exhausted says when to ask again; that is no
        failed attempt."""
        error: EblaError = CopyEnded("no attempt was made")
        attempt = 0
        while True:
            if self.state not in FETCHING or number > self._last:
                raise error
            try:
                return await self._ask(number)
            except errors.Throttled as limited:
                error, wait_s = limited, limited.retry_after_s or RETRY_S
                self._moved()
            except (Corruption, errors.NetworkError, errors.NotRunning) as lost:
                if not isinstance(lost, Corruption):
                    self.world.faults.reached("tablet.copy.chunk_lost")
                error, attempt = lost, attempt + 1
                if attempt == ATTEMPTS_MAX:
                    raise
                wait_s = RETRY_S * attempt**2 * (1 + self.world.random.random() / 2)
            await self.world.clock.sleep(wait_s)

    async def _ask(self, number: int) -> m.Chunk:
        session = self.begun.session
        chunk = await self.world.network.call(
            self.source, "fetch_chunk", m.FetchRequest(session, number), m.Chunk, FETCH_TIMEOUT_S
        )
        transfer.check(session, number, chunk.part, chunk.data, chunk.digest, end=chunk.end)
        return chunk

    def _stop(self, error: EblaError) -> None:
        """Stop the copy. The first reason counts."""
        if self.state != STOPPED:
            self.move(STOPPED)
            self._error = error
        self._changed.set()

    # -- views

    def _moved(self) -> None:
        self.tombstone.stalls_at = self.world.now() + STALLED_AFTER * self.options.copy_idle_s

    def _note(self, size: int) -> None:
        self.copied += size
        self._moved()
        now, (since, before) = self.world.now(), self._rated
        if now - since >= RATE_S or not self._rate:
            self._rate = (self.copied - before) / max(now - since, 1e-3)
        if now - since >= RATE_S:
            self._rated = now, self.copied

    def status(self, target: str) -> m.CopyJob:
        now = self.world.now()
        left = max(0, self.begun.data_bytes - self.copied)
        return m.CopyJob(
            tablet=self.tablet,
            table_name=self.begun.table_name,
            source=self.source,
            target=target,
            phase=STALLED if now > self.tombstone.stalls_at else self.phase,
            copied_bytes=self.copied,
            data_bytes=max(self.begun.data_bytes, self.copied),
            elapsed_s=now - self.began_at,
            rate=self._rate,
            eta_s=left / self._rate if self._rate else None,
            attempt=self.attempt,
        )


def _newness(position: Position) -> tuple[int, int]:
    return position.term, position.index
