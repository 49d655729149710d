"""Deletes what this host's store need not keep: ledgers that are deleted, and entries of closed ledgers that moved elsewhere.

When a ledger counts as deleted. A ledger's metadata is made before any store hears of it, and its id never comes again. So a
ledger that a store has listed, and that is in no later list of the registry, was deleted. Two further rules guard against
masters whose namespace came back from an old copy, and does not know newer ledgers:

    newer    a ledger whose id is above the namespace's revision stays: ids are revisions
    twice    a ledger is deleted when two looks, with the pause `garbage_s` in between, did not find it

When entries count as moved. The ledger is closed, and none of its segments names the store. A repair may be about to name it, so
this is read under the ledger's lock, and every change of a repair is made only while its own lock exists. The store may carry out
the request when this lock is lost: it refuses that if a repair has counted on entries there since it listed the ledger, and
refuses repairs as long as it deletes (store/visits.py). So it must have listed the ledger before the lock was taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from ebla.actors.errors import NotFound
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.errors import LedgerBusy
from ebla.actors.ledger.handles.options import LedgerOptions
from ebla.actors.ledger.handles.stores import Stores
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.kept import KeptRegistry
from ebla.actors.ledger.shared.records import DEADLINE_S, LastingSession
from ebla.actors.ledger.worker.locking import take
from ebla.actors.ledger.worker.measures import Counted
from ebla.actors.world import World
from ebla.storage.errors import Corruption

log = logging.getLogger(__name__)


def deleted(
    listed: Iterable[m.Listed], known: Iterable[int], revision: int, absent_before: Iterable[int]
) -> tuple[list[m.Listed], list[int]]:
    """The ledgers of a store to delete now, and those that were absent now. `known`: read after `listed`."""
    there, before = frozenset(known), frozenset(absent_before)
    absent = [each for each in listed if each.ledger not in there and each.ledger <= revision]
    return [each for each in absent if each.ledger in before], [each.ledger for each in absent]


def is_moved(found: Metadata, store: str) -> bool:
    """Whether the ledger needs nothing of this store any more."""
    return found.closed and not any(store in segment.stores for segment in found.segments)


class Garbage:
    def __init__(
        self,
        world: World,
        sessions: LastingSession,
        registry: KeptRegistry,
        calls: LedgerOptions,
        counted: Counted,
        go_on: Callable[[], None],
    ) -> None:
        self._world = world
        self._sessions = sessions
        self._registry = registry
        self._calls = calls
        self._counted = counted
        self._go_on = go_on
        self._stores = Stores(world, registry)
        self._absent: tuple[str, list[int]] = ("", [])  # of which store

    async def collect(self, store: str) -> None:
        """One look at all ledgers of the store."""
        listed = await self._listed(store)
        node = await self._sessions.nodes.get(paths.LEDGERS, deadline_s=DEADLINE_S)
        if node is None:
            return
        known = await self._registry.list()
        absent = self._absent[1] if self._absent[0] == store else []
        gone, absent = deleted(listed, known, node.revision, absent)
        self._absent = (store, absent)
        for each in gone:
            self._go_on()
            request = m.DeleteRequest(store, each.ledger, each.token)
            await self._stores.call(store, "delete_ledger", request, m.Done, self._calls.timeout_s)
            self._counted.collected += 1
            log.info("ledger %d is deleted from store %s", each.ledger, store)
        there = frozenset(known)
        for each in listed:
            if each.stored and each.ledger in there:
                self._go_on()
                await self._drop_moved(store, each)

    async def _listed(self, store: str) -> list[m.Listed]:
        listed: list[m.Listed] = []
        more, after = True, -1
        while more:
            request = m.ListRequest(store, after)
            reply = await self._stores.call(
                store, "list_ledgers", request, m.ListReply, self._calls.timeout_s
            )
            listed += reply.ledgers
            more = reply.more
            after = listed[-1].ledger if listed else -1
        return listed

    async def _drop_moved(self, store: str, each: m.Listed) -> None:
        if not await self._is_moved(store, each):
            return
        lock = await take(self._sessions, each.ledger, self._world.address)
        if lock is None:
            return
        try:
            if await self._is_moved(store, each) and lock.sure:
                request = m.DropRequest(store, each.ledger, each.token, each.sign)
                await self._stores.call(store, "drop_entries", request, m.Done, self._calls.timeout_s)
                self._counted.collected += 1
                log.info("ledger %d has left store %s", each.ledger, store)
        except LedgerBusy as error:
            log.info("ledger %d leaves store %s later: %s", each.ledger, store, error)
        finally:
            await lock.release()

    async def _is_moved(self, store: str, each: m.Listed) -> bool:
        try:
            found = await self._registry.read(each.ledger)
        except (NotFound, Corruption):  # a ledger that cannot be read keeps its entries
            return False
        return found.token == each.token and is_moved(found, store)
