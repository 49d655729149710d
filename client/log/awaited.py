"""Logs, awaited. docs/logs.md states their promises.

events = await db.create_log("events", retain_s=7 * 86_400)
async with events.writer() as writer:
    position = await writer.append(b"...")          # synced on two of three stores when it returns
async for entry in events.read(start=position, follow=True):
    print(entry.position, entry.data)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from typing_extensions import Self

from ebla.actors.errors import TimedOut
from ebla.arguments import check_deadline, check_int, check_text
from ebla.log.appender import Appender
from ebla.log.deadlines import Deadlines
from ebla.log.options import PRODUCER_BYTES_MAX, LogSettings
from ebla.log.reading import Ledgers
from ebla.log.records import checked_bytes
from ebla.show.handles import shown as showing
from ebla.show.progress import counting, watching
from ebla.storage.errors import InvalidArgument
from ebla.transport.opening import Opening

__all__ = ["Entry", "Log", "LogInfo", "LogWriter", "settings_of"]

RECORD = "a record of a log"  # for messages


class Entry(NamedTuple):
    """A record of a log.

    Attributes:
        position: Its position: records are numbered from 0, without a gap.
        data: The record.
    """

    position: int
    data: bytes


@showing
class LogInfo(msgspec.Struct, frozen=True):
    """A log, its settings and its present bounds.

    Attributes:
        name: The log's name.
        first: The position of the first record that is kept.
        end: The position that the next record will have. None: it is not known now.
        ledgers: The number of ledgers of which it consists now.
        bytes: The bytes of its closed ledgers, one copy.
        ensemble: The number of stores over which records are spread.
        write_quorum: On how many of them each record is.
        ack_quorum: How many must have synced a record before it is acknowledged.
        retain_s: Records older than this many seconds may be deleted. None: they are kept.
        retain_bytes: The oldest records may be deleted when this many bytes are kept after them. None: they are kept.
        created_us: When it was created, in microseconds since 1970 (UTC).
        known_end: The position after the last record that is known to be acknowledged: `end`, if that is known.
        unknown: Why the end is not known, and what to do. None: it is known.
    """

    name: str
    first: int
    end: int | None
    ledgers: int
    bytes: int
    ensemble: int
    write_quorum: int
    ack_quorum: int
    retain_s: float | None
    retain_bytes: int | None
    created_us: int
    known_end: int
    unknown: str | None = None


class Log:
    """An append-only sequence of records, from `Database.log` or `create_log`: durable on several hosts, with one writer at a time
    and any number of readers.

    `deadline_s` is the longest wait in seconds, after which methods raise TimedOut. NotFound is raised if the log was dropped.
    """

    def __init__(self, ledgers: Ledgers, name: str) -> None:
        self._ledgers = ledgers
        self._name = name

    @property
    def name(self) -> str:
        """The log's name."""
        return self._name

    async def info(self, *, deadline_s: float | None = None) -> LogInfo:
        """Get the log's settings, and its first and next position. While the next one is not known, because stores do not answer or
        entries are lost, what is known is returned, and why not more is."""
        found: LogInfo = await self._within(self._info(), deadline_s)
        return found

    async def _info(self) -> LogInfo:
        while True:
            record, known_end, unknown = await self._ledgers.known_bounds(self._name)
            ledgers = await self._ledgers.every([each.ledger for each in record.ledgers])
            if len(ledgers) == len(record.ledgers):
                break
            # An old one was deleted meanwhile.
            there = {each.ledger for each in ledgers}
            await self._ledgers.without(self._name, next(p for p in record.ledgers if p.ledger not in there))
        settings = record.settings
        return LogInfo(
            self._name,
            record.trimmed,
            known_end if unknown is None else None,
            len(record.ledgers),
            sum(ledger.length for ledger in ledgers if ledger.closed),
            settings.ensemble,
            settings.write_quorum,
            settings.ack_quorum,
            settings.retain_s,
            settings.retain_bytes,
            record.created_us,
            known_end,
            None if unknown is None else unknown.message,
        )

    def writer(self, producer: str | None = None, *, deadline_s: float | None = None) -> Opening[LogWriter]:
        """Open the log for appending. A context manager: at its end the writer is closed.

        The writer before, in any process, is fenced: its later appends raise LogFenced, and the records that were acknowledged to
        it stay. `producer`: a name under which the log counts the records, of this writer and of later ones, so that each is
        appended exactly once: see `LogWriter.append_once`. Raises NotEnoughStores, LimitReached, OverLimit: then the writer before goes
        on; RecoveryFailed if too few stores answer.
        """
        name = "" if producer is None else producer_name(producer)

        async def opened() -> LogWriter:
            appender = Appender.open(self._ledgers, self._name, name)
            return LogWriter(self._name, await self._within(appender, deadline_s), self._ledgers)

        return Opening(opened())

    async def read(
        self, start: int | None = None, *, follow: bool = False, limit: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Read records from position `start` on (None: the first that is kept), in order, at most `limit` of them.

        Every record that was acknowledged before the call is read, and every record that was read stays. `follow`: then wait for
        further records, for ever. Raises RecordsTrimmed if `start` was deleted; EntryLost, Unavailable if a record cannot be read.
        """
        async for some in self._some(start, follow, limit):
            for entry in some:
                yield entry

    async def _some(
        self, start: int | None, follow: bool, limit: int | None
    ) -> AsyncGenerator[list[Entry], None]:
        """The records of `read`, several at a time."""
        first = None if start is None else check_int("start", start, 0)
        left = None if limit is None else check_int("limit", limit, 0)
        if left == 0:
            return
        async for records in self._ledgers.read(self._name, first, bool(follow)):
            some = list(map(Entry, count(records.first), records.records[:left]))
            yield some
            if left is not None:
                left -= len(some)
                if not left:
                    return

    async def read_tables(
        self, start: int | None = None, *, follow: bool = False
    ) -> AsyncGenerator[pa.Table, None]:
        """Read the Arrow tables that `append_table` has appended, one by one."""
        async for entry in self.read(start, follow=follow):
            try:
                yield pa.ipc.open_stream(entry.data).read_all()
            except pa.ArrowInvalid as error:
                raise InvalidArgument(
                    f"the record at position {entry.position} of log {self._name!r} is no Arrow table; use read()"
                ) from error

    async def trim(self, before: int, *, deadline_s: float | None = None) -> None:
        """Delete the records before position `before`. They cannot be read any more; their space is freed a ledger at a time."""
        position = check_int("before", before, 0)
        _, end, unknown = await self._within(self._ledgers.known_bounds(self._name), deadline_s)
        if position > end:
            if unknown is not None:
                raise unknown
            raise InvalidArgument(f"before is {position}, and log {self._name!r} ends at position {end}")
        await self._within(self._ledgers.trim(self._name, position), deadline_s)

    async def _within(self, work: Any, deadline_s: float | None) -> Any:
        limit_s = check_deadline(deadline_s)
        try:
            async with self._ledgers.world.clock.timeout(limit_s):
                return await work
        except TimeoutError as error:
            if isinstance(error, TimedOut):
                raise
            raise TimedOut(
                f"log {self._name!r} did not answer within {limit_s:g} s", deadline_s=limit_s
            ) from None

    def __repr__(self) -> str:
        return f"<ebla.aio.Log {self._name!r}>"


class LogWriter:
    """Appends records to a log, from `Log.writer`. A context manager: at its end the records under way are awaited.

    Records are in the log in the order of the calls. When another writer has opened the log, every method raises LogFenced.
    """

    def __init__(self, name: str, appender: Appender, ledgers: Ledgers) -> None:
        self._name = name
        self._appender = appender
        self._display = ledgers.display
        self._deadlines = Deadlines(ledgers.world, name)

    async def append(self, data: bytes, *, deadline_s: float | None = None) -> int:
        """Append a record, and return its position. It is synced on `ack_quorum` stores then.

        Raises LogFenced; TimedOut after `deadline_s`: the record may be in the log, or get there yet.
        """
        return await self._await(self._appender.append((checked_bytes(data, RECORD),)), deadline_s)

    async def append_many(self, records: Iterable[bytes], *, deadline_s: float | None = None) -> range:
        """Append records, next to each other, and return their positions. Far faster than one by one.

        Returns when all are acknowledged; raises as `append`, and some of them may be in the log then, the first ones."""
        given = [checked_bytes(record, RECORD) for record in records]
        if not given:
            return range(0)
        first = await self._shown(given, deadline_s)
        return range(first, first + len(given))

    @property
    def sequence(self) -> int:
        """How many records the writer's producer has in the log, with those under way: the number of its next record."""
        if not self._appender.producer:
            raise InvalidArgument(
                f"this writer of log {self._name!r} has no producer, whose records could be counted; open it with writer(producer=...)"
            )
        return self._appender.sequence

    async def append_once(
        self, records: Iterable[bytes], sequence: int, *, deadline_s: float | None = None
    ) -> int:
        """Append those of these records that are not in the log yet, and return how many that were.

        `sequence`: the number of the first one among the producer's records, from 0. A call whose answer was lost can be made again,
        with the same numbers, by this writer or by a later one of the same producer. Raises InvalidArgument if records before
        `sequence` are missing; raises as `append_many` otherwise.
        """
        given = [checked_bytes(record, RECORD) for record in records]
        first, present = check_int("sequence", sequence, 0), self.sequence
        if first > present:
            raise InvalidArgument(
                f"sequence is {first}, and producer {self._appender.producer!r} has {present} records in log {self._name!r}; append "
                f"those from {present} on first"
            )
        absent = given[present - first :]
        if absent:
            await self._shown(absent, deadline_s)
        elif (last := self._appender.appended()) is not None:
            await self._await(last, deadline_s)
        return len(absent)

    async def append_table(self, table: Any, *, deadline_s: float | None = None) -> int:
        """Append an Arrow table, or anything that offers `__arrow_c_stream__`, as one record; `read_tables` reads it."""
        return await self.append(table_record(pa.table(table)), deadline_s=deadline_s)

    async def _shown(self, given: Sequence[bytes], deadline_s: float | None) -> int:
        """Append records while their number is shown. Returns the position of the first."""
        before = self._appender.acknowledged
        look = counting(lambda: self._appender.acknowledged - before, len(given), "record")
        with watching(self._display, f"append to {self._name}", look):
            return await self._await(self._appender.append(given), deadline_s)

    async def _await(self, future: asyncio.Future[int], deadline_s: float | None) -> int:
        return await self._deadlines.within(check_deadline(deadline_s), future)

    async def close(self) -> None:
        """Wait for the records under way, and leave the log to the next writer."""
        await self._appender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<ebla.aio.LogWriter of {self._name!r}>"


def table_record(table: pa.Table) -> bytes:
    """An Arrow table as one record."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    record: bytes = sink.getvalue().to_pybytes()
    return record


def producer_name(given: Any) -> str:
    """Raises InvalidArgument."""
    name = check_text("producer", given)
    if not 1 <= len(name.encode()) <= PRODUCER_BYTES_MAX or not name.isprintable():
        raise InvalidArgument(
            f"the name of a producer has 1 to {PRODUCER_BYTES_MAX} bytes of printable text, not {name[:PRODUCER_BYTES_MAX]!r}"
        )
    return name


def settings_of(**given: Any) -> LogSettings:
    """The settings; None stands for the default. Raises InvalidArgument."""
    chosen = {name: value for name, value in given.items() if value is not None}
    for name, value in chosen.items():
        chosen[name] = (
            check_deadline(value, name) if name in ("retain_s", "roll_s") else check_int(name, value, 1)
        )
    made = LogSettings(**chosen)
    made.validate()
    return made
