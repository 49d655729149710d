"""How a writer takes its place in a log: ends the ledger of the writer before, and adds one of its own.

One change of the namespace makes the ledger and adds it to the log, by compare-and-set: a client that dies leaves no ledger that no
log names. A change whose answer is lost is not made again before it is known whether it was made: the new ledger has a token.

Before a ledger is ended for another one, `require_room` asks whether that one can be made: otherwise a writer would be ended, and
none could follow it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from ebla.actors.coordination.errors import LimitReached, VersionMismatch
from ebla.actors.errors import NotFound
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.writer import Writer
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared import paths
from ebla.actors.world import CallerWorld
from ebla.log import records
from ebla.log.options import LogFenced
from ebla.log.reading import RETRY_S, Ledgers, passes
from ebla.log.records import LogLedger, LogRecord
from ebla.storage.errors import EblaError, OverLimit

T = TypeVar("T")


async def require_room(ledgers: Ledgers, name: str, record: LogRecord) -> None:
    """Raises OverLimit, NotEnoughStores or LimitReached if the log can have no further ledger now."""
    if len(record.ledgers) >= records.LEDGERS_MAX:
        raise OverLimit(
            f"log {name!r} has {len(record.ledgers):,} ledgers, and each opening of a writer needs another one; trim the log, or "
            "keep one writer open for many records",
            limit="log_ledgers",
            most=records.LEDGERS_MAX,
        )
    settings = record.settings
    await ledgers.registry.require_room(settings.ensemble, settings.write_quorum, settings.ack_quorum, name)


async def end(ledgers: Ledgers, name: str, part: LogLedger) -> Metadata | None:
    """End the ledger of the writer before. None if the log has other ledgers by now: this one was empty, and is deleted."""
    try:
        return await recover(ledgers.world, ledgers.registry, ledgers.stores, part.ledger, ledgers.options)
    except NotFound:
        await ledgers.without(name, part)
        return None


async def begin(
    ledgers: Ledgers,
    name: str,
    record: LogRecord,
    before: LogLedger | None,
    first: int,
    empty: bool,
    producer: str | None = None,
    counted: int | None = None,
    has_ended: Callable[[], bool] = lambda: True,
) -> tuple[LogRecord, Writer] | None:
    """Make a ledger that begins at position `first`, and add it to the log; arguments as of `records.appended`. It begins later if
    records from `first` on are trimmed, which are lost for good. None if another writer was first. Stores, masters and room that are
    missing are waited for until the writer has ended (`has_ended`)."""
    settings = record.settings
    made: Metadata
    counted_s: int | None = None
    tried: dict[str, Metadata] = {}  # by token

    def transform(found: LogRecord) -> LogRecord:
        own = LogLedger(records.NEW, max(first, found.trimmed), counted_s=counted_s)
        changed = records.appended(found, before, own, empty, producer, counted)
        if changed is None:
            raise LogFenced(f"another writer has opened log {name!r}", log=name)
        return changed

    async def added() -> tuple[LogRecord, Metadata] | None:
        nonlocal made, counted_s
        while True:
            found = await _own(ledgers, name, tried)
            if found is not None:
                return found
            made, operations = await ledgers.registry.planned(
                settings.ensemble, settings.write_quorum, settings.ack_quorum, name
            )
            tried[made.token] = made
            if settings.retain_s is not None:  # asked now: the ledger before has ended
                counted_s = await ledgers.counted.most_s()
            try:
                return await ledgers.logs.change(f"{paths.LOGS}/{name}", transform, *operations), made
            except VersionMismatch:  # one of its stores may leave, or has ended
                continue
            except LogFenced:
                return await _own(ledgers, name, tried)

    done = await patiently(ledgers.world, added, has_ended)
    if done is None:
        return None
    changed, made = done
    if changed.deleting:
        ledgers.world.spawn(ledgers.sweep_quietly(name), f"delete ledgers of {name}")
    made = meta.replace(made, ledger=changed.ledgers[-1].ledger)
    return changed, Writer(ledgers.world, ledgers.registry, ledgers.stores, made, ledgers.options)


async def _own(
    ledgers: Ledgers, name: str, tried: Mapping[str, Metadata]
) -> tuple[LogRecord, Metadata] | None:
    """The log and its newest ledger, if that is one of these: the change that made it has lost its answer."""
    record = await ledgers.log(name) if tried else None
    if record is None or not record.ledgers:
        return None
    try:
        newest = await ledgers.registry.read(record.ledgers[-1].ledger)
    except NotFound:  # another writer has left it out
        return None
    return (record, tried[newest.token]) if newest.token in tried else None


async def patiently(world: CallerWorld, ask: Callable[[], Awaitable[T]], has_ended: Callable[[], bool]) -> T:
    """The answer, once masters and stores give it, and the namespace has room; as long as the writer has not ended. Each try has the
    deadline of its calls."""
    while True:
        try:
            return await ask()
        except EblaError as error:
            if has_ended() or not (passes(error) or isinstance(error, LimitReached)):
                raise
        await world.clock.sleep(RETRY_S)
