"""The writer: edits in, one after the other; each is answered when a majority has it on disk.

Two buffers: what is written while a batch is on its way to the nodes is the next batch, so the nodes' syncs are shared
by whoever writes meanwhile. The journal is cut into segments, by size and by time; what is finalized can be read by
anybody, copied between nodes and purged.

A segment begins with a *marker*, an edit without content that a majority has before any other edit goes out. So a
segment's first txid never has two contents, and a node that holds nothing but a marker of an older writer may start over.

A node may have promised a later epoch to a contender that got no majority; it refuses everything of this writer's epoch. When
such a node answers, the writer *moves on* between two segments: it finalizes the segment, has a majority promise an epoch above
the contender's, and starts the next segment in that epoch, which brings the node back. This happens once in `return_s` at most.
No recovery is needed, and fencing stays sound, because a node promises an epoch e'' to the writer of epoch e only if it has
promised none above e to anybody:

    no writer in between   an epoch x with e < x < e'' would need promises of a majority. One of its nodes is among those that
                           promised e'': if it had promised x before, it would have refused e'', and afterwards it refuses x. So
                           x was never begun, and never will be: nobody has recovered or written anything behind our edits
    where it goes on       the last segment is finalized at a majority, in epoch e, before: any later recovery finds it
    one lease              for the same reason nobody but this writer has held the lease since e was begun; so the promise
                           of e'' need not wait until the lease that the node has granted is over
    contenders             one that still works at epoch x is refused as by any later epoch; it asks anew, above e'', once
                           the lease is free. If x has a majority, this writer gets none: it is over, as ever

A journal of one node: if that node has no room for a request, it has written nothing. The writer refuses the edits with DiskFull
and goes on with the same txids; a segment that could not end, or begin, does so later.

Otherwise there is no second try. When a majority cannot be had the writer is over: what was on its way is unknown, what had not
left was not written, and a new writer's recovery decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from ebla.actors.errors import OutcomeUnknown, Unavailable
from ebla.actors.journal.options import JournalOptions
from ebla.actors.journal.records import digest_of
from ebla.actors.journal.writer.channel import ChannelStatus
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.journal.writer.recovery import End, recover
from ebla.actors.journal.writer.session import Session
from ebla.actors.world import World
from ebla.storage.errors import DiskFull, EblaError, InvalidArgument

MARKER = b""


class _Waiting(NamedTuple):
    edit: bytes
    answer: asyncio.Future[int]


class JournalWriter:
    """`open`, then `begin`, then `append`. The pause between the first two is for reading what was recovered."""

    def __init__(self, world: World, options: JournalOptions, holder: Holder | None = None) -> None:
        self.options = options
        self.session = Session(world, options, holder)
        self.end = End(0, 0)  # the last edit that was sent, and the digest after it
        self.written = End(0, 0)  # the last one that was answered; markers do not count
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
        self._pauses_until = -inf  # the disk of the only node is full
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
        """Wait until the writer is over, and say why."""
        await self._over.wait()
        assert self.failed is not None
        return self.failed

    # -- writing ---------------------------------------------------------------------------------------------

    async def append(self, edit: bytes) -> int:
        """The edit's txid, when a majority has it on disk. If it raises QuorumFailed, whether it will be in the
        journal is not known; if Unavailable, it will not."""
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
        """Finalize the segment, and start the next one, at the txid that is returned."""
        self._require_usable()
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._rolls.append(answer)
        self._wake.set()
        return await answer

    async def finish(self) -> End:
        """Finalize the segment and start no other: the writer takes no edits any more, and is not over."""
        self._require_usable()
        self._finishing = asyncio.get_running_loop().create_future()
        self._wake.set()
        return await self._finishing

    async def purge(self, before: int) -> None:
        """Let go of segments that end before `before`, at a majority; a node that misses it does so next time."""
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

    # -- the one that sends ----------------------------------------------------------------------------------

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
        """The only node has written nothing."""
        self._pauses_until = self._world.clock.monotonic() + self.options.heartbeat_s
        rolls, self._rolls = self._rolls, []
        for answer in rolls:
            _refuse(answer, error)
        if self._finishing is not None:
            _refuse(self._finishing, error)

    def _finishes(self) -> bool:
        return self._finishing is not None and not self._finishing.done()

    async def _finish(self) -> None:
        assert self._finishing is not None
        await self._finalize()
        if not self._finishing.done():
            self._finishing.set_result(self.end)

    async def _flush(self) -> None:
        """Swap the buffers and see the full one through."""
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
                _refuse(waiting.answer, error)
            raise
        self.written = self.end
        for txid, waiting in enumerate(batch, first):
            if not waiting.answer.done():
                waiting.answer.set_result(txid)

    async def _send(self, edits: Sequence[bytes]) -> None:
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
            if not answer.done():
                answer.set_result(self.segment)

    async def _finalize(self) -> None:
        if not self._finalized:
            await self.session.finalize(self.segment, self.end.txid, self.end.digest)
            self._finalized = True

    async def _start_segment(self) -> None:
        start = self.end.txid + 1
        await self.session.start_segment(start, self.end.digest)
        self.segment = start
        self._segment_bytes, self._segment_since = 0, self._world.clock.monotonic()
        await self._send([MARKER])
        self._finalized = False

    def _is_due(self) -> bool:
        """Whether the segment is full or old, or a node waits for the next one: it has lost its directory, or it was left
        out and answers again. One that has nothing but its marker is never too old, but for a node that rejoins, was asked and
        did not start it."""
        if self._finishing is not None or self._world.clock.monotonic() < self._pauses_until:
            return False
        if self._finalized:
            return True
        count, channels = self.end.txid - self.segment + 1, self.session.channels
        if count >= self.options.segment_txns or self._segment_bytes >= self.options.segment_bytes:
            return True
        if any(channel.lost for channel in channels):
            return True
        age_s = self._world.clock.monotonic() - self._segment_since
        if age_s >= self.options.return_s and any(channel.is_back for channel in channels):
            return True
        return age_s >= self.options.segment_s and (count > 1 or any(channel.rejoins for channel in channels))

    async def _tick(self) -> None:
        """Time passes for the segment, and readers of it wait for what is committed."""
        while self.failed is None:
            await self._world.clock.sleep(min(self.options.heartbeat_s, self.options.segment_s))
            if self._is_due():
                self._wake.set()  # and who is told something now would not be back when it is looked again
            else:
                self.session.tell()

    def _fail(self, error: EblaError) -> None:
        if self.failed is not None:
            return
        self.failed = error
        self.session.close()
        waiting, self._filling = self._filling, deque()
        over = f"the writer of journal {self.options.journal.name} was over before this"
        for each in waiting:
            _refuse(each.answer, Unavailable(f"{over} left: {error}"))
        if self._finishing is not None:
            _refuse(self._finishing, error)
        for answer in self._rolls:  # one of them may be under way
            _refuse(answer, error if error.possibly_applied else OutcomeUnknown(f"{over} was done: {error}"))
        self._room.set()
        self._wake.set()
        self._over.set()


def _refuse(answer: asyncio.Future[Any], error: EblaError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # whoever waits may be gone already
