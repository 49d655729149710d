"""Calls to ledger stores, by their uuids.

A store that fails may run elsewhere by now: its address is looked up again, but not with every call. If no master answers, the old
address stays in use. It cannot lead to a wrong store, because every request names the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from ebla.actors.errors import NotDelivered, WrongServer
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.registry import Registry
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.world import CallerWorld
from ebla.storage.errors import EblaError

Reply = TypeVar("Reply")

ASK_S = 1.0  # longest wait for a new address while there is an old one
ASK_AGAIN_S = 4.0  # between two questions for the address of a store that fails


class Stores:
    def __init__(self, world: CallerWorld, registry: Registry) -> None:
        self._world = world
        self._registry = registry
        self._addresses: dict[str, str] = {}
        self._ask_at: dict[str, float] = {}  # stores that fail: when to ask for their addresses again

    async def call(
        self, store: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Reply:
        """Call the store. Raises NotDelivered if its address is not known."""
        address = await self._address(store)
        try:
            answer = await self._world.network.call(address, method, message, reply, timeout_s)
        except WrongServer:  # another store has the address now
            if self._addresses.get(store) == address:
                del self._addresses[store]
            raise
        except EblaError:
            self._ask_at.setdefault(store, self._world.now())
            raise
        self._ask_at.pop(store, None)
        return answer

    def tell_closed(self, found: Metadata, stores: Iterable[str], timeout_s: float) -> None:
        """The ledger is closed: readers that wait at these stores look for the next one. One that is not told does so a little
        later. They are told of no entry: a search for stores that lack the last one compares it with what they know."""

        async def tell(store: str) -> None:
            request = m.ConfirmRequest(store, found.ledger, found.token, meta.NONE, closed=True)
            with contextlib.suppress(EblaError):
                await self.call(store, "confirm", request, m.Done, timeout_s)

        for store in dict.fromkeys(stores):
            self._world.spawn(tell(store), f"ledger {found.ledger} is closed")

    async def _address(self, store: str) -> str:
        known = self._addresses.get(store)
        if known is None:
            return await self._find(store)
        now = self._world.now()
        if self._ask_at.get(store, now + 1) > now:
            return known
        self._ask_at[store] = now + ASK_AGAIN_S
        try:
            async with self._world.clock.timeout(ASK_S):
                return await self._find(store)
        except (NotDelivered, TimeoutError):
            return known

    async def _find(self, store: str) -> str:
        """Ask the master for the address."""
        try:
            found = await self._registry.address(store)
        except EblaError as error:
            raise NotDelivered(f"the address of store {store} is not known now: {error}") from error
        if found is None:
            raise NotDelivered(f"no store {store} has ever registered")
        self._addresses[store] = found
        return found
