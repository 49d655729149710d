"""Logs as ledgers: where a position is, the records from it on, what can be deleted.

complete   a read sees every record that was acknowledged before it began
stable     a record that was read is in the log for good, at its position
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec import Struct

from ebla.actors.errors import NetworkError, NotFound, TimedOut, Unavailable
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EndUndecided, EndUnknown, EntryLost, RecoveryFailed
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.recovery import recover
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared import records as shared
from ebla.actors.ledger.shared.counting import CountedTime
from ebla.actors.ledger.shared.kept import KeptRegistry
from ebla.actors.ledger.shared.records import LastingSession
from ebla.actors.world import CallerWorld
from ebla.log import records
from ebla.log.options import RecordsTrimmed
from ebla.log.positions import Positions
from ebla.log.records import LogLedger, LogRecord, Records
from ebla.show.progress import Display
from ebla.storage.errors import EblaError, InvalidArgument

log = logging.getLogger("ebla")

FOLLOW_S = 5.0  # one wait at a store
RETRY_S = 0.2
RANGES_MAX = 200  # more tasks than a cluster has CPUs; a log has 2,000 ledgers at most
TOGETHER = 64  # ledgers that are read or deleted at the same time
SILENT_S = 0.5  # the longest wait for a store that is to delete ledgers

Asked = m.TailRequest | m.DeleteRequest


class _Logs(shared.Records[LogRecord]):
    def opened(self, path: str, data: bytes, version: int) -> LogRecord:
        return records.numbered(super().opened(path, data, version), version)


def passes(error: EblaError) -> bool:
    """Whether masters or stores are away, which may return."""
    return error.retriable or isinstance(error, TimedOut)


class Ledgers:
    """The ledgers and logs of one connection, which all of its handles share."""

    def __init__(
        self,
        world: CallerWorld,
        session: LastingSession,
        options: LedgerOptions | None = None,
        display: Display | None = None,
    ) -> None:
        self.world = world
        self.display = display  # shows the progress of long calls
        self.session = session
        self.options = options or LedgerOptions()
        self.registry = KeptRegistry(world, session)
        self.stores = Stores(world, self.registry)
        self.reader = Reader(world, self.registry, self.stores, self.options)
        self.positions = Positions(self.registry, self.reader)
        self.logs = _Logs(session, LogRecord, "log")
        self.counted = CountedTime(session)

    async def log(self, name: str) -> LogRecord:
        """Raises NotFound."""
        found = await self.logs.get(f"{paths.LOGS}/{name}")
        if found is None:
            raise NotFound(f"there is no log {name!r}; db.create_log({name!r}) makes it", what=name)
        if found.dropped:
            raise NotFound(
                f"log {name!r} is being deleted; if that was interrupted, db.drop_log({name!r}) finishes it",
                what=name,
            )
        return found

    async def without(self, name: str, part: LogLedger) -> LogRecord:
        """The log, after the metadata of this ledger were not found: the log should have left it out. Raises NotFound if it has not,
        because then a program that is not ebla has deleted them."""
        record = await self.log(name)
        if part.ledger in (each.ledger for each in record.ledgers):
            path = paths.of_ledger(part.ledger)
            raise NotFound(
                f"the metadata of ledger {part.ledger} of log {name!r} is gone: another program has deleted its node {path}; create the node "
                "again from a backup, or delete the log",
                what=path,
            )
        return record

    # -- positions -------------------------------------------------------------------------------------------

    async def bounds(self, name: str, strict: bool = False) -> tuple[LogRecord, int]:
        """The log, and the position after its last acknowledged record. If the last entries are lost for good, it is the position at
        which a writer would begin now, or after the last readable record of a ledger that is not closed; with `strict` EntryLost
        is raised."""
        return (await self._bounds(name, strict))[:2]

    async def known_bounds(self, name: str) -> tuple[LogRecord, int, EblaError | None]:
        """As `bounds`; while the end is not known: the position after the last record that is known to be acknowledged, and why."""
        while True:
            try:
                return await self._bounds(name)
            except (EntryLost, Unavailable) as error:
                unknown, confirmed = error, getattr(error, "confirmed", None)
            record = await self.log(name)
            part = record.ledgers[-1] if record.ledgers else None
            if part is not None and getattr(unknown, "ledger", None) in (None, part.ledger):
                found = await self.registry.read(part.ledger)
                known = await self.positions.known_end(part, found, confirmed)
                return record, max(record.trimmed, known), unknown

    async def _bounds(self, name: str, strict: bool = False) -> tuple[LogRecord, int, EntryLost | None]:
        """Besides, what is lost if that leaves the end open."""
        record = await self.log(name)
        while record.ledgers:
            part = record.ledgers[-1]
            try:
                found, last = await self.last_entry(await self.registry.read(part.ledger))
                if strict:
                    return record, await self.positions.end_of(part, found, last), None
                readable, free = await self.positions.ends_of(part, found, last)
                lost = None if found.closed or readable == free else _lost_end(found)
                return record, max(record.trimmed, free if found.closed else readable), lost
            except NotFound:  # an empty ledger, which the next writer has left out
                record = await self.without(name, part)
        return record, record.trimmed, None

    async def last_entry(self, found: Metadata, after: int = meta.NONE) -> tuple[Metadata, int]:
        """The metadata, and the last acknowledged entry. A ledger that a recovery has not closed yet is recovered: its writer has
        ended. Raises EndUnknown if too few stores answer, EntryLost if its end is lost."""
        try:
            return found, await self.reader.last_entry(found, after)
        except EndUndecided:
            pass
        try:
            ended = await recover(
                self.world, self.registry, self.stores, found.ledger, self.options, repair=True
            )
        except RecoveryFailed as error:
            raise EndUnknown(error.message, ledger=found.ledger, confirmed=error.confirmed) from error
        return ended, ended.last

    async def ranges(self, name: str, start: int | None, end: int | None) -> list[range]:
        """The positions from `start` to before `end`, in order, one range for each ledger, or for neighbours if there are many. None:
        all that are kept, up to the last record that is acknowledged now. Raises RecordsTrimmed, InvalidArgument."""
        await self._retained(name)
        record, last = await self.bounds(name, strict=end is None)
        first, before = record.trimmed if start is None else start, last if end is None else end
        if first < record.trimmed:
            raise _trimmed(name, record.trimmed)
        if before > last:
            raise InvalidArgument(f"end is {before}, and log {name!r} ends at position {last}")
        cuts = sorted({min(max(first, each.first), before) for each in record.ledgers} | {before})
        step = -(-len(cuts) // RANGES_MAX)
        cuts = [*cuts[:-1:step], *cuts[-1:]]
        return list(map(range, cuts, cuts[1:]))

    # -- reading ---------------------------------------------------------------------------------------------

    async def read(self, name: str, start: int | None, follow: bool) -> AsyncIterator[Records]:
        """Records from position `start` on (None: the first that is kept), in order and without a gap. Without `follow`, up to the
        last record that was acknowledged when the read began, at least. Raises NotFound, RecordsTrimmed, EntryLost, Unavailable."""
        record = await self._retained(name)
        position = record.trimmed if start is None else start
        while True:
            if position < record.trimmed:
                raise _trimmed(name, record.trimmed)
            at, gone = _part_at(record, position), None
            if at is not None:
                part = record.ledgers[at]
                try:
                    async for each in self._read_part(part, position, follow):
                        yield each
                        position = each.end
                    position = max(position, record.end_of(at) or 0)  # behind entries that are lost for good
                except NotFound:  # trimmed meanwhile, or left out as empty
                    gone = part
                except TimedOut as error:
                    await self._wait_for_masters(error, follow)
                    continue
            try:
                newer = await (self.log(name) if gone is None else self.without(name, gone))
            except EblaError as error:
                await self._wait_for_masters(error, follow)
                continue
            _require_same(name, record, newer)
            if newer.ledgers[-1:] == record.ledgers[-1:] and (at is None or at == len(record.ledgers) - 1):
                if not follow:
                    return
                try:
                    await self._changed(name, newer)
                    newer = await self.log(name)
                except EblaError as error:
                    await self._wait_for_masters(error, follow)
                    continue
                _require_same(name, record, newer)
            record = newer

    async def _wait_for_masters(self, error: EblaError, follow: bool) -> None:
        """For the next try of a reader that follows; raises the error for others, and if it will not pass."""
        if not follow or not passes(error):
            raise error
        await self.world.clock.sleep(RETRY_S)

    async def _retained(self, name: str) -> LogRecord:
        """The log without records that are too old: a reader that finds some deletes them first, since the writer may be idle."""
        record = await self.log(name)
        if records.expired(record, await self._counted_s(record), {}) > record.trimmed:
            await self.retain_quietly(name)
            record = await self.log(name)
        return record

    async def _read_part(self, part: LogLedger, position: int, follow: bool) -> AsyncIterator[Records]:
        """The records of one ledger; with `follow`, until it is closed. Raises NotFound if it is deleted."""
        found, beyond = await self.registry.read(part.ledger), None
        try:
            found, last = await self._end(found, meta.NONE, follow)
        except (EndUnknown, EntryLost) as error:
            if error.confirmed is None:
                raise
            last, beyond = error.confirmed, error  # the records up to there are acknowledged
        entry, store = 0, ""
        while position > part.first:
            try:
                entry = await self.positions.entry_of(found, last, position)
                break
            except (EntryLost, Unavailable) as error:
                found = await self._newer(found, error)
        while True:
            while entry <= last:
                try:
                    read = await self.positions.records(found, entry, last)
                except (EntryLost, Unavailable) as error:
                    found = await self._newer(found, error)
                    continue
                for each in read:
                    entry += 1
                    if each.end > position:
                        skipped = max(0, position - each.first)
                        yield Records(each.first + skipped, each.records[skipped:])
            if beyond is not None:
                raise beyond
            if found.closed or not follow:
                return
            store, lac = await self._next(found, last, store)
            last = max(last, lac)
            if last < entry:
                found, end = await self._end(await self.registry.read(part.ledger), last, follow)
                last = max(last, end)

    async def _newer(self, found: Metadata, error: EblaError) -> Metadata:
        """The metadata, if it has changed since: an entry may be on other stores by now. Otherwise raises the error. Raises NotFound if
        the ledger is deleted."""
        newer = await self.registry.read(found.ledger)
        if newer == found:
            raise error
        return newer

    async def _end(self, found: Metadata, after: int, follow: bool) -> tuple[Metadata, int]:
        """The metadata, and the last acknowledged entry. A follower waits until it can be known."""
        while True:
            try:
                return await self.last_entry(found, after)
            except Unavailable:
                if not follow:
                    raise
            await self.world.clock.sleep(RETRY_S)
            found = await self.registry.read(found.ledger)

    async def _next(self, found: Metadata, after: int, store: str) -> tuple[str, int]:
        """Wait a while for an acknowledged entry after this one, at this store if there is one: its writer tells a store at which a reader
        waits at once. Returns the store for the next time."""
        try:
            answered, lac = await self.reader.next_lac(found, store, after, FOLLOW_S)
        except EblaError:
            await self.world.clock.sleep(RETRY_S)
            return "", after
        return answered if lac > after else "", lac

    async def _changed(self, name: str, known: LogRecord) -> None:
        """Wait a while for a change of the log."""
        path = f"{paths.LOGS}/{name}"
        watch = await self.session.nodes.watch(path, deadline_s=shared.DEADLINE_S)
        if await self.logs.get(path) != known:
            return
        try:
            await watch.change(FOLLOW_S)
        except TimedOut:
            return

    async def entries(self, ledger: int, first: int, last: int) -> AsyncIterator[m.Entry]:
        """The entries of a ledger, as they are. Raises NotFound, EntryLost, Unavailable."""
        found = await self.registry.read(ledger)
        while first <= last:
            try:
                read = await self.reader.read(found, first, last)
            except (EntryLost, Unavailable) as error:
                found = await self._newer(found, error)
                continue
            for entry in read:
                yield entry
            first += len(read)

    async def every(self, of: Sequence[int] | None = None) -> list[Metadata]:
        """All ledgers, ascending; or those of the given ones that are there."""

        async def one(ledger: int) -> Metadata | None:
            try:
                return await self.registry.read(ledger)
            except NotFound:  # deleted meanwhile
                return None

        ids = await self.registry.list() if of is None else of
        found: list[Metadata | None] = []
        for at in range(0, len(ids), TOGETHER):
            found += await asyncio.gather(*map(one, ids[at : at + TOGETHER]))
        return [each for each in found if each is not None]

    # -- deleting --------------------------------------------------------------------------------------------

    async def trim(self, name: str, before: int) -> None:
        """Delete the records before a position: whole ledgers at once, the others when their ledger ends."""
        await self._let_go(name, lambda found: records.trimmed(found, before))

    async def _let_go(self, name: str, transform: Callable[[LogRecord], LogRecord]) -> None:
        await self.logs.change(f"{paths.LOGS}/{name}", transform)
        await self.sweep(name)

    async def retain_quietly(self, name: str) -> None:
        """As `retain`; if it fails, the next writer or reader tries again."""
        try:
            await self.retain(name)
        except EblaError as error:
            log.info("log %s: old records are deleted later: %s", name, error)

    async def retain(self, name: str, open_bytes: Mapping[int, int] | None = None) -> None:
        """Delete what the log's settings let go. `open_bytes`: of the ledger that its writer has."""
        record = await self.log(name)
        lengths: dict[int, int] = {}
        if record.settings.retain_bytes is not None:
            lengths = {each.ledger: (await self.registry.read(each.ledger)).length for each in record.ledgers}
            lengths.update(open_bytes or {})
        counted_s = await self._counted_s(record)

        def without(found: LogRecord) -> LogRecord:
            """Decided about the log as it is: by now it may be another one of this name."""
            return records.trimmed(found, records.expired(found, counted_s, lengths))

        if without(record) != record:
            await self._let_go(name, without)

    async def _counted_s(self, record: LogRecord) -> float:
        """The counted time, if it matters."""
        return 0.0 if record.settings.retain_s is None else await self.counted.least_s()

    async def sweep_quietly(self, name: str) -> None:
        try:
            await self.sweep(name)
        except EblaError as error:
            log.info("log %s: its old ledgers are deleted later: %s", name, error)

    async def sweep(self, name: str) -> None:
        """Delete the ledgers that are no part of the log any more. What fails is left for the next sweep."""
        found = await self.logs.get(f"{paths.LOGS}/{name}")  # also of a log that is dropped
        gone = () if found is None else found.deleting
        if not gone:
            return
        await self.discard(await self.every(gone))

        def without(found: LogRecord) -> LogRecord:
            return meta.replace(found, deleting=tuple(each for each in found.deleting if each not in gone))

        await self.logs.change(f"{paths.LOGS}/{name}", without)

    async def discard(self, ledgers: Sequence[Metadata]) -> None:
        """Delete ledgers: their metadata, then the entries at the stores that can be reached. The other stores find out by themselves,
        as all of them do if this ends in between. In the other order a ledger could stay that stores refuse as deleted, so that
        nobody could repair it."""
        fences: dict[str, list[Asked]] = {}
        deletions: dict[str, list[Asked]] = {}
        for found in ledgers:
            for store in meta.stores_in(found):
                deletions.setdefault(store, []).append(m.DeleteRequest(store, found.ledger, found.token))
                if not found.closed:  # a writer that is not asked would go on until its stores find out
                    fence = m.TailRequest(store, found.ledger, found.token, fence=True)
                    fences.setdefault(store, []).append(fence)

        await asyncio.gather(*(self._ask_each("read_tail", each, m.Tail) for each in fences.values()))
        for at in range(0, len(ledgers), TOGETHER):
            together = ledgers[at : at + TOGETHER]
            await asyncio.gather(*(self.registry.delete(found.ledger) for found in together))
        await asyncio.gather(*(self._ask_each("delete_ledger", each, m.Done) for each in deletions.values()))

    async def _ask_each(self, method: str, requests: Sequence[Asked], reply: type[Struct]) -> None:
        """Send one store these requests, until it gives no answer: so one that is silent is waited for once, and shortly. It
        carries out what has arrived, and finds out about the rest."""
        for request in requests:
            try:
                await self.stores.call(request.store, method, request, reply, SILENT_S)
            except EblaError as error:
                log.info("ledger %d stays on store %s for now: %s", request.ledger, request.store, error)
                if isinstance(error, NetworkError):
                    return


def _trimmed(name: str, first: int) -> RecordsTrimmed:
    return RecordsTrimmed(
        f"the records of log {name!r} before position {first} have been deleted; start there, or leave the position out",
        log=name,
        first=first,
    )


def _lost_end(found: Metadata) -> EntryLost:
    return EntryLost(
        f"the last entries of ledger {found.ledger} have no sound copy, and its end is not decided; the next writer of the log decides it",
        ledger=found.ledger,
    )


def _require_same(name: str, before: LogRecord, found: LogRecord) -> None:
    if found.created_us != before.created_us:
        raise NotFound(
            f"log {name!r} has been deleted, and made again, while it was read; read it from its beginning",
            what=name,
        )


def _part_at(record: LogRecord, position: int) -> int | None:
    """The ledger that has this position, or will have it."""
    for at in range(len(record.ledgers) - 1, -1, -1):
        if record.ledgers[at].first <= position:
            return at
    return 0 if record.ledgers else None
