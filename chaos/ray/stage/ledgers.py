"""The ledgers of a deployment: which role works on them at this moment, and whether every copy of every entry is sound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from ebla import aio
from ebla.actors.errors import NotFound
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.records import DEADLINE_S
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.actors.ledger.shared.survey import survey
from ebla.deployment import make_client
from ebla.log.reading import Ledgers
from ebla.operate import ledgers as operate
from ebla.storage.errors import EblaError

REPAIR_S_MAX = 10.0  # until a repair begins
POLL_S = 0.05
LISTED_MAX = 3


class RayLedgers:
    """Made on the running event loop."""

    def __init__(self, deployment: str) -> None:
        self._client = make_client(deployment)
        self._ledgers: Ledgers = aio.Database(self._client)._logs
        self._repairs = Repairs(self._ledgers.session)

    async def close(self) -> None:
        await self._ledgers.session.close()
        self._client.close()

    async def auditor(self) -> str | None:
        """The address of the elected one."""
        return (await survey(self._ledgers.world, self._ledgers.session, 0)).auditor

    async def repairing(self) -> str | None:
        """The address of a worker that repairs a ledger now; the first one within some seconds."""
        until = time.monotonic() + REPAIR_S_MAX
        while time.monotonic() < until:
            for ledger in await self._repairs.locked():
                lock = await self._repairs.nodes.get(paths.of_lock(ledger), deadline_s=DEADLINE_S)
                if lock is not None:
                    return lock.data.decode()
            await asyncio.sleep(POLL_S)
        return None

    async def problems(self) -> list[str]:
        """The ledgers to be repaired, or else the copies that are not sound. A dead writer's ledger is checked up to its last acknowledged
        entry."""
        found = await survey(self._ledgers.world, self._ledgers.session, LISTED_MAX)
        if found.marks:
            reasons = [
                f"ledger {each.ledger}: {each.reason or 'no worker has tried yet'}" for each in found.marked
            ]
            return [f"{found.marks} ledgers are to be repaired", *reasons]
        return [line async for line in self._unsound()]

    async def _unsound(self) -> AsyncIterator[str]:
        where = await operate.addresses(self._ledgers)
        for ledger in await self._ledgers.registry.list():
            try:
                checked = await operate.check(self._ledgers, ledger)
            except NotFound:
                continue  # it was empty, and another writer has left it out
            except EblaError as error:
                yield f"ledger {ledger} cannot be checked: {error}"
                continue
            if checked.lost:
                yield f"ledger {ledger}: entries {operate.ranges(checked.lost)} are lost"
            for held in checked.stores:
                if not held.sound:
                    bad = (
                        held.error
                        or f"lacks {operate.ranges(held.absent)}, damaged {operate.ranges(held.damaged)}"
                    )
                    yield f"ledger {ledger}: {where.get(held.store)} {bad}"
