"""The node of a log, and how its records lie in the entries of ledgers.

Records are numbered from 0: a record's number is its position. An entry has one record or more, and the position of the first,
so that a position is found by halving. The position at which a ledger begins is known when it is made, because the ledgers before
it are closed by then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ebla.log.options import RECORD_BYTES_MAX, LogSettings
from ebla.storage.errors import Corruption, InvalidArgument, OverLimit
from ebla.storage.rows.python_values import shown

# A log's ledgers and producers are in one node, whose data is bounded. With the first number of ledgers the writer begins no
# further one by itself, and with the second no writer can open the log.
ROLLED_MAX, LEDGERS_MAX = 1_800, 2_000
ENTRY_RECORDS_MAX = 40_000  # stays as it is, or grows: it bounds how many records a lost entry had
PRODUCERS_MAX = 64  # the last ones that had a writer


# A ledger is made in the change that adds it to its log, and gets its number then: the log is stored with NEW instead.
NEW = 0


class LogLedger(msgspec.Struct, frozen=True, array_like=True):
    """A ledger of a log; its first record is at position `first`. `counted_s`: the most that the counted time of the deployment was
    when it was made; None in a log that keeps records of any age, and in ledgers of older versions. These have `created_us`, which is
    by a wall clock, and decides nothing."""

    ledger: int
    first: int
    created_us: int = 0
    counted_s: int | None = None


class Producer(msgspec.Struct, frozen=True, array_like=True):
    """A program that appends, under a name that outlives its writers. `sequence`: how many records it had in the log when its
    writer began at position `since`. Without `since` it has no writer, and `sequence` is how many it has.

    A writer's records are all records from its first position on, up to the first position of the next writer: so positions
    tell how many there are, also after a crash.
    """

    name: str
    sequence: int
    since: int | None = None


class LogRecord(msgspec.Struct, frozen=True, array_like=True):
    """`trimmed`: records before this position are deleted, or will be. `deleting`: ledgers that are no part of the log any more, and
    are being deleted. `producers`: the one that had a writer last is the last one. `dropped`: the log is no more, and its node goes
    after its ledgers."""

    settings: LogSettings
    created_us: int
    ledgers: tuple[LogLedger, ...] = ()
    trimmed: int = 0
    deleting: tuple[int, ...] = ()
    producers: tuple[Producer, ...] = ()
    dropped: bool = False

    def sequence_of(self, name: str) -> int:
        """How many records the producer had in the log when its last writer began."""
        return next((each.sequence for each in self.producers if each.name == name), 0)

    def end_of(self, at: int) -> int | None:
        """The position after the last record of this ledger; None for the newest one."""
        return self.ledgers[at + 1].first if at + 1 < len(self.ledgers) else None

    def ended_s(self, at: int) -> float:
        """The counted time before which this ledger surely had its last record; infinite if that is not known."""
        later = (each.counted_s for each in self.ledgers[at + 1 :] if each.counted_s is not None)
        return next(later, math.inf)


class Records(msgspec.Struct, frozen=True, array_like=True):
    """The content of an entry."""

    first: int
    records: tuple[bytes, ...]

    @property
    def end(self) -> int:
        return self.first + len(self.records)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Records).decode


def encode(first: int, records: list[bytes]) -> bytes:
    return _encode((first, records))


def decode(ledger: int, entry: int, data: bytes) -> Records:
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise Corruption(f"entry {entry} of ledger {ledger} has no records of a log: {error}") from error


def checked_bytes(data: Any, named: str) -> bytes:
    """Raises InvalidArgument, OverLimit."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise InvalidArgument(f"{named} is bytes, not {shown(data)}; encode it first")
    if len(data) > RECORD_BYTES_MAX:
        raise OverLimit(
            f"{named} has {RECORD_BYTES_MAX:,} bytes at most, and this one has {len(data):,}",
            limit="record_bytes",
            most=RECORD_BYTES_MAX,
        )
    return bytes(data)


def numbered(found: LogRecord, version: int) -> LogRecord:
    """The log as stored in a node of this version, with the number of its newest ledger: the ledger was made just before the node
    was set, in the same change, and numbers and versions are revisions of the namespace."""
    if not found.ledgers or found.ledgers[-1].ledger != NEW:
        return found
    newest = msgspec.structs.replace(found.ledgers[-1], ledger=version - 1)
    return msgspec.structs.replace(found, ledgers=(*found.ledgers[:-1], newest))


def appended(
    found: LogRecord,
    before: LogLedger | None,
    made: LogLedger,
    empty: bool,
    producer: str | None = None,
    counted: int | None = None,
) -> LogRecord | None:
    """The log after a writer has begun a ledger. `before`: the last ledger as the writer has found it; it is left out if it is
    `empty`. `producer`: of a new writer, "" if it has none; None: the writer goes on. `counted`: the position after the last record
    that is readable, if those before the new ledger are lost. None if another writer was first, or the log is dropped."""
    last = found.ledgers[-1] if found.ledgers else None
    if last != before or found.dropped:
        return None
    kept = found.ledgers[:-1] if empty else found.ledgers
    deleting = (*found.deleting, last.ledger) if empty and last is not None else found.deleting
    producers = found.producers if producer is None else begun(found.producers, producer, made.first, counted)
    return msgspec.structs.replace(found, ledgers=(*kept, made), deleting=deleting, producers=producers)


def begun(
    producers: tuple[Producer, ...], name: str, first: int, counted: int | None = None
) -> tuple[Producer, ...]:
    """The producers when a new writer begins at position `first`: the records before it, or before `counted`, are the ones of the
    writer before."""
    end = first if counted is None else counted
    ended = {
        each.name: each.sequence if each.since is None else each.sequence + end - each.since
        for each in producers
    }
    sequence = ended.pop(name, 0)
    made = [Producer(each, count) for each, count in ended.items()]
    return tuple([*made, Producer(name, sequence, first)] if name else made)[-PRODUCERS_MAX:]


def trimmed(found: LogRecord, before: int) -> LogRecord:
    """The log without the ledgers whose records are all before this position. The newest one stays."""
    position = max(found.trimmed, before)
    gone = [each for at, each in enumerate(found.ledgers[:-1]) if (found.end_of(at) or 0) <= position]
    return msgspec.structs.replace(
        found,
        trimmed=position,
        ledgers=found.ledgers[len(gone) :],
        deleting=(*found.deleting, *(each.ledger for each in gone)),
    )


def dropped(found: LogRecord) -> LogRecord:
    """The log without its ledgers: from now on it cannot be used, also if its client does not finish the deletion."""
    ids = (*found.deleting, *(each.ledger for each in found.ledgers))
    return msgspec.structs.replace(found, ledgers=(), deleting=ids, dropped=True)


def expired(found: LogRecord, now_s: float, lengths: Mapping[int, int]) -> int:
    """The position up to which the settings let records be deleted. A ledger is as old as the one after it. `now_s`: the least that
    the counted time is. `lengths`: bytes of closed ledgers."""
    settings, position = found.settings, found.trimmed
    total = sum(lengths.get(each.ledger, 0) for each in found.ledgers)
    for at, each in enumerate(found.ledgers[:-1]):
        total -= lengths.get(each.ledger, 0)
        old = settings.retain_s is not None and now_s - found.ended_s(at) > settings.retain_s
        large = settings.retain_bytes is not None and total >= settings.retain_bytes
        if not (old or large):
            break
        position = max(position, found.ledgers[at + 1].first)
    return position
