"""The holder's side of the lease at the journal nodes: while it holds, no other can have begun to write.

The lease begins with the promises of a new epoch and is periodically renewed at a majority. Its time counts
from before the nodes were asked. A holder that cannot renew the lease in time stops using it, and may get
it back. The lease is lost for good if that takes long, or if so many nodes have promised a later epoch that
the others are no majority. So no one waits for a holder that does not reach a majority. A start of the
process forgets the lease.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import ceil, inf

from ebla.actors.errors import Unavailable
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import NodesMoved, QuorumFailed, StaleEpoch
from ebla.actors.journal.options import JournalOptions, LeaseLimits
from ebla.actors.journal.quorum import call_nodes, each, majority
from ebla.actors.world import World, new_id
from ebla.storage.errors import EblaError


class Holder:
    """The holder of the lease. Used once, like its writer, whose epoch may grow."""

    def __init__(self, world: World, options: JournalOptions, limits: LeaseLimits) -> None:
        limits.validate()
        self.claim = m.Claim(world.address, new_id(world.random), ceil(limits.held_s * 1000))
        self.epoch = 0
        self.lost: EblaError | None = None
        self._world = world
        self._options = options
        self._limits = limits
        self._until = -inf
        self._refused: dict[str, StaleEpoch] = {}  # nodes that promised another a later epoch
        self._sought = 0
        self._over = asyncio.Event()

    def holds(self) -> bool:
        """Whether no other can be the writer at this instant.

        A read at this instant is not stale; check again after every wait.
        """
        return self.lost is None and self._world.now() < self._until

    def seek(self, epoch: int) -> None:
        """Note the epoch that the nodes will be asked for.

        A node that refuses an older epoch because of this one supports this holder.
        """
        self._sought = epoch

    def won(self, epoch: int, asked_at: float) -> None:
        """Note that a majority has promised this epoch, and was asked at `asked_at` or later."""
        if self.lost is not None:
            return
        first, self.epoch = self.epoch == 0, epoch
        self._until = max(self._until, asked_at + self._limits.lease_s)
        self._refused.clear()
        if first:
            self._world.spawn(self._renew(), f"lease of journal {self._options.journal.name}")

    async def ended(self) -> EblaError:
        await self._over.wait()
        assert self.lost is not None
        return self.lost

    def close(self) -> None:
        """Stop using the lease; the nodes promise no other an epoch until it has run out at them, too."""
        self._lose(Unavailable(f"the lease of journal {self._options.journal.name} is no longer used"))

    async def release(self, successor: str | None = None) -> None:
        """`close`, and let the successor, or without one any writer, begin at once.

        A node that does not get the request waits until the lease has run out.
        """
        self.close()
        request = m.ReleaseRequest(self._options.journal, self.claim.token, successor)
        options, what, timeout_s = self._options, "release the lease", self._limits.lease_s
        with suppress(QuorumFailed, NodesMoved):  # the lease runs out by itself
            await call_nodes(self._world, options, what, "release_lease", request, m.Done, timeout_s)

    async def _renew(self) -> None:
        """Renew the lease in rounds that overlap: a slow node does not delay the next round."""
        while self.lost is None:
            await self._world.clock.sleep(self._limits.renew_s)
            if self._world.now() > self._until + self._limits.held_s:
                name = self._options.journal.name
                self._lose(Unavailable(f"the lease of journal {name} could not be renewed at a majority"))
            if self.lost is None:
                self._world.spawn(self._round(), "renewal")

    async def _round(self) -> None:
        asked_at = self._world.now()
        request = m.RenewRequest(self._options.journal, self.epoch, self.claim)

        async def ask(node: str) -> m.Done:
            try:
                return await self._world.network.call(
                    node, "renew_lease", request, m.Done, self._limits.lease_s
                )
            except StaleEpoch as error:
                if request.epoch == self.epoch and error.promised != self._sought:
                    self._refused[node] = error
                raise

        options = self._options
        calls = each(self._world, options.nodes, ask)
        try:
            await majority(options.journal.name, "renew the lease", calls, options.majority)
        except QuorumFailed:
            if len(options.nodes) - len(self._refused) < options.majority:
                self._lose(next(iter(self._refused.values())))
            return
        except NodesMoved as error:
            self._lose(error)
            return
        self._until = max(self._until, asked_at + self._limits.lease_s)

    def _lose(self, error: EblaError) -> None:
        if self.lost is None:
            self.lost = error
            self._over.set()


async def lease_states(world: World, options: JournalOptions, timeout_s: float) -> dict[str, m.LeaseState]:
    """Return the states of the lease at a majority of the nodes."""
    what = "read the state of the lease"
    return await call_nodes(world, options, what, "lease_state", options.journal, m.LeaseState, timeout_s)
