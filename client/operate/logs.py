"""The state of a log and of its ledgers. Nothing here disturbs a writer: no ledger is fenced or recovered."""

from __future__ import annotations

import asyncio

import msgspec

from ebla.actors.errors import NotFound, Unavailable
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EntryLost
from ebla.actors.ledger.metadata import Metadata
from ebla.health.survey import gathered
from ebla.log.options import LogSettings
from ebla.log.reading import TOGETHER, Ledgers
from ebla.log.records import LogLedger, LogRecord

CHANGES_MAX = 20  # of a log while it is read


class Part(msgspec.Struct, frozen=True):
    """A ledger of a log: the positions from `first` to before `end`. `bytes`: of all entries, one copy. What too few stores tell
    now is None, and `error` says why. `known_end`: all records before this position are known to be acknowledged."""

    ledger: int
    state: str
    first: int
    end: int | None
    known_end: int
    entries: int | None
    bytes: int | None
    stores: tuple[str, ...]  # uuids, of the newest segment
    error: str | None = None


class LogState(msgspec.Struct, frozen=True):
    """`end`: the position that the next record will have, `records`: between `first` and `end`; None if too few stores tell it, and
    then `unknown` says why. `known_end`: all records before this position are known to be acknowledged. `writer`: see WRITERS."""

    name: str
    first: int
    end: int | None
    known_end: int
    unknown: str | None
    records: int | None
    bytes: int
    writer: str
    settings: LogSettings
    created_us: int
    ledgers: tuple[Part, ...]


# By the state of the newest ledger, as people read it.
WRITERS = {meta.OPEN: "open", meta.IN_RECOVERY: "recovering", meta.CLOSED: "none"}
WRITER_TEXTS = {
    "open": "open: a writer appends, or has ended without closing",
    "recovering": "recovering: the end of the writer before is being decided",
    "none": "none: the last writer has closed it",
}


async def state_of(ledgers: Ledgers, name: str) -> LogState:
    """Raises NotFound."""
    for _ in range(CHANGES_MAX):
        record = await ledgers.log(name)
        try:
            parts = await gathered(
                [_part(ledgers, record, at) for at in range(len(record.ledgers))], TOGETHER
            )
        except NotFound:  # a ledger was trimmed, or left out as empty
            continue
        return _state(name, record, tuple(parts))
    raise Unavailable(f"log {name!r} changes all the time; run the command again")


def _state(name: str, record: LogRecord, parts: tuple[Part, ...]) -> LogState:
    end = parts[-1].end if parts else record.trimmed
    end = None if end is None else max(end, record.trimmed)  # records that are trimmed may be lost, too
    return LogState(
        name,
        record.trimmed,
        end,
        max(record.trimmed, parts[-1].known_end) if parts else record.trimmed,
        parts[-1].error if end is None else None,
        None if end is None else end - record.trimmed,
        sum(part.bytes or 0 for part in parts),
        WRITERS[parts[-1].state] if parts else "none",
        record.settings,
        record.created_us,
        parts,
    )


async def _part(ledgers: Ledgers, record: LogRecord, at: int) -> Part:
    part, known_end = record.ledgers[at], record.end_of(at)
    found = await ledgers.registry.read(part.ledger)
    stores = found.segments[-1].stores
    try:
        entries, size, end = await _extent(ledgers, part, found, known_end)
    except (Unavailable, EntryLost) as error:
        known = known_end
        if known is None:
            known = await ledgers.positions.known_end(part, found, getattr(error, "confirmed", None))
        return Part(part.ledger, found.state, part.first, known_end, known, None, None, stores, error.message)
    return Part(part.ledger, found.state, part.first, end, end, entries, size, stores)


async def _extent(
    ledgers: Ledgers, part: LogLedger, found: Metadata, known_end: int | None
) -> tuple[int, int, int]:
    """Entries, bytes, and the position after the last record."""
    if found.closed and known_end is not None:
        return found.last + 1, found.length, known_end
    last = await ledgers.reader.last_entry(found)
    if last == meta.NONE:
        return 0, 0, part.first
    (entry, *_), end = await asyncio.gather(
        ledgers.reader.read(found, last, last), ledgers.positions.end_of(part, found, last)
    )
    return last + 1, entry.length, end


async def end_of(ledgers: Ledgers, name: str) -> tuple[int, int]:
    """The first position, and the one after the last acknowledged record. Raises NotFound, Unavailable."""
    record, end = await ledgers.bounds(name)
    return record.trimmed, end
