"""The writer of a log.

one at a time   opening ends the ledger of the writer before by a recovery: every record that was acknowledged is kept, and the
                old writer gets LogFenced. Of two that open at once, one compare-and-set of the log decides
coalesced       appends that arrive together become one entry, and a few entries are under way at a time; a large append becomes
                several entries
rolled          at a size or an age the ledger is closed and another one made; appends wait meanwhile
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ebla.actors.errors import NotFound
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.writer import Writer
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared import paths
from ebla.actors.world import settle
from ebla.log import records
from ebla.log.options import RECORD_BYTES_MAX, LogFenced
from ebla.log.reading import Ledgers
from ebla.log.records import LogLedger, LogRecord
from ebla.storage.errors import EblaError, OverLimit

log = logging.getLogger("ebla")

ENTRY_BYTES = 256 << 10  # an entry has no more, or one record
ENTRY_RECORDS = 20_000
UNDER_WAY_MAX = 8  # entries
UNDER_WAY_BYTES = 8 << 20
CLOSE_S = 10.0


class Waiting(NamedTuple):
    """Records of one call, and the future that gets the position of the first."""

    records: Sequence[bytes]
    size: int
    future: asyncio.Future[int]


class Appender:
    def __init__(self, ledgers: Ledgers, name: str, record: LogRecord, writer: Writer, first: int) -> None:
        self._ledgers = ledgers
        self._name = name
        self._record = record
        self._writer = writer
        self._next = first
        self._queue: deque[Waiting] = deque()
        self._under_way = 0
        self._bytes = 0
        self._scheduled = False
        self._began_s = ledgers.world.now()
        self._rolling = False
        self._ended: EblaError | None = None

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    async def open(cls, ledgers: Ledgers, name: str) -> Appender:
        """End the writer before, and begin a ledger."""
        while True:
            record = await ledgers.log(name)
            before = record.ledgers[-1] if record.ledgers else None
            first, empty = record.trimmed, False
            if before is not None:
                ended = await _end(ledgers, name, before)
                if ended is None:
                    continue
                first, empty = await ledgers.end_of(before, ended), ended.last == meta.NONE
            made = await _begin(ledgers, name, record, before, first, empty)
            if made is not None:
                return cls(ledgers, name, *made, first)

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, given: Sequence[bytes]) -> asyncio.Future[int]:
        """Append records, next to each other; the future has the position of the first. Raises LogFenced, OverLimit."""
        self._require_open()
        for at, record in enumerate(given):
            if len(record) > RECORD_BYTES_MAX:
                raise OverLimit(
                    f"record {at} has {len(record):,} bytes, and a record of a log has {RECORD_BYTES_MAX:,} at most",
                    limit="record_bytes",
                    most=RECORD_BYTES_MAX,
                )
        loop = asyncio.get_running_loop()
        parts = [Waiting(part, sum(map(len, part)), loop.create_future()) for part in _parts(given)]
        self._queue.extend(parts)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush_soon)
        return _joined([part.future for part in parts])

    def _require_open(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(self._ended.message, **self._ended.values())

    def _flush_soon(self) -> None:
        """At the end of a step of the loop, so that the appends of many tasks become one entry."""
        self._scheduled = False
        self._flush()

    def _flush(self) -> None:
        while self._queue and not self._rolling and self._ended is None:
            if self._under_way and (self._under_way >= UNDER_WAY_MAX or self._bytes >= UNDER_WAY_BYTES):
                return
            if self._is_due():
                self._rolling = True
                self._ledgers.world.spawn(self._roll(), f"begin a ledger of {self._name}")
                return
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
        self._next += len(content)
        data = records.encode(first, content)
        self._under_way += 1
        self._bytes += len(data)

        def done(added: asyncio.Future[int]) -> None:
            self._under_way -= 1
            self._bytes -= len(data)
            error = added.exception()
            if error is not None:
                self._failed(error if isinstance(error, EblaError) else LogFenced(str(error)), taken)
                return
            position = first
            for each in taken:
                settle(each.future, position)
                position += len(each.records)
            self._flush()

        try:
            self._writer.add(data).add_done_callback(done)
        except EblaError as error:
            self._under_way -= 1
            self._bytes -= len(data)
            self._failed(error, taken)

    def _failed(self, error: EblaError, taken: list[Waiting]) -> None:
        self._end(self._fenced() if isinstance(error, LedgerFenced | LedgerClosed) else error)
        assert self._ended is not None
        for each in taken:
            settle(each.future, type(self._ended)(self._ended.message, **self._ended.values()))

    def _fenced(self) -> LogFenced:
        return LogFenced(
            f"another writer has opened log {self._name!r}, and this one has ended; open a new one to go on",
            log=self._name,
        )

    def _end(self, error: EblaError) -> None:
        """Records that were not sent are surely not in the log."""
        if self._ended is None:
            self._ended = error
            waiting, self._queue = self._queue, deque()
            for each in waiting:
                unsent = type(error)(error.message, **error.values())
                unsent.possibly_applied = False
                settle(each.future, unsent)

    # -- ledgers ---------------------------------------------------------------------------------------------

    def _is_due(self) -> bool:
        """Whether the ledger is to end, which has an entry."""
        settings = self._record.settings
        if self._writer.lac == meta.NONE or len(self._record.ledgers) >= records.ROLLED_MAX:
            return False
        old = self._ledgers.world.now() - self._began_s >= settings.roll_s
        return old or self._writer.length >= settings.roll_bytes

    async def _roll(self) -> None:
        """End the ledger and begin another one. Appends wait."""
        try:
            before = self._record.ledgers[-1]
            if not await self._writer.drain(float("inf")):
                return  # its entries have got the error
            await self._writer.close()
            made = await _begin(self._ledgers, self._name, self._record, before, self._next, False)
            if made is None:
                self._end(self._fenced())
                return
            self._record, self._writer = made
            self._began_s = self._ledgers.world.now()
            self._ledgers.world.spawn(self._retain(), f"retention of {self._name}")
        except (LedgerFenced, LedgerClosed):
            self._end(self._fenced())
        except EblaError as error:
            self._end(error)
        finally:
            self._rolling = False
            self._flush()

    async def _retain(self) -> None:
        try:
            await self._ledgers.retain(self._name)
        except EblaError as error:
            log.info("log %s: old records are deleted later: %s", self._name, error)

    async def close(self) -> None:
        """Wait for the records under way, and end the ledger, unless another writer has. Later appends raise LedgerClosed."""
        if self._ended is not None:
            return
        self._flush()
        ledger = self._writer.metadata.ledger
        whole = await self._idle() and await self._writer.drain(CLOSE_S)
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
        """Wait until everything that was appended has been sent."""
        until = self._ledgers.world.now() + CLOSE_S
        while (self._queue or self._rolling) and self._ended is None:
            if self._ledgers.world.now() > until:
                return False
            await self._ledgers.world.clock.sleep(0.01)
        return True


async def _end(ledgers: Ledgers, name: str, part: LogLedger) -> Metadata | None:
    """End the ledger of the writer before. None if the log has other ledgers by now: this one was empty, and is deleted."""
    try:
        return await recover(ledgers.world, ledgers.registry, ledgers.stores, part.ledger, ledgers.options)
    except NotFound:
        if part in (await ledgers.log(name)).ledgers:
            raise
        return None


def _parts(given: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """The records in parts of an entry's size: the bytes of one request to a store are bounded."""
    first = size = 0
    for at, record in enumerate(given):
        if at > first and (size + len(record) > ENTRY_BYTES or at - first == ENTRY_RECORDS):
            yield given[first:at]
            first, size = at, 0
        size += len(record)
    yield given[first:]


def _joined(futures: Sequence[asyncio.Future[int]]) -> asyncio.Future[int]:
    """One future for all parts of an append: the position of the first one, or the first error. It is possibly applied if one of
    the parts is in the log, or may be."""
    if len(futures) == 1:
        return futures[0]
    whole: asyncio.Future[int] = futures[0].get_loop().create_future()

    def done(_: asyncio.Future[int]) -> None:
        if whole.done() or not all(future.done() for future in futures):
            return
        errors = [error for future in futures if isinstance(error := future.exception(), EblaError)]
        if not errors:
            whole.set_result(futures[0].result())
            return
        error = type(errors[0])(errors[0].message, **errors[0].values())
        error.possibly_applied = len(errors) < len(futures) or any(each.possibly_applied for each in errors)
        whole.set_exception(error)

    for future in futures:
        future.add_done_callback(done)
    return whole


async def _begin(
    ledgers: Ledgers, name: str, record: LogRecord, before: LogLedger | None, first: int, empty: bool
) -> tuple[LogRecord, Writer] | None:
    """Make a ledger that begins at position `first`, and add it to the log. None if another writer was first."""
    settings = record.settings
    if len(record.ledgers) - empty >= records.LEDGERS_MAX:
        raise OverLimit(
            f"log {name!r} has {len(record.ledgers):,} ledgers, and each opening of a writer needs another one; trim the log, or "
            "keep one writer open for many records",
            limit="log_ledgers",
            most=records.LEDGERS_MAX,
        )
    made: Metadata = await ledgers.registry.create(
        settings.ensemble, settings.write_quorum, settings.ack_quorum, name
    )
    own = LogLedger(made.ledger, first, made.created_us)

    def transform(found: LogRecord) -> LogRecord:
        changed = records.appended(found, before, own, empty)
        if changed is None:
            raise LogFenced(f"another writer has opened log {name!r}", log=name)
        return changed

    try:
        changed = await ledgers.logs.change(f"{paths.LOGS}/{name}", transform)
    except (LogFenced, NotFound) as error:
        await ledgers.discard(made)
        if isinstance(error, NotFound):
            raise
        return None
    if changed.deleting:
        ledgers.world.spawn(ledgers.sweep(name), f"delete ledgers of {name}")
    return changed, Writer(ledgers.world, ledgers.registry, ledgers.stores, made, ledgers.options)
