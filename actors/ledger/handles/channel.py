"""A writer's connection to one store: one call is under way, and the next takes everything that queued meanwhile.

What is acknowledged the store learns from the next entry. If none comes for a while, or a reader waits at the store, a call of
its own tells it. An entry has no timer of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ebla.actors.errors import WrongServer
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.errors import LedgerFenced, StoreReadOnly, WrongToken
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.world import CallerWorld
from ebla.storage.errors import EblaError, StorageError

FATAL = (LedgerFenced, WrongToken)
LOST = (WrongServer, StoreReadOnly, StorageError)  # waiting does not help

RETRY_S_MAX = 2.0


class Channel:
    """`on_added`: the entries are synced at the store. `on_failed`: it did not take them; they are sent again."""

    def __init__(
        self,
        world: CallerWorld,
        stores: Stores,
        options: LedgerOptions,
        ledger: int,
        token: str,
        position: int,
        store: str,
        recovery: bool,
        on_added: Callable[[Channel, list[m.Entry]], None],
        on_failed: Callable[[Channel, EblaError], None],
    ) -> None:
        self.position = position
        self.store = store
        self.failing_since: float | None = None
        self.lost = False  # the store will not take this ledger's entries any more
        self.leaving = False  # its host is being decommissioned
        self.has_gap = False  # an acknowledged entry was left out
        self.wanted = self.stored = -1  # the last entry that was sent here, and that the store has synced
        self._world = world
        self._stores = stores
        self._options = options
        self._ledger, self._token = ledger, token
        self._recovery = recovery
        self._on_added = on_added
        self._on_failed = on_failed
        self._queue: deque[m.Entry] = deque()
        self._bytes = 0
        self._confirmed = self._lac = -1
        self._confirming = False
        self._awaited = False  # a reader waits at the store
        self._due = asyncio.Event()
        self._stopped = False
        self._reaches = False  # its first answer is waited for
        self._asks = False  # whether the store runs
        self._calls = 0
        world.spawn(self._run(), f"ledger {ledger} to {store}")
        self._pings = None if recovery else world.spawn(self._ping(), f"ledger {ledger} asks {store}")

    def send(self, entry: m.Entry) -> None:
        self._queue.append(entry)
        self.wanted = entry.entry
        self._bytes += len(entry.data)
        self._due.set()

    def acknowledged(self, lac: int) -> None:
        """Entries up to `lac` are acknowledged. If they wait here in too great number, the oldest are left out."""
        if not self._recovery:  # nobody may rely on what a recovery has written before it closes the ledger
            self._lac = lac
        while self._bytes > self._options.backlog_bytes_max and self._queue and self._queue[0].entry <= lac:
            self._bytes -= len(self._queue.popleft().data)
            self.has_gap = True
        if self._confirmed < self._lac and not self._confirming and not self._stopped:
            self._confirming = True
            self._world.spawn(self._confirm(), f"ledger {self._ledger} confirms")

    @property
    def is_gone(self) -> bool:
        """Whether another store should take over."""
        since = self.failing_since
        fails = since is not None and self._world.now() - since >= self._options.replace_s
        return self.lost or self.leaving or fails

    def owes(self, lac: int) -> bool:
        """Whether the store may lack an entry up to `lac`."""
        return self.has_gap or bool(self._queue and self._queue[0].entry <= lac)

    def reach(self) -> None:
        """Call the store at once, also without an entry for it."""
        self._reaches = True
        self._due.set()

    def has(self, entry: int) -> bool:
        """Whether the store has answered, and has synced everything up to this entry."""
        return not self._reaches and self.stored >= entry

    def stop(self) -> None:
        self._stopped = True
        self._due.set()
        if self._pings is not None:
            self._pings.cancel()

    async def _run(self) -> None:
        while not self._stopped:
            await self._due.wait()
            self._due.clear()
            while not self._stopped and (
                self._queue or self._reaches or self._asks or self.failing_since is not None
            ):
                if not await self._call():
                    await self._world.clock.sleep(self._retry_s())

    def _retry_s(self) -> float:
        """The longer the store fails, the longer: a store that is away for days costs little, and one that returns is soon used."""
        since = self._world.now() if self.failing_since is None else self.failing_since
        return max(self._options.retry_s, min(RETRY_S_MAX, (self._world.now() - since) / 10))

    async def _ping(self) -> None:
        """Ask a store that was not called for a long time."""
        while True:
            before = self._calls
            await self._world.clock.sleep(self._options.ping_s)
            if self._calls == before:
                self._ask()

    def _ask(self) -> None:
        self._asks = True
        self._due.set()

    async def _confirm(self) -> None:
        """Tell the store what is acknowledged, unless an entry does; also after the last entry, when the channel has stopped."""
        while self._confirmed < self._lac:
            lac = self._lac
            if not self._awaited and not self._stopped:
                await self._world.clock.sleep(self._options.confirm_s)
                if self._lac > lac or self._confirmed >= lac or (self._queue and self._queue[-1].lac >= lac):
                    continue
            if not await self._confirms(lac):
                break
        self._confirming = False

    async def _confirms(self, lac: int) -> bool:
        """Returns False if the store has not answered, which `_call` finds out."""
        request = m.ConfirmRequest(self.store, self._ledger, self._token, lac)
        try:
            await self._stores.call(self.store, "confirm", request, m.Done, self._options.timeout_s)
        except EblaError:
            self._ask()
            return False
        self._confirmed = max(self._confirmed, lac)
        return True

    async def _call(self) -> bool:
        """Send what waits. The entries stay in the queue until the store has them."""
        taken = self._taken()
        lac = taken[-1].lac if taken else self._lac
        self._calls += 1
        try:
            if taken:
                add = m.AddRequest(self.store, self._ledger, self._token, tuple(taken), self._recovery)
                done = await self._stores.call(
                    self.store, "add_entries", add, m.Done, self._options.timeout_s
                )
                self._awaited = done.awaited
            else:
                confirm = m.ConfirmRequest(self.store, self._ledger, self._token, lac)
                done = await self._stores.call(
                    self.store, "confirm", confirm, m.Done, self._options.timeout_s
                )
        except EblaError as error:
            if self._stopped:
                return False
            if self.failing_since is None:
                self.failing_since = self._world.now()
            self.lost = self.lost or isinstance(error, LOST)
            self._on_failed(self, error)
            return False
        self.failing_since = None
        self.leaving = done.leaving and not self._recovery  # a worker moves what a recovery writes there
        self._reaches = self._asks = False
        self._confirmed = max(self._confirmed, lac)
        if taken:
            self.stored = taken[-1].entry
            self._drop(taken)
        if not self._stopped:
            self._on_added(self, taken)
        return True

    def _taken(self) -> list[m.Entry]:
        taken: list[m.Entry] = []
        size = 0
        for entry in self._queue:
            size += len(entry.data)
            if taken and (size > self._options.call_bytes or len(taken) == self._options.call_entries):
                break
            taken.append(entry)
        return taken

    def _drop(self, taken: list[m.Entry]) -> None:
        """Remove the entries that the store has; some may have been left out meanwhile."""
        last = taken[-1].entry
        while self._queue and self._queue[0].entry <= last:
            self._bytes -= len(self._queue.popleft().data)
