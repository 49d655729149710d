"""The writer of a log.

one at a time   opening ends the ledger of the writer before by a recovery: every record that was acknowledged is kept, and the
                old writer gets LogFenced. Of two that open at once, one compare-and-set of the log decides
lost            if the last entries are lost for good, the writer leaves out more positions than they can have had: no position is
                given to two records, and no producer counts a lost one
repaired        a repair that ends the ledger does not end the writer: the entries that the ended ledger has are acknowledged, the
                others are appended to a new one, at the same positions
counted         the positions at which a producer's writers begin and end tell how many records it has in the log
coalesced       appends that arrive together become one entry, and a few entries are under way at a time; a large append becomes
                several entries
rolled          at a size or an age the ledger is closed and another one made; appends wait meanwhile. While no other one can be
                made, the writer goes on in this one; masters, stores or room that go away in between are waited for
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from ebla.actors.errors import NotFound
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.writer import Writer
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.world import settle
from ebla.log import records
from ebla.log.opening import begin, end, patiently, require_room
from ebla.log.options import LogFenced
from ebla.log.parts import ENTRY_BYTES, ENTRY_RECORDS, joined
from ebla.log.parts import parts as divided
from ebla.log.reading import RETRY_S, Ledgers, passes
from ebla.log.records import LogLedger, LogRecord
from ebla.storage.errors import EblaError

log = logging.getLogger("ebla")

T = TypeVar("T")

UNDER_WAY_MAX = 8  # entries
UNDER_WAY_BYTES = 8 << 20
CLOSE_S = 10.0
REPAIRED_S = 120.0  # how long a writer tries to go on after a repair
ROLL_AGAIN_S = 30.0  # until a roll is tried again that was not possible


class Waiting(NamedTuple):
    """Records of one call, and the future that gets the position of the first."""

    records: Sequence[bytes]
    size: int
    future: asyncio.Future[int]


class Appender:
    def __init__(
        self, ledgers: Ledgers, name: str, record: LogRecord, writer: Writer, producer: str = ""
    ) -> None:
        self.producer = producer
        self.sequence = record.sequence_of(producer)  # of the next record that is given
        self._ledgers = ledgers
        self._name = name
        self._record = record
        self._writer = writer
        self.acknowledged = 0  # records
        self._next = record.ledgers[-1].first
        self._queue: deque[Waiting] = deque()
        self._undecided: list[
            tuple[int, list[Waiting]]
        ] = []  # position and records of entries that a recovery decides about
        self._last: asyncio.Future[int] | None = None  # of the last append
        self._under_way = 0
        self._bytes = 0
        self._scheduled = False
        self._began_s = ledgers.world.now()
        self._due_s = 0.0  # before, no roll is tried
        self._preparing = False  # to roll: appends go on
        self._rolling = False
        self._going_on = False  # in another ledger, after a repair
        self._ended: EblaError | None = None

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, ledgers: Ledgers, name: str, producer: str = "") -> Appender:
        """End the writer before, and begin a ledger. The writer before goes on if none can be begun."""
        while True:
            record = await ledgers.log(name)
            before = record.ledgers[-1] if record.ledgers else None
            counted, empty = record.trimmed, False
            first = counted
            await require_room(ledgers, name, record)
            if before is not None:
                ended = await end(ledgers, name, before)
                if ended is None:
                    continue
                counted, first = await ledgers.positions.ends_of(before, ended)
                empty = ended.last == meta.NONE
            made = await begin(ledgers, name, record, before, first, empty, producer, counted)
            if made is not None:
                ledgers.world.spawn(ledgers.retain_quietly(name), f"retention of {name}")
                return cls(ledgers, name, *made, producer)

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, given: Sequence[bytes]) -> asyncio.Future[int]:
        """Append records, next to each other; the future has the position of the first. Raises LogFenced."""
        self._require_open()
        loop = asyncio.get_running_loop()
        parts = [Waiting(part, sum(map(len, part)), loop.create_future()) for part in divided(given)]
        self._queue.extend(parts)
        self.sequence += len(given)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush_soon)
        whole = joined([part.future for part in parts])
        if not self.producer:
            return whole
        self._last = whole
        return asyncio.shield(whole)  # its caller's deadline ends that wait, and no later one

    def appended(self) -> asyncio.Future[int] | None:
        """The last append, which is acknowledged after all others; None: there was none."""
        self._require_open()
        return None if self._last is None else asyncio.shield(self._last)

    def _require_open(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(self._ended.message, **self._ended.values())

    def _flush_soon(self) -> None:
        """At the end of a step of the loop, so that the appends of many tasks become one entry."""
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        while self._queue and not self._rolling and not self._going_on and self._ended is None:
            if self._under_way and (self._under_way >= UNDER_WAY_MAX or self._bytes >= UNDER_WAY_BYTES):
                return
            if not self._preparing and self._is_due():
                self._preparing = True
                self._ledgers.world.spawn(self._roll(), f"begin a ledger of {self._name}")
            self._send(self._taken())

    def _taken(self) -> list[Waiting]:
        taken = [self._queue.popleft()]
        size, count = taken[0].size, len(taken[0].records)
        while self._queue and count < ENTRY_RECORDS and size + self._queue[0].size <= ENTRY_BYTES:
            taken.append(self._queue.popleft())
            size += taken[-1].size
            count += len(taken[-1].records)
        return taken

    def _send(self, taken: list[Waiting]) -> None:
        first = self._next
        content = [bytes(record) for each in taken for record in each.records]
        assert len(content) <= records.ENTRY_RECORDS_MAX
        self._next += len(content)
        data = records.encode(first, content)
        self._under_way += 1
        self._bytes += len(data)

        def done(added: asyncio.Future[int]) -> None:
            self._under_way -= 1
            self._bytes -= len(data)
            error = added.exception()
            if error is not None:
                self._failed(error if isinstance(error, EblaError) else LogFenced(str(error)), first, taken)
                return
            position = first
            for each in taken:
                settle(each.future, position)
                position += len(each.records)
            self.acknowledged += len(content)
            self._flush()

        try:
            self._writer.add(data).add_done_callback(done)
        except EblaError as error:
            self._under_way -= 1
            self._bytes -= len(data)
            self._failed(error, first, taken)

    def _failed(self, error: EblaError, first: int, taken: list[Waiting]) -> None:
        self._undecided.append((first, taken))
        if isinstance(error, LedgerFenced) and self._ended is None:
            self._go_on()
            return
        self._end(self._fenced() if isinstance(error, LedgerClosed) else error)

    def _fenced(self) -> LogFenced:
        return LogFenced(
            f"another writer has opened log {self._name!r}, and this one has ended; open a new one to go on",
            log=self._name,
        )

    def _end(self, error: EblaError) -> None:
        """Records that were not sent are surely not in the log."""
        self._ended = self._ended or error
        waiting, self._queue = self._queue, deque()
        undecided, self._undecided = self._undecided, []
        for each in waiting:
            self._refuse(each, possibly_applied=False)
        for each in (each for _, taken in undecided for each in taken):
            self._refuse(each, possibly_applied=True)

    def _refuse(self, waiting: Waiting, possibly_applied: bool) -> None:
        assert self._ended is not None
        error = type(self._ended)(self._ended.message, **self._ended.values())
        error.possibly_applied = possibly_applied
        settle(waiting.future, error)

    # -- ledgers ---------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """Whether the ledger is to end, which has an entry."""
        settings, now = self._record.settings, self._ledgers.world.now()
        if self._writer.lac == meta.NONE or now < self._due_s:
            return False
        return now - self._began_s >= settings.roll_s or self._writer.length >= settings.roll_bytes

    async def _roll(self) -> None:
        """End the ledger and begin another one, once that can be done. Appends wait in between only."""
        try:
            if not await self._can_begin():
                self._due_s = self._ledgers.world.now() + ROLL_AGAIN_S
                return
            if self._has_ended() or self._going_on or not self._is_due():  # by now
                return
            self._rolling = True
            before = self._record.ledgers[-1]
            if not await self._writer.drain(float("inf")):
                return  # its entries have got the error
            await self._patiently(self._writer.close)
            await self._begin(before, self._next, False)
        except LedgerFenced:
            self._go_on()
        except EblaError as error:  # NotFound: the log was dropped
            self._end(self._fenced() if isinstance(error, LedgerClosed | NotFound) else error)
        finally:
            self._preparing = self._rolling = False
            self._flush()

    async def _can_begin(self) -> bool:
        """Whether there is room for another ledger, and enough stores run."""
        ledgers = self._ledgers
        try:
            if len(self._record.ledgers) >= records.ROLLED_MAX:  # records may be deleted by now
                await ledgers.retain(self._name, {self._writer.metadata.ledger: self._writer.length})
                found = await ledgers.log(self._name)
                if found.ledgers[-1:] == self._record.ledgers[-1:]:
                    self._record = found
                    if len(found.ledgers) >= records.ROLLED_MAX:
                        return False
            await require_room(ledgers, self._name, self._record)
        except EblaError as error:
            log.info("log %s: its next ledger begins later: %s", self._name, error)
            return False
        return True

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        return await patiently(self._ledgers.world, ask, self._has_ended)

    async def _begin(self, before: LogLedger, first: int, empty: bool) -> bool:
        """Go on in a new ledger. Returns whether the writer does; otherwise it has ended."""
        made = await begin(
            self._ledgers, self._name, self._record, before, first, empty, has_ended=self._has_ended
        )
        if made is None:
            self._end(self._fenced())
            return False
        self._record, self._writer = made
        self._began_s = self._ledgers.world.now()
        self._ledgers.world.spawn(self._ledgers.retain_quietly(self._name), f"retention of {self._name}")
        if self._has_ended():  # closed meanwhile
            self._writer.stop()
        return not self._has_ended()

    def _go_on(self) -> None:
        if not self._going_on:
            self._going_on = True
            self._ledgers.world.spawn(self._in_another_ledger(), f"another ledger of {self._name}")

    async def _in_another_ledger(self) -> None:
        """Another client ends the ledger. If that is a repair, and no writer has opened the log since, go on after the ledger's last
        record: what the ledger has of the records under way is acknowledged, what it has not is surely in no ledger, and is
        appended again. Appends wait."""
        try:
            before = self._record.ledgers[-1]
            ended = await self._repaired_ledger(before)
            if self._has_ended() or not ended.repaired:
                self._end(self._fenced())
                return
            first = await self._patiently(lambda: self._ledgers.positions.end_of(before, ended))
            if await self._begin(before, first, ended.last == meta.NONE):
                self._append_again(first)
        except NotFound:  # the log was dropped, or another writer has left the ledger out as empty
            self._end(self._fenced())
        except EblaError as error:
            self._end(
                LogFenced(
                    f"a repair has ended the ledger of this writer of log {self._name!r}, and the writer could not begin another one: "
                    f"{error}; open the log for writing again",
                    log=self._name,
                )
            )
        finally:
            self._going_on = False
            self._flush()

    async def _repaired_ledger(self, part: LogLedger) -> Metadata:
        """The ledger, ended by the repair or by this writer: both find the same end."""
        world, ledgers = self._ledgers.world, self._ledgers
        until = world.now() + REPAIRED_S
        while True:
            try:
                return await recover(
                    world, ledgers.registry, ledgers.stores, part.ledger, ledgers.options, repair=True
                )
            except EblaError as error:
                if world.now() > until or not passes(error):
                    raise
            await world.clock.sleep(RETRY_S)

    def _append_again(self, end: int) -> None:
        """The ended ledger has the entries before position `end`. The others keep their order and their positions."""
        assert not self._under_way, "a writer that is fenced ends all entries at once"
        undecided, self._undecided = sorted(self._undecided, key=lambda each: each[0]), []
        again: list[Waiting] = []
        for position, taken in undecided:
            if position >= end:
                again += taken
                continue
            for each in taken:
                settle(each.future, position)
                position += len(each.records)
            assert position <= end, "the ledger has whole entries"
        self._next = end
        self._queue.extendleft(reversed(again))

    async def close(self) -> None:
        """Wait for the records under way, and end the ledger, unless another writer has. Later appends raise LedgerClosed."""
        if self._ended is not None:
            return
        self._flush()
        whole = await self._idle() and await self._writer.drain(CLOSE_S)
        ledger = self._writer.metadata.ledger
        closed = LedgerClosed(f"this writer of log {self._name!r} is closed", ledger=ledger)
        if self._has_ended():
            return
        self._end(closed)
        if whole:
            with suppress(
                LedgerFenced
            ):  # another writer has the log already, with every record that was acknowledged
                await self._writer.close()
            return
        self._writer.stop()
        with suppress(NotFound):  # another writer has left the ledger out, as it was empty
            await recover(
                self._ledgers.world,
                self._ledgers.registry,
                self._ledgers.stores,
                ledger,
                self._ledgers.options,
            )

    def _has_ended(self) -> bool:
        return self._ended is not None

    async def _idle(self) -> bool:
        """Wait until everything that was appended is acknowledged."""
        until = self._ledgers.world.now() + CLOSE_S
        while (self._queue or self._under_way or self._rolling or self._going_on) and self._ended is None:
            if self._ledgers.world.now() > until:
                return False
            await self._ledgers.world.clock.sleep(0.01)
        return True
