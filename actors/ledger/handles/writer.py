"""The writer of one ledger: numbers entries, sends them to their stores, acknowledges them in order.

    acknowledged   an entry is acknowledged when `ack_quorum` of its stores have synced it, and so are all entries before it
    replaced       a store that fails for `replace_s` is replaced from the entry after the last acknowledged one on, and so is one whose
                   host is being decommissioned. Without another store the writer goes on with those that it has
    stable         an entry that an ack quorum of the present ensemble has stays on one through every replacement, so that a reader
                   may return it before it is acknowledged
    fenced         a client that recovers the ledger ends this writer; entries under way may be in the ledger, or not
    marked         entries that a store owes when the writer leaves it are marked for repair

A replacement has three steps. The old store gets nothing more, and the new one gets every entry that is not acknowledged. When it
has them, the metadata changes. From then on its entries count; in between only the other stores' entries do, so that it does not
matter whether the change has been made while its answer is lost.

A recovery uses the same writer: it gives entries that are numbered already, and publishes its replacements with the end of the
ledger only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from ebla.actors.errors import NotFound
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced, StoreLeaving
from ebla.actors.ledger.handles.channel import FATAL, Channel
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.registry import Registry, Transform
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.handles.window import Window
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.world import CallerWorld, settle
from ebla.storage.errors import EblaError

log = logging.getLogger(__name__)

SEARCH_S = 4.0  # between two searches for another store while there is none

Publish = Callable[[int, Mapping[int, str]], Awaitable[Metadata]]


class Writer:
    def __init__(
        self,
        world: CallerWorld,
        registry: Registry,
        stores: Stores,
        found: Metadata,
        options: LedgerOptions,
        *,
        lac: int = meta.NONE,
        length: int = 0,
        publish: Publish | None = None,
    ) -> None:
        """`lac` and `length`: the entry before the first one. `publish`: makes replacements known; a recovery has its own."""
        self.metadata = found
        self.failed: EblaError | None = None
        self._world = world
        self._registry = registry
        self._stores = stores
        self._options = options
        self._recovery = publish is not None
        self._publish = publish or self._publish_replaced
        self._sent_length = length
        self._window = Window(found, lac, length)
        self._joining: dict[int, Channel] = {}  # position -> the channel to its next store
        self._closing = False  # no further entry is taken
        self._ending = False  # with all entries acknowledged: `close` decides this end
        self._repairing = False  # a task replaces stores
        self._has_spares = False  # when it looked last
        self._search_at = 0.0  # when it looks again for one in place of a store that fails
        self._replace_at = 0.0  # when it looks again for one in place of a store that leaves
        self._news = asyncio.Event()  # a store has taken or refused something
        newest = found.segments[-1].stores
        self._channels = [self._channel(position, store) for position, store in enumerate(newest)]

    @property
    def lac(self) -> int:
        """The last acknowledged entry."""
        return self._window.lac

    @property
    def length(self) -> int:
        """Bytes of all entries up to the last acknowledged one."""
        return self._window.length

    def _channel(self, position: int, store: str) -> Channel:
        found = self.metadata
        return Channel(
            self._world,
            self._stores,
            self._options,
            found.ledger,
            found.token,
            position,
            store,
            self._recovery,
            self._added,
            self._not_added,
        )

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, data: bytes) -> asyncio.Future[int]:
        """Add an entry; the future has its number once it is acknowledged. Raises LedgerClosed or LedgerFenced."""
        self._require_open()
        if self._closing:
            ledger = self.metadata.ledger
            raise LedgerClosed(f"ledger {ledger} is being closed", ledger=ledger)
        length = self._sent_length + len(data)
        return self.add_entry(m.make_entry(self.metadata.ledger, self._window.next, self.lac, length, data))

    def add_entry(self, entry: m.Entry) -> asyncio.Future[int]:
        """Add the next entry, as another writer has made it."""
        self._require_open()
        self._sent_length = entry.length
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        for position in self._window.add(entry, future):
            self._current(position).send(entry)
        return future

    def _current(self, position: int) -> Channel:
        return self._joining.get(position) or self._channels[position]

    def _every(self) -> tuple[Channel, ...]:
        """Also those to stores that join."""
        return *self._channels, *self._joining.values()

    def _require_open(self) -> None:
        if self.failed is not None:
            raise type(self.failed)(self.failed.message, **self.failed.values())

    def _added(self, channel: Channel, entries: list[m.Entry]) -> None:
        """The channel's store has synced these entries."""
        if self._current(channel.position) is not channel or self.failed is not None:
            return
        self._window.added(channel.position, entries)
        self._acknowledge()
        if channel.leaving and self._world.now() >= self._replace_at:
            self._replace_at = self._world.now() + self._options.ping_s
            self._replace_soon()
        elif channel.position in self._joining:
            self._replace_soon()  # the store failed while it joined, without another one in its place, and is back
        self._news.set()

    def _replace_soon(self) -> None:
        if not self._repairing:
            self._repairing = True
            self._world.spawn(self._repair(), f"replace stores of ledger {self.metadata.ledger}")

    def _acknowledge(self) -> None:
        acknowledged = self._window.acknowledge()
        for pending in acknowledged:
            assert pending.future is not None
            settle(pending.future, pending.entry.entry)
        if acknowledged:
            for channel in self._every():
                channel.acknowledged(self.lac)

    # -- failing stores --------------------------------------------------------------------------------------

    def _not_added(self, channel: Channel, error: EblaError) -> None:
        if self._current(channel.position) is not channel or self.failed is not None:
            return
        if isinstance(error, FATAL):
            self._end(error if isinstance(error, LedgerFenced) else LedgerFenced(error.message))
        elif channel.is_gone and not self._repairing and self._world.now() >= self._search_at:
            log.info("ledger %d: store %s fails: %s", self.metadata.ledger, channel.store, error)
            self._replace_soon()
        self._news.set()

    async def _repair(self) -> None:
        """Replace the stores that are gone, as long as there are others."""
        try:
            while self.failed is None and (gone := self._gone() or list(self._joining)):
                if await self._join(gone):
                    await self._publish_joined()
                elif self.failed is not None or not self._gone():
                    return
                elif not self._has_spares:
                    self._search_at = self._world.now() + SEARCH_S
                    return
                else:
                    await self._world.clock.sleep(self._options.retry_s)
        except EblaError as error:
            self._search_at = self._world.now() + SEARCH_S
            log.info("ledger %d: no store was replaced: %s", self.metadata.ledger, error)
        finally:
            self._repairing = False

    def _gone(self) -> list[int]:
        positions = range(self.metadata.ensemble)
        return [position for position in positions if self._current(position).is_gone]

    async def _join(self, gone: list[int]) -> bool:
        """Give other stores in place of these everything that is not acknowledged. Returns whether they have it."""
        spares = await self._spares()
        for position, store in zip([p for p in gone if self._current(p).is_gone], spares, strict=False):
            self._current(position).stop()
            fresh = self._joining[position] = self._channel(position, store)
            fresh.reach()
            for entry in self._window.join(position):
                fresh.send(entry)
        waits_for = {position: channel.wanted for position, channel in self._joining.items()}
        if not waits_for or self.failed is not None:
            return False
        while not all(self._joining[position].has(wanted) for position, wanted in waits_for.items()):
            if self.failed is not None or any(channel.is_gone for channel in self._joining.values()):
                return False
            self._news.clear()
            await self._news.wait()
        return self.failed is None

    async def _spares(self) -> list[str]:
        """The running stores that no position has, in random order; those that have just been left, and may be back, come last."""
        running = [store.uuid for store in await self._registry.stores() if store.able]
        used = {self._current(position).store for position in range(self.metadata.ensemble)}
        left = [self._channels[position].store for position in self._joining]
        found = [store for store in running if store not in used]
        self._world.random.shuffle(found)
        self._has_spares = bool(found)
        return sorted(found, key=left.__contains__)

    async def _publish_joined(self) -> None:
        """Make the new ensemble known. Entries go on meanwhile, acknowledged by the other stores."""
        joined = dict(self._joining)
        lac = self.lac
        while self.failed is None:
            lac = self.lac
            try:
                self.metadata = self._window.found = await self._publish(
                    lac, {position: channel.store for position, channel in joined.items()}
                )
                break
            except LedgerFenced as error:
                self._end(error)
            except StoreLeaving as error:
                if await self._leaves(joined, error):
                    return
            except EblaError as error:
                log.info("ledger %d: its new stores are not known yet: %s", self.metadata.ledger, error)
                await self._world.clock.sleep(self._options.retry_s)
        if self.failed is not None:
            return
        for position, channel in joined.items():
            assert self.metadata.segments[-1].stores[position] == channel.store, (position, self.metadata)
            old = self._channels[position]
            if self._misses(old, lac) or old.owes(lac):
                self._mark_soon(old.store)
            self._channels[position] = channel
            del self._joining[position]
        self._window.take_over(joined)
        self._acknowledge()

    async def _leaves(self, joined: Mapping[int, Channel], error: StoreLeaving) -> bool:
        """A store that joins leaves, or has ended. Returns whether yet another one can join."""
        if await self._spares():
            for channel in joined.values():
                channel.lost = channel.lost or channel.store == error.store
            return True
        await self._world.clock.sleep(self._options.replace_s)
        return False

    async def _publish_replaced(self, lac: int, replaced: Mapping[int, str]) -> Metadata:
        def transform(found: Metadata) -> Metadata:
            meta.require_open(found)
            return meta.with_replaced(found, lac, replaced)

        return await self._change(transform)

    async def _change(self, transform: Transform) -> Metadata:
        """A ledger that another client has closed may be deleted by now."""
        ledger = self.metadata.ledger
        try:
            return await self._registry.change(ledger, transform)
        except NotFound as error:
            raise LedgerFenced(f"ledger {ledger} is deleted", ledger=ledger) from error

    def _leave(self, channel: Channel) -> None:
        """Also in the middle of a replacement, which may be made or not: either store may be the ledger's."""
        channel.stop()
        replaced = self._current(channel.position) is not channel
        if channel.owes(self.lac) or (replaced and self._misses(channel, self.lac)):
            self._mark_soon(channel.store)

    def _misses(self, channel: Channel, lac: int) -> bool:
        """Whether an entry up to `lac` was not sent to the store, because another one joined."""
        return (
            next(meta.entries_of(self.metadata, channel.position, channel.wanted + 1, lac), None) is not None
        )

    def _mark_soon(self, store: str) -> None:
        self._world.spawn(self._mark(store), f"mark ledger {self.metadata.ledger}")

    async def _mark(self, store: str) -> None:
        """A mark is a hint: without it, the next check of all ledgers finds what is missing."""
        try:
            await self._registry.mark(self.metadata.ledger, store)
        except EblaError as error:
            log.warning("ledger %d is not marked for repair: %s", self.metadata.ledger, error)

    # -- the end ---------------------------------------------------------------------------------------------

    def _end(self, error: EblaError) -> None:
        """No entry is added any more; those under way get the error."""
        if self.failed is not None:
            return
        self.failed = error
        for channel in self._every():
            channel.stop()
        for pending in self._window.pending:
            assert pending.future is not None
            settle(pending.future, type(error)(error.message, **error.values()))
        self._window.pending.clear()
        self._news.set()

    def stop(self) -> None:
        """End without a change of the metadata."""
        ledger = self.metadata.ledger
        self._end(LedgerClosed(f"the writer of ledger {ledger} has ended", ledger=ledger))

    async def drain(self, limit_s: float) -> bool:
        """Wait until all entries are acknowledged. Returns whether they are."""
        await self._until(lambda: not self._window.pending, limit_s)
        return not self._window.pending and self.failed is None

    async def _until(self, true: Callable[[], bool], limit_s: float) -> None:
        """Wait for that, for the end of the writer, or for the limit."""
        try:
            async with self._world.clock.timeout(limit_s):
                while self.failed is None and not true():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return

    async def close(self) -> Metadata:
        """Decide the end of the ledger, once slow stores have its entries, too. Every entry must be acknowledged (`drain`): one that
        is not may have been read by now, and only a recovery decides about it. Entries that are added meanwhile are refused. Raises
        LedgerFenced if another client has decided another end. After any other error the same call may be made again."""
        ledger = self.metadata.ledger
        if not self._ending:
            await self._end_whole(LedgerClosed(f"ledger {ledger} is closed", ledger=ledger))
        last, length = self.lac, self.length
        try:
            closed = await self._change(lambda found: _closed_by_writer(found, last, length))
        except LedgerClosed as error:
            raise LedgerFenced(error.message, ledger=ledger) from error
        stores = (channel.store for channel in self._every())
        self._stores.tell_closed(closed, stores, self._options.timeout_s)
        return closed

    async def _end_whole(self, error: LedgerClosed) -> None:
        assert not self._window.pending, "a ledger with entries under way is ended by a recovery"
        self._closing = True
        present = [*range(self.metadata.ensemble)]
        await self._until(
            lambda: (
                not any(c.owes(self.lac) and c.failing_since is None for c in map(self._current, present))
            ),
            self._options.replace_s,
        )
        self._require_open()
        self._ending = True
        for channel in self._every():
            self._leave(channel)
        self._end(error)


def _closed_by_writer(found: Metadata, last: int, length: int) -> Metadata:
    if not found.closed:
        meta.require_open(found)
    return meta.closed(found, last, length)
