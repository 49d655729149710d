"""An operator lets the journal of a deployment with a single master grow from one node to several, while everything runs.

`ebla up --journals 3` is bound to Ray, so the order of its steps is copied here (placement/launch.py): the new nodes come up, and
the active master is asked until it serves with them. After a timeout the operator asks again.
"""

from __future__ import annotations

import asyncio

from ebla.actors.errors import Unavailable
from ebla.actors.master.messages import GrowJournalReply, GrowJournalRequest
from ebla.chaos.simulation.deployment import Deployment
from ebla.options import MASTER
from ebla.storage.errors import EblaError

BEGINS_S = (0.5, 5.0)  # after act one has begun
PATIENCE_S = (0.05, 12.0)  # of one request
PAUSE_S = (0.05, 0.6)  # between two requests


class Growing:
    """`done`: the master has answered that it serves with all nodes."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.cluster = deployment.cluster
        self.chance = self.cluster.loop.derive("growing")
        self.world = self.cluster.client_world("client/operator-up")
        self.done = False

    async def run(self) -> None:
        await asyncio.sleep(self.chance.uniform(*BEGINS_S))
        for node in self.deployment.journals[1:]:
            self.cluster.will_be(node, self.deployment.make_node)
        self.deployment.kept_up = (*self.deployment.kept_up, *self.deployment.journals[1:])
        request = GrowJournalRequest(self.deployment.journals)
        while not self.done:
            patience_s = self.chance.uniform(*PATIENCE_S)
            try:
                reply = await self.world.network.call(
                    MASTER, "grow_journal", request, GrowJournalReply, patience_s
                )
                if reply.nodes != self.deployment.journals:
                    raise Unavailable(f"the journal has the nodes {reply.nodes}")
            except EblaError as error:
                self.cluster.loop.trace("growing", type(error).__name__)
                await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            else:
                self.done = True
