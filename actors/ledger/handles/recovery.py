"""Ends the ledger of a writer that is gone, or is to be stopped: decides its last entry, for all clients and for ever.

    1. begin   the metadata becomes in_recovery: the writer can neither replace stores nor close
    2. fence   every store of the last segment is asked; enough must answer that no ack quorum is without a fenced store
    3. read    from the last entry known to be acknowledged on: an entry is in the ledger if any store has it; it is not if so many
               surely lack it that it cannot have been acknowledged. Each read fences, too: "absent" must stay true. If all have answered,
               and there are damaged copies only, the entry is lost: it ends the recovery until an operator has given it up
    4. write   entries that were found are written to an ack quorum again, so that later readers find them
    5. close   the first absent entry ends the ledger; the end is set by compare-and-set
    6. tell    readers that wait at the stores are told to look for the next ledger
    7. mark    stores that were silent, or lack entries at the end, are named for repair: the writer can no longer do so

Several clients may recover at once: all find every acknowledged entry, and the first to close decides. So no reader returns an
entry that one of them may have written before the ledger is closed. A recovery that fails leaves the
ledger in_recovery, and the next one continues. (BookKeeper, with #1067, #2614 and #2615.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Container, Mapping, Sequence

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EntryLost, RecoveryFailed
from ebla.actors.ledger.handles import ends
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.reading import Reader
from ebla.actors.ledger.handles.registry import Registry
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.handles.writer import Writer
from ebla.actors.ledger.metadata import Metadata, Segment
from ebla.actors.world import CallerWorld
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

REWRITE_S = 30.0  # for the entries that are written again


async def recover(
    world: CallerWorld,
    registry: Registry,
    stores: Stores,
    ledger: int,
    options: LedgerOptions,
    gone: Container[str] = (),
    *,
    repair: bool = False,
) -> Metadata:
    """Close the ledger; returns its metadata. Raises RecoveryFailed if too few stores answer: then try again later; EntryLost if there
    are only damaged copies of an entry that may have been acknowledged: then the ledger is marked for repair, too. `gone`: stores that
    an operator has given up. Of those that do not answer, the acknowledged entries that no other store has are not in the ledger; all
    others must answer. `repair`: not in order to write in the writer's place; the caller looks for what stores lack itself."""
    found = await registry.change(ledger, lambda now: meta.recovering(now, repair))
    if found.closed:
        return found
    recovery = _Recovery(world, registry, stores, found, options, gone)
    try:
        closed = await recovery.run()
    except EntryLost as lost:
        if not repair:
            world.spawn(recovery.mark_lost(lost), f"mark ledger {ledger}")
        raise
    if not repair:
        world.spawn(recovery.mark(closed), f"mark ledger {ledger}")
    return closed


def closed_first(now: Metadata, last: int, length: int, made: Sequence[Segment]) -> Metadata:
    """The metadata after a recovery has found this end. The first recovery to close decides. `made`: what has become of the last
    segment."""
    return now if now.closed else meta.closed(now, last, length, made)


class _Recovery:
    def __init__(
        self,
        world: CallerWorld,
        registry: Registry,
        stores: Stores,
        found: Metadata,
        options: LedgerOptions,
        gone: Container[str],
    ) -> None:
        self._world = world
        self._registry = registry
        self._stores = stores
        self._found = found
        self._options = options
        self._gone = gone
        self._newest = found.segments[-1]
        self._made: list[Segment] = [self._newest]  # what becomes of the last segment
        self._start: int | None = None  # the last entry that is known to be acknowledged
        self._lacking: list[str] = []  # stores that the writer owed something, or that are silent

    async def run(self) -> Metadata:
        found = self._found
        last = start = self._start = await self._fence()
        total = length = await self._length_of(start)
        goes_on = True
        while goes_on:
            last, total, goes_on = await self._write_again(last, total)
            last += goes_on  # behind an entry that an operator has given up
        assert last >= start and total >= length, (start, length, last, total)
        made = tuple(self._made)

        closed = await self._registry.change(found.ledger, lambda now: closed_first(now, last, total, made))
        readers_at = (*self._newest.stores, *closed.segments[-1].stores)
        self._stores.tell_closed(closed, readers_at, self._options.timeout_s)
        return closed

    async def _write_again(self, last: int, length: int) -> tuple[int, int, bool]:
        """Write what is found behind `last` to an ack quorum. Returns the last entry of it, the length, and whether one that was given up
        comes next."""
        found = meta.replace(self._found, segments=(*self._found.segments[:-1], *self._made))
        writer = Writer(
            self._world,
            self._registry,
            self._stores,
            found,
            self._options,
            lac=last,
            length=length,
            publish=self._replaced,
        )
        try:
            goes_on = await self._read_forward(writer, last + 1)
            if not await writer.drain(REWRITE_S):
                raise writer.failed or RecoveryFailed(
                    f"the last entries of ledger {found.ledger} could not be written again: too few stores take them",
                    ledger=found.ledger,
                    confirmed=self._start,
                )
            return writer.lac, writer.length, goes_on
        finally:
            writer.stop()

    async def _replaced(self, lac: int, replaced: Mapping[int, str]) -> Metadata:
        """Known to this recovery only until it closes the ledger: so a recovery that fails leaves nothing half done."""
        now = meta.replace(self._found, segments=(*self._found.segments[:-1], *self._made))
        changed = meta.with_replaced(now, lac, replaced)
        self._made = list(changed.segments[len(self._found.segments) - 1 :])
        return changed

    async def mark(self, closed: Metadata) -> None:
        """Name the stores of the last segment that were silent, or lack entries, for repair."""
        segment = closed.segments[-1]
        tails = await self._ask_tails(segment.stores, fence=False)
        await self._mark(sorted({*self._lacking, *_lacking(closed, segment, tails, closed.last)}))

    async def mark_lost(self, lost: EntryLost) -> None:
        """Let workers try again, and operators see why."""
        assert lost.entry is not None
        await self._mark(meta.stores_of(self._found, lost.entry))

    async def _mark(self, stores: Sequence[str]) -> None:
        """A mark is a hint: without it, the next check of all ledgers finds what is missing."""
        for store in stores:
            try:
                await self._registry.mark(self._found.ledger, store)
            except EblaError as error:
                log.warning("ledger %d is not marked for repair: %s", self._found.ledger, error)

    async def _fence(self) -> int:
        """Returns the last entry that is known to be acknowledged."""
        answers = await self._ask_tails(self._newest.stores, fence=True)
        tails = {at: tail for at, tail in enumerate(answers) if not isinstance(tail, EblaError)}
        if not meta.covers(self._found, [*tails, *self._given_up(tails)]):
            raise self._failed("fenced", answers)
        start = ends.start(self._found, [tail.lac for tail in tails.values()])
        self._lacking = _lacking(self._found, self._newest, answers, start)
        return start

    async def _ask_tails(self, stores: Sequence[str], *, fence: bool) -> list[m.Tail | EblaError]:
        async def ask(store: str) -> m.Tail | EblaError:
            request = m.TailRequest(store, self._found.ledger, self._found.token, fence=fence)
            try:
                return await self._stores.call(store, "read_tail", request, m.Tail, self._options.timeout_s)
            except EblaError as error:
                return error

        return await asyncio.gather(*map(ask, stores))

    def _given_up(self, answered: Container[int]) -> list[int]:
        """The positions without an answer whose stores an operator has given up."""
        stores = enumerate(self._newest.stores)
        return [at for at, store in stores if store in self._gone and at not in answered]

    def _failed(self, what: str, answers: Sequence[object], entry: int | None = None) -> RecoveryFailed:
        reasons = "; ".join(
            f"{store}: {answer}"
            for store, answer in zip(self._newest.stores, answers, strict=True)
            if isinstance(answer, EblaError)
        )
        return RecoveryFailed(
            f"ledger {self._found.ledger} could not be {what}: too few of its stores answered ({reasons}); bring them "
            "back, or, if they are lost for good, `ebla nodes forget HOST --accept-loss`",
            ledger=self._found.ledger,
            entry=entry,
            silent=tuple(
                self._newest.stores[at]
                for at in (() if entry is None else meta.positions(self._found, entry))
                if isinstance(answers[at], EblaError)
            ),
            confirmed=self._start,
        )

    async def _length_of(self, entry: int) -> int:
        reader = Reader(self._world, self._registry, self._stores, self._options)
        while entry != meta.NONE:
            try:
                return (await reader.read(self._found, entry, entry))[0].length
            except EntryLost:
                pass
            except Unavailable:
                if not any(store in self._gone for store in meta.stores_of(self._found, entry)):
                    raise
            entry -= 1  # its bytes are lost with it
        return 0

    # -- entries after the last one known to be acknowledged

    async def _read_forward(self, writer: Writer, first: int) -> bool:
        """Give the writer every entry up to the first one that is surely not acknowledged. Returns whether it ends earlier, before one
        that an operator has given up."""
        ahead: deque[m.Entry | None] = deque()
        while True:
            if not ahead:
                ahead.extend(await self._read_batch(first))
            if not ahead:
                return True
            entry = ahead.popleft()
            if entry is None:
                return False
            assert entry.entry == first, (entry.entry, first)
            self._start = max(meta.NONE if self._start is None else self._start, entry.lac)
            writer.add_entry(entry)
            first += 1

    async def _read_batch(self, first: int) -> list[m.Entry | None]:
        """The next entries; None stands for the first that is not in the ledger. None of them if the first one was given up, and
        its fate is open. Otherwise raises RecoveryFailed, or EntryLost if no store can decide it."""
        last = first + self._options.recovery_entries - 1
        answers = await asyncio.gather(
            *(self._ask(position, first, last) for position in range(self._found.ensemble))
        )
        given = {at: answer for at, answer in enumerate(answers) if isinstance(answer, m.ReadReply)}
        gone = self._given_up(given)
        made = ends.decided(self._found, range(first, last + 1), given, gone)
        if made or meta.is_given_up(self._found, first):
            return made
        if not ends.is_lost(self._found, first, given, gone):
            raise self._failed(f"read at entry {first}", answers, first)
        ledger = self._found.ledger
        raise EntryLost(
            f"entry {first} of ledger {ledger} may have been acknowledged, and its stores have damaged copies only; `ebla ledger "
            f"give-up {ledger}` accepts the loss",
            ledger=ledger,
            entry=first,
            confirmed=self._start,
        )

    async def _ask(self, position: int, first: int, last: int) -> m.ReadReply | EblaError:
        store = self._newest.stores[position]
        entries = tuple(meta.entries_of(self._found, position, first, last))
        request = m.ReadRequest(
            store, self._found.ledger, self._found.token, entries, self._options.call_bytes, fence=True
        )
        try:
            return await self._stores.call(
                store, "read_entries", request, m.ReadReply, self._options.timeout_s
            )
        except EblaError as error:
            return error


def _lacking(found: Metadata, segment: Segment, tails: Sequence[m.Tail | EblaError], last: int) -> list[str]:
    """The stores of the segment that are silent, or end before the last entry up to `last` that they should have."""
    lacking = []
    for position, (store, tail) in enumerate(zip(segment.stores, tails, strict=True)):
        owed = meta.owed(found, position, segment.first, last)
        if owed and (isinstance(tail, EblaError) or tail.greatest < owed[-1]):
            lacking.append(store)
    return lacking
