"""How a writer takes its place in a log: ends the ledger of the writer before, and adds one of its own.

One change of the namespace makes the ledger and adds it to the log, by compare-and-set: a client that dies leaves no ledger that no
log names.
"""

from __future__ import annotations

from ebla.actors.coordination.errors import VersionMismatch
from ebla.actors.errors import NotFound
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.writer import Writer
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared import paths
from ebla.log import records
from ebla.log.options import LogFenced
from ebla.log.reading import Ledgers
from ebla.log.records import LogLedger, LogRecord
from ebla.storage.errors import OverLimit


async def end(ledgers: Ledgers, name: str, part: LogLedger) -> Metadata | None:
    """End the ledger of the writer before. None if the log has other ledgers by now: this one was empty, and is deleted."""
    try:
        return await recover(ledgers.world, ledgers.registry, ledgers.stores, part.ledger, ledgers.options)
    except NotFound:
        if part in (await ledgers.log(name)).ledgers:
            raise
        return None


async def begin(
    ledgers: Ledgers,
    name: str,
    record: LogRecord,
    before: LogLedger | None,
    first: int,
    empty: bool,
    producer: str | None = None,
) -> tuple[LogRecord, Writer] | None:
    """Make a ledger that begins at position `first`, and add it to the log; arguments as of `records.appended`. None if another
    writer was first."""
    settings = record.settings
    if len(record.ledgers) - empty >= records.LEDGERS_MAX:
        raise OverLimit(
            f"log {name!r} has {len(record.ledgers):,} ledgers, and each opening of a writer needs another one; trim the log, or "
            "keep one writer open for many records",
            limit="log_ledgers",
            most=records.LEDGERS_MAX,
        )

    def transform(found: LogRecord) -> LogRecord:
        own = LogLedger(records.NEW, first, made.created_us)
        changed = records.appended(found, before, own, empty, producer)
        if changed is None:
            raise LogFenced(f"another writer has opened log {name!r}", log=name)
        return changed

    while True:
        made, operations = await ledgers.registry.planned(
            settings.ensemble, settings.write_quorum, settings.ack_quorum, name
        )
        try:
            changed = await ledgers.logs.change(f"{paths.LOGS}/{name}", transform, *operations)
        except VersionMismatch:  # one of its stores may leave
            continue
        except LogFenced:
            found = await _own(ledgers, name, made)
            if found is None:
                return None
            changed = found
        break
    if changed.deleting:
        ledgers.world.spawn(ledgers.sweep(name), f"delete ledgers of {name}")
    made = meta.replace(made, ledger=changed.ledgers[-1].ledger)
    return changed, Writer(ledgers.world, ledgers.registry, ledgers.stores, made, ledgers.options)


async def _own(ledgers: Ledgers, name: str, made: Metadata) -> LogRecord | None:
    """The log if its newest ledger is this one: the session has expired after the change, and before its answer."""
    record = await ledgers.log(name)
    if not record.ledgers:
        return None
    try:
        newest = await ledgers.registry.read(record.ledgers[-1].ledger)
    except NotFound:  # another writer has left it out
        return None
    return record if newest.token == made.token else None
