"""How a writer takes its place in a log: ends the ledger of the writer before, and adds one of its own by compare-and-set."""

from __future__ import annotations

from ebla.actors.errors import NotFound
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
    made: Metadata = await ledgers.registry.create(
        settings.ensemble, settings.write_quorum, settings.ack_quorum, name
    )
    own = LogLedger(made.ledger, first, made.created_us)

    def transform(found: LogRecord) -> LogRecord:
        changed = records.appended(found, before, own, empty, producer)
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
