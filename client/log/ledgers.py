"""Ledgers as they are, for programs that keep a log of their own shape: entries of one writer, numbered from 0, closed for ever.

async with db.create_ledger() as writer:
    entry = await writer.add(b"...")                # synced on two of three stores when it returns
ledger = await db.open_ledger(writer.ledger)        # ends the writer, and closes the ledger, if it is still open
async for entry in ledger.read(): ...

A log is a list of ledgers with readers that follow, retention and exactly-once appends: most programs want a log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import NamedTuple

import msgspec
from typing_extensions import Self

from ebla.actors.errors import NotFound, TimedOut
from ebla.actors.ledger.errors import LedgerClosed, LedgerError, LedgerFenced
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.writer import Writer
from ebla.actors.ledger.metadata import Metadata
from ebla.arguments import check_deadline, check_int
from ebla.log.options import ACK_QUORUM, ENSEMBLE, WRITE_QUORUM
from ebla.log.reading import Ledgers
from ebla.log.records import checked_bytes
from ebla.show.handles import shown as showing
from ebla.storage.errors import InvalidArgument

TOGETHER = 1_000  # entries of `add_many` under way
CLOSE_S = 10.0


class LedgerEntry(NamedTuple):
    """An entry of a ledger, and its number: from 0, without a gap."""

    entry: int
    data: bytes


@showing
class LedgerInfo(msgspec.Struct, frozen=True):
    """A ledger, as its metadata describes it.

    Attributes:
        ledger: Its id.
        state: "open", "in_recovery" or "closed".
        last: The last entry, -1 if there is none. None until the ledger is closed.
        length: The bytes of all entries. None until the ledger is closed.
        ensemble: The number of stores over which entries are spread.
        write_quorum: On how many of them each entry is.
        ack_quorum: How many must have synced an entry before it is acknowledged.
        log: The log that the ledger is a part of, or "".
        created_us: When it was created, in microseconds since 1970 (UTC).
    """

    ledger: int
    state: str
    last: int | None
    length: int | None
    ensemble: int
    write_quorum: int
    ack_quorum: int
    log: str
    created_us: int


def info_of(found: Metadata) -> LedgerInfo:
    return LedgerInfo(
        found.ledger,
        found.state,
        found.last if found.closed else None,
        found.length if found.closed else None,
        found.ensemble,
        found.write_quorum,
        found.ack_quorum,
        found.log,
        found.created_us,
    )


class LedgerWriter:
    """Adds entries to a new ledger, from `Database.create_ledger`. A context manager: at its end the ledger is closed.

    Entries are in the ledger in the order of the calls. When another client has opened the ledger with recovery, every method
    raises LedgerFenced; entries that were under way may be in the ledger.
    """

    def __init__(self, ledgers: Ledgers, found: Metadata) -> None:
        self._ledgers = ledgers
        self._writer = Writer(ledgers.world, ledgers.registry, ledgers.stores, found, ledgers.options)

    @property
    def ledger(self) -> int:
        """The ledger's number."""
        return self._writer.metadata.ledger

    @property
    def last_confirmed(self) -> int:
        """The last acknowledged entry; -1: there is none."""
        return self._writer.lac

    async def add(self, data: bytes, *, deadline_s: float | None = None) -> int:
        """Add an entry, and return its number. It is synced on `ack_quorum` stores then.

        Raises LedgerFenced, LedgerClosed; TimedOut after `deadline_s`: the entry may be in the ledger, or get there yet.
        """
        return (await self.add_many((data,), deadline_s=deadline_s))[0]

    async def add_many(self, entries: Iterable[bytes], *, deadline_s: float | None = None) -> range:
        """Add entries, and return their numbers. Far faster than one by one.

        Returns when all are acknowledged; raises as `add`, and some of them may be in the ledger then, the first ones."""
        given = [checked_bytes(data, "an entry of a ledger") for data in entries]
        limit_s = check_deadline(deadline_s)
        last = -1
        try:
            async with self._ledgers.world.clock.timeout(limit_s):
                for at in range(0, len(given), TOGETHER):
                    added = [self._writer.add(data) for data in given[at : at + TOGETHER]]
                    last = await asyncio.shield(added[-1])  # and so are the others: in order
        except TimeoutError as error:
            if isinstance(error, TimedOut):
                raise
            raise TimedOut(
                f"entries of ledger {self.ledger} were not acknowledged within {limit_s:g} s; they may be in the ledger, or get there "
                "yet",
                deadline_s=limit_s,
            ) from None
        return range(last + 1 - len(given), last + 1)

    async def close(self) -> LedgerInfo:
        """Wait for the entries under way, and close the ledger for ever. Closing twice is no error.

        Raises LedgerFenced if another client has ended the ledger; RecoveryFailed if the last entries are not acknowledged, and too
        few stores answer: then close it again.
        """
        ledgers, writer = self._ledgers, self._writer
        if writer.failed is None and not await writer.drain(CLOSE_S):
            writer.stop()
        if isinstance(
            writer.failed, LedgerClosed
        ):  # if it is open yet, only a recovery decides about the last entries
            found = await recover(
                ledgers.world, ledgers.registry, ledgers.stores, self.ledger, ledgers.options
            )
        else:
            found = await writer.close()
        return info_of(found)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self.close()
        except LedgerFenced:
            if exception[0] is None:
                raise

    def __repr__(self) -> str:
        return f"<ebla.aio.LedgerWriter of ledger {self.ledger}>"


class Ledger:
    """A ledger to be read, from `Database.open_ledger`. Raises NotFound if it was deleted."""

    def __init__(self, ledgers: Ledgers, ledger: int) -> None:
        self._ledgers = ledgers
        self._ledger = ledger

    @property
    def ledger(self) -> int:
        """The ledger's number."""
        return self._ledger

    async def info(self) -> LedgerInfo:
        """Get its state, and its end once it is closed."""
        return info_of(await self._ledgers.registry.read(self._ledger))

    async def last_confirmed(self) -> int:
        """Ask the stores for the last acknowledged entry; -1: there is none. Of an open ledger at least every entry that was acknowledged
        before the call. Raises Unavailable if too few stores answer."""
        found = await self._ledgers.registry.read(self._ledger)
        return (await self._ledgers.last_entry(found))[1]

    async def read(self, first: int = 0, last: int | None = None) -> AsyncGenerator[LedgerEntry, None]:
        """Read entries from `first` to `last`, in order; None: the last acknowledged one. Raises InvalidArgument for an entry after
        it; EntryLost, Unavailable if an entry cannot be read."""
        start = check_int("first", first, 0)
        end = await self.last_confirmed()
        if last is not None and check_int("last", last, 0) > end:
            raise InvalidArgument(
                f"last is {last}, and the last acknowledged entry of ledger {self._ledger} is {end}"
            )
        async for entry in self._ledgers.entries(self._ledger, start, end if last is None else last):
            yield LedgerEntry(entry.entry, entry.data)

    def __repr__(self) -> str:
        return f"<ebla.aio.Ledger {self._ledger}>"


async def create(
    ledgers: Ledgers, ensemble: int | None, write_quorum: int | None, ack_quorum: int | None
) -> LedgerWriter:
    made = await ledgers.registry.create(
        ENSEMBLE if ensemble is None else check_int("ensemble", ensemble, 1),
        WRITE_QUORUM if write_quorum is None else check_int("write_quorum", write_quorum, 1),
        ACK_QUORUM if ack_quorum is None else check_int("ack_quorum", ack_quorum, 1),
    )
    return LedgerWriter(ledgers, made)


async def open_ledger(ledgers: Ledgers, ledger: int, recovers: bool) -> Ledger:
    found = await _found(ledgers, ledger)
    if recovers and not found.closed:
        _require_of_no_log(
            found, "is not recovered: open the log with log.writer(), or the ledger with recover=False"
        )
        try:
            await recover(ledgers.world, ledgers.registry, ledgers.stores, ledger, ledgers.options)
        except LedgerError:  # another client may have deleted it meanwhile
            await _found(ledgers, ledger)
            raise
    return Ledger(ledgers, ledger)


async def delete(ledgers: Ledgers, ledger: int) -> None:
    found = await _found(ledgers, ledger)
    _require_of_no_log(found, "is deleted with its records: by log.trim(), retention, or drop_log()")
    await ledgers.discard([found])


async def _found(ledgers: Ledgers, ledger: int) -> Metadata:
    try:
        return await ledgers.registry.read(check_int("ledger", ledger, 0))
    except NotFound:
        raise NotFound(f"there is no ledger {ledger}; db.ledgers() lists them", what=str(ledger)) from None


def _require_of_no_log(found: Metadata, remedy: str) -> None:
    if found.log:
        raise InvalidArgument(f"ledger {found.ledger} is a part of log {found.log!r}, and {remedy}")
