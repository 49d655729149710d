"""The writer: takes edits in order; answers each when a majority has it on disk.

There are two buffers: edits that arrive while a batch is on its way to the nodes are the next batch, so
concurrent callers share the nodes' syncs. The journal is cut into segments, by size and by time. A
finalized segment can be read by all, copied between nodes and purged.

A segment begins with a *marker*, an edit without content that a majority has before any other edit is
sent. So a segment's first txid never has two contents, and a node that has only a marker of an older
writer may start the segment again.

A node may have promised a later epoch to a contender that got no majority; it then refuses every request
of this writer's epoch. When such a node answers, the writer *moves on* between two segments: it finalizes
the segment, has a majority promise an epoch above the contender's, and starts the next segment in that
epoch, which brings the node back. This happens at most once in `return_s`. No recovery is needed, and
fencing stays sound, because a node promises an epoch e'' to the writer of epoch e only if it has promised
no other an epoch above e:

    no writer in between   an epoch x with e < x < e'' would need promises of a majority. One of its nodes
                           is among those that promised e'': if it had promised x before, it would have
                           refused e'', and afterwards it refuses x. So x was never begun, and never will
                           be: no other has recovered, or written edits after ours
    where writing continues  the last segment is finalized at a majority, in epoch e, before: any later
                           recovery finds it
    one lease              for the same reason no other has held the lease since e was begun; so the
                           promise of e'' need not wait until the lease that the node has granted is over
    contenders             a contender that still works at epoch x is refused because of the later epoch;
                           it tries again, above e'', once the lease is free. If x has a majority, this
                           writer gets none and is over, as always

In a journal of one node, a node that has no room for a request has written nothing. The writer refuses
the edits with DiskFull and continues with the same txids; a segment that could not end, or begin, does so
later.

Otherwise there is no second try. Without a majority the writer is over: the outcome of edits on their way
is unknown, edits that were not sent are not written, and a new writer's recovery decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from ebla.actors.errors import OutcomeUnknown, Unavailable
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.records import digest_of
from ebla.actors.journal.writer.channel import ChannelStatus
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.journal.writer.recovery import End, recover
from ebla.actors.journal.writer.session import Session
from ebla.actors.world import World, settle
from ebla.storage.errors import DiskFull, EblaError, InvalidArgument

MARKER = b""


class _Waiting(NamedTuple):
    edit: bytes
    answer: asyncio.Future[int]


class JournalWriter:
    """Call `open`, then `begin`, then `append`. After `open`, the caller reads the recovered edits."""

    def __init__(self, world: World, options: JournalOptions, holder: Holder | None = None) -> None:
        self.options = options
        self.session = Session(world, options, holder)
        self.end = End(0, 0)  # the last edit that was sent, and the digest after it
        self.written = End(0, 0)  # the last edit that was answered; markers do not count
        self.segment = 0
        self.failed: EblaError | None = None
        self._world = world
        self._filling: deque[_Waiting] = deque()
        self._filling_bytes = 0
        self._room = asyncio.Event()
        self._wake = asyncio.Event()
        self._segment_bytes = 0
        self._segment_since = 0.0
        self._rolls: list[asyncio.Future[int]] = []
        self._finishing: asyncio.Future[End] | None = None
        self._finalized = False  # the segment has ended, and the next one has not begun
        self._pauses_until = -inf  # after the only node's disk was full
        self._over = asyncio.Event()

    # -- life ------------------------------------------------------------------------------------------------

    async def open(self) -> End:
        """Fence the last writer and decide where the journal ends."""
        try:
            self.end = await recover(self.session)
        except EblaError as error:
            self._fail(error)
            raise
        return self.end

    async def begin(self) -> None:
        """Start the first segment; edits are taken from now on."""
        assert self.session.epoch, "a writer opens its journal before it begins"
        try:
            await self._start_segment()
        except EblaError as error:
            self._fail(error)
            raise
        self._room.set()
        self._world.spawn(self._run(), f"writer of journal {self.options.journal.name}")
        self._world.spawn(self._tick(), f"ticks of journal {self.options.journal.name}")

    def close(self) -> None:
        """Stop writing, at once. The segment stays in progress; the next writer finalizes it."""
        self._fail(Unavailable(f"the writer of journal {self.options.journal.name} was closed"))

    async def ended(self) -> EblaError:
        """Wait until the writer is over; return the reason."""
        await self._over.wait()
        assert self.failed is not None
        return self.failed

    # -- writing ---------------------------------------------------------------------------------------------

    async def append(self, edit: bytes) -> int:
        """Append an edit; return its txid when a majority has it on disk.

        Raises QuorumFailed if it is unknown whether the edit will be in the journal, Unavailable if it will
        not be.
        """
        if not edit:
            raise InvalidArgument("an edit has at least one byte: an empty one is a segment's marker")
        while not self._room.is_set():
            self._require_usable()
            await self._room.wait()
        self._require_usable()
        waiting = _Waiting(edit, asyncio.get_running_loop().create_future())
        self._filling.append(waiting)
        self._filling_bytes += len(edit)
        if self._filling_bytes >= self.options.buffer_bytes:
            self._room.clear()
        self._wake.set()
        return await waiting.answer

    async def roll(self) -> int:
        """Finalize the segment and start the next one; return the txid at which it starts."""
        self._require_usable()
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._rolls.append(answer)
        self._wake.set()
        return await answer

    async def finish(self) -> End:
        """Finalize the segment and start no other: the writer takes no more edits, but is not over."""
        self._require_usable()
        self._finishing = asyncio.get_running_loop().create_future()
        self._wake.set()
        return await self._finishing

    async def purge(self, before: int) -> None:
        """Delete segments that end before `before`, at a majority; other nodes delete them next time."""
        self._require_usable()
        await self.session.purge(before)

    @property
    def committed(self) -> int:
        return self.session.commits.txid

    def statuses(self) -> list[ChannelStatus]:
        return self.session.statuses()

    def _require_usable(self) -> None:
        if self.failed is not None:
            raise Unavailable(f"the writer of journal {self.options.journal.name} is over: {self.failed}")
        if self._finishing is not None:
            raise Unavailable(f"the writer of journal {self.options.journal.name} takes no edits any more")

    # -- sending ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self.failed is None:
            await self._wake.wait()
            self._wake.clear()
            while self.failed is None and (
                self._filling or self._rolls or self._is_due() or self._finishes()
            ):
                try:
                    if self._rolls or self._is_due():
                        await self._roll()
                    elif self._filling:
                        await self._flush()
                    else:
                        await self._finish()
                except DiskFull as error:
                    self._pause(error)
                except EblaError as error:
                    self._fail(error)

    def _pause(self, error: DiskFull) -> None:
        """Pause after the only node's disk was full: it has written nothing."""
        self._pauses_until = self._world.now() + self.options.heartbeat_s
        rolls, self._rolls = self._rolls, []
        for answer in rolls:
            settle(answer, error)
        if self._finishing is not None:
            settle(self._finishing, error)

    def _finishes(self) -> bool:
        return self._finishing is not None and not self._finishing.done()

    async def _finish(self) -> None:
        assert self._finishing is not None
        await self._finalize()
        settle(self._finishing, self.end)

    async def _flush(self) -> None:
        """Swap the buffers and send the full one."""
        batch, self._filling = list(self._filling), deque()
        self._filling_bytes = 0
        self._room.set()
        try:
            if self._finalized:
                await self._start_segment()
            first = self.end.txid + 1
            await self._send([waiting.edit for waiting in batch])
        except EblaError as error:
            for waiting in batch:
                settle(waiting.answer, error)
            raise
        assert self.end.txid == first + len(batch) - 1 == self.committed, (first, len(batch), self.end)
        self.written = self.end
        for txid, waiting in enumerate(batch, first):
            settle(waiting.answer, txid)

    async def _send(self, edits: Sequence[bytes]) -> None:
        assert edits and self.segment, "edits are sent into a segment"
        before, first = self.end, self.end.txid + 1
        digest = digest_of(self.end.digest, first, edits)
        self.end = End(first + len(edits) - 1, digest)
        try:
            await self.session.send(self.segment, first, edits, digest)
        except DiskFull:
            self.end = before
            raise
        self._segment_bytes += sum(map(len, edits))

    async def _roll(self) -> None:
        await self._finalize()
        await self.session.move_on()
        await self._start_segment()
        rolls, self._rolls = self._rolls, []
        for answer in rolls:
            settle(answer, self.segment)

    async def _finalize(self) -> None:
        if not self._finalized:
            assert self.end.txid == self.committed, "a segment ends with edits that a majority has"
            await self.session.finalize(self.segment, self.end.txid, self.end.digest)
            self._finalized = True

    async def _start_segment(self) -> None:
        start = self.end.txid + 1
        assert start == self.committed + 1, (start, self.committed)
        await self.session.start_segment(start, self.end.digest)
        self.segment = start
        self._segment_bytes, self._segment_since = 0, self._world.now()
        await self._send([MARKER])
        self._finalized = False

    def _is_due(self) -> bool:
        """Whether to end the segment: it is full or old, or a node waits for the next one.

        A node waits if it has lost its directory, or if it was left out and answers again. A segment that
        has only its marker is never too old, unless a node rejoins that was asked to start it and did not.
        """
        if self._finishing is not None or self._world.now() < self._pauses_until:
            return False
        if self._finalized:
            return True
        count, channels = self.end.txid - self.segment + 1, self.session.channels
        if count >= self.options.segment_txns or self._segment_bytes >= self.options.segment_bytes:
            return True
        if any(channel.lost for channel in channels):
            return True
        age_s = self._world.now() - self._segment_since
        if age_s >= self.options.return_s and any(channel.is_back for channel in channels):
            return True
        return age_s >= self.options.segment_s and (count > 1 or any(channel.rejoins for channel in channels))

    async def _tick(self) -> None:
        """End the segment in time, and send the committed txid, which readers wait for."""
        while self.failed is None:
            await self._world.clock.sleep(min(self.options.heartbeat_s, self.options.segment_s))
            if self._is_due():
                self._wake.set()  # no heartbeats: `is_back` is false while one is queued
            else:
                self.session.send_heartbeats()

    def _fail(self, error: EblaError) -> None:
        if self.failed is not None:
            return
        self.failed = error
        self.session.close()
        waiting, self._filling = self._filling, deque()
        over = f"the writer of journal {self.options.journal.name} was over before this"
        for each in waiting:
            settle(each.answer, Unavailable(f"{over} left: {error}"))
        if self._finishing is not None:
            settle(self._finishing, error)
        for answer in self._rolls:  # a roll may be under way
            settle(answer, error if error.possibly_applied else OutcomeUnknown(f"{over} was done: {error}"))
        self._room.set()
        self._wake.set()
        self._over.set()
