"""Moves entries from the order of their arrival to their ledgers, many of them in one commit: see arrivals.py.

One commit takes an entry from its first place and puts it in the other, so it is in one of them at any time; readers look in both. If a
disk is full, entries stay where they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ebla.actors.ledger.store.arrivals import Arrivals
from ebla.actors.ledger.store.commits import Commits
from ebla.actors.ledger.store.options import LedgerStoreOptions
from ebla.actors.world import World
from ebla.storage.errors import DiskFull

log = logging.getLogger(__name__)


class Mover:
    """`turn`: of those that move entries, or forget ledgers. `is_deleted`: whether a ledger is."""

    def __init__(
        self,
        world: World,
        options: LedgerStoreOptions,
        arrivals: Arrivals,
        commits: Commits,
        is_deleted: Callable[[int], bool],
    ) -> None:
        self._world = world
        self._options = options
        self._arrivals = arrivals
        self._commits = commits
        self._is_deleted = is_deleted
        self.turn = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await self._world.clock.sleep(self._options.move_s)
            await self.move_all()

    async def move_all(self) -> None:
        """Move what has arrived until now. What arrives meanwhile stays for the next time: moved one by one, entries cost pages of
        their own."""
        before = self._arrivals.next
        while await self.move(before):
            await self._world.clock.sleep(0)

    async def move(self, before: int) -> bool:
        """Move the oldest entries with numbers below this one. Returns whether there were any."""
        async with self.turn:
            changes, numbers = self._arrivals.moves(self._options.move_bytes, before, self._is_deleted)
            if not numbers:
                return False
            await self._world.faults.here("ledger.move.before_commit")
            try:
                await self._commits.commit(changes)
            except DiskFull as error:
                log.warning("%s: entries are moved later: %s", self._world.address, error)
                return False
            self._arrivals.moved(numbers)
            await self._world.faults.here("ledger.move.after_commit")
            return True
