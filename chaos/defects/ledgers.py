"""Defects of ledgers and logs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from ebla.actors.coordination.messages import Create, Set
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles import ends, recovery, writer
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.window import Window
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared import records as shared
from ebla.actors.ledger.store import rules
from ebla.actors.ledger.store.arrivals import Arrivals
from ebla.actors.ledger.store.records import Head
from ebla.actors.ledger.store.store import LedgerStore
from ebla.chaos.defects.defect import STORES_START_AGAIN, Swap, defect
from ebla.log import reading, records
from ebla.log.appender import Appender
from ebla.log.awaited import LogWriter


@defect("events", 60, Window, "_counted", seed=0)
def entry_acknowledged_early(original: Any, self: Window, pending: Any) -> int:
    """A writer acknowledges an entry that one store less than the ack quorum has."""
    counted: int = original(self, pending)
    return counted + 1


@defect("events", 60, ends, "fate", seed=3)
def one_absence_is_enough(original: Any, found: Metadata, number: int, answers: Any, gone: Any = ()) -> Any:
    """A recovery ends a ledger before an entry that one store lacks."""
    for position in meta.positions(found, number):
        if position in answers and number in answers[position].absent:
            return None
    return original(found, number, answers, gone)


@defect("events", 60, seed=6)
def unconfirmed_entries_read() -> list[Swap]:
    """A reader returns entries that one store has, and that a recovery may drop."""

    def durable(found: Metadata, known: int, tails: Mapping[int, m.Tail]) -> tuple[int, bool]:
        return max([known, *(last for tail in tails.values() for _, last in tail.held)]), True

    def undecided(known: int, end: int, tails: Mapping[int, m.Tail]) -> bool:
        return False

    return [(ends, "durable", durable), (ends, "undecided", undecided)]


@defect("events", 60, ends, "durable", seed=2)
def confirmed_entries_only(found: Metadata, known: int, tails: Mapping[int, m.Tail]) -> tuple[int, bool]:
    """A reader misses acknowledged entries that no store knows to be acknowledged."""
    return known, True


@defect("events", 60, records, "appended", seed=0)
def writer_overtakes(original: Any, found: records.LogRecord, before: Any, *others: Any) -> Any:
    """A writer adds its ledger to the log, although another writer was first."""
    return original(found, found.ledgers[-1] if found.ledgers else None, *others)


@defect("events", 60, shared.Records, "change")
async def ledger_made_alone(original: Any, self: Any, path: str, transform: Any, *others: Any) -> Any:
    """A writer makes its ledger in one change, and adds it to the log in another one."""
    if any(isinstance(each, Create) for each in others):
        session = await self._session.open()
        await session.change(*others, deadline_s=shared.DEADLINE_S)
        others = ()
    return await original(self, path, transform, *others)


@defect("events", 60, Arrivals, "moves")
def arrivals_removed_unmoved(original: Any, self: Arrivals, *bounds: Any) -> Any:
    """A store removes entries from the order of their arrival before they are with their ledger."""
    changes, numbers = original(self, *bounds)
    return changes[1:], numbers


@defect("events", 60, LedgerStore, "_fence", seed=6, faults=STORES_START_AGAIN)
async def fence_in_memory(self: LedgerStore, ledger: int, head: Any) -> None:
    """A store that starts again forgets that a ledger is fenced."""
    self.heads[ledger] = rules.fenced(head)


@defect("events", 60, recovery._Recovery, "_read_forward", seed=2)
async def recovery_ends_at_the_known(self: Any, ledger: writer.Writer, first: int) -> bool:
    """A recovery ends a ledger at the last entry that its stores know to be acknowledged."""
    return False


@defect("events", 60, shared, "Set", seed=0)
def records_set_without_versions(path: str, data: bytes, version: int) -> Set:
    """A record of a ledger or a log is set although another change came first."""
    return Set(path, data)


@defect("events", 60, Appender, "_taken")
def newest_append_first(original: Any, self: Appender) -> Any:
    """A writer sends the newest of the appends that wait first."""
    self._queue.reverse()
    return original(self)


@defect("events", 60, LogWriter, "append_many")
async def call_in_reverse(original: Any, self: LogWriter, given: Iterable[bytes], **options: Any) -> Any:
    """A writer appends the records of one call in reverse."""
    return (await original(self, list(given)[::-1], **options))[::-1]


@defect("events", 60, reading.Ledgers, "read")
async def earlier_ledgers_refused(
    original: Any, self: reading.Ledgers, name: str, start: int | None, follow: bool
) -> AsyncIterator[Any]:
    """A reader that begins before the last ledger gets the answer that the records were deleted."""
    last = (await self.log(name)).ledgers[-1:]
    if start is not None and last and start < last[0].first:
        raise reading._trimmed(name, last[0].first)
    async for each in original(self, name, start, follow):
        yield each


@defect("ledgers", 60, meta, "covers", seed=0)
def spread_stores_uncounted(found: Metadata, answered: Iterable[int]) -> bool:
    """The end of a ledger is concluded from as many answers as one entry needs, although more stores have entries."""
    return len(list(answered)) >= found.needed


@defect("ledgers", 60, rules, "admit_add")
def fenced_ledger_written(original: Any, head: Any, request: m.AddRequest, read_only: bool) -> Any:
    """A store takes entries of a writer whose ledger is fenced."""
    if head is None or head.deleted or not head.fenced:
        return original(head, request, read_only)
    return rules.fenced(original(Head(head.token), request, read_only))


@defect("ledgers", 60, Reader, "read_some")
async def stripe_of_another_entry(
    original: Any, self: Reader, found: Metadata, *wanted: Any, **of: Any
) -> Any:
    """A reader looks for an entry on the stores of another one."""

    def turned(stores: tuple[str, ...]) -> tuple[str, ...]:
        return (*stores[found.write_quorum :], *stores[: found.write_quorum])

    segments = tuple(meta.Segment(each.first, turned(each.stores)) for each in found.segments)
    return await original(self, meta.replace(found, segments=segments), *wanted, **of)
