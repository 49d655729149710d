"""The requests of the node that was the only one, by which the new nodes of a grown journal begin to count."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ebla.actors.journal import messages as m
from ebla.actors.journal.node import growth
from ebla.actors.journal.node.journal import Journal
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.journal.records import Admission
from ebla.actors.world import World
from ebla.storage.errors import DiskFailed, EblaError

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Admissions:
    _world: World
    _options: JournalNodeOptions

    def begin(self, journal: Journal) -> None:
        for each in journal.view.state.admits:
            self._world.spawn(self._admit(journal, each.node), f"admit {each.node}")

    async def _admit(self, journal: Journal, node: str) -> None:
        """Repeat the requests to a new node until it counts; also after a restart."""
        logged: set[type[EblaError]] = set()  # each kind of error is logged once
        while (pending := growth.pending(journal.view, node)) is not None:
            try:
                await self._try(journal, pending)
            except DiskFailed:
                raise
            except EblaError as error:
                if type(error) not in logged:
                    logged.add(type(error))
                    log.warning("%s cannot admit %s yet, and repeats: %s", self._world.address, node, error)
                await self._world.clock.sleep(self._options.admit_s)

    async def _try(self, journal: Journal, pending: Admission) -> None:
        """Ask the node to count, after its answer that it has joined and has all edits: see growth.py."""
        call, timeout_s = self._world.network.call, self._options.rpc_timeout_s
        node, id = pending.node, journal.form.journal
        if not pending.asked:
            joins = m.RejoinRequest(id, journal.form.nodes)
            joining = await call(node, "join", joins, m.Joining, timeout_s)
            if joining.token:
                await journal.asks(node, joining)
        if (now := growth.pending(journal.view, node)) is not None and now.asked:
            request = growth.admission(journal.view, id, now.token, self._world.address)
            await call(node, "admit", request, m.Done, timeout_s)
        await journal.admitted(node)
