"""Calls to ledger stores, by their uuids."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ebla.actors.errors import NotDelivered
from ebla.actors.ledger.handles.registry import Registry
from ebla.actors.world import CallerWorld
from ebla.storage.errors import EblaError

Reply = TypeVar("Reply")


class Stores:
    def __init__(self, world: CallerWorld, registry: Registry) -> None:
        self._world = world
        self._registry = registry
        self._addresses: dict[str, str] = {}

    async def call(
        self, store: str, method: str, message: msgspec.Struct, reply: type[Reply], timeout_s: float
    ) -> Reply:
        """Call the store. Raises NotDelivered if its address is not known."""
        address = self._addresses.get(store) or await self._find(store)
        try:
            return await self._world.network.call(address, method, message, reply, timeout_s)
        except EblaError:
            self._addresses.pop(store, None)  # it may run elsewhere by now
            raise

    async def _find(self, store: str) -> str:
        try:
            found = await self._registry.address(store)
        except EblaError as error:
            raise NotDelivered(f"the address of store {store} is not known now: {error}") from error
        if found is None:
            raise NotDelivered(f"no store {store} has ever registered")
        self._addresses[store] = found
        return found
